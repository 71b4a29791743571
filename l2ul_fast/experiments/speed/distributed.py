"""Dask workers beside one process with as many threads: counting many shards, expansion sums, training pairs.

The rows are the HIGGS stand-in, cut into shards, in the page cache. Workers are processes of this machine with one
thread each, started and warmed up before anything is timed. Every result is compared with that of one process before
its time is recorded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from l2ul_fast import distributed
from l2ul_fast.datasets.file.writer import DatasetWriter
from l2ul_fast.datasets.standin.rows import fill, load_model
from l2ul_fast.datasets.stream.stream import sample_partitions, stream_counts
from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import Record, Run
from l2ul_fast.measure.timing import interleave
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import FileTable
from l2ul_fast.unlearner.heads.expansion import fit_by_sums
from l2ul_fast.unlearner.pairs.make import subset_pairs
from l2ul_fast.unlearner.passes import LocalPasses
from l2ul_kernels import threads

#: Shards the stand-in is cut into; pairs that are made, and the rows of each, as by `l2ul fit --head learned`.
SHARDS, PAIRS, PAIR_ROWS = 8, 1000, 10_000

Show = Callable[[str, int, int], None]
#: Given the workers, or None for this process, the result as one array.
Compute = Callable[[distributed.DaskWorkers | None], Any]


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


def computations(client: Any, paths: list[str], table: FileTable) -> dict[str, tuple[Record, Compute]]:
    """(facts, what is computed) of every experiment by its name."""
    partitions, manifest = sample_partitions(paths, random_state=0), distributed.describe_shards(client, paths)
    m, s = max(20, min(PAIRS, table.n // 1000)), min(PAIR_ROWS, table.n // 4)
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

    return {
        "distributed-kme": ({"n": manifest.n, "t": partitions.n_partitions, "psi": partitions.n_seeds}, count),
        "distributed-sums": ({"n": table.n, "model": "lr"}, fit),
        "distributed-pairs": ({"n": table.n, "model": "lr", "m": m, "s": s}, pairs),
    }


def measure(clients: dict[int, Any], facts: Record, compute: Compute, repeats: int) -> Iterator[Record]:
    """One process with 1 .. k threads, and k one-thread workers, in turn."""
    expected = compute(None)

    def here(k: int) -> Any:
        with threads(k):
            return compute(None)

    calls: dict[str, Callable[[], Any]] = {}
    for k, client in clients.items():
        calls[f"one process {k}"] = partial(here, k)
        calls[f"workers {k}"] = partial(compute, distributed.DaskWorkers(client))
    for name, call in calls.items():
        if not np.array_equal(call(), expected):
            raise UserError(f"{name}: the result is not that of one process: this is a defect, please report it")
    for name, taken in interleave(calls, repeats, pause=0.05).items():
        method, count = name.rsplit(" ", 1)
        workers = int(count) if method == "workers" else 0
        own = {"method": method, "workers": workers, "threads": int(count)}
        yield {**facts, **own, "wall_seconds": taken.median, "spread": taken.spread}


def run_all(run: Run, rows: int, workers: int, repeats: int, show: Show) -> None:
    """Append the records that are not there yet."""
    with tempfile.TemporaryDirectory() as folder:
        show("write the stand-in's shards", 0, 4)
        paths = write_shards(Path(folder), rows)
        table = FileTable(paths, "train")
        base = {"dataset": "higgs", "source": table.label, "d": table.d, "shards": len(paths)}
        with distributed.connect(workers=workers) as many, distributed.connect(workers=1) as one:
            for k, (name, (facts, compute)) in enumerate(computations(many, paths, table).items()):
                if not run.has(experiment=name):
                    show(name.removeprefix("distributed-"), k + 1, 4)
                    facts = {"experiment": name, **base, **facts}
                    for record in list(measure({1: one, workers: many}, facts, compute, repeats)):
                        run.append(record)
        table.close()
    show("done", 4, 4)
