"""Sharing work among plain Python threads that run one compiled function without the GIL.

numba's own parallel loops compile everything below them several times over (20 s instead of 5 for the MLP). Where the
work of one item is large, threads lose nothing. Items write to places of their own: which thread does which item never
shows in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

from l2ul_kernels.codegen.jit import ensure_compiled

#: Ranges per thread: a thread that is done early takes another one.
RANGES = 4


def parallel_for(kernel: Callable[..., Any], n_items: int, *args: Any, threads: int | None = None) -> None:
    """kernel(first, last, thread, *args) on ranges that cover 0 .. n_items - 1, by `threads` or all that numba may use.

    `thread` is in 0 .. threads - 1 and belongs to one running call at a time: scratch with a first axis of that length
    needs no locks. The first call for arguments of these types has no items: one process at a time compiles.
    """
    if hasattr(kernel, "signatures"):  # compiled by numba
        ensure_compiled(
            (kernel, *(a.dtype if isinstance(a, np.ndarray) else type(a) for a in args)), lambda: kernel(0, 0, 0, *args)
        )
    threads = min(threads or numba.get_num_threads(), n_items)
    if threads <= 1:
        kernel(0, n_items, 0, *args)
        return
    ranges = min(n_items, RANGES * threads)
    todo = iter([(n_items * i // ranges, n_items * (i + 1) // ranges) for i in range(ranges)])

    def work(thread: int) -> None:
        for first, last in todo:  # next() of a list iterator is one step under the GIL
            kernel(first, last, thread, *args)

    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work, thread) for thread in range(1, threads)]
        work(0)
        for other in others:
            other.result()
