"""Adult (census income): 14 facts about a person, income above 50,000 dollars or not."""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from l2ul_fast.datasets.registry import CC_BY, UCI, DatasetInfo, RawFile, StandIn, register, words
from l2ul_fast.datasets.text.csv import check_number
from l2ul_fast.datasets.text.rawfiles import (
    MOST_BYTES,
    READ_ERRORS,
    RawData,
    Rows,
    Seen,
    impute_train_median,
    open_text,
)
from l2ul_fast.errors import DataError

# Codes are positions in these lists: alphabetical order, '?' (missing) not counted.
CATEGORIES: dict[int, tuple[str, ...]] = {
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


def read(raw: RawData, split_seed: int, seen_text: Seen | None, seen_file: Seen | None) -> Iterator[Rows]:
    """All rows at once: a missing value becomes the median of the training rows, known only at the end."""
    with open_text(raw, seen_file) as stream:
        yield from read_adult(stream, str(raw.path), split_seed, seen_text)


def read_adult(stream: BinaryIO, name: str, split_seed: int = 0, seen: Seen | None = None) -> Iterator[Rows]:
    """adult.data: 14 columns (categories as codes) and the income class."""
    try:
        text = stream.read(MOST_BYTES + 1)
    except READ_ERRORS as error:
        raise DataError(f"{name} is truncated or damaged ({error}): get it again") from error
    if len(text) > MOST_BYTES:
        raise DataError(f"{name} has more than {MOST_BYTES} bytes: it is not adult.data")
    if seen is not None:
        seen(memoryview(text))
    codes = {j: {c: k for k, c in enumerate(names)} | {"?": np.nan} for j, names in CATEGORIES.items()}
    rows, labels = [], []
    for number, line in enumerate(text.decode("ascii", "backslashreplace").split("\n"), start=1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split(",")]
        try:
            if len(fields) != 15:
                raise ValueError(f"it has {len(fields)} fields instead of 15")
            labels.append(("<=50K", ">50K").index(fields[14]))
            rows.append([codes[j][fields[j]] if j in codes else check_number(fields[j].encode()) for j in range(14)])
        except (ValueError, KeyError) as error:
            raise DataError(f"{name}, line {number} is damaged: {error}") from None
    if rows:
        yield impute_train_median(np.array(rows, dtype=np.float32), split_seed), np.array(labels, dtype=np.uint8)


register(
    DatasetInfo(
        name="adult",
        original_name="Adult (Census Income)",
        source_page="https://archive.ics.uci.edu/dataset/2/adult",
        licence=CC_BY,
        citation="B. Becker, R. Kohavi, Adult, UCI Machine Learning Repository, 1996, doi 10.24432/C5XW20",
        files=(RawFile(UCI + "adult/adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),),
        base_names=("adult.data",),
        content_sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        n=32561,
        class_counts=(24720, 7841),
        class_rule="1 = income >50K, 0 = <=50K; only adult.data is used, adult.test is not",
        categorical="the 8 categorical columns hold 0..k-1, the categories in alphabetical order (CATEGORIES)",
        missing="'?' becomes the median code of the training rows (the lower of two middle values)",
        columns=(
            *words("age workclass fnlwgt education education-num marital-status occupation relationship race sex"),
            *words("capital-gain capital-loss hours-per-week native-country"),
        ),
        reader=read,
        stand_in=StandIn("adult.npz", components=16, max_levels=48),
        order=2,
    )
)
