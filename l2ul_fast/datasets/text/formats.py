"""From an original file to rows: each parser yields X (k, d) float32 and y (k,) uint8, in file order.

The big sets stream in flat memory. adult and sepsis are held in memory (a few megabytes), because a missing value
becomes the median of the training rows, which is known only at the end.
"""

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from l2ul_fast.datasets.registry import SEPSIS_HOURLY, VITALS, words
from l2ul_fast.datasets.split import train_mask
from l2ul_fast.datasets.text.blocks import parse_text
from l2ul_fast.datasets.text.csv import LABEL, PAD, Layout, LineError, Rows, parse_block
from l2ul_fast.datasets.text.rawfiles import READ_ERRORS, RawData, base_name, open_text, safe_members
from l2ul_fast.errors import DataError

Seen = Callable[[memoryview], None]

LAYOUTS = {
    "magic": Layout(10, ((ord("g"), 1), (ord("h"), 0)), (*range(10), LABEL)),
    "skin": Layout(3, ((1, 1), (2, 0)), (*range(3), LABEL), delimiter=b"\t"),
    "covtype": Layout(54, tuple((k, int(k == 2)) for k in range(1, 8)), (*range(54), LABEL)),
    "susy": Layout(18, ((1, 1), (0, 0)), (LABEL, *range(18))),
    "higgs": Layout(28, ((1, 1), (0, 0)), (LABEL, *range(28))),
}
_PATIENT = Layout(40, ((0, 0), (1, 1)), (*range(40), LABEL), delimiter=b"|", allow_nan=True)

# Codes are positions in these lists: alphabetical order, '?' (missing) not counted.
ADULT_CATEGORIES: dict[int, tuple[str, ...]] = {
    1: words("Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay"),
    3: words(
        "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad Masters Preschool "
        "Prof-school Some-college"
    ),
    5: words("Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated Widowed"),
    6: words(
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners Machine-op-inspct "
        "Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support Transport-moving"
    ),
    7: words("Husband Not-in-family Other-relative Own-child Unmarried Wife"),
    8: words("Amer-Indian-Eskimo Asian-Pac-Islander Black Other White"),
    9: ("Female", "Male"),
    13: words(
        "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France Germany Greece "
        "Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico "
        "Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South Taiwan "
        "Thailand Trinadad&Tobago United-States Vietnam Yugoslavia"
    ),
}


def read_rows(
    raw: RawData,
    *,
    split_seed: int = 0,
    threads: int | None = None,
    seen_text: Seen | None = None,
    seen_file: Seen | None = None,
) -> Iterator[Rows]:
    """The rows of an original. seen_text gets the unpacked text, seen_file the bytes on disk (text files only)."""
    if raw.kind == "npz":
        yield from read_npz(raw.path, raw.info.d, split_seed)
        return
    if raw.kind == "psv":
        yield from read_patients(raw, split_seed)
        return
    with open_text(raw, seen_file) as stream:
        if raw.info.name == "adult":
            yield from read_adult(stream, str(raw.path), split_seed, seen_text)
            return
        layout = LAYOUTS[raw.info.name]
        if raw.info.name in ("susy", "higgs") and _is_libsvm(raw):
            layout = Layout(layout.d, ((1, 1), (0, 0), (-1, 0)))
        yield from parse_text(stream, layout, str(raw.path), threads=threads, seen=seen_text)


def _is_libsvm(raw: RawData) -> bool:
    with open_text(raw) as stream:
        try:
            return b":" in stream.readline(1 << 16)
        except READ_ERRORS:
            return False  # the full read will say what is wrong


def impute_train_median(X: np.ndarray, split_seed: int = 0) -> np.ndarray:
    """Replace each NaN of X (n, d), in place, by the (lower) median of its column over the training rows."""
    train = train_mask(0, len(X), split_seed)
    for j in np.flatnonzero(np.isnan(X).any(axis=0)):
        known = X[train, j]
        known = np.sort(known[~np.isnan(known)])
        X[np.isnan(X[:, j]), j] = known[(known.size - 1) // 2] if known.size else 0.0
    return X


def read_npz(path: Path, d: int, split_seed: int = 0) -> Iterator[Rows]:
    """Arrays X (n, d) and y (n,) of a NumPy archive; NaN is imputed."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            X, y = np.asarray(archive["X"], dtype=np.float32), np.asarray(archive["y"])
    except (*READ_ERRORS, ValueError, KeyError) as error:
        raise DataError(f"{path} is not a NumPy archive with X and y, or is damaged: {error}") from error
    if X.ndim != 2 or X.shape[1] != d or y.shape != X.shape[:1] or not np.isin(y, (0, 1)).all():
        raise DataError(f"{path} must hold X (n, {d}) and y (n,) of 0 and 1, not {X.shape} and {y.shape}")
    yield impute_train_median(X, split_seed), y.astype(np.uint8)


def read_adult(stream: BinaryIO, name: str, split_seed: int = 0, seen: Seen | None = None) -> Iterator[Rows]:
    """adult.data: 14 columns (categories as codes) and the income class."""
    try:
        text = stream.read()
    except READ_ERRORS as error:
        raise DataError(f"{name} is truncated or damaged ({error}): get it again") from error
    if seen is not None:
        seen(memoryview(text))
    codes = {j: {c: k for k, c in enumerate(names)} | {"?": np.nan} for j, names in ADULT_CATEGORIES.items()}
    rows, labels = [], []
    for number, line in enumerate(text.decode("ascii", "backslashreplace").split("\n"), start=1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split(",")]
        try:
            if len(fields) != 15:
                raise ValueError(f"it has {len(fields)} fields instead of 15")
            labels.append(("<=50K", ">50K").index(fields[14]))
            rows.append([codes[j][fields[j]] if j in codes else float(fields[j]) for j in range(14)])
        except (ValueError, KeyError) as error:
            raise DataError(f"{name}, line {number} is damaged: {error}") from None
    if rows:
        yield impute_train_median(np.array(rows, dtype=np.float32), split_seed), np.array(labels, dtype=np.uint8)


def read_patients(raw: RawData, split_seed: int = 0) -> Iterator[Rows]:
    """Sepsis: one row per patient from the .psv files, by patient number; quantities never measured are imputed."""
    rows, labels = [], []
    for name, text in _patient_files(raw):
        hours, septic = parse_patient(text, name)
        rows.append(aggregate_patient(hours))
        labels.append(septic)
    yield impute_train_median(np.array(rows, dtype=np.float32), split_seed), np.array(labels, dtype=np.uint8)


def _patient_files(raw: RawData) -> Iterator[tuple[str, bytes]]:
    for path in raw.paths:
        if path.suffix.lower() != ".zip":
            yield str(path), path.read_bytes()
            continue
        try:
            with zipfile.ZipFile(path) as archive:
                members = [m for m in safe_members(archive) if base_name(m).endswith(".psv")]
                for member in sorted(members, key=base_name):
                    yield f"{path}, {member.filename}", archive.read(member)
        except READ_ERRORS as error:
            raise DataError(f"{path} is truncated or damaged ({error}): get it again") from error


def parse_patient(text: bytes, name: str) -> tuple[np.ndarray, bool]:
    """One .psv file: hourly rows (h, 40) float32 with NaN where nothing was measured, and whether ever septic."""
    header, _, body = text.partition(b"\n")
    expected = "|".join((*SEPSIS_HOURLY, "SepsisLabel"))
    if header.decode("ascii", "replace").strip() != expected:
        raise DataError(f"{name} does not begin with the Challenge 2019 header line")
    body = body if body.endswith(b"\n") else body + b"\n"
    try:
        blocks, _ = parse_block(np.frombuffer(body + bytes(PAD), dtype=np.uint8), len(body), _PATIENT)
    except LineError as error:
        raise DataError(f"{name}, line {error.line + 2} is damaged: {error}") from None
    hours = np.concatenate([X for X, _ in blocks])
    if not len(hours):
        raise DataError(f"{name} has no hourly rows")
    return hours, any(y.any() for _, y in blocks)


def aggregate_patient(hours: np.ndarray) -> np.ndarray:
    """Hourly rows (h, 40) to the 89 columns of registry.SEPSIS_COLUMNS, float32; NaN = never measured."""
    measured = hours[:, :34]
    count = np.count_nonzero(~np.isnan(measured), axis=0)
    with np.errstate(invalid="ignore"):  # 0 / 0 = NaN is meant: never measured
        mean = np.nansum(measured, axis=0, dtype=np.float64) / count
    vitals = measured[:, : len(VITALS)]
    static = hours[0, [34, 35, 36, 38]]  # Age, Gender, Unit1, HospAdmTime: the same in every hour
    parts = (mean, count / len(hours), np.fmin.reduce(vitals), np.fmax.reduce(vitals), static, [len(hours)])
    return np.concatenate(parts).astype(np.float32)
