"""The dataset file: HDF5 with X (n, d) float32 and y (n,), chunked by rows, checksummed, written atomically.

Attributes: format, format_version, name, source, n, d, classes, class_counts, mean, variance, scale (of all rows,
float64; scale 1 for a constant column), split_rule, split_seed, n_train. `source` says what the rows are:
real:<sha256>, subset:<sha256>, own:<sha256> or standin:<generator version>:<seed>. Chunk i of X and chunk
i of y hold the same rows.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.datasets.file.chunks import chunk_offsets, is_plain, read_at
from l2ul_fast.datasets.file.layout import CODECS, FORMAT, FORMAT_VERSION, chunk_rows, dataset_path, source_label
from l2ul_fast.datasets.file.writer import DatasetWriter
from l2ul_fast.datasets.moments import Moments, first_bad_row
from l2ul_fast.datasets.split import SPLIT_RULE, count_train, train_mask
from l2ul_fast.errors import DataError

__all__ = ["CODECS", "DatasetFile", "DatasetWriter", "chunk_rows", "dataset_path", "open_dataset", "verify"]

_CACHE_BYTES = 16 << 20  # h5py's chunk cache must hold two chunks, or small reads decode each chunk again and again


class DatasetFile:
    """An open dataset file, read only. Made by open_dataset; close it, or use it as a context manager."""

    def __init__(self, path: Path, file: h5py.File, local: bool = True) -> None:
        attrs = file.attrs
        self.path = path
        self.file = file
        self.X: h5py.Dataset = file["X"]
        self.y: h5py.Dataset = file["y"]
        self.name = str(attrs["name"])
        self.source = str(attrs["source"])
        self.label = source_label(self.source)  # belongs in every table and title
        self.n = int(attrs["n"])
        self.d = int(attrs["d"])
        self.classes = [int(c) for c in attrs["classes"]]
        self.class_counts = [int(c) for c in attrs["class_counts"]]
        self.mean = np.asarray(attrs["mean"], dtype=np.float64)
        self.scale = np.asarray(attrs["scale"], dtype=np.float64)
        self.variance = np.asarray(attrs["variance"], dtype=np.float64)
        self.split_seed = int(attrs["split_seed"])
        self.n_train = int(attrs["n_train"])
        self.chunk_rows = int(self.X.chunks[0])
        self.offsets: NDArray[np.int64] | None = None
        if local and is_plain(self.X):  # where chunks lie in the file
            self.offsets, self._handle = chunk_offsets(self.X), file.id.get_vfd_handle()

    @property
    def attrs(self) -> dict[str, Any]:
        """All attributes of the file, extra ones included."""
        return dict(self.file.attrs)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows start..stop-1: X (k, d) float32 and y (k,). Checksums are verified; damage is a DataError."""
        if not 0 <= start <= stop <= self.n:
            raise DataError(f"rows {start}..{stop} are not within the {self.n} rows of {self.path}")
        X, y = np.empty((stop - start, self.d), np.float32), np.empty(stop - start, self.y.dtype)
        memory = self.buffer()
        for first in range(start - start % self.chunk_rows, stop, self.chunk_rows):
            rows, labels = self.load(first, memory)
            assert labels is not None
            low, high = max(start, first), min(stop, first + len(rows))
            X[low - start : high - start] = rows[low - first : high - first]
            y[low - start : high - start] = labels[low - first : high - first]
        return X, y

    def buffer(self) -> NDArray[np.uint8]:
        """Memory for any chunk of the file."""
        return np.empty(4 * self.chunk_rows * self.d + 4, np.uint8)

    def load(
        self, start: int, memory: NDArray[np.uint8], labels: bool = True
    ) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
        """X (k, d), in `memory`, and y (k,) if wanted of the chunk that begins at row `start`."""
        raw = memory[: 4 * self.chunk_rows * self.d + 4]
        X = raw[:-4].view(np.float32).reshape(self.chunk_rows, self.d)
        stop = min(start + self.chunk_rows, self.n)
        try:
            if self.offsets is not None:
                # not through h5py: it would hold the GIL, which the thread that feeds the kernel needs
                read_at(self._handle, int(self.offsets[start // self.chunk_rows]), raw, start)
            else:
                self.X.read_direct(X, np.s_[start:stop], np.s_[: stop - start])
            return X[: stop - start], self.y[start:stop] if labels else None
        except OSError as error:
            raise DataError(
                f"{self.path} is damaged in rows {start}..{stop - 1} (checksum or read error): make the file again"
            ) from error

    def train_mask(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Which of the rows start..stop-1 are training rows, (k,) bool."""
        return train_mask(start, self.n if stop is None else stop, self.split_seed)

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_dataset(path: str | os.PathLike[str]) -> DatasetFile:
    """Open a dataset file after checking its version, attributes and shapes; DataError if it is not one."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"there is no dataset file {path}: make it with `l2ul data convert` or `l2ul data make`")
    try:
        file = h5py.File(path, "r", rdcc_nbytes=_CACHE_BYTES)
    except OSError as error:
        hint = "make it again" if path.suffix in (".h5", ".hdf5") else f"make one of it with `l2ul data convert {path}`"
        raise DataError(f"{path} is not an HDF5 file, or is truncated or damaged: {hint}") from error
    return from_h5py(path, file, str(path))


def from_h5py(path: Path, file: h5py.File, shown: str, local: bool = True) -> DatasetFile:
    """An open HDF5 file as a dataset file, after the same checks; closed if it is not one. Messages call it `shown`."""
    try:
        problem = _layout_problem(file)
        if problem is None:
            return DatasetFile(path, file, local)
    except DataError as error:
        problem = str(error)
    except (KeyError, TypeError, ValueError, OSError, RuntimeError) as error:
        problem = f"its header is damaged ({str(error).splitlines()[0]})"
    file.close()
    raise DataError(f"{shown} cannot be used: {problem}")


def _layout_problem(file: h5py.File) -> str | None:
    """What is wrong with the frame of the file (not its rows), or None."""
    attrs = file.attrs
    if attrs.get("format") != FORMAT:
        return "it is an HDF5 file, but not one of l2ul's datasets"
    if attrs.get("format_version") != FORMAT_VERSION:
        return (
            f"it has format version {attrs.get('format_version')}, this program reads {FORMAT_VERSION}: make it again"
        )
    if attrs["split_rule"] != SPLIT_RULE:
        return f"its split rule is {attrs['split_rule']}, this program knows {SPLIT_RULE}"
    X, y, n, d = file["X"], file["y"], int(attrs["n"]), int(attrs["d"])
    if X.shape != (n, d) or y.shape != (n,):
        return f"X is {X.shape} and y is {y.shape}, but the attributes say n={n}, d={d}"
    if X.dtype != np.float32 or y.dtype not in (np.uint8, np.int64) or X.chunks is None or X.chunks[1] != d:
        return f"X must be float32 chunked by rows and y uint8 or int64, not {X.dtype}, {X.chunks}, {y.dtype}"
    mean, scale = np.asarray(attrs["mean"]), np.asarray(attrs["scale"])
    if mean.shape != (d,) or scale.shape != (d,) or not np.isfinite(mean).all() or not (scale > 0).all():
        return "its mean or scale attribute is not usable"
    return None


def verify(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> list[str]:
    """Everything wrong with a dataset file, one sentence each; an empty list means it is sound.

    Reads all chunks (so all checksums), looks for NaN and unknown labels, and recomputes what the attributes claim.
    """
    try:
        data = open_dataset(path)
    except DataError as error:
        return [str(error)]
    findings = []
    moments, counts = Moments(data.d), np.zeros(len(data.classes), dtype=np.int64)
    with data:
        for start in range(0, data.n, data.chunk_rows):
            stop = min(start + data.chunk_rows, data.n)
            if progress is not None:
                progress(start, data.n)
            try:
                X, y = data.read(start, stop)
            except DataError as error:
                findings.append(str(error))
                continue
            bad = first_bad_row(X)
            if bad >= 0:
                findings.append(f"row {start + bad} has a NaN or an infinity")
                continue
            moments.update(X)
            counts += [np.count_nonzero(y == c) for c in data.classes]
        if findings:
            return findings  # the sums below would only repeat it
        if counts.sum() != data.n:
            findings.append(f"{data.n - counts.sum()} labels are not among the classes {data.classes}")
        if counts.tolist() != data.class_counts:
            findings.append(f"class counts are {counts.tolist()}, the attribute says {data.class_counts}")
        if not np.allclose(moments.mean, data.mean, rtol=1e-9, atol=1e-9 * moments.scale().max()):
            findings.append("the mean attribute does not agree with X")
        if not np.allclose(moments.scale(), data.scale, rtol=1e-9, atol=0):
            findings.append("the scale attribute does not agree with X")
        if count_train(data.n, data.split_seed) != data.n_train:
            findings.append("the n_train attribute does not agree with the split")
    return findings
