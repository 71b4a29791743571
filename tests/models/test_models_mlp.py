"""The MLP as a model: objective, fits, the anchored protocol, accuracy beside scikit-learn."""

import os

import numpy as np
import pytest
from baselines_data import Blocks

from l2ul_fast.errors import UserError
from l2ul_fast.models.mlp import MLPModel
from l2ul_fast.models.trust_region import trust_newton


def data(n, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] + X[:, 2] + 0.7 * rng.normal(size=n) > 0).astype(np.uint8)
    return X, y


@pytest.fixture(scope="module")
def anchored():
    X, y = data(3000)
    model = MLPModel(6, h=4)
    anchor = model.train_anchor(X[:800], y[:800], seeds=3)
    model, fit = model.fit_anchored((X, y), anchor)
    return X, y, model, fit


def test_loss_gradient_and_hessian_are_of_one_objective():
    X, y = data(300)
    model = MLPModel(6, h=4, lam=0.1)
    theta, v = model.start(1), model.start(2)
    for m in (model, model.with_anchor(v, 0.3)):
        slope = (m.loss(theta + 1e-6 * v, X, y) - m.loss(theta - 1e-6 * v, X, y)) / 2e-6
        assert abs(slope - m.gradient(theta, X, y) @ v) < 1e-7
        np.testing.assert_allclose(m.gradient(theta, X, y), m.data_gradient(theta, X, y) + m.penalty_gradient(theta))
        bend = (m.gradient(theta + 1e-6 * v, X, y) - m.gradient(theta - 1e-6 * v, X, y)) / 2e-6
        np.testing.assert_allclose(m.hvp(theta, X, y, v), bend, atol=1e-7)
        np.testing.assert_allclose(m.hessian(theta, X, y) @ v, bend, atol=1e-7)
    np.testing.assert_array_equal(model.with_anchor(theta, 0.3).penalty_gradient(theta), 0)


def test_three_classes():
    X, _ = data(400)
    y = np.digitize(X[:, 0] + X[:, 1] ** 2, [0.3, 1.3])
    model = MLPModel(6, n_classes=3, h=4)
    fit = model.fit((X, y), tol=1e-4, max_steps=30)
    proba = model.predict_proba(fit.theta, X)
    assert proba.shape == (400, 3)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(model.predict(fit.theta, X), proba.argmax(axis=1))
    assert (model.predict(fit.theta, X) == y).mean() > 0.9
    v = model.start(3)
    np.testing.assert_allclose(model.hessian(fit.theta, X, y) @ v, model.hvp(fit.theta, X, y, v), atol=1e-10)


def test_blocks_add_up_to_the_array():
    X, y = data(2000)
    model = MLPModel(6, h=4)
    theta, rows = model.start(0), Blocks(X, y, [700, 700, 600])
    loss, gradient = model.evaluate(theta, rows)
    assert abs(loss - model.loss(theta, X, y)) < 1e-13
    np.testing.assert_allclose(gradient, model.gradient(theta, X, y), atol=1e-14)
    np.testing.assert_allclose(model.hessian_of(theta, rows), model.hessian(theta, X, y), atol=1e-13)
    one, other = model.fit((X, y), tol=1e-9), model.fit(rows, tol=1e-9)
    assert one.converged
    assert other.converged
    np.testing.assert_allclose(one.theta, other.theta, atol=1e-6)
    assert one.gradient_norm <= 1e-9
    np.testing.assert_allclose(one.hessian, model.hessian(one.theta, X, y))


def test_predictions_and_probabilities_agree():
    X, y = data(500)
    model = MLPModel(6, h=4)
    theta = model.start(0)
    proba = model.predict_proba(theta, X)
    np.testing.assert_allclose(proba[:, 1], 1 / (1 + np.exp(-model.logits(theta, X))), rtol=1e-12)
    np.testing.assert_array_equal(model.predict(theta, X), proba.argmax(axis=1))
    loss = -np.log(proba[np.arange(500), y]).mean() + model.penalty(theta)
    assert abs(loss - model.loss(theta, X, y)) < 1e-12


def test_cold_and_warm_retraining_meet_under_the_anchor(anchored):
    X, y, model, fit = anchored
    assert fit.converged
    assert fit.gradient_norm <= 1e-10
    assert np.linalg.eigvalsh(fit.hessian)[0] >= 0.7 * model.mu
    rng = np.random.default_rng(1)
    requests = [rng.permutation(3000)[:r] for r in (1, 30, 300)] + [np.flatnonzero(y == 1)[:200]]
    pairs = model.anchored_pairs(X, y, np.concatenate(requests), np.cumsum([0, *map(len, requests)]), fit)
    assert pairs.gradient_norm.max() <= 1e-8
    for forget, theta_r in zip(requests, pairs.theta_r, strict=True):
        rest = np.delete(np.arange(3000), forget)
        rows = (X[rest], y[rest])
        cold, warm = model.fit(rows), model.fit(rows, fit.theta)
        moved = np.linalg.norm(cold.theta - fit.theta)
        assert np.linalg.norm(cold.theta - warm.theta) < 1e-4 * moved
        assert np.linalg.norm(theta_r - cold.theta) < 1e-2 * moved
        assert np.linalg.norm(model.gradient(theta_r, *rows)) <= 1.1e-8
        # one Newton step with the Hessian of all rows goes most of the way
        g = model.data_gradient(fit.theta, X[forget], y[forget]) + model.penalty_gradient(fit.theta)
        newton = fit.theta + len(forget) / len(rest) * np.linalg.solve(fit.hessian, g)
        assert np.linalg.norm(newton - theta_r) < 0.5 * moved


def test_pairs_that_cannot_converge_say_so(anchored):
    X, y, model, fit = anchored
    pairs = model.anchored_pairs(X, y, np.arange(300), [0, 0, 300], fit, max_steps=1, fallback=False)
    assert pairs.gradient_norm[0] <= 1e-8  # nothing to forget
    np.testing.assert_array_equal(pairs.theta_r[0], fit.theta)
    assert pairs.steps.tolist() == [0, 1]
    assert pairs.gradient_norm[1] > 1e-8
    saved = model.anchored_pairs(X, y, np.arange(300), [0, 0, 300], fit, max_steps=1)
    assert saved.gradient_norm.max() <= 1e-8
    np.testing.assert_allclose(
        saved.theta_r[1], model.anchored_pairs(X, y, np.arange(300), [0, 300], fit).theta_r[0], atol=1e-5
    )


def test_a_wrong_inverse_hessian_slows_the_pairs_but_does_not_mislead_them(anchored):
    from l2ul_kernels.mlp.anchored import mlp_anchored_pairs

    X, y, model, fit = anchored
    right = model.anchored_pairs(X, y, np.arange(100), [0, 100], fit)
    poor = 3 * np.linalg.inv(fit.hessian)
    found = mlp_anchored_pairs(
        X, y, np.arange(100), [0, 100], fit.theta, model.anchor, model.mu, poor, max_steps=100, h=4
    )
    assert found.gradient_norm[0] <= 1e-8
    np.testing.assert_allclose(found.theta_r, right.theta_r, atol=1e-5)
    assert found.steps[0] > right.steps[0]


def test_minima_are_found_down_to_rounding():
    """A curved valley, and a start beside a saddle, where a Newton step would go to it."""
    valley = trust_newton(
        lambda t: (
            (1 - t[0]) ** 2 + 100 * (t[1] - t[0] ** 2) ** 2,
            np.array([-2 * (1 - t[0]) - 400 * t[0] * (t[1] - t[0] ** 2), 200 * (t[1] - t[0] ** 2)]),
        ),
        lambda t: np.array([[2 - 400 * (t[1] - 3 * t[0] ** 2), -400 * t[0]], [-400 * t[0], 200.0]]),
        np.array([-1.2, 1.0]),
        1e-12,
    )
    seen = []
    saddle = trust_newton(
        lambda t: (t[0] ** 4 / 4 - t[0] ** 2 / 2 + t[1] ** 2 / 2, np.array([t[0] ** 3 - t[0], t[1]])),
        lambda t: np.diag([3 * t[0] ** 2 - 1, 1.0]),
        np.array([1e-7, 1e-7]),
        1e-12,
        progress=lambda *step: seen.append(step),
    )
    for found in (valley, saddle):
        assert found.converged
        np.testing.assert_allclose(found.theta, 1 if found is valley else [1, 0], atol=1e-12)
    assert [step for step, _ in seen] == list(range(1, saddle.steps + 1))
    assert seen[-1][1] <= 1e-12
    stopped = trust_newton(
        lambda t: (float(t @ t), 2 * t), lambda t: 2 * np.eye(2), np.full(2, 1e3), 1e-12, max_steps=2
    )
    assert not stopped.converged


def test_edge_cases_of_fitting():
    X, y = data(200)
    model = MLPModel(6, h=3, lam=1e-2)
    alone = model.fit((X[:1], y[:1]), tol=1e-8)
    assert alone.converged
    one_class = model.fit((X, np.zeros(200, np.uint8)), tol=1e-8)
    assert one_class.converged
    assert not model.predict(one_class.theta, X).any()
    twins = model.fit((np.repeat(X[:20], 10, axis=0), np.repeat(y[:20], 10)), tol=1e-8)
    assert twins.converged
    for bad in (
        lambda: MLPModel(6, anchor=model.start(0)),
        lambda: MLPModel(6, h=3, anchor=np.zeros(3), mu=0.1),
        lambda: MLPModel(6, lam=-1.0),
        lambda: MLPModel(6, 3).fit_anchored((X, y), np.zeros(3)),
        lambda: model.fit((X[:0], y[:0]), start=model.start(0)),
        lambda: model.anchored_pairs(X, y, [1], [0, 1], alone),
        lambda: model.with_anchor(model.start(0), 1.0).fit_pairs(X, y, [[1, 2]], [1]),
    ):
        with pytest.raises(UserError):
            bad()


def accuracy_beside_sklearn(X, y, X_test, y_test):
    from sklearn.neural_network import MLPClassifier

    model = MLPModel(X.shape[1])
    fit = model.fit((X, y), tol=1e-6, max_steps=100)
    ours = (model.predict(fit.theta, X_test) == y_test).mean()
    peer = MLPClassifier((10,), activation="tanh", alpha=0.1, learning_rate_init=0.01, max_iter=40, random_state=0)
    peer.n_iter_no_change = 40
    return ours, peer.fit(X, y).score(X_test, y_test)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_accuracy_is_that_of_sklearn():
    X, y = data(6000, seed=4)
    ours, theirs = accuracy_beside_sklearn(X[:3000], y[:3000], X[3000:], y[3000:])
    assert ours > theirs - 0.005


@pytest.mark.realdata
@pytest.mark.skipif(not os.environ.get("L2UL_RAW_DIR"), reason="L2UL_RAW_DIR is not set")
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_accuracy_on_magic_is_that_of_sklearn(tmp_path):
    from l2ul_fast.datasets import convert
    from l2ul_fast.tables import FileTable, in_memory

    path = convert("magic", data_dir=tmp_path)
    train, test = (in_memory(FileTable(path, part)) for part in ("train", "test"))
    ours, theirs = accuracy_beside_sklearn(train.X, train.y, test.X, test.y)
    assert ours > theirs - 0.005


def test_hidden_rows_and_a_metric_end_at_the_same_point():
    from l2ul_fast.tables import ArrayTable

    rng = np.random.default_rng(8)
    X = rng.normal(size=(600, 4))
    y = (X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=600) > 0).astype(np.uint8)
    plain = MLPModel(4, h=3, lam=1e-2)
    anchor = plain.fit((X[:300], y[:300]), tol=1e-8).theta
    model = plain.with_anchor(anchor, 0.05)
    whole, gone = model.fit((X, y)), np.arange(0, 600, 60)
    rest = np.delete(np.arange(600), gone)
    exact = model.fit((X[rest], y[rest]), tol=1e-10)
    X_wrong = X.copy()
    X_wrong[gone] = 1e3  # would show
    table = ArrayTable(X_wrong, y, [0, 1]).without(gone)
    found = model.fit(table, start=whole.theta, tol=1e-10, metric=whole.hessian, curvature=False)
    np.testing.assert_allclose(found.theta, exact.theta, atol=1e-8)
    assert found.hessian is None
    np.testing.assert_allclose(model.hessian_of(exact.theta, table), exact.hessian, atol=1e-10)
