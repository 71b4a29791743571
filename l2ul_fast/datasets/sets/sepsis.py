"""Sepsis (PhysioNet Challenge 2019): one row per patient of an intensive care unit, an aggregate of the hourly rows."""

import zipfile
from collections.abc import Iterator
from itertools import islice

import numpy as np

from l2ul_fast.datasets.registry import CC_BY, DatasetInfo, RawFile, StandIn, register, words
from l2ul_fast.datasets.text.csv import Layout, LineError, parse_block
from l2ul_fast.datasets.text.rawfiles import (
    MOST_BYTES,
    READ_ERRORS,
    RawData,
    Rows,
    Seen,
    base_name,
    impute_train_median,
    safe_members,
)
from l2ul_fast.errors import DataError

VITALS = ("HR", "O2Sat", "Temp", "SBP", "MAP", "DBP", "Resp", "EtCO2")
LABS = words(
    "BaseExcess HCO3 FiO2 pH PaCO2 SaO2 AST BUN Alkalinephos Calcium Chloride Creatinine Bilirubin_direct Glucose "
    "Lactate Magnesium Phosphate Potassium Bilirubin_total TroponinI Hct Hgb PTT WBC Fibrinogen Platelets"
)
HOURLY = (*VITALS, *LABS, "Age", "Gender", "Unit1", "Unit2", "HospAdmTime", "ICULOS")
COLUMNS = (
    *(f"{c}_mean" for c in VITALS + LABS),
    *(f"{c}_obsfrac" for c in VITALS + LABS),
    *(f"{c}_min" for c in VITALS),
    *(f"{c}_max" for c in VITALS),
    *("Age", "Gender", "Unit1", "HospAdmTime", "n_hours"),
)
_HOUR = Layout(40, {0: 0, 1: 1}, delimiter="|", allow_nan=True)


def read(raw: RawData, split_seed: int, seen_text: Seen | None, seen_file: Seen | None) -> Iterator[Rows]:
    """One row per patient from the .psv files, by patient number; quantities never measured are imputed."""
    rows, labels, files = [], [], _patient_files(raw)
    while some := list(islice(files, 200)):  # pyarrow takes as long to begin as to read the hours of one patient
        for hours, septic in parse_patients(some):
            rows.append(aggregate_patient(hours))
            labels.append(septic)
    yield impute_train_median(np.array(rows, dtype=np.float32), split_seed), np.array(labels, dtype=np.uint8)


def _patient_files(raw: RawData) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()

    def checked(name: str, base: str, size: int) -> str:
        if base in seen:
            raise DataError(f"{name}: there are two files of this patient")
        if size > MOST_BYTES:
            raise DataError(f"{name} has {size} bytes, too many for one patient")
        seen.add(base)
        return name

    for path in raw.paths:
        if path.suffix.lower() != ".zip":
            yield checked(str(path), path.name.lower(), path.stat().st_size), path.read_bytes()
            continue
        try:
            with zipfile.ZipFile(path) as archive:
                members = [m for m in safe_members(archive) if base_name(m).endswith(".psv")]
                for member in sorted(members, key=base_name):
                    name = checked(f"{path}, {member.filename}", base_name(member), member.file_size)
                    yield name, archive.read(member)
        except READ_ERRORS as error:
            raise DataError(f"{path} is truncated or damaged ({error}): get it again") from error


def parse_patients(files: list[tuple[str, bytes]]) -> list[tuple[np.ndarray, bool]]:
    """Of each .psv file (name, text): hourly rows (h, 40) float32, NaN where not measured, and whether ever septic."""
    bodies, sizes = [], []
    for name, text in files:
        header, _, body = text.partition(b"\n")
        if header.decode("ascii", "replace").strip() != "|".join((*HOURLY, "SepsisLabel")):
            raise DataError(f"{name} does not begin with the Challenge 2019 header line")
        bodies.append(body if body.endswith(b"\n") else body + b"\n")
        sizes.append(sum(bool(line.strip()) for line in body.split(b"\n")))
        if not sizes[-1]:
            raise DataError(f"{name} has no hourly rows")
    try:
        hours, septic = parse_block(b"".join(bodies), _HOUR)
    except LineError as error:
        if len(files) == 1:
            raise DataError(f"{files[0][0]}, line {error.line + 2} is damaged: {error}") from None
        return [parse_patients([file])[0] for file in files]
    ends = np.cumsum(sizes)[:-1]
    return [(X, bool(y.any())) for X, y in zip(np.split(hours, ends), np.split(septic, ends), strict=True)]


def aggregate_patient(hours: np.ndarray) -> np.ndarray:
    """Hourly rows (h, 40) to the 89 columns of COLUMNS, float32; NaN = never measured."""
    measured = hours[:, :34]
    count = np.count_nonzero(~np.isnan(measured), axis=0)
    with np.errstate(invalid="ignore"):  # 0 / 0 = NaN is meant: never measured
        mean = np.nansum(measured, axis=0, dtype=np.float64) / count
    vitals = measured[:, : len(VITALS)]
    static = hours[0, [34, 35, 36, 38]]  # Age, Gender, Unit1, HospAdmTime: the same in every hour
    parts = (mean, count / len(hours), np.fmin.reduce(vitals), np.fmax.reduce(vitals), static, [len(hours)])
    return np.concatenate(parts).astype(np.float32)


register(
    DatasetInfo(
        name="sepsis",
        original_name="Early Prediction of Sepsis from Clinical Data: the PhysioNet/CinC Challenge 2019",
        source_page="https://physionet.org/content/challenge-2019/1.0.0/",
        licence=CC_BY,
        citation="M. Reyna et al., Early Prediction of Sepsis from Clinical Data, PhysioNet, doi 10.13026/v64v-d857",
        files=(
            RawFile("https://archive.physionet.org/users/shared/challenge-2019/training_setA.zip"),
            RawFile("https://archive.physionet.org/users/shared/challenge-2019/training_setB.zip"),
        ),
        patterns=("training/training_set*/p*.psv", "training*/p*.psv", "p*.psv"),
        n=40336,
        class_counts=(37404, 2932),
        class_rule="1 = the patient has SepsisLabel 1 in some hour, 0 = never",
        categorical="Gender and Unit1 are 0/1 in the original; one row per patient is our own aggregate of the hourly "
        "rows: mean and observed fraction of 34 vitals and labs, minimum and maximum of 8 vitals, Age, Gender, Unit1, "
        "HospAdmTime, number of hours",
        missing="a quantity never measured becomes the median of the training rows (the lower of two middle values)",
        columns=COLUMNS,
        npz="sepsis_patient_agg89.npz",
        npz_sha256="e353fe1f09de6b9f1acd0364334b988541a9a9d391308c8a0d201f291ce2439e",
        reader=read,
        stand_in=StandIn("sepsis.npz", components=2),
        order=3,
    )
)
