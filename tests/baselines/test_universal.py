"""What holds for every baseline (U1 to U6), on logistic regression and the MLP, and on streamed tables."""

import numpy as np
import pytest
from baselines_data import blobs, rho, table_of

from l2ul_fast.baselines import METHODS, Recipe
from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import ArrayTable

SHORT = Recipe(epochs=9, batch=32, rate=0.05)
#: Quick versions.
OPTIONS = {
    "sisa": {"shards": 3, "slices": 2, "recipe": SHORT},
    "deltagrad": {"batch": 128, "epochs": 30, "rate": 0.3, "burn_in": 5},
    "finetune": {"recipe": Recipe(epochs=2, rate=1e-4, batch=64)},
    "neggrad": {"recipe": Recipe(epochs=1, rate=1e-3, batch=64, adam=False)},
    "fyemu": {"retain_per_class": 200},
    "certified": {"sigma": 1e-3, "epsilon": 1e6},
    "d2d": {"iterations": 60},
}
#: Two requests in turn equal one of both.
SEQUENTIAL = ("nothing", "retrain", "retrain-warm", "sisa")
#: They claim to come closer to retraining than doing nothing does.
UNLEARN = ("retrain", "retrain-warm", "newton", "influence", "certified", "d2d")
FORGET = np.array([5, 250, 17, 101, 399, 30, 31, 32])


def anchored(X, y):
    plain = MLPModel(X.shape[1], h=3)
    model, fit = plain.fit_anchored((X, y), plain.train_anchor(X[:150], y[:150], seeds=2))
    assert fit.converged
    return model


@pytest.fixture(scope="module")
def problems():
    X, y = blobs(400, 4, seed=8)
    return {"lr": (X, y, LogisticModel(4, lam=1e-2)), "mlp": (X, y, anchored(X, y))}


def made(name, table, model, seed=3):
    method = METHODS[name](**OPTIONS.get(name, {}))
    method.prepare(table, model, seed)
    return method


@pytest.mark.parametrize("kind", ["lr", "mlp"])
@pytest.mark.parametrize("name", METHODS)
def test_universal(name, kind, problems):
    X, y, model = problems[kind]
    X = X.copy()
    method = made(name, table_of(X, y), model)
    before = method.unlearn([]).predict_proba(X)
    # U1: an empty request is the original
    if method.theta is not None:
        np.testing.assert_array_equal(method.unlearn(np.empty(0, int)).theta, method.theta)
    # asking changes nothing; U2: the order of the rows does not matter
    one = method.unlearn(FORGET)
    other = method.unlearn(FORGET[::-1].copy())
    np.testing.assert_array_equal(method.unlearn([]).predict_proba(X), before)
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-10)
    assert (name == "nothing") == np.array_equal(one.predict_proba(X), before) or name == "sisa"
    # U3: rows asked for twice, unknown rows, all rows
    for bad, message in (([3, 3], "twice"), ([400], "not exist"), ([-1], "not exist"), (np.arange(400), "all rows")):
        with pytest.raises(UserError, match=message):
            method.unlearn(bad)
    # a committed answer is the same answer, and the rows are gone
    last = method.unlearn(FORGET, commit=True)
    np.testing.assert_array_equal(last.predict_proba(X), one.predict_proba(X))
    assert method.n == 392
    with pytest.raises(UserError, match="not one of the rows"):
        method.unlearn([17])
    # U4: nothing of the rows is left: what they hold does not matter any more
    probe = method.unlearn([50, 60])
    X[FORGET] = 1e6
    again = method.unlearn([50, 60])
    np.testing.assert_array_equal(probe.predict_proba(X[:4]), again.predict_proba(X[:4]))
    assert method.state_bytes() > 0
    assert method.prepare_seconds > 0
    assert method.name == name


@pytest.mark.parametrize("name", METHODS)
def test_two_requests_in_turn(name, problems):
    """U5: exact methods give the same as one request for both; the others stay near it."""
    X, y, model = problems["lr"]
    method = made(name, table_of(X, y), model)
    both = method.unlearn(FORGET).predict_proba(X)
    method.unlearn(FORGET[:4], commit=True)
    turn = method.unlearn(FORGET[4:], commit=True).predict_proba(X)
    if name in SEQUENTIAL:
        np.testing.assert_allclose(turn, both, atol=0 if name in ("sisa", "nothing") else 1e-8)
    else:
        np.testing.assert_allclose(turn, both, atol=0.05)


@pytest.mark.parametrize("kind", ["lr", "mlp"])
@pytest.mark.parametrize("name", UNLEARN)
def test_really_unlearns(name, kind, problems):
    """U6, against a retrain of the method's own objective."""
    X, y, model = problems[kind]
    table, forget = table_of(X, y), np.arange(100, 116)
    if name == "certified" and kind == "lr":
        pytest.skip("its objective is another one: test_baselines_steps")
    method = made(name, table, model)
    target = model.fit(table.without(forget), start=method.theta).theta
    assert rho(method.unlearn(forget).theta, method.theta, target) < (0.95 if name == "d2d" else 0.5)


def test_nothing_scores_one(problems):
    X, y, model = problems["lr"]
    method = made("nothing", table_of(X, y), model)
    assert rho(method.unlearn(FORGET).theta, method.theta, model.fit(table_of(X, y).without(FORGET)).theta) == 1.0


class Streamed:
    """A table that is not an ArrayTable: rows come in blocks that are overwritten, as from a file."""

    def __init__(self, table):
        self._table, self.y, self.label = table, table.y, "streamed"
        self.n, self.d, self.classes = table.n, table.d, table.classes

    def blocks(self):
        buffer = np.empty((64, self.d), np.float32)
        X, y = zip(*self._table.blocks(), strict=True)
        X, y = np.concatenate(X), np.concatenate(y)
        for lo in range(0, len(X), 64):
            k = len(X[lo : lo + 64])
            buffer[:k] = X[lo : lo + 64]
            yield buffer[:k], y[lo : lo + k].copy()
            buffer[:] = np.nan

    def take(self, ids):
        return self._table.take(ids)

    def ids(self):
        return self._table.ids()

    def without(self, ids):
        return Streamed(self._table.without(ids))


@pytest.mark.parametrize("kind", ["lr", "mlp"])
@pytest.mark.parametrize("name", METHODS)
def test_streamed_tables(name, kind, problems):
    X, y, model = problems[kind]
    table = table_of(X, y)
    method = METHODS[name](**OPTIONS.get(name, {}))
    if method.in_memory:
        with pytest.raises(UserError, match="in memory"):
            method.prepare(Streamed(table), model)
        return
    method.prepare(Streamed(table), model, 3)
    expected = made(name, table, model).unlearn(FORGET).theta
    np.testing.assert_allclose(method.unlearn(FORGET).theta, expected, atol=1e-8)
    method.unlearn(FORGET, commit=True)
    assert method.unlearn([40]).theta.shape == (model.size,)


def test_hidden_rows_of_a_table_are_not_rows(problems):
    X, y, model = problems["lr"]
    table = table_of(X, y).without(FORGET)
    assert isinstance(table, ArrayTable)
    for name in METHODS:
        method = made(name, table, model)
        assert method.n == 392
        with pytest.raises(UserError, match="not one of the rows"):
            method.unlearn([17])


def test_must_be_prepared():
    with pytest.raises(UserError, match="prepared"):
        METHODS["newton"]().unlearn([1])


@pytest.mark.parametrize("n_classes", [3])
@pytest.mark.parametrize("kind", ["lr", "mlp"])
@pytest.mark.parametrize("name", METHODS)
def test_more_classes(name, kind, n_classes):
    X, y = blobs(300, 3, n_classes, seed=9)
    model = LogisticModel(3, n_classes, lam=1e-2) if kind == "lr" else MLPModel(3, n_classes, h=2, lam=1e-2)
    answer = made(name, table_of(X, y), model).unlearn(np.arange(6))
    proba = answer.predict_proba(X)
    assert proba.shape == (300, n_classes)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert (proba.argmax(axis=1) == y).mean() > 0.5
