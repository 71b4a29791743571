"""Many shards as one set of rows: where each begins, and a checksum that tells whether it is still the same.

A shard is a dataset file at a local path or at a URL that fsspec opens (s3://, gs://, https://, file://, ...). Row
numbers run through all shards in the order they are listed. The checksum covers what a shard's header says of its rows:
source, sizes, classes and the exact mean and variance of every column, which change with any row; the rows themselves
have a checksum in every chunk, verified whenever a chunk is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.datasets.file.hdf5 import DatasetFile, from_h5py, open_dataset, open_hdf5
from l2ul_fast.datasets.moments import pooled, round24, scale_of
from l2ul_fast.datasets.stream.shards import Source, fsspec, is_url, named
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.files import write_atomic

FORMAT = "l2ul-manifest"
FORMAT_VERSION = 1
MOST_OF_A_PATH = 4096


def expand(source: Source) -> list[str]:
    """The shards that paths, URLs and patterns with wildcards name, in order; local paths become absolute."""
    return [path if is_url(path) else os.path.abspath(path) for path in named(source)]


def open_shard(path: str) -> DatasetFile:
    """Open a dataset file at a local path or a URL; the rows of a URL are read through h5py and fsspec."""
    if not is_url(path):
        return open_dataset(path)
    try:
        stream = fsspec().open(path, "rb").open()
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"cannot open {path}: {str(error).splitlines()[0] if str(error) else 'not there'}") from error
    return from_h5py(Path(path), open_hdf5(stream, path), path, local=False)


@dataclass(frozen=True)
class Shard:
    """What a manifest knows of one shard."""

    path: str
    n: int
    n_train: int
    d: int
    chunk_rows: int
    classes: tuple[int, ...]
    label: str  #: "real", "subset" or "stand-in"
    mean: tuple[float, ...]
    variance: tuple[float, ...]
    checksum: str


def checksum(file: DatasetFile) -> str:
    """SHA-256 of what the header says of the rows."""
    facts = f"{file.source} {file.n} {file.d} {file.classes} {file.class_counts} {file.split_seed} {file.n_train}"
    return hashlib.sha256(facts.encode() + file.mean.tobytes() + file.variance.tobytes()).hexdigest()


def describe(path: str) -> Shard:
    """Read a shard's header."""
    with open_shard(path) as file:
        sizes = file.n, file.n_train, file.d, file.chunk_rows
        moments = tuple(file.mean.tolist()), tuple(file.variance.tolist())
        return Shard(path, *sizes, tuple(file.classes), file.label, *moments, checksum(file))


class Manifest:
    """Shards in order. n rows of d columns; first_rows (shards + 1,): the number of each shard's first row."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self.shards = list(shards)
        if not self.shards:
            raise DataError("no dataset file was given")
        first = self.shards[0]
        paths: set[str] = set()
        contents: dict[str, str] = {}
        for shard in self.shards:
            if (shard.d, shard.classes) != (first.d, first.classes):
                raise DataError(f"{shard.path} has other columns or classes than {first.path}")
            place = shard.path if is_url(shard.path) else os.path.realpath(shard.path)
            if place in paths:
                raise DataError(f"{shard.path} is listed twice: its rows would count double")
            if shard.checksum in contents:
                raise DataError(
                    f"{shard.path} holds the same rows as {contents[shard.checksum]}: they would count double"
                )
            paths.add(place)
            contents[shard.checksum] = shard.path
        sizes = np.array([shard.n for shard in self.shards], np.int64)
        self.first_rows = np.concatenate([[0], np.cumsum(sizes)])
        self.n, self.d, self.classes = int(sizes.sum()), first.d, list(first.classes)
        self.label = " + ".join(sorted({shard.label for shard in self.shards}))
        mean, variance = pooled(sizes, [shard.mean for shard in self.shards], [s.variance for s in self.shards])
        self.mean, self.scale = round24(mean), round24(scale_of(variance))

    def rows_of(self, part: str) -> int:
        """How many rows count as "all", "train" or "test"."""
        train = sum(shard.n_train for shard in self.shards)
        return {"all": self.n, "train": train, "test": self.n - train}[part]

    def locate(self, ids: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(number of the shard (k,), row within it (k,)) of rows with these numbers."""
        rows = np.asarray(ids, np.int64)
        if rows.size and not (rows.min() >= 0 and rows.max() < self.n):
            raise DataError(f"row {rows.min() if rows.min() < 0 else rows.max()} is not among the {self.n} rows")
        where = np.searchsorted(self.first_rows, rows, side="right") - 1
        return where, rows - self.first_rows[where]

    def save(self, path: Path) -> None:
        """Write the manifest as JSON: the whole file or nothing."""
        shards = [asdict(shard) | {"first_row": int(r)} for shard, r in zip(self.shards, self.first_rows, strict=False)]
        facts = {"format": FORMAT, "format_version": FORMAT_VERSION, "n": self.n, "d": self.d, "shards": shards}
        try:
            write_atomic(path, json.dumps(facts, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None


def load(path: Path) -> list[Shard]:
    """The shards a manifest file lists; whether they are still the same is for the reader of the shards to see."""
    try:
        facts = json.loads(path.read_text("utf-8"))
        if facts["format"] != FORMAT or facts["format_version"] != FORMAT_VERSION:
            raise ValueError("another format or version")
        found = []
        for shard in facts["shards"]:
            fields: dict[str, Any] = {name: value for name, value in shard.items() if name != "first_row"}
            fields |= {name: tuple(fields[name]) for name in ("classes", "mean", "variance")}
            found.append(Shard(**fields))
        if not all(isinstance(s.path, str) and isinstance(s.checksum, str) and s.n > 0 for s in found):
            raise ValueError("a shard without a path, a checksum or rows")
        if any(len(s.path) > MOST_OF_A_PATH for s in found):
            raise ValueError("a path that is too long")
        return found
    except OSError as error:
        raise DataError(f"cannot read the manifest {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError(f"{path} is not a manifest of shards, or is damaged ({str(error)[:80]})") from None
