"""What an HDF5 file says of itself, checked before anything is made as large as it says.

A file may come from anywhere. Each attribute has a type and bounds; data must lie in the file itself, not behind a
link; and every chunk that a shape promises must be there, so that a small file cannot ask for much memory.
"""

import contextlib
import importlib
import mmap
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import DataError

MOST_ROWS, MOST_COLUMNS, MOST_CLASSES = 2**40, 2**16, 2**12
MOST_TEXT = 4096  # characters
MOST_BYTES_OF_AN_ATTRIBUTE = 16 << 20
#: Where rows lie; the beginning of a global heap, version 1; how much is searched for those.
DATA, HEAP, MOST_BYTES_SEARCHED = ("X", "y", "cells"), b"GCOL\1\0\0\0", 256 << 20
VARIABLE_LENGTH = 9  # the class of such types in the file
#: What unpacks to more than both is refused.
BOMB_BYTES, BOMB_RATIO = 256 << 20, 200


def refuse_bomb(what: str, unpacked: int, packed: int) -> None:
    """DataError for what takes some hundred times its size; such data is made to fill memory or disk."""
    if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * packed:
        raise DataError(f"{what} unpacks to more than {BOMB_RATIO} times its size ({packed} bytes): unpack it yourself")


def check_heaps(path: Path, file: h5py.File) -> None:
    """DataError for a damaged global heap, in which HDF5 keeps text: it may read one without end.

    Looks where HDF5 puts them, between the rows, and not through rows, which can be many.
    """
    taken = sorted(extent for name in DATA for extent in _extents(file, name))
    with open(path, "rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        low, left = 0, MOST_BYTES_SEARCHED
        for start, size in [*taken, (len(memory), 0)]:
            high = min(start, low + left, len(memory))
            at = memory.find(HEAP, low, high)
            while at >= 0:
                if _heap_objects(memory, at) is None:
                    raise DataError("its text is damaged")
                at = memory.find(HEAP, at + len(HEAP), high)
            left -= max(0, high - low)
            low = max(low, min(start + size, len(memory)))
        for length, address, index in _texts(memory):
            if length and (_heap_objects(memory, address) or {}).get(index) != length:
                raise DataError("its text is damaged")


def _texts(memory: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """(length, heap, number there) of each text that an attribute of the file refers to.

    HDF5 trusts the length, and writes beyond its memory where it is wrong. Known are files as h5py makes them; newer
    layouts, which have checksums, are left out.
    """
    if memory[:9] != b"\x89HDF\r\n\x1a\n\0" or len(memory) < 96:
        return
    header = int.from_bytes(memory[64:72], "little")
    if memory[header : header + 2] != b"\1\0":
        return
    blocks = [(header + 16, int.from_bytes(memory[header + 8 : header + 12], "little"))]
    for place, size in blocks:  # grows: a header goes on elsewhere
        end = min(place + size, len(memory))
        while place + 8 <= end:
            kind, length = struct.unpack_from("<HH", memory, place)
            message = memory[place + 8 : min(place + 8 + length, end)]
            place += 8 + length
            if kind == 0x10 and len(message) >= 16 and len(blocks) < 1000:
                blocks.append(struct.unpack_from("<QQ", message))
            elif kind == 0x0C and len(message) >= 8 and message[0] == 1:
                sizes = [(k + 7) // 8 * 8 for k in struct.unpack_from("<HHH", message, 2)]
                dtype, values = message[8 + sizes[0] :][:16], message[8 + sum(sizes) :]
                if len(dtype) < 16 or dtype[0] & 15 != VARIABLE_LENGTH or dtype[1] & 15 == 0:
                    continue
                size, base = struct.unpack_from("<I4xI", dtype, 4)
                if (dtype[1] & 15, size, base) != (1, 16, 1):  # text, by a reference of 16 bytes, of characters
                    raise DataError("the type of its text is damaged")
                for k in range(0, len(values) - 15, 16):
                    yield struct.unpack_from("<IQI", values, k)


def _extents(file: h5py.File, name: str) -> list[tuple[int, int]]:
    """(first byte, bytes) of the pieces that a dataset's rows lie in, as far as that can be told."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(KeyError, OSError, RuntimeError, TypeError, ValueError):
        if isinstance(file.get(name, getlink=True), h5py.HardLink) and file.get(name, getclass=True) is h5py.Dataset:
            data = file[name]
            if data.chunks is not None:
                data.id.chunk_iter(lambda info: found.append((info.byte_offset, info.size)))
            elif data.id.get_offset() is not None:
                found.append((data.id.get_offset(), data.id.get_storage_size()))
    return found


def _heap_objects(memory: mmap.mmap, at: int) -> dict[int, int] | None:
    """Size of each object of a collection, which has each one's size before it; None unless it ends where it says."""
    if memory[at : at + len(HEAP)] != HEAP:
        return None
    found: dict[int, int] = {}
    end, place = at + int.from_bytes(memory[at + 8 : at + 16], "little"), at + 16
    while place + 16 <= end <= len(memory):
        index, size = (int.from_bytes(memory[place + k : place + k + w], "little") for k, w in ((0, 2), (8, 8)))
        if index == 0 and size < 16:  # what is free, this header included: HDF5 would stay here
            return None
        found[index] = size
        place += 16 + (size + 7) // 8 * 8 if index else size
    return found if at + 16 <= place <= end <= len(memory) else None


class Attributes:
    """Attributes of an HDF5 file; DataError for one that is not of the type and within the bounds asked for."""

    def __init__(self, file: h5py.File) -> None:
        self._attrs = file.attrs

    def get(self, name: str) -> Any:
        """Any attribute of a sane size."""
        if name not in self._attrs:
            raise DataError(f"it has no attribute {name}")
        found = self._attrs.get_id(name)
        if found.shape is not None and prod(found.shape) * found.dtype.itemsize > MOST_BYTES_OF_AN_ATTRIBUTE:
            raise DataError(f"its attribute {name} is too large")
        if h5py.check_vlen_dtype(found.dtype) not in (None, str, bytes):
            raise DataError(f"its attribute {name} holds lists")
        return self._attrs[name]

    def text(self, name: str) -> str:
        """A line of text."""
        value = self.get(name)
        if not isinstance(value, str) or len(value) > MOST_TEXT or not value.isprintable():
            raise DataError(f"its attribute {name} is no line of text")
        return value

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number from low to high."""
        value = self.get(name)
        if not isinstance(value, np.integer) or not low <= value <= high:
            raise DataError(f"its attribute {name} must be a whole number from {low} to {high}")
        return int(value)

    def wholes(self, name: str, most: int = MOST_CLASSES) -> list[int]:
        """Up to `most` whole numbers, at least one."""
        values = np.asarray(self.get(name))
        if values.dtype.kind not in "iu" or values.ndim != 1 or not 0 < values.size <= most:
            raise DataError(f"its attribute {name} must be a list of whole numbers")
        return [int(value) for value in values]

    def words(self, name: str, size: int) -> tuple[str, ...]:
        """(size,) pieces of text."""
        values = np.asarray(self.get(name))
        if values.shape != (size,) or not all(isinstance(value, str) for value in values):
            raise DataError(f"its attribute {name} must be {size} names")
        return tuple(values)

    def numbers(self, name: str, size: int, low: float, high: float) -> NDArray[np.float64]:
        """(size,) numbers from low to high."""
        values = np.asarray(self.get(name))
        if values.dtype.kind != "f" or values.shape != (size,) or not ((values >= low) & (values <= high)).all():
            raise DataError(f"its attribute {name} must be {size} numbers from {low:.3g} to {high:.3g}")
        return values.astype(np.float64)


def own_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset whose data lie in this file; DataError for a link, a group or data kept elsewhere."""
    link = file.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink) or file.get(name, getclass=True) is not h5py.Dataset:
        raise DataError(f"it holds no dataset {name}" + (" of its own" if link is not None else ""))
    found = file[name]
    plan = found.id.get_create_plist()
    if plan.get_layout() == h5py.h5d.VIRTUAL or plan.get_external_count():
        raise DataError(f"the rows of {name} lie in other files")
    stored, promised = found.id.get_storage_size(), prod(found.shape) * found.dtype.itemsize
    for k in range(plan.get_nfilters()):
        _load_filter(name, *plan.get_filter(k)[::3])
    if found.chunks is not None:
        chunks = prod(-(-n // c) for n, c in zip(found.shape, found.chunks, strict=True))
        if found.id.get_num_chunks() != chunks:
            raise DataError(
                f"{name} has {found.id.get_num_chunks()} of its {chunks} chunks: the others were never written"
            )
    elif stored < promised:
        raise DataError(f"{name} has {stored} of its {promised} bytes: the others were never written")
    refuse_bomb(name, promised, stored)
    return found


def _load_filter(name: str, code: int, called: bytes) -> None:
    """Make sure that HDF5 can undo a filter: those of hdf5plugin are known from its import on."""
    if not h5py.h5z.filter_avail(code):
        with contextlib.suppress(ImportError):
            importlib.import_module("hdf5plugin")
    if not h5py.h5z.filter_avail(code):
        shown = called.decode("ascii", "backslashreplace")
        raise DataError(f"{name} is packed by the filter {code} ({shown}), which needs: pip install 'l2ul-fast[data]'")
