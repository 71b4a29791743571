"""Packed cells, the one-hot map and counts of stored cells."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import l2ul_kernels as lk
from l2ul_kernels import reference


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 37), st.integers(2, 4096), st.integers(0, 2**32))
def test_packing_round_trips_and_agrees_with_the_oracle(n, t, psi, seed):
    cells = np.random.default_rng(seed).integers(0, psi, (n, t)).astype(np.uint8 if psi <= 256 else np.uint16)
    packed = lk.pack_cells(cells, psi)
    assert packed.shape == (n, lk.packed_width(t, psi))
    np.testing.assert_array_equal(packed, reference.pack_cells(cells, psi))
    again = lk.unpack_cells(packed, t, psi)
    assert again.dtype == cells.dtype
    np.testing.assert_array_equal(again, cells)
    np.testing.assert_array_equal(reference.unpack_cells(packed, t, psi), cells)


def test_higgs_rows_take_25_bytes():
    assert lk.packed_width(100, 4) == 25
    assert [lk.bits_per_cell(psi) for psi in (2, 3, 4, 5, 256, 257, 4096)] == [1, 2, 2, 3, 8, 9, 12]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(1, 20), st.integers(2, 300), st.integers(0, 2**32))
def test_one_hot_has_one_one_per_partition(n, t, psi, seed):
    cells = np.random.default_rng(seed).integers(0, psi, (n, t))
    sparse = lk.one_hot(cells, psi)
    assert sparse.shape == (n, t * psi)
    assert sparse.has_canonical_format
    np.testing.assert_array_equal(sparse.toarray(), reference.one_hot(cells, psi))
    np.testing.assert_array_equal(
        np.asarray(sparse.sum(axis=0)).reshape(t, psi), reference.cell_counts(cells, psi) if n else np.zeros((t, psi))
    )


def test_counts_of_many_stored_cells_use_several_workers_and_agree():
    rng = np.random.default_rng(0)
    cells, y = rng.integers(0, 5, (30_000, 40)).astype(np.uint8), rng.integers(0, 3, 30_000)
    np.testing.assert_array_equal(lk.counts_from_cells(cells, 5), reference.cell_counts(cells, 5))
    total = lk.counts_from_cells(cells, 5, y, 3)
    np.testing.assert_array_equal(total, reference.class_counts(cells, y, 5, 3))
    lk.counts_from_cells(cells[:100], 5, y[:100], 3, out=total, sign=-1)
    np.testing.assert_array_equal(total, reference.class_counts(cells[100:], y[100:], 5, 3))


def test_bad_cells_are_one_clear_sentence():
    cells = np.zeros((4, 3), np.uint8)
    frozen = lk.pack_cells(cells, 4)
    frozen.setflags(write=False)
    assert not lk.unpack_cells(frozen, 3, 4).any()
    cases = [
        (ValueError, "0..3", lambda: lk.pack_cells(cells + 4, 4)),
        (ValueError, "0..3", lambda: lk.one_hot(cells.astype(int) - 1, 4)),
        (ValueError, r"\(n, 1\)", lambda: lk.unpack_cells(np.zeros((4, 2), np.uint8), 3, 4)),
        (ValueError, "labels", lambda: lk.counts_from_cells(cells, 4, np.full(4, 9), 2)),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()
