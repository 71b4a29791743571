"""Rows by their number, straight from the file: mapped memory and one compiled gather instead of HDF5 selections.

HDF5 keeps an uncompressed chunk as one run of bytes, so row r lies at a known place. The first time a chunk is touched
its checksum is computed; a damaged chunk is refused, never returned. Compressed files are read chunk by chunk through
h5py.
"""

from pathlib import Path
from typing import Any

import h5py
import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.datasets.chunks import chunk_offsets, fletcher32, is_plain
from l2ul_fast.errors import DataError
from l2ul_kernels._memory import prefetch

#: Rows asked for before they are copied.
AHEAD = 16


@numba.njit(nogil=True, cache=True)
def _gather(memory, offsets, chunk_rows, ids, out):  # type: ignore[no-untyped-def]
    """out[i] = the bytes of row ids[i]; memory (size,) uint8, offsets (chunks,) int64, out (k, row bytes) uint8."""
    width, base, n, rows = out.shape[1], memory.ctypes.data, ids.size, np.uint64(chunk_rows)
    for i in range(n):
        if i + AHEAD < n:  # rows lie far apart: several are on their way at any moment
            row = np.uint64(ids[i + AHEAD])
            chunk = row // rows
            ahead = base + offsets[chunk] + np.int64(row - chunk * rows) * width
            for line in range(0, width, 64):
                prefetch(ahead + line)
            prefetch(ahead + width - 1)
        row = np.uint64(ids[i])
        chunk = row // rows
        start = np.uint64(offsets[chunk]) + (row - chunk * rows) * np.uint64(width)
        for j in range(np.uint64(width)):  # unsigned: only such indices are taken in vectors
            out[i, j] = memory[start + j]


class RowReader:
    """Random access to the rows of a chunked two-dimensional dataset of an open HDF5 file (read only)."""

    def __init__(self, path: Path, dataset: h5py.Dataset, verify: bool = True, mapped: bool = True) -> None:
        self.path, self.dataset = path, dataset
        self.n, columns = dataset.shape
        self.dtype = dataset.dtype
        self.chunk_rows = dataset.chunks[0]
        self._width = columns * self.dtype.itemsize
        self._columns = columns
        chunks = -(-self.n // self.chunk_rows)
        self._trusted = np.full(chunks, not verify)
        self._all_trusted = not verify
        self.memory: NDArray[np.uint8] | None = None
        if mapped and is_plain(dataset):  # not mapped: the file is not a local one
            self.memory = np.memmap(path, np.uint8, "r")
            try:
                self.offsets = chunk_offsets(dataset)
            except OSError as error:
                raise DataError(f"{path} is incomplete: {error}") from error

    def take(self, ids: ArrayLike, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Rows (k, columns) with the given numbers, in the given order; a number may come twice.

        out: an array of that shape and the dataset's dtype to put them into, rows one after the other.
        """
        rows = np.ascontiguousarray(ids, dtype=np.int64)
        if rows.ndim != 1:
            raise DataError(f"row numbers must be a list, got {rows.ndim} dimensions")
        if rows.size and not (rows.min() >= 0 and rows.max() < self.n):
            bad = rows.min() if rows.min() < 0 else rows.max()
            raise DataError(f"row {bad} is not among the {self.n} rows of {self.path}")
        if out is None:
            out = np.empty((rows.size, self._columns), self.dtype)
        elif out.shape != (rows.size, self._columns) or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise ValueError(f"out must be a contiguous ({rows.size}, {self._columns}) array of {self.dtype}")
        if self.memory is None:
            self._take_through_h5py(rows, out)
        else:
            self.check_chunks(rows)
            _gather(self.memory, self.offsets, self.chunk_rows, rows, out.view(np.uint8))
        return out

    def check_chunks(self, rows: NDArray[np.int64]) -> None:
        """Compute the checksums of the chunks these rows lie in, unless that was done before."""
        if self._all_trusted:
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
        self._all_trusted = bool(self._trusted.all())

    def _take_through_h5py(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        chunk_of = rows // self.chunk_rows
        for chunk in np.unique(chunk_of):
            start = chunk * self.chunk_rows
            wanted = chunk_of == chunk
            try:
                block = self.dataset[start : min(start + self.chunk_rows, self.n)]
            except OSError as error:
                raise DataError(f"{self.path} is damaged near row {start}: make the file again") from error
            out[wanted] = block[rows[wanted] - start]
