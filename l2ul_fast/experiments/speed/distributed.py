"""Dask workers beside one process: counting many shards, making training pairs, and what the scheduler costs.

The rows are the HIGGS stand-in, cut into shards, in the page cache. Workers are processes of this machine with one
thread each, started and warmed up before anything is timed. Every result is compared with that of one process before
its time is recorded (pairs: that of the last round). This process keeps its memory, as the workers do.
"""

from __future__ import annotations

import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from l2ul_fast import distributed
from l2ul_fast.datasets.file.writer import DatasetWriter
from l2ul_fast.datasets.standin.rows import fill, load_model
from l2ul_fast.datasets.stream.manifest import Manifest
from l2ul_fast.datasets.stream.stream import sample_partitions, stream_counts
from l2ul_fast.distributed.worker import keep_memory
from l2ul_fast.errors import UserError
from l2ul_fast.experiments.speed.distributed_pairs import PairJob, pair_records, pair_turns
from l2ul_fast.measure.records import Record, Run
from l2ul_fast.measure.timing import interleave, once
from l2ul_fast.tables import FileTable
from l2ul_kernels import threads

#: Shards the stand-in is cut into.
SHARDS = 8
#: Tasks that do nothing, to see what one costs.
EMPTY = 2000
#: Leaves per worker that are tried beside the default.
LEAVES = (4, 16, 64, 160)
#: Rows of a data set so small that counting it shows what a call costs, and leaves that show what tasks cost.
FEW, FEW_LEAVES = 1000, 128

Show = Callable[[str, int, int], None]


def _write(path: Path, low: int, high: int) -> None:
    """Rows low .. high - 1 of the HIGGS stand-in as a dataset file."""
    model = load_model("higgs")
    with DatasetWriter(path, name="higgs", source="standin:shard:0", d=model.d, classes=[0, 1]) as writer:
        for start in range(low, high, 1 << 18):
            size = min(1 << 18, high - start)
            X, y = np.empty((size, model.d), np.float32), np.empty(size, np.uint8)
            fill(model, start, 0, X, y)
            writer.append(X, y)


def write_shards(folder: Path, rows: int, shards: int = SHARDS) -> list[str]:
    """The first `rows` rows of the HIGGS stand-in as files of about equal size; their paths."""
    edges = [rows * k // shards for k in range(shards + 1)]
    paths = [folder / f"higgs-{k:03}.standin.h5" for k in range(shards)]
    for path, low, high in zip(paths, edges, edges[1:], strict=False):
        _write(path, low, high)
    return [str(path) for path in paths]


def scheduler_bytes(client: Any) -> int:
    """Bytes the scheduler has received so far on all its open connections, by the kernel's own count (TCP_INFO).

    The scheduler must run in this process, as that of a local cluster does.
    """
    scheduler = getattr(client.cluster, "scheduler", None)
    if scheduler is None:
        raise UserError("the bytes a scheduler receives can only be counted where it runs")

    async def count() -> int:
        pool = scheduler.rpc  # connections the scheduler opened itself, to fetch results for the client
        opened = [comm for comms in (*pool.available.values(), *pool.occupied.values()) for comm in comms]
        return sum(_received(comm) for comm in {*scheduler._comms, *opened})

    return int(client.sync(count))


def _received(comm: Any) -> int:
    stream = getattr(comm, "stream", None)
    if stream is None or stream.socket is None or stream.socket.family not in (socket.AF_INET, socket.AF_INET6):
        return 0
    info = stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    return int(struct.unpack_from("=Q", info, 128)[0])  # tcpi_bytes_received, Linux 4.1 and later


def _nothing(item: int) -> int:
    return item


def measure_tasks(client: Any, workers: int, repeats: int) -> Record:
    """Seconds and bytes of a task that does nothing."""
    keys = [{f"l2ul-empty-{distributed.token()}-{i}": (_nothing, i) for i in range(EMPTY)} for _ in range(repeats + 1)]
    graphs = iter(keys)

    def call() -> None:
        graph = next(graphs)
        futures = client.get(graph, list(graph), sync=False)
        client.gather(futures)

    call()
    before = scheduler_bytes(client)
    seconds = float(np.median([once(call) for _ in range(repeats)]))
    moved = (scheduler_bytes(client) - before) / repeats
    return {
        "experiment": "distributed-tasks",
        "method": "empty task",
        "tasks": EMPTY,
        "workers": workers,
        "seconds_per_task": seconds / EMPTY,
        "scheduler_bytes_per_task": moved / EMPTY,
    }


def measure_counts(clients: dict[int, Any], paths: list[str], repeats: int) -> Iterator[Record]:
    """Counting all shards: one process with 1 .. k threads, and k one-thread workers."""
    partitions = sample_partitions(paths, random_state=0)
    manifest = distributed.describe_shards(next(iter(clients.values())), paths)
    t, psi, d, n = partitions.n_partitions, partitions.n_seeds, manifest.d, manifest.n
    base = {
        "experiment": "distributed-kme",
        "dataset": "higgs",
        "source": manifest.label,
        "n": n,
        "d": d,
        "t": t,
        "psi": psi,
        "shards": len(paths),
    }
    expected = stream_counts(paths, partitions)

    def here(k: int) -> None:
        with threads(k):
            _check(stream_counts(paths, partitions), expected)

    def there(k: int, leaves: Any) -> None:
        _check(distributed.stream_counts(clients[k], manifest, partitions, leaves=leaves), expected)

    calls: dict[str, Callable[[], object]] = {}
    facts: dict[str, Record] = {}
    for k in clients:
        calls[f"process {k}"], facts[f"process {k}"] = partial(here, k), {"method": "one process", "threads": k}
        default = len(distributed.spans(manifest, k))
        for per_worker in (None, *LEAVES) if k == max(clients) else (None,):
            leaves = None if per_worker is None else _leaves(manifest, k, per_worker)
            name = f"workers {k} leaves {per_worker}"
            calls[name] = partial(there, k, leaves)
            facts[name] = {
                "method": "workers" if leaves is None else "workers, other leaves",
                "workers": k,
                "threads": k,
                "leaves": default if leaves is None else len(leaves),
            }
    few = Path(paths[0]).with_name("few.h5")
    _write(few, 0, FEW)
    small = distributed.describe_shards(clients[max(clients)], [few])
    for count in (1, FEW_LEAVES):  # all leaves but one have no rows: what takes time are the tasks
        name, leaves = f"few {count}", [(0, 0, FEW), *[(0, 0, 0)] * (count - 1)]
        calls[name] = partial(distributed.stream_counts, clients[max(clients)], small, partitions, leaves=leaves)
        facts[name] = {"method": "workers, few rows", "workers": max(clients), "threads": max(clients)}
        facts[name] |= {"n": FEW, "shards": 1, "leaves": count}
    for call in calls.values():
        call()
    for name, taken in interleave(calls, repeats, pause=0.05).items():
        found = facts[name]
        record = {**base, **found, "wall_seconds": taken.median, "spread": taken.spread}
        if "workers" in found:
            record |= work_of(clients[found["workers"]], calls[name], repeats)
            record["scheduler_bytes_per_shard"] = record["scheduler_bytes"] / record["shards"]
        yield record


def work_of(client: Any, call: Callable[[], object], repeats: int) -> Record:
    """Bytes to the scheduler, CPU seconds of its thread and those of all processes for a call.

    Medians: now and then a process has to collect its garbage, which takes longer than many tasks.
    """
    names = ("scheduler_bytes", "scheduler_seconds", "cpu_seconds")
    counters = (scheduler_bytes, _loop_seconds, _cpu_seconds)
    taken = []
    for _ in range(repeats):
        before = [counter(client) for counter in counters]
        call()
        taken.append([counter(client) - start for counter, start in zip(counters, before, strict=True)])
    return dict(zip(names, np.median(taken, axis=0).tolist(), strict=True))


def _cpu_seconds(client: Any) -> float:
    """CPU seconds so far of this process, with the scheduler of a local cluster, and of all its workers."""
    return time.process_time() + sum(client.run(time.process_time).values())


def _loop_seconds(client: Any) -> float:
    """CPU seconds so far of the thread that runs the scheduler of a local cluster, and this client's messages too."""

    async def count() -> float:
        return time.thread_time()

    return float(client.sync(count))


def _leaves(manifest: Manifest, workers: int, per_worker: int) -> list[tuple[int, int, int]]:
    return distributed.spans(manifest, workers, 1, per_worker)


def _check(found: Any, expected: Any) -> None:
    if not np.array_equal(found, expected):
        raise UserError("the workers' counts are not those of one process: this is a defect, please report it")


def run_all(
    run: Run, rows: int, workers: int, repeats: int, pair_share: float, pair_seconds: float, show: Show
) -> None:
    """Append the records that are not there yet."""
    keep_memory()
    with tempfile.TemporaryDirectory() as folder:
        show("write the stand-in's shards", 0, 5)
        paths = write_shards(Path(folder), rows)
        table = FileTable(paths, "train")
        jobs: list[PairJob] = []
        with distributed.connect(workers=workers) as many:
            with distributed.connect(workers=1) as one:
                clients = {1: one, workers: many}
                if not run.has(experiment="distributed-tasks"):
                    show("empty tasks", 1, 5)
                    run.append(measure_tasks(many, workers, repeats))
                if not run.has(experiment="distributed-kme", n=rows):
                    show("count", 2, 5)
                    for record in list(measure_counts(clients, paths, repeats)):
                        run.append(record)
                if not run.has(experiment="distributed-pairs"):
                    show("pairs, all in turn", 3, 5)
                    jobs = list(pair_turns(clients, table, repeats, pair_share))
            show("pairs, one process and all workers in turn", 4, 5)
            for record in [r for job in jobs for r in pair_records(many, workers, job, table, pair_seconds)]:
                run.append(record)
        table.close()
    show("done", 5, 5)
