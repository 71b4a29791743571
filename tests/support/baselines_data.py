"""Small data and a least-squares model for the baselines' tests."""

import numpy as np

from l2ul_fast.models import Fit
from l2ul_fast.tables import ArrayTable


def blobs(n, d, n_classes=2, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, d))
    y = rng.integers(0, n_classes, n)
    y[:n_classes] = np.arange(n_classes)
    X = centres[y] + spread * rng.normal(size=(n, d))
    return X.astype(np.float32), y.astype(np.uint8)


def table_of(X, y):
    return ArrayTable(X, y, list(range(int(y.max()) + 1)))


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
