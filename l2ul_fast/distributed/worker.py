"""The worker process of a cluster on this machine.

A new process loads this before its variables are set, and numba, which reads them when
it is loaded, must not come with it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from distributed import Worker

#: Bytes of free memory that a process keeps for its next task, and the largest piece that older glibc lets it keep.
KEPT, LARGEST = 1 << 28, 1 << 25
#: Parameters of glibc's mallopt.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
#: Seconds from one report of a worker to the next: about what Dask itself asks of 800 workers. It asks twice a second
#: of a few, which took two of them and the scheduler 1 % of two cores.
REPORTS = 5.0


def keep_memory() -> bool:
    """Let this process keep freed memory instead of getting it anew, page by page; False if its C library has no way.

    Pages that a system has taken back are expensive, most of all on virtual machines.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # without a limit of its own for pieces, the other one would make it give back all but the smallest
    return any(mallopt(MMAP_THRESHOLD, size) for size in (KEPT, LARGEST)) and bool(mallopt(TRIM_THRESHOLD, KEPT))


class LocalWorker(Worker):
    """A worker that keeps its memory, where Dask's give it back after every task, and reports how it is less often.

    That it has died is seen by its connection, not by these reports.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        keep_memory()

    async def heartbeat(self) -> None:
        await super().heartbeat()
        self.periodic_callbacks["heartbeat"].callback_time = 1000 * REPORTS  # the scheduler's answer has set it
