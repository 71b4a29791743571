"""Changes of files that survive a crash, and the lock of a directory. Nothing else writes to an artifact's directory.

Each function is a thin cover of os.*, so that tests can stop the program at every one (tests/support/faults.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from l2ul_fast.errors import DataError

LOCK = ".lock"
#: A compressing file system may store zeros in so much less space; no file of ours has holes.
MOST_PER_BYTE = 1024
PIECE = 4 << 20  # bytes hashed and written at a time: hashed while still in the cache


def open_file(path: Path, flags: int) -> int:
    """A descriptor of a regular file; never follows a link that somebody put in its place, never waits on a pipe."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if fd <= 2:  # a standard stream was closed: what somebody prints there must not go into our file
        low, fd = fd, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(low)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DataError(f"{path} is not a file")
    return fd


def _write(fd: int, data: Any) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:PIECE]) :]


def write_file(path: Path, parts: Iterable[Any], flags: int = os.O_EXCL, digest: Any = None) -> tuple[int, str]:
    """A new file on disk, synced: its size and SHA-256 (or what a `digest` like those of hashlib makes of it)."""
    fd = open_file(path, os.O_WRONLY | os.O_CREAT | flags)
    digest = hashlib.sha256() if digest is None else digest
    try:
        size = 0
        for part in parts:
            for start in range(0, len(part), PIECE):
                digest.update(part[start : start + PIECE])
                _write(fd, part[start : start + PIECE])
            size += len(part)
        os.fsync(fd)
        return size, digest.hexdigest()
    finally:
        os.close(fd)


def rewrite_tail(path: Path, committed: int, data: bytes) -> None:
    """Cut the file at `committed` bytes and append `data`, synced."""
    fd = open_file(path, os.O_WRONLY | os.O_CREAT)
    try:
        if os.fstat(fd).st_size > committed:
            os.ftruncate(fd, committed)
        os.lseek(fd, committed, os.SEEK_SET)
        _write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def create(path: Path) -> None:
    """An empty file, if there is none."""
    os.close(open_file(path, os.O_WRONLY | os.O_CREAT))


def overwrite(path: Path, pieces: Iterable[tuple[int, bytes]], *, sync: bool = True) -> None:
    """Replace bytes of a file in place: (position, bytes)."""
    fd = open_file(path, os.O_WRONLY)
    try:
        for start, data in pieces:
            view = memoryview(data)
            while view:
                done = os.pwrite(fd, view[:PIECE], start)
                view, start = view[done:], start + done
        if sync:
            os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    if path.is_dir():
        return
    make_directory(path.parent)
    with contextlib.suppress(FileExistsError):  # another process was faster; a file of this name fails later
        os.mkdir(path)
    sync_directory(path.parent)


def replace(source: Path, target: Path) -> None:
    """Give a file another's name: whoever opens the name finds the old file or the new one."""
    os.replace(source, target)


def delete(path: Path) -> None:
    os.unlink(path)


def read_file(path: Path, size: int | None = None) -> bytes:
    """The first `size` bytes of a file (all of it when None), or fewer when it is shorter."""
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        there = stored_size(path, file.fileno())
        return file.read(there if size is None else min(size, there))


def stored_size(path: Path, fd: int) -> int:
    """Bytes of an open file; DataError where nearly all of it is a hole: reading it would fill memory with nothing."""
    facts = os.fstat(fd)
    if facts.st_size > MOST_PER_BYTE * (512 * facts.st_blocks + PIECE):
        raise DataError(
            f"{path} claims {facts.st_size} bytes and holds {512 * facts.st_blocks}: restore it from a copy"
        )
    return facts.st_size


_held: dict[tuple[int, ...], int] = {}  # lock file, process and thread -> how often it is held


@contextlib.contextmanager
def locked(directory: Path | str, timeout: float = 60.0) -> Iterator[None]:
    """Keep other writers out while loading, changing and saving an artifact; may be nested.

    Waits up to `timeout` seconds for another process or thread, then DataError. Readers are never kept out.
    """
    directory = Path(directory)
    try:
        fd = open_file(directory / LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise explain(directory, error) from error
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


def explain(directory: Path, error: OSError) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DataError(f"no space left to write {directory}: free some; what was saved there before is unchanged")
    if error.errno == errno.ENOENT:
        return DataError(f"there is no artifact {directory}: fit one first, or check the path")
    return DataError(f"cannot use {error.filename or directory}: {os.strerror(error.errno or 0)}")
