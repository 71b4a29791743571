"""A fitted unlearner on disk: a directory that always holds exactly one whole state.

artifact.json                           facts; name, size and SHA-256 of every other file; replacing it is the commit
state-<generation>-<group>.safetensors  arrays, written once under a new name and never changed
ledger.jsonl                            see ledger.py; what lies behind the length in artifact.json was never committed
.lock                                   held by whoever changes the directory

A save writes new files, syncs them, replaces artifact.json and deletes what it no longer names, so a process killed
anywhere leaves the old state or the new one. All changes go through the functions under "The disk", each a thin cover
of os.*, which lets the tests stop the program at every one of them (tests/faults.py). The arrays are in the safetensors
layout, written here piece by piece: an array of any size needs no second copy in memory, and can be mapped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import mmap
import os
import re
import stat
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast import __version__
from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.ledger import START, Entry, Ledger, chain, theta_digest

FORMAT = "l2ul-artifact"
FORMAT_VERSION = 1
Arrays = dict[str, NDArray[Any]]

_HEADER, _NEW_HEADER, _LEDGER, _LOCK = "artifact.json", "artifact.json.new", "ledger.jsonl", ".lock"
_GROUP = re.compile(r"[a-z0-9_]{1,40}")
_ARRAY = re.compile(r"(?!__)[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_STATE = re.compile(r"state-(\d{1,18})-([a-z0-9_]{1,40})\.safetensors")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PIECE = 4 << 20  # bytes hashed and written at a time: hashed while still in the cache
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}


# The disk ------------------------------------------------------------------------------------------------------------


def _open(path: Path, flags: int) -> int:
    """A descriptor of a regular file; never follows a link that somebody put in its place, never waits on a pipe."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DataError(f"{path} is not a file")
    return fd


def _write(fd: int, data: Any) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:_PIECE]) :]


def _write_file(path: Path, parts: Iterator[Any] | list[Any], flags: int = os.O_EXCL) -> tuple[int, str]:
    """A new file on disk, synced: its size and SHA-256."""
    fd = _open(path, os.O_WRONLY | os.O_CREAT | flags)
    try:
        size, digest = 0, hashlib.sha256()
        for part in parts:
            for start in range(0, len(part), _PIECE):
                digest.update(part[start : start + _PIECE])
                _write(fd, part[start : start + _PIECE])
            size += len(part)
        os.fsync(fd)
        return size, digest.hexdigest()
    finally:
        os.close(fd)


def _rewrite_tail(path: Path, committed: int, data: bytes) -> None:
    """Cut the file at `committed` bytes and append `data`, synced."""
    fd = _open(path, os.O_WRONLY | os.O_CREAT)
    try:
        if os.fstat(fd).st_size > committed:
            os.ftruncate(fd, committed)
        os.lseek(fd, committed, os.SEEK_SET)
        _write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_directory(path: Path) -> None:
    if path.is_dir():
        return
    _make_directory(path.parent)
    with contextlib.suppress(FileExistsError):  # another process was faster; a file of this name fails later
        os.mkdir(path)
    _sync_directory(path.parent)


def _read(path: Path, size: int | None = None) -> bytes:
    """The first `size` bytes of a file (all of it when None), or fewer when it is shorter."""
    with open(_open(path, os.O_RDONLY), "rb") as file:
        return file.read(-1 if size is None else size)


_held: dict[tuple[int, ...], int] = {}  # lock file, process and thread -> how often it is held


@contextlib.contextmanager
def locked(directory: Path | str, timeout: float = 60.0) -> Iterator[None]:
    """Keep other writers out while loading, changing and saving an artifact; may be nested.

    Waits up to `timeout` seconds for another process or thread, then DataError. Readers are never kept out.
    """
    directory = Path(directory)
    try:
        fd = _open(directory / _LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _explain(directory, error) from error
    try:
        facts = os.fstat(fd)
        key = (facts.st_dev, facts.st_ino, os.getpid(), threading.get_ident())
        if key not in _held:
            _wait_for(fd, directory, timeout)
        _held[key] = _held.get(key, 0) + 1
        try:
            yield
        finally:
            _held[key] -= 1
            if not _held[key]:
                del _held[key]
    finally:
        os.close(fd)  # the lock ends with its descriptor, also when the process is killed


def _wait_for(fd: int, directory: Path, timeout: float) -> None:
    end = time.monotonic() + timeout
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise DataError(
                    f"another process is changing {directory} (waited {timeout:g} s): try again when it is done"
                ) from None
            time.sleep(0.02)


def _explain(directory: Path, error: OSError) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DataError(f"no space left to write {directory}: free some; what was saved there before is unchanged")
    if error.errno == errno.ENOENT:
        return DataError(f"there is no artifact {directory}: fit one first, or check the path")
    return DataError(f"cannot use {error.filename or directory}: {os.strerror(error.errno or 0)}")


# Arrays in the safetensors layout: length of the header (8 bytes), header (JSON), bytes of the arrays without gaps ----


def _encode(arrays: Mapping[str, Any]) -> Iterator[Any]:
    """The bytes of a safetensors file, piece by piece."""
    flat: dict[str, NDArray[Any]] = {}
    header: dict[str, Any] = {}
    end = 0
    # Wide items first: with a header of whole 64 bytes every array is then aligned for its own dtype.
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = np.asarray(arrays[name], dtype=arrays[name].dtype.newbyteorder("<"), order="C")
        flat[name], start, end = array.reshape(-1).view(np.uint8), end, end + array.nbytes
        header[name] = {"dtype": _CODES[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    yield len(text).to_bytes(8, "little") + text
    yield from (array.data for array in flat.values())


def _layout(text: bytes, size: int) -> list[tuple[str, np.dtype[Any], tuple[int, ...], int]]:
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


def _load_arrays(path: Path, record: FileRecord, memory_map: bool, verify: bool) -> Arrays:
    """The arrays of one file: fresh memory, or private (copy-on-write) views of the mapped file."""
    damaged = DataError(f"{path} is damaged (wrong checksum): restore it from a copy or fit again")
    fd = _open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size != record.bytes:
            raise DataError(f"{path} has {size} bytes instead of {record.bytes}: restore it from a copy or fit again")
        digest = hashlib.sha256()
        first = _fill(fd, bytearray(8), digest)
        length = int.from_bytes(first, "little")
        if length > size - 8:
            raise damaged
        layout = _layout(bytes(_fill(fd, bytearray(length), digest)), size - 8 - length)
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
        count = os.readv(fd, [view[:_PIECE]])
        if not count:
            raise ValueError("the file ends too early")
        digest.update(view[:count])
        view = view[count:]
    return buffer


# artifact.json -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileRecord:
    """What artifact.json says about one file of arrays."""

    file: str
    bytes: int
    sha256: str
    arrays: tuple[str, ...]


@dataclass(frozen=True)
class Header:
    """artifact.json: which state is the current one."""

    generation: int
    facts: dict[str, Any]
    files: dict[str, FileRecord]
    ledger_bytes: int = 0
    ledger_entries: int = 0
    ledger_head: str = START
    package_version: str = __version__


def _canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"facts can hold JSON values only, got {type(value).__name__}")


def _dump(header: Header) -> bytes:
    content: dict[str, Any] = {
        "format": FORMAT, "format_version": FORMAT_VERSION, "package_version": header.package_version,
        "generation": header.generation, "facts": header.facts, "files": {k: vars(v) for k, v in header.files.items()},
        "ledger": {"bytes": header.ledger_bytes, "entries": header.ledger_entries, "head": header.ledger_head},
    }  # fmt: skip
    content["sha256"] = hashlib.sha256(_canonical(content).encode()).hexdigest()
    return _canonical(content).encode() + b"\n"


def read_header(directory: Path | str) -> Header:
    """artifact.json, checked; DataError when it is missing, damaged, foreign or of another version."""
    directory = Path(directory)
    path = directory / _HEADER
    try:
        text = _read(path)
    except OSError as error:
        raise _explain(directory, error) from error
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise KeyError("format")
        version = content["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path} is damaged or not an artifact of this program") from None
    if version != FORMAT_VERSION:
        raise DataError(
            f"{directory} was made by format version {version}, this program reads {FORMAT_VERSION}: "
            "use the program that made it, or fit again"
        )
    try:
        if (
            hashlib.sha256(_canonical({k: v for k, v in content.items() if k != "sha256"}).encode()).hexdigest()
            != (content["sha256"])
        ):
            raise ValueError("checksum")
        return _checked(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{path} is damaged (wrong checksum): restore it from a copy or fit again") from None


def _checked(content: dict[str, Any]) -> Header:
    """The header, or ValueError: no name, size or hash is taken as it comes, whatever the checksum says."""
    files = {}
    for group, facts in content["files"].items():
        found = _STATE.fullmatch(facts["file"])
        if not found or found[2] != group or not _DIGEST.fullmatch(facts["sha256"]):
            raise ValueError("file")
        files[group] = FileRecord(facts["file"], _count(facts["bytes"]), facts["sha256"], tuple(facts["arrays"]))
    ledger = content["ledger"]
    if not _DIGEST.fullmatch(ledger["head"]) or not isinstance(content["facts"], dict):
        raise ValueError("ledger")
    return Header(
        _count(content["generation"]), content["facts"], files, _count(ledger["bytes"]), _count(ledger["entries"]),
        ledger["head"], str(content["package_version"]),
    )  # fmt: skip


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a count")
    return value


# Load and save -------------------------------------------------------------------------------------------------------


def load_artifact(
    directory: Path | str, *, memory_map: bool = False, verify: bool = True
) -> tuple[dict[str, Any], Arrays]:
    """Facts and arrays of the saved state; the facts also hold its `generation` (give it to `save_artifact` as base).

    memory_map: arrays are views of the mapped files, private to this process (writing to them changes no file).
    verify: check all checksums and the ledger's chain; False with memory_map reads only the pages that are used.
    """
    directory = Path(directory)
    header = read_header(directory)
    while True:
        try:
            arrays: Arrays = {}
            for record in header.files.values():
                arrays |= _load_arrays(directory / record.file, record, memory_map, verify)
            if verify:
                _ = _ledger_of(directory, header).entries  # reading them checks the chain
            break
        except FileNotFoundError as error:
            tried, header = header, read_header(directory)
            if header.generation == tried.generation:  # else another process saved a new state meanwhile
                raise DataError(f"{error.filename} is missing: restore it from a copy or fit again") from None
        except OSError as error:
            raise _explain(directory, error) from error
    with contextlib.suppress(DataError, OSError):  # somebody else is at work, or we may only read
        if _leftovers(directory, header):
            with locked(directory, timeout=0):
                _clean(directory)
    return {**header.facts, "generation": header.generation}, arrays


def read_ledger(directory: Path | str) -> Ledger:
    """The committed part of the ledger; `.verify()` checks it."""
    try:
        return _ledger_of(Path(directory), read_header(directory))
    except OSError as error:
        raise _explain(Path(directory), error) from error


def _ledger_of(directory: Path, header: Header) -> Ledger:
    path = directory / _LEDGER
    data = _read(path, header.ledger_bytes) if header.ledger_bytes else b""
    if len(data) < header.ledger_bytes:
        raise DataError(f"{path} was cut off: {len(data)} of {header.ledger_bytes} bytes are left")
    return Ledger(data, header.ledger_head, str(path))


def save_artifact(
    directory: Path | str,
    facts: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    *,
    groups: Mapping[str, Collection[str]] | None = None,
    keep: Collection[str] = (),
    ledger_entry: Entry | list[Entry] | None = None,
    base: int | None = None,
    timeout: float = 60.0,
) -> int:
    """Make a state durable, all of it or nothing, and delete the one before; returns the new generation.

    facts: JSON values. groups: file name -> names of its arrays; the rest goes to the file "main". keep: groups whose
    present file stays as it is (its arrays are not given again). ledger_entry: what `ledger.entry` made, one or more.
    base: the generation this state was derived from; a directory that has moved on is refused. None overwrites.
    """
    directory = Path(directory)
    parts = _grouped(arrays, groups or {}, keep)
    plain = json.loads(_canonical({k: v for k, v in facts.items() if k != "generation"}))
    entries = ledger_entry if isinstance(ledger_entry, list) else [ledger_entry] if ledger_entry is not None else []
    try:
        _make_directory(directory)
        with locked(directory, timeout):
            return _save(directory, plain, parts, keep, entries, base)
    except OSError as error:
        raise _explain(directory, error) from error


def _grouped(arrays: Mapping[str, Any], groups: Mapping[str, Collection[str]], keep: Collection[str]) -> dict[str, Any]:
    """Arrays by file, with everything checked that can be checked before the disk is touched."""
    if isinstance(keep, str):
        raise TypeError("keep must be a list of group names")
    for name, array in arrays.items():
        if not _ARRAY.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of an array")
        if not isinstance(array, np.ndarray) or array.dtype.newbyteorder("<") not in _CODES:
            raise TypeError(f"array {name} cannot be saved: {getattr(array, 'dtype', type(array).__name__)}")
    named = [name for names in groups.values() for name in names]
    if len(set(named)) != len(named) or not set(named) <= set(arrays):
        raise ValueError("groups must name arrays that are given, each once")
    rest = [name for name in arrays if name not in set(named)]
    parts = {group: list(names) for group, names in groups.items()}
    if rest:
        parts["main"] = parts.get("main", []) + rest
    for group in (*parts, *keep):
        if not _GROUP.fullmatch(group):
            raise ValueError(f"{group!r} cannot be the name of a group: use a-z, 0-9 and _")
    if set(keep) & set(parts):
        raise ValueError(f"a group is either kept or given: {', '.join(sorted(set(keep) & set(parts)))}")
    return {group: {name: arrays[name] for name in names} for group, names in parts.items()}


def _save(
    directory: Path, facts: dict[str, Any], parts: dict[str, Any], keep: Collection[str], entries: list[Entry],
    base: int | None,
) -> int:  # fmt: skip
    old = _current(directory)
    if base is not None and old.generation != base:
        raise DataError(f"{directory} was changed by someone else since it was loaded: load it again and repeat")
    files = {group: _kept(directory, old, group) for group in keep}
    given = [name for part in parts.values() for name in part]
    if set(given) & {name for record in files.values() for name in record.arrays}:
        raise ValueError("an array is given that is also in a kept group")
    if _size(directory / _LEDGER) < old.ledger_bytes:
        raise DataError(f"{directory / _LEDGER} was cut off: restore it from a copy")
    _clean(directory)
    generation = old.generation + 1
    lines, head = chain(entries, old.ledger_entries, old.ledger_head)
    added = b"".join(lines)
    try:
        for group, part in parts.items():
            name = f"state-{generation}-{group}.safetensors"
            size, digest = _write_file(directory / name, _encode(part))
            files[group] = FileRecord(name, size, digest, tuple(sorted(part)))
        if added:
            _rewrite_tail(directory / _LEDGER, old.ledger_bytes, added)
        counts = (old.ledger_bytes + len(added), old.ledger_entries + len(lines))
        _write_file(directory / _NEW_HEADER, [_dump(Header(generation, facts, files, *counts, head))], os.O_TRUNC)
        _sync_directory(directory)
        os.replace(directory / _NEW_HEADER, directory / _HEADER)
    except BaseException:
        with contextlib.suppress(DataError, OSError):
            _clean(directory)
        raise
    try:
        _sync_directory(directory)
        _clean(directory)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise DataError(f"{directory} is saved, but files of its old state may be left there: {why}") from error
    return generation


def _current(directory: Path) -> Header:
    """The present header, or one of an empty artifact when the directory is new."""
    if (directory / _HEADER).exists():
        return read_header(directory)
    for name in os.listdir(directory):
        if not _STATE.fullmatch(name) and name not in (_NEW_HEADER, _LEDGER, _LOCK):
            raise DataError(f"{directory} holds other files ({name}) and no artifact: choose a new or empty directory")
    return Header(0, {}, {})


def _kept(directory: Path, old: Header, group: str) -> FileRecord:
    if group not in old.files:
        raise ValueError(f"there is no group {group} to keep in {directory}")
    record = old.files[group]
    path = directory / record.file
    if _size(path) != record.bytes:
        raise DataError(f"{path} is missing or damaged: restore it from a copy or fit again")
    return record


def _leftovers(directory: Path, header: Header) -> list[str]:
    """Files of ours that the header does not name, and the ledger when it is longer than committed."""
    used = {record.file for record in header.files.values()}
    found = [name for name in os.listdir(directory) if name == _NEW_HEADER or _STATE.fullmatch(name)]
    found = [name for name in found if name not in used]
    return found + [_LEDGER] * (_size(directory / _LEDGER) > header.ledger_bytes)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _clean(directory: Path) -> None:
    """Delete what an earlier state or a killed save left behind; the lock must be held."""
    header = _current(directory)
    found = _leftovers(directory, header)
    if found:
        _sync_directory(directory)  # a killed save may have replaced the header just now: no deletion may overtake that
    for name in found:
        if name == _LEDGER:
            _rewrite_tail(directory / _LEDGER, header.ledger_bytes, b"")
        else:
            os.unlink(directory / name)
    if found:
        _sync_directory(directory)


def check_artifact(directory: Path | str) -> Ledger:
    """Check everything: checksums, the ledger, and that the saved theta is the one of the ledger's last line."""
    _, arrays = load_artifact(directory)
    ledger = read_ledger(directory)
    ledger.verify()
    if len(ledger) and "theta" in arrays and ledger.entries[-1].get("theta_after") != theta_digest(arrays["theta"]):
        raise DataError(f"the parameters in {directory} are not those of the last line of its ledger")
    return ledger
