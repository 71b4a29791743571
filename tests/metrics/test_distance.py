"""rho and its noise floors, residuals on retained rows, alignment of hidden units, cost."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2ul_fast import metrics
from l2ul_fast.errors import DataError
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import ArrayTable


def make(n=300, d=3, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (X @ rng.normal(size=(d, classes)) + rng.gumbel(size=(n, classes))).argmax(axis=1)
    return X, y.astype(np.uint8), rng


@pytest.fixture(scope="module")
def case():
    """(model, X, y, forget, theta, theta_r) of logistic regression."""
    X, y, _ = make()
    model, forget = LogisticModel(3, lam=1e-2), np.arange(30)
    theta = model.fit((X, y)).theta
    return model, X, y, forget, theta, model.fit((X[30:], y[30:])).theta


# --------------------------------------------------------------------------------------------------------------- rho


@given(st.integers(0, 10_000), st.floats(0, 3), st.floats(0.1, 100))
@settings(max_examples=50, deadline=None)
def test_rho_is_the_share_of_the_way_left(seed, share, scale):
    rng = np.random.default_rng(seed)
    theta, theta_r = rng.normal(size=(2, 7))
    new = theta_r + share * (theta - theta_r)
    assert metrics.rho(new, theta_r, theta).value == pytest.approx(share, abs=1e-9)
    Q = np.linalg.qr(rng.normal(size=(7, 7)))[0] * scale  # rotations and scales change nothing
    assert metrics.rho(Q @ new, Q @ theta_r, Q @ theta).value == pytest.approx(share, abs=1e-9)
    found = metrics.parameter_distance(new, theta_r, theta)
    assert found.value == pytest.approx(share * found.nothing, abs=1e-9)


def test_rho_of_retrain_and_of_nothing(case):
    *_, theta, theta_r = case
    assert metrics.rho(theta_r, theta_r, theta).value == 0
    found = metrics.rho(theta, theta_r, theta)
    assert found.value == 1 == found.nothing
    assert found.beaten_by_nothing
    assert "0/0" in metrics.rho(theta, theta, theta).degenerate
    assert metrics.rho(np.full_like(theta, np.nan), theta_r, theta).degenerate == "the result is not finite"
    with pytest.raises(DataError, match="shape"):
        metrics.rho(theta[:-1], theta_r, theta)


@given(st.integers(0, 10_000), st.floats(0, 0.49))
@settings(max_examples=50, deadline=None)
def test_interval_of_rho_holds_every_rho_the_solver_could_hide(seed, share):
    rng = np.random.default_rng(seed)
    new, theta_r, theta = rng.normal(size=(3, 4))
    error = share * float(np.linalg.norm(theta - theta_r))
    found = metrics.rho(new, theta_r, theta, error)
    low, high = found.interval
    for _ in range(20):
        step = rng.normal(size=4)
        true = theta_r + error * step / np.linalg.norm(step)
        assert low - 1e-12 <= metrics.rho(new, true, theta).value <= high + 1e-12
    # both ends are reached: the bound is no wider than it must be (everything on one line)
    line = metrics.rho([2.0], [0.0], [-1.0], share)
    assert metrics.rho([2.0], [-share], [-1.0]).value == pytest.approx(line.interval[1])
    assert metrics.rho([2.0], [share], [-1.0]).value == pytest.approx(line.interval[0])


def test_rho_below_the_noise_is_degenerate(case):
    *_, theta, theta_r = case
    change = float(np.linalg.norm(theta - theta_r))
    assert metrics.rho(theta, theta_r, theta, 0.49 * change).value == 1
    assert "solver's error" in metrics.rho(theta, theta_r, theta, 0.5 * change).degenerate
    none = np.zeros((0, 3)), np.zeros(0, np.uint8)
    unknown = metrics.solver_error(LogisticModel(3), theta, none)
    assert unknown.degenerate == "no rows"
    assert "not known" in metrics.rho(theta, theta_r, theta, unknown).degenerate
    assert "not known" in metrics.rho_floor(theta, theta_r, unknown).degenerate
    assert metrics.rho_floor(theta, theta_r, 0.5 * change).value == pytest.approx(0.5)
    assert metrics.rho_floor_two(theta, theta_r, theta_r).value == 0
    assert metrics.rho_floor_two(theta, theta_r, theta).value == pytest.approx(1)
    assert "0/0" in metrics.rho_floor(theta, theta, 1.0).degenerate


@pytest.mark.parametrize("classes", [2, 3])
def test_solver_error_bounds_the_true_error(classes):
    X, y, rng = make(classes=classes)
    model = LogisticModel(3, classes, lam=1e-2)
    exact = model.fit((X, y), tol=1e-12).theta
    assert metrics.solver_error(model, exact, (X, y)).value < 1e-9
    for size in (1e-6, 1e-4):
        step = rng.normal(size=model.size) * size
        if classes > 2:  # the same number added to all intercepts changes no prediction
            step[-classes:] -= step[-classes:].mean()
        bound = metrics.solver_error(model, exact + step, (X, y)).value
        assert 0.999 * np.linalg.norm(step) <= bound
        H = model.hessian(exact + step, X, y)
        values = np.linalg.eigvalsh(H)[1 if classes > 2 else 0 :]
        assert bound == pytest.approx(np.linalg.norm(model.gradient(exact + step, X, y)) / values[0], rel=1e-9)


def test_solver_error_needs_a_minimum(monkeypatch):
    X, y, _ = make()
    model = MLPModel(3, h=2, lam=0.0)
    assert "positive definite" in metrics.solver_error(model, np.zeros(model.size), (X, y)).degenerate
    convex, theta = LogisticModel(3), np.ones(4)
    whole = metrics.solver_error(convex, theta, (X, y)).value
    monkeypatch.setattr("l2ul_fast.tables.BLOCK_ROWS", 64)  # blocks of unequal size count by their rows
    assert metrics.solver_error(convex, theta, ArrayTable(X, y, [0, 1])).value == pytest.approx(whole, rel=1e-12)


# --------------------------------------------------------------------------------------------- objective on retain


def test_residual_and_excess_loss(case, monkeypatch):
    model, X, y, forget, theta, theta_r = case
    table = ArrayTable(X, y, [0, 1]).without(forget)
    monkeypatch.setattr("l2ul_fast.tables.BLOCK_ROWS", 77)
    rest = X[30:], y[30:]
    new = 0.5 * (theta + theta_r)
    residual = metrics.gradient_residual(model, new, table, theta, theta_r)
    assert residual.value == pytest.approx(np.linalg.norm(model.gradient(new, *rest)), rel=1e-12)
    assert residual.nothing == pytest.approx(np.linalg.norm(model.gradient(theta, *rest)), rel=1e-12)
    assert residual.target < 1e-9 < residual.value < residual.nothing
    assert metrics.gradient_residual(model, new, table).target == 0
    excess = metrics.excess_loss(model, new, theta_r, table, theta)
    assert excess.value == pytest.approx(model.loss(new, *rest) - model.loss(theta_r, *rest), rel=1e-6)
    assert 0 < excess.value < excess.nothing
    assert metrics.excess_loss(model, theta_r, theta_r, table, theta).value == 0
    assert "rounding" in metrics.excess_loss(model, new, theta_r, table, theta_r).degenerate
    none = (X[:0], y[:0])
    assert metrics.excess_loss(model, new, theta_r, none).degenerate == "no rows"
    assert metrics.gradient_residual(model, new, none).degenerate == "no rows"


# ------------------------------------------------------------------------------------------------------- alignment


def renamed(model, theta, order, sign):
    """theta with hidden units in another order and with other signs."""
    h, d, o = model.h, model.d, 1 if model.n_classes == 2 else model.n_classes
    W1, b1 = theta[: h * d].reshape(h, d), theta[h * d : h * d + h]
    W2, b2 = theta[h * d + h : -o].reshape(o, h), theta[-o:]
    sign = np.asarray(sign, float)
    W1, b1, W2 = sign[:, None] * W1[order], sign * b1[order], sign * W2[:, order]
    return np.concatenate([W1.ravel(), b1, W2.ravel(), b2])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_alignment_finds_the_nearest_of_all_renamings(classes, activation):
    rng = np.random.default_rng(classes)
    model = MLPModel(4, classes, h=3, activation=activation)
    X = rng.normal(size=(30, 4))
    signs = list(itertools.product([1, -1], repeat=3)) if activation == "tanh" else [(1, 1, 1)]
    for _ in range(10):
        theta, other = rng.normal(size=(2, model.size))
        aligned = metrics.align_units(model, theta, other)
        names = itertools.product(itertools.permutations(range(3)), signs)
        best = min(np.linalg.norm(renamed(model, theta, list(o), s) - other) for o, s in names)
        assert np.linalg.norm(aligned - other) == pytest.approx(best, rel=1e-12)
        np.testing.assert_allclose(model.logits(aligned, X), model.logits(theta, X), atol=1e-12)
    copy = renamed(model, theta, [2, 0, 1], (1, -1, -1) if activation == "tanh" else (1, 1, 1))
    np.testing.assert_allclose(metrics.align_units(model, copy, theta), theta)


def test_aligned_rho():
    rng = np.random.default_rng(5)
    model = MLPModel(4, h=3)
    theta_r = rng.normal(size=model.size)
    theta, new = theta_r + 0.1 * rng.normal(size=(2, model.size))
    found = metrics.aligned_rho(model, renamed(model, new, [1, 2, 0], (-1, 1, 1)), theta_r, theta)
    assert found.value == pytest.approx(metrics.rho(new, theta_r, theta).value)
    assert metrics.rho(renamed(model, new, [1, 2, 0], (-1, 1, 1)), theta_r, theta).value > 5
    # the original is renamed as well before its distance counts
    other = metrics.aligned_rho(model, new, theta_r, renamed(model, theta, [2, 1, 0], (1, -1, 1)))
    assert other.value == pytest.approx(found.value)
    with pytest.raises(DataError, match="anchor"):
        metrics.aligned_rho(model.with_anchor(theta, 0.1), new, theta_r, theta)
    with pytest.raises(DataError, match="shape"):
        metrics.align_units(model, new[:-1], theta_r)


# ------------------------------------------------------------------------------------------------------------- cost


def test_cost():
    assert metrics.break_even(30.0, 2.0, 0.5).value == pytest.approx(20)
    assert metrics.break_even(0.0, 2.0, 2.0).degenerate.startswith("never")
    with pytest.raises(DataError, match="extra_seconds"):
        metrics.break_even(-1.0, 2.0, 1.0)
    found = metrics.times([100.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.low, found.median, found.high, found.n) == (2.0, 3.0, 4.0, 5)
    with pytest.raises(DataError, match="warming up"):
        metrics.times([1.0])
    assert metrics.throughput([0.25, 0.75]).value == 2
    assert metrics.throughput([]).degenerate == "no time passed"
    assert metrics.time_to_rho([1.0, 2.0, 4.0], [0.5, 0.05, 0.2]).value == 2.0
    assert "never fell" in metrics.time_to_rho([1.0], [0.1]).degenerate
