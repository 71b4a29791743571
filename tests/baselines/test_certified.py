"""Certified removal and descent-to-delete: bounds, budgets, noise."""

import itertools
import math

import numpy as np
import pytest
from baselines_data import FORGET, KINDS, RidgeModel, prepared, problem, rho, table_of
from scipy.optimize import minimize

from l2ul_fast.baselines import Certified, DescentToDelete, Newton
from l2ul_fast.baselines.base import hessian_of, penalty_strength, steepest
from l2ul_fast.baselines.certified import residual_bound
from l2ul_fast.models import LogisticModel


def test_certified_without_noise_is_sekhari_and_newton():
    """theta + H_R^-1 sum_f grad / (n - r), H_R = (n H_D - sum_f H_f) / (n - r): one formula under three names."""
    (table, model), n, r = problem("lr", 403, 21), 403, 5
    rows = np.column_stack([table.X.astype(float), np.ones(n)])
    method = prepared(Certified(sigma=1e-13, epsilon=1e18, radius=1e3), table, model)
    s = 1 / (1 + np.exp(-rows @ method.theta))
    gradients = (s - table.y)[:, None] * rows + model.lam * method.theta  # of every row, penalty in every row's loss
    H = np.einsum("i,ij,ik->ijk", s * (1 - s), rows, rows) + model.lam * np.eye(5)
    H_D = H.mean(axis=0)
    H_R = (n * H_D - H[FORGET].sum(axis=0)) / (n - r)
    sekhari = method.theta + np.linalg.solve(H_R, gradients[FORGET].sum(axis=0)) / (n - r)
    answer = method.unlearn(FORGET)
    assert not answer.facts["retrained"]
    np.testing.assert_allclose(answer.theta, sekhari, atol=1e-10)
    left, move = np.delete(rows, FORGET, axis=0), sekhari - method.theta
    bound = 0.25 * 1e3 * np.linalg.norm(left, 2) * np.linalg.norm(move) * np.linalg.norm(left @ move)
    assert answer.facts["bound"] == pytest.approx(bound, rel=1e-6)
    assert residual_bound(left.T @ left, move, 1e3) == pytest.approx(bound, rel=1e-6)


def test_certified_is_a_newton_step_of_its_own_objective():
    """Without noise, rows within the radius, against the optimum of the same objective found by scipy."""
    table, model = problem("lr", 403, 21)
    method = prepared(Certified(sigma=1e-12, epsilon=1e16, radius=1e3), table, model)

    def optimum(ids):
        rows, y = np.column_stack([table.X[ids].astype(float), np.ones(len(ids))]), table.y[ids].astype(float)

        def objective(t):
            z = rows @ t
            slope = rows.T @ (1 / (1 + np.exp(-z)) - y) / len(y) + model.lam * t
            return np.mean(np.logaddexp(0, z) - y * z) + model.lam / 2 * t @ t, slope

        return minimize(objective, np.zeros(5), jac=True, options={"gtol": 1e-12}).x

    theta, target = optimum(np.arange(403)), optimum(np.setdiff1d(np.arange(403), FORGET))
    np.testing.assert_allclose(method.theta, theta, atol=1e-6)
    answer = method.unlearn(FORGET)
    assert not answer.facts["retrained"]
    assert rho(answer.theta, theta, target) < 0.05


def test_certified_bounds_rows_at_the_radius_and_the_budget_is_what_it_says():
    """C2 and C4 with rows scaled down: residuals below beta, beta a running sum, retrained when it would burst."""
    table, model = problem("lr", 403, 21)
    method = prepared(Certified(sigma=3.0, epsilon=0.8, delta=1e-3, radius=1.0), table, model, seed=2)
    assert method.budget == pytest.approx(3.0 * 0.8 / math.sqrt(2 * math.log(1500)))
    left, beta, order = table, method.beta, np.random.default_rng(3).permutation(403)
    assert method.residual(method.theta, table) <= beta < 1e-6
    draws, outcomes = [method.b.copy()], []
    for i in range(60):
        answer = method.unlearn(order[5 * i : 5 * i + 5], commit=True)
        left = left.without(order[5 * i : 5 * i + 5])
        facts = answer.facts
        outcomes.append(facts["retrained"])
        assert method.residual(answer.theta, left) <= method.beta + 1e-12  # rounding, right after a retrain
        assert method.beta == facts["beta"] <= method.budget
        if facts["retrained"]:
            assert beta + facts["bound"] > method.budget
            draws.append(method.b.copy())
        else:
            assert facts["beta"] == pytest.approx(beta + facts["bound"], rel=1e-12)
            assert method.residual(answer.theta, left) > 1e-9  # the bound has something to bound
        beta = method.beta
    assert set(outcomes) == {True, False}
    for a, b in itertools.pairwise(draws):
        assert (a != b).all()  # a new linear term with every training
    assert np.std(np.concatenate(draws)) == pytest.approx(3.0, rel=0.6)


def test_certified_noise_is_part_of_the_objective():
    table, model = problem("lr", 403, 21)
    quiet, loud = (prepared(Certified(sigma=s), table, model) for s in (1e-9, 5.0))
    other = prepared(Certified(sigma=5.0), table, model, seed=1)
    assert np.linalg.norm(quiet.theta - loud.theta) > 1e-3
    assert np.linalg.norm(other.theta - loud.theta) > 1e-3
    assert loud.residual(loud.theta, table) < 1e-6  # stationary for the objective with b
    norms = np.linalg.norm(prepared(Certified(radius=1.5), table, model)._short(table.X), axis=1)
    assert (norms < 1.5 - 1e-6).any()
    assert norms.max() <= 1.5 + 1e-12  # longer rows are scaled down
    assert quiet.budget == pytest.approx(1e-9 / np.sqrt(2 * np.log(1.5e4)))


def test_certified_keeps_sums_of_the_retained_rows_at_the_present_theta():
    table, model = problem("lr", 403, 21)
    method = prepared(Certified(sigma=1.0, epsilon=1e6), table, model)
    b = method.b.copy()
    method.unlearn(FORGET, commit=True)
    rows = method._short(np.delete(table.X, FORGET, axis=0))
    s = 1 / (1 + np.exp(-(rows @ method.theta)))
    np.testing.assert_allclose(method.curvature, (rows * (s * (1 - s))[:, None]).T @ rows, atol=1e-9)
    np.testing.assert_allclose(method.gram, rows.T @ rows, atol=1e-9)
    np.testing.assert_array_equal(method.anchor, method.theta)
    np.testing.assert_array_equal(method.b, b)  # drawn once, until the budget is spent
    assert prepared(Certified(), *problem("mlp")).unlearn([1, 2]).facts["certified"] is False


@pytest.mark.parametrize("kind", ["ridge", "lr", "softmax"])
def test_d2d_distance_falls_by_the_contraction_every_step(kind):
    """Promised where every parameter is penalised (ridge); with free intercepts every step still comes closer."""
    table, model = problem("lr" if kind == "ridge" else kind, 403, 21)
    model = RidgeModel(4, lam=0.1) if kind == "ridge" else model
    target = model.fit(table.without(FORGET)).theta
    far = []
    for iterations in (1, 2, 4, 8, 16):
        method = prepared(DescentToDelete(iterations), table, model)
        answer = method.unlearn(FORGET)
        far.append(rho(answer.theta, method.theta, target))
        if kind == "ridge":
            assert far[-1] <= answer.facts["contraction"] ** iterations * (1 + 1e-6)
    assert (np.diff(far) < 0).all()
    if kind == "ridge":  # where a Newton step is exact
        converged = prepared(DescentToDelete(2000), table, model).unlearn(FORGET).theta
        np.testing.assert_allclose(converged, prepared(Newton(), table, model).unlearn(FORGET).theta, atol=1e-9)


def test_d2d_noise_and_sensitivity():
    """Noise is drawn anew for every request; the clean state goes on, and has none."""
    table, model = problem("lr", 403, 21)[0], LogisticModel(4, lam=0.1)
    loud, quiet = (prepared(DescentToDelete(5, noise=n, epsilon=2.0, delta=1e-3), table, model) for n in (True, False))
    longest = np.linalg.norm(np.column_stack([table.X, np.ones(403)]), axis=1).max()
    noises, expected, n = [], 0.0, 403
    for part in (FORGET[:2], FORGET[2:]):
        shown, clean = loud.unlearn(part, commit=True), quiet.unlearn(part, commit=True)
        np.testing.assert_array_equal(loud.theta, clean.theta)
        assert shown.facts == clean.facts
        expected = shown.facts["contraction"] ** 5 * (expected + 2 * len(part) * longest / (0.1 * n))
        n -= len(part)
        assert shown.facts["sensitivity"] == pytest.approx(expected, rel=1e-6)
        assert shown.facts["sigma"] == pytest.approx(expected * math.sqrt(2 * math.log(1250)) / 2.0, rel=1e-6)
        noises.append((shown.theta - clean.theta) / shown.facts["sigma"])
    assert (noises[0] != noises[1]).all()
    assert np.abs(noises).max() < 5
    assert loud.requests == 2


@pytest.mark.parametrize("kind", KINDS)
def test_d2d_measures_the_retained_rows(kind):
    table, model = problem(kind)
    X = table.X.copy()
    X[250] = 20.0  # longest by far
    table, forget = table_of(X, table.y), np.array([5, 250, 17])
    method = prepared(DescentToDelete(), table, model)
    before = method.longest, method.L_sum
    method.unlearn(forget, commit=True)
    left = table.without(forget)
    L_sum, longest = steepest(model, left)
    assert method.longest == pytest.approx(longest, rel=1e-12)
    assert method.longest < 0.5 * before[0]
    if kind == "mlp":
        values = np.linalg.eigvalsh(hessian_of(model, method.theta, left) / left.n + np.diag(penalty_strength(model)))
        assert method.L_sum == pytest.approx(1.5 * left.n * values[-1], rel=1e-9)
    else:
        assert method.L_sum == pytest.approx(L_sum, rel=1e-12)
        assert method.L_sum < 0.8 * before[1]
