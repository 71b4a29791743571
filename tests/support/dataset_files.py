"""Small dataset files, damage to them, and a disk that is full."""

import contextlib
import resource

import h5py
import numpy as np

from l2ul_fast.datasets.file.hdf5 import DatasetWriter, open_dataset

STANDIN = "standin:1:0"


def make_file(path, n=1000, d=5, seed=0, codec="none", classes=(0, 1)):
    """Write n rows whose columns have other scales and means; returns X (n, d) and y (n,), which has every class."""
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((n, d)) * [1, 10, 100, 1, 0.01][:d] + 50).astype(np.float32)
    y = rng.choice(classes, n)
    y[: len(classes)] = classes[:n]
    with DatasetWriter(path, name="magic", source=STANDIN, d=d, classes=classes, codec=codec) as writer:
        writer.append(X, y)
    return X, y


def small_chunks(monkeypatch):
    """Let chunks hold 64 rows, so that small files have many."""
    monkeypatch.setattr("l2ul_fast.datasets.file.writer.chunk_rows", lambda d: 64)


def flip(path, row, name="X"):
    """Change one bit in the middle of the stored chunk that holds `row`."""
    with h5py.File(path) as file:
        start = row // file[name].chunks[0] * file[name].chunks[0]
        info = file[name].id.get_chunk_info_by_coord((start,) + (0,) * (file[name].ndim - 1))
    with open(path, "r+b") as file:
        file.seek(info.byte_offset + info.size // 2)
        byte = file.read(1)[0]
        file.seek(info.byte_offset + info.size // 2)
        file.write(bytes([byte ^ 0x10]))


def edit(path, **attrs):
    """Set attributes of a file; None deletes one."""
    with h5py.File(path, "r+") as file:
        for key, value in attrs.items():
            if value is None:
                del file.attrs[key]
            else:
                file.attrs[key] = value


def rows_of(path):
    """All rows of a dataset file: X and y."""
    with open_dataset(path) as data:
        return data.read(0, data.n)


@contextlib.contextmanager
def full_disk(size):
    """Let every write beyond `size` bytes of a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
