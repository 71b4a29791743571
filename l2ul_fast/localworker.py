"""The worker process of a cluster on this machine.

Not in `l2ul_fast.distributed`: a new process loads this before its variables are set, and numba, which reads them when
it is loaded, must not come with it.
"""

from __future__ import annotations

from distributed import Worker

#: Seconds from one report of a worker to the next: about what Dask itself asks of 800 workers. It asks twice a second
#: of a few, which took two of them and the scheduler 1 % of two cores.
REPORTS = 5.0


class LocalWorker(Worker):
    """A worker that reports how it is less often. That it has died is seen by its connection, not by these reports."""

    async def heartbeat(self) -> None:
        await super().heartbeat()
        self.periodic_callbacks["heartbeat"].callback_time = 1000 * REPORTS  # the scheduler's answer has set it
