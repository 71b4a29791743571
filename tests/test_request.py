"""The kernels of one request against their oracles."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import l2ul_kernels as lk
from l2ul_kernels import reference
from l2ul_kernels import reference_request as oracle
from l2ul_kernels.request import (
    EMPTY,
    FOREIGN,
    FORGOTTEN,
    GONE,
    NOT_TRAINED,
    OUTSIDE,
    PRESENT,
    TWICE,
    claim,
    claim_labelled,
    erase_rows,
    forget_cells,
    forget_stored,
    gather,
    gather_mapped,
    leave_classes,
    linear_move,
    linear_move_single,
    logistic_total,
    release,
)
from l2ul_kernels.request_mlp import RequestSums, mlp_move, mlp_total
from l2ul_kernels.request_newton import (
    EXACT,
    curvature_before,
    newton_arrays,
    newton_move,
    padded,
    refined_solve,
    solve_move,
    take_rows_out,
)
from l2ul_kernels.request_symmetric import pack_symmetric, panel_width, symmetric_move, unpack_symmetric

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
    forget_stored(both[0], ids, lk.bits_per_cell(psi), *both[1:])
    kept[ids] = 0
    np.testing.assert_array_equal(both[2], kept)
    np.testing.assert_array_equal(both[3], np.where(np.isin(np.arange(n), ids), 0, y))
    forget_cells(packed, ids, y[ids], np.arange(len(ids)), lk.bits_per_cell(psi), counts)
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
    state, work = newton_state(anchor, np.full((d + 1, d + 1), 5.0), np.zeros((d + 1, d + 1)))
    work[: d + 1] = 1.0
    take_rows_out(X, y, np.arange(r), theta, state, work)
    np.testing.assert_allclose(work[: d + 1] - 1, oracle.total(X, y, theta, 0.0), rtol=1e-11, atol=1e-11)
    curvature = matrix(state, 0, d + 1)
    np.testing.assert_allclose(5 - curvature, oracle.curvature(X, anchor), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(curvature, curvature.T, rtol=1e-12, atol=1e-12)


def newton_state(anchor, curvature, inverse, correction=None):
    """state and work of request_newton; what pads must stay zero for the products to be right, scratch need not be."""
    p = len(anchor)
    state, work = newton_arrays(p, correction is not None)
    state[:p] = anchor
    for k, values in enumerate([curvature, inverse, *([] if correction is None else [correction.T])]):
        matrix(state, k, p)[:] = values
    return state, work


def matrix(state, k, p):
    wide = padded(p)
    return state[wide + k * wide**2 :][: wide**2].reshape(wide, wide)[:p, :p]


def padding_of(state, p):
    """What the padded lines hold beyond p."""
    lines = state.reshape(-1, padded(p))
    return lines[:, p:]


@settings(max_examples=60, deadline=None)
@given(
    seeds, st.sampled_from([0, 1, 2, 5, 63, 64, 65, 130]), st.sampled_from([1, 4, 7, 8, 15, 30]), st.booleans(),
    st.sampled_from([np.float32, np.float64]), st.booleans(),
)  # fmt: skip
@example(0, 65, 7, True, np.float32, True)
def test_newton_move_is_a_dense_newton_step(seed, r, d, corrected, dtype, strided):
    rng, X, y, theta, anchor = problem(seed, 3000, d, dtype)
    theta, anchor = theta / np.sqrt(d), anchor / np.sqrt(d)
    if strided:  # rows and labels that do not lie side by side
        X, y = np.repeat(X, 2, axis=0)[::2], np.repeat(y, 2)[::2]
    n, lam, p = len(X), 0.05, d + 1
    curvature = oracle.curvature(X, anchor)
    inverse = np.linalg.inv(oracle.system(curvature, n * lam))
    correction = rng.normal(size=(p, p)) if corrected else np.zeros((0, 0))
    expected, after = oracle.newton_move(X[:r], y[:r], theta, anchor, curvature, correction, n, lam)
    state, work = newton_state(anchor, curvature, inverse, correction if corrected else None)
    out = np.empty(p)
    residual = newton_move(X, y, np.arange(r), theta, state, work, n, lam, out)
    assert residual < 0.01
    # the error of three refinements is the residual's
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-11 + 100 * residual * np.linalg.norm(expected - theta))
    np.testing.assert_allclose(matrix(state, 0, p), after, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(work[:p], oracle.total(X[:r], y[:r], theta, lam), rtol=1e-10, atol=1e-11)
    np.testing.assert_array_equal(matrix(state, 1, p), inverse)
    np.testing.assert_array_equal(state[:p], anchor)
    np.testing.assert_array_equal(curvature_before(work, p), curvature)
    assert not padding_of(state, p).any()
    if r == 0:
        np.testing.assert_array_equal(out, theta)
    matrix(state, 1, p)[:] = np.linalg.inv(oracle.system(after, (n - r) * lam))
    assert solve_move(theta, state, work, n - r, lam, out) < 1e-12
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-11)


def test_scratch_of_a_large_request_does_not_reach_into_the_next():
    _, X, y, theta, anchor = problem(3, 500, 5)
    curvature = oracle.curvature(X, anchor)
    inverse = np.linalg.inv(oracle.system(curvature, 25.0))
    state, work = newton_state(anchor, curvature, inverse)
    newton_move(X, y, np.arange(70), theta, state, work, 500, 0.05, np.empty(6))
    fresh, clean = newton_state(anchor, matrix(state, 0, 6), inverse)
    outs = np.empty(6), np.empty(6)
    newton_move(X, y, np.arange(70, 73), theta, state, work, 430, 0.05, outs[0])
    newton_move(X[70:73], y[70:73], np.arange(3), theta, fresh, clean, 430, 0.05, outs[1])
    np.testing.assert_array_equal(*outs)
    np.testing.assert_array_equal(state, fresh)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 18), st.integers(1, 5))
def test_refined_solve_converges_at_the_rate_of_the_change(seed, p, steps):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(p + 5, p))
    before, right, ridge = root.T @ root + np.eye(p), rng.normal(size=p), 0.3
    change = 1e-3 * rng.normal(size=(p, p))
    after = before + change + change.T
    inverse = np.linalg.inv(oracle.system(before, ridge))
    state, work = newton_state(np.zeros(p), after, inverse)
    work[:p] = right
    found = refined_solve(state, work, p, ridge, steps)
    x, rest = work[padded(p) :][:p], work[2 * padded(p) :][:p]
    dense = oracle.system(after, ridge)
    np.testing.assert_allclose(rest, right - dense @ x, atol=1e-12)
    assert found == pytest.approx(np.linalg.norm(rest) / np.linalg.norm(right), abs=1e-13)
    rate = np.linalg.norm((change + change.T) @ inverse, 2)
    assert found <= max(rate**steps + 1e-13, EXACT)
    np.testing.assert_allclose(x, np.linalg.solve(dense, right), atol=10 * rate**steps + 1e-11)


def test_refined_solve_of_nothing_and_without_hope():
    state, work = newton_state(np.zeros(2), np.eye(2), np.eye(2))
    assert refined_solve(state, work, 2, 0.0, 3) == 0.0
    assert work[8:10].tolist() == [0.0, 0.0]
    # an inverse that has nothing to do with the matrix: the residual says so
    for inverse, check in ((10 * np.eye(2), lambda found: found > 1), (np.full((2, 2), np.nan), np.isnan)):
        state, work = newton_state(np.zeros(2), np.eye(2), inverse)
        work[:2] = 1.0
        assert check(refined_solve(state, work, 2, 0.0, 3))


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
    at = np.arange(len(labels))
    assert leave_classes(labels, at, left) == -1
    np.testing.assert_array_equal(left, before - np.bincount(labels, minlength=4))
    one = np.full(left[2], 2, np.uint8)
    before = left.copy()
    assert leave_classes(one, np.arange(len(one)), left) == 2
    np.testing.assert_array_equal(left, before)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([PRESENT, PRESENT, FORGOTTEN, FOREIGN]), min_size=1, max_size=9), st.data())
def test_a_claim_with_labels_is_a_claim_and_a_leave(states, data):
    """Whatever either refuses, both arrays are as they were."""
    n, gone = len(states), np.array(states, np.uint8)
    ids = np.array(data.draw(st.lists(st.integers(-1, n), max_size=6)), np.int64)
    y = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), np.uint8)
    left = np.bincount(y[gone == PRESENT], minlength=3) + data.draw(st.integers(0, 1))
    expected, after = oracle.claim(ids, gone)
    before, classes = gone.copy(), left.copy()
    found = claim_labelled(ids, gone, y, left)
    if expected >= 0:
        assert found == expected
    else:
        rest = classes - np.bincount(y[ids], minlength=3)
        if (rest > 0).all():
            assert found == -1
            np.testing.assert_array_equal(gone, after)
            np.testing.assert_array_equal(left, rest)
            return
        assert (found % 8, found // 8) == (EMPTY, np.flatnonzero(rest <= 0)[0])
    np.testing.assert_array_equal(gone, before)
    np.testing.assert_array_equal(left, classes)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.sampled_from([2, 3]), seeds)
def test_mlp_total_and_single_precision_move(r, d, h, relu, classes, seed):
    from l2ul_fast.models import MLPModel

    rng = np.random.default_rng(seed)
    kind, o = "relu" if relu else "tanh", 1 if classes == 2 else classes
    model = MLPModel(d, classes, h, kind, anchor=rng.normal(size=h * (d + 1) + o * (h + 1)), mu=0.1)
    X, y = rng.normal(size=(9, d)).astype(np.float32), rng.integers(0, classes, 9).astype(np.uint8)
    ids = rng.permutation(9)[:r]
    theta, out, memory = rng.normal(size=model.size), np.empty(model.size), np.empty(2 * (h + o))
    mlp_total(X, y, ids, theta, model.anchor, model.mu, h, o, int(relu), memory, out)
    expected = r * (model.data_gradient(theta, X[ids], y[ids]) + model.penalty_gradient(theta))
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-9)
    W, moved = rng.normal(size=(model.size, model.size)).astype(np.float32), np.empty(model.size)
    single = np.empty(model.size, np.float32)
    linear_move_single(W, out, theta, 100, single, moved)
    np.testing.assert_allclose(moved, theta + W.astype(np.float64) @ out / 100, atol=1e-3 * np.abs(out).sum() / 100)
    total, at_once = np.empty(model.size), np.empty(model.size)
    what = (X, y, ids, theta, model.anchor, model.mu, h, o, int(relu), 100)
    mlp_move(*what, W, memory, total, single, np.empty(0, np.float32), at_once)
    np.testing.assert_array_equal(total, out)
    np.testing.assert_allclose(at_once, moved, rtol=1e-6, atol=1e-6)
    W = W + W.T
    wide = [np.full(panel_width(model.size), np.nan, np.float32) for _ in range(2)]
    mlp_move(*what, pack_symmetric(W), memory, total, *wide, at_once)
    linear_move_single(W, out, theta, 100, single, moved)
    np.testing.assert_allclose(at_once, moved, rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.integers(1, 70), st.sampled_from([301, 320])), seeds)
def test_half_of_a_symmetric_matrix_is_enough(p, seed):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(p, p)).astype(np.float32)
    W, theta, total, out = half + half.T, rng.normal(size=p), rng.normal(size=p), np.empty(p)
    panels = pack_symmetric(W)
    assert panels.ctypes.data % 64 == 0
    np.testing.assert_array_equal(unpack_symmetric(panels, p), W)
    np.testing.assert_array_equal(pack_symmetric(np.tril(W) + np.triu(np.full_like(W, np.nan), 1)), panels)
    single, sums = (np.full(panel_width(p), np.nan, np.float32) for _ in range(2))
    symmetric_move(panels, total, theta, 17, single, sums, out)
    np.testing.assert_allclose(out, theta + W.astype(float) @ total / 17, atol=1e-5 * np.abs(W @ total).max() + 1e-12)
    symmetric_move(panels, np.zeros(p), theta, 17, single, sums, out)
    np.testing.assert_array_equal(out, theta)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 63, 64, 65, 300]), st.integers(1, 9), st.integers(1, 4), st.sampled_from([2, 3]),
    st.sampled_from([np.float32, np.float64]), seeds,
)  # fmt: skip
def test_request_sums_are_mlp_sums(r, d, h, classes, dtype, seed):
    from l2ul_kernels.reference_mlp import gradients

    rng = np.random.default_rng(seed)
    sums = RequestSums(d, h, classes, "tanh")
    X, y = rng.normal(size=(400, d)).astype(dtype), rng.integers(0, classes, 400).astype(np.uint8)
    theta = rng.normal(size=lk.mlp_size(d, h, classes))
    for _ in range(2):  # the second finds the scratch of the first
        ids = rng.permutation(400)[:r]
        expected = gradients(X[ids], y[ids], theta, h, "tanh", classes).sum(axis=0)
        np.testing.assert_allclose(sums(X, y, ids, theta), expected, rtol=1e-10, atol=1e-10)
    sums.wipe()
    assert not any(value.any() for value in (sums._memory, sums._total, sums._padded))
