"""Compiled gradient descent, replays and noise against slow NumPy versions; threads; bad input."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numba import njit

from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_kernels import threads
from l2ul_kernels.reference import sgd as reference
from l2ul_kernels.sgd.deltagrad import Pairs, compact_factor, compact_product, lu_factor, lu_solve
from l2ul_kernels.sgd.descent import Descent, error_noise
from l2ul_kernels.sgd.minibatch import CHUNK
from l2ul_kernels.simd.columns import gather_rows, padded, width_of

MODELS = st.sampled_from([("lr", 2, "tanh"), ("lr", 3, "tanh"), ("mlp", 2, "tanh"), ("mlp", 3, "relu")])


def problem(kind, n, d=4, n_classes=2, activation="tanh", lam=0.1, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(dtype)
    y = rng.integers(0, n_classes, n).astype(np.uint8)
    model = LogisticModel(d, n_classes, lam) if kind == "lr" else MLPModel(d, n_classes, 3, activation, lam)
    strength = model.penalty_gradient(np.ones(model.size))
    descent = Descent(X, y, kind, n_classes, 3, activation, strength)

    def gradient(theta, ids):
        return model.data_gradient(theta, X[ids], y[ids])

    return X, y, model, descent, gradient, strength, 0.3 * rng.normal(size=model.size), rng


def batches_of(rng, n, count):
    ids = rng.permutation(n)
    inner = np.sort(rng.integers(0, n + 1, count - 1))
    starts = np.concatenate([[0], inner, [n]])
    return ids, starts, [ids[a:b] for a, b in itertools.pairwise(starts)]


@settings(max_examples=40, deadline=None)
@given(
    MODELS,
    st.integers(1, 200),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 99),
)
def test_training_is_that_of_the_reference(model, n, count, adam, dtype, seed):
    kind, C, activation = model
    _, _, _, descent, gradient, lam, start, rng = problem(kind, n, 1 + seed % 20, C, activation, 0.1, seed, dtype)
    ids, starts, parts = batches_of(rng, n, count)  # some batches may be empty
    order = rng.integers(0, count, 12)
    run = descent.train(start, ids, starts, order, 0.1, adam=adam, trace=True)
    theta, W, G = reference.train(gradient, start, parts, order, 0.1, lam, adam)
    tolerance = {"atol": 1e-6 if adam else 1e-12, "rtol": 0}  # Adam divides by gradients that may all but vanish
    np.testing.assert_allclose(run.theta, theta, **tolerance)
    np.testing.assert_allclose(run.W[:, descent.pad.where], W, **tolerance)
    np.testing.assert_allclose(run.G[:, descent.pad.where], G, **tolerance)


@settings(max_examples=25, deadline=None)
@given(MODELS, st.integers(1, 200), st.integers(0, 12), st.booleans(), st.integers(0, 99))
def test_a_restart_is_a_second_run_from_where_the_first_ended(model, n, restart, adam, seed):
    kind, C, activation = model
    _, _, _, descent, _, _, start, rng = problem(kind, n, 4, C, activation, 0.1, seed)
    ids, starts, _ = batches_of(rng, n, 3)
    order, rates = rng.integers(0, 3, 12), rng.uniform(0.01, 0.1, 12)
    both = descent.train(start, ids, starts, order, rates, adam=adam, restart=restart)
    first = descent.train(start, ids, starts, order[:restart], rates[:restart], adam=adam)
    second = descent.train(first.theta, ids, starts, order[restart:], rates[restart:], adam=adam)
    np.testing.assert_array_equal(both.theta, second.theta)


@settings(max_examples=25, deadline=None)
@given(
    MODELS,
    st.integers(20, 120),
    st.integers(1, 4),
    st.integers(1, 10),
    st.integers(1, 3),
    st.integers(0, 6),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 99),
)
def test_replay_is_that_of_the_reference(model, n, count, r, memory, burn_in, period, published, seed):
    kind, C, activation = model
    _, _, _, descent, gradient, lam, start, rng = problem(kind, n, 3, C, activation, 0.1, seed)
    ids, starts, parts = batches_of(rng, n, count)
    order = rng.integers(0, count, 15)
    places = rng.permutation(n)[:r]
    if published:  # the paths part at once: as published, rounding errors between equal paths would become pairs
        assume(starts[order[0]] < starts[order[0] + 1] - 1)
        places[0] = starts[order[0]]
    places = np.unique(places)
    run = descent.train(start, ids, starts, order, 0.1, trace=True)
    weights = np.ones(n)
    options = {"memory": memory, "burn_in": burn_in, "period": period, "published": published}
    answer = descent.replay(run, places, ids, starts, order, 0.1, weights, keep_trace=True, **options)
    W, G = list(run.W[:, descent.pad.where]), list(run.G[:, descent.pad.where])
    theta, exact = reference.replay(
        gradient, W, G, parts, order, ids[places], 0.1, lam, memory, burn_in, period, published
    )
    np.testing.assert_array_equal(weights, 1.0)  # given back as they were
    if kind == "lr":
        assert answer.exact == exact
    if answer.exact == exact:  # an MLP's pair on the border of s.y > 0 may fall to the other side by rounding
        np.testing.assert_allclose(answer.theta, theta, atol=1e-6)
    np.testing.assert_array_equal(answer.trace.W[0, descent.pad.where], start)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 999))
def test_compact_form_has_the_secant_property(p, k, seed):
    """B s_k = y_k for the newest pair, B is symmetric, and products equal those of the dense matrix."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(p, p))
    A = A @ A.T + np.eye(p)
    k = min(k, p)
    S = rng.normal(size=(4, p))
    Y = S @ A
    pairs = Pairs(S, Y, np.zeros((8, 8)), np.zeros(8, np.int64), np.zeros(8))
    sigma = compact_factor(pairs, k)
    columns = []
    for v in np.eye(p):
        out = np.empty(p)
        compact_product(pairs, k, sigma, v, out)
        columns.append(out)
    B = np.array(columns).T
    scale = np.abs(B).max() + np.abs(np.linalg.inv(A)).max() * 100
    np.testing.assert_allclose(B @ S[k - 1], Y[k - 1], atol=1e-8 * scale)
    np.testing.assert_allclose(B, B.T, atol=1e-8 * scale)
    np.testing.assert_allclose(B, reference.compact(S[:k], Y[:k]), atol=1e-7 * scale)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(0, 999))
def test_linear_systems_with_exchanges(n, seed):
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(n, n)), rng.normal(size=n)
    A[0, 0] = 0.0 if n > 1 else 1.0
    F, x, pivots = A.copy(), b.copy(), np.zeros(n, np.int64)
    lu_factor(F, n, pivots)
    lu_solve(F, n, pivots, x)
    np.testing.assert_allclose(A @ x, b, atol=1e-7 * (1 + np.abs(x).max()))


@njit
def _gather(at, itemsize, d, ids, lo, hi, columns):
    gather_rows(at, itemsize, d, ids, lo, hi, columns)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(0, 60),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 99),
)
def test_rows_are_gathered_by_columns(d, n, source, kind, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, d)).astype(source)
    ids = rng.integers(0, 40, n + 5)
    columns = np.full((width_of(d + 1), padded(n + 1)), -7.0, kind)
    _gather(X.ctypes.data, X.itemsize, d, ids, 3, 3 + n, columns)
    np.testing.assert_array_equal(columns[:d, :n], X[ids[3 : 3 + n]].T.astype(kind))
    np.testing.assert_array_equal(columns[d, :n], 1)
    assert (columns[:, n:] == -7.0).all()
    assert (columns[d + 1 :] == -7.0).all()


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_any_number_of_threads_gives_the_same_bits(kind):
    n = 3 * CHUNK + 77
    _, _, _, descent, gradient, lam, start, rng = problem(kind, n)
    ids, starts, order = rng.permutation(n), [0, n // 2, n], [0, 1, 0, 1]
    results = []
    for count in (1, 2):
        with threads(count):
            run = descent.train(start, ids, starts, order, 0.1, trace=True)
            back = descent.replay(run, np.arange(5), ids, starts, order, 0.1, np.ones(n), burn_in=0, period=2)
        results.append((run.theta, back.theta))
    np.testing.assert_array_equal(results[0], results[1])
    parts = [ids[: n // 2], ids[n // 2 :]]
    np.testing.assert_allclose(results[0][0], reference.train(gradient, start, parts, order, 0.1, lam)[0], atol=1e-12)


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_kept_scratch_changes_nothing(kind):
    """Runs of other sizes, with weights and without, one after the other on the same object."""
    X, y, _, plain, _, strength, start, rng = problem(kind, 300)
    kept = Descent(X, y, kind, 2, 3, "tanh", strength, keep_scratch=True)
    weights = rng.integers(0, 2, 300).astype(float)
    for count, weight, workers in ((3, None, None), (3, None, 1), (3, weights, 1), (9, None, 1), (3, None, 1)):
        ids, starts, _ = batches_of(rng, 300, count)
        for visits in (ids, None):
            what = (start, visits, starts, np.arange(count), 0.1)
            options = {"adam": True, "weights": weight, "workers": workers}
            np.testing.assert_array_equal(kept.train(*what, **options).theta, plain.train(*what, **options).theta)


def test_read_only_weights_are_not_written_to():
    """A replay sets the weights of forgotten rows to 0 meanwhile, once whether it might write to them or not."""
    _, _, _, descent, _, _, start, _ = problem("lr", 50)
    weights, what = np.ones(50), (np.arange(50), [0, 25, 50], [0, 1, 0], 0.1)
    run = descent.train(start, *what, trace=True)
    expected = descent.replay(run, [3, 30], *what, weights).theta
    frozen = np.broadcast_to(np.ones(1), 50).copy()
    frozen.setflags(write=False)
    np.testing.assert_array_equal(descent.replay(run, [3, 30], *what, frozen).theta, expected)
    assert (frozen == 1).all()


def test_weights_drop_rows_and_empty_batches_are_passed_over():
    _, _, _, descent, _, _, start, rng = problem("lr", 50)
    ids = rng.permutation(50)
    weights = np.ones(50)
    weights[ids[:20]] = 0.0
    some = descent.train(start, ids, [0, 20, 50], [0, 1, 0], 0.1, weights=weights)
    alone = descent.train(start, ids[20:], [0, 30], [0], 0.1)
    np.testing.assert_allclose(some.theta, alone.theta, atol=1e-14)
    # nothing happens in a batch without rows, not even shrinkage
    np.testing.assert_array_equal(descent.train(start, ids[:0], [0, 0], [0, 0], 0.1, adam=True).theta, start)


def test_centre_is_where_the_penalty_pulls():
    X, y, model, _, gradient, lam, start, _ = problem("mlp", 30)
    centre = np.arange(model.size) / 10
    run = Descent(X, y, "mlp", 2, 3, lam=lam, centre=centre).train(start, np.arange(30), [0, 30], [0], 0.5)
    expected = start - 0.5 * (gradient(start, np.arange(30)) + lam * (start - centre))
    np.testing.assert_allclose(run.theta, expected, atol=1e-14)


@pytest.mark.parametrize(("kind", "C"), [("lr", 2), ("lr", 3), ("mlp", 2), ("mlp", 3)])
def test_noise_climbs_the_loss_of_the_model(kind, C):
    """One small step follows the finite-difference gradient's sign; the losses are those of the model."""
    _, _, model, _, _, _, _, rng = problem(kind, 10, n_classes=C)
    theta, start, labels = rng.normal(size=model.size), rng.normal(size=(6, 4)), rng.integers(0, C, 6)
    rows, losses = error_noise(start, labels, theta, kind, C, 3, steps=1, rate=1e-5, penalty=0.1)

    def objective(X):
        proba = model.predict_proba(theta, X)
        return np.log(proba[np.arange(6), labels]) + 0.1 * (X**2).sum(axis=1)

    for k in range(4):
        e = 1e-6 * np.eye(4)[k]
        slope = (objective(start + e) - objective(start - e)) / 2e-6
        sure = np.abs(slope) > 1e-3
        np.testing.assert_array_equal(np.sign(rows - start)[sure, k], -np.sign(slope[sure]))
    np.testing.assert_allclose(
        losses[:, 0], -np.log(model.predict_proba(theta, start)[np.arange(6), labels]), atol=1e-12
    )
    _, many = error_noise(start, labels, theta, kind, C, 3, steps=40)
    assert (many[:, -1] > many[:, 0]).mean() > 0.8
    with threads(1):
        np.testing.assert_array_equal(error_noise(start, labels, theta, kind, C, 3, steps=40)[1], many)


def test_bad_input_is_refused():
    X, y, _, descent, _, _, start, _ = problem("lr", 10)
    ids = np.arange(10)
    for arguments, message in (
        ((start[:2], ids, [0, 10], [0], 0.1), "start must have shape"),
        ((start, ids, [0, 9], [0], 0.1), "starts must ascend"),
        ((start, ids, [0, 10], [1], 0.1), "order must lie"),
    ):
        with pytest.raises(ValueError, match=message):
            descent.train(*arguments)
    with pytest.raises(ValueError, match="weights must have shape"):
        descent.train(start, ids, [0, 10], [0], 0.1, weights=np.ones(3))
    with pytest.raises(ValueError, match="kind must"):
        Descent(X, y, "forest")
    with pytest.raises(ValueError, match="not be negative"):
        Descent(X, y, lam=-1.0)
    run = descent.train(start, ids, [0, 10], [0], 0.1)
    with pytest.raises(ValueError, match="trace must have"):
        descent.replay(run, [0], ids, [0, 10], [0], 0.1, np.ones(10))
