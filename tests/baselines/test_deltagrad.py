"""DeltaGrad: the cached run, its replay, and the published differences."""

import numpy as np
import pytest
from baselines_data import FORGET, OPTIONS, RidgeModel, plain, prepared, problem, rho, table_of

from l2ul_fast.baselines import DeltaGrad, Recipe
from l2ul_fast.baselines.base import steepest
from l2ul_fast.models import LogisticModel


@pytest.mark.parametrize("batch", [403, 100])
@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_exact_steps_only_are_the_replayed_run_bit_by_bit(kind, batch):
    """C2; and once committed, the cache is that of a run without the rows."""
    table, model = plain(kind)
    options = {"epochs": 12, "batch": batch, "rate": 0.2, "burn_in": 10**6}
    method = prepared(DeltaGrad(**options), table, model)
    target = method.retrained(FORGET)
    answer = method.unlearn(FORGET, commit=True)
    np.testing.assert_array_equal(answer.theta, target)
    assert answer.facts["quasi_steps"] == 0
    fresh = prepared(DeltaGrad(**options), table.without(FORGET), model)
    for mine, other in ((method.trace.W, fresh.trace.W), (method.trace.G, fresh.trace.G)):
        np.testing.assert_allclose(mine, other, atol=1e-12)
    np.testing.assert_allclose(method.unlearn([9]).theta, fresh.unlearn([9]).theta, atol=1e-12)


def test_the_exact_hessian_of_a_quadratic_loss_is_exact():
    """C1."""
    table, model = plain("lr")[0], RidgeModel(4)
    method = prepared(DeltaGrad(epochs=60, batch=403, rate=0.1, burn_in=0, period=10**6), table, model)
    method._options["hessian"] = model.hessian(None, table.X, table.y)
    forget = np.arange(40)
    answer = method.unlearn(forget)
    assert answer.facts["quasi_steps"] == 59  # only the first step is exact
    np.testing.assert_allclose(answer.theta, method.retrained(forget), atol=1e-12)
    assert rho(answer.theta, method.theta, method.retrained(forget)) < 1e-9


@pytest.mark.parametrize("batch", [403, 101])
@pytest.mark.parametrize(("kind", "bound"), [("lr", 0.1), ("softmax", 0.1), ("mlp", 0.5)])
def test_lbfgs_is_close_and_counts_its_steps(kind, bound, batch):
    """U6 against its own run, C5."""
    method = prepared(DeltaGrad(epochs=100, batch=batch, rate=0.3, burn_in=10, memory=3), *plain(kind))
    answer, steps = method.unlearn(FORGET), 100 * -(-403 // batch)
    facts = answer.facts
    if kind != "mlp":  # which falls back to exact steps
        ages = range(steps - facts["copied_steps"])
        assert facts["exact_steps"] == sum(age <= 10 or (age - 10) % 5 == 0 for age in ages)
    assert facts["quasi_steps"] > 0
    assert facts["exact_steps"] + facts["quasi_steps"] + facts["copied_steps"] == steps
    assert rho(answer.theta, method.theta, method.retrained(FORGET)) < bound


@pytest.mark.parametrize(("model", "bound"), [(RidgeModel(8), 1e-10), (LogisticModel(8, lam=1e-2), 2e-3)])
def test_gradient_descent_on_all_rows_is_close(model, bound):
    """C4."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 8)).astype(np.float32)
    y = (X @ rng.normal(size=8) + rng.normal(size=1000) > 0).astype(np.uint8)
    method = prepared(DeltaGrad(epochs=400, batch=1000, rate=0.5), table_of(X, y), model)
    forget = np.arange(10)
    answer = method.unlearn(forget)
    assert answer.facts["exact_steps"] == 21 + 379 // 5
    assert rho(answer.theta, method.theta, method.retrained(forget)) < bound


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_it_trains_by_plain_gradient_descent_on_its_batches(kind):
    """The cached run, written out: batches by place, iterates before the step, gradients without the penalty."""
    table, model = plain(kind)
    method = prepared(DeltaGrad(epochs=2, batch=100, rate=0.2), table, model, seed=3)
    assert method.starts.tolist() == [0, 100, 200, 300, 400, 403]
    where, rows = method._descent.pad.where, np.argsort(method._place)
    assert sorted(method.batch_order[:5].tolist()) == sorted(method.batch_order[5:].tolist()) == [0, 1, 2, 3, 4]
    theta = model.start(3) if kind == "mlp" else model.start()
    for t, b in enumerate(method.batch_order):
        part = rows[method.starts[b] : method.starts[b + 1]]
        np.testing.assert_allclose(method.trace.W[t, where], theta, atol=1e-12)
        gradient = model.data_gradient(theta, table.X[part], table.y[part])
        np.testing.assert_allclose(method.trace.G[t, where], gradient, atol=1e-12)
        theta = theta - 0.2 * (gradient + model.penalty_gradient(theta))
    np.testing.assert_allclose(method.theta, theta, atol=1e-12)
    # and the run that answers are compared with: the same batches, less the rows, means over those that stay
    theta = model.start(3) if kind == "mlp" else model.start()
    for b in method.batch_order:
        part = np.setdiff1d(rows[method.starts[b] : method.starts[b + 1]], FORGET)
        theta = theta - 0.2 * model.gradient(theta, table.X[part], table.y[part])
    np.testing.assert_allclose(method.retrained(FORGET), theta, atol=1e-12)


def test_burn_in_begins_where_the_paths_part():
    """Before the first batch with a forgotten row nothing is computed; the published code counts from the start."""
    options = {"epochs": 3, "batch": 50, "rate": 0.2, "burn_in": 2, "period": 100}
    method = prepared(DeltaGrad(**options), *plain("lr"))
    batch = int(method.batch_order[6])
    row = int(np.flatnonzero(method._place == method.starts[batch])[0])
    facts = method.unlearn([row]).facts
    assert facts["copied_steps"] == 6
    assert facts["exact_steps"] == 3
    options = {**options, "epochs": 8, "burn_in": 3, "period": 4}
    facts = prepared(DeltaGrad(**options, as_published=True), *plain("lr")).unlearn([row]).facts
    assert facts["copied_steps"] == 0
    assert facts["exact_steps"] >= sum(t <= 3 or (t - 3) % 4 == 0 for t in range(72))


def test_published_bugs_change_the_answer():
    """A batch that goes as a whole; the removed rows' penalty at the cached point, in quasi-Newton steps."""
    table, model = plain("lr")[0], LogisticModel(4, lam=0.1)
    for options in (
        {"epochs": 8, "batch": 50, "rate": 0.2, "burn_in": 3, "period": 4},
        {"epochs": 60, "batch": 403, "rate": 0.2, "burn_in": 5},
    ):
        right, wrong = (prepared(DeltaGrad(**options, as_published=p), table, model) for p in (False, True))
        np.testing.assert_array_equal(right.theta, wrong.theta)  # training is the same
        assert wrong._options["limit"] == 0.0 < right._options["limit"]
        rows = np.argsort(right._place)[100:150] if options["batch"] == 50 else np.arange(20)
        target = right.retrained(rows)
        good, bad = (rho(m.unlearn(rows).theta, right.theta, target) for m in (right, wrong))
        assert good < 0.5 * bad


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_it_keeps_the_run_of_the_retained_rows(kind):
    """The new cache is one run: every iterate follows from the one before by the cached gradient and rate."""
    table, model = problem(kind)
    method, forget = (
        prepared(DeltaGrad(**OPTIONS["deltagrad"]), table, model, 3),
        np.append(FORGET[:4], [5, 17, 30, 31]),
    )
    old = method.trace
    answer = method.unlearn(forget, commit=True)
    W, G = (a[:, method._descent.pad.where] for a in (method.trace.W, method.trace.G))
    penalty = np.stack([model.penalty_gradient(w) for w in W])
    after = W - method.recipe.rate * (G + penalty)
    np.testing.assert_allclose(after[:-1], W[1:], atol=1e-12)
    np.testing.assert_allclose(after[-1], answer.theta, atol=1e-12)
    np.testing.assert_array_equal(method.theta, answer.theta)
    assert np.abs(old.W - method.trace.W).max() > 1e-4
    # near the run with exact gradients, further from the run with the forgotten rows
    exact = method.retrained([])
    assert np.linalg.norm(method.theta - exact) < 0.7 * np.linalg.norm(old.theta - exact)


def test_the_limit_holds_in_later_requests():
    """Pairs made from approximate cached gradients can be wild: without a limit the second answer is far off."""
    table, model = problem("softmax")
    forget = np.array([5, 250, 17, 101, 399, 30, 31, 32])
    found = {}
    for limit in (None, 0.0):
        method = prepared(DeltaGrad(**OPTIONS["deltagrad"], limit=limit), table, model, 3)
        first = method.unlearn(forget[:4]).theta
        assert rho(first, method.theta, method.retrained(forget[:4])) < 0.1  # the first one is fine either way
        method.unlearn(forget[:4], commit=True)
        found[limit] = rho(method.unlearn(forget[4:]).theta, method.theta, method.retrained(forget[4:]))
    assert found[None] < 1 < 100 < found[0.0]
    method = prepared(DeltaGrad(**OPTIONS["deltagrad"]), table, model, 3)
    method.unlearn(forget, commit=True)
    expected = 2 * (steepest(model, table.without(forget))[0] / 392 + model.lam)
    assert method._options["limit"] == pytest.approx(expected, rel=1e-12)


def test_an_mlp_falls_back_to_exact_steps():
    options = {"epochs": 20, "batch": 403, "rate": 0.3, "burn_in": 3, "period": 50}
    free, tight = (prepared(DeltaGrad(**options, limit=limit), *plain("mlp")) for limit in (0.0, 1e-9))
    assert free.unlearn(FORGET).facts["quasi_steps"] > 0 == tight.unlearn(FORGET).facts["quasi_steps"]


@pytest.mark.parametrize(("kind", "burn_in"), [("lr", 20), ("mlp", 80)])
def test_defaults(kind, burn_in):
    """As published on large tables; small ones get smaller batches and more epochs."""
    table, model = plain(kind)
    method = prepared(DeltaGrad(), table, model)
    assert method._options["burn_in"] == burn_in
    assert (method._options["memory"], method._options["period"]) == (2, 5)
    assert method.recipe == Recipe(50, 256, 0.1, adam=False, decay=False)
    many = table_of(np.tile(table.X, (900, 1)), np.tile(table.y, 900))
    assert prepared(DeltaGrad(epochs=1), many, model).recipe.batch == 16384
