"""The compiled forward against its oracle; counts of stored rows."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2ul_kernels import pack_cells, reference
from l2ul_kernels.codegen.twins import COMPILED
from l2ul_kernels.reference import network as reference_forward
from l2ul_kernels.request.network import ALONE, FEW, DirectForward
from l2ul_kernels.simd.rowsum import sum_rows
from l2ul_kernels.voronoi.subsets import BLOCK, count_rows


def weights(rng, blocks, hidden, p):
    """Random weights whose hidden units are about half active."""
    draw = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)  # noqa: E731
    out = {f"W1.{name}": draw(size, hidden[0]) for name, size in blocks.items()}
    out |= {"W2": draw(*hidden), "W3": draw(hidden[1], p)}
    return out | {f"b{k}": draw(size) for k, size in enumerate((*hidden, p), 1)}


def store(rng, n, t, psi):
    cells = rng.integers(0, psi, (n, t)).astype(np.uint8 if psi <= 256 else np.uint16)
    return cells, pack_cells(cells, psi), rng.integers(0, 3, n).astype(np.uint8)


def direct(seed, t=10, psi=4, hidden=(32, 16), p=7, n=3000):
    rng = np.random.default_rng(seed)
    cells, packed, _ = store(rng, n, t, psi)
    w = weights(rng, {"mu_D": t * psi, "mu_f": t * psi, "theta": p}, hidden, p)
    theta, counts = rng.normal(size=p), reference.cell_counts(cells, psi)
    forward = DirectForward(w, t, psi)
    forward.set_base(counts, n, theta)
    forward.compile(packed)
    return rng, cells, packed, w, theta, counts, forward


def close(ours, oracle):
    """To 1e-5, or to float32's rounding of hidden values of order 1 where outputs cancel."""
    np.testing.assert_allclose(ours, oracle, rtol=1e-5, atol=3e-6 + 1e-5 * np.abs(oracle).max())


shapes = st.tuples(st.integers(1, 40), st.sampled_from([2, 3, 4, 5, 16, 70, 300]))
sizes = st.sampled_from([1, 2, FEW, FEW + 1, 14, 15, 16, BLOCK, BLOCK + 1, 700])


@pytest.mark.slow  # read-only arrays are another type to the compiler
def test_a_read_only_store_will_do():
    rng, cells, packed, w, theta, counts, forward = direct(6)
    packed.setflags(write=False)
    forward.compile(packed)
    for r in (1, 100):
        ids = rng.choice(3000, r, replace=False)
        expected = reference_forward.direct(cells[ids], counts.ravel() / 3000, theta, w, 4)
        close(forward(packed, ids, np.empty(7)), expected)
        np.testing.assert_array_equal(count_rows(packed, ids, 10, 4), reference.cell_counts(cells[ids], 4))


@settings(max_examples=40 if COMPILED else 3, deadline=None)
@given(st.integers(0, 2**32), shapes, sizes, st.tuples(st.integers(1, 40), st.integers(1, 20)), st.integers(1, 33))
def test_direct_forward_agrees_with_the_oracle(seed, shape, r, hidden, p):
    rng, cells, packed, w, theta, counts, forward = direct(seed, *shape, hidden, p, n=800)
    ids = rng.choice(800, r, replace=False)
    expected = reference_forward.direct(cells[ids], counts.ravel() / 800, theta, w, shape[1])
    out = np.empty(p)
    close(forward(packed, ids, out), expected)
    close(forward(cells.view(np.uint8).reshape(800, -1), ids, out, bits=8 * cells.itemsize), expected)
    close(forward.from_counts(reference.cell_counts(cells[ids], shape[1]), r, out), expected)
    np.random.default_rng(seed).shuffle(ids)
    close(forward(packed, ids, out), expected)


def test_the_order_of_forgotten_rows_does_not_show_at_all_once_they_are_counted():
    rng, _, packed, _, _, _, forward = direct(1)
    ids = rng.choice(3000, 50, replace=False)
    first = forward(packed, ids, np.empty(7))
    np.testing.assert_array_equal(forward(packed, ids[::-1].copy(), np.empty(7)), first)
    assert not np.array_equal(forward(packed, ids[1:], np.empty(7)), first)


def test_forgetting_keeps_the_base_as_if_computed_anew():
    rng, cells, packed, w, theta, counts, forward = direct(2)
    left, counts = np.arange(3000), counts.copy()
    for r in (1, 1, 2, 5, 300, 1, 40):
        gone = rng.choice(left, r, replace=False)
        left = np.setdiff1d(left, gone)
        theta = theta + 0.1 * rng.normal(size=7)
        forward.forget(packed, gone, len(left), theta)
        counts -= reference.cell_counts(cells[gone], 4)
        fresh = DirectForward(w, 10, 4)
        fresh.set_base(counts, len(left), theta)
        np.testing.assert_allclose(forward.net, fresh.net, rtol=1e-6, atol=1e-6)
        expected = reference_forward.direct(cells[left[:3]], counts.ravel() / len(left), theta, w, 4)
        close(forward(packed, left[:3], np.empty(7)), expected)
    for _ in range(2000):  # many small steps do not drift
        forward.forget(packed, left[:1], len(left), theta)
        forward._total += cells_sum(w, cells[left[0]])
    np.testing.assert_allclose(forward._total, fresh._total, rtol=1e-11)


@settings(max_examples=30 if COMPILED else 3, deadline=None)
@given(st.integers(0, 2**32), shapes, st.sampled_from([1, 2, 4, 5, 60]), st.integers(1, 33))
def test_a_move_is_a_forward_and_then_forgetting(seed, shape, r, p):
    rng, _, packed, _, _, _, forward = direct(seed, *shape, (20, 9), p, n=800)
    other, left = copy.deepcopy(forward), np.arange(800)
    for _ in range(3):
        ids = np.sort(rng.choice(left, r, replace=False))
        left = np.setdiff1d(left, ids)
        expected = other(packed, ids, np.empty(p))
        other.forget(packed, ids, len(left), expected)
        np.testing.assert_allclose(forward.move(packed, ids, len(left), np.empty(p)), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(forward._total, other._total, rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(forward.net, other.net, rtol=1e-5, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(0, 40),
    st.sampled_from([16, 32, 64, 112, 128, 144, 256, 512]),
    st.sampled_from([0, 16, 48]),
    st.integers(0, 5),
)
def test_sum_rows_is_a_product(seed, m, width, more, at):
    """Any number of rows, also none and the same twice, rows with something behind them, from anywhere in a table."""
    rng = np.random.default_rng(seed)
    stride, places, values = width + more, rng.integers(0, 9, 45), rng.normal(size=45).astype(np.float32)
    table = rng.normal(size=at + 9 * stride).astype(np.float32)
    out = rng.normal(size=width + 3).astype(np.float32)
    rows = table[at:].reshape(9, stride)[places[:m], :width].astype(float)
    expected = out.astype(float)
    expected[:width] += values[:m] @ rows
    sum_rows(table, at, width, stride, places, values, m, out)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out[width:], expected[width:].astype(np.float32))


def cells_sum(w, cells):
    padded = np.zeros(32)
    padded[:32] = sum(w["W1.mu_D"][4 * q + c].astype(float) for q, c in enumerate(cells))
    return padded


def test_cells_beyond_psi_and_rows_beyond_the_store_change_nothing():
    """Few rows are read by a kernel of their own, which once trusted both."""
    _, _, packed, _, theta, _, forward = direct(8, psi=3)
    net, total, out = forward.net.copy(), forward._total.copy(), np.zeros(7)
    beyond = np.full_like(packed, 0xFF)
    for r in (1, FEW + 1):
        for store_, ids in ((beyond, np.arange(r)), (packed, np.arange(r) + 3000), (packed, np.arange(r) - 1 - r)):
            for call in (
                lambda s, i: forward(s, i, out),
                lambda s, i: forward.move(s, i, 9, out),
                lambda s, i: forward.forget(s, i, 9, theta),
            ):
                with pytest.raises(ValueError, match=r"must lie in 0\.\.(2|2999)"):
                    call(store_, ids)
    np.testing.assert_array_equal(forward.net, net)
    np.testing.assert_array_equal(forward._total, total)
    assert not out.any()


def test_very_many_rows_are_counted_on_all_threads():
    rng, cells, packed, w, theta, counts, forward = direct(7, n=ALONE + 5000)
    ids = rng.permutation(ALONE + 5000)[: ALONE + 1]
    expected = reference_forward.direct(cells[ids], counts.ravel() / (ALONE + 5000), theta, w, 4)
    close(forward(packed, ids, np.empty(7)), expected)


def test_bad_input_is_one_sentence():
    w = direct(5)[3]
    holes = {**w, "W2": np.full_like(w["W2"], np.nan)}
    cases = [
        (ValueError, "NaN", lambda: DirectForward(holes, 10, 4)),
        (ValueError, "W1.mu_D", lambda: DirectForward(w, 11, 4)),
        (ValueError, "W3", lambda: DirectForward({**w, "W3": w["W3"][:-1]}, 10, 4)),
        (ValueError, "W1.theta", lambda: DirectForward({**w, "W1.theta": w["W1.theta"][:-1]}, 10, 4)),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()
