"""Finding, opening and reading the original files, made small in tmp_path."""

import bz2
import gzip
import io
import lzma
import zipfile

import numpy as np
import pytest
from hostile import npy

from l2ul_fast.datasets.file import check
from l2ul_fast.datasets.sets.adult import CATEGORIES, read_adult
from l2ul_fast.datasets.sets.sepsis import COLUMNS, HOURLY, aggregate_patient, parse_patients
from l2ul_fast.datasets.split import train_mask
from l2ul_fast.datasets.text.rawfiles import find_raw, impute_train_median, read_rows
from l2ul_fast.errors import DataError

MAGIC = b"28.7967,16.0021,2.6449,0.3918,0.1982,27.7004,22.011,-8.2027,40.092,81.8828,g\n1,2,3,4,5,6,7,8,9,10,h\n"
MAGIC_ROWS = [[28.7967, 16.0021, 2.6449, 0.3918, 0.1982, 27.7004, 22.011, -8.2027, 40.092, 81.8828], range(1, 11)]


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def rows_of(name, folder, **options):
    blocks = list(read_rows(find_raw(name, folder), **options))
    return np.concatenate([X for X, _ in blocks]), np.concatenate([y for _, y in blocks])


@pytest.mark.parametrize("sub", ["", "magic"])
@pytest.mark.parametrize(
    ("file", "pack"),
    [
        ("magic04.data", bytes),
        ("MAGIC04.DATA", bytes),
        ("magic04.data.gz", gzip.compress),
        ("magic04.data.bz2", bz2.compress),
        ("magic04.data.xz", lzma.compress),
        ("magic04.data.zip", lambda data: zipped({"magic04.data": data})),
        ("magic+gamma+telescope.zip", lambda data: zipped({"magic04.names": b"?", "sub/magic04.data": data})),
        ("anything.zip", lambda data: zipped({"magic04.data.gz": gzip.compress(data)})),
    ],
)
def test_magic_in_every_wrapping(tmp_path, sub, file, pack):
    (tmp_path / sub).mkdir(exist_ok=True)
    (tmp_path / sub / file).write_bytes(pack(MAGIC))
    X, y = rows_of("magic", tmp_path)
    np.testing.assert_array_equal(X, np.array(MAGIC_ROWS, dtype=np.float32))
    assert y.tolist() == [1, 0]


def test_class_rules(tmp_path):
    (tmp_path / "Skin_NonSkin.txt").write_bytes(b"74\t85\t123\t1\r\n1\t2\t3\t2\r\n")
    X, y = rows_of("skin", tmp_path)
    assert X.tolist() == [[74, 85, 123], [1, 2, 3]]
    assert y.tolist() == [1, 0]
    lines = "".join(",".join(["7"] * 54 + [str(k)]) + "\n" for k in range(1, 8))
    (tmp_path / "covtype.data").write_text(lines)
    X, y = rows_of("covtype", tmp_path)
    assert X.shape == (7, 54)
    assert y.tolist() == [0, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("name", "d"), [("susy", 18), ("higgs", 28)])
def test_physics_sets_as_csv_and_libsvm(tmp_path, name, d):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, d)).astype(np.float32), rng.integers(0, 2, 50)
    for folder in ("csv", "libsvm"):
        (tmp_path / folder).mkdir()
    csv = "".join(",".join(f"{v:.18e}" for v in [y[i], *X[i]]) + "\n" for i in range(50))
    (tmp_path / "csv" / f"{name.upper()}.csv.gz").write_bytes(gzip.compress(csv.encode()))
    svm = "".join(f"{y[i]} " + " ".join(f"{j + 1}:{v:.9g}" for j, v in enumerate(X[i])) + "\n" for i in range(50))
    (tmp_path / "libsvm" / f"{name.upper()}.xz").write_bytes(lzma.compress(svm.encode()))
    for folder in ("csv", "libsvm"):
        got_X, got_y = rows_of(name, tmp_path / folder)
        np.testing.assert_array_equal(got_X, X)
        np.testing.assert_array_equal(got_y, y)


ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K\n"
)


def test_adult(tmp_path):
    text = (
        ADULT + ADULT.replace("State-gov", "?").replace("<=50K", ">50K") + ADULT.replace("State-gov", "Private") + "\n"
    )
    (X, y), *rest = read_adult(io.BytesIO(text.encode()), "adult.data")
    assert not rest
    assert X.shape == (3, 14)
    assert y.tolist() == [0, 1, 0]
    state, private = (CATEGORIES[1].index(c) for c in ("State-gov", "Private"))
    assert X[0].tolist() == [39, state, 77516, 9, 13, 4, 0, 1, 4, 1, 2174, 0, 40, 38]
    known = [c for c, train in zip((state, None, private), train_mask(0, 3), strict=True) if train and c is not None]
    assert X[1, 1] == min(known)  # the lower median of one or two codes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("State-gov", "Spy"),
        ("39", "x"),
        ("39", "nan"),
        ("39", "1_0"),
        (", 13", ""),
        ("<=50K", "<=50K."),
        ("White", "W\xe9"),
    ],
)
def test_damaged_adult_line(old, new):
    text = ADULT * 4 + ADULT.replace(old, new, 1) + ADULT
    with pytest.raises(DataError, match=r"adult\.data, line 5 is damaged"):
        list(read_adult(io.BytesIO(text.encode("latin-1")), "adult.data"))


def test_imputation_uses_training_rows_only():
    X = np.arange(60, dtype=np.float32).reshape(20, 3)
    X[4, 1] = X[7, 1] = np.nan
    X[:, 2] = np.nan
    train = train_mask(0, 20, 5)
    assert not train.all()
    known = sorted(v for v, t in zip(X[:, 1], train, strict=True) if t and not np.isnan(v))
    filled = impute_train_median(X.copy(), 5)
    assert filled[4, 1] == filled[7, 1] == known[(len(known) - 1) // 2]
    assert (filled[:, 2] == 0).all()
    np.testing.assert_array_equal(filled[:, 0], X[:, 0])


# --- sepsis ------------------------------------------------------------------------------------------------------


def psv(hours: np.ndarray, labels: list[int]) -> bytes:
    head = "|".join((*HOURLY, "SepsisLabel"))
    body = [
        "|".join("NaN" if np.isnan(v) else f"{v:g}" for v in row) + f"|{k}"
        for row, k in zip(hours, labels, strict=True)
    ]
    return "\n".join([head, *body, ""]).encode()


def some_hours(seed: int, h: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    hours = np.round(rng.normal(50, 10, (h, 40)), 2)
    hours[:, :34][rng.random((h, 34)) < 0.5] = np.nan
    hours[:, 12] = np.nan  # never measured
    hours[:, 34:39] = hours[0, 34:39]
    return hours.astype(np.float32)


def test_patient_aggregate_by_its_column_names():
    hours = some_hours(0, 7)
    row = dict(zip(COLUMNS, aggregate_patient(hours), strict=True))
    for j, name in enumerate(HOURLY[:34]):
        values = [float(v) for v in hours[:, j] if not np.isnan(v)]
        assert row[f"{name}_obsfrac"] == np.float32(len(values) / 7)
        if not values:
            assert np.isnan(row[f"{name}_mean"])
            continue
        assert row[f"{name}_mean"] == pytest.approx(sum(values) / len(values), rel=1e-6)
        if j < 8:
            assert row[f"{name}_min"] == np.float32(min(values))
            assert row[f"{name}_max"] == np.float32(max(values))
    for name in ("Age", "Gender", "Unit1", "HospAdmTime"):
        assert row[name] == hours[0, HOURLY.index(name)]
    assert row["n_hours"] == 7


@pytest.mark.parametrize("packed", [False, True])
def test_patients_in_order_with_missing_values_filled(tmp_path, packed):
    patients = {f"p{pid:06d}.psv": psv(some_hours(pid, 5), [0, 0, pid % 2, 0, 0]) for pid in (100001, 3, 2)}
    if packed:
        early = {f"training/{k}": v for k, v in patients.items() if k < "p1"}
        (tmp_path / "training_setA.zip").write_bytes(zipped(early))
        (tmp_path / "training_setB.zip").write_bytes(zipped({f"x/{k}": v for k, v in patients.items() if k > "p1"}))
    else:
        for name, text in patients.items():
            folder = tmp_path / "sepsis" / ("training_setB" if name > "p1" else "training_setA")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text)
    X, y = rows_of("sepsis", tmp_path)
    assert y.tolist() == [0, 1, 1]
    assert not np.isnan(X).any()
    raw = np.array([aggregate_patient(some_hours(pid, 5)) for pid in (2, 3, 100001)])
    np.testing.assert_array_equal(X[~np.isnan(raw)], raw[~np.isnan(raw)])
    assert np.isnan(raw).any()


def test_damaged_patient_files():
    good, other = psv(some_hours(0, 3), [0, 0, 1]), psv(some_hours(1, 5), [0] * 5)
    found = parse_patients([("p1.psv", good), ("p2.psv", other), ("p3.psv", good)])
    assert [septic for _, septic in found] == [True, False, True]
    np.testing.assert_array_equal(found[1][0], some_hours(1, 5))
    assert [hours.shape for hours, _ in found] == [(3, 40), (5, 40), (3, 40)]
    for bad, message in (
        (good[5:], r"p1\.psv does not begin with"),
        (good[:-3] + b"|9\n", r"p1\.psv, line 4 is damaged"),
        (good[: good.index(b"\n") + 1], r"p1\.psv has no hourly rows"),
    ):
        with pytest.raises(DataError, match=message):
            parse_patients([("p2.psv", other), ("p1.psv", bad), ("p3.psv", good)])


# --- bad files ---------------------------------------------------------------------------------------------------


def test_missing_file_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("L2UL_RAW_DIR", str(tmp_path))
    with pytest.raises(DataError) as caught:
        find_raw("magic")
    page = "https://archive.ics.uci.edu/dataset/159/magic+gamma+telescope"
    assert f"put magic04.data (from {page}) into {tmp_path / 'magic'}" in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zip"])
@pytest.mark.parametrize("how", ["truncated", "garbage"])
def test_damaged_archives(tmp_path, suffix, how):
    rng = np.random.default_rng(0)
    text = "".join(",".join(f"{v:.4f}" for v in row) + ",g\n" for row in rng.normal(size=(5000, 10))).encode()
    pack = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zip": lambda d: zipped({"magic04.data": d}),
    }
    data = pack[suffix](text)
    path = tmp_path / f"magic04.data{suffix}"
    path.write_bytes(data[: len(data) // 2] if how == "truncated" else rng.bytes(5000))
    with pytest.raises(DataError, match=r"magic04\.data.*(truncated|damaged|cannot read)"):
        rows_of("magic", tmp_path)


def test_damaged_adult_archive(tmp_path):
    data = bytearray(gzip.compress(ADULT.encode() * 1000))
    for damaged in (bytes(data[:-20]), bytes(data[:40]) + b"\xff" * 40 + bytes(data[80:])):
        (tmp_path / "adult.data.gz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"adult\.data\.gz is truncated or damaged"):
            rows_of("adult", tmp_path)


def test_zip_members_outside_the_archive_are_not_used(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    evil = {"../magic04.data": MAGIC, "/magic04.data": MAGIC, "..\\magic04.data": MAGIC, "a/../../magic04.data": MAGIC}
    (raw / "magic04.data.zip").write_bytes(zipped(evil))
    with pytest.raises(DataError, match=r"does not hold magic04\.data"):
        rows_of("magic", raw)
    (raw / "magic04.data.zip").write_bytes(zipped({**evil, "magic04.data": MAGIC}))
    assert len(rows_of("magic", raw)[0]) == 2
    assert [path.name for path in tmp_path.rglob("*")] == ["raw", "magic04.data.zip"]  # nothing was unpacked


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(check, "BOMB_BYTES", 1 << 20)
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix]
    (tmp_path / f"magic04.data{suffix}").write_bytes(pack(MAGIC[-22:] * 100_000))
    with pytest.raises(DataError, match=r"magic04\.data.* unpacks to more than 200 times its size"):
        rows_of("magic", tmp_path)


def test_a_zip_with_two_originals_is_refused(tmp_path):
    (tmp_path / "magic04.data.zip").write_bytes(zipped({"a/magic04.data": MAGIC, "b/magic04.data": MAGIC[:-1]}))
    with pytest.raises(DataError, match=r"holds 2 files that may be magic04\.data"):
        rows_of("magic", tmp_path)
    for name in ("A", "B"):
        patients = {f"x{name}/p000001.psv": psv(some_hours(1, 5), [0] * 5)}
        (tmp_path / f"training_set{name}.zip").write_bytes(zipped(patients))
    with pytest.raises(DataError, match="two files of this patient"):
        rows_of("sepsis", tmp_path)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ("(1099511627776, 28)", "'<f4'", "cannot be float32"),
        ("(-1, 28)", "'<f4'", "cannot be float32"),
        ("(3, 28)", "'|O'", "cannot be object"),
        ("(3, 28)", "'nonsense'", "not understood|damaged"),
    ],
)
def test_arrays_that_lie_about_their_size(tmp_path, shape, dtype, message):
    lie = npy(shape, dtype, np.zeros((3, 28), np.float32).tobytes())
    (tmp_path / "higgs_subset.npz").write_bytes(zipped({"X.npy": lie, "y.npy": npy("(3,)", "'|u1'", bytes(3))}))
    with pytest.raises(DataError, match=message):
        rows_of("higgs", tmp_path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"X": np.zeros((3, 28))},
        {"X": np.zeros((3, 27)), "y": np.zeros(3)},
        {"X": np.zeros((3, 28)), "y": np.zeros(4)},
        {"X": np.zeros((3, 28)), "y": np.array([0, 1, 2])},
        {"X": np.array([[{}] * 28] * 3, dtype=object), "y": np.zeros(3)},
    ],
)
def test_npz_that_does_not_fit(tmp_path, arrays):
    np.savez(tmp_path / "higgs_subset.npz", **arrays)
    with pytest.raises(DataError, match=r"higgs_subset\.npz"):
        rows_of("higgs", tmp_path)


def test_npz_is_known_as_a_subset_and_the_original_comes_first(tmp_path):
    np.savez(tmp_path / "higgs_subset.npz", X=np.zeros((3, 28), np.float32), y=np.array([0, 1, 1], np.int8))
    assert find_raw("higgs", tmp_path).is_subset
    assert rows_of("higgs", tmp_path)[1].tolist() == [0, 1, 1]
    (tmp_path / "HIGGS.csv").write_text("1," + ",".join("2" * 28) + "\n")
    assert not find_raw("higgs", tmp_path).is_subset
