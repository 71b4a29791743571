"""Fine-tuning and NegGrad+: their steps written out."""

import math

import numpy as np
import pytest
from baselines_data import FORGET, plain, prepared, problem

from l2ul_fast.baselines import DescentToDelete, Finetune, NegGrad, Recipe
from l2ul_fast.baselines.minibatch import orders


@pytest.mark.parametrize("kind", ["lr", "softmax", "mlp"])
def test_one_step_of_finetune_neggrad_and_d2d(kind):
    """Whole batches, one step: gradients of the retained rows (and of the forgotten), written out."""
    table, model = problem(kind, 403, 21)
    X, y = np.delete(table.X, FORGET, axis=0), np.delete(table.y, FORGET)
    whole = Recipe(1, 1000, 0.4, adam=False, decay=False)
    tuned = prepared(Finetune(whole), table, model)
    theta = tuned.theta
    kept, gone = model.data_gradient(theta, X, y), model.data_gradient(theta, *table.take(FORGET))
    penalty = model.penalty_gradient(theta)
    answer = tuned.unlearn(FORGET)
    np.testing.assert_allclose(answer.theta, theta - 0.4 * (kept + penalty), atol=1e-12)
    assert answer.facts == {"steps": 1, "sample_visits": 398}
    climbed = prepared(NegGrad(whole, keep=0.7), table, model).unlearn(FORGET)
    np.testing.assert_allclose(climbed.theta, theta - 0.4 * (0.7 * kept - 0.3 * gone + penalty), atol=1e-12)
    descended = prepared(DescentToDelete(1), table, model)
    L, mu = descended.L_sum / 398 + descended.L_penalty, descended.mu  # the sum bounds that of fewer rows, not the mean
    step = 2 / (L + mu) * (kept + penalty)
    np.testing.assert_allclose(descended.unlearn(FORGET).theta, descended.theta - step, atol=1e-10)
    assert descended.unlearn(FORGET).facts["contraction"] == pytest.approx((L - mu) / (L + mu))


def test_adam_and_falling_rates_in_finetuning():
    """Adam with its usual constants and rates that fall to 0 as half a cosine, on the batches of the retained rows."""
    table, model = problem("lr", 403, 21)
    method = prepared(Finetune(Recipe(epochs=2, batch=100, rate=0.05)), table, model, seed=1)
    rows, order = np.argsort(method._place), np.random.default_rng([12, 1])
    order = order.permuted(np.tile(np.arange(5), (2, 1)), axis=1).ravel()
    theta, mean, square = method.theta.copy(), 0.0, 0.0
    for t, b in enumerate(order):
        part = np.setdiff1d(rows[100 * b : 100 * b + 100], FORGET)
        g = model.gradient(theta, table.X[part], table.y[part])
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
        rate = 0.05 * 0.5 * (1 + math.cos(math.pi * t / 10))
        theta = theta - rate * (mean / (1 - 0.9 ** (t + 1))) / (np.sqrt(square / (1 - 0.999 ** (t + 1))) + 1e-8)
    np.testing.assert_allclose(method.unlearn(FORGET).theta, theta, atol=1e-9)


def test_neggrad_cycles_through_forget_batches():
    """With two forget batches and two steps, each step climbs on one of them."""
    (data, model), forget = problem("lr", 403, 21), np.arange(300)  # batches of 202 and 98
    method = prepared(NegGrad(Recipe(1, 202, 0.3, adam=False, decay=False), keep=0.5), data, model)
    rows = np.argsort(method._place)
    away = rows[np.random.default_rng([0, 15]).permuted(method._place[forget])]
    first = orders(2, 1, [12, 0])[0]
    halves = [np.setdiff1d(rows[202 * b : 202 * (b + 1)], forget) for b in (first, 1 - first)]
    theta = method.theta.copy()
    for part, rest in zip((away[:202], away[202:]), halves, strict=True):
        step = 0.5 * model.data_gradient(theta, data.X[rest], data.y[rest])
        step = step - 0.5 * model.data_gradient(theta, data.X[part], data.y[part]) + model.penalty_gradient(theta)
        theta = theta - 0.3 * step
    np.testing.assert_allclose(method.unlearn(forget).theta, theta, atol=1e-13)


def test_neggrad_keep_one_is_finetune():
    (table, model), recipe = plain("mlp"), Recipe(2, 64, 0.05)
    ours = prepared(NegGrad(recipe, keep=1.0), table, model).unlearn(FORGET).theta
    np.testing.assert_array_equal(ours, prepared(Finetune(recipe), table, model).unlearn(FORGET).theta)
