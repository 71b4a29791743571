"""One dataset file or several as one: row numbers run through, and any rows can be taken by their numbers."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.datasets.file.gather import NOTHING, Places, RowReader, standardise_rows, take_rows
from l2ul_fast.datasets.file.hdf5 import DatasetFile, open_dataset
from l2ul_fast.datasets.moments import pooled, scale_of
from l2ul_fast.errors import DataError, UserError

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Shards:
    """One dataset file, or several with the same columns and classes as if they were one; row numbers run through."""

    def __init__(self, source: Source = (), files: Sequence[DatasetFile] = ()) -> None:
        """Open what `source` names, or take `files`, which are open already."""
        self.files = list(files)
        self.paths = [file.path for file in files] or [Path(path) for path in named(source)]
        try:
            for path in self.paths[len(self.files) :]:
                self.files.append(open_dataset(path))
            first = self.files[0]
            for file in self.files[1:]:
                if (file.d, file.classes) != (first.d, first.classes):
                    raise DataError(f"{file.path} has other columns or classes than {first.path}")
        except BaseException:
            self.close()
            raise
        sizes = np.array([file.n for file in self.files])
        self.first_rows = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.n, self.d, self.classes = int(sizes.sum()), first.d, first.classes
        self.label = " + ".join(sorted({file.label for file in self.files}))
        self.mean, variance = pooled(sizes, [f.mean for f in self.files], [f.variance for f in self.files])
        self.scale = first.scale if len(self.files) == 1 else scale_of(variance)
        self._readers: dict[int, RowReader] = {}
        self._places: Places | None = None

    def reader(self, i: int) -> RowReader:
        """Random access to the rows of file i."""
        if i not in self._readers:
            self._readers[i] = RowReader(self.files[i].path, self.files[i].X, self.files[i].offsets is not None)
        return self._readers[i]

    def take_X(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """X (k, d) of the rows with these numbers."""
        return self.take_standardised(ids, NOTHING, NOTHING)

    def take_standardised(
        self,
        ids: NDArray[np.int64],
        mean: NDArray[np.float64],
        inverse_scale: NDArray[np.float64],
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """(X - mean) * inverse_scale (k, d) of the rows with these numbers, in `out` if given; X with NOTHING."""
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        if ids.size and not (ids.min() >= 0 and ids.max() < self.n):
            raise DataError(f"row {ids.min() if ids.min() < 0 else ids.max()} is not among the {self.n} rows")
        X = np.empty((ids.size, self.d), np.float32) if out is None else out
        if X.shape != (ids.size, self.d) or X.dtype != np.float32:  # the kernel writes without looking
            raise ValueError(f"out must be a ({ids.size}, {self.d}) array of float32, got {X.dtype} {X.shape}")
        readers = [self.reader(i) for i in range(len(self.files))]
        if self._places is None:
            self._places = Places.of(readers)
        if self._places is not None and X.flags.c_contiguous:
            take_rows(readers, self._places, ids, mean, inverse_scale, X)
            return X
        where = np.searchsorted(self.first_rows, ids, side="right") - 1
        for i in np.unique(where):
            chosen = where == i
            X[chosen] = readers[i].take(ids[chosen] - self.first_rows[i])
        if mean is not NOTHING:
            standardise_rows(X, mean, inverse_scale, np.ones(len(X), np.bool_), X)
        return X

    def close(self) -> None:
        for file in self.files:
            file.close()

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def is_url(path: str) -> bool:
    """Whether fsspec has to open it."""
    return "://" in path


def fsspec() -> Any:
    """The package, or a UserError that says how to get it."""
    try:
        return import_module("fsspec")
    except ImportError:
        raise UserError("reading URLs needs the package fsspec: pip install 'l2ul-fast[dask]'") from None


def named(source: Source) -> list[str]:
    """The files that paths, URLs and patterns with wildcards name, in order. A file twice is an error."""
    found: list[str] = []
    words = [source] if isinstance(source, str | os.PathLike) else source
    for word in (os.fspath(item) for item in words):
        if not glob.has_magic(word) or (not is_url(word) and Path(word).exists()):
            matches = [word]
        elif is_url(word):
            files = fsspec().core.get_fs_token_paths(word)
            matches = sorted(files[0].unstrip_protocol(path) for path in files[2])
        else:
            matches = sorted(glob.glob(word))
        if not matches:
            raise DataError(f"no file matches {word}")
        found += matches
    if not found:
        raise DataError("no dataset file was given")
    places: set[str] = set()
    for path in found:
        place = path if is_url(path) else os.path.realpath(path)
        if place in places:
            raise DataError(f"{path} is listed twice: its rows would count double")
        places.add(place)
    return found


def as_shards(source: Source | Shards) -> Shards:
    """Open shards as they are, anything else opened."""
    return source if isinstance(source, Shards) else Shards(source)


@contextlib.contextmanager
def opened(source: Source | Shards) -> Iterator[Shards]:
    """The shards of a source; closed again if they were not open before."""
    shards = as_shards(source)
    try:
        yield shards
    finally:
        if shards is not source:
            shards.close()
