"""Workers of a fit, as seen by those that know nothing of Dask."""

from __future__ import annotations

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
