"""A whole request for one row as one compiled call, on arrays that it knows by their addresses."""

import copy

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import l2ul_kernels as lk
from l2ul_kernels import reference
from l2ul_kernels import reference_request as oracle
from l2ul_kernels._forward import direct_request
from l2ul_kernels.forward import DirectForward
from l2ul_kernels.request import (
    DONE,
    EMPTY,
    FOREIGN,
    FORGOTTEN,
    GONE,
    NOT_TRAINED,
    OTHERWISE,
    OUTSIDE,
    claim_labelled,
    forget_stored,
)
from l2ul_kernels.request_held import NAMES, Held
from l2ul_kernels.request_newton import newton_arrays, newton_move, newton_request, padded

N, D, T, SIZE = 300, 5, 9, 8
LAM = 0.05
seeds = st.integers(0, 2**32)
kinds = pytest.mark.parametrize("kind", ["newton", "direct"])


def rows_and_notes(seed, psi=4, dtype=np.float32, p=D + 1):
    """All that a Held names but the step's own arrays, for a model of N rows of two classes."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(N, D)).astype(dtype), rng.integers(0, 2, N).astype(np.uint8)
    y[:4] = [0, 1, 0, 1]
    cells = rng.integers(0, psi, (N, T)).astype(np.uint8)
    thetas = np.full((SIZE + 1, p), np.nan)
    thetas[0] = rng.normal(size=p)
    return {
        "gone": np.zeros(N, np.uint8), "left": np.bincount(y, minlength=2), "X": X, "y": y,
        "packed": reference.pack_cells(cells, psi), "counts": reference.class_counts(cells, y, psi, 2),
        "thetas": thetas, "totals": np.full((SIZE, p), np.nan), "rows": np.full(SIZE, -1),
        "times": np.full(SIZE, np.nan),
    }  # fmt: skip


def newton_own(arrays, seed, stale=0.05):
    p = D + 1
    anchor = np.random.default_rng(seed + 1).normal(size=p)
    curvature = oracle.curvature(arrays["X"], anchor)
    state, work = newton_arrays(p)
    wide = padded(p)
    state[:p] = anchor
    for k, values in enumerate([curvature, np.linalg.inv(oracle.system(curvature, N * LAM))]):
        state[wide + k * wide**2 :][: wide**2].reshape(wide, wide)[:p, :p] = values
    return state, work, np.array([LAM, stale])


def direct_network(arrays, seed, psi=4):
    rng = np.random.default_rng(seed + 2)
    p, sizes = D + 1, {"W1.mu_D": (T * psi, 20), "W1.mu_f": (T * psi, 20), "W1.theta": (D + 1, 20), "b1": (20,)}
    sizes |= {"W2": (20, 9), "b2": (9,), "W3": (9, p), "b3": (p,)}
    forward = DirectForward({name: rng.normal(size=s).astype(np.float32) for name, s in sizes.items()}, T, psi)
    forward.set_base(arrays["counts"].sum(axis=0), N, arrays["thetas"][0])
    return forward


def made(kind, seed, dtype=np.float32):
    """(Held, what answers a request on it, everything it may change)."""
    arrays = rows_and_notes(seed, dtype=dtype)
    own = newton_own(arrays, seed) if kind == "newton" else direct_network(arrays, seed).own
    return Held(2, own, **arrays), {"newton": newton_request, "direct": direct_request}[kind], arrays


def state_of(held):
    """Copies of all that a refused request must not change: not the notes of the place it had."""
    return [getattr(held, name).copy() for name in NAMES[:6]] + [held.own[0].copy()]


@settings(max_examples=40, deadline=None)
@given(seeds, st.sampled_from([3, 4, 8, 16]), st.sampled_from([np.float32, np.float64]))
@example(0, 4, np.float64)
def test_newton_requests_are_their_parts(seed, psi, dtype):
    arrays = rows_and_notes(seed, psi, dtype)
    own, bits = newton_own(arrays, seed), lk.bits_per_cell(psi)
    parts, (state, work, _) = copy.deepcopy(arrays), copy.deepcopy(own)
    held, theta = Held(bits, own, **arrays), parts["thetas"][0]
    for k, row in enumerate(np.random.default_rng(seed).permutation(N)[:3].tolist()):
        ids, out = np.array([row]), np.empty(D + 1)
        assert newton_request(held.table, row, k, N - k, 100.0 + k) == DONE
        assert claim_labelled(ids, parts["gone"], parts["y"], parts["left"]) == -1
        assert newton_move(parts["X"], parts["y"], ids, theta, state, work, N - k, LAM, out) < 0.05
        forget_stored(parts["packed"], ids, bits, parts["counts"], parts["X"], parts["y"])
        theta = out
        np.testing.assert_allclose(arrays["thetas"][k + 1], out, rtol=1e-12)
        np.testing.assert_allclose(arrays["totals"][k], work[: D + 1], rtol=1e-12, atol=1e-13)
        assert (arrays["rows"][k], arrays["times"][k]) == (row, 100.0 + k)
    for name in NAMES[:6]:
        np.testing.assert_array_equal(arrays[name], parts[name], err_msg=name)
    np.testing.assert_allclose(own[0], state, rtol=1e-12, atol=1e-13)
    assert np.isnan(arrays["thetas"][4:]).all()
    assert np.isnan(arrays["totals"][3:]).all()


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from([3, 4, 8]), st.sampled_from([np.float32, np.float64]))
def test_direct_requests_are_their_parts(seed, psi, dtype):
    arrays = rows_and_notes(seed, psi, dtype)
    forward, bits = direct_network(arrays, seed, psi), lk.bits_per_cell(psi)
    parts, other = copy.deepcopy(arrays), copy.deepcopy(forward)
    held = Held(bits, forward.own, **arrays)
    for k, row in enumerate(np.random.default_rng(seed).permutation(N)[:3].tolist()):
        ids = np.array([row])
        assert direct_request(held.table, row, k, N - k, 100.0 + k) == DONE
        assert claim_labelled(ids, parts["gone"], parts["y"], parts["left"]) == -1
        expected = other.move(parts["packed"], ids, N - k - 1, np.empty(D + 1))
        forget_stored(parts["packed"], ids, bits, parts["counts"], parts["X"], parts["y"])
        np.testing.assert_allclose(arrays["thetas"][k + 1], expected, rtol=1e-5, atol=1e-6)
        assert (arrays["rows"][k], arrays["times"][k]) == (row, 100.0 + k)
    for name in NAMES[:6]:
        np.testing.assert_array_equal(arrays[name], parts[name], err_msg=name)
    np.testing.assert_allclose(forward.net, other.net, rtol=1e-5, atol=1e-6)
    assert np.isnan(arrays["totals"]).all()


@kinds
@pytest.mark.parametrize(
    ("row", "reason"), [(-1, OUTSIDE), (N, OUTSIDE), (2**62, OUTSIDE), (9, GONE), (8, NOT_TRAINED)]
)
def test_a_refused_request_changes_nothing(kind, row, reason):
    held, request, arrays = made(kind, 1)
    arrays["gone"][[9, 8]] = FORGOTTEN, FOREIGN
    before = state_of(held)
    assert request(held.table, row, 0, N, 1.0) == reason
    for now, then in zip(state_of(held), before, strict=True):
        np.testing.assert_array_equal(now, then)


@kinds
def test_the_last_row_of_a_class_is_refused(kind):
    held, request, arrays = made(kind, 2)
    arrays["left"][1] = 1
    before = state_of(held)
    assert request(held.table, 1, 0, N, 1.0) == 8 * 1 + EMPTY
    for now, then in zip(state_of(held), before, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("what", ["stale", "nan"])
def test_a_system_that_is_not_solved_goes_another_way_and_changes_nothing(what):
    arrays = rows_and_notes(3)
    own = newton_own(arrays, 3, 1e-300 if what == "stale" else 0.05)
    if what == "nan":
        own[0][padded(D + 1) :] = np.nan
    held = Held(2, own, **arrays)
    before = state_of(held)
    assert newton_request(held.table, 50, 0, N, 1.0) == OTHERWISE
    for now, then in zip(state_of(held), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_wrong_arrays_are_refused():
    arrays = rows_and_notes(4)
    own = newton_own(arrays, 4)
    frozen = arrays["y"].copy()
    frozen.flags.writeable = False
    for name, other, message in (
        ("X", arrays["X"][:-1], "gone must have shape"),
        ("X", arrays["X"].astype(np.float16), "X must have"),
        ("y", arrays["y"].astype(np.int64), "y must have"),
        ("packed", arrays["packed"][:, :-1].copy(), "packed must have"),
        ("thetas", arrays["thetas"][1:], "thetas must have"),
        ("counts", arrays["counts"][:, ::-1], "whole arrays"),
        ("y", frozen, "whole arrays"),
    ):
        with pytest.raises(ValueError, match=message):
            Held(2, own, **(arrays | {name: other}))
    with pytest.raises(ValueError, match="whole arrays"):
        Held(2, (own[0][::2], *own[1:]), **arrays)
    with pytest.raises(ValueError, match="a request works on"):
        Held(2, own, **{name: arrays[name] for name in NAMES[1:]})


def test_addresses_are_never_copied():
    held, _, _ = made("newton", 5)
    assert copy.copy(held) is None
    assert copy.deepcopy({"held": held}) == {"held": None}
