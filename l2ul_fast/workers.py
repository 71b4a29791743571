"""Workers of a fit, as seen by those that know nothing of Dask; starting processes that Ctrl-C does not reach."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, Protocol


class Workers(Protocol):
    """Processes that pass over rows and make training pairs; the results are those of this process, bit for bit."""

    def passes(self, table: Any) -> Any:
        """`l2ul_fast.unlearner.passes.Passes` over the rows of a table."""

    def map(self, work: Any) -> Iterator[Any]:
        """All pairs of an `l2ul_fast.unlearner.pairs.make.PairWork`, batch by batch in any order."""


def workers_of(client: Any) -> Workers | None:
    """The workers of a dask.distributed.Client; None and what are Workers already as they are."""
    if client is None or hasattr(client, "passes"):
        return client
    from l2ul_fast.distributed import DaskWorkers  # here: Dask is an extra

    return DaskWorkers(client)


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C: a terminal sends it to all, and this process ends its workers itself."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
