"""Rows by their number, straight from the file: mapped memory and one compiled gather instead of HDF5 selections.

HDF5 keeps an uncompressed chunk as one run of bytes, so row r lies at a known place. The first time a chunk is touched
its checksum is computed; a damaged chunk is refused, never returned. Compressed files are read chunk by chunk through
h5py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numba import carray
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.datasets.file.chunks import chunk_offsets, fletcher32, is_plain
from l2ul_fast.errors import DataError
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.pointers import address, pointer, prefetch

#: Rows asked for before they are copied.
AHEAD = 16
#: Bits of a row number within which files are looked for one by one.
NEAR = 12
NOTHING, NO_ROWS = np.empty(0), np.empty((0, 0), np.float32)


class Places(NamedTuple):
    """Where the rows of files lie in memory, numbered one file after the other."""

    places: NDArray[np.int64]  # (files, chunks): address of each chunk
    first_rows: NDArray[np.int64]  # file f has the rows first_rows[f] .. first_rows[f + 1] - 1
    near: NDArray[np.int64]  # near[row >> NEAR] is a file at or before that of the row
    chunk_rows: NDArray[np.int64]  # (files,): rows of a chunk

    @classmethod
    def of(cls, readers: "Sequence[RowReader]") -> "Places | None":
        """Of files that are mapped, which the caller keeps alive; None if one is not."""
        chunks = max(-(-reader.n // reader.chunk_rows) for reader in readers)
        places = np.zeros((len(readers), chunks), np.int64)
        for f, reader in enumerate(readers):
            if reader.memory is None:
                return None
            places[f, : len(reader.offsets)] = address(reader.memory) + reader.offsets
        first_rows = np.concatenate([[0], np.cumsum([reader.n for reader in readers])]).astype(np.int64)
        near = np.searchsorted(first_rows, np.arange(0, first_rows[-1] + 1, 1 << NEAR), side="right") - 1
        return cls(places, first_rows, near, np.array([reader.chunk_rows for reader in readers], np.int64))


@kernel()
def _gather(files, ids, mean, inverse_scale, raw, out):  # type: ignore[no-untyped-def]
    """raw[i] = the bytes of row ids[i] of the files (`Places`), raw (k, row bytes) uint8.

    Where there is a mean, out (k, d) float32, which are the bytes of raw, becomes (row - mean) * inverse_scale.
    """
    places, first_rows, near, chunk_rows = files  # once: each access counts references
    width, n = raw.shape[1], ids.size
    ahead = np.zeros(AHEAD, np.int64)
    for i in range(-AHEAD, n):
        start = ahead[i % AHEAD]
        if i + AHEAD < n:  # rows lie far apart: several are on their way at any moment
            row = ids[i + AHEAD]
            f = near[row >> NEAR]
            while row >= first_rows[f + 1]:
                f += 1
            row -= first_rows[f]
            rows = np.uint64(chunk_rows[f])
            chunk = np.uint64(row) // rows
            place = places[f, chunk] + np.int64(np.uint64(row) - chunk * rows) * width
            ahead[i % AHEAD] = place
            for line in range(0, width, 64):
                prefetch(place + line)
            prefetch(place + width - 1)
        if i >= 0:
            source = carray(pointer(start), (width,), np.uint8)
            for b in range(np.uint64(width)):  # unsigned: only such indices are taken in vectors
                raw[i, b] = source[b]
            for j in range(np.uint64(mean.size)):
                out[i, j] = np.float32((np.float64(out[i, j]) - mean[j]) * inverse_scale[j])


@kernel()
def standardise_rows(X, mean, inverse_scale, keep, out):  # type: ignore[no-untyped-def]
    """out[k] = (X[i] - mean) * inverse_scale for the rows i with keep[i]; returns how many. out may be X itself.

    As _gather, bit for bit.
    """
    k = 0
    for i in range(X.shape[0]):
        if keep[i]:
            for j in range(np.uint64(X.shape[1])):
                out[k, j] = np.float32((np.float64(X[i, j]) - mean[j]) * inverse_scale[j])
            k += 1
    return k


class RowReader:
    """Random access to the rows of a chunked two-dimensional dataset of an open HDF5 file (read only)."""

    def __init__(self, path: Path, dataset: h5py.Dataset, mapped: bool = True) -> None:
        self.path, self.dataset = path, dataset
        self.n, columns = dataset.shape
        self.dtype = dataset.dtype
        self.chunk_rows = dataset.chunks[0]
        self._width = columns * self.dtype.itemsize
        self._columns = columns
        chunks = -(-self.n // self.chunk_rows)
        self._trusted = np.zeros(chunks, bool)
        self.all_checked = False  # whether `check_chunks` has nothing left to do
        self.memory: NDArray[np.uint8] | None = None
        if mapped and is_plain(dataset):  # not mapped: the file is not a local one
            self.memory = np.memmap(path, np.uint8, "r")
            try:
                self.offsets = chunk_offsets(dataset)
            except DataError as error:
                raise DataError(f"{path} is incomplete: {error}") from error
            self._places: Any = Places.of([self])

    def take(self, ids: ArrayLike) -> NDArray[Any]:
        """Rows (k, columns) with the given numbers, in the given order; a number may come twice."""
        rows = np.ascontiguousarray(ids, dtype=np.int64)
        if rows.ndim != 1:
            raise DataError(f"row numbers must be a list, got {rows.ndim} dimensions")
        if rows.size and not (rows.min() >= 0 and rows.max() < self.n):
            bad = rows.min() if rows.min() < 0 else rows.max()
            raise DataError(f"row {bad} is not among the {self.n} rows of {self.path}")
        out = np.empty((rows.size, self._columns), self.dtype)
        if self.memory is not None:
            self.check_chunks(rows)
            _gather(self._places, rows, NOTHING, NOTHING, out.view(np.uint8), NO_ROWS)
            return out
        chunk_of = rows // self.chunk_rows
        for chunk in np.unique(chunk_of):
            start = chunk * self.chunk_rows
            wanted = chunk_of == chunk
            try:
                block = self.dataset[start : min(start + self.chunk_rows, self.n)]
            except OSError as error:
                raise DataError(f"{self.path} is damaged near row {start}: make the file again") from error
            out[wanted] = block[rows[wanted] - start]
        return out

    def check_chunks(self, rows: NDArray[np.int64]) -> None:
        """Compute the checksums of the chunks these rows lie in, unless that was done before."""
        if self.all_checked:
            return
        assert self.memory is not None
        touched = np.unique(rows // self.chunk_rows)
        for chunk in touched[~self._trusted[touched]]:
            start = self.offsets[chunk]
            end = start + self.chunk_rows * self._width
            stored = self.memory[end : end + 4]
            if len(stored) < 4 or fletcher32(self.memory[start:end]) != int(stored.view("<u4")[0]):
                first = chunk * self.chunk_rows
                last = min(first + self.chunk_rows, self.n) - 1
                raise DataError(f"{self.path} is damaged in rows {first}..{last} (wrong checksum): make the file again")
            self._trusted[chunk] = True
        self.all_checked = bool(self._trusted.all())


def take_rows(
    readers: Sequence[RowReader],
    places: Places,
    ids: NDArray[np.int64],
    mean: NDArray[np.float64],
    inverse_scale: NDArray[np.float64],
    out: NDArray[np.float32],
) -> None:
    """out (k, d) = (row - mean) * inverse_scale for the rows `ids` (k,), numbered through the readers' files.

    The rows themselves where mean and inverse_scale are NOTHING.
    """
    for f, reader in enumerate(readers):
        if not reader.all_checked:
            low, high = places.first_rows[f : f + 2]
            reader.check_chunks(ids[(ids >= low) & (ids < high)] - low)
    _gather(places, ids, mean, inverse_scale, out.view(np.uint8), out)


def load(d: int) -> None:
    """Compile or load the kernel of `take_rows`."""
    X = np.zeros((1, d), np.float32)
    places = Places(np.array([[address(X)]]), np.array([0, 1]), np.zeros(1, np.int64), np.array([1]))
    take_rows([], places, np.zeros(1, np.int64), np.zeros(d), np.ones(d), np.empty_like(X))
