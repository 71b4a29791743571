"""Dask workers beside one process with as many threads: counting many shards, expansion sums, training pairs.

The rows are the HIGGS stand-in, cut into shards, in the page cache. Workers are processes of this machine with one
thread each, started and warmed up before anything is timed. Every result is compared with that of one process before
its time is recorded.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from l2ul_fast.datasets.file.writer import DatasetWriter
from l2ul_fast.datasets.split import count_train
from l2ul_fast.datasets.standin.rows import fill, load_model
from l2ul_fast.datasets.stream.stream import sample_partitions, stream_counts
from l2ul_fast.errors import UserError
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, register
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import interleave
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import FileTable
from l2ul_fast.unlearner.heads.expansion import fit_by_sums
from l2ul_fast.unlearner.pairs.make import subset_pairs
from l2ul_fast.unlearner.passes import LocalPasses
from l2ul_kernels import threads

#: Shards the stand-in is cut into; pairs that are made, and the rows of each, as by `l2ul fit --head learned`.
SHARDS, PAIRS, PAIR_ROWS = 8, 1000, 10_000

#: Given the workers, or None for this process, the result as one array.
Compute = Callable[[Any], Any]


def write_shards(folder: Path, rows: int, shards: int = SHARDS) -> list[str]:
    """The first `rows` rows of the HIGGS stand-in as files of about equal size; their paths."""
    model = load_model("higgs")
    edges = [rows * k // shards for k in range(shards + 1)]
    paths = [folder / f"higgs-{k:03}.standin.h5" for k in range(shards)]
    for path, low, high in zip(paths, edges, edges[1:], strict=False):
        with DatasetWriter(path, name="higgs", source="standin:shard:0", d=model.d, classes=[0, 1]) as writer:
            for start in range(low, high, 1 << 18):
                size = min(1 << 18, high - start)
                X, y = np.empty((size, model.d), np.float32), np.empty(size, np.uint8)
                fill(model, start, 0, X, y)
                writer.append(X, y)
    return [str(path) for path in paths]


def computations(client: Any, paths: list[str], table: FileTable) -> dict[str, Compute]:
    """What is computed by every task."""
    from l2ul_fast import distributed

    partitions, manifest = sample_partitions(paths, random_state=0), distributed.describe_shards(client, paths)
    m, s = pairs_of(table.n)
    labels, model = table.y[table.ids()], LogisticModel(table.d)

    def count(workers: Any) -> Any:
        if workers is None:
            return stream_counts(paths, partitions)
        return distributed.stream_counts(workers.client, manifest, partitions)

    def fit(workers: Any) -> Any:
        passes = LocalPasses(table) if workers is None else workers.passes(table)
        return fit_by_sums(model, passes, 2).theta

    def pairs(workers: Any) -> Any:
        return subset_pairs(model, table, labels, m, s, 0, executor=workers).theta_r

    return {"distributed-kme": count, "distributed-sums": fit, "distributed-pairs": pairs}


def pairs_of(n: int) -> tuple[int, int]:
    """(pairs, rows of each) on n training rows."""
    return max(20, min(PAIRS, n // 1000)), min(PAIR_ROWS, n // 4)


def jobs(context: Context) -> Iterator[Job]:
    """One job: all tasks share the shards and the workers."""
    rows, many = context.numbers["rows"], context.numbers["workers"] or context.threads
    n = count_train(rows)
    m, s = pairs_of(n)
    facts = {
        "distributed-kme": {"n": rows, "t": 100, "psi": 4},
        "distributed-sums": {"n": n, "model": "lr"},
        "distributed-pairs": {"n": n, "model": "lr", "m": m, "s": s},
    }
    cells = tuple(
        {"experiment": name, "dataset": "higgs", "shards": SHARDS, **own, "method": method, "threads": k}
        | {"workers": k if method == "workers" else 0}
        for name, own in facts.items()
        for k in dict.fromkeys((1, many))
        for method in ("one process", "workers")
    )
    yield Job("shards", cells, partial(measure, context), seconds=60.0)


def measure(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """One process with 1 .. k threads, and k one-thread workers, in turn; all cells of a task that has any missing."""
    from l2ul_fast import distributed

    counts = sorted({cell["threads"] for cell in cells} | {1})
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_clusters:
        paths = write_shards(Path(folder), context.numbers["rows"])
        table = FileTable(paths, "train")
        open_clusters.callback(table.close)
        clients = {k: open_clusters.enter_context(distributed.connect(workers=k)) for k in counts}
        for name, compute in computations(clients[counts[-1]], paths, table).items():
            mine = [cell for cell in cells if cell["experiment"] == name]
            times = _times(clients, compute, context.numbers["repeats"], name) if mine else {}
            for cell in mine:
                taken = times[f"{cell['method']} {cell['threads']}"]
                facts = {"source": table.label, "d": table.d, "seconds": taken.median, "spread": taken.spread}
                yield {**cell, **facts, "repeats": context.numbers["repeats"]}


def _times(clients: dict[int, Any], compute: Compute, repeats: int, name: str) -> dict[str, Any]:
    """Times of every candidate, after its result was compared with that of one process."""
    from l2ul_fast import distributed

    def here(k: int) -> Any:
        with threads(k):
            return compute(None)

    expected = compute(None)
    calls: dict[str, Callable[[], Any]] = {}
    for k, client in clients.items():
        calls[f"one process {k}"] = partial(here, k)
        calls[f"workers {k}"] = partial(compute, distributed.DaskWorkers(client))
    for method, call in calls.items():
        if not np.array_equal(call(), expected):
            raise UserError(f"{name}, {method}: the result is not that of one process: please report this defect")
    return interleave(calls, repeats, pause=0.05)


register(
    Experiment(
        name="distributed",
        title="Dask workers",
        help="Count shards, add up derivatives and make training pairs on Dask workers, beside one process.",
        profiles={
            "tiny": {"rows": 4_000, "workers": 2, "repeats": 1},
            "quick": {"rows": 1_000_000, "workers": None, "repeats": 3},
            "paper": {"rows": 11_000_000, "workers": None, "repeats": 5},
            "full": {"rows": 11_000_000, "workers": None, "repeats": 9},
        },
        jobs=jobs,
        figure="l2ul_fast.report.figures.distributed:FIGURE",
        records=("distributed-kme", "distributed-sums", "distributed-pairs"),
        datasets=("higgs",),
        in_all=False,
        order=150,
        needs=("dask",),
    )
)
