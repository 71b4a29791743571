"""Our Fletcher-32 against HDF5's, and chunks written directly against HDF5's reader."""

import h5py
import numpy as np
import pytest
from dataset_files import flip
from hypothesis import given, settings
from hypothesis import strategies as st

from l2ul_fast.datasets.file.chunks import chunk_buffer, chunk_offsets, fletcher32, is_plain, read_at, write_chunk
from l2ul_fast.errors import DataError


def hdf5_checksum(data: np.ndarray) -> int:
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        dataset = file.create_dataset("x", data=data, chunks=data.shape, fletcher32=True)
        return int.from_bytes(dataset.id.read_direct_chunk((0,))[1][-4:], "little")


@settings(deadline=None)
@given(st.integers(1, 2000), st.integers(0, 2**32), st.sampled_from(["random", "sparse", "0x00", "0xff"]))
def test_checksum_equals_hdf5(words, seed, kind):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, 2 * words, dtype=np.uint8)
    if kind == "sparse":
        data[rng.random(data.size) < 0.99] = 0
    elif kind != "random":
        data[:] = int(kind, 16)
    assert fletcher32(data) == hdf5_checksum(data)


def test_checksum_of_many_blocks():
    data = np.random.default_rng(0).integers(0, 256, 1_000_002, dtype=np.uint8)
    assert fletcher32(data) == hdf5_checksum(data)
    assert fletcher32(np.full(500_000, 255, np.uint8)) == hdf5_checksum(np.full(500_000, 255, np.uint8))


def test_chunks_are_ordinary_hdf5(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    raw, rows = chunk_buffer(8, 3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("X", (20, 3), np.float32, chunks=(8, 3), fletcher32=True)
        assert is_plain(dataset)
        assert not is_plain(file.create_dataset("Z", (20, 3), np.float32, chunks=(8, 3), compression="gzip"))
        for start in (0, 8, 16):
            rows[:] = 0
            rows[: len(X[start : start + 8])] = X[start : start + 8]
            write_chunk(dataset, start, raw)
    with h5py.File(tmp_path / "a.h5", "r") as file:
        np.testing.assert_array_equal(file["X"][:], X)  # HDF5 checks the sums itself
        place = int(chunk_offsets(file["X"])[1])
    with open(tmp_path / "a.h5", "rb") as file:
        read_at(file.fileno(), place, raw, 8)
        np.testing.assert_array_equal(rows, X[8:16])
    flip(tmp_path / "a.h5", 8)
    with open(tmp_path / "a.h5", "rb") as file, pytest.raises(OSError, match="wrong checksum in the chunk at row 8"):
        read_at(file.fileno(), place, raw, 8)
    with h5py.File(tmp_path / "a.h5", "r+") as file, pytest.raises(DataError, match="1 of its chunks were never"):
        chunk_offsets(file.create_dataset("W", (20, 3), np.float32, chunks=(20, 3), fletcher32=True))
