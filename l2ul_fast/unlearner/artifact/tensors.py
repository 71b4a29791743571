"""Arrays in the safetensors layout: length of the header (8 bytes), header (JSON), bytes of the arrays without gaps.

Written piece by piece: an array of any size needs no second copy in memory, and can be mapped.

The file of the rows is the only one that changes after it was written: a forgotten row is overwritten with zeros where
it lies. One checksum of all bytes would have to be made anew from all bytes, so that file has one SHA-256 for each
block of 64 KiB instead, a line of 64 hexadecimal digits each in a file beside it. Which rows must read as zeros, and
the digests of the blocks where they lie, are in the journal before the first of them is overwritten: reading takes both
into account, so the bytes of a file that a crash left half overwritten are checked like all others.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.artifact.durable import PIECE, open_file, overwrite, read_file, stored_size
from l2ul_fast.unlearner.artifact.format import FileRecord
from l2ul_fast.unlearner.artifact.schema import BLOCK, parse

Arrays = dict[str, NDArray[Any]]
Ids = NDArray[np.int64]
#: Number of a block -> SHA-256 of its bytes (hex).
Digests = dict[int, str]
Layout = list[tuple[str, np.dtype[Any], tuple[int, ...], int]]

_DTYPES = {"BOOL": "?", "U8": "u1", "I8": "i1"} | {
    f"{letter}{8 * size}": f"<{kind}{size}"
    for letter, kind in (("U", "u"), ("I", "i"), ("F", "f"))
    for size in (2, 4, 8)
}
#: Safetensors' name of each dtype that can be saved.
CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
#: Bytes of a digest's line.
_LINE = 65


def encode(arrays: Mapping[str, Any]) -> Iterator[Any]:
    """The bytes of a safetensors file, piece by piece."""
    flat: dict[str, NDArray[Any]] = {}
    header: dict[str, Any] = {}
    end = 0
    # Wide items first: with a header of whole 64 bytes every array is then aligned for its own dtype.
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = np.asarray(arrays[name], dtype=arrays[name].dtype.newbyteorder("<"), order="C")
        flat[name], start, end = array.reshape(-1).view(np.uint8), end, end + array.nbytes
        header[name] = {"dtype": CODES[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    yield len(text).to_bytes(8, "little") + text
    yield from (array.data for array in flat.values())


def layout_of(text: bytes, size: int) -> Layout:
    """Name, dtype, shape and start of each array, by start; ValueError unless they fill `size` bytes exactly."""
    found, end = [], 0
    header = parse(text)
    for name, facts in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (start, stop) = np.dtype(_DTYPES[facts["dtype"]]), tuple(facts["shape"]), facts["data_offsets"]
        if start != end or stop != start + math.prod(shape) * dtype.itemsize:
            raise ValueError("offsets")
        found.append((name, dtype, shape, start))
        end = stop
    if end != size:
        raise ValueError("size")
    return found


@dataclass
class Erased:
    """What the journal says about a file of rows: the rows that must read as zeros, and the digests of their blocks.

    `found` is set while reading: whether the file, or its digests, are not that far yet.
    """

    ids: Ids
    digests: Digests
    found: bool = False


def load_arrays(path: Path, record: FileRecord, memory_map: bool, verify: bool, erased: Erased | None = None) -> Arrays:
    """The arrays of one file: fresh memory, or private (copy-on-write) views of the mapped file."""
    damaged = _damaged(path)
    fd = open_file(path, os.O_RDONLY)
    try:
        size = stored_size(path, fd)
        if size != record.bytes:
            raise DataError(f"{path} has {size} bytes instead of {record.bytes}: restore it from a copy or fit again")
        whole = hashlib.sha256()
        first = _fill(fd, bytearray(8))
        length = int.from_bytes(first, "little")
        if length > size - 8:
            raise damaged
        first += _fill(fd, bytearray(length))
        layout = layout_of(bytes(first[8:]), size - 8 - length)
        if memory_map:
            mapped = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
            arrays: Arrays = {name: np.ndarray(s, d, mapped, 8 + length + start) for name, d, s, start in layout}
        else:
            arrays = {name: np.empty(s, d) for name, d, s, _ in layout}
        digest = Blocks() if record.blocks else whole
        checked = verify or not memory_map
        if checked:
            digest.update(first)
        for array in arrays.values():
            flat = array.reshape(-1).view(np.uint8).data
            if not memory_map:
                _fill(fd, flat)
            if erased is not None:
                erased.found |= _zero(array, erased.ids)
            for start in range(0, len(flat) if checked else 0, PIECE):
                digest.update(flat[start : start + PIECE])
        if record.blocks and checked:
            lines = _digests_of(path, record)
            for number, wanted in ({} if erased is None else erased.digests).items():
                assert erased is not None
                erased.found |= lines[number] != wanted
                lines[number] = wanted
            if digest.hexdigest() != "".join(lines):
                raise damaged
        elif checked and digest.hexdigest() != record.sha256:
            raise damaged
        if sorted(arrays) != sorted(record.arrays):
            raise damaged
        return arrays
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, IndexError):
        raise damaged from None
    finally:
        os.close(fd)


def _damaged(path: Path) -> DataError:
    return DataError(f"{path} is damaged (wrong checksum): restore it from a copy or fit again")


def _fill(fd: int, buffer: Any) -> Any:
    view = memoryview(buffer)
    while view:
        count = os.readv(fd, [view[:PIECE]])
        if not count:
            raise ValueError("the file ends too early")
        view = view[count:]
    return buffer


def _zero(array: NDArray[Any], ids: Ids) -> bool:
    """Zero these rows; were they not?"""
    if not ids.size:
        return False
    if ids[-1] >= len(array):
        raise ValueError("a row that does not exist")
    parts = array.reshape(len(array), -1).view(np.uint8)
    if not parts[ids].any():  # a mapped page that is not written to stays shared
        return False
    parts[ids] = 0
    return True


# Rows that are overwritten in place ----------------------------------------------------------------------------------


class Blocks:
    """SHA-256 of every BLOCK bytes; used like an object of hashlib, for a file whose rows are overwritten in place."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._part, self._room = hashlib.sha256(), BLOCK

    def update(self, data: Any, /) -> None:
        view = memoryview(data).cast("B")
        while view:
            part, view = view[: self._room], view[self._room :]
            self._part.update(part)
            self._room -= len(part)
            if not self._room:
                self._close()

    def _close(self) -> None:
        self.done.append(self._part.hexdigest())
        self._part, self._room = hashlib.sha256(), BLOCK

    def hexdigest(self) -> str:
        """All digests in one string."""
        if self._room < BLOCK:
            self._close()
        return "".join(self.done)

    def lines(self) -> bytes:
        """The file of digests."""
        self.hexdigest()
        return "".join(digest + "\n" for digest in self.done).encode()


def _digests_of(path: Path, record: FileRecord) -> list[str]:
    text = read_file(path.with_name(record.digests))
    lines = text.decode("ascii").split("\n")
    if len(text) != _LINE * -(-record.bytes // BLOCK) or any(len(line) != _LINE - 1 for line in lines[:-1]):
        raise _damaged(path.with_name(record.digests))
    return lines[:-1]


def layout_on_disk(path: Path, record: FileRecord) -> Layout:
    """The arrays of a file; their starts count from the beginning of the file."""
    length = int.from_bytes(read_file(path, 8), "little")
    if length > record.bytes - 8:
        raise _damaged(path)
    try:
        found = layout_of(read_file(path, 8 + length)[8:], record.bytes - 8 - length)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise _damaged(path) from None
    return [(name, dtype, shape, 8 + length + start) for name, dtype, shape, start in found]


def _places(layout: Layout, ids: Ids) -> list[tuple[int, int]]:
    """(first byte, last byte + 1) of these rows of all arrays; neighbours are one."""
    found: list[tuple[int, int]] = []
    for _, dtype, shape, start in layout:
        width = math.prod(shape[1:]) * dtype.itemsize
        for row in ids.tolist() if width else ():
            if row >= shape[0]:
                raise ValueError("a row that does not exist")
            place = start + row * width
            if found and found[-1][1] == place:
                found[-1] = (found[-1][0], place + width)
            else:
                found.append((place, place + width))
    return found


def digests_without(path: Path, record: FileRecord, layout: Layout, ids: Ids) -> Digests:
    """Digests of the blocks that hold these rows (ascending), when they will have been overwritten.

    DataError where a block is not what its digest says now: damage must not be given a new digest.
    """
    blocks: dict[int, list[tuple[int, int]]] = {}
    for start, stop in _places(layout, ids):
        for number in range(start // BLOCK, (stop - 1) // BLOCK + 1):
            begin = number * BLOCK
            blocks.setdefault(number, []).append((max(start - begin, 0), min(stop - begin, BLOCK)))
    found: Digests = {}
    fd = open_file(path, os.O_RDONLY)
    lines = open_file(path.with_name(record.digests), os.O_RDONLY)
    try:
        for number, ranges in blocks.items():
            content = bytearray(os.pread(fd, BLOCK, number * BLOCK))
            if hashlib.sha256(content).hexdigest().encode() != os.pread(lines, _LINE - 1, _LINE * number):
                raise _damaged(path)
            for first, last in ranges:
                content[first:last] = bytes(last - first)
            found[number] = hashlib.sha256(content).hexdigest()
        return found
    finally:
        os.close(fd)
        os.close(lines)


def erase_on_disk(path: Path, record: FileRecord, layout: Layout, ids: Ids, digests: Digests) -> None:
    """Overwrite these rows (ascending) with zeros, synced, and note the digests of their blocks.

    The digests need no sync: the journal has them until all is written anew.
    """
    overwrite(path, [(start, bytes(stop - start)) for start, stop in _places(layout, ids)])
    lines = [(_LINE * number, digest.encode()) for number, digest in sorted(digests.items())]
    overwrite(path.with_name(record.digests), lines, sync=False)


def is_erased(path: Path, record: FileRecord, layout: Layout, erased: Erased) -> bool:
    """Whether all that `erase_on_disk` would write is there."""
    fd = open_file(path, os.O_RDONLY)
    try:
        if any(os.pread(fd, stop - start, start).strip(b"\0") for start, stop in _places(layout, erased.ids)):
            return False
    finally:
        os.close(fd)
    lines = _digests_of(path, record)
    return all(lines[number] == digest for number, digest in erased.digests.items())
