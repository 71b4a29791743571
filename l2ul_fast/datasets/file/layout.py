"""Names, paths and sizes of the dataset file (see hdf5.py for the format itself)."""

import os
import re
import socket
from pathlib import Path

from l2ul_fast.errors import DataError

FORMAT = "l2ul-dataset"
FORMAT_VERSION = 1
CODECS = ("none", "bitshuffle-lz4", "zstd")
SUFFIXES = {"real": ".h5", "subset": ".subset.h5", "stand-in": ".standin.h5"}  # by label
_LABELS = {"real": "real", "subset": "subset", "standin": "stand-in"}  # by the first word of the source attribute
_SOURCE = re.compile(r"(real|subset):[0-9a-f]{64}|standin:[^:]+:\d+")
_CHUNK_BYTES = 4 << 20  # largest X chunk; the contract is 1-8 MB


def default_data_dir() -> Path:
    """Folder of the HDF5 files: L2UL_DATA_DIR, or data/ in the current folder."""
    return Path(os.environ.get("L2UL_DATA_DIR") or "data")


def dataset_path(data_dir: str | os.PathLike[str], name: str, label: str = "real") -> Path:
    """Where the file of dataset `name` lives; label is "real", "subset" or "stand-in"."""
    return Path(data_dir) / (name + SUFFIXES[label])


def chunk_rows(d: int) -> int:
    """Rows per chunk: the largest power of two that keeps a chunk of X within 4 MiB."""
    return 1 << max(0, (_CHUNK_BYTES // (4 * d)).bit_length() - 1)


def source_label(source: str) -> str:
    """What a source attribute stands for: "real", "subset" or "stand-in"."""
    if not _SOURCE.fullmatch(source):
        raise DataError(f"source {source!r} is none of real:<sha256>, subset:<sha256>, standin:<version>:<seed>")
    return _LABELS[source.split(":", 1)[0]]


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
