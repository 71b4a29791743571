"""The dataset file: round trip, statistics, split, atomic writing, and every kind of damage."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from dataset_files import STANDIN, edit, flip, full_disk
from hypothesis import given, settings
from hypothesis import strategies as st

from l2ul_fast.datasets.file import layout
from l2ul_fast.datasets.file.hdf5 import CODECS, DatasetWriter, chunk_rows, open_dataset, verify
from l2ul_fast.datasets.split import count_train, train_mask
from l2ul_fast.datasets.stream import stream_counts
from l2ul_fast.errors import DataError
from l2ul_fast.files import temp_prefix
from l2ul_fast.tables import FileTable
from l2ul_kernels import Partitions


def write(path, X, y, *, pieces=(10**9,), source=STANDIN, classes=(0, 1), **options):
    with DatasetWriter(path, name="toy", source=source, d=X.shape[1], classes=classes, **options) as writer:
        start, k = 0, 0
        while start < len(X):
            stop = start + pieces[k % len(pieces)]
            writer.append(X[start:stop], y[start:stop])
            start, k = stop, k + 1
    return path


@pytest.fixture
def toy():
    rng = np.random.default_rng(0)
    return rng.normal(size=(1000, 5)).astype(np.float32), rng.integers(0, 2, 1000)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(layout, "_CHUNK_BYTES", 4096)  # 128 rows of 5 columns, so that small files have many chunks


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("pieces", [(10**9,), (1, 700, 3), (128,), (127, 129)])
def test_round_trip(tmp_path, toy, small_chunks, codec, pieces):
    X, y = toy
    path = write(tmp_path / "toy.h5", X, y, pieces=pieces, codec=codec, n=1000, extra_attrs={"note": "hello"})
    with open_dataset(path) as data:
        assert (data.n, data.d, data.classes, data.name, data.label) == (1000, 5, [0, 1], "toy", "stand-in")
        assert data.class_counts == [int((y == 0).sum()), int((y == 1).sum())]
        assert data.X.chunks == (128, 5)
        assert data.X.fletcher32
        assert data.y.dtype == np.uint8
        assert data.attrs["note"] == "hello"
        for start, stop in [(0, 1000), (0, 0), (127, 129), (999, 1000), (256, 384)]:
            got_X, got_y = data.read(start, stop)
            np.testing.assert_array_equal(got_X, X[start:stop])
            np.testing.assert_array_equal(got_y, y[start:stop])
        with pytest.raises(DataError, match=r"rows 5\.\.1001 are not within"):
            data.read(5, 1001)
    assert verify(path) == []
    assert os.listdir(tmp_path) == ["toy.h5"]


def test_packed_files_are_read_by_a_process_that_packs_none(tmp_path, toy, run_python):
    for codec in CODECS:
        write(tmp_path / f"{codec}.h5", *toy, codec=codec)
    code = "from l2ul_fast.datasets import CODECS, verify; print([verify(f'{codec}.h5') for codec in CODECS])"
    assert run_python(code) == "[[], [], []]\n"


def test_chunks_are_within_the_contract():
    for d in (3, 10, 14, 18, 28, 54, 89):
        assert 1e6 <= 4 * d * chunk_rows(d) <= 8e6


def test_mean_and_scale_far_from_the_origin(tmp_path, small_chunks):
    rng = np.random.default_rng(1)
    X = (rng.normal(size=(5000, 4)) * [1, 1e-3, 100, 0] + [1e6, 1, -1e5, 7.7]).astype(np.float32)
    path = write(tmp_path / "a.h5", X, np.zeros(5000, int), classes=[0])
    with open_dataset(path) as data:
        wide = X.astype(np.float64)
        np.testing.assert_allclose(data.mean, wide.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(data.scale[:3], wide.std(axis=0)[:3], rtol=1e-9)
        assert data.scale[3] == 1.0  # a constant column must not divide by zero
        assert data.mean[3] == np.float32(7.7)


def test_statistics_do_not_depend_on_the_pieces(tmp_path, toy, small_chunks):
    X, y = toy
    a = open_dataset(write(tmp_path / "a.h5", X, y))
    b = open_dataset(write(tmp_path / "b.h5", X, y, pieces=(1, 13, 400)))
    assert a.mean.tobytes() == b.mean.tobytes()
    assert a.scale.tobytes() == b.scale.tobytes()


def test_labels_outside_a_byte(tmp_path, toy):
    X, y = toy
    with open_dataset(write(tmp_path / "a.h5", X, y * 1001 - 1, classes=[-1, 1000])) as data:
        assert data.y.dtype == np.int64
        assert set(data.read(0, 1000)[1].tolist()) == {-1, 1000}


# --- the split ---------------------------------------------------------------------------------------------------


def slow_is_train(seed: int, row: int) -> bool:
    """splitmix64 with Python's integers."""
    wrap = 2**64 - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & wrap
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & wrap
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    return mix((mix((seed + golden) & wrap) + (row + 1) * golden) & wrap) < int(0.8 * 2**64)


@settings(max_examples=50)
@given(st.integers(0, 2**63), st.integers(0, 2**40), st.integers(0, 40))
def test_split_is_splitmix64(seed, start, k):
    assert train_mask(start, start + k, seed).tolist() == [slow_is_train(seed, start + i) for i in range(k)]


def test_split_across_blocks_and_its_count():
    whole = train_mask(0, 200_000, 3)
    np.testing.assert_array_equal(whole[65_000:70_000], train_mask(65_000, 70_000, 3))
    assert count_train(200_000, 3) == whole.sum()
    assert abs(whole.mean() - 0.8) < 0.005
    assert (whole != train_mask(0, 200_000, 4)).mean() > 0.3  # seeds matter


def test_split_of_a_file(tmp_path, toy):
    with open_dataset(write(tmp_path / "a.h5", *toy, split_seed=9)) as data:
        assert data.n_train == data.train_mask().sum()
        np.testing.assert_array_equal(data.train_mask(100, 200), train_mask(100, 200, 9))


# --- bad rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 4])
def test_not_finite_names_the_row(tmp_path, toy, value, column):
    X, y = toy
    X[777, column] = value
    with pytest.raises(ValueError, match="row 777 of toy has a NaN or an infinity"):
        write(tmp_path / "a.h5", X, y, pieces=(500,))
    assert os.listdir(tmp_path) == []


def test_bad_appends(tmp_path, toy):
    X, y = toy
    cases = [
        (lambda: write(tmp_path / "a.h5", X, y + 1), "label 2, not one of"),
        (lambda: write(tmp_path / "a.h5", X, y[:999]), "do not fit"),
        (lambda: write(tmp_path / "a.h5", X, y, n=999), "more than the expected 999"),
        (lambda: write(tmp_path / "a.h5", X, y, n=1001), "1000 rows, 1001 were expected"),
        (lambda: write(tmp_path / "a.h5", X[:0], y[:0]), "has no rows"),
        (lambda: write(tmp_path / "a.h5", X, y, source="real"), "source 'real'"),
        (lambda: write(tmp_path / "a.h5", X, y, source="real:xyz"), "source 'real:xyz'"),
        (lambda: write(tmp_path / "a.h5", X, y, codec="gzip"), "codec 'gzip' is unknown"),
    ]
    for call, message in cases:
        with pytest.raises(DataError, match=message):
            call()
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_keeps_the_old_file(tmp_path, toy, error):
    X, y = toy
    path = write(tmp_path / "a.h5", X, y)
    before = path.read_bytes()

    def fail_half_way():
        with DatasetWriter(path, name="toy", source=STANDIN, d=5, classes=[0, 1]) as writer:
            writer.append(X, y)
            raise error

    with pytest.raises(error):
        fail_half_way()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.h5"]


@pytest.mark.parametrize("limit", [0, 1000, 5_000_000, 13_000_000])  # at once, first chunk, a later one, near the end
def test_disk_full(tmp_path, limit):
    path = tmp_path / "a.h5"
    path.write_bytes(b"the old file")
    X, y = np.ones((120_000, 28), np.float32), np.zeros(120_000, int)
    with full_disk(limit), pytest.raises(DataError) as caught:
        write(path, X, y, classes=[0], pieces=(30_000,))
    assert str(caught.value) == f"no space left to write {path}: free some space or choose another --data-dir"
    assert path.read_bytes() == b"the old file"
    assert os.listdir(tmp_path) == ["a.h5"]


def test_unwritable_folder(tmp_path, toy):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match="cannot write"):
        write(tmp_path / "file" / "a.h5", *toy)


def test_stale_temporary_files_go_but_not_those_of_the_living(tmp_path, toy):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    path = tmp_path / "a.h5"
    prefix = temp_prefix(path)
    stale = tmp_path / f"{prefix}{dead.pid}.0a1b.tmp"
    alive = tmp_path / f"{prefix}{os.getppid()}.0a1b.tmp"
    elsewhere = tmp_path / f".a.h5.another-machine.{dead.pid}.0a1b.tmp"
    for file in (stale, alive, elsewhere):
        file.write_bytes(b"half")
    write(path, *toy)
    assert not stale.exists()
    assert alive.exists()
    assert elsewhere.exists()


# --- damaged files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dataset", ["X", "y"])
def test_flipped_bits_are_detected(tmp_path, toy, small_chunks, codec, dataset):
    X, y = toy
    path = write(tmp_path / "a.h5", X, y, codec=codec)
    flip(path, 384, dataset)
    with open_dataset(path) as data:
        data.read(0, 384)  # chunks 0 to 2 are good
        with pytest.raises(DataError, match=r"is damaged in rows 384\.\.511"):
            data.read(384, 512)
        with pytest.raises(DataError, match="damaged"):
            data.read(400, 401)
    findings = verify(path)
    assert len(findings) == 1
    assert "rows 384..511" in findings[0]


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"format_version": 2}, "format version 2, this program reads 1"),
        ({"format": "other"}, "not one of l2ul's datasets"),
        ({"format": None}, "not one of l2ul's datasets"),
        ({"n": 999}, "do not fit each other or n"),
        ({"n": 999, "class_counts": [999, 0]}, r"X is \(1000, 5\)"),
        ({"n": "1000"}, "attribute n must be a whole number from 1"),
        ({"n": 1000.0}, "attribute n must be a whole number from 1"),
        ({"n": np.inf}, "attribute n must be a whole number from 1"),
        ({"d": 6}, "attribute mean must be 6 numbers"),
        ({"mean": None}, "no attribute mean"),
        ({"mean": np.zeros(4)}, "attribute mean must be 5 numbers"),
        ({"mean": np.full(5, 1e300)}, "attribute mean must be 5 numbers"),
        ({"scale": np.zeros(5)}, "attribute scale must be 5 numbers"),
        ({"scale": np.full(5, np.nan)}, "attribute scale must be 5 numbers"),
        ({"scale": np.full(5, np.inf)}, "attribute scale must be 5 numbers"),
        ({"scale": np.arange(1.0, 6.0)}, "scale and variance do not fit"),
        ({"variance": np.ones(3)}, "attribute variance must be 5 numbers"),
        ({"source": "real"}, "source 'real'"),
        ({"name": "a\nb"}, "attribute name is no line of text"),
        ({"split_rule": "other"}, "split rule"),
        ({"classes": None}, "no attribute classes"),
        ({"classes": [0.5, 1.5]}, "attribute classes must be a list of whole numbers"),
        ({"classes": []}, "attribute classes must be a list of whole numbers"),
        ({"classes": [1, 1]}, "do not fit each other"),
        ({"n_train": 1001}, "attribute n_train"),
        ({"split_seed": -1}, "attribute split_seed"),
    ],
)
def test_wrong_headers_are_refused(tmp_path, toy, attrs, message):
    path = write(tmp_path / "a.h5", *toy)
    edit(path, **attrs)
    with pytest.raises(DataError, match=message):
        open_dataset(path)
    assert len(verify(path)) == 1


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"mean": np.arange(5.0)}, "mean attribute"),
        ({"scale": np.arange(1.0, 6.0), "variance": np.arange(1.0, 6.0) ** 2}, "scale attribute"),
        ({"n_train": 5}, "n_train"),
        ({"split_seed": 1}, "n_train"),
        ({"class_counts": [500, 500]}, "class counts"),
        ({"classes": [0, 2]}, "the label 1, not one of [0, 2]"),
    ],
)
def test_verify_recomputes_what_attributes_claim(tmp_path, toy, attrs, message):
    path = write(tmp_path / "a.h5", *toy)
    edit(path, **attrs)
    assert any(message in finding for finding in verify(path)), verify(path)


def test_verify_finds_nan(tmp_path, toy):
    path = write(tmp_path / "a.h5", *toy)
    with h5py.File(path, "r+") as file:
        file["X"][123, 4] = np.nan
    assert verify(path) == [f"row 123 of {path} has a NaN or an infinity"]
    with pytest.raises(DataError, match=r"row 123 of .* has a NaN"):
        list(FileTable(path, "all").blocks())


def test_lies_that_only_rows_tell(tmp_path, toy):
    """What attributes agree on among themselves, but not with the rows: a fit refuses it, too."""
    X, y = toy
    path = write(tmp_path / "a.h5", X, y)
    edit(path, scale=np.full(5, 1e-30), variance=np.full(5, 1e-60))
    with pytest.raises(DataError, match=r"mean or scale attribute of .* is not that of column"):
        FileTable(path)
    path = write(tmp_path / "b.h5", X, y * 5, classes=[0, 5])
    edit(path, classes=[0, 3])
    for use in (FileTable, lambda path: stream_counts(path, Partitions.sample(X, 2, 3, 0), by_class=True)):
        with pytest.raises(DataError, match=r"row \d+ of .* has the label 5, not one of \[0, 3\]"):
            use(path)


def test_files_that_are_no_dataset(tmp_path, toy):
    with pytest.raises(DataError, match="there is no dataset file"):
        open_dataset(tmp_path / "missing.h5")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(DataError, match="not an HDF5 file"):
        open_dataset(tmp_path / "text.h5")
    path = write(tmp_path / "a.h5", *toy)
    path.write_bytes(path.read_bytes()[:10_000])
    with pytest.raises(DataError, match="truncated"):
        open_dataset(path)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["X"] = np.zeros((3, 2))
    with pytest.raises(DataError, match="not one of l2ul's"):
        open_dataset(tmp_path / "b.h5")


def test_labels_of_sources(tmp_path, toy):
    for source, label in [
        ("real:" + "0" * 64, "real"),
        ("own:" + "1" * 64, "own"),
        ("subset:" + "f" * 64, "subset"),
        (STANDIN, "stand-in"),
    ]:
        with open_dataset(write(tmp_path / "a.h5", *toy, source=source)) as data:
            assert data.label == label
