"""The kernels of one request against their oracles."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import l2ul_kernels as lk
from l2ul_kernels import reference
from l2ul_kernels import reference_request as oracle
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
    forget_stored,
    gather,
    gather_mapped,
    leave_classes,
    linear_move,
    linear_move_single,
    logistic_total,
    mlp_total,
    newton_move,
    refined_solve,
    release,
    solve_move,
    take_rows_out,
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


@pytest.mark.parametrize(
    ("rows", "place", "reason"),
    [
        ([0, -1], 1, OUTSIDE), ([5], 0, OUTSIDE), ([2**62, 0], 0, OUTSIDE), ([-(2**63)], 0, OUTSIDE),
        ([0, 2, 3], 2, GONE), ([0, 4], 1, NOT_TRAINED), ([0, 1, 0], 2, TWICE), ([1, 1], 1, TWICE),
    ],
)  # fmt: skip
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
    rows = raw.view(np.float32)
    mapped = np.frombuffer(bytes(memory), np.uint8)
    gather_mapped(mapped, offsets, chunk_rows, mean, inverse, y, ids, raw, rows, labels)
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
    both = packed.copy(), counts.copy(), rng.normal(size=(n, 3)), y.copy()
    kept = both[2].copy()
    own = both[3][ids[0] : ids[0] + 1] if ids.size == 1 else y[ids]  # may be a part of what is erased
    forget_stored(both[0], ids, own, lk.bits_per_cell(psi), *both[1:])
    kept[ids] = 0
    np.testing.assert_array_equal(both[2], kept)
    np.testing.assert_array_equal(both[3], np.where(np.isin(np.arange(n), ids), 0, y))
    forget_cells(packed, ids, y[ids], lk.bits_per_cell(psi), counts)
    np.testing.assert_array_equal(both[0], packed)
    np.testing.assert_array_equal(both[1], counts)
    np.testing.assert_array_equal(packed, expected[0])
    np.testing.assert_array_equal(counts, expected[1])
    keep = np.setdiff1d(np.arange(n), ids)
    np.testing.assert_array_equal(counts, reference.class_counts(cells[keep], y[keep], psi, 3))
    assert not packed[ids].any()
    np.testing.assert_array_equal(packed[keep], reference.pack_cells(cells[keep], psi))


# The move ------------------------------------------------------------------------------------------------------------


def problem(seed, n=40, d=4, dtype=np.float32):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, d)).astype(dtype), rng.integers(0, 2, n).astype(np.uint8)
    return rng, X, y, rng.normal(size=d + 1), rng.normal(size=d + 1)


@settings(max_examples=40, deadline=None)
@given(
    seeds, st.integers(0, 30), st.integers(1, 9), st.sampled_from([np.float32, np.float64]), st.sampled_from([1, 40])
)
def test_gradient_and_curvature_of_the_rows(seed, r, d, dtype, size):
    """size 40: the sigmoid is 0 or 1 to the last bit for many rows."""
    _, X, y, theta, anchor = problem(seed, r, d, dtype)
    theta, anchor = size * theta, size * anchor
    total = np.empty(d + 1)
    logistic_total(X, y, theta, 0.1, total)
    np.testing.assert_allclose(total, oracle.total(X, y, theta, 0.1), rtol=1e-11, atol=1e-11)
    summed, curvature = np.ones(d + 1), np.full((d + 1, d + 1), 5.0)
    take_rows_out(X, y, theta, anchor, summed, curvature)
    np.testing.assert_allclose(summed - 1, oracle.total(X, y, theta, 0.0), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(5 - curvature, oracle.curvature(X, anchor), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(curvature, curvature.T, rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(0, 12), st.booleans(), st.sampled_from([np.float32, np.float64]))
def test_newton_move_is_a_dense_newton_step(seed, r, corrected, dtype):
    rng, X, y, theta, anchor = problem(seed, 200, 4, dtype)
    n, lam = len(X), 0.05
    curvature = oracle.curvature(X, anchor)
    inverse = np.linalg.inv(oracle.system(curvature, n * lam))
    correction = rng.normal(size=(5, 5)) if corrected else np.zeros((0, 0))
    expected, after = oracle.newton_move(X[:r], y[:r], theta, anchor, curvature, correction, n, lam)
    kept, before, work, out = inverse.copy(), curvature.copy(), np.empty((8, 5)), np.empty(5)
    residual = newton_move(X[:r], y[:r], theta, anchor, curvature, inverse, correction, n, lam, work, out)
    assert residual < 0.05
    # the error of three refinements is the residual's
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12 + 100 * residual * np.linalg.norm(expected - theta))
    np.testing.assert_allclose(curvature, after, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(work[0], oracle.total(X[:r], y[:r], theta, lam), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(inverse, kept)
    np.testing.assert_array_equal(work[3:], before)
    if r == 0:
        np.testing.assert_array_equal(out, theta)
    inverse = np.linalg.inv(oracle.system(after, (n - r) * lam))
    assert solve_move(theta, curvature, inverse, correction, n - r, lam, work, out) < 1e-12
    np.testing.assert_allclose(out, expected, rtol=1e-11, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 8), st.integers(1, 5))
def test_refined_solve_converges_at_the_rate_of_the_change(seed, p, steps):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(p + 5, p))
    before, right, ridge = root.T @ root + np.eye(p), rng.normal(size=p), 0.3
    change = 1e-3 * rng.normal(size=(p, p))
    after = before + change + change.T
    inverse = np.linalg.inv(oracle.system(before, ridge))
    x, rest = np.full(p, np.nan), np.full(p, np.nan)
    found = refined_solve(inverse, after, ridge, right, steps, x, rest)
    dense = oracle.system(after, ridge)
    np.testing.assert_allclose(rest, right - dense @ x, atol=1e-12)
    assert found == pytest.approx(np.linalg.norm(rest) / np.linalg.norm(right), abs=1e-13)
    rate = np.linalg.norm((change + change.T) @ inverse, 2)
    assert found <= rate**steps + 1e-13
    np.testing.assert_allclose(x, np.linalg.solve(dense, right), atol=10 * rate**steps + 1e-12)


def test_refined_solve_of_nothing_and_without_hope():
    x, rest = np.empty(2), np.empty(2)
    assert refined_solve(np.eye(2), np.eye(2), 0.0, np.zeros(2), 3, x, rest) == 0.0
    assert x.tolist() == [0.0, 0.0]
    # an inverse that has nothing to do with the matrix: the residual says so
    assert refined_solve(10 * np.eye(2), np.eye(2), 0.0, np.ones(2), 3, x, rest) > 1
    assert np.isnan(refined_solve(np.full((2, 2), np.nan), np.eye(2), 0.0, np.ones(2), 3, x, rest))


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 40), st.sampled_from([np.float32, np.float64]))
def test_linear_move(seed, p, dtype):
    rng = np.random.default_rng(seed)
    W, total, theta = rng.normal(size=(p, p)).astype(dtype), rng.normal(size=p), rng.normal(size=p)
    out = np.empty(p)
    linear_move(W, total, theta, 17, out)
    np.testing.assert_allclose(out, theta + W.astype(float) @ total / 17, rtol=1e-12, atol=1e-12)
    linear_move(W, np.zeros(p), theta, 17, out)
    np.testing.assert_array_equal(out, theta)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=30), st.data())
def test_classes_never_run_empty(present, data):
    left = np.bincount([0, 1, 2, 3, *present], minlength=4)
    before = left.copy()
    labels = np.array(data.draw(st.permutations(present)))[: data.draw(st.integers(0, len(present)))].astype(np.uint8)
    assert leave_classes(labels, left) == -1
    np.testing.assert_array_equal(left, before - np.bincount(labels, minlength=4))
    one = np.full(left[2], 2, np.uint8)
    before = left.copy()
    assert leave_classes(one, left) == 2
    np.testing.assert_array_equal(left, before)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.booleans(), seeds)
def test_mlp_total_and_single_precision_move(r, d, h, relu, seed):
    from l2ul_fast.models import MLPModel

    rng = np.random.default_rng(seed)
    model = MLPModel(d, h=h, activation="relu" if relu else "tanh", anchor=rng.normal(size=h * d + 2 * h + 1), mu=0.1)
    X, y = rng.normal(size=(r, d)).astype(np.float32), rng.integers(0, 2, r).astype(np.uint8)
    theta, out = rng.normal(size=model.size), np.empty(model.size)
    mlp_total(X, y, theta, model.anchor, model.mu, h, 1, int(relu), np.empty(2 * (h + 1)), out)
    expected = r * (model.data_gradient(theta, X, y) + model.penalty_gradient(theta))
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-9)
    W, moved = rng.normal(size=(model.size, model.size)).astype(np.float32), np.empty(model.size)
    linear_move_single(W, out, theta, 100, np.empty(model.size, np.float32), moved)
    np.testing.assert_allclose(moved, theta + W.astype(np.float64) @ out / 100, atol=1e-3 * np.abs(out).sum() / 100)
