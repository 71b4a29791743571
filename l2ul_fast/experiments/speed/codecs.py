"""What compression of the dataset file saves in bytes and costs in time: the reason for the default codec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from l2ul_fast.datasets.file.layout import CODECS
from l2ul_fast.datasets.file.writer import DatasetWriter
from l2ul_fast.datasets.standin.rows import generate
from l2ul_fast.datasets.stream.stream import Shards, blocks, sample_partitions, stream_counts
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import interleave

PIECE = 65536


def _write(path: Path, X: np.ndarray, y: np.ndarray, codec: str) -> None:
    with DatasetWriter(path, name="higgs", source="standin:1:0", d=X.shape[1], classes=[0, 1], codec=codec) as writer:
        for start in range(0, len(X), PIECE):
            writer.append(X[start : start + PIECE], y[start : start + PIECE])


def _read(path: Path) -> None:
    with Shards(path) as shards:
        for _ in blocks(shards):
            pass


def measure_codecs(folder: Path, rows: int, repeats: int = 3) -> Iterator[Record]:
    """Write, read and stream the same stand-in rows with each codec; times beside those of codec none."""
    X, y = generate("higgs", 0, rows, rows, 0)
    paths = {codec: folder / f"{codec}.h5" for codec in CODECS}
    calls: dict[str, Callable[[], object]] = {f"write {c}": partial(_write, paths[c], X, y, c) for c in CODECS}
    for call in calls.values():
        call()
    partitions = sample_partitions(paths["none"], random_state=0)
    calls |= {f"read {c}": partial(_read, paths[c]) for c in CODECS}
    calls |= {f"stream {c}": partial(stream_counts, paths[c], partitions) for c in CODECS}
    times = interleave(calls, repeats)
    for codec in CODECS:
        record: Record = {
            "experiment": "codec",
            "dataset": "higgs",
            "source": "stand-in",
            "n": rows,
            "method": codec,
            "bytes_share": paths[codec].stat().st_size / paths["none"].stat().st_size,
        }
        for what in ("write", "read", "stream"):
            taken = times[f"{what} {codec}"]
            record[f"{what}_seconds"] = taken.median
            record[f"{what}_ratio"] = taken.median / times[f"{what} none"].median
        yield record
