"""Files that appear whole or not at all: a temporary name, fsync, rename; and what went wrong, in one sentence."""

import errno
import os
import re
import secrets
import socket
from pathlib import Path

from l2ul_fast.errors import DataError


def temp_path(path: Path) -> Path:
    """A new temporary name beside `path`, after removing what killed processes left there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path)
    return path.with_name(f"{temp_prefix(path)}{os.getpid()}.{secrets.token_hex(4)}.tmp")


def publish(temp: Path, path: Path) -> None:
    """Give the complete file `temp` its final name, durably."""
    _fsync(temp)
    os.replace(temp, path)
    _fsync(path.parent)


def write_atomic(path: Path, data: str | bytes, sync: bool = True) -> None:
    """Write a whole file, or leave the old one; `sync` makes sure that it survives a loss of power."""
    temp = temp_path(path)
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            view = memoryview(data.encode() if isinstance(data, str) else data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        if sync:
            publish(temp, path)
        else:
            os.replace(temp, path)
    finally:
        temp.unlink(missing_ok=True)


def explain(path: Path, error: Exception) -> DataError:
    """Why `path` could not be written, for the user."""
    found = re.search(r"errno = (\d+)", str(error))  # h5py does not always set error.errno
    number = int(found[1]) if found else getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return DataError(f"no space left to write {path}: free some space or choose another --data-dir")
    return DataError(f"cannot write {path}: {os.strerror(number) if number else str(error).splitlines()[0]}")


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temp_prefix(final: Path) -> str:
    """Start of the temporary names of `final` used by processes of this machine; pid, token and .tmp follow."""
    return f".{final.name}.{socket.gethostname()}."


def remove_stale(final: Path) -> None:
    """Delete temporary files of `final` that a process of this machine left behind when it was killed."""
    pattern = re.compile(re.escape(temp_prefix(final)) + r"(\d+)\.[0-9a-f]+\.tmp")
    for path in final.parent.glob(f".{final.name}.*.tmp"):
        found = pattern.fullmatch(path.name)
        if found and not _alive(int(found[1])):
            path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 only asks whether the process exists
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
