"""Work shared among Python threads that run compiled code without the GIL.

A parallel loop inside a kernel would compile everything it calls twice more.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def spread(task: Callable[[int, int], object], workers: int, last: int) -> None:
    """task(0, last) .. task(workers - 1, last) at the same time; the first error is raised when all have ended."""
    if workers <= 1:
        task(0, last)
        return
    with ThreadPoolExecutor(workers - 1) as pool:
        others = [pool.submit(task, worker, last) for worker in range(1, workers)]
        task(0, last)
        for other in others:
            other.result()
