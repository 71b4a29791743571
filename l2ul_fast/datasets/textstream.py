"""From a stream of text to blocks of rows: one reading thread, a few parsing threads, a fixed set of buffers."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

import numpy as np
from numba import config

from l2ul_fast.datasets.csvparse import PAD, Layout, LineError, Rows, parse_block
from l2ul_fast.datasets.rawfiles import READ_ERRORS
from l2ul_fast.errors import DataError

BLOCK_BYTES = 4 << 20  # on 300,000 HIGGS rows: 1 MiB 15 % slower, 8 MiB no faster


def default_threads() -> int:
    """Parsing threads: what numba may use, which respects NUMBA_NUM_THREADS and the CPU affinity.

    At most 8: the one reading thread cannot feed more, and each has a buffer.
    """
    return min(8, max(1, int(getattr(config, "NUMBA_NUM_THREADS", 1))))


class _Filler:
    """Fills buffers with whole lines of a stream; what follows the last line break opens the next buffer."""

    def __init__(self, stream: BinaryIO, block: int, seen: Callable[[memoryview], None] | None) -> None:
        self.stream, self.block, self.seen = stream, block, seen
        self.rest = b""

    def __call__(self, buf: bytearray) -> tuple[int, bool]:
        """(bytes of whole lines now in buf, whether the stream has ended)."""
        filled = len(self.rest)
        buf[:filled] = self.rest
        at_end = False
        with memoryview(buf) as view:
            while filled < self.block and not at_end:
                k = self.stream.readinto(view[filled : self.block])  # type: ignore[attr-defined]
                at_end = not k
                if self.seen is not None and k:
                    self.seen(view[filled : filled + k])
                filled += k
        if at_end and filled and buf[filled - 1] != 10:
            buf[filled] = 10
            filled += 1
        cut = buf.rfind(b"\n", 0, filled) + 1
        if not at_end and cut == 0:
            raise LineError(0, f"it is longer than {self.block} bytes")
        self.rest = bytes(buf[cut:filled])
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
    free = [bytearray(block + 1 + PAD) for _ in range(threads + 2)]
    fill = _Filler(stream, block, seen)
    line = 1  # number of the first line of the oldest unfinished block

    def finish(job: Future[tuple[list[Rows], int]]) -> list[Rows]:
        nonlocal line
        try:
            blocks, lines = job.result()
        except LineError as error:
            raise DataError(f"{name}, line {line + error.line} is damaged: {error}") from None
        line += lines
        return blocks

    # Rows are copied out of a buffer by parsing it, so a buffer is free again before its rows are handed on: reading
    # and parsing go on while the caller works.
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(threads) as workers:
        jobs: deque[tuple[bytearray, Future[tuple[list[Rows], int]]]] = deque()
        at_end = False
        buf = free.pop()
        reading = reader.submit(fill, buf)
        while not at_end:
            try:
                size, at_end = reading.result()
            except LineError as error:
                while jobs:
                    yield from finish(jobs.popleft()[1])
                raise DataError(f"{name}, line {line} is damaged: {error}") from None
            except READ_ERRORS as error:
                raise DataError(f"{name} is truncated or damaged ({error}): get it again") from error
            jobs.append((buf, workers.submit(parse_block, np.frombuffer(buf, dtype=np.uint8), size, layout)))
            ready: list[Rows] = []
            if not free:
                oldest, job = jobs.popleft()
                ready = finish(job)
                free.append(oldest)
            if not at_end:
                buf = free.pop()
                reading = reader.submit(fill, buf)
            yield from ready
        while jobs:
            yield from finish(jobs.popleft()[1])
