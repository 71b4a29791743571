"""The dataset file: HDF5 with X (n, d) float32 and y (n,), chunked by rows, checksummed, written atomically.

Attributes: format, format_version, name, source, n, d, classes, class_counts, mean, variance, scale (of all rows,
float64; scale 1 for a constant column), split_rule, split_seed, n_train. `source` says what the rows are:
real:<sha256>, subset:<sha256>, own:<sha256> or standin:<generator version>:<seed>. Chunk i of X and chunk
i of y hold the same rows.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.datasets.file.check import MOST_COLUMNS, MOST_ROWS, Attributes, check_heaps, own_dataset
from l2ul_fast.datasets.file.chunks import chunk_offsets, is_plain, read_at
from l2ul_fast.datasets.file.layout import CODECS, FORMAT, FORMAT_VERSION, chunk_rows, dataset_path, source_label
from l2ul_fast.datasets.file.writer import DatasetWriter
from l2ul_fast.datasets.moments import Moments, first_bad_row, scale_of
from l2ul_fast.datasets.split import SPLIT_RULE, count_train, train_mask
from l2ul_fast.errors import DataError

__all__ = ["CODECS", "DatasetFile", "DatasetWriter", "chunk_rows", "dataset_path", "open_dataset", "verify"]

MOST_BYTES_OF_A_CHUNK = 64 << 20
FLOAT32, SMALLEST = float(np.finfo(np.float32).max), 1e-300  # of numbers that attributes may hold
_CACHE_BYTES = 16 << 20  # h5py's chunk cache must hold two chunks, or small reads decode each chunk again and again


def numbered(d: int) -> tuple[str, ...]:
    """Names of d columns that have none."""
    return tuple(f"x{j}" for j in range(d))


class DatasetFile:
    """An open dataset file, read only. Made by open_dataset; close it, or use it as a context manager."""

    def __init__(self, path: Path, file: h5py.File, local: bool = True) -> None:
        facts = Attributes(file)
        if "format" not in file.attrs or facts.text("format") != FORMAT:
            raise DataError("it is an HDF5 file, but not one of l2ul's datasets")
        version = facts.whole("format_version", 0, 2**31)
        if version != FORMAT_VERSION:
            raise DataError(f"it has format version {version}, this program reads {FORMAT_VERSION}: make it again")
        if facts.text("split_rule") != SPLIT_RULE:
            raise DataError(f"its split rule is {facts.text('split_rule')}, this program knows {SPLIT_RULE}")
        self.path = path
        self.file = file
        self.name = facts.text("name")
        self.source = facts.text("source")
        self.label = source_label(self.source)  # belongs in every table and title
        self.n, self.d = facts.whole("n", 1, MOST_ROWS), facts.whole("d", 1, MOST_COLUMNS)
        self.split_seed, self.n_train = facts.whole("split_seed", 0, 2**64 - 1), facts.whole("n_train", 0, self.n)
        self.classes, self.class_counts = facts.wholes("classes"), facts.wholes("class_counts")
        if len(set(self.classes)) != len(self.class_counts) or sum(self.class_counts) != self.n:
            raise DataError("its classes and class counts do not fit each other or n")
        self.mean = facts.numbers("mean", self.d, -FLOAT32, FLOAT32)
        self.variance = facts.numbers("variance", self.d, 0.0, FLOAT32**2)
        self.scale = facts.numbers("scale", self.d, SMALLEST, FLOAT32)
        if not np.allclose(self.scale, scale_of(self.variance), rtol=1e-6, atol=0):
            raise DataError("its scale and variance do not fit each other")
        self.columns = facts.words("columns", self.d) if "columns" in file.attrs else numbered(self.d)
        self.made_of = facts.text("source_page") if "source_page" in file.attrs else ""
        self.X, self.y = own_dataset(file, "X"), own_dataset(file, "y")
        if self.X.shape != (self.n, self.d) or self.y.shape != (self.n,):
            raise DataError(f"X is {self.X.shape} and y is {self.y.shape}, but it says n={self.n}, d={self.d}")
        self.chunk_rows = int((self.X.chunks or (0,))[0])
        kinds = self.X.dtype == np.float32 and self.y.dtype in (np.uint8, np.int64)
        if not kinds or self.X.chunks != (self.chunk_rows, self.d) or self.y.chunks != (self.chunk_rows,):
            raise DataError(
                "X must be float32 and y uint8 or int64, both chunked by the same rows, not "
                f"{self.X.dtype}, {self.y.dtype}, {self.X.chunks}, {self.y.chunks}"
            )
        if 4 * self.chunk_rows * self.d > MOST_BYTES_OF_A_CHUNK:
            raise DataError(f"its chunks have {4 * self.chunk_rows * self.d} bytes, at most 64 MB are read")
        self._finite = np.zeros(-(-self.n // self.chunk_rows), bool)  # chunks without NaN, as far as they were read
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
            y = self.y[start:stop] if labels else None
        except OSError as error:
            raise DataError(
                f"{self.path} is damaged in rows {start}..{stop - 1} (checksum or read error): make the file again"
            ) from error
        if not self._finite[start // self.chunk_rows]:  # once: it takes a few percent of a pass
            bad = first_bad_row(X[: stop - start])
            if bad >= 0:
                raise DataError(f"row {start + bad} of {self.path} has a NaN or an infinity")
            self._finite[start // self.chunk_rows] = True
        if y is not None:
            self._check_labels(y, start)
        return X[: stop - start], y

    def check_scaling(self) -> None:
        """DataError if mean and scale cannot be those of the rows: nothing lies sqrt(n) deviations from the mean."""
        X, _ = self.load(0, self.buffer(), labels=False)
        far = np.abs(X - self.mean).max(axis=0) > self.scale * (1.001 * self.n**0.5)
        if far.any():
            raise DataError(f"the mean or scale attribute of {self.path} is not that of column {int(far.argmax())}")

    def labels(self) -> NDArray[Any]:
        """All labels, (n,)."""
        try:
            y = self.y[:]
        except OSError as error:
            raise DataError(f"the labels of {self.path} are damaged: make the file again") from error
        self._check_labels(y, 0)
        return y

    def _check_labels(self, y: NDArray[Any], start: int) -> None:
        known = np.isin(y, self.classes)
        if not known.all():
            bad = int(known.argmin())
            raise DataError(f"row {start + bad} of {self.path} has the label {y[bad]}, not one of {self.classes[:20]}")

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
    if not os.path.isfile(path):
        raise DataError(f"there is no dataset file {path}: make it with `l2ul data convert` or `l2ul data make`")
    hint = "make it again" if path.suffix in (".h5", ".hdf5") else f"make one of it with `l2ul data convert {path}`"
    return from_h5py(path, open_hdf5(path, str(path), hint), str(path))


def open_hdf5(source: Any, shown: str, hint: str = "make it again") -> h5py.File:
    """An HDF5 file at a path or in a stream, for reading; DataError if it is none."""
    try:
        file = h5py.File(source, "r", rdcc_nbytes=_CACHE_BYTES)
    except OSError as error:
        raise DataError(f"{shown} is not an HDF5 file, or is truncated or damaged: {hint}") from error
    try:
        if isinstance(source, Path):
            check_heaps(source, file)
    except (DataError, OSError) as error:
        file.close()
        raise DataError(f"{shown} cannot be used: {error}") from None
    return file


def from_h5py(path: Path, file: h5py.File, shown: str, local: bool = True) -> DatasetFile:
    """An open HDF5 file as a dataset file, after the same checks; closed if it is not one. Messages call it `shown`."""
    try:
        return DatasetFile(path, file, local)
    except DataError as error:
        problem = str(error)
    except (KeyError, TypeError, ValueError, OSError, RuntimeError, OverflowError, MemoryError) as error:
        problem = f"its header is damaged ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    file.close()
    raise DataError(f"{shown} cannot be used: {problem}")


def verify(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> list[str]:
    """Everything wrong with a dataset file, one sentence each; an empty list means it is sound.

    Reads all chunks (so all checksums), looks for NaN and unknown labels, and recomputes what the attributes claim.
    """
    try:
        with open_dataset(path) as data:
            return list(_findings(data, progress))
    except DataError as error:
        return [str(error)]
    except Exception as error:  # whatever HDF5 meets in a damaged file, it is a finding
        return [f"{path} cannot be read ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"]


def _findings(data: DatasetFile, progress: Callable[[int, int], None] | None) -> Iterator[str]:
    moments, counts, damaged = Moments(data.d), dict.fromkeys(data.classes, 0), False
    memory = data.buffer()
    for start in range(0, data.n, data.chunk_rows):
        if progress is not None:
            progress(start, data.n)
        try:
            X, y = data.load(start, memory)
        except DataError as error:
            damaged = True
            yield str(error)
            continue
        moments.update(X)
        labels, found = np.unique(np.asarray(y), return_counts=True)
        for label, k in zip(labels.tolist(), found.tolist(), strict=True):
            counts[label] += k
    if damaged:
        return  # the sums below would only repeat it
    if list(counts.values()) != data.class_counts:
        yield f"class counts are {list(counts.values())}, the attribute says {data.class_counts}"
    if not np.allclose(moments.mean, data.mean, rtol=1e-9, atol=1e-9 * moments.scale().max()):
        yield "the mean attribute does not agree with X"
    if not np.allclose(moments.scale(), data.scale, rtol=1e-9, atol=0):
        yield "the scale attribute does not agree with X"
    if count_train(data.n, data.split_seed) != data.n_train:
        yield "the n_train attribute does not agree with the split"
