"""Dask workers beside one process: counting many shards, making training pairs, and what the scheduler costs.

The rows are the HIGGS stand-in, cut into shards, in the page cache. Workers are processes of this machine with one
thread each, started and warmed up before anything is timed. Every result is compared with that of one process before
its time is recorded (pairs: that of the last round).
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numba
import numpy as np

from l2ul_fast import distributed
from l2ul_fast.datasets.manifest import Manifest
from l2ul_fast.datasets.standin import fill, load_model
from l2ul_fast.datasets.stream import sample_partitions, stream_counts
from l2ul_fast.datasets.writer import DatasetWriter
from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.results import Record, Run
from l2ul_fast.tables import FileTable
from l2ul_fast.timing import Times, gain, gains, interleave, once, stolen_seconds
from l2ul_fast.unlearner.fitting import labels_of
from l2ul_fast.unlearner.pairs import Pairs, subset_pairs
from l2ul_kernels import threads

#: Shards the stand-in is cut into.
SHARDS = 8
#: Tasks that do nothing, to see what one costs.
EMPTY = 2000
#: (model name, pairs, rows per pair): what `l2ul fit` makes by default (the MLP: its subset pairs), and a short job.
PAIRS = (("lr", 1000, 10_000), ("mlp", 1000, 3000), ("mlp", 200, 3000))
#: Rounds of multiply-adds, about half a second, to see what the cores give at that time.
MULTIPLY = 80_000_000
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
        "experiment": "distributed-tasks", "method": "empty task", "tasks": EMPTY, "workers": workers,
        "seconds_per_task": seconds / EMPTY, "scheduler_bytes_per_task": moved / EMPTY,
    }  # fmt: skip


def measure_counts(clients: dict[int, Any], paths: list[str], repeats: int) -> Iterator[Record]:
    """Counting all shards: one process with 1 .. k threads, and k one-thread workers."""
    partitions = sample_partitions(paths, random_state=0)
    manifest = distributed.describe_shards(next(iter(clients.values())), paths)
    t, psi, d, n = partitions.n_partitions, partitions.n_seeds, manifest.d, manifest.n
    base = {
        "experiment": "distributed-kme", "dataset": "higgs", "source": manifest.label, "n": n, "d": d, "t": t,
        "psi": psi, "shards": len(paths),
    }  # fmt: skip
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
                "method": "workers" if leaves is None else "workers, other leaves", "workers": k, "threads": k,
                "leaves": default if leaves is None else len(leaves),
            }  # fmt: skip
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
            client = clients[found["workers"]]
            before, busy = scheduler_bytes(client), _loop_seconds(client)
            calls[name]()
            busy, moved = _loop_seconds(client) - busy, scheduler_bytes(client) - before
            record |= {"scheduler_bytes": moved, "scheduler_bytes_per_shard": moved / record["shards"]}
            record["scheduler_seconds"] = busy
        yield record


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


@lru_cache(maxsize=1)
def _opened(paths: tuple[str, ...]) -> tuple[FileTable, Any]:
    table = FileTable(list(paths), "train")
    return table, labels_of(table)


def _pairs_apart(model: Any, paths: tuple[str, ...], m: int, s: int, seed: int) -> int:
    """m pairs drawn, read and fitted by one process on one thread; how many were accepted."""
    with threads(1):
        return len(subset_pairs(model, *_opened(paths), m, s, seed))


@numba.njit(nogil=True, cache=True, fastmath=True)
def _multiply(n):  # type: ignore[no-untyped-def]
    """n rounds of multiply-adds on 32 numbers: registers only, no memory."""
    a = np.zeros(32)
    for _ in range(n):
        for j in range(32):
            a[j] = a[j] * 0.999 + 0.5
    return a[0]


def _only_multiply() -> float:
    return float(_multiply(MULTIPLY))


def measure_pairs(
    clients: dict[int, Any], paths: list[str], repeats: int, share: float = 1.0, seconds: float = 0.0
) -> Iterator[Record]:
    """Making training pairs: one process with one thread, k one-thread workers, and the same k processes apart.

    Apart: each draws, reads and fits its share of the pairs, and tells nobody. What they lose against one process is
    the machine's (memory, shared caches), not Dask's. What workers lose that only multiply is lost before any of this:
    cores of a virtual machine may share one of the host, and the host takes time for itself (`stolen`, its share).
    Efficiencies are medians of the rounds' own: `repeats` rounds of all, then as many as fit into `seconds` of one
    process and the most workers alone, since single rounds differ by a tenth on machines that are shared.
    """
    table = FileTable(paths, "train")
    labels = labels_of(table)
    for name, m, s in PAIRS:
        m = max(20, int(m * share))
        s = min(s, table.n // 4)
        model = LogisticModel(table.d) if name == "lr" else MLPModel(table.d)
        make = partial(subset_pairs, model, table, labels, m, s, 0)
        with threads(1):
            expected = make()

            def here(make: Callable[..., Pairs] = make) -> None:
                with threads(1):
                    make()

            found: dict[int, Pairs] = {}

            def there(k: int, make: Callable[..., Pairs] = make, found: dict[int, Pairs] = found) -> None:
                found.pop(k, None)
                found[k] = make(client=clients[k])

            calls: dict[str, Callable[[], object]] = {"one process": here}
            calls |= {f"workers {k}": partial(there, k) for k in clients}

            def apart(k: int, model: Any = model, m: int = m, s: int = s) -> None:
                jobs = [(model, tuple(paths), m // k, s, seed) for seed in range(k)]
                client = clients[k]
                client.gather(
                    [client.submit(_pairs_apart, *job, pure=False, workers=[address])
                     for job, address in zip(jobs, client.scheduler_info()["workers"], strict=True)]
                )  # fmt: skip

            def multiply(k: int, of: int) -> None:
                client = clients[of]
                chosen = list(client.scheduler_info()["workers"])[:k]
                client.gather([client.submit(_only_multiply, pure=False, workers=[address]) for address in chosen])

            calls |= {f"apart {k}": partial(apart, k) for k in clients if k > 1}
            calls |= {f"multiply {k}": partial(multiply, k, max(clients)) for k in clients}
            for call in calls.values():
                call()
            judged = {name: calls[name] for name in ("one process", f"workers {max(clients)}")}
            rounds = int(seconds / sum(once(call) for call in judged.values()))
            begin, stolen = time.perf_counter(), stolen_seconds()
            times = interleave(calls, repeats, pause=0.05)
            more = interleave(judged, rounds, pause=0.05)
            stolen = (stolen_seconds() - stolen) / (time.perf_counter() - begin) / (os.cpu_count() or 1)
        for pairs in found.values():  # of the last round; comparing tens of megabytes takes a while
            if not all(np.array_equal(getattr(pairs, f), getattr(expected, f)) for f in ("rows", "theta_r", "Z")):
                raise UserError("the workers' pairs are not those of one process: this is a defect, please report it")
        alone, one_worker = times["one process"], times["workers 1"]
        limits = {k: times.pop(f"multiply {k}") for k in clients}
        often = {name: Times(times[name].seconds + more[name].seconds) for name in judged}
        for k in clients:
            yield {
                "experiment": "distributed-limit", "model": name, "m": m, "method": "only multiply", "workers": k,
                "threads": k, "wall_seconds": limits[k].median, "efficiency": gain(limits[1], limits[k]),
                "rounds": repeats, "stolen": stolen,
            }  # fmt: skip
        for method in times:
            taken, beside = (often[method], often["one process"]) if method in often else (times[method], alone)
            what, k = ("one process", 1) if method == "one process" else (method.split()[0], int(method.split()[1]))
            yield {
                "experiment": "distributed-pairs", "dataset": "higgs", "source": table.label, "n": table.n,
                "d": table.d, "model": name, "m": m, "s": s, "method": what,
                "workers": 0 if method == "one process" else k, "threads": k, "wall_seconds": taken.median,
                "spread": taken.spread, "rounds": len(taken.seconds), "efficiency": gain(beside, taken) / k,
                "half_of_rounds": list(np.percentile(gains(beside, taken) / k, [25, 75])),
                "of_one_worker": gain(one_worker, times[method]) / k,
            }  # fmt: skip
    table.close()


def run_all(
    run: Run, rows: int, workers: int, repeats: int, pair_share: float, pair_seconds: float, show: Show
) -> None:
    """Append the records that are not there yet."""
    with tempfile.TemporaryDirectory() as folder:
        show("write the stand-in's shards", 0, 4)
        paths = write_shards(Path(folder), rows)
        with distributed.connect(workers=1) as one, distributed.connect(workers=workers) as many:
            clients = {1: one, workers: many}
            if not run.has(experiment="distributed-tasks"):
                show("empty tasks", 1, 4)
                run.append(measure_tasks(many, workers, repeats))
            if not run.has(experiment="distributed-kme", n=rows):
                show("count", 2, 4)
                for record in list(measure_counts(clients, paths, repeats)):
                    run.append(record)
            if not run.has(experiment="distributed-pairs"):
                show("pairs", 3, 4)
                for record in list(measure_pairs(clients, paths, repeats, pair_share, pair_seconds)):
                    run.append(record)
    show("done", 4, 4)
