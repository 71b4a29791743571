"""The workers of a cluster as who shares the work of a fit: passes over shards, and training pairs by their numbers.

Which rows a pair has follows from its number and one seed, and a fit depends on its pair only. So the pairs are those
of a single process, bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from l2ul_fast.distributed.cluster import prepare, run_tasks
from l2ul_fast.distributed.passes import SharedPasses
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.tables import FileTable, Table
from l2ul_fast.unlearner.pairs.make import Ids, PairBatch, Pairs, PairWork, Progress, SubsetWork, pairs_of
from l2ul_fast.unlearner.pairs.plan import PairPlan

#: Pairs of a task: some 40 ms of the quickest ones, a few of which it takes to hand a task out.
TASK_PAIRS = 32


class DaskWorkers:
    """`l2ul_fast.workers.Workers` of a dask.distributed.Client."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def passes(self, table: Table | None) -> SharedPasses:
        """Passes over the shards of a FileTable."""
        return SharedPasses(self.client, table)

    def map(self, work: PairWork) -> Iterator[PairBatch]:
        """All pairs of the work; TASK_PAIRS of them are a task."""
        prepare(self.client)
        parts, held, table = work.parts(TASK_PAIRS), work, getattr(work, "table", None)
        shards = None if table is None else getattr(table, "shards", False)
        if shards:
            held = replace(work, table=_Files.of(table), visible=None)  # type: ignore[type-var,arg-type]
        elif shards is None:  # arrays: not through the scheduler
            held = self.client.scatter(work, broadcast=True, hash=False)
        else:
            raise UserError(f"workers cannot read a {type(table).__name__}")
        for _, batch in run_tasks(self.client, _make, parts, held):
            yield batch


def make_pairs(client: Any, model: Any, table: Table, plan: PairPlan, progress: Progress | None = None) -> Pairs:
    """All subset pairs of a plan, made by the workers of a client."""
    return pairs_of(SubsetWork(model, table, plan, table.ids()), DaskWorkers(client), plan.s, progress)


def _make(part: tuple[int, int], work: Any) -> PairBatch:
    if isinstance(getattr(work, "table", None), _Files):
        table, visible = _opened(work.table)
        work = replace(work, table=table, visible=visible)
    return work.make(*part)


class _Files(NamedTuple):
    """Dataset files that workers open themselves; hidden: packed bits, if not just those that `part` hides."""

    paths: tuple[str, ...]
    fingerprint: str
    part: str
    hidden: bytes | None
    coarse: bool

    @classmethod
    def of(cls, table: FileTable) -> _Files:
        from l2ul_fast.datasets.stream.cellstore import fingerprint

        paths = tuple(str(path.resolve()) for path in table.shards.paths)
        hidden = None if table.whole_part else np.packbits(table.hidden).tobytes()
        return cls(paths, fingerprint(table.shards), table.part, hidden, table.coarse)


@functools.lru_cache(maxsize=2)
def _opened(files: _Files) -> tuple[FileTable, Ids]:
    """The table and the numbers of its rows."""
    from l2ul_fast.datasets.stream.cellstore import fingerprint

    table = FileTable(list(files.paths), files.part, coarse=files.coarse)
    if fingerprint(table.shards) != files.fingerprint:
        table.close()
        raise DataError(f"{files.paths[0]} on the worker is not the file that was fitted: use one file system for all")
    if files.hidden is not None:
        hidden = np.unpackbits(np.frombuffer(files.hidden, np.uint8), count=table.shards.n).view(bool)
        table = FileTable(table.shards, files.part, hidden, table.y, coarse=files.coarse)
    return table, table.ids()
