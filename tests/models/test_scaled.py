"""Columns of very different sizes: the same objective, in the caller's units, at the minimum that scipy finds."""

import numpy as np
import pytest
from baselines_data import Blocks
from scipy.optimize import minimize

from l2ul_fast.models import GeneralisedLinearModel, LogisticModel, MLPModel
from l2ul_fast.models.fit import newton
from l2ul_fast.tables import ArrayTable

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(600, 4))
SCORE = Z @ [1.0, -1.0, 0.5, 2.0]
LABELS = (SCORE + RNG.logistic(size=600) > 0).astype(np.uint8)
THREE = (Z[:, :3] + RNG.gumbel(size=(600, 3))).argmax(axis=1).astype(np.uint8)
NUMBERS = np.round(np.exp(0.3 * SCORE))
MODELS = {
    "lr": (lambda d: LogisticModel(d, lam=1e-2), LABELS),
    "softmax": (lambda d: LogisticModel(d, 3, lam=1e-2), THREE),
    "squared": (lambda d: GeneralisedLinearModel(d, lam=1e-2), SCORE),
    "poisson": (lambda d: GeneralisedLinearModel(d, "poisson", lam=1e-2), NUMBERS),
    "mlp": (lambda d: MLPModel(d, h=3, lam=1e-2), LABELS),
}
#: Sizes of the columns, and what is added to them.
SIZES = {
    "1e8 apart": ([1e4, 1, 1e-4, 1], [0, 0, 0, 0]),
    "both ends": ([1e8, 1, 1e-8, 1], [0, 0, 0, 0]),
    "far from zero": ([1e4, 1, 1, 1], [1e8, 30, 0, 0]),
    "small beside its mean": ([1, 1, 1, 1], [1e6, 0, 0, 0]),
    "squares overflow": ([1e160, 1, 1, 1], [0, 0, 0, 0]),
}


def reference(make, size, y):
    """(objective at its minimum, scores of the rows) on columns of one size, whose penalties are lam / size^2.

    Shifts only move the intercept, which is free; a column of 1e-8 would cost more than it is worth and stays out.
    """
    kept = np.flatnonzero(np.asarray(size) > 1e-6)
    model, X = make(len(kept)), Z[:, kept]
    outputs = model.size // (len(kept) + 1)
    strength = np.append(np.tile(model.lam / np.asarray(size)[kept] ** 2, outputs), np.zeros(outputs))

    def objective(t):
        value, gradient, _ = model._objective(t, [(X, y, None)], np.zeros(t.size))
        return value + t @ (strength * t) / 2, gradient + strength * t

    found = minimize(objective, model.start(), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    return found.fun, X @ found.x[:-outputs].reshape(outputs, -1).T + found.x[-outputs:]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
def test_linear_models_reach_the_minimum_of_the_callers_objective(name, sizes):
    (make, y), (size, shift) = MODELS[name], SIZES[sizes]
    model, X = make(4), Z * size + shift
    fit = model.fit((X, y))
    assert fit.converged
    with np.errstate(under="ignore"):
        value, scores = reference(make, size, y)
    assert fit.loss == pytest.approx(value, rel=1e-7, abs=1e-9)
    mine = model.logits(fit.theta, X) if model.n_classes else X @ fit.theta[:-1] + fit.theta[-1]
    mine = mine[:, None] if mine.ndim == 1 else mine - mine.mean(axis=1, keepdims=True)
    scores = scores - scores.mean(axis=1, keepdims=True) if model.n_classes == 3 else scores
    np.testing.assert_allclose(mine, scores, atol=2e-5)
    assert fit.theta.shape == (model.size,)


@pytest.mark.parametrize("sizes", SIZES)
def test_mlps_are_no_worse_than_on_columns_of_one_size(sizes):
    model, (size, shift) = MODELS["mlp"][0](4), SIZES[sizes]
    X = Z * size + shift
    fit = model.fit((X, LABELS))
    assert fit.converged
    assert fit.loss == pytest.approx(model.loss(fit.theta, X, LABELS), rel=1e-6)
    usual = model.fit((Z, LABELS))
    # the penalty on what undoes a shift, and on a tiny column, is part of the objective
    assert (model.predict(fit.theta, X) == LABELS).mean() > (model.predict(usual.theta, Z) == LABELS).mean() - 0.05


def test_weights_blocks_and_starts_are_kept():
    """Hidden rows count for nothing, whatever they hold; any start ends at one point."""
    model, size = LogisticModel(4, lam=1e-2), [1, 1, 1, 1e4]
    X = Z * size + [1e6, 0, 0, 0]
    gone, spoiled = np.arange(0, 600, 7), X.copy()
    spoiled[gone] = 1e30
    rest = np.delete(np.arange(600), gone)
    plain = model.fit((X[rest], LABELS[rest]))
    hidden = model.fit(ArrayTable(spoiled, LABELS, [0, 1]).without(gone))
    streamed = model.fit(Blocks(X[rest], LABELS[rest], [100, len(rest) - 100]))
    warm = model.fit((X[rest], LABELS[rest]), start=1e-7 * RNG.normal(size=5))
    for other in (hidden, streamed, warm):
        np.testing.assert_allclose(model.logits(other.theta, X), model.logits(plain.theta, X), atol=1e-6)


def test_a_step_is_small_in_the_units_of_each_column():
    """A large coefficient hides no other one: the first column is far from its minimum."""

    def objective(t):
        g = np.array([1e160 * t[0] - 1e155, 1e-6 * (t[1] - 1e12)])
        return float(g @ g), g, np.diag([1e160, 1e-6])

    assert newton(objective, np.array([1.0, 1e12]), 1e-9, max_steps=0).converged is False
