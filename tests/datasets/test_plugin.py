"""Datasets of one's own: data files, Python files and installed packages, and what is wrong with bad ones."""

import gzip
import sys
from datetime import date

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_files import rows_of

from l2ul_fast.datasets import registry
from l2ul_fast.datasets.file.hdf5 import open_dataset, verify
from l2ul_fast.datasets.plugin import load_dataset_file, register_dataset, register_file
from l2ul_fast.datasets.registry import dataset_names, datasets, get_info
from l2ul_fast.errors import DataError
from l2ul_fast.tables import FileTable

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 3)).astype(np.float32)
Y = rng.integers(0, 2, 300)
WORDS = np.array(["no", "yes"])[Y]
CSV = "".join(f"{a},{b},{c},{w}\n" for (a, b, c), w in zip(X, WORDS, strict=True))


@pytest.fixture(autouse=True)
def own_registry(monkeypatch, tmp_path):
    """A registry of this test, and a data folder."""
    monkeypatch.setattr(registry, "REGISTRY", dict(registry.REGISTRY))
    monkeypatch.setattr("l2ul_fast.datasets.plugin.REGISTRY", registry.REGISTRY)
    monkeypatch.setenv("L2UL_DATA_DIR", str(tmp_path / "data"))


def h5(path):
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = X, WORDS.astype("S")


def parquet(path, labels=WORDS):
    columns = {f"c{j}": X[:, j].astype(np.float64) for j in range(3)}
    pq.write_table(pa.table({**columns, "class": labels}), path)


PLUGIN = """
import numpy as np
class Dataset:
    name = "plug"
    def load(self):
        with np.load("{npz}") as archive:
            return archive["X"], archive["y"]
"""
FILES = {
    "plain.csv": lambda path: path.write_text(CSV),
    "header.csv": lambda path: path.write_text('"a", b,c,class\n' + CSV),
    "pandas.csv": lambda path: path.write_text("0,1,2,3\n" + CSV.replace("yes", '"yes"')),
    "tabs.tsv": lambda path: path.write_text("a\tb\tc\tclass\n" + CSV.replace(",", "\t")),
    "packed.csv.gz": lambda path: path.write_bytes(gzip.compress(CSV.encode())),
    "table.parquet": parquet,
    "arrays.npz": lambda path: np.savez(path, X=X, y=WORDS),
    "foreign.h5": h5,
}


@pytest.mark.parametrize("file", FILES)
def test_a_data_file_becomes_a_dataset(tmp_path, file):
    FILES[file](tmp_path / file)
    name = register_file(tmp_path / file)
    assert name == file.split(".")[0]
    assert dataset_names()[-1] == name
    info = get_info(name)
    assert (info.n, info.d, info.path) == (300, 3, tmp_path / "data" / f"{name}.own.h5")
    if file in ("header.csv", "tabs.tsv"):
        assert info.columns == ("a", "b", "c")
    assert verify(info.path) == []
    with open_dataset(info.path) as data:
        assert data.label == "own"
        assert list(data.attrs["class_names"]) == ["no", "yes"]
        got_X, got_y = data.read(0, 300)
        train = data.train_mask()
    np.testing.assert_array_equal(got_X, X)
    np.testing.assert_array_equal(got_y, Y)
    table = FileTable(info.path, "train")  # split and standardised by the rules of all files
    assert table.n == train.sum()
    assert table.label == "own"
    np.testing.assert_allclose(
        table.take(table.ids())[0], ((X - X.mean(axis=0)) / X.std(axis=0))[train], rtol=1e-4, atol=1e-5
    )


def test_unchanged_content_is_not_written_again(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(CSV)
    first = load_dataset_file(path)
    made = first.path.stat().st_mtime_ns
    assert load_dataset_file(path) == first
    assert first.path.stat().st_mtime_ns == made
    path.write_text(CSV + CSV[: CSV.index("\n") + 1])
    assert load_dataset_file(path).n == get_info("mine").n == 301
    made = get_info("mine")
    assert load_dataset_file(made.path).name == "mine"  # our own file, under the name that it holds
    registry.REGISTRY.pop("mine")
    assert get_info("mine").n == 301  # in another process: by the file in the data folder
    assert load_dataset_file(path).columns == made.columns
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.csv").write_text(CSV)
    with pytest.raises(DataError, match="which is taken"):
        register_file(tmp_path / "b" / "mine.csv")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([3, 1, 3, 2], [1, 2, 3]),
        ([-1.0, 1.0, 1.0, -1.0], [-1, 1]),
        (["1", "2", "2", "1"], [1, 2]),
        ([True, False, True, True], [0, 1]),
        ([0.5, 1.5, 0.5, 0.5], [0, 1]),
        (["1_0", "10", "10", "1_0"], [0, 1]),
        ([2**53, 2**53 + 1, 2**53, 2**53], [2**53, 2**53 + 1]),
    ],
)
def test_whole_numbers_stay_what_they_are(tmp_path, labels, classes):
    np.savez(tmp_path / "a.npz", X=X[:4], y=labels)
    with open_dataset(load_dataset_file(tmp_path / "a.npz").path) as data:
        assert data.classes == classes
        assert np.unique(data.read(0, 4)[1]).tolist() == classes


def test_python_files(tmp_path):
    np.savez(tmp_path / "some.npz", X=X, y=Y)
    (tmp_path / "code.py").write_text(PLUGIN.format(npz=tmp_path / "some.npz"))
    assert register_file(tmp_path / "code.py") == "plug"
    assert (get_info("plug").n, get_info("plug").columns) == (300, ("x0", "x1", "x2"))
    source = "class Dataset:\n    def load(self): return 'some.npz'  # beside this file\n"
    (tmp_path / "by-path.py").write_text(source)
    assert register_file(tmp_path / "by-path.py") == "by-path"
    rows = [open_dataset(get_info(name).path).read(0, 300)[0] for name in ("plug", "by-path")]
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize("how", ["class", "module"])
def test_installed_packages(tmp_path, monkeypatch, how):
    """A distribution on sys.path with the entry point, as an installed package has it."""
    info = tmp_path / "site" / "fake-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1.0\n")
    target = "fake_rows:Dataset" if how == "class" else "fake_rows"
    (info / "entry_points.txt").write_text(f"[l2ul_fast.datasets]\nfake = {target}\n")
    np.savez(tmp_path / "some.npz", X=X, y=Y)
    (tmp_path / "site" / "fake_rows.py").write_text(PLUGIN.format(npz=tmp_path / "some.npz"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert dataset_names()[-1] == "fake"
    assert "fake_rows" not in sys.modules  # a name costs no import
    assert get_info("fake").n == 300
    assert datasets()[-1].name == "fake"
    sys.modules.pop("fake_rows")


BAD = {
    "empty.csv": ("", "empty.csv has one column"),
    "one.csv": ("1\n2\n", "has one column"),
    "missing.csv": ("1,,3,a\n1,2,3,b\n", "line 1 is damaged: '' is not a number"),
    "nan.csv": ("nan,nan,a\n1,2,b\n", "line 1 is damaged: 'nan' is not a number"),
    "nanclass.csv": ("1,2,a\n1,2,nan\n2,3,b\n", "rows without a class"),
    "word.csv": ("a,b,class\n1,2,u\n1,x,v\n", "line 3 is damaged: 'x' is not a number"),
    "short.csv": ("1,2,a\n1,b\n", "line 2 is damaged: it has 2 fields instead of 3"),
    "same.csv": ("1,2,a\n2,3,a\n", "has rows of 1 class, at least two"),
    "noclass.csv": ("1,2,a\n2,3,\n", "line 2 is damaged: it has no class"),
    "index.csv": (",a,class\n0,1,u\n1,2,v\n", "the first column has no name"),
    "twice.csv": ("1,2,1\n2,3,1.0\n4,5,0\n", "writes one class in two ways"),
    "many.csv": ("".join(f"1,{k}.5\n" for k in range(300)), "more than 255 classes"),
    "text.h5": ("hello", "not an HDF5 file"),
    "text.npz": ("hello", "text.npz cannot be read"),
    "text.parquet": ("hello", "text.parquet cannot be read"),
    "broken.csv.gz": ("hello", "broken.csv.gz cannot be read"),
    "a.xlsx": ("hello", "a.xlsx is none of .csv, .tsv"),
    "syntax.py": ("class Dataset(", "syntax.py cannot be imported: SyntaxError"),
    "nothing.py": ("x = 1", "nothing.py has no class Dataset with load()"),
    "fails.py": ("class Dataset:\n    def load(self): return 1 / 0", "failed: ZeroDivisionError: division by zero"),
    "wrong.py": ("class Dataset:\n    def load(self): return 7", "must return (X, y) or a path, not int"),
    "ragged.py": ("class Dataset:\n    def load(self): return [[1, 2], [3]], [0, 1]", "X must hold numbers"),
    "shapes.py": ("class Dataset:\n    def load(self): return [[1, 2], [3, 4]], [0, 1, 1]", "must hold X (n, d) and y"),
    "nan.py": (
        "class Dataset:\n    def load(self): return [[1, 2], [float('nan'), 4]], [0, 1]",
        "row 1 of nan has a NaN",
    ),
    "none.py": ("class Dataset:\n    def load(self): return [[1, 2], [3, 4]], ['a', None]", "rows without a class"),
    "magic.csv": (CSV, "cannot be called 'magic', which is taken"),
}


@pytest.mark.parametrize("file", BAD)
def test_bad_files_are_one_sentence(tmp_path, file):
    text, message = BAD[file]
    (tmp_path / file).write_text(text)
    names = dataset_names()
    with pytest.raises(DataError) as caught:
        register_file(tmp_path / file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert dataset_names() == names
    assert not list((tmp_path / "data").glob("*")) if (tmp_path / "data").exists() else True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CSV.encode("utf-16"), "line 1 is damaged: it is no ASCII or UTF-8 text"),
        (CSV.encode("utf-32-le"), "line 1 is damaged: it is no ASCII or UTF-8 text"),
        (CSV.replace("\n", "\r").encode(), "line 1 is damaged: it has a carriage return that is no line end"),
        (CSV.encode().replace(b"\n", b"\0\n", 1), "line 1 is damaged: it has a NUL byte"),
        (b"1" * 10_000_000, "line 1 is damaged: it is longer than 4194304 bytes|has one column"),
        (b"a,b\n" + b"1" * 10_000_000, "line 2 is damaged: it is longer than 4194304 bytes"),
    ],
)
def test_text_that_is_no_table(tmp_path, text, message):
    (tmp_path / "odd.csv").write_bytes(text)
    with pytest.raises(DataError, match=message):
        register_file(tmp_path / "odd.csv")


@pytest.mark.parametrize("text", [b"\xef\xbb\xbf" + CSV.encode(), CSV.replace("\n", "\r\n", 7).encode()])
def test_marks_and_mixed_line_ends_do_not_matter(tmp_path, text):
    (tmp_path / "odd.csv").write_bytes(text)
    np.testing.assert_array_equal(rows_of(load_dataset_file(tmp_path / "odd.csv").path)[0], X)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([1, 2, 1, 2], complex), "must be numbers or words, not complex128"),
        (np.array(["2020-01-01", "2021-01-01"] * 2, "M8[D]"), r"must be numbers or words, not datetime64\[D\]"),
        (np.array([date(2020, 1, 1), "a"] * 2), "must be numbers or words, not date"),
        (np.array([1 + 0j, "a"] * 2, object), "must be numbers or words, not complex"),
        (np.array([(1, 2)] * 4, "i4,i4"), "must be numbers or words"),
        (np.array([np.nan, 1, 1, 0]), "rows without a class"),
        (np.array([np.nan, "a", "a", "b"], object), "rows without a class"),
        (np.array(["nan", "a", "a", "b"]), "rows without a class"),
        (np.array([np.inf, 1, 1, 0]), "a class that is infinite"),
        (np.array([b"a\0b", b"a", b"b", b"b"]), "a class with a NUL byte"),
    ],
)
def test_classes_that_are_none_are_refused(tmp_path, labels, message):
    found = type("Dataset", (), {"name": "odd", "load": lambda self: (X[:4], labels)})
    with pytest.raises(DataError, match=message):
        register_dataset(found(), tmp_path / "odd.py")
    assert not (tmp_path / "data").exists()


def test_a_file_of_other_rows_is_not_replaced(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.csv").write_text(CSV if folder == "a" else CSV + CSV)
    made = load_dataset_file(tmp_path / "a" / "mine.csv").path
    before = made.read_bytes()
    registry.REGISTRY.pop("mine")  # as in another process
    with pytest.raises(DataError, match=r"mine\.own\.h5 was made from file:.*/a/mine\.csv: delete it, or give"):
        load_dataset_file(tmp_path / "b" / "mine.csv")
    assert made.read_bytes() == before
    made.write_bytes(before[:5000])  # damaged: made again
    load_dataset_file(tmp_path / "b" / "mine.csv")
    with h5py.File(made, "w") as file:
        file["X"] = 1.0
    with pytest.raises(DataError, match="is in the way and not one of l2ul's"):
        load_dataset_file(tmp_path / "b" / "mine.csv")


@pytest.mark.parametrize("rows", [np.ones((4, 2), complex), np.ones((4, 2), "M8[s]")])
def test_columns_that_a_cast_would_change_are_refused(tmp_path, rows):
    np.savez(tmp_path / "odd.npz", X=rows, y=[0, 1, 0, 1])
    with pytest.raises(DataError, match="X must hold numbers: got"):
        register_file(tmp_path / "odd.npz")


def test_the_index_of_a_pandas_table_is_no_class(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=list("abc")).assign(label=WORDS).iloc[::-1]
    frame.to_parquet(tmp_path / "frame.parquet")
    info = load_dataset_file(tmp_path / "frame.parquet")
    assert info.columns == ("a", "b", "c")
    with open_dataset(info.path) as data:
        np.testing.assert_array_equal(data.read(0, 300)[1], Y[::-1])


def test_bad_columns_of_tables(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        register_file(tmp_path / "no.csv")
    pq.write_table(pa.table({"a": ["x", "y"], "class": [0, 1]}), tmp_path / "words.parquet")
    with pytest.raises(DataError, match="column 'a' holds string, not numbers"):
        register_file(tmp_path / "words.parquet")
    parquet(tmp_path / "holes.parquet", pa.array([None, *WORDS[1:]]))
    with pytest.raises(DataError, match="rows without a class"):
        register_file(tmp_path / "holes.parquet")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data"] = X
    with pytest.raises(DataError, match=r"other\.h5 cannot be read: it holds no dataset X"):
        register_file(tmp_path / "other.h5")
