"""Names, paths and sizes of the dataset file (see hdf5.py for the format itself)."""

import os
import re
from pathlib import Path

from l2ul_fast.errors import DataError

FORMAT = "l2ul-dataset"
FORMAT_VERSION = 1
CODECS = ("none", "bitshuffle-lz4", "zstd")
SUFFIXES = {"real": ".h5", "subset": ".subset.h5", "stand-in": ".standin.h5", "own": ".own.h5"}  # by label
_SOURCE = re.compile(r"(real|subset|own):[0-9a-f]{64}|standin:[^:]+:\d+")
_CHUNK_BYTES = 4 << 20  # largest X chunk; the contract is 1-8 MB


def default_data_dir() -> Path:
    """Folder of the HDF5 files: L2UL_DATA_DIR, or data/ in the current folder."""
    return Path(os.environ.get("L2UL_DATA_DIR") or "data")


def dataset_path(data_dir: str | os.PathLike[str], name: str, label: str = "real") -> Path:
    """Where the file of dataset `name` lives; label is "real", "subset", "stand-in" or "own"."""
    return Path(data_dir) / (name + SUFFIXES[label])


def chunk_rows(d: int) -> int:
    """Rows per chunk: the largest power of two that keeps a chunk of X within 4 MiB."""
    return 1 << max(0, (_CHUNK_BYTES // (4 * d)).bit_length() - 1)


def source_label(source: str) -> str:
    """What a source attribute stands for: "real", "subset", "stand-in" or "own"."""
    if not _SOURCE.fullmatch(source):
        raise DataError(
            f"source {source!r} is none of real:<sha256>, subset:<sha256>, own:<sha256>, standin:<version>:<seed>"
        )
    return source.partition(":")[0].replace("standin", "stand-in")
