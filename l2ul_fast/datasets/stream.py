"""A data set of any size past the kernels. Memory is a few chunks, whatever n; every chunk's checksum is verified.

`blocks` reads ahead: one thread fills a small ring of buffers while the caller works. `stream_counts` on several cores
does without it: each core reads and counts chunks of its own (see `_pass`).
"""

import contextlib
import glob
import itertools
import operator
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.datasets.chunks import chunk_offsets, read_at
from l2ul_fast.datasets.hdf5 import DatasetFile, open_dataset
from l2ul_fast.datasets.moments import round24, scale_of
from l2ul_fast.datasets.rows import Places, RowReader, standardise, take_standardised
from l2ul_fast.errors import DataError
from l2ul_kernels import Partitions, cell_counts, sample_row_ids

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Part = Literal["all", "train", "test"]
Progress = Callable[[int, int | None], None]

#: Buffers in the ring: one being filled, one being eaten, two to even out hiccups (`l2ul bench stream`).
RING = 4


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
        self, ids: NDArray[np.int64], inverse_scale: NDArray[np.float64], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """(X - mean) * inverse_scale (k, d) of the rows with these numbers, in `out` if given."""
        ids = np.ascontiguousarray(self._checked(ids))
        X = np.empty((ids.size, self.d), np.float32) if out is None else out
        readers = [self.reader(i) for i in range(len(self.files))]
        if self._places is None:
            self._places = Places.of(readers)
        if self._places is None or not X.flags.c_contiguous:
            self.take_X(ids, X)
            standardise(X, self.mean, inverse_scale)
        else:
            take_standardised(readers, self._places, ids, self.mean, inverse_scale, X)
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


class _Stop(Exception):
    pass


class _Chunks:
    """The chunks of one file in order, for the reading thread."""

    def __init__(self, file: DatasetFile) -> None:
        self.file = file
        self.handle = open(file.path, "rb", buffering=0) if file.is_plain else None  # noqa: SIM115 - see close
        self.offsets = chunk_offsets(file.X) if file.is_plain else None

    def read(self, start: int, raw: NDArray[np.uint8], X: NDArray[np.float32]) -> int:
        """Fill raw, whose rows are X, with the chunk that begins at row `start`; returns how many rows are real."""
        file = self.file
        rows = min(file.chunk_rows, file.n - start)
        try:
            if self.handle is not None and self.offsets is not None:
                # not through h5py: it would hold the GIL, which the thread that feeds the kernel needs
                read_at(self.handle.fileno(), int(self.offsets[start // file.chunk_rows]), raw, start)
            else:
                file.X.read_direct(X, np.s_[start : start + rows], np.s_[:rows])
        except OSError as error:
            raise DataError(
                f"{file.path} is damaged in rows {start}..{start + rows - 1} (checksum or read error): "
                "make the file again"
            ) from error
        return rows

    def load(
        self, start: int, memory: NDArray[np.uint8], labels: bool
    ) -> tuple[NDArray[np.float32], NDArray[Any] | None]:
        """X (k, d), in `memory`, and y (k,) if wanted of the chunk that begins at row `start`."""
        file = self.file
        raw = memory[: 4 * file.chunk_rows * file.d + 4]
        X = raw[:-4].view(np.float32).reshape(file.chunk_rows, file.d)
        rows = self.read(start, raw, X)
        return X[:rows], file.y[start : start + rows] if labels else None

    def close(self) -> None:
        if self.handle is not None:
            self.handle.close()


def _memory(shards: Shards) -> NDArray[np.uint8]:
    """Bytes for any chunk."""
    return np.empty(4 * max(file.chunk_rows for file in shards.files) * shards.d + 4, np.uint8)


def places(shards: Shards, span: tuple[int, int] | None = None) -> list[tuple[int, int]]:
    """(number of the file, first row in it) of every chunk that begins in rows span[0] .. span[1] - 1 (all rows)."""
    low, high = span or (0, shards.n)
    return [
        (i, start)
        for i, file in enumerate(shards.files)
        for start in range(0, file.n, file.chunk_rows)
        if low <= shards.first_rows[i] + start < high
    ]


def blocks(
    shards: Shards, labels: bool = False, span: tuple[int, int] | None = None
) -> Iterator[tuple[int, NDArray[np.float32], NDArray[Any] | None]]:
    """(first row, X (k, d), y (k,) or None) for all rows in order. X is valid until the next block is asked for.

    `span` reads only the chunks that begin in its rows (see `places`).
    """
    free: queue.Queue[Any] = queue.Queue()
    full: queue.Queue[Any] = queue.Queue()
    for _ in range(RING):
        free.put(_memory(shards))

    def read() -> None:
        try:
            for i, todo in itertools.groupby(places(shards, span), operator.itemgetter(0)):
                first = int(shards.first_rows[i])
                with contextlib.closing(_Chunks(shards.files[i])) as chunks:
                    for _, start in todo:
                        memory = free.get()
                        if memory is None:
                            raise _Stop
                        full.put((first + start, *chunks.load(start, memory, labels), memory))
            full.put(None)
        except _Stop:
            pass
        except BaseException as error:
            full.put(error)

    reader = threading.Thread(target=read, name="l2ul-reader", daemon=True)
    reader.start()
    try:
        while (item := full.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            first_row, X, y, memory = item
            yield first_row, X, y
            free.put(memory)
    finally:  # also when the consumer stops early: the reader must not outlive the open files
        free.put(None)
        reader.join()


def _in_turn(
    shards: Shards, labels: bool = False, span: tuple[int, int] | None = None
) -> Iterator[tuple[int, NDArray[np.float32], NDArray[Any] | None]]:
    """As `blocks`, but reads when asked, without a thread: for callers that have one core and no more."""
    memory = _memory(shards)
    for i, todo in itertools.groupby(places(shards, span), operator.itemgetter(0)):
        with contextlib.closing(_Chunks(shards.files[i])) as chunks:
            for _, start in todo:
                yield int(shards.first_rows[i]) + start, *chunks.load(start, memory, labels)


def sample_partitions(
    source: Source | Shards, t: int = 100, psi: int = 4, random_state: Any = None, standardise: bool = True
) -> Partitions:
    """Draw seeds from the rows of a file; rows are compared standardised by the file's mean and scale by default."""
    with opened(source) as shards:
        ids = sample_row_ids(shards.n, t, psi, random_state)
        rows, _ = shards.take(ids.ravel())
        seeds = rows.reshape(t, psi, shards.d)
        if not standardise:
            return Partitions.from_seeds(seeds, ids)
        return standardised(seeds, ids, round24(shards.mean), round24(shards.scale))


def standardised(
    rows: NDArray[np.float32], ids: NDArray[np.int64], mean: NDArray[np.float64], scale: NDArray[np.float64]
) -> Partitions:
    """Partitions whose seeds are these rows (t, psi, d) of a file; other rows are standardised on the way."""
    return Partitions.from_seeds(((rows - mean) / scale).astype(np.float32), ids, mean, scale)


def stream_counts(
    source: Source | Shards,
    partitions: Partitions,
    by_class: bool = False,
    part: Part = "all",
    progress: Progress | None = None,
    span: tuple[int, int] | None = None,
    ahead: bool = True,
) -> NDArray[np.int64]:
    """Rows per cell of a file of any size: int64 (t, psi), or (C, t, psi) in the order of the file's classes.

    `part` counts only the training or only the test rows of the fixed split; `span` only the chunks that begin in these
    rows (see `places`), so that spans which follow each other count every row once. `ahead`: with one thread for the
    kernel, another one reads ahead, which helps where a core is free or the disk is slow.
    """
    with opened(source) as shards:
        shape = (partitions.n_partitions, partitions.n_seeds)
        n_classes = len(shards.classes) if by_class else 1
        masked = part != "all"
        # rows that do not count get a class of their own, dropped at the end: no row is ever copied
        labelled = by_class or masked
        order = np.argsort(shards.classes)
        total = np.zeros((n_classes + masked, *shape) if labelled else shape, np.int64)

        def count(first: int, X: NDArray[np.float32], y: NDArray[Any] | None, out: NDArray[np.int64]) -> None:
            labels = np.zeros(len(X), np.uint16) if labelled else None
            if labels is not None:
                if y is not None:
                    labels[:] = order[np.searchsorted(shards.classes, y, sorter=order)]
                if masked:
                    labels[_outside(shards, first, len(X), part)] = n_classes
            cell_counts(X, partitions, labels, None if labels is None else n_classes + masked, out=out)

        workers = max(1, min(numba.get_num_threads(), len(places(shards, span))))
        done = 0
        for rows in _pass(shards, workers, by_class, count, total, span, ahead):
            done += rows
            if progress is not None:
                progress(done, shards.n)
        if not labelled:
            return total
        return total[:n_classes] if by_class else total[0]


def _pass(
    shards: Shards, workers: int, labels: bool, count: Callable[..., None], total: NDArray[np.int64],
    span: tuple[int, int] | None, ahead: bool,
) -> Iterator[int]:  # fmt: skip
    """Let `count(first row, X, y, out)` add all chunks to `total`; yields the rows of each chunk when it is done.

    One worker: a thread reads ahead, if wanted. Several: each reads, checks and counts chunks of its own on one core;
    nobody waits for anybody, and reading is not limited to one thread. Integers add up the same in any order.
    """
    if workers == 1:
        for first, X, y in (blocks if ahead else _in_turn)(shards, labels, span):
            count(first, X, y, total)
            yield len(X)
        return
    files = [_Chunks(file) for file in shards.files]
    todo = iter(places(shards, span))
    taking, finished = threading.Lock(), queue.SimpleQueue[Any]()
    stop = threading.Event()

    def work() -> None:
        try:
            numba.set_num_threads(1)  # of this thread only
            own = np.zeros_like(total)
            memory = _memory(shards)
            while not stop.is_set():
                with taking:
                    i, start = next(todo, (-1, 0))
                if i < 0:
                    break
                X, y = files[i].load(start, memory, labels)
                count(int(shards.first_rows[i]) + start, X, y, own)
                finished.put(len(X))
            finished.put(own)
        except BaseException as error:
            finished.put(error)

    crew = [threading.Thread(target=work, name="l2ul-worker", daemon=True) for _ in range(workers)]
    for thread in crew:
        thread.start()
    try:
        while workers:
            item = finished.get()
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, int):
                yield item
            else:
                total += item
                workers -= 1
    finally:  # also when the caller stops early: no worker may outlive the open files
        stop.set()
        for thread in crew:
            thread.join()
        for chunks in files:
            chunks.close()


def _outside(shards: Shards, first: int, rows: int, part: Part) -> NDArray[np.bool_]:
    i = int(np.searchsorted(shards.first_rows, first, side="right")) - 1
    start = first - int(shards.first_rows[i])
    train = shards.files[i].train_mask(start, start + rows)
    return ~train if part == "train" else train


@contextlib.contextmanager
def opened(source: Source | Shards) -> Iterator[Shards]:
    if isinstance(source, Shards):
        yield source
    else:
        with Shards(source) as shards:
            yield shards
