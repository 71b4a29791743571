"""The correctness gate: nothing is timed before these hold. Small, fixed inputs; a second or two with loaded kernels.

A benchmark of wrong code is worth less than none, and vectors of another width may round otherwise.
"""

from __future__ import annotations

import numpy as np

from l2ul_fast.baselines import METHODS
from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_kernels import Partitions, assign_cells, cell_counts
from l2ul_kernels import reference as oracle


class GateFailed(UserError):
    """A result is wrong: no timing would mean anything."""


def check() -> dict[str, float]:
    """Largest deviations by name; GateFailed when one is above what rounding explains."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 8)).astype(np.float32)
    y = (X @ rng.normal(size=8) + rng.normal(size=3000) > 0).astype(np.uint8)
    found = {"cells": _cells(X), "gradients": _gradients(X, y), "newton": _newton(X, y), "unlearner": _unlearner(X, y)}
    for name, (deviation, allowed) in found.items():
        if not deviation <= allowed:
            raise GateFailed(f"the correctness check of {name} failed: {deviation:.3g} is above {allowed:.3g}")
    return {name: deviation for name, (deviation, _) in found.items()}


def _cells(X: np.ndarray) -> tuple[float, float]:
    """Share of rows whose cell is not the oracle's (near-ties may round either way)."""
    partitions = Partitions.sample(X, 20, 4, random_state=0)
    cells = assign_cells(X[:500], partitions)
    wrong = float((cells != oracle.assign_cells(X[:500], partitions.seeds)).mean())
    counts = np.stack([np.bincount(cells[:, t], minlength=4) for t in range(20)])
    return wrong + float((cell_counts(X[:500], partitions) != counts).any()), 1e-3


def _gradients(X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Gradient of both models against differences of the loss."""
    worst, rng = 0.0, np.random.default_rng(1)
    models: tuple[LogisticModel | MLPModel, ...] = (LogisticModel(8), MLPModel(8))
    for model in models:
        theta, v = 0.3 * rng.normal(size=model.size), rng.normal(size=model.size)
        slope = (model.loss(theta + 1e-5 * v, X, y) - model.loss(theta - 1e-5 * v, X, y)) / 2e-5
        worst = max(worst, abs(slope - float(model.gradient(theta, X, y) @ v)))
    return worst, 1e-7


def _newton(X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Largest gradient entry after a retrain without some rows, over those that stay."""
    method, gone = METHODS["retrain"](), np.arange(0, 3000, 30)
    model = LogisticModel(8)
    method.prepare(ArrayTable(X, y, [0, 1]), model, 0)
    theta = method.unlearn(gone).theta
    assert theta is not None
    rest = np.delete(np.arange(3000), gone)
    return float(np.abs(model.gradient(theta, X[rest], y[rest])).max()), 1e-9


def _unlearner(X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """rho of a request of 30 rows against a retrain."""
    u = L2UL("lr").fit(X, y)
    before, gone = u.theta, np.arange(0, 3000, 100)
    rest = np.delete(np.arange(3000), gone)
    target = u.model.fit((X[rest], y[rest])).theta
    theta = u.unlearn(gone).theta
    return float(np.linalg.norm(theta - target) / np.linalg.norm(before - target)), 0.1
