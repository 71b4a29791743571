"""One thread budget for numba, torch and the BLAS/OpenMP pools, and what numba's threading layer allows."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numba

_launch = threading.Lock()
_safe_layer = False
#: Whether this process was forked from one that had used GNU OpenMP: its next parallel kernel would end it.
_orphan = False


def _forked() -> None:
    global _launch, _orphan
    _launch, _orphan = threading.Lock(), _orphan or _layer() == "omp"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def available_cores() -> int:
    """Cores this process may run on (its affinity mask), which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_limit() -> int:
    """The most threads a budget may ask for: the affinity mask, or fewer if NUMBA_NUM_THREADS said so."""
    return min(available_cores(), numba.config.NUMBA_NUM_THREADS)


@contextlib.contextmanager
def threads(k: int) -> Iterator[int]:
    """Give numba, torch (if imported) and the BLAS/OpenMP pools `k` threads each inside the block.

    Order matters: numba's first call resets torch's count, so numba is set first. Budgets nest; the former one returns.
    numba's count belongs to the calling thread; the other pools are shared by the process.
    """
    from threadpoolctl import threadpool_limits  # here, because it costs import time that kernel users may not need

    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"the number of threads must be an int, got {k!r}")
    limit = thread_limit()
    if not 1 <= k <= limit:
        cores = available_cores()
        cap = "" if limit == cores else f" and NUMBA_NUM_THREADS allows {limit}"
        raise ValueError(f"cannot use {k} threads: this process may run on {cores} core(s){cap}")
    before = numba.get_num_threads()
    torch = sys.modules.get("torch")
    torch_before = torch.get_num_threads() if torch else None
    numba.set_num_threads(k)
    try:
        with threadpool_limits(limits=k):
            if torch:
                torch.set_num_threads(k)
            yield k
    finally:
        numba.set_num_threads(before)
        if torch and torch_before is not None:
            torch.set_num_threads(torch_before)


@contextlib.contextmanager
def parallel_entry() -> Iterator[None]:
    """Around every parallel kernel: numba's `workqueue` layer aborts the process on two calls at once.

    Which layer it is, is only known after the first launch, so first launches queue here as well.
    """
    global _safe_layer
    if _orphan:
        raise RuntimeError(
            "this process was forked after its parent had used several threads, which GNU OpenMP does not survive: "
            'start it with multiprocessing.get_context("spawn"), or fork before the first fit'
        )
    if _safe_layer:
        yield
        return
    with _launch:
        yield
        _safe_layer = _layer() in ("omp", "tbb")


def _layer() -> str:
    try:
        return str(numba.threading_layer())
    except ValueError:  # no parallel kernel has run, or nothing is compiled
        return "not started"


def report() -> dict[str, Any]:
    """What the pools look like now: cores, numba's threads and layer, threadpoolctl's list."""
    from threadpoolctl import threadpool_info

    pools = [{k: p.get(k) for k in ("user_api", "internal_api", "version", "num_threads")} for p in threadpool_info()]
    torch = sys.modules.get("torch")
    return {
        "cores": available_cores(),
        "numba_threads": numba.get_num_threads(),
        "numba_layer": _layer(),
        "torch_threads": torch.get_num_threads() if torch else None,
        "pools": pools,
    }
