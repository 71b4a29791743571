"""Hostile data files by the hundred: see support/hostile.py."""

import h5py
import hostile
import numpy as np
import pytest

from l2ul_fast.datasets.file import check
from l2ul_fast.datasets.file.hdf5 import verify
from l2ul_fast.datasets.stream import sample_partitions, stream_counts
from l2ul_fast.errors import DataError
from l2ul_fast.tables import FileTable


@pytest.mark.parametrize("name", ["X", "y"])
@pytest.mark.parametrize("kind", range(hostile.REPLACEMENTS))
def test_fit_counts_and_verify_refuse_the_same(tmp_path, monkeypatch, name, kind):
    """Links, groups, types, virtual and external data, chunks never written, n = 2^31 and 2^40, bombs, NaN, labels."""
    monkeypatch.setattr(check, "BOMB_BYTES", 4 << 20)
    path = tmp_path / "a.h5"
    path.write_bytes(hostile.valid_file())
    partitions = sample_partitions(path, 3, 4, random_state=0)
    with h5py.File(path, "r+") as file:
        hostile.replace(file, name, kind, np.random.default_rng(kind), tmp_path)
    assert bool(verify(path)) == (kind != hostile.STILL_TRUE)
    for use in (lambda: list(FileTable(path, "all").blocks()), lambda: stream_counts(path, partitions, by_class=True)):
        if kind == hostile.STILL_TRUE:
            use()
        else:
            with pytest.raises(DataError) as caught:
                use()
            hostile.one_sentence(caught.value)


def test_hostile_files_are_refused_or_true(tmp_path):
    assert hostile.run_all(list(hostile.TARGETS), 0, 40, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", hostile.TARGETS)
def test_thousands_of_hostile_files(tmp_path, target):
    assert hostile.run_all([target], 40, 640, tmp_path) == []
