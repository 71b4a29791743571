"""Small problems, quick options and a least-squares model for the baselines' tests."""

import itertools
from functools import cache

import numpy as np

from l2ul_fast.baselines import METHODS, Recipe
from l2ul_fast.models import Fit, LogisticModel, MLPModel
from l2ul_fast.tables import ArrayTable

KINDS = ("lr", "softmax", "mlp")
#: Rows of `plain` to forget, one in the last batch of most recipes.
FORGET = np.array([3, 77, 200, 300, 402])
#: A short minibatch run.
SHORT = Recipe(epochs=4, batch=32, rate=0.05)
#: Quick versions of the methods.
OPTIONS = {
    "sisa": {"shards": 3, "slices": 2, "recipe": Recipe(epochs=9, batch=32, rate=0.05)},
    "deltagrad": {"batch": 128, "epochs": 30, "rate": 0.3, "burn_in": 5},
    "finetune": {"recipe": Recipe(epochs=2, rate=1e-4, batch=64)},
    "neggrad": {"recipe": Recipe(epochs=1, rate=1e-3, batch=64, adam=False)},
    "fyemu": {"retain_per_class": 200},
    "certified": {"sigma": 1e-3, "epsilon": 1e6},
    "d2d": {"iterations": 60},
}


def blobs(n, d, n_classes=2, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, d))
    y = rng.integers(0, n_classes, n)
    y[:n_classes] = np.arange(n_classes)
    X = centres[y] + spread * rng.normal(size=(n, d))
    return X.astype(np.float32), y.astype(np.uint8)


class Blocks:
    """Rows in uneven blocks, as a table gives them that is not in memory."""

    def __init__(self, X, y, sizes):
        self.X, self.y, self.sizes = X, y, sizes
        self.n, self.d = X.shape
        self.passes = 0

    def blocks(self):
        self.passes += 1
        ends = np.cumsum([0, *self.sizes])
        for a, b in itertools.pairwise(ends):
            yield self.X[a:b], self.y[a:b]


def table_of(X, y):
    return ArrayTable(X, y, list(range(int(y.max()) + 1)))


@cache
def problem(kind, n=400, seed=8, anchor=True):
    """(table of n rows, four features; model, whose minimum can be found unless it is an MLP without anchor).

    Shared between tests: not to be written into.
    """
    C = 3 if kind == "softmax" else 2
    X, y = blobs(n, 4, C, seed)
    if kind != "mlp":
        return table_of(X, y), LogisticModel(4, C, lam=1e-2)
    return table_of(X, y), anchored(X, y) if anchor else MLPModel(4, h=3)


def plain(kind):
    """403 rows; an MLP without anchor."""
    return problem(kind, 403, 21, anchor=False)


def anchored(X, y):
    """An MLP pulled to an anchor: one minimum near it."""
    plain = MLPModel(X.shape[1], h=3)
    model, fit = plain.fit_anchored((X, y), plain.train_anchor(X[:150], y[:150], seeds=2))
    assert fit.converged
    return model


def prepared(method, table, model, seed=0):
    method.prepare(table, model, seed)
    return method


def made(name, table, model, seed=3):
    return prepared(METHODS[name](**OPTIONS.get(name, {})), table, model, seed)


def rho(answer, theta, target):
    return float(np.linalg.norm(answer - target) / np.linalg.norm(theta - target))


class RidgeModel:
    """Mean of (z - y)^2 / 2 + lam / 2 |theta|^2, z = [x, 1].theta: retraining is linear algebra."""

    name, n_classes, kind = "lr", 2, "squares"

    def __init__(self, d, lam=0.05):
        self.d, self.size, self.lam = d, d + 1, lam

    def start(self):
        return np.zeros(self.size)

    def _rows(self, X):
        return np.column_stack([np.asarray(X, float), np.ones(len(X))])

    def data_gradient(self, theta, X, y):
        rows = self._rows(X)
        return rows.T @ (rows @ theta - y) / len(rows)

    def penalty_gradient(self, theta):
        return self.lam * np.asarray(theta, float)

    def gradient(self, theta, X, y):
        return self.data_gradient(theta, X, y) + self.penalty_gradient(theta)

    def hessian(self, theta, X, y):
        rows = self._rows(X)
        return rows.T @ rows / len(rows) + self.lam * np.eye(self.size)

    def predict_proba(self, theta, X):
        z = np.clip(self._rows(X) @ theta, 0, 1)
        return np.column_stack([1 - z, z])

    def fit(self, rows, start=None, tol=1e-10):
        parts = list(rows.blocks()) if hasattr(rows, "blocks") else [rows]
        X, y = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
        H = self.hessian(None, X, y)
        theta = np.linalg.solve(H, self._rows(X).T @ y / len(y))
        return Fit(theta, float(np.abs(self.gradient(theta, X, y)).max()), 1, True, H, 0.0)
