"""One dataset file or several as one: row numbers run through, and any rows can be taken by their numbers."""

import contextlib
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.datasets.file.gather import Places, RowReader, standardise, take_standardised
from l2ul_fast.datasets.file.hdf5 import DatasetFile, open_dataset
from l2ul_fast.datasets.moments import scale_of
from l2ul_fast.errors import DataError

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Shards:
    """One dataset file, or several with the same columns and classes as if they were one; row numbers run through."""

    def __init__(self, source: Source | DatasetFile) -> None:
        self.files: list[DatasetFile] = [source] if isinstance(source, DatasetFile) else []
        self.paths = [source.path] if isinstance(source, DatasetFile) else _paths(source)
        try:
            if not isinstance(source, DatasetFile):
                for path in self.paths:
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
        share = sizes / self.n
        self.mean = np.sum([s * f.mean for s, f in zip(share, self.files, strict=True)], axis=0)
        spread = [s * (f.variance + (f.mean - self.mean) ** 2) for s, f in zip(share, self.files, strict=True)]
        self.scale = first.scale if len(self.files) == 1 else scale_of(np.sum(spread, axis=0))
        self._readers: dict[int, RowReader] = {}
        self._places: Places | None = None

    def reader(self, i: int) -> RowReader:
        """Random access to the rows of file i."""
        if i not in self._readers:
            self._readers[i] = RowReader(self.files[i].path, self.files[i].X, mapped=self.files[i].is_plain)
        return self._readers[i]

    def take_X(self, ids: NDArray[np.int64], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """X (k, d) of the rows with these numbers, in `out` if given."""
        ids = self._checked(ids)
        X = np.empty((ids.size, self.d), np.float32) if out is None else out
        if (ids[1:] >= ids[:-1]).all():  # each file's rows are then one piece of X, and need no second copy
            edges = np.searchsorted(ids, self.first_rows)
            for i in np.flatnonzero(np.diff(edges)):
                mine = slice(edges[i], edges[i + 1])
                self.reader(int(i)).take(ids[mine] - self.first_rows[i], X[mine])
            return X
        where = self._file_of(ids)
        for i in np.unique(where):
            chosen = where == i
            X[chosen] = self.reader(int(i)).take(ids[chosen] - self.first_rows[i])
        return X

    def take_standardised(
        self,
        ids: NDArray[np.int64],
        mean: NDArray[np.float64],
        inverse_scale: NDArray[np.float64],
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """(X - mean) * inverse_scale (k, d) of the rows with these numbers, in `out` if given."""
        ids = np.ascontiguousarray(self._checked(ids))
        X = np.empty((ids.size, self.d), np.float32) if out is None else out
        if X.shape != (ids.size, self.d) or X.dtype != np.float32:  # the kernel writes without looking
            raise ValueError(f"out must be a ({ids.size}, {self.d}) array of float32, got {X.dtype} {X.shape}")
        readers = [self.reader(i) for i in range(len(self.files))]
        if self._places is None:
            self._places = Places.of(readers)
        if self._places is None or not X.flags.c_contiguous:
            self.take_X(ids, X)
            standardise(X, mean, inverse_scale)
        else:
            take_standardised(readers, self._places, ids, mean, inverse_scale, X)
        return X

    def take(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """X (k, d) and y (k,) of the rows with these numbers."""
        X = self.take_X(ids)
        ids = self._checked(ids)
        where = self._file_of(ids)
        y = np.empty(ids.size, self.files[0].y.dtype)
        for i in np.unique(where):
            mine = where == i
            local = ids[mine] - self.first_rows[i]
            order = np.unique(local)  # h5py wants ascending numbers; labels are a byte each
            y[mine] = self.files[i].y[order][np.searchsorted(order, local)] if order.size else 0
        return X, y

    def _checked(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        ids = np.asarray(ids, dtype=np.int64)
        if ids.size and not (ids.min() >= 0 and ids.max() < self.n):
            raise DataError(f"row {ids.min() if ids.min() < 0 else ids.max()} is not among the {self.n} rows")
        return ids

    def _file_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.first_rows, ids, side="right") - 1

    def close(self) -> None:
        for file in self.files:
            file.close()

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _paths(source: Source) -> list[Path]:
    """The files a source names: a path, a pattern with wildcards, or a list of either. A file twice is an error."""
    words = [source] if isinstance(source, str | os.PathLike) else list(source)
    paths: list[Path] = []
    for word in (os.fspath(w) for w in words):
        found = sorted(glob.glob(word)) if glob.has_magic(word) and not Path(word).exists() else [word]
        if not found:
            raise DataError(f"no file matches {word}")
        paths += map(Path, found)
    if not paths:
        raise DataError("no dataset file was given")
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise DataError(f"{path} is listed twice: its rows would count double")
        seen.add(path.resolve())
    return paths


@contextlib.contextmanager
def opened(source: Source | Shards) -> Iterator[Shards]:
    if isinstance(source, Shards):
        yield source
    else:
        with Shards(source) as shards:
            yield shards
