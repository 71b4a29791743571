"""Streaming a large file beside its limits: reading alone, the kernel alone; rows by number; writing; parsing text.

The files are HIGGS stand-ins of the profile's number of rows, a tenth and a hundredth of it, in the page cache. Peak
memory is taken in processes of their own. Records go by the experiments "stream", "memory", "rows", "write", "codec"
(what compression saves in bytes and costs in time: the reason for the default) and "csv". All of it is measured with
every number of threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from l2ul_fast.datasets.file.gather import RowReader
from l2ul_fast.datasets.file.layout import CODECS
from l2ul_fast.datasets.file.writer import DatasetWriter
from l2ul_fast.datasets.standin.rows import fill, generate, load_model, make
from l2ul_fast.datasets.stream.cellstore import CellStore, stream_cells
from l2ul_fast.datasets.stream.stream import Shards, blocks, sample_partitions, stream_counts
from l2ul_fast.experiments.inputs import standin_file
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, by_profile, register
from l2ul_fast.measure.records import Record, info, metric
from l2ul_fast.measure.timing import Times, interleave, once
from l2ul_kernels import cell_counts

#: Rows the in-memory kernel is timed on; its time is proportional to n, and a larger array would not fit everywhere.
IN_MEMORY = 2_000_000
#: Rows of the text and of the files of every codec, at most.
TEXT_ROWS = CODEC_ROWS = 1_000_000
#: Rows looked up by number.
LOOKED_UP = 1000
D, T, PSI = 28, 100, 4
#: Rows written at a time.
PIECE = 65536

READ, KERNEL, STREAM = "read alone", "kernel alone", "stream_counts"
CELLS, STORE = "packed cells in memory", "packed cells from the store"
TAKE, H5PY, FIRST = "X from the file", "X by h5py indexing", "X from the file, first touch (checksums)"
NOISE, SAME, GENERATE, STAND_IN = "random bytes", "random rows, same HDF5 file", "generate alone", "stand-in"
CONVERT, PANDAS = "l2ul data convert", "pandas read_csv + to_hdf"

Calls = dict[str, Callable[[], object]]


def jobs(context: Context) -> Iterator[Job]:
    """Streaming and memory by size, then rows by number, writing, codecs and text."""
    rows = context.numbers["rows"]
    sizes = sorted({max(1000, rows // 100), max(1000, rows // 10), rows})
    for n in sizes:
        yield _job(context, "stream", measure_stream, (READ, KERNEL, STREAM), n, d=D, t=T, psi=PSI)
    for n in sizes:
        yield _job(context, "memory", partial(measure_memory, sizes[0]), (STREAM,), n)
    yield _job(context, "rows", measure_rows, (CELLS, STORE, TAKE, H5PY, FIRST), rows, r=min(LOOKED_UP, rows))
    yield _job(context, "write", measure_write, (NOISE, SAME, GENERATE, STAND_IN), rows)
    yield _job(context, "codec", measure_codecs, CODECS, min(CODEC_ROWS, rows))
    has_pandas = find_spec("pandas") is not None and find_spec("tables") is not None
    text_rows = max(1000, min(TEXT_ROWS, rows // 10))
    yield _job(context, "csv", measure_csv, (CONVERT, PANDAS) if has_pandas else (CONVERT,), text_rows)


def _job(
    context: Context,
    experiment: str,
    records_of: Callable[[Context, int], Iterator[Record]],
    methods: tuple[str, ...],
    n: int,
    **common: int,
) -> Job:
    """A job with one cell per method; a method's record has its name."""

    def measure(cells: tuple[Cell, ...]) -> Iterator[Record]:
        wanted = {cell["method"]: cell for cell in cells}
        for record in records_of(context, n):
            if record["method"] in wanted:
                yield {**wanted[record["method"]], "source": "stand-in", **record}

    common = {"experiment": experiment, "dataset": "higgs", "n": n, **common}  # type: ignore[dict-item]
    cells = tuple({**common, "method": method} for method in methods)
    return Job(f"{experiment} {n:,} rows", cells, measure, seconds=2.0 + 2e-6 * n)


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


def measure_memory(smallest: int, context: Context, n: int) -> Iterator[Record]:
    """Growth of the peak over that of a process that has streamed the smallest file."""
    small, large = (standin_file("higgs", rows, context.data_dir) for rows in (smallest, n))
    yield {"method": STREAM, "mib": memory_growth(small, large)}


def _read_all(path: Path) -> None:
    with Shards(path) as shards:
        for _ in blocks(shards):
            pass


def measure_stream(context: Context, n: int) -> Iterator[Record]:
    """Streamed counts against reading alone and the in-memory kernel alone."""
    path = standin_file("higgs", n, context.data_dir)
    partitions = sample_partitions(path, random_state=0)
    with Shards(path) as shards:
        X = np.concatenate([x.copy() for _, x, _ in _until(blocks(shards), IN_MEMORY)])
    calls: Calls = {
        READ: lambda: _read_all(path),
        KERNEL: lambda: cell_counts(X, partitions),
        STREAM: lambda: stream_counts(path, partitions),
    }
    for call in calls.values():
        call()
    times = interleave(calls, context.numbers["repeats"])
    seconds = {name: taken.median * (n / len(X) if name == KERNEL else 1.0) for name, taken in times.items()}
    limit = max(seconds[READ], seconds[KERNEL])
    for name, value in seconds.items():
        speed = {"seconds": value, "fraction_of_limit": value / limit, "rows_per_second": n / value}
        yield {"method": name, **times[name].facts, **speed}


def _until(items: Iterator[Any], rows: int) -> Iterator[Any]:
    seen = 0
    for item in items:
        yield item
        seen += len(item[1])
        if seen >= rows:
            return


def measure_rows(context: Context, n: int) -> Iterator[Record]:
    """Rows by number: packed cells in memory and from the file, X from the file, h5py's own indexing."""
    path = standin_file("higgs", n, context.data_dir)
    partitions = sample_partitions(path, random_state=0)
    with TemporaryDirectory(dir=context.folder) as folder:
        place = stream_cells(path, partitions, Path(folder) / "cells")
        with Shards(path) as shards, CellStore(place) as store:
            ids = np.random.default_rng(0).choice(n, min(LOOKED_UP, n), replace=False)
            ascending = np.sort(ids)
            held = store.packed(np.arange(n))
            X = RowReader(path, shards.files[0].X)
            calls: Calls = {
                CELLS: lambda: held[ids],
                STORE: lambda: store.packed(ids),
                TAKE: lambda: X.take(ids),
                H5PY: lambda: shards.files[0].X[ascending],
            }
            np.testing.assert_array_equal(X.take(ascending), shards.files[0].X[ascending])
            np.testing.assert_array_equal(store.packed(ids), held[ids])
            inner = {name: 1 if name == H5PY else 20 for name in calls}
            for name, taken in interleave(calls, context.numbers["repeats"] + 2, inner).items():
                yield {"method": name, **taken.facts}
            yield {"method": FIRST, **Times([once(lambda: RowReader(path, shards.files[0].X).take(ids))]).facts}


def _write(path: Path, X: np.ndarray, y: np.ndarray, rows: int, codec: str = "none") -> None:
    """`rows` rows, those of X over and over."""
    with DatasetWriter(path, name="higgs", source="standin:1:0", d=D, classes=[0, 1], codec=codec) as writer:
        for start in range(0, rows, PIECE):
            at, k = start % len(X), min(PIECE, rows - start)
            writer.append(X[at : at + k], y[at : at + k])


def measure_write(context: Context, n: int) -> Iterator[Record]:
    """Making a stand-in against its parts: generating alone, writing rows at hand alone; and a plain file. All but
    generating end on disk (fsync)."""
    size = 4 * D * n
    noise, model = np.random.default_rng(0).bytes(4 << 20), load_model("higgs")
    X = np.random.default_rng(0).standard_normal((PIECE, D), np.float32)
    y = np.zeros(PIECE, np.uint8)
    spare = np.empty_like(X), np.empty_like(y)
    with TemporaryDirectory(dir=context.folder) as name:
        folder = Path(name)

        def plain() -> None:
            with open(folder / "noise", "wb") as file:
                for start in range(0, size, len(noise)):
                    file.write(noise[: size - start])
                file.flush()
                os.fsync(file.fileno())

        def generate_all() -> None:
            for start in range(0, n, PIECE):
                k = min(PIECE, n - start)
                fill(model, start, 1, spare[0][:k], spare[1][:k])

        calls: Calls = {
            NOISE: plain,
            SAME: lambda: _write(folder / "noise.h5", X, y, n),
            GENERATE: generate_all,
            STAND_IN: lambda: make("higgs", n, 1, folder / "made"),
        }
        generate_all()  # compiled
        for method, taken in interleave(calls, context.numbers["repeats"]).items():
            yield {"method": method, **taken.facts, "gb_per_second": size / taken.median / 1e9}


def measure_codecs(context: Context, n: int) -> Iterator[Record]:
    """Write, read and stream the same stand-in rows with each codec; times beside those of codec none."""
    X, y = generate("higgs", 0, n, n, 0)
    with TemporaryDirectory(dir=context.folder) as folder:
        paths = {codec: Path(folder) / f"{codec}.h5" for codec in CODECS}
        calls: Calls = {f"write {c}": partial(_write, paths[c], X, y, n, c) for c in CODECS}
        for call in calls.values():
            call()
        partitions = sample_partitions(paths["none"], random_state=0)
        calls |= {f"read {c}": partial(_read_all, paths[c]) for c in CODECS}
        calls |= {f"stream {c}": partial(stream_counts, paths[c], partitions) for c in CODECS}
        times = interleave(calls, context.numbers["repeats"])
        sizes = {codec: path.stat().st_size for codec, path in paths.items()}
    for codec in CODECS:
        record: Record = {"method": codec, "bytes_share": sizes[codec] / sizes["none"]}
        for what in ("write", "read", "stream"):
            seconds = times[f"{what} {codec}"].median
            record |= {f"{what}_seconds": seconds, f"{what}_ratio": seconds / times[f"{what} none"].median}
        yield record


def measure_csv(context: Context, n: int) -> Iterator[Record]:
    """Original-format text (HIGGS.csv, made from stand-in rows) to HDF5: ours against pandas, where installed."""
    from l2ul_fast.datasets.text.convert import convert

    distinct = min(n, 100_000)  # formatting takes far longer than parsing, so these are written again and again
    X, y = generate("higgs", 0, distinct, distinct, 2)
    form = ",".join(["%.18e"] * 29) + "\n"
    lines = [form % (label, *row) for label, row in zip(y.tolist(), X.tolist(), strict=True)]
    with TemporaryDirectory(dir=context.folder) as name:
        folder = Path(name)
        text = folder / "raw" / "higgs" / "HIGGS.csv"
        text.parent.mkdir(parents=True)
        with open(text, "w") as file:
            for start in range(0, n, distinct):
                file.write("".join(lines[: n - start]))
        calls: Calls = {CONVERT: lambda: convert("higgs", folder / "raw", folder / "converted", subset=True)}
        try:
            import pandas as pd
            import tables  # noqa: F401 - what to_hdf writes with

            calls[PANDAS] = lambda: pd.read_csv(text, header=None).to_hdf(folder / "p.h5", key="x", mode="w")
        except ImportError:
            pass
        cpu: dict[str, list[float]] = {method: [] for method in calls}  # of all threads, user and system

        def counted(method: str) -> None:
            before = time.process_time()
            calls[method]()
            cpu[method].append(time.process_time() - before)

        for call in calls.values():
            call()
        turns: Calls = {method: partial(counted, method) for method in calls}
        for method, taken in interleave(turns, context.numbers["repeats"] + 2).items():
            used = {"cpu_seconds": float(np.median(cpu[method])), "bytes": text.stat().st_size}
            yield {"method": method, **taken.facts, **used, "rows_per_second": n / taken.median}


register(
    Experiment(
        name="stream",
        title="Streaming from disk",
        help="A large file beside its limits, reading alone and the kernel alone; rows by number, text, writing.",
        profiles=by_profile({"rows": (20_000, 11_000_000), "repeats": (1, 3)}),
        jobs=jobs,
        figure="l2ul_fast.report.figures.stream:FIGURE",
        records=("memory", "rows", "codec", "write", "csv"),
        fields={
            "fraction_of_limit": metric("time over the larger of reading alone and the kernel alone"),
            "mib": metric("growth of the peak memory", "MiB"),
            "gb_per_second": metric("bytes of X written", "GB/s", "higher"),
            "cpu_seconds": metric("of all threads", "s"),
            "bytes": info("of the text", (int,), "bytes"),
            "bytes_share": metric("bytes of the file over those of codec none"),
            **{f"{what}_seconds": metric(f"to {what} the file", "s") for what in ("write", "read", "stream")},
            **{f"{what}_ratio": info("that over codec none") for what in ("write", "read", "stream")},
        },
        datasets=("higgs",),
        in_all=False,
        order=120,
        each_thread_count=True,
    )
)
