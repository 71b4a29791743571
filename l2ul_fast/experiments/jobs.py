"""How an experiment is cut into jobs, and how jobs are run: resumable, one record per measured cell.

An experiment is a module with `jobs(setting) -> list[Job]`. A job shares its preparation (a fitted model, say) among
cells; it yields one record per cell, and `run_jobs` appends each at once. A killed run starts a job again, and the job
leaves out the cells that `done(**key)` knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from l2ul_fast.errors import DataError
from l2ul_fast.measure.records import Record, Run
from l2ul_fast.tables import ArrayTable, FileTable, in_memory

#: The seven datasets in the order of the paper's figures.
DATASETS = ("magic", "adult", "sepsis", "skin", "covtype", "susy", "higgs")


class Done(Protocol):
    """done(**key): whether the run already holds a record with these values."""

    def __call__(self, **key: Any) -> bool: ...


Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Setting:
    """What every experiment is told. facts holds the profile's numbers (rows, runs, m, ...)."""

    profile: str
    facts: dict[str, Any]
    datasets: tuple[str, ...]
    folder: Path  #: where HDF5 files are made and found again
    raw_dir: Path | None = None  #: original files; without them stand-ins are used
    threads: int = 1
    seed: int = 0

    def tables(self, name: str, rows: int | None = None) -> tuple[str, ArrayTable, ArrayTable]:
        """(label, training rows, test rows) in memory; `rows` in all at most. The label says real, subset, stand-in."""
        return load(name, rows, self.raw_dir, self.folder, bool(self.facts.get("complete")))


@dataclass(frozen=True)
class Job:
    """One unit of work. weight: its share of the whole run's time, for the remaining time shown."""

    experiment: str
    name: str
    measure: Callable[[Done], Iterator[Record]]
    weight: float = 1.0
    cells: dict[str, Any] = field(default_factory=dict)  #: values that all of its records share


@lru_cache(maxsize=2)
def load(
    name: str, rows: int | None, raw_dir: Path | None, folder: Path, complete: bool = False
) -> tuple[str, ArrayTable, ArrayTable]:
    """The dataset from its original files where they are, else its stand-in; the last two are kept in memory."""
    path = dataset_file(name, rows, raw_dir, folder, complete)
    train = FileTable(path, "train")
    label, both = train.label, []
    for part, share in ((train, 0.8), (FileTable(path, "test"), 0.2)):
        table = in_memory(part)
        part.close()
        both.append(some_rows(table, None if rows is None else max(100, int(rows * share))))
    return label, both[0], both[1]


def dataset_file(name: str, rows: int | None, raw_dir: Path | None, folder: Path, complete: bool = False) -> Path:
    """The dataset's HDF5 file, made if it is not there yet.

    The original comes first (a subset of it only if not `complete`), then a stand-in of `rows` rows (None: as many as
    the original has).
    """
    from l2ul_fast.datasets.file.layout import dataset_path
    from l2ul_fast.datasets.registry import get_info
    from l2ul_fast.datasets.standin.rows import make
    from l2ul_fast.datasets.text.convert import convert
    from l2ul_fast.datasets.text.rawfiles import find_raw

    for label in ("real",) if complete else ("real", "subset"):
        if dataset_path(folder, name, label).exists():
            return dataset_path(folder, name, label)
    try:
        raw = find_raw(name, raw_dir)
    except DataError:
        raw = None  # no original here
    if raw is not None and not (complete and raw.is_subset):
        folder.mkdir(parents=True, exist_ok=True)
        return convert(name, raw_dir, folder)
    total = get_info(name).n
    rows = total if rows is None else min(rows, total)
    where = folder if rows == total else folder / f"standin-{rows}"  # never over a full one
    path = dataset_path(where, name, "stand-in")
    if not path.exists():
        where.mkdir(parents=True, exist_ok=True)
        make(name, rows, 0, where)
    return path


def some_rows(table: ArrayTable, k: int | None) -> ArrayTable:
    """k rows drawn once for all (files may be sorted by class)."""
    if k is None or table.n <= k:
        return table
    some = np.random.default_rng(0).permutation(len(table.X))[:k]
    return ArrayTable(np.ascontiguousarray(table.X[some]), table.y[some].copy(), table.classes)


def run_jobs(run: Run, jobs: list[Job], setting: Setting, progress: Progress = lambda what, done, total: None) -> int:
    """Run every job, append each record as it comes; returns how many records are new."""
    total, behind, new = sum(job.weight for job in jobs), 0.0, 0
    for job in jobs:
        progress(f"{job.experiment} {job.name}", int(1000 * behind), int(1000 * total))
        common = {"experiment": job.experiment, **job.cells, "profile": setting.profile, "threads": setting.threads}
        mine = [r for r in run.records if all(r.get(k) == v for k, v in common.items()) and r.get("job") == job.name]

        def done(mine: list[Record] = mine, **key: Any) -> bool:
            return any(all(r.get(k) == v for k, v in key.items()) for r in mine)

        start = time.time()
        for record in job.measure(done):
            run.append({**common, "job": job.name, **record, "at": round(time.time() - start, 3)})
            new += 1
        behind += job.weight
    progress("done", int(1000 * total), int(1000 * total))
    return new
