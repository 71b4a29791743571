"""Files that appear whole or not at all: a temporary name, fsync, rename; and what went wrong, in one sentence."""

import errno
import os
import re
import secrets
from pathlib import Path

from l2ul_fast.datasets.file.layout import remove_stale, temp_prefix
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
