"""The kernels of one request against their oracles."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import l2ul_kernels as lk
from l2ul_kernels import reference
from l2ul_kernels.reference import request as oracle
from l2ul_kernels.request import (
    FOREIGN,
    FORGOTTEN,
    GONE,
    NOT_TRAINED,
    OUTSIDE,
    PRESENT,
    TWICE,
    claim,
    erase_rows,
    forget_cells,
    gather,
    gather_mapped,
    logistic_total,
    release,
)

seeds = st.integers(0, 2**32)


# Claim and release ---------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([PRESENT, PRESENT, PRESENT, FORGOTTEN, FOREIGN]), max_size=12),
    st.lists(st.integers(-2, 13), max_size=8),
)
def test_claim(states, rows):
    gone, ids = np.array(states, np.uint8), np.array(rows, np.int64)
    expected, after = oracle.claim(ids, gone)
    before = gone.copy()
    assert claim(ids, gone) == expected
    np.testing.assert_array_equal(gone, after)
    assert ids.tolist() == rows
    if expected == -1:
        release(ids, gone)
        np.testing.assert_array_equal(gone, before)


REFUSED = [([0, -1], 1, OUTSIDE), ([5], 0, OUTSIDE), ([2**62, 0], 0, OUTSIDE), ([-(2**63)], 0, OUTSIDE)]
REFUSED += [([0, 2, 3], 2, GONE), ([0, 4], 1, NOT_TRAINED), ([0, 1, 0], 2, TWICE), ([1, 1], 1, TWICE)]


@pytest.mark.parametrize(("rows", "place", "reason"), REFUSED)
def test_each_refusal_names_the_place_and_the_reason_and_changes_nothing(rows, place, reason):
    gone = np.array([PRESENT, PRESENT, PRESENT, FORGOTTEN, FOREIGN], np.uint8)
    before = gone.copy()
    code = claim(np.array(rows, np.int64), gone)
    assert (code // 8, code % 8) == (place, reason)
    np.testing.assert_array_equal(gone, before)


def test_a_claimed_row_is_gone_for_the_next_request():
    gone = np.zeros(4, np.uint8)
    assert claim(np.array([2, 0]), gone) == -1
    assert gone.tolist() == [FORGOTTEN, PRESENT, FORGOTTEN, PRESENT]
    assert claim(np.array([1, 2]), gone) == 8 + GONE
    assert claim(np.zeros(0, np.int64), gone) == -1


# Rows ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 9), st.sampled_from([np.float32, np.float64]), st.data())
def test_gather_and_erase(n, d, dtype, data):
    rng = np.random.default_rng(data.draw(seeds))
    X, y = rng.normal(size=(n, d)).astype(dtype), rng.integers(0, 5, n).astype(np.uint8)
    ids = np.array(data.draw(st.lists(st.integers(0, n - 1), unique=True)), np.int64)
    rows, labels = np.full((len(ids), d), np.nan, dtype), np.full(len(ids), 99, np.uint8)
    gather(X, y, ids, rows, labels)
    np.testing.assert_array_equal(rows, X[ids])
    np.testing.assert_array_equal(labels, y[ids])
    erased, blank = X.copy(), y.copy()
    erase_rows(erased, blank, ids)
    X[ids], y[ids] = 0, 0
    np.testing.assert_array_equal(erased, X)
    np.testing.assert_array_equal(blank, y)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 7), st.integers(1, 4), st.data())
def test_gather_mapped_at_any_offset(d, chunk_rows, chunks, data):
    """Chunks lie anywhere in the file, in any order, aligned or not."""
    rng = np.random.default_rng(data.draw(seeds))
    X = rng.normal(size=(chunks * chunk_rows, d)).astype("<f4")
    y = rng.integers(0, 3, len(X)).astype(np.uint8)
    memory, offsets = bytearray(), np.zeros(chunks, np.int64)
    for chunk in rng.permutation(chunks):
        memory += rng.bytes(data.draw(st.integers(0, 9)))
        offsets[chunk] = len(memory)
        memory += X[chunk * chunk_rows : (chunk + 1) * chunk_rows].tobytes()
    mean, inverse = rng.normal(size=d), 1 / rng.uniform(0.1, 10, d)
    ids = np.array(data.draw(st.lists(st.integers(0, len(X) - 1), max_size=9)), np.int64)
    raw, labels = np.empty((len(ids), 4 * d), np.uint8), np.empty(len(ids), np.uint8)
    mapped = np.frombuffer(bytes(memory), np.uint8)
    gather_mapped(mapped, offsets, chunk_rows, np.stack([mean, inverse]), y, ids, raw, labels)
    rows = raw.view(np.float32)
    expected = oracle.gather_mapped(bytes(memory), offsets, chunk_rows, mean, inverse, ids)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(expected, ((X[ids].astype(float) - mean) * inverse).astype(np.float32))
    np.testing.assert_array_equal(labels, y[ids])


# Cells ---------------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 30), st.integers(1, 37), st.sampled_from([*range(2, 17), 255, 300, 4096]), seeds, st.data())
@example(3, 5, 3, 0, None)  # 10 bits: the second byte is used in part
@example(1, 1, 2, 0, None)
def test_forget_cells(n, t, psi, seed, data):
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, psi, (n, t)).astype(np.uint8 if psi <= 256 else np.uint16)
    y = rng.integers(0, 3, n).astype(np.uint8)
    packed, counts = reference.pack_cells(cells, psi), reference.class_counts(cells, y, psi, 3)
    ids = np.arange(n) if data is None else np.array(data.draw(st.lists(st.integers(0, n - 1), unique=True)), np.int64)
    expected = oracle.forget_cells(packed, ids, y[ids], psi, counts)
    forget_cells(packed, ids, y[ids], np.arange(len(ids)), lk.bits_per_cell(psi), counts)
    np.testing.assert_array_equal(packed, expected[0])
    np.testing.assert_array_equal(counts, expected[1])
    keep = np.setdiff1d(np.arange(n), ids)
    np.testing.assert_array_equal(counts, reference.class_counts(cells[keep], y[keep], psi, 3))
    assert not packed[ids].any()
    np.testing.assert_array_equal(packed[keep], reference.pack_cells(cells[keep], psi))


# The gradient --------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    seeds, st.integers(0, 30), st.integers(1, 9), st.sampled_from([np.float32, np.float64]), st.sampled_from([1, 40])
)
def test_gradient_of_the_rows(seed, r, d, dtype, size):
    """size 40: the sigmoid is 0 or 1 to the last bit for many rows."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(r, d)).astype(dtype), rng.integers(0, 2, r).astype(np.uint8)
    theta, total = size * rng.normal(size=d + 1), np.empty(d + 1)
    logistic_total(X, y, theta, 0.1, total)
    np.testing.assert_allclose(total, oracle.total(X, y, theta, 0.1), rtol=1e-11, atol=1e-11)
