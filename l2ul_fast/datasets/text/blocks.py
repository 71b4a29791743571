"""From a stream of text to blocks of rows: threads that read in turn and parse side by side, a fixed set of buffers."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Lock
from typing import BinaryIO

import numpy as np
from numba import config

from l2ul_fast.datasets.text.csv import PAD, Layout, LineError, Rows, parse_block
from l2ul_fast.datasets.text.csv_kernels import after_last_line
from l2ul_fast.datasets.text.rawfiles import READ_ERRORS
from l2ul_fast.errors import DataError

BLOCK_BYTES = 4 << 20


def default_threads() -> int:
    """Parsing threads: what numba may use, which respects NUMBA_NUM_THREADS and the CPU affinity.

    At most 8: reading, one thread at a time, cannot feed more, and each has a buffer.
    """
    return min(8, max(1, int(getattr(config, "NUMBA_NUM_THREADS", 1))))


class _Filler:
    """Fills buffers with whole lines of a stream; what follows the last line break opens the next buffer."""

    def __init__(self, stream: BinaryIO, block: int, seen: Callable[[memoryview], None] | None) -> None:
        self.stream, self.block, self.seen = stream, block, seen
        self.rest = np.empty(0, dtype=np.uint8)
        self.at_end = False

    def __call__(self, buf: np.ndarray) -> int:
        """Bytes of whole lines now in buf; at_end says whether they are the last ones."""
        filled = self.rest.size
        buf[:filled] = self.rest
        view = buf.data
        while filled < self.block and not self.at_end:
            k = self.stream.readinto(view[filled : self.block])  # type: ignore[attr-defined]
            self.at_end = not k
            if self.seen is not None and k:
                self.seen(view[filled : filled + k])
            filled += k
        if self.at_end and filled and buf[filled - 1] != 10:
            buf[filled] = 10
            filled += 1
        cut = int(after_last_line(buf, filled))
        if not self.at_end and cut == 0:
            raise LineError(0, f"it is longer than {self.block} bytes")
        self.rest = buf[cut:filled].copy()
        return cut


def parse_text(
    stream: BinaryIO,
    layout: Layout,
    name: str,
    *,
    threads: int | None = None,
    block: int = BLOCK_BYTES,
    seen: Callable[[memoryview], None] | None = None,
) -> Iterator[Rows]:
    """Parse numeric text; yields X (k, d) float32 and y (k,) uint8 in file order, in flat memory.

    name stands for the file in messages; a damaged line is a DataError with its number, counted from 1.
    seen is called with every piece of text in order, by one thread at a time (for checksums).
    """
    threads = threads or default_threads()
    fill, turn = _Filler(stream, block, seen), Lock()
    free: SimpleQueue[np.ndarray | None] = SimpleQueue()
    for buf in np.empty((threads + 2, block + 1 + PAD), dtype=np.uint8):  # one allocation: NumPy asks for huge pages
        free.put(buf)
    jobs: deque[tuple[np.ndarray, Future[tuple[list[Rows], int]]]] = deque()  # in file order

    def step(buf: np.ndarray) -> bool:
        """Read the next block in turn, then parse it while it is in this core's cache; False if there is none."""
        job: Future[tuple[list[Rows], int]] = Future()
        try:
            with turn:
                if fill.at_end:
                    return False
                jobs.append((buf, job))
                size = fill(buf)
            job.set_result(parse_block(buf, size, layout))
        except BaseException as error:  # whatever it is, the caller gets it
            job.set_exception(error)
        return True

    def work() -> None:
        while (buf := free.get()) is not None:
            step(buf)

    def take_part() -> bool:
        """One step if a buffer is free; False if not, or at the end."""
        try:
            buf = free.get_nowait()
        except Empty:
            return False
        return buf is not None and step(buf)

    line = 1  # number of the first line of the oldest unfinished block
    with ThreadPoolExecutor(threads) as workers:
        for _ in range(threads - 1):
            workers.submit(work)
        try:
            while True:
                # This thread is one of the `threads`: it hands out what is ready; else it parses; else it waits.
                if not (jobs and jobs[0][1].done()) and take_part():
                    continue
                if not jobs:
                    return
                buf, job = jobs.popleft()
                blocks, lines = job.result()
                line += lines
                free.put(buf)  # parsing has copied the rows out of it
                yield from blocks
        except LineError as error:
            raise DataError(f"{name}, line {line + error.line} is damaged: {error}") from None
        except READ_ERRORS as error:
            raise DataError(f"{name} is truncated or damaged ({error}): get it again") from error
        finally:
            for _ in range(threads):  # no worker may wait for a buffer for ever
                free.put(None)
