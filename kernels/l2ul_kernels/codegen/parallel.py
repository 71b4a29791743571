"""Sharing work among threads: one compiled function that releases the GIL, called on ranges of items.

numba's own parallel loops would compile everything below them several times over (20 s instead of 5 for the MLP); the
work of one item is large here, so plain threads lose nothing. Items write to places of their own: which thread does
which item never shows in the result.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba

from l2ul_kernels.codegen.jit import ensure_compiled

#: Ranges per thread: a thread that is done early takes another one.
RANGES = 4


def share(key: Any, function: Any, items: int, *what: Any, threads: int | None = None) -> None:
    """function(first, last, thread, *what) on ranges that cover 0 .. items - 1, by `threads` or all that numba may use.

    `thread` is in 0 .. numba.get_num_threads() - 1 and belongs to one running call at a time.
    """
    ensure_compiled(key, lambda: function(0, 0, 0, *what))
    threads = min(threads or numba.get_num_threads(), items)
    if threads <= 1:
        function(0, items, 0, *what)
        return
    ranges = min(items, RANGES * threads)
    todo = iter([(items * i // ranges, items * (i + 1) // ranges) for i in range(ranges)])

    def work(thread: int) -> None:
        for first, last in todo:  # next() of a list iterator is one step under the GIL
            function(first, last, thread, *what)

    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work, t) for t in range(1, threads)]
        work(0)
        for other in others:
            other.result()
