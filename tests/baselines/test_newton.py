"""Newton and influence steps: their formulas, solvers and kept curvature."""

import itertools

import numpy as np
import pytest
from baselines_data import KINDS, RidgeModel, blobs, prepared, problem, rho, table_of

from l2ul_fast.baselines import METHODS, Influence, Newton
from l2ul_fast.baselines.base import hessian_of, penalty_strength, steepest
from l2ul_fast.baselines.newton import factor
from l2ul_fast.models import LogisticModel

FORGET = np.array([5, 250, 17, 101, 399, 30, 31, 32])


def test_newton_is_exact_for_squares_and_influence_is_off_by_the_share_that_leaves():
    """On ridge regression, 5 % of the rows: Newton is exact; the full Hessian leaves rho of about r / n."""
    rhos = []
    for seed in range(10):
        table, model = table_of(*blobs(1000, 8, seed=seed)), RidgeModel(8, lam=1e-2)
        forget = np.random.default_rng(seed).choice(1000, 50, replace=False)
        theta, target = model.fit(table).theta, model.fit(table.without(forget)).theta
        answer = prepared(Influence(), table, model).unlearn(forget).theta
        rhos.append(rho(answer, theta, target))
        X, y = table.take(forget)
        expected = theta + np.linalg.solve(
            1000 * model.hessian(None, table.X, table.y), 50 * model.gradient(theta, X, y)
        )
        np.testing.assert_allclose(answer, expected, atol=1e-11)
        newton = prepared(Newton("direct"), table, model).unlearn(forget).theta
        assert rho(newton, theta, target) < 1e-10
    assert 0.03 < np.median(rhos) < 0.12


@pytest.mark.parametrize("kind", KINDS)
def test_newton_and_influence_formulas(kind):
    """Both from sums written out, with the Hessian of the retained rows and of all rows."""
    table, model = problem(kind)
    for name in ("newton", "influence"):
        method = prepared(METHODS[name](), table, model)
        theta, (X, y) = method.theta, table.take(FORGET)
        rest = table.without(FORGET) if name == "newton" else table
        H = hessian_of(model, theta, rest) + rest.n * np.diag(penalty_strength(model))
        total = 8 * model.gradient(theta, X, y)
        answer = method.unlearn(FORGET)
        np.testing.assert_allclose(answer.theta, theta + np.linalg.lstsq(H, total, rcond=1e-11)[0], atol=1e-9)
        assert answer.facts["damping"] == 0
    first = prepared(Influence(order=1, tau=0.7), table, model)
    np.testing.assert_allclose(first.unlearn(FORGET).theta, first.theta + 0.7 / 400 * total, atol=1e-9)
    assert first.state_bytes() == 8 * model.size


@pytest.mark.parametrize("r", [1, 4, 75])
def test_newton_solvers_agree(r):
    table, model = table_of(*blobs(1500, 6, seed=1)), LogisticModel(6, lam=1e-2)
    forget = np.random.default_rng(5).permutation(1500)[:r]
    compiled, direct = (prepared(Newton(s), table, model).unlearn(forget).theta for s in ("compiled", "direct"))
    np.testing.assert_allclose(compiled, direct, atol=1e-10)


def test_newton_error_is_of_second_order():
    """C3: small at 5 %; and with every row there k times, forgetting the same rows leaves a k^2 times smaller error."""
    X, y = blobs(1000, 8, seed=5, spread=2.0)
    model, forget = LogisticModel(8, lam=1e-2), np.random.default_rng(1).choice(1000, 50, replace=False)
    rhos = []
    for k in (1, 2, 4, 8):
        table = table_of(np.tile(X, (k, 1)), np.tile(y, k))
        method = prepared(Newton(), table, model)
        target = model.fit(table.without(forget), tol=1e-12).theta
        rhos.append(rho(method.unlearn(forget).theta, method.theta, target))
    assert rhos[0] < 0.02
    np.testing.assert_allclose(np.array(rhos[:-1]) / rhos[1:], 2, rtol=0.1)


def test_damping_makes_any_matrix_definite():
    H = np.diag([1.0, -0.5, 2.0])
    (matrix, _), damping = factor(H)
    assert damping > 0.5
    np.testing.assert_allclose(np.triu(matrix).T @ np.triu(matrix), H + damping * np.eye(3), atol=1e-12)
    assert factor(np.eye(2))[1] == 0.0


@pytest.mark.parametrize(("solver", "kind"), [("compiled", "lr"), *itertools.product(["direct", "influence"], KINDS)])
def test_the_curvature_of_the_retained_rows_is_kept(solver, kind):
    table, model = problem(kind)
    method = prepared(Influence() if solver == "influence" else Newton(solver), table, model)
    original = method.theta.copy()
    method.unlearn(FORGET, commit=True)
    left = table.without(FORGET)
    expected = hessian_of(model, original, left)
    np.testing.assert_allclose(method.curvature, expected, atol=1e-9)
    np.testing.assert_array_equal(method.anchor, original)
    system = expected + left.n * np.diag(penalty_strength(model))
    if solver == "compiled":
        np.testing.assert_allclose(method.inverse @ system, np.eye(model.size), atol=1e-9)
    if solver == "influence":
        assert method.state_bytes() == 8 * (2 * model.size + 2 * model.size**2)
    # the next step: gradient at the present theta, curvature at the kept point, of the rows that are left
    more = np.array([40, 60, 61])
    total = 3 * model.gradient(method.theta, *table.take(more))
    rest = left if solver == "influence" else left.without(more)
    H = hessian_of(model, original, rest) + rest.n * np.diag(penalty_strength(model))
    move = np.linalg.lstsq(H, total, rcond=1e-11)[0]
    np.testing.assert_allclose(method.unlearn(more).theta, method.theta + move, atol=1e-8)


def test_single_rows_leave_the_kept_inverse_of_the_compiled_newton_step():
    table, model = problem("lr")
    compiled, direct = (prepared(Newton(solver), table, model) for solver in ("compiled", "direct"))
    for row in range(30, 60):  # past the point where the penalty in the inverse is brought up to date
        before, known = compiled.theta.copy(), compiled.inverse.copy()
        np.testing.assert_allclose(compiled.unlearn([row]).theta, direct.unlearn([row]).theta, atol=1e-11)
        np.testing.assert_array_equal(compiled.theta, before)  # looked, not committed
        np.testing.assert_array_equal(compiled.inverse, known)
        for method in (compiled, direct):
            method.unlearn([row], commit=True)
        np.testing.assert_allclose(compiled.curvature, direct.curvature, atol=1e-10)
        system = compiled.curvature + compiled._inverse_n * np.diag(penalty_strength(model))
        np.testing.assert_allclose(compiled.inverse @ system, np.eye(model.size), atol=1e-9)
    assert compiled._inverse_n < table.n
    compiled.inverse[:] = 0.0  # of no use: noticed, and the long way is taken
    np.testing.assert_allclose(compiled.unlearn([5]).theta, direct.unlearn([5]).theta, atol=1e-10)


def test_steepest_bounds_every_hessian():
    rng = np.random.default_rng(0)
    for kind in ("lr", "softmax"):
        table, model = problem(kind)
        bound, longest = steepest(model, table)
        tops = [np.linalg.eigvalsh(hessian_of(model, rng.normal(size=model.size) * s, table))[-1] for s in (0, 0.1, 1)]
        assert max(tops) <= bound * (1 + 1e-12)
        # softmax is only a bound; with two classes zero parameters reach it
        assert kind == "softmax" or tops[0] == pytest.approx(bound, rel=1e-9)
        assert longest == pytest.approx(np.sqrt((table.X.astype(float) ** 2).sum(axis=1).max() + 1), rel=1e-6)
