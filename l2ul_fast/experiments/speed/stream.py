"""Streaming a large file beside its limits: reading alone, the kernel alone; rows by number; writing; parsing text.

The file is the HIGGS stand-in at the given number of rows, in the page cache (it has just been written and read). Peak
memory is taken in processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from l2ul_fast.datasets.file.gather import RowReader
from l2ul_fast.datasets.file.writer import DatasetWriter
from l2ul_fast.datasets.standin.rows import fill, load_model, make
from l2ul_fast.datasets.stream.cellstore import CellStore, stream_cells
from l2ul_fast.datasets.stream.stream import Shards, blocks, sample_partitions, stream_counts
from l2ul_fast.experiments.speed.codecs import measure_codecs
from l2ul_fast.experiments.speed.kernels import thread_counts
from l2ul_fast.measure.records import Record, Run
from l2ul_fast.measure.timing import interleave
from l2ul_kernels import Partitions, cell_counts, threads
from l2ul_kernels.threads import thread_limit

#: Rows the in-memory kernel is timed on; its time is proportional to n, and a larger array would not fit everywhere.
IN_MEMORY = 2_000_000

MEMORY = """
import json, resource, sys
from l2ul_fast.datasets.stream.stream import sample_partitions, stream_counts
small, large = sys.argv[1:]
partitions = sample_partitions(small, random_state=0)
stream_counts(small, partitions, by_class=True)  # kernels loaded, pools started
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stream_counts(large, partitions, by_class=True)
print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle) / 1024))
"""


def memory_growth(small: Path, large: Path) -> float:
    """MiB by which streaming `large` raises the peak of a process that has streamed `small`."""
    command = [sys.executable, "-c", MEMORY, str(small), str(large)]
    return float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def _read_all(path: Path) -> None:
    with Shards(path) as shards:
        for _ in blocks(shards):
            pass


def measure_stream(path: Path, k: int, partitions: Partitions, repeats: int) -> Iterator[Record]:
    """Streamed counts against reading alone and the in-memory kernel alone, with k threads."""
    with Shards(path) as shards:
        n, d, label = shards.n, shards.d, shards.label
        X = np.concatenate([x.copy() for _, x, _ in _until(blocks(shards), IN_MEMORY)])
    calls: dict[str, Callable[[], object]] = {
        "read alone": lambda: _read_all(path),
        "kernel alone": lambda: cell_counts(X, partitions),
        "stream_counts": lambda: stream_counts(path, partitions),
    }
    with threads(k):
        for call in calls.values():
            call()
        times = interleave(calls, repeats)
    scale = {name: n / len(X) if name == "kernel alone" else 1.0 for name in calls}
    seconds = {name: taken.median * scale[name] for name, taken in times.items()}
    limit = max(seconds["read alone"], seconds["kernel alone"])
    for name, value in seconds.items():
        yield {
            "experiment": "stream",
            "dataset": "higgs",
            "source": label,
            "n": n,
            "d": d,
            "t": partitions.n_partitions,
            "psi": partitions.n_seeds,
            "threads": k,
            "method": name,
            "wall_seconds": value,
            "of_limit": value / limit,
            "spread": times[name].spread,
            "rows_per_second": n / value,
        }


def _until(items: Iterator[Any], rows: int) -> Iterator[Any]:
    seen = 0
    for item in items:
        yield item
        seen += len(item[1])
        if seen >= rows:
            return


def measure_rows(path: Path, partitions: Partitions, repeats: int) -> Iterator[Record]:
    """1000 rows by number: packed cells in memory and from the file, X from the file, h5py's own indexing."""
    store_path = stream_cells(path, partitions, path.with_name(path.name + ".bench-cells"))
    try:
        with Shards(path) as shards, CellStore(store_path) as store:
            ids = np.random.default_rng(0).choice(shards.n, min(1000, shards.n), replace=False)
            ascending = np.sort(ids)
            held = store.packed(np.arange(shards.n))
            X = RowReader(path, shards.files[0].X)
            calls: dict[str, Callable[[], object]] = {
                "packed cells in memory": lambda: held[ids],
                "packed cells from the store": lambda: store.packed(ids),
                "X from the file": lambda: X.take(ids),
                "X by h5py indexing": lambda: shards.files[0].X[ascending],
            }
            np.testing.assert_array_equal(X.take(ascending), shards.files[0].X[ascending])
            np.testing.assert_array_equal(store.packed(ids), held[ids])
            inner = {name: 1 if "h5py" in name else 20 for name in calls}
            times = interleave(calls, repeats, inner)
            start = time.perf_counter()
            RowReader(path, shards.files[0].X).take(ids)
            first = time.perf_counter() - start
            base = {"experiment": "rows", "dataset": "higgs", "source": shards.label, "n": shards.n, "r": len(ids)}
            for name, taken in times.items():
                yield {**base, "method": name, "wall_seconds": taken.median, "spread": taken.spread}
            yield {**base, "method": "X from the file, first touch (checksums)", "wall_seconds": first, "spread": 0.0}
    finally:
        store_path.unlink(missing_ok=True)


def measure_write(folder: Path, rows: int, repeats: int = 3) -> Iterator[Record]:
    """Making a stand-in against its parts: generating alone, writing rows at hand alone; and a plain file. All but
    generating end on disk (fsync)."""

    size = 4 * 28 * rows
    noise = np.random.default_rng(0).bytes(4 << 20)
    model = load_model("higgs")
    X = np.random.default_rng(0).standard_normal((min(rows, 1 << 16), 28), np.float32)
    y = np.zeros(len(X), np.uint8)
    spare = np.empty_like(X), np.empty_like(y)
    pieces = [(start, min(len(X), rows - start)) for start in range(0, rows, len(X))]

    def plain() -> None:
        with open(folder / "noise", "wb") as file:
            for start in range(0, size, len(noise)):
                file.write(noise[: size - start])
            file.flush()
            os.fsync(file.fileno())

    def write() -> None:
        with DatasetWriter(folder / "noise.h5", name="higgs", source="standin:0:0", d=28, classes=[0, 1]) as writer:
            for _, k in pieces:
                writer.append(X[:k], y[:k])

    def generate() -> None:
        for start, k in pieces:
            fill(model, start, 1, spare[0][:k], spare[1][:k])

    calls: dict[str, Callable[[], object]] = {
        "random bytes": plain,
        "random rows, same HDF5 file": write,
        "generate alone": generate,
        "stand-in": lambda: make("higgs", rows, 1, folder / "made"),
    }
    generate()  # compiled
    for name, taken in interleave(calls, repeats).items():
        yield {
            "experiment": "write",
            "dataset": "higgs",
            "source": "stand-in",
            "n": rows,
            "method": name,
            "wall_seconds": taken.median,
            "spread": taken.spread,
            "gb_per_second": size / taken.median / 1e9,
        }
    (folder / "noise").unlink()
    (folder / "noise.h5").unlink()


def measure_csv(folder: Path, rows: int, repeats: int = 3) -> Iterator[Record]:
    """Original-format text (HIGGS.csv, made from stand-in rows, at most a million) to HDF5: ours against pandas."""
    from l2ul_fast.datasets.standin.rows import generate
    from l2ul_fast.datasets.text.convert import convert

    rows = min(rows, 1_000_000)
    distinct = min(rows, 100_000)  # formatting takes far longer than parsing, so these are written again and again
    X, y = generate("higgs", 0, distinct, distinct, 2)
    form = ",".join(["%.18e"] * 29) + "\n"
    lines = [form % (label, *row) for label, row in zip(y.tolist(), X.tolist(), strict=True)]
    text = folder / "raw" / "higgs" / "HIGGS.csv"
    text.parent.mkdir(parents=True, exist_ok=True)
    with open(text, "w") as file:
        for start in range(0, rows, distinct):
            file.write("".join(lines[: rows - start]))
    calls: dict[str, Callable[[], object]] = {
        "l2ul data convert": lambda: convert("higgs", folder / "raw", folder / "converted", subset=True)
    }
    try:
        import pandas as pd
    except ImportError:
        yield {"experiment": "csv", "method": "pandas", "status": "not installed (pandas)"}
    else:
        calls["pandas read_csv + to_hdf"] = lambda: pd.read_csv(text, header=None).to_hdf(
            folder / "p.h5", key="x", mode="w"
        )
    cpu: dict[str, list[float]] = {name: [] for name in calls}  # of all threads, user and system

    def counted(name: str) -> None:
        before = time.process_time()
        calls[name]()
        cpu[name].append(time.process_time() - before)

    for call in calls.values():
        call()
    for name, taken in interleave({name: partial(counted, name) for name in calls}, repeats).items():
        yield {
            "experiment": "csv",
            "dataset": "higgs",
            "source": "stand-in",
            "n": rows,
            "method": name,
            "wall_seconds": taken.median,
            "spread": taken.spread,
            "cpu_seconds": float(np.median(cpu[name])),
            "rows_per_second": rows / taken.median,
            "bytes": text.stat().st_size,
        }


def run_all(
    run: Run,
    rows: int,
    thread_list: list[int] | None = None,
    repeats: int = 3,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> None:
    """Everything above that `run` does not hold yet, in a temporary folder beside the records."""
    counts = thread_list or thread_counts(thread_limit())
    sizes = sorted({max(1000, rows // 100), max(1000, rows // 10), rows})
    total = 4 + len(sizes) + len(counts)
    with tempfile.TemporaryDirectory(dir=run.folder) as name:
        folder = Path(name)
        paths = {}
        for i, n in enumerate(sizes):
            progress(f"make the stand-in, {n} rows", i, total)
            paths[n] = make("higgs", n, 0, folder / str(n))
        partitions = sample_partitions(paths[rows], random_state=0)
        step = len(sizes)
        for k in counts:
            progress(f"stream, {k} thread(s)", step, total)
            for n in sizes if k == max(counts) else [rows]:
                if not run.has(experiment="stream", n=n, threads=k, method="stream_counts"):
                    for record in measure_stream(paths[n], k, partitions, repeats):
                        run.append(record)
            step += 1
        for n in sizes:
            if not run.has(experiment="memory", n=n):
                growth = memory_growth(paths[sizes[0]], paths[n])
                run.append({"experiment": "memory", "dataset": "higgs", "source": "stand-in", "n": n, "mib": growth})
        rest: list[tuple[str, Callable[[], Iterator[Record]]]] = [
            ("rows", lambda: measure_rows(paths[rows], partitions, 5)),
            ("write", lambda: measure_write(folder, rows, repeats)),
            ("codec", lambda: measure_codecs(folder, max(1000, min(1_000_000, rows)), repeats)),
            ("csv", lambda: measure_csv(folder, max(1000, min(1_000_000, rows // 10)), 5)),
        ]
        for what, measure in rest:
            progress(what, step, total)
            if not run.has(experiment=what):
                for record in list(measure()):
                    run.append(record)
            step += 1
        progress("done", total, total)
