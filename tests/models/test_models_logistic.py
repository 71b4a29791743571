"""LogisticModel: identities and streamed rows; baselines/test_crosschecks.py has scikit-learn's parameters."""

import numpy as np
import pytest
from baselines_data import Blocks

from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import ArrayTable


def make(n=500, d=4, n_classes=2, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(dtype)
    y = (X @ rng.normal(size=(d, n_classes)) + rng.gumbel(size=(n, n_classes))).argmax(axis=1)
    return X, y, rng


@pytest.mark.parametrize("n_classes", [2, 4])
def test_derivatives_fit_together(n_classes):
    X, y, rng = make(n_classes=n_classes)
    model = LogisticModel(4, n_classes, lam=0.1)
    theta, v = rng.normal(size=model.size), rng.normal(size=model.size)
    H, g = model.hessian(theta, X, y), model.gradient(theta, X, y)
    for k in range(model.size):
        e = 1e-6 * np.eye(model.size)[k]
        slope = (model.loss(theta + e, X, y) - model.loss(theta - e, X, y)) / 2e-6
        assert g[k] == pytest.approx(slope, abs=1e-8)
        curvature = (model.gradient(theta + e, X, y) - model.gradient(theta - e, X, y)) / 2e-6
        np.testing.assert_allclose(H[k], curvature, atol=1e-8)
    np.testing.assert_array_equal(H, H.T)
    np.testing.assert_allclose(model.hvp(theta, X, y, v), H @ v, atol=1e-13)
    np.testing.assert_allclose(g, model.data_gradient(theta, X, y) + model.penalty_gradient(theta), atol=0)
    proba = model.predict_proba(theta, X)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(proba.argmax(axis=1), model.predict(theta, X))
    log_loss = -np.log(proba[np.arange(len(y)), y]).mean()
    outputs = 1 if n_classes == 2 else n_classes
    assert model.loss(theta, X, y) == pytest.approx(log_loss + 0.05 * (theta[: 4 * outputs] ** 2).sum(), rel=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_streamed_rows_give_the_same_fit_in_one_pass_per_step(n_classes):
    X, y, rng = make(600, 3, n_classes)
    rows, seen = Blocks(X, y.astype(np.uint8), [1, 99, 0, 400, 100]), []
    model = LogisticModel(3, n_classes)
    streamed = model.fit(rows, progress=lambda steps, norm: seen.append((steps, norm)))
    assert rows.passes == streamed.steps + 1
    assert [steps for steps, _ in seen] == list(range(streamed.steps + 1))
    assert seen[-1][1] == streamed.gradient_norm
    fit = model.fit((X, y))
    np.testing.assert_allclose(streamed.theta, fit.theta, atol=1e-9)
    assert fit.converged
    assert np.abs(model.gradient(fit.theta, X, y)).max() <= 1e-10
    assert fit.loss == pytest.approx(model.loss(fit.theta, X, y), rel=1e-13)
    np.testing.assert_allclose(fit.hessian, model.hessian(fit.theta, X, y), atol=1e-13)
    warm = model.fit((X, y), start=streamed.theta + 0.01 * rng.normal(size=model.size))
    np.testing.assert_allclose(warm.theta, streamed.theta, atol=1e-8)
    assert warm.steps < streamed.steps


@pytest.mark.parametrize("n_classes", [2, 3])
def test_pairs_are_fits_of_their_rows(n_classes):
    X, y, rng = make(500, 3, n_classes)
    model = LogisticModel(3, n_classes, lam=1e-2)
    ids = np.stack([rng.permutation(500)[:120] for _ in range(3)])
    theta, theta_r, norms, steps = model.fit_pairs(X, y, ids, np.array([1, 10, 60]))
    assert norms.max() <= 1e-10
    assert steps.shape == (3, 2)
    for i, r in enumerate((1, 10, 60)):
        np.testing.assert_allclose(theta[i], model.fit((X[ids[i]], y[ids[i]])).theta, atol=1e-7)
        np.testing.assert_allclose(theta_r[i], model.fit((X[ids[i, r:]], y[ids[i, r:]])).theta, atol=1e-7)


def test_hard_data_converges():
    X, y, rng = make(300, 3, seed=1)
    far = np.column_stack([X, 100 + rng.normal(size=300), np.full(300, 3.0)]).astype(np.float32)
    near = np.column_stack([X, far[:, 3] - 100, np.zeros(300)]).astype(np.float32)
    model = LogisticModel(5)
    theta, other = model.fit((far, y)).theta, model.fit((near, y)).theta
    np.testing.assert_allclose(theta[:4], other[:4], atol=1e-6)
    separable = (X[:, 0] > 0).astype(int)
    assert LogisticModel(3, lam=1e-6).fit((100 * X, separable)).converged
    two = LogisticModel(1).fit((np.array([[1.0], [-1.0]], np.float32), np.array([1, 0])))
    assert two.theta[1] == pytest.approx(0, abs=1e-9)
    doubled = model.fit((np.repeat(near, 2, axis=0), np.repeat(y, 2)))
    np.testing.assert_allclose(doubled.theta, other, atol=1e-8)


def test_bad_input_is_one_clear_sentence():
    X, y, _ = make(20, 3)
    model = LogisticModel(3)
    cases = [
        (UserError, "lam", lambda: LogisticModel(3, lam=0)),
        (UserError, "2 classes", lambda: LogisticModel(3, 1)),
        (UserError, "class 1", lambda: model.fit((X, 0 * y))),
        (UserError, "every class", lambda: LogisticModel(3, 3).fit((X, y))),
        (UserError, r"\(n, 3\)", lambda: model.fit((X[:, :2], y))),
        (UserError, "3 features", lambda: model.fit(Blocks(X[:, :2], y, [20]))),
        (UserError, "start", lambda: model.fit((X, y), start=np.zeros(3))),
        (UserError, "gradient norm is", lambda: model.fit((X, y), tol=1e-30)),
        (ValueError, "theta", lambda: model.logits(np.zeros(3), X)),
        (ValueError, "X must", lambda: model.logits(np.zeros(4), X[:, :2])),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()


@pytest.mark.realdata
def test_pairs_of_covertype_rows_all_converge():
    """One-hot columns, many of them constant in a subset of 10,000 rows."""
    import gzip
    import os
    from pathlib import Path

    files = sorted(Path(os.environ["L2UL_RAW_DIR"]).glob("covtype/*.gz"))
    if not files:
        pytest.skip("no covertype file")
    with gzip.open(files[0], "rt") as text:
        rows = np.array([next(text).strip().split(",") for _ in range(60_000)], np.float64)
    X, y = rows[:, :-1], (rows[:, -1] == 2).astype(np.uint8)
    scale = X.std(axis=0)
    X = ((X - X.mean(axis=0)) / np.where(scale > 0, scale, 1)).astype(np.float32)
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(len(X))[:10_000] for _ in range(12)])
    r = np.array([1, 3, 10, 30, 100, 300, 1000, 1000, 3000, 5000, 9000, 9900])
    _, _, norms, steps = LogisticModel(54).fit_pairs(X, y, ids, r)
    assert norms.max() <= 1e-10
    assert steps.max() < 30


def test_a_metric_of_some_rows_saves_hessians_and_ends_at_the_same_point():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(5000, 6)).astype(np.float32)
    y = (X @ rng.normal(size=6) + rng.normal(size=5000) > 0).astype(np.uint8)
    model = LogisticModel(6, lam=1e-3)
    few, exact = model.fit((X[:500], y[:500])), model.fit((X, y), tol=1e-12)
    found = model.fit((X, y), start=few.theta, tol=1e-10, metric=few.hessian)
    np.testing.assert_allclose(found.theta, exact.theta, atol=1e-9)
    assert found.converged
    assert found.hessian is None  # no pass computed it
    # a metric that is far off gives way to Newton's method
    again = model.fit((X, y), tol=1e-10, metric=1e-3 * few.hessian)
    np.testing.assert_allclose(again.theta, exact.theta, atol=1e-9)
    assert again.hessian is not None


@pytest.mark.parametrize("classes", [2, 3])
def test_hidden_rows_count_for_nothing(classes, monkeypatch):
    monkeypatch.setattr("l2ul_fast.tables.BLOCK_ROWS", 100)
    rng = np.random.default_rng(4)
    X = rng.normal(size=(450, 3))
    y = rng.integers(0, classes, 450).astype(np.uint8)
    gone = np.array([0, 5, 99, 100, 449])
    model, rest = LogisticModel(3, classes, lam=1e-2), np.delete(np.arange(450), gone)
    X_wrong = X.copy()
    X_wrong[gone] = 1e3  # would show
    hidden = ArrayTable(X_wrong, y, list(range(classes))).without(gone)
    here, there = model.fit(hidden, tol=1e-11), model.fit((X[rest], y[rest]), tol=1e-11)
    np.testing.assert_allclose(here.theta, there.theta, atol=1e-10)
    np.testing.assert_allclose(here.loss, there.loss, rtol=1e-12)
