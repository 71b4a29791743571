"""A data set of any size past the kernels. Memory is a few chunks, whatever n; every chunk's checksum is verified.

`blocks` reads ahead: one thread fills a small ring of buffers while the caller works. `stream_counts` on several cores
does without it: each core reads and counts chunks of its own (see `_pass`).
"""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.datasets.moments import round24
from l2ul_fast.datasets.stream.shards import Shards, Source, opened
from l2ul_kernels import Partitions, cell_counts, sample_row_ids

__all__ = ["Shards", "blocks", "places", "sample_partitions", "standardised", "stream_counts"]

Part = Literal["all", "train", "test"]
Progress = Callable[[int, int | None], None]

#: Buffers in the ring: one being filled, one being eaten, two to even out hiccups (`l2ul bench stream`).
RING = 4


class _Stop(Exception):
    pass


def _memory(shards: Shards) -> NDArray[np.uint8]:
    """Bytes for any chunk."""
    return max((file.buffer() for file in shards.files), key=len)


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
            for i, start in places(shards, span):
                memory = free.get()
                if memory is None:
                    raise _Stop
                full.put((int(shards.first_rows[i]) + start, *shards.files[i].load(start, memory, labels), memory))
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
    for i, start in places(shards, span):
        yield int(shards.first_rows[i]) + start, *shards.files[i].load(start, memory, labels)


def sample_partitions(
    source: Source | Shards, t: int = 100, psi: int = 4, random_state: Any = None, standardise: bool = True
) -> Partitions:
    """Draw seeds from the rows of a file; rows are compared standardised by the file's mean and scale by default."""
    with opened(source) as shards:
        ids = sample_row_ids(shards.n, t, psi, random_state)
        seeds = shards.take_X(ids.ravel()).reshape(t, psi, shards.d)
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
    shards: Shards,
    workers: int,
    labels: bool,
    count: Callable[..., None],
    total: NDArray[np.int64],
    span: tuple[int, int] | None,
    ahead: bool,
) -> Iterator[int]:
    """Let `count(first row, X, y, out)` add all chunks to `total`; yields the rows of each chunk when it is done.

    One worker: a thread reads ahead, if wanted. Several: each reads, checks and counts chunks of its own on one core;
    nobody waits for anybody, and reading is not limited to one thread. Integers add up the same in any order.
    """
    if workers == 1:
        for first, X, y in (blocks if ahead else _in_turn)(shards, labels, span):
            count(first, X, y, total)
            yield len(X)
        return
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
                X, y = shards.files[i].load(start, memory, labels)
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


def _outside(shards: Shards, first: int, rows: int, part: Part) -> NDArray[np.bool_]:
    i = int(np.searchsorted(shards.first_rows, first, side="right")) - 1
    start = first - int(shards.first_rows[i])
    train = shards.files[i].train_mask(start, start + rows)
    return ~train if part == "train" else train
