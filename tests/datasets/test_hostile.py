"""Hostile data files by the hundred: see support/hostile.py."""

import h5py
import hostile
import numpy as np
import pytest

from l2ul_fast.datasets.file import check, hdf5
from l2ul_fast.datasets.file.hdf5 import open_dataset, verify
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


@pytest.mark.timeout(30)
def test_text_that_hdf5_would_read_without_end_is_refused(tmp_path):
    data = bytearray(hostile.valid_file())
    heap = data.index(check.HEAP)
    first = heap + 16  # an object of the heap: made longer, what follows it lies where nothing is
    size = int.from_bytes(data[first + 8 : first + 16], "little")
    for longer in (16, 4000, 2**62):
        data[first + 8 : first + 16] = (size + longer).to_bytes(8, "little")
        (tmp_path / "a.h5").write_bytes(data)
        with pytest.raises(DataError, match="its text is damaged" if longer > 16 else "cannot be used"):
            open_dataset(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:  # a sound heap, grown and shrunk, among other data
        file["Z"] = np.arange(5000)
        file.attrs["a"] = ["x" * k for k in range(200)]
        del file.attrs["a"]
        file.attrs["b"] = ["y" * 5 * k for k in range(300)]
    hdf5.open_hdf5(tmp_path / "b.h5", "b.h5").close()


@pytest.mark.parametrize(("place", "value"), [(1, 3), (1, 2), (4, 17), (12, 65), (24, 200), (24, 0x7FFFFFFF), (28, 9)])
def test_types_and_lengths_of_text_that_hdf5_would_trust(tmp_path, place, value):
    """Some of these end the process: a fault here is a crash of the tests."""
    data = bytearray(hostile.valid_file())
    start = data.index(b"format\0\0\x19\1") + 8  # of the type; 16 bytes on, the shape, then length, heap and number
    assert data[start + 4 : start + 8] == b"\x10\0\0\0"
    place = place if place < 24 else data.index((12).to_bytes(4, "little"), start + 16) + place - 24
    data[place if place > 100 else start + place] = value & 255
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(DataError, match=r"the type of its text is damaged|its text is damaged"):
        open_dataset(tmp_path / "a.h5")


def test_hostile_files_are_refused_or_true(tmp_path):
    assert hostile.run_all(list(hostile.TARGETS), 0, 40, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", hostile.TARGETS)
def test_thousands_of_hostile_files(tmp_path, target):
    assert hostile.run_all([target], 40, 640, tmp_path) == []
