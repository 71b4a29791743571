"""Retraining, doing nothing, and the orders and batches that minibatch methods share."""

from itertools import count

import numpy as np
import pytest
from baselines_data import FORGET, SHORT, plain, prepared, problem

from l2ul_fast.baselines import METHODS, Finetune, Recipe, Retrain
from l2ul_fast.baselines.minibatch import descent, few_rows, orders, row_order, train_stages
from l2ul_fast.models import MLPModel
from l2ul_kernels.sgd.shuffle import shuffle


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp", "anchored"])
def test_retrain_is_stationary_and_cold_equals_a_fit_that_never_saw_the_rows(kind, warm):
    """Stationary far below the change that is measured with it."""
    table, model = problem("mlp", 403, 21) if kind == "anchored" else plain(kind)
    if kind == "mlp":
        model = MLPModel(4, h=2, lam=1e-2)  # flat minima cannot be found to 1e-10
    method = prepared(Retrain(warm=warm), table, model, seed=2)
    answer = method.unlearn(FORGET)
    X, y = np.delete(table.X, FORGET, axis=0), np.delete(table.y, FORGET)
    residual = np.linalg.norm(model.gradient(answer.theta, X, y))
    smallest = np.linalg.eigvalsh(model.hessian(answer.theta, X, y))[1 if kind == "softmax" else 0]
    assert residual < 1e-9
    assert residual < 1e-3 * smallest * np.linalg.norm(method.theta - answer.theta)
    assert answer.facts["converged"]
    if not warm:
        fresh = prepared(Retrain(), table.without(FORGET), model, seed=2)
        np.testing.assert_array_equal(answer.theta, fresh.theta)
    method.unlearn(FORGET, commit=True)
    np.testing.assert_array_equal(method.theta, answer.theta)


def test_warm_retraining_takes_fewer_steps_and_keeps_the_curvature_of_the_rows_it_has():
    table, model = plain("lr")
    cold, warm = (prepared(Retrain(warm=w), table, model) for w in (False, True))
    assert warm.unlearn(FORGET, commit=True).facts["steps"] < cold.unlearn(FORGET).facts["steps"]
    X, y = np.delete(table.X, FORGET, axis=0), np.delete(table.y, FORGET)
    np.testing.assert_allclose(warm._metric, model.hessian(warm.theta, X, y), atol=1e-12)
    assert warm.state_bytes() == 8 * (5 + 25)


@pytest.mark.parametrize("kind", ["lr", "softmax"])
def test_retraining_many_rows_begins_with_few_and_ends_at_the_same_point(kind, monkeypatch):
    table, model = plain(kind)
    usual = prepared(Retrain(), table, model)
    monkeypatch.setattr("l2ul_fast.baselines.retrain.FEW_PAY", 300)
    method = prepared(Retrain(), table, model)
    assert method.prepare_facts["few_steps"] > 0
    assert "few_steps" not in usual.prepare_facts
    np.testing.assert_allclose(method.theta, usual.theta, atol=1e-8)
    answer = method.unlearn(FORGET)
    assert answer.facts["gradient_norm"] < 1e-10
    np.testing.assert_allclose(answer.theta, usual.unlearn(FORGET).theta, atol=1e-8)
    # few rows that lack a class cannot be fitted: the fit begins as usual
    monkeypatch.setattr("l2ul_fast.baselines.retrain.few_rows", lambda t, seed: t.without(np.flatnonzero(t.y == 1)))
    assert "few_steps" not in prepared(Retrain(), table, model).prepare_facts


@pytest.mark.parametrize("kind", ["lr", "mlp"])
def test_minibatch_retraining_warm_goes_on_from_theta(kind):
    """Cold starts at the model's own start; warm is fine-tuning with the same recipe."""
    table, model = plain(kind)
    cold = prepared(Retrain(solver="minibatch", recipe=SHORT), table, model, seed=5)
    warm = prepared(Retrain(True, "minibatch", recipe=SHORT), table, model, seed=5)
    np.testing.assert_array_equal(cold.theta, warm.theta)
    tuned = prepared(Finetune(SHORT), table, model, seed=5)
    tuned.theta = warm.theta
    np.testing.assert_array_equal(warm.unlearn(FORGET).theta, tuned.unlearn(FORGET).theta)
    assert (cold.unlearn(FORGET).theta != warm.unlearn(FORGET).theta).any()
    assert cold.unlearn(FORGET).facts["steps"] == 4 * -(-403 // 32)


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_nothing_answers_with_the_model_of_all_rows(kind):
    table, model = problem(kind, 403, 21)
    method = prepared(METHODS["nothing"](), table, model)
    assert np.linalg.norm(model.gradient(method.theta, table.X, table.y)) < 1e-9
    assert not method.exact
    assert method.state_bytes() == 8 * model.size


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
@pytest.mark.parametrize("name", ["sisa", "finetune", "neggrad", "minibatch"])
def test_rows_in_training_order_are_those_of_a_table_without_the_forgotten(name, kind):
    """Batches follow from row numbers: taking rows out changes their places and no others."""
    table, model = problem(kind, 403, 21)
    make = {"sisa": lambda: METHODS[name](3, 2, SHORT), "minibatch": lambda: Retrain(solver="minibatch", recipe=SHORT)}
    make = make.get(name, METHODS.get(name))
    method, fresh = prepared(make(), table, model, 3), prepared(make(), table.without(FORGET), model, 3)
    before = prepared(make(), table, model, 3)
    method.unlearn(FORGET, commit=True)
    deals = [[s.rows for s in m.shards] if name == "sisa" else [m._deal] for m in (method, fresh, before)]
    for mine, other in zip(*deals[:2], strict=True):
        for a, b in zip(mine.arrays(), other.arrays(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert sum((a.X != b.X).any(axis=1).sum() for a, b in zip(deals[0], deals[2], strict=True)) == len(FORGET)
    assert method.state_bytes() == fresh.state_bytes()


def test_seeds_change_the_orders():
    rows = [row_order(plain("lr")[0], seed) for seed in (1, 2)]
    assert (rows[0] != rows[1]).mean() > 0.9
    batches = orders(50, 2, [12, 3])
    assert (batches != orders(50, 2, [12, 4])).mean() > 0.9
    assert (batches[:50] != batches[50:]).mean() > 0.9  # every epoch in an order of its own


def test_few_rows_are_chosen_by_number():
    """Rows that are gone leave a gap: no other row takes their place, and they are not there."""
    table, _ = plain("lr")
    whole, less = (few_rows(t, 3, limit=100) for t in (table, table.without(FORGET)))
    chosen = np.random.default_rng([3, 13]).choice(403, 100, replace=False, shuffle=False)
    gone = np.isin(np.sort(chosen), FORGET)
    assert gone.any()
    assert (whole.n, less.n) == (100, 100 - gone.sum())
    np.testing.assert_array_equal(less.ids(), np.flatnonzero(~gone))
    np.testing.assert_array_equal(whole.X, table.X[np.sort(chosen)])
    np.testing.assert_array_equal(less.X[~gone], whole.X[~gone])
    assert not less.X[gone].any()


@pytest.mark.parametrize("epochs", [(1, 1), (2, 3), (0, 2), (1, 0), (0, 0)])
@pytest.mark.parametrize("adam", [True, False])
def test_stages_are_runs_one_after_the_other(epochs, adam):
    """Each with Adam's memory and rates of its own, every epoch in a new order that has each visit once."""
    data, model = plain("mlp")
    start = model.start(1)
    run = descent(data.X, data.y, model)
    pools = [np.concatenate([np.arange(90), np.arange(10)]), np.arange(100, 333)]
    recipes = [Recipe(epochs[0], 32, 0.05, adam), Recipe(epochs[1], 50, 0.01, adam, decay=False)]
    theta, steps = train_stages(run, list(zip(pools, recipes, strict=True)), start, 5)
    salts, expected, orders_seen = count(), start, []
    for pool, recipe, taken in zip(pools, recipes, steps, strict=True):
        assert taken == recipe.epochs * -(-len(pool) // recipe.batch)
        visits = [pool.copy() for _ in range(recipe.epochs)]
        for order in visits:
            shuffle(order, 5, next(salts))
        orders_seen += [v.tolist() for v in visits if len(v) == len(pools[1])]
        starts = [k * len(pool) + lo for k in range(recipe.epochs) for lo in range(0, len(pool), recipe.batch)]
        starts.append(recipe.epochs * len(pool))
        flat = np.concatenate([*visits, pool[:0]])
        expected = run.train(expected, flat, starts, np.arange(taken), recipe.rates(taken), adam=adam).theta
    np.testing.assert_array_equal(theta, expected)
    assert len({tuple(seen) for seen in orders_seen}) == len(orders_seen)
