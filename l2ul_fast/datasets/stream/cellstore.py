"""Packed cells of every row, next to the data: ceil(log2 psi) bits per partition, 25 bytes a row at psi=4, t=100.

The file holds cells (n, bytes per row) uint8, seeds (t, psi, d), row_ids, and mean and scale when rows were
standardised; its attributes name the data it was made from. Written atomically, checksummed like the dataset file.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.datasets.file.check import MOST_ROWS, Attributes, own_dataset
from l2ul_fast.datasets.file.gather import RowReader
from l2ul_fast.datasets.file.hdf5 import open_hdf5
from l2ul_fast.datasets.stream.shards import Shards, Source, opened
from l2ul_fast.datasets.stream.stream import Progress, blocks
from l2ul_fast.errors import DataError
from l2ul_fast.files import explain, publish, temp_path
from l2ul_kernels import Partitions, assign_cells, pack_cells, packed_width, unpack_cells

FORMAT = "l2ul-cells"
FORMAT_VERSION = 1
_CHUNK_BYTES = 1 << 20


def fingerprint(shards: Shards) -> str:
    """What the cells belong to: source, rows, mean and scale of each data file (which change with any row)."""
    digest = hashlib.sha256()
    for file in shards.files:
        digest.update(f"{file.source} {file.n} {file.d} {file.class_counts}".encode())
        digest.update(file.mean.tobytes() + file.scale.tobytes())
    return digest.hexdigest()


def default_path(source: Path) -> Path:
    """Where the cells of a data file go when nothing else is said: beside it, .cells.h5 for .h5."""
    return source.with_suffix(".cells.h5")


def stream_cells(
    source: Source | Shards, partitions: Partitions, out: Path | None = None, progress: Progress | None = None
) -> Path:
    """Assign every row of a file and store its packed cells; returns the path of the store."""
    t, psi = partitions.n_partitions, partitions.n_seeds
    width = packed_width(t, psi)
    with opened(source) as shards:
        path = Path(out) if out is not None else default_path(shards.paths[0])
        rows = max(1, min(shards.n, _CHUNK_BYTES // width // 2 * 2))
        temp = None
        try:
            temp = temp_path(path)
            # No chunk cache, whole chunks: a full disk then shows at the write. If closing fails, HDF5 may crash.
            with h5py.File(temp, "w", rdcc_nbytes=0) as file:
                stored = file.create_dataset(
                    "cells", (shards.n, width), np.uint8, chunks=(rows, width), fletcher32=True
                )
                for name in ("seeds", "row_ids", "mean", "scale"):
                    if (array := getattr(partitions, name)) is not None:
                        file.create_dataset(name, data=array, chunks=array.shape)
                waiting, k = np.empty((rows, width), np.uint8), 0
                for first, X, _ in blocks(shards):
                    packed = pack_cells(assign_cells(X, partitions), psi)
                    while len(packed):
                        done, part, packed = first + len(X) - len(packed), packed[: rows - k], packed[rows - k :]
                        waiting[k : k + len(part)] = part
                        k += len(part)
                        if k == rows or done + len(part) == shards.n:
                            stored[done + len(part) - k : done + len(part)] = waiting[:k]
                            k = 0
                    if progress is not None:
                        progress(first + len(X), shards.n)
                facts = {"format": FORMAT, "format_version": FORMAT_VERSION, "n": shards.n, "t": t, "psi": psi}
                file.attrs.update(facts | {"label": shards.label, "fingerprint": fingerprint(shards)})
            publish(temp, path)
        except (OSError, RuntimeError) as error:
            raise explain(path, error) from error
        finally:
            if temp is not None:
                temp.unlink(missing_ok=True)
        return path


class CellStore:
    """An open store: cells of rows by number."""

    def __init__(self, path: Path | str, source: Source | Shards | None = None) -> None:
        """Open `path`; with `source`, also make sure that it was made from that data."""
        self.path = Path(path)
        if not os.path.isfile(self.path):
            raise DataError(f"there is no cell store {self.path}: make it with `l2ul kme --cells`")
        self._file = open_hdf5(self.path, str(self.path))
        try:
            self._open()
            if source is not None:
                with opened(source) as shards:
                    if fingerprint(shards) != self._fingerprint:
                        raise DataError("it was made from other data: make it again")
        except (KeyError, TypeError, ValueError, OSError, RuntimeError, OverflowError, MemoryError) as error:
            self.close()
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"{self.path} cannot be used: {reason}") from error

    def _open(self) -> None:
        facts = Attributes(self._file)
        if facts.text("format") != FORMAT or facts.whole("format_version", 0, 2**31) != FORMAT_VERSION:
            raise DataError(f"it is not a cell store of format version {FORMAT_VERSION}: make it again")
        self.n, self.t, self.psi = (
            facts.whole("n", 1, MOST_ROWS),
            facts.whole("t", 1, 2**20),
            facts.whole("psi", 2, 2**16),
        )
        self.label, self._fingerprint = facts.text("label"), facts.text("fingerprint")
        extra = {k: own_dataset(self._file, k)[()] for k in ("row_ids", "mean", "scale") if k in self._file}
        self.partitions = Partitions.from_seeds(own_dataset(self._file, "seeds")[()], **extra)
        cells = own_dataset(self._file, "cells")
        if (self.partitions.n_partitions, self.partitions.n_seeds) != (self.t, self.psi):
            raise DataError("its seeds have another shape than its attributes say")
        if cells.shape != (self.n, packed_width(self.t, self.psi)) or cells.dtype != np.uint8 or cells.chunks is None:
            raise DataError("its cells have another shape than its attributes say")
        self._rows = RowReader(self.path, cells)

    def packed(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """Packed cells (k, bytes per row) of the rows with these numbers."""
        return self._rows.take(ids)

    def cells(self, ids: ArrayLike) -> NDArray[Any]:
        """Cells (k, t) of the rows with these numbers."""
        cells = unpack_cells(self.packed(ids), self.t, self.psi)
        if cells.size and cells.max() >= self.psi:
            raise DataError(f"{self.path} holds cells beyond {self.psi}: make it again")
        return cells

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "CellStore":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
