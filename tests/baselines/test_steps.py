"""Newton, certified removal, influence, D2D and the references, against retraining and against independent code."""

import numpy as np
import pytest
from baselines_data import RidgeModel, blobs, rho, table_of
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from l2ul_fast.baselines import METHODS, Certified, Influence, Newton, Retrain
from l2ul_fast.baselines.certified import residual_bound
from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel, MLPModel


def prepared(method, table, model, seed=0):
    method.prepare(table, model, seed)
    return method


@pytest.fixture(scope="module")
def lr():
    table = table_of(*blobs(1500, 6, seed=1))
    model = LogisticModel(6, lam=1e-2)
    theta = model.fit(table).theta
    forget = np.random.default_rng(5).permutation(1500)[:75]
    return table, model, theta, forget, model.fit(table.without(forget), tol=1e-12).theta


# ---------------------------------------------------------------------------------------------------------- retrain


@pytest.mark.parametrize("warm", [False, True])
def test_retrain_is_stationary_far_below_the_change_it_measures(lr, warm):
    table, model, theta, forget, _ = lr
    answer = prepared(Retrain(warm=warm), table, model).unlearn(forget)
    keep = np.setdiff1d(np.arange(1500), forget)
    X, y = table.X[keep], table.y[keep]
    residual = np.abs(model.gradient(answer.theta, X, y)).max()
    smallest = np.linalg.eigvalsh(model.hessian(answer.theta, X, y))[0]
    assert residual < 1e-10
    assert residual < 1e-3 * np.linalg.norm(theta - answer.theta) * smallest


def test_retrain_is_what_scikit_learn_and_scipy_find(lr):
    table, model, _, forget, _ = lr
    answer = prepared(Retrain(), table, model).unlearn(forget)
    keep = np.setdiff1d(np.arange(1500), forget)
    X, y = table.X[keep].astype(np.float64), table.y[keep]
    peer = LogisticRegression(C=1 / (model.lam * len(y)), tol=1e-12, max_iter=1000, solver="newton-cholesky").fit(X, y)
    np.testing.assert_allclose(answer.theta, np.append(peer.coef_[0], peer.intercept_), atol=1e-8)
    found = minimize(
        lambda t: (model.loss(t, X, y), model.gradient(t, X, y)),
        np.zeros(7),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 1e-16, "gtol": 1e-12, "maxiter": 1000},
    )
    np.testing.assert_allclose(answer.theta, found.x, atol=1e-6)


def test_warm_retraining_takes_fewer_steps_to_the_same_point(lr):
    table, model, _, forget, _ = lr
    cold = prepared(Retrain(), table, model).unlearn(forget)
    warm = prepared(Retrain(warm=True), table, model).unlearn(forget)
    np.testing.assert_allclose(cold.theta, warm.theta, atol=1e-9)
    assert warm.facts["steps"] < cold.facts["steps"]


# ------------------------------------------------------------------------------------------------ Newton, influence


def test_newton_is_exact_for_a_quadratic_loss_and_influence_is_not():
    table, model = table_of(*blobs(400, 5, seed=2)), RidgeModel(5, lam=0.05)
    forget = np.arange(0, 400, 20)  # 5 %
    theta, target = model.fit(table).theta, model.fit(table.without(forget)).theta
    newton = prepared(Newton(), table, model).unlearn(forget).theta
    np.testing.assert_allclose(newton, target, atol=1e-12)
    influence = prepared(Influence(), table, model).unlearn(forget).theta
    assert 1e-3 < rho(influence, theta, target) < 0.3  # a good step, but with the wrong Hessian


def test_newton_solvers_agree(lr):
    table, model, _, forget, _ = lr
    answers = [
        prepared(Newton(solver), table, model).unlearn(forget[:r]).theta
        for r in (1, 4, 75)
        for solver in ("compiled", "woodbury", "direct")
    ]
    for i in range(0, 9, 3):
        np.testing.assert_allclose(answers[i], answers[i + 2], atol=1e-10)
        np.testing.assert_allclose(answers[i + 1], answers[i + 2], atol=1e-10)


def test_newton_is_the_formula_with_the_retained_hessian(lr):
    """theta + H_R^-1 sum_f grad / (n - r), H_R = (n H_D - r H_f) / (n - r), the penalty part of every row's loss."""
    table, model, theta, forget, _ = lr
    X, y, n, r = *table.take(forget), 1500, 75
    H = (n * model.hessian(theta, table.X, table.y) - r * model.hessian(theta, X, y)) / (n - r)
    expected = theta + np.linalg.solve(H, r * model.gradient(theta, X, y)) / (n - r)
    np.testing.assert_allclose(prepared(Newton(), table, model).unlearn(forget).theta, expected, atol=1e-9)


def test_newton_step_of_statsmodels(lr):
    sm = pytest.importorskip("statsmodels.api")
    table, model, theta, forget, _ = lr
    keep = np.setdiff1d(np.arange(1500), forget)
    rows = np.column_stack([table.X[keep].astype(np.float64), np.ones(len(keep))])
    logit = sm.Logit(table.y[keep].astype(float), rows)
    strength = len(keep) * model.lam * (np.arange(7) < 6)
    gradient = -logit.score(theta) + strength * theta
    expected = theta - np.linalg.solve(-logit.hessian(theta) + np.diag(strength), gradient)
    np.testing.assert_allclose(prepared(Newton(), table, model).unlearn(forget).theta, expected, atol=1e-8)


def test_newton_beats_influence_beats_doing_nothing(lr):
    table, model, theta, forget, target = lr
    scores = [
        rho(prepared(METHODS[name](), table, model).unlearn(forget).theta, theta, target)
        for name in ("newton", "influence", "nothing")
    ]
    assert scores[0] < 0.05
    assert scores[0] < scores[1] < 0.3 < scores[2] == 1.0


@pytest.mark.parametrize("name", ["newton", "influence"])
def test_softmax_and_mlp_models(name):
    X, y = blobs(900, 4, n_classes=3, seed=3)
    table, model, forget = table_of(X, y), LogisticModel(4, 3, lam=1e-2), np.arange(30)
    theta, target = model.fit(table).theta, model.fit(table.without(forget), tol=1e-12).theta
    answer = prepared(METHODS[name](), table, model).unlearn(forget)
    assert rho(answer.theta, theta, target) < 0.15
    assert abs(answer.theta[12:].sum()) < 1e-9  # intercepts still sum to zero
    X, y = blobs(900, 4, seed=4)
    table = table_of(X, y)
    plain = MLPModel(4, h=3)
    mlp, fit = plain.fit_anchored((X, y), plain.train_anchor(X[:200], y[:200], seeds=2))
    assert fit.converged
    target = mlp.fit(table.without(forget), start=fit.theta).theta
    answer = prepared(METHODS[name](), table, mlp).unlearn(forget)
    assert rho(answer.theta, fit.theta, target) < 0.3
    assert answer.predict_proba(X[:5]).shape == (5, 2)


# -------------------------------------------------------------------------------------------------------- certified


def test_certified_residual_stays_below_its_bound_and_the_budget_runs_out(lr):
    table, model, _, _, _ = lr
    method = prepared(Certified(sigma=10.0), table, model)
    start = method.theta.copy()
    order = np.random.default_rng(0).permutation(1500)
    betas, retrained, left = [method.beta], [], table
    for i in range(300):
        ids = order[4 * i : 4 * (i + 1)]
        answer = method.unlearn(ids, commit=True)
        left = left.without(ids)
        residual = method.residual(answer.theta, left)
        assert residual <= answer.facts["beta"] <= method.budget
        if not answer.facts["retrained"]:
            assert residual > 1e-9  # the bound has something to bound
            assert answer.facts["beta"] > betas[-1]
        betas.append(answer.facts["beta"])
        retrained.append(answer.facts["retrained"])
        if any(retrained):
            break
    assert any(retrained)
    assert not retrained[0]
    assert method.fits == 2
    assert not np.allclose(start, method.theta)


def test_certified_is_a_newton_step_of_its_own_objective(lr):
    """Without noise, rows within the radius, against the optimum of the same objective found by scipy."""
    table, model, _, forget, _ = lr
    method = prepared(Certified(sigma=1e-12, epsilon=1e16, radius=1e3), table, model)
    keep = np.setdiff1d(np.arange(1500), forget)

    def optimum(ids):
        rows = np.column_stack([table.X[ids].astype(float), np.ones(len(ids))])
        y = table.y[ids].astype(float)

        def objective(t):
            z = rows @ t
            s = 1 / (1 + np.exp(-z))
            value = np.mean(np.logaddexp(0, z) - y * z) + model.lam / 2 * t @ t
            return value, rows.T @ (s - y) / len(y) + model.lam * t

        return minimize(objective, np.zeros(7), jac=True, options={"gtol": 1e-12}).x

    theta, target = optimum(np.arange(1500)), optimum(keep)
    np.testing.assert_allclose(method.theta, theta, atol=1e-6)
    answer = method.unlearn(forget)
    assert not answer.facts["retrained"]
    assert rho(answer.theta, theta, target) < 0.05


def test_certified_noise_is_part_of_the_objective(lr):
    table, model, _, _, _ = lr
    quiet, loud = (prepared(Certified(sigma=s), table, model) for s in (1e-9, 5.0))
    other = prepared(Certified(sigma=5.0), table, model, seed=1)
    assert np.linalg.norm(quiet.theta - loud.theta) > 1e-3
    assert np.linalg.norm(other.theta - loud.theta) > 1e-3
    assert loud.residual(loud.theta, table) < 1e-6  # stationary for the objective with b
    assert quiet.budget == pytest.approx(1e-9 / np.sqrt(2 * np.log(1.5e4)))


def test_certified_scales_long_rows_down(lr):
    table, model, _, _, _ = lr
    method = prepared(Certified(radius=1.5), table, model)
    norms = np.linalg.norm(method._short(table.X), axis=1)
    assert norms.max() <= 1.5 + 1e-12
    assert (norms < 1.5 - 1e-6).any()


def test_residual_bound_needs_every_factor():
    rng = np.random.default_rng(0)
    X, move = rng.normal(size=(50, 3)), rng.normal(size=3)
    expected = 0.25 * 2.0 * np.linalg.norm(X, 2) * np.linalg.norm(move) * np.linalg.norm(X @ move)
    assert residual_bound(X.T @ X, move, 2.0) == pytest.approx(expected, rel=1e-12)


def test_certified_mlp_says_that_it_is_not(lr):
    X, y = blobs(400, 3, seed=6)
    model = MLPModel(3, h=2, lam=1e-2)
    fit = prepared(Certified(), table_of(X, y), model)
    assert fit.unlearn([1, 2]).facts["certified"] is False


def test_bad_options_are_refused(lr):
    table = lr[0]
    with pytest.raises(UserError, match="one of"):
        Newton("magic")
    with pytest.raises(UserError, match="binary"):
        prepared(Newton("woodbury"), table_of(*blobs(60, 3, n_classes=3)), LogisticModel(3, 3))
    with pytest.raises(UserError, match="sigma"):
        Certified(sigma=0)
    with pytest.raises(UserError, match="features"):
        Newton().prepare(table, LogisticModel(5))
