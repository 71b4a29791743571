"""The registry: complete entries, https only, and the facts the paper states."""

import pytest

from l2ul_fast.datasets.registry import REGISTRY, datasets, get_info
from l2ul_fast.datasets.sets.adult import CATEGORIES
from l2ul_fast.datasets.text.csv import Layout
from l2ul_fast.errors import DataError

SHAPES = {
    "magic": (19020, 10),
    "adult": (32561, 14),
    "sepsis": (40336, 89),
    "skin": (245057, 3),
    "covtype": (581012, 54),
    "susy": (5_000_000, 18),
    "higgs": (11_000_000, 28),
}


def test_shapes_of_the_paper():
    assert {info.name: (info.n, info.d) for info in datasets()} == SHAPES
    assert list(REGISTRY) == list(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_entries_are_complete(name):
    info = get_info(name)
    assert info.name == name
    for text in (info.original_name, info.licence, info.citation, info.class_rule, info.categorical, info.missing):
        assert text
    assert info.source_page.startswith("https://")
    assert info.files
    for file in info.files:
        assert file.url.startswith("https://")
        assert file.name
    for checksum in [info.content_sha256, info.npz_sha256, *(file.sha256 for file in info.files)]:
        assert checksum is None or (len(checksum) == 64 and int(checksum, 16))
    assert len(set(info.columns)) == info.d
    assert not isinstance(info.reader, Layout) or info.reader.d == info.d
    assert info.stand_in is not None
    assert info.class_counts is None or sum(info.class_counts) == info.n
    assert list(info.base_names) == [base.lower() for base in info.base_names]


def test_adult_categories_are_alphabetical():
    columns = get_info("adult").columns
    names = [columns[j] for j in CATEGORIES]
    assert names == [
        *("workclass", "education", "marital-status", "occupation"),
        *("relationship", "race", "sex", "native-country"),
    ]
    for categories in CATEGORIES.values():
        assert list(categories) == sorted(set(categories))


def test_unknown_name():
    with pytest.raises(DataError, match="there is no dataset 'mnist': choose one of magic"):
        get_info("mnist")
