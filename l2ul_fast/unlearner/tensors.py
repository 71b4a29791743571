"""Arrays in the safetensors layout: length of the header (8 bytes), header (JSON), bytes of the arrays without gaps.

Written piece by piece: an array of any size needs no second copy in memory, and can be mapped.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.durable import PIECE, open_file
from l2ul_fast.unlearner.header import FileRecord

Arrays = dict[str, NDArray[Any]]

_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
#: Safetensors' name of each dtype that can be saved.
CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}


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


def layout_of(text: bytes, size: int) -> list[tuple[str, np.dtype[Any], tuple[int, ...], int]]:
    """Name, dtype, shape and start of each array, by start; ValueError unless they fill `size` bytes exactly."""
    found, end = [], 0
    header = json.loads(text)
    for name, facts in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (start, stop) = np.dtype(_DTYPES[facts["dtype"]]), tuple(facts["shape"]), facts["data_offsets"]
        if start != end or stop != start + math.prod(shape) * dtype.itemsize:
            raise ValueError("offsets")
        found.append((name, dtype, shape, start))
        end = stop
    if end != size:
        raise ValueError("size")
    return found


def load_arrays(path: Path, record: FileRecord, memory_map: bool, verify: bool) -> Arrays:
    """The arrays of one file: fresh memory, or private (copy-on-write) views of the mapped file."""
    damaged = DataError(f"{path} is damaged (wrong checksum): restore it from a copy or fit again")
    fd = open_file(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size != record.bytes:
            raise DataError(f"{path} has {size} bytes instead of {record.bytes}: restore it from a copy or fit again")
        digest = hashlib.sha256()
        first = _fill(fd, bytearray(8), digest)
        length = int.from_bytes(first, "little")
        if length > size - 8:
            raise damaged
        layout = layout_of(bytes(_fill(fd, bytearray(length), digest)), size - 8 - length)
        if memory_map:
            mapped = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
            arrays: Arrays = {name: np.ndarray(s, d, mapped, 8 + length + start) for name, d, s, start in layout}
            if verify:
                digest.update(memoryview(mapped)[8 + length :])
        else:
            arrays = {name: np.empty(s, d) for name, d, s, _ in layout}
            for array in arrays.values():
                _fill(fd, array.reshape(-1).view(np.uint8), digest)
        if (verify or not memory_map) and digest.hexdigest() != record.sha256:
            raise damaged
        if sorted(arrays) != list(record.arrays):
            raise damaged
        return arrays
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise damaged from None
    finally:
        os.close(fd)


def _fill(fd: int, buffer: Any, digest: Any) -> Any:
    view = memoryview(buffer)
    while view:
        count = os.readv(fd, [view[:PIECE]])
        if not count:
            raise ValueError("the file ends too early")
        digest.update(view[:count])
        view = view[count:]
    return buffer
