"""DatasetWriter: rows in, a complete and checksummed dataset file out, or nothing at all."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np

from l2ul_fast.datasets.file.chunks import chunk_buffer, write_chunk
from l2ul_fast.datasets.file.layout import CODECS, FORMAT, FORMAT_VERSION, chunk_rows, source_label
from l2ul_fast.datasets.moments import Moments, first_bad_row
from l2ul_fast.datasets.split import SPLIT_RULE, train_mask
from l2ul_fast.errors import DataError
from l2ul_fast.files import explain, publish, temp_path


def _codec_options(codec: str) -> Mapping[str, Any]:
    if codec not in CODECS:
        raise DataError(f"codec {codec!r} is unknown: choose one of {', '.join(CODECS)}")
    if codec == "none":
        return {}
    import hdf5plugin  # registers the filters with HDF5; needed only for compressed files

    return hdf5plugin.Bitshuffle(cname="lz4") if codec == "bitshuffle-lz4" else hdf5plugin.Zstd()


class DatasetWriter:
    """Writes a dataset file row block by row block; the file appears under its name only when it is complete.

    Use as a context manager. An exception inside the block leaves an older file untouched and no temporary file.
    `source` may be set as an attribute before the end of the block, when it depends on what was read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str,
        source: str,
        d: int,
        classes: Sequence[int],
        n: int | None = None,
        codec: str = "none",
        split_seed: int = 0,
        extra_attrs: Mapping[str, Any] | None = None,
    ) -> None:
        if d < 1:
            raise DataError(f"d is {d}, but a dataset needs at least one column")
        self.path = Path(path)
        self.name, self.source, self.d, self.n, self.split_seed = name, source, d, n, split_seed
        self.rows = 0  # rows appended so far
        self.classes = np.asarray(classes, dtype=np.int64)
        self._extra = dict(extra_attrs or {})
        self._codec = _codec_options(codec)
        self._y_type = np.uint8 if self.classes.min() >= 0 and self.classes.max() < 256 else np.int64
        self._chunk = chunk_rows(d)
        self._raw, self._X = chunk_buffer(self._chunk, d)  # rows waiting for a whole chunk
        self._y = np.empty(self._chunk, dtype=self._y_type)
        self._waiting = 0
        self._written = 0
        self._moments = Moments(d)
        self._n_train = 0
        self.class_counts = np.zeros(self.classes.size, dtype=np.int64)
        self._temp: Path | None = None
        self._file: h5py.File | None = None
        self._handle: int | None = None  # of the same file, for fsync
        self._flusher = ThreadPoolExecutor(1)
        self._flushing: Future[None] | None = None

    def __enter__(self) -> Self:
        try:
            self._temp = temp_path(self.path)
            # No chunk cache: a write error then surfaces at the write, not when the file is closed.
            self._file = h5py.File(self._temp, "w", rdcc_nbytes=0)
            self._handle = os.open(self._temp, os.O_RDONLY)
        except OSError as error:
            self._discard()
            raise explain(self.path, error) from error
        return self

    def append(self, X: np.ndarray, y: np.ndarray) -> None:
        """Add rows: X (k, d), converted to float32, and y (k,) with values in classes."""
        X = np.ascontiguousarray(X, dtype=np.float32)
        y = np.asarray(y)
        if X.ndim != 2 or X.shape[1] != self.d or y.shape != X.shape[:1]:
            raise DataError(f"rows of shape {X.shape} with labels {y.shape} do not fit a dataset of {self.d} columns")
        bad = first_bad_row(X)
        if bad >= 0:
            raise DataError(f"row {self.rows + bad} of {self.name} has a NaN or an infinity")
        counts = np.array([np.count_nonzero(y == c) for c in self.classes])
        if counts.sum() != len(y):
            bad = int(np.argmin(np.isin(y, self.classes)))
            raise DataError(
                f"row {self.rows + bad} of {self.name} has label {y[bad]}, not one of {self.classes.tolist()}"
            )
        if self.n is not None and self.rows + len(y) > self.n:
            raise DataError(f"{self.name} has more than the expected {self.n} rows")
        self.class_counts += counts
        self.rows += len(y)
        y = y.astype(self._y_type, copy=False)
        done = 0
        while done < len(y):
            k = min(self._chunk - self._waiting, len(y) - done)
            self._X[self._waiting : self._waiting + k] = X[done : done + k]
            self._y[self._waiting : self._waiting + k] = y[done : done + k]
            self._waiting += k
            done += k
            if self._waiting == self._chunk:
                self._write()

    def _write(self) -> None:
        """Write the waiting rows as one chunk (only the last one of a file may be short)."""
        assert self._file is not None
        rows, start = self._waiting, self._written
        stop = start + rows
        self._moments.update(self._X[:rows])
        self._n_train += int(np.count_nonzero(train_mask(start, stop, self.split_seed)))
        try:
            if start == 0:
                self._create(rows)
            X, y = self._datasets
            X.id.set_extent((stop, self.d))
            y.id.set_extent((stop,))
            if self._codec:
                X[start:stop] = self._X[:rows]
            else:
                self._X[rows:] = 0  # the unused end of the last chunk
                write_chunk(X, start, self._raw)
            y[start:stop] = self._y[:rows]
            self._flush_early()
        except OSError as error:
            raise explain(self.path, error) from error
        self._waiting, self._written = 0, stop

    def _flush_early(self) -> None:
        """Let the disk work while rows come in; the last fsync of a million HIGGS rows then takes 1 ms, not 45."""
        if self._flushing is not None:
            if not self._flushing.done():
                return
            self._flushing.result()  # a failed write is reported only once: to this fsync, not to the last one
        assert self._handle is not None
        self._flushing = self._flusher.submit(os.fsync, self._handle)

    def _create(self, rows: int) -> None:
        """Create X and y at the first chunk, so that a file smaller than one chunk does not occupy a whole one."""
        assert self._file is not None
        if rows < self._chunk:
            raw, X = chunk_buffer(rows, self.d)
            X[:] = self._X[:rows]
            self._raw, self._X = raw, X
        options = {"fletcher32": True, **self._codec}
        X = self._file.create_dataset(
            "X", (0, self.d), np.float32, chunks=(rows, self.d), maxshape=(None, self.d), **options
        )
        y = self._file.create_dataset("y", (0,), self._y_type, chunks=(rows,), maxshape=(None,), **options)
        self._datasets = X, y  # looking them up by name for every chunk took as long as writing them

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._discard()

    def _finish(self) -> None:
        if self._waiting:
            self._write()
        assert self._file is not None
        assert self._temp is not None
        if self.rows == 0:
            raise DataError(f"{self.name} has no rows")
        if self.n is not None and self.rows != self.n:
            raise DataError(f"{self.name} has {self.rows} rows, {self.n} were expected")
        source_label(self.source)
        attrs: dict[str, Any] = {
            **self._extra,
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "source": self.source,
            "n": self.rows,
            "d": self.d,
            "classes": self.classes,
            "class_counts": self.class_counts,
            "mean": self._moments.mean,
            "variance": self._moments.variance(),
            "scale": self._moments.scale(),
            "split_rule": SPLIT_RULE,
            "split_seed": self.split_seed,
            "n_train": self._n_train,
        }
        try:
            self._file.attrs.update(attrs)
            self._file.close()
            self._file = None
            if self._flushing is not None:
                self._flushing.result()
            publish(self._temp, self.path)
        except (OSError, RuntimeError) as error:  # h5py reports a failed close as RuntimeError
            raise explain(self.path, error) from error

    def _discard(self) -> None:
        """Close and delete the temporary file, if it is still there."""
        self._flusher.shutdown()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if self._file is not None:
            with contextlib.suppress(OSError, RuntimeError):  # a full disk: closing cannot flush, and need not
                self._file.close()
            self._file = None
        if self._temp is not None:
            self._temp.unlink(missing_ok=True)
