"""Streaming counts and cells against the in-memory kernels, rows by number, damage, and stopping early."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from dataset_files import flip, full_disk, make_file, small_chunks

from l2ul_fast.datasets.file import hdf5
from l2ul_fast.datasets.file.gather import RowReader
from l2ul_fast.datasets.file.hdf5 import open_dataset
from l2ul_fast.datasets.stream import stream
from l2ul_fast.datasets.stream.cellstore import CellStore, stream_cells
from l2ul_fast.datasets.stream.stream import Shards, blocks, sample_partitions, stream_counts
from l2ul_fast.errors import DataError
from l2ul_kernels import Partitions, assign_cells, cell_counts, pack_cells, threads


@pytest.fixture(name="small_chunks")
def _small_chunks(monkeypatch):
    small_chunks(monkeypatch)


@pytest.mark.parametrize("codec", ["none", "bitshuffle-lz4", "zstd"])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_counts_equal_the_in_memory_kernel(tmp_path, small_chunks, codec, n):
    X, y = make_file(tmp_path / "a.h5", n, codec=codec, classes=(2, 7))
    partitions = Partitions.sample(np.random.default_rng(1).standard_normal((50, 5)).astype(np.float32) + 50, 7, 4, 0)
    np.testing.assert_array_equal(stream_counts(tmp_path / "a.h5", partitions), cell_counts(X, partitions))
    by_class = stream_counts(tmp_path / "a.h5", partitions, by_class=True)
    np.testing.assert_array_equal(by_class, cell_counts(X, partitions, (y == 7).astype(int), 2))
    with open_dataset(tmp_path / "a.h5") as data:
        train = data.train_mask()
    for part, mask in (("train", train), ("test", ~train)):
        found = stream_counts(tmp_path / "a.h5", partitions, part=part)
        np.testing.assert_array_equal(found, cell_counts(X[mask], partitions))
        found = stream_counts(tmp_path / "a.h5", partitions, by_class=True, part=part)
        np.testing.assert_array_equal(found, cell_counts(X[mask], partitions, (y[mask] == 7).astype(int), 2))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_one_thread_counts_the_same_with_and_without_reading_ahead(tmp_path, small_chunks, codec, monkeypatch):
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    (X, y), (more_X, more_y) = make_file(paths[0], 130, codec=codec), make_file(paths[1], 300, seed=1, codec=codec)
    X, y = np.concatenate([X, more_X]), np.concatenate([y, more_y])
    partitions = Partitions.sample(X, 7, 4, 0)
    with threads(1):
        for span, rows in ((None, slice(None)), ((64, 194), slice(64, 194)), ((0, 0), slice(0))):
            for ahead in (True, False):
                found = stream_counts(paths, partitions, by_class=True, span=span, ahead=ahead)
                np.testing.assert_array_equal(found, cell_counts(X[rows], partitions, y[rows], 2))
        monkeypatch.setattr(threading, "Thread", None)  # without reading ahead there is no other thread
        np.testing.assert_array_equal(stream_counts(paths, partitions, ahead=False), cell_counts(X, partitions))
        with pytest.raises(TypeError):
            stream_counts(paths, partitions, ahead=True)


def test_classes_keep_the_order_of_the_file(tmp_path, small_chunks):
    X, y = make_file(tmp_path / "a.h5", classes=(7, 2, 5))
    partitions = sample_partitions(tmp_path / "a.h5", 4, 3, random_state=0)
    expected = np.stack([cell_counts(X[y == c], partitions) for c in (7, 2, 5)])
    np.testing.assert_array_equal(stream_counts(tmp_path / "a.h5", partitions, by_class=True), expected)


def test_shards_count_like_one_file(tmp_path, small_chunks):
    made = [make_file(tmp_path / f"s{i}.h5", n, seed=i) for i, n in enumerate((100, 1, 333))]
    X, y = np.concatenate([m[0] for m in made]), np.concatenate([m[1] for m in made])
    pattern = str(tmp_path / "s*.h5")
    partitions = sample_partitions(pattern, 9, 4, random_state=0)
    with Shards(pattern) as shards:
        np.testing.assert_allclose(shards.mean, X.mean(axis=0, dtype=float), rtol=1e-6)
        np.testing.assert_allclose(shards.scale, X.std(axis=0, dtype=float), rtol=1e-5)
        np.testing.assert_array_equal(stream_counts(shards, partitions, True), cell_counts(X, partitions, y, 2))
        ids = np.array([433, 0, 100, 99, 101, 0])
        np.testing.assert_array_equal(shards.take_X(ids), X[ids])
        for some in ([], [0], [99, 100, 101], [100, 100], [0, 433], np.arange(434), np.arange(101, 434)):  # ascending
            np.testing.assert_array_equal(shards.take_X(np.array(some, np.int64)), X[np.array(some, np.int64)])
        with pytest.raises(DataError, match="row 434"):
            shards.take_X(np.array([434]))
    paths = sorted(tmp_path.glob("s*.h5"))
    with pytest.raises(DataError, match="twice"):
        Shards([*paths, tmp_path / "." / "s0.h5"])
    with pytest.raises(DataError, match="no file matches"):
        Shards(str(tmp_path / "nothing*.h5"))
    with pytest.raises(DataError, match="no dataset file"):
        Shards([])
    make_file(tmp_path / "other.h5", d=4)
    with pytest.raises(DataError, match="other columns"):
        Shards([paths[0], tmp_path / "other.h5"])


def test_seeds_are_standardised_rows_of_the_file(tmp_path, small_chunks):
    X, _ = make_file(tmp_path / "a.h5")
    partitions = sample_partitions(tmp_path / "a.h5", 6, 5, random_state=3)
    Z = (X - X.mean(axis=0, dtype=float)) / X.std(axis=0, dtype=float)
    np.testing.assert_allclose(partitions.seeds, Z[partitions.row_ids], atol=1e-4)
    from_memory = Partitions.from_seeds(partitions.seeds)
    agree = assign_cells(X, partitions) == assign_cells(Z, from_memory)
    assert agree.mean() > 0.9999
    raw = sample_partitions(tmp_path / "a.h5", 6, 5, random_state=3, standardise=False)
    np.testing.assert_array_equal(raw.seeds, X[partitions.row_ids])


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_by_number(tmp_path, small_chunks, codec):
    X, _ = make_file(tmp_path / "a.h5", codec=codec)
    with open_dataset(tmp_path / "a.h5") as data:
        reader = RowReader(data.path, data.X)
        ids = np.random.default_rng(0).integers(0, 1000, 300)
        np.testing.assert_array_equal(reader.take(ids), X[ids])
        assert reader.take([]).shape == (0, 5)
        for bad in (-1, 1000):
            with pytest.raises(DataError, match=f"row {bad} is not among the 1000"):
                reader.take([5, bad])


def test_damage_is_found_not_used(tmp_path, small_chunks):
    make_file(tmp_path / "a.h5")
    partitions = sample_partitions(tmp_path / "a.h5", 6, 5, random_state=3)
    store = stream_cells(tmp_path / "a.h5", partitions)
    flip(tmp_path / "a.h5", 130)
    with pytest.raises(DataError, match=r"damaged in rows 128\.\.191"):
        stream_counts(tmp_path / "a.h5", partitions)
    with open_dataset(tmp_path / "a.h5") as data:
        reader = RowReader(data.path, data.X)
        assert reader.take([127, 192]).shape == (2, 5)
        with pytest.raises(DataError, match=r"damaged in rows 128\.\.191"):
            reader.take([0, 190])
    flip(store, 0, "cells")
    with CellStore(store) as cells, pytest.raises(DataError, match="damaged"):
        cells.packed([0])
    assert threading.active_count() == 1 or not any(t.name == "l2ul-reader" for t in threading.enumerate())


def test_stored_cells_are_the_cells(tmp_path, small_chunks):
    X, _ = make_file(tmp_path / "a.h5")
    partitions = sample_partitions(tmp_path / "a.h5", 11, 5, random_state=3)
    seen = []
    path = stream_cells(tmp_path / "a.h5", partitions, progress=lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "a.cells.h5"
    assert seen[-1] == (1000, 1000)
    expected = assign_cells(X, partitions)
    with CellStore(path, tmp_path / "a.h5") as store:
        assert (store.n, store.t, store.psi, store.label) == (1000, 11, 5, "stand-in")
        assert store.partitions.same_as(partitions)
        ids = np.array([999, 3, 3, 500])
        np.testing.assert_array_equal(store.cells(ids), expected[ids])
        np.testing.assert_array_equal(store.packed(ids), pack_cells(expected, 5)[ids])
    make_file(tmp_path / "b.h5", seed=1)
    with pytest.raises(DataError, match="other data"):
        CellStore(path, tmp_path / "b.h5")
    with pytest.raises(DataError, match="no cell store"):
        CellStore(tmp_path / "none.h5")
    with pytest.raises(DataError, match="not a cell store"):
        CellStore(tmp_path / "a.h5")
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"cannot be used|truncated"):
        CellStore(path)


def test_stopping_early_leaves_no_thread_and_no_half_file(tmp_path, small_chunks):
    make_file(tmp_path / "a.h5", 3000)
    with Shards(tmp_path / "a.h5") as shards:
        for first, _, _ in blocks(shards):
            if first >= 64:
                break
    assert not any(t.name == "l2ul-reader" for t in threading.enumerate())
    partitions = sample_partitions(tmp_path / "a.h5", 3, 4, random_state=0)

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream_cells(tmp_path / "a.h5", partitions, progress=interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]
    assert not any(t.name == "l2ul-reader" for t in threading.enumerate())


def test_a_killed_or_full_cell_store_leaves_the_old_one(tmp_path):
    make_file(tmp_path / "a.h5", 20_000)
    partitions = sample_partitions(tmp_path / "a.h5", 100, 4, random_state=0)
    path = stream_cells(tmp_path / "a.h5", partitions)
    old = path.read_bytes()
    for limit in (0, 3000, 100_000, len(old) - 300):  # HDF5 must neither crash nor leave anything
        with full_disk(limit), pytest.raises(DataError, match="no space left"):
            stream_cells(tmp_path / "a.h5", partitions)
        assert path.read_bytes() == old
        assert sorted(os.listdir(tmp_path)) == ["a.cells.h5", "a.h5"]
    code = """
import os, signal
from l2ul_fast.datasets.stream.cellstore import stream_cells
from l2ul_fast.datasets.stream.stream import sample_partitions
partitions = sample_partitions("a.h5", 100, 4, random_state=1)
stream_cells("a.h5", partitions, progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == -signal.SIGKILL
    assert path.read_bytes() == old
    stream_cells(tmp_path / "a.h5", partitions)  # a rerun works and clears what the killed one left
    assert sorted(os.listdir(tmp_path)) == ["a.cells.h5", "a.h5"]


def test_the_ring_bounds_what_is_read_ahead(tmp_path, small_chunks, monkeypatch):
    make_file(tmp_path / "a.h5", 3000)
    read = []
    original = hdf5.read_at
    monkeypatch.setattr(hdf5, "read_at", lambda *a: (read.append(a[1]), original(*a))[1])
    with Shards(tmp_path / "a.h5") as shards:
        iterator = blocks(shards)
        next(iterator)
        time.sleep(0.3)
        assert 1 <= len(read) <= stream.RING
        iterator.close()
