"""From a stream of text to blocks of rows: one reading thread, a few parsing threads, a fixed set of buffers."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import BinaryIO

import numpy as np
from numba import config

from l2ul_fast.datasets.csvkernels import after_last_line
from l2ul_fast.datasets.csvparse import PAD, Layout, LineError, Rows, parse_block
from l2ul_fast.datasets.rawfiles import READ_ERRORS
from l2ul_fast.errors import DataError

BLOCK_BYTES = 4 << 20


def default_threads() -> int:
    """Parsing threads: what numba may use, which respects NUMBA_NUM_THREADS and the CPU affinity.

    At most 8: the one reading thread cannot feed more, and each has a buffer.
    """
    return min(8, max(1, int(getattr(config, "NUMBA_NUM_THREADS", 1))))


class _Filler:
    """Fills buffers with whole lines of a stream; what follows the last line break opens the next buffer."""

    def __init__(self, stream: BinaryIO, block: int, seen: Callable[[memoryview], None] | None) -> None:
        self.stream, self.block, self.seen = stream, block, seen
        self.rest = np.empty(0, dtype=np.uint8)

    def __call__(self, buf: np.ndarray) -> tuple[int, bool]:
        """(bytes of whole lines now in buf, whether the stream has ended)."""
        filled = self.rest.size
        buf[:filled] = self.rest
        at_end = False
        view = memoryview(buf)
        while filled < self.block and not at_end:
            k = self.stream.readinto(view[filled : self.block])  # type: ignore[attr-defined]
            at_end = not k
            if self.seen is not None and k:
                self.seen(view[filled : filled + k])
            filled += k
        if at_end and filled and buf[filled - 1] != 10:
            buf[filled] = 10
            filled += 1
        cut = after_last_line(buf, filled)
        if not at_end and cut == 0:
            raise LineError(0, f"it is longer than {self.block} bytes")
        self.rest = buf[cut:filled].copy()
        return cut, at_end


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
    seen is called with every piece of text in order, from the reading thread (for checksums).
    """
    threads = threads or default_threads()
    fill = _Filler(stream, block, seen)
    free: SimpleQueue[np.ndarray | None] = SimpleQueue()
    for buf in np.empty((threads + 2, block + 1 + PAD), dtype=np.uint8):  # one allocation: NumPy asks for huge pages
        free.put(buf)
    jobs: SimpleQueue[tuple[np.ndarray, Future[tuple[list[Rows], int]]] | None] = SimpleQueue()  # in file order

    def read() -> None:
        try:
            at_end = False
            while not at_end and (buf := free.get()) is not None:
                size, at_end = fill(buf)
                jobs.put((buf, workers.submit(parse_block, buf, size, layout)))
        finally:
            jobs.put(None)

    line = 1  # number of the first line of the oldest unfinished block
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(threads) as workers:
        reading = reader.submit(read)
        try:
            while (item := jobs.get()) is not None:
                buf, job = item
                try:
                    blocks, lines = job.result()
                except LineError as error:
                    raise DataError(f"{name}, line {line + error.line} is damaged: {error}") from None
                line += lines
                # Parsing has copied the rows out of the buffer: reading and parsing go on while the caller works, until
                # all buffers hold rows that the caller has not taken.
                free.put(buf)
                yield from blocks
            reading.result()
        except LineError as error:
            raise DataError(f"{name}, line {line} is damaged: {error}") from None
        except READ_ERRORS as error:
            raise DataError(f"{name} is truncated or damaged ({error}): get it again") from error
        finally:
            free.put(None)  # if the caller takes no more rows, the reader must not wait for buffers
