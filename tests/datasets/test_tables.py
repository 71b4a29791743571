"""Rows in memory and rows in files look the same to a model."""

import numpy as np
import pytest
from dataset_files import flip, make_file, small_chunks
from hypothesis import given, settings
from hypothesis import strategies as st

from l2ul_fast.datasets.file.hdf5 import open_dataset
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import ArrayTable, FileTable, check_rows, class_indices, in_memory
from l2ul_fast.unlearner.pairs.make import in_order, subset_pairs
from l2ul_fast.unlearner.store import ArrayStore, FileStore, NoStore

D = 5


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Chunks of 64 rows (and blocks of 100), so that small tables have many."""
    small_chunks(monkeypatch)
    monkeypatch.setattr("l2ul_fast.tables.BLOCK_ROWS", 100)


def all_rows(table):
    parts = [(X.copy(), y.copy()) for X, y in table.blocks()]
    assert all(X.flags.c_contiguous and len(X) == len(y) for X, y in parts)
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])


@pytest.fixture(params=["one file", "codec", "shards", "plain shards"])
def files(request, tmp_path):
    """(paths, raw X, y, class list) of 500 rows in one or three files."""
    classes = (7, 2, 5)
    if "shards" in request.param:
        codecs = ("none", "none" if "plain" in request.param else "zstd", "none")
        made = [make_file(tmp_path / f"{i}.h5", n, D, i, codecs[i], classes) for i, n in enumerate((200, 1, 299))]
        return str(tmp_path / "*.h5"), np.concatenate([X for X, _ in made]), np.concatenate([y for _, y in made])
    return (
        tmp_path / "a.h5",
        *make_file(tmp_path / "a.h5", 500, D, 3, "zstd" if request.param == "codec" else "none", classes),
    )


def test_memory_that_rows_do_not_fit_is_refused(files):
    table = FileTable(files[0], "all")
    for out in (np.empty((2, D), np.float32), np.empty((3, D - 1), np.float32), np.empty((3, D))):
        with pytest.raises(ValueError, match=r"out must be a \(3, 5\) array of float32"):
            table.take(np.arange(3), out)
    table.close()


@pytest.mark.parametrize("part", ["train", "test", "all"])
def test_a_file_is_its_standardised_array(files, part):
    source, raw, y = files
    table = FileTable(source, part)
    np.testing.assert_allclose(table.shards.mean, raw.mean(axis=0, dtype=float), rtol=1e-6)
    np.testing.assert_allclose(table.shards.scale, raw.std(axis=0, dtype=float), rtol=1e-5)
    X = ((raw.astype(float) - table.shards.mean) * (1 / table.shards.scale)).astype(np.float32)
    assert table.classes == [2, 5, 7]
    index = np.searchsorted([2, 5, 7], y).astype(np.uint8)
    train = np.concatenate([file.train_mask() for file in table.shards.files])
    visible = np.flatnonzero({"train": train, "test": ~train, "all": np.ones(500, bool)}[part])
    array = ArrayTable(X, index, [2, 5, 7]).without(np.setdiff1d(np.arange(500), visible))
    assert (table.n, table.d) == (array.n, array.d) == (visible.size, D)
    for t in (table, array):
        np.testing.assert_array_equal(t.ids(), visible)
        for _ in range(2):  # a second pass sees the same
            rows, labels = all_rows(t)
            np.testing.assert_array_equal(rows, X[visible])
            np.testing.assert_array_equal(labels, index[visible])
        hidden = visible[[0, 3, -1]]
        less = t.without(hidden)
        np.testing.assert_array_equal(less.ids(), np.setdiff1d(visible, hidden))
        np.testing.assert_array_equal(all_rows(less)[0], X[less.ids()])
        assert less.n == len(visible) - 3
        assert t.n == len(visible)  # the first table is as it was
        assert less.without(visible[[1]]).n == len(visible) - 4
        ids = np.array([499, 0, 63, 64, 0, 200, 201])  # any order, twice, hidden or not
        rows, labels = less.take(ids)
        np.testing.assert_array_equal(rows, X[ids])
        np.testing.assert_array_equal(labels, index[ids])
        assert rows.dtype == np.float32
        assert labels.dtype == np.uint8
        whole = in_memory(less)
        np.testing.assert_array_equal(whole.X, X[less.ids()])
        np.testing.assert_array_equal(whole.y, index[less.ids()])
    table.close()


def test_rows_of_a_request_are_the_same_from_every_store(files):
    source, _, _ = files
    table = FileTable(source, "all")
    X, y = all_rows(table)
    ids = np.array([0, 63, 64, 199, 200, 201, 499])
    for store in (FileStore(table), ArrayStore(X.copy(), y.copy())):
        rows, labels = store.fetch(ids)
        np.testing.assert_array_equal(rows, X[ids])
        np.testing.assert_array_equal(labels, y[ids])
        assert rows.dtype == np.float32
        store.erase(ids[:3])
        hidden = np.isin(np.arange(500), ids[:3])
        np.testing.assert_array_equal(all_rows(store.table(table.classes, hidden))[0], X[~hidden])
    assert not store.X[ids[:3]].any()
    assert not store.y[ids[:3]].any()
    np.testing.assert_array_equal(all_rows(table)[0], X)  # the file is never changed
    bare = NoStore.of(X, y, None, 0)
    with pytest.raises(UserError, match="store_rows=False"):
        bare.fetch(ids)
    assert bare.table([0, 1], hidden) is None  # passes over the rows say so in their own words
    table.close()


def test_rows_can_be_taken_into_memory_that_is_there(files):
    source, _, _ = files
    table = FileTable(source, "all")
    X, y = all_rows(table)
    rng = np.random.default_rng(0)
    tables = [table, ArrayTable(X, y, table.classes), ArrayTable(X[:, :3].astype(np.float64), y, table.classes)]
    for size, sort in ((40, True), (7, False), (0, True), (300, True), (60, False), (1, True)):
        ids = rng.integers(0, 500, size)
        ids = np.sort(ids) if sort else ids
        for kind in tables:
            expected = kind.take(ids)
            out = np.full((size, kind.d), np.nan, kind.dtype)
            rows, labels = kind.take(ids, out)
            assert rows.dtype == expected[0].dtype
            np.testing.assert_array_equal(rows, expected[0])
            np.testing.assert_array_equal(labels, expected[1])
            np.testing.assert_array_equal(out, expected[0])
    for kind in tables:
        for bad in (500, 10**9):
            with pytest.raises((DataError, IndexError)):
                kind.take(np.array([3, bad]), np.empty((2, kind.d), kind.dtype))
    table.close()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 500]), st.sampled_from([1, 1000, 70_000, 2**33]))
def test_rows_in_the_order_of_the_table_are_a_permutation(seed, k, n):
    rows = np.random.default_rng(seed).integers(0, n, k)
    order = in_order(rows)
    np.testing.assert_array_equal(np.sort(order), np.arange(k))
    parts = rows[order] // max(1, n // 2**15)  # of so many rows at most
    assert (np.diff(parts) >= -1).all()
    if n <= 2**16:
        np.testing.assert_array_equal(order, np.argsort(rows, kind="stable"))


@pytest.mark.parametrize("at_once", [100, 1 << 27])
def test_pairs_of_a_file_are_those_of_its_rows_in_memory(files, at_once, monkeypatch):
    monkeypatch.setattr("l2ul_fast.unlearner.pairs.make.BATCH_BYTES", at_once)  # few pairs at a time, or all together
    source, _, _ = files
    table = FileTable(source, "all").without(np.arange(100, 180))
    X, y = (np.concatenate(part) for part in zip(*[(X.copy(), y.copy()) for X, y in table.blocks()], strict=True))
    model = LogisticModel(D, len(table.classes), 1e-2)
    seen = []
    found = subset_pairs(model, table, y, 30, 90, 3, progress=lambda *a: seen.append(a))
    expected = subset_pairs(model, ArrayTable(X, y, table.classes), y, 30, 90, 3)
    np.testing.assert_array_equal(found.rows, table.ids()[expected.rows])
    for name in ("starts", "n_forget", "n", "theta", "theta_r", "Z", "T"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert not np.isin(found.rows, np.arange(100, 180)).any()
    assert seen[-1] == (30, 30)
    theta, *_ = model.fit_pairs(X, y, expected.rows.reshape(30, 90), expected.n_forget)
    np.testing.assert_array_equal(theta, expected.theta)
    table.close()


def test_many_small_files_are_one_table(tmp_path):
    sizes = [1, 5000, 3, 9000, 1, 1, 70]  # of more and of fewer rows than are looked up together
    made = [make_file(tmp_path / f"{i}.h5", n, D, i) for i, n in enumerate(sizes)]
    raw, table = np.concatenate([X for X, _ in made]), FileTable(str(tmp_path / "*.h5"), "all")
    X = ((raw.astype(float) - table.shards.mean) * table.inverse_scale).astype(np.float32)
    ids = np.random.default_rng(0).integers(0, len(X), 4000)
    ids[:14] = np.concatenate([np.cumsum(sizes) - 1, np.cumsum([0, *sizes[:-1]])])
    np.testing.assert_array_equal(table.take(ids)[0], X[ids])
    np.testing.assert_array_equal(table.take(np.arange(len(X)))[0], X)
    wide = np.zeros((len(ids), 2 * D), np.float32)[:, ::2]  # rows that do not lie side by side
    np.testing.assert_array_equal(table.take(ids, wide)[0], X[ids])
    table.close()


def test_a_damaged_chunk_of_one_file_is_refused(tmp_path):
    for i in range(3):
        make_file(tmp_path / f"{i}.h5", 300, D, i)
    flip(tmp_path / "1.h5", 128)
    table = FileTable(str(tmp_path / "*.h5"), "all")
    table.take(np.array([899, 300, 427, 0]))  # chunks that are whole
    with pytest.raises(DataError, match=r"1.h5 is damaged in rows 128..191"):
        table.take(np.array([0, 428, 700]))
    table.close()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_digests_tell_rows_apart(dtype):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, D)).astype(dtype), rng.integers(0, 3, 200).astype(np.uint8)
    X[3] = X[7]
    X[0, 1] = 0.0
    y[3] = y[7]
    store = NoStore.of(X, y, None, 5)
    assert len(np.unique(store.digests)) == 199
    assert store.digests[3] == store.digests[7]
    np.testing.assert_array_equal(store.digest(X.astype(np.float64)[::-1], y[::-1]), store.digests[::-1])
    minus = X[:1].copy()
    minus[0, 1] = -0.0
    assert store.digest(minus, y[:1])[0] == store.digests[0]
    for column in range(D):  # any value, any label, any order of the values
        other = X.copy()
        other[:, column] = np.nextafter(other[:, column], dtype(9))
        assert (store.digest(other, y) != store.digests).all()
    assert (store.digest(X, y + 1) != store.digests).all()
    assert (store.digest(X[:, ::-1], y) != store.digests).all()
    assert (NoStore.of(X, y, None, 6).digests != store.digests).all()
    store.erase(np.array([4, 5]))
    assert store.digests[4] == store.digests[5] == 0


def test_arrays_are_not_copied():
    X, y = np.zeros((250, 2)), np.zeros(250, np.uint8)
    table = ArrayTable(X, y, [0, 1])
    assert [len(b) for b, _ in table.blocks()] == [100, 100, 50]
    assert all(np.shares_memory(b, X) for b, _ in table.blocks())
    assert in_memory(table) is table
    assert in_memory(table.without(np.array([3]))).n == 249


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([3, 1, 3, 2], [1, 2, 3]),
        (["no", "yes", "no"], ["no", "yes"]),
        ([True, False], [False, True]),
        ([0.5, -1.0], [-1.0, 0.5]),
    ],
)
def test_labels(labels, classes):
    found, index = class_indices(labels)
    assert found == classes
    assert index.dtype == np.uint8
    assert [found[i] for i in index] == labels
    again, few = class_indices(labels[:1], classes)
    assert again == classes
    assert few.tolist() == [classes.index(labels[0])]
    assert class_indices([], classes)[1].size == 0


@pytest.mark.parametrize(
    ("match", "labels", "classes"),
    [
        ("not one of the model's classes", [0, 1, 9], [0, 1]),
        ("not one of the model's classes", [-1], [0, 1]),
        ("not one of the model's classes", ["a"], [0, 1]),
        ("not one of the model's classes", [0.5], [0, 1]),
        ("NaN", [0.0, np.nan], None),
        ("list", [[0, 1]], None),
        ("at most 255", list(range(300)), None),
        ("labels", [None, 1], None),
        ("labels", [{}, 1], [0, 1]),
    ],
)
def test_bad_labels_are_one_sentence(match, labels, classes):
    with pytest.raises(DataError, match=match) as caught:
        class_indices(labels, classes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("match", "X"),
    [
        ("row 1 of X has a NaN", [[0.0, 1], [np.nan, 1]]),
        ("row 0 of X", [[np.inf, 1]]),
        ("shape", [1.0, 2]),
        ("shape", [[1.0, 2, 3]]),
        ("numbers", [["a", "b"]]),
        ("NaN", [[None, 1]]),
        ("numbers", [[1, 2], [3]]),
        ("numbers", [[1 + 2j, 0]]),
    ],
)
def test_bad_rows_are_one_sentence(match, X):
    with pytest.raises(DataError, match=match) as caught:
        check_rows(X, 2)
    assert "\n" not in str(caught.value)


def test_good_rows_become_contiguous_floats():
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert check_rows(base) is base
    assert check_rows(base[:, ::2], 2).flags.c_contiguous
    assert check_rows(np.asfortranarray(base)).flags.c_contiguous
    assert check_rows([[1, 2]]).dtype == np.float64
    assert check_rows(base.astype(">f4")).dtype == np.float32
    assert check_rows(np.array([[True, False]])).tolist() == [[1.0, 0.0]]


def test_errors_of_tables(tmp_path):
    with pytest.raises(DataError, match="3 rows but y has 2 labels"):
        ArrayTable(np.zeros((3, 2)), np.zeros(2, np.uint8), [0, 1])
    make_file(tmp_path / "a.h5", 2)
    with open_dataset(tmp_path / "a.h5") as data:
        lacking = "train" if not data.train_mask().any() else "test"
    with pytest.raises(DataError, match=f"no {lacking} rows"):
        FileTable(tmp_path / "a.h5", lacking)
    with pytest.raises(DataError, match="part"):
        FileTable(tmp_path / "a.h5", "trian")
    with pytest.raises(DataError):
        FileTable(tmp_path / "missing.h5")
    with pytest.raises(DataError, match="not a path"):
        FileTable(np.zeros((3, 2)))
