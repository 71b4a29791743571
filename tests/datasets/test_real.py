"""The real originals in L2UL_RAW_DIR: exact row counts and class balances, and spot checks of content."""

import os

import numpy as np
import pytest

from l2ul_fast.datasets import REGISTRY, convert, default_raw_dir, open_dataset, verify
from l2ul_fast.datasets.sets.sepsis import aggregate_patient

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not os.environ.get("L2UL_RAW_DIR"), reason="L2UL_RAW_DIR is not set"),
]

COUNTS = {  # rows of class 0 and class 1
    "magic": (6688, 12332),
    "adult": (24720, 7841),
    "sepsis": (37404, 2932),
    "skin": (194198, 50859),
    "covtype": (297711, 283301),
}
SUBSETS = {"susy": (5551, 5447), "higgs": (25578, 28846)}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("name", COUNTS)
def test_complete_sets(name, data_dir):
    path = convert(name, data_dir=data_dir)
    with open_dataset(path) as data:
        assert data.label == "real"
        assert (data.n, data.d) == (REGISTRY[name].n, REGISTRY[name].d)
        assert tuple(data.class_counts) == COUNTS[name]
        y = data.read(0, data.n)[1]
        assert (int((y == 0).sum()), int((y == 1).sum())) == COUNTS[name]
        assert abs(data.n_train / data.n - 0.8) < 0.01
    assert verify(path) == []


@pytest.mark.parametrize("name", SUBSETS)
def test_subsets(name, data_dir):
    path = convert(name, data_dir=data_dir)
    with open_dataset(path) as data:
        assert data.label == "subset"
        assert tuple(data.class_counts) == SUBSETS[name]
        assert data.n == sum(SUBSETS[name]) < data.attrs["original_rows"] == REGISTRY[name].n
    assert verify(path) == []


def test_first_rows(data_dir):
    with open_dataset(convert("covtype", data_dir=data_dir)) as data:
        X, y = data.read(0, 1)
        assert X[0, :10].tolist() == [2596, 51, 3, 258, 0, 510, 221, 232, 148, 6279]
        assert y[0] == 0
        elevation = data.X[:, 0]
        assert (elevation.min(), elevation.max()) == (1859, 3858)
    with open_dataset(convert("skin", data_dir=data_dir)) as data:
        X, y = data.read(0, data.n)
        assert X[0].tolist() == [74, 85, 123]
        assert len(np.unique(np.column_stack([X, y]), axis=0)) == 51_444


def test_sepsis_aggregate_is_the_documented_one():
    """Our aggregation of the hourly rows gives the 89 columns of the archive, bit for bit."""
    folder = default_raw_dir() / "sepsis"
    hourly, archive = folder / "physionet2019_hourly.npz", folder / "sepsis_patient_agg89.npz"
    if not hourly.exists() or not archive.exists():
        pytest.skip("the hourly archive is not there")
    with np.load(hourly, allow_pickle=False) as h, np.load(archive, allow_pickle=False) as a:
        X, offsets, want, columns = h["X"], h["off"], a["X"], a["cols"]
    assert tuple(columns) == REGISTRY["sepsis"].columns
    for i in range(0, len(want), 20):
        np.testing.assert_array_equal(aggregate_patient(X[offsets[i] : offsets[i + 1]]), want[i])
