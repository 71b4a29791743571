"""Retrains and scores of an unlearner's answers, for the experiments that look at single heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from l2ul_fast.baselines.base import Ids, Vector
from l2ul_fast.baselines.l2ul import plain, quiet
from l2ul_fast.measure.records import Record
from l2ul_fast.metrics import accuracy, disagreement, parameter_distance, rho
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL

Numbers = Mapping[str, Any]

#: Rows per training pair in the paper.
PAPER_S = {"lr": 1000, "mlp": 3000}


def fitted(table: ArrayTable, model: str, options: dict[str, Any], numbers: Numbers, seed: int) -> L2UL:
    """An unlearner with `options` and the profile's m, s and anchor_rows.

    s None: the paper's for its own heads, else the unlearner's choice; anchor_rows None: the unlearner's choice.
    """
    sizes = {"m": numbers["m"], "random_state": seed}
    s = numbers["s"] or (PAPER_S[model] if options.get("head") in ("kme", "paper") else None)
    if s is not None:
        sizes["s"] = min(s, table.n // 2)
    if model == "mlp":
        sizes["anchor_rows"] = numbers["anchor_rows"]
    return L2UL(model, **(options | sizes)).fit(table.X, table.y)


def nearest_retrain(u: L2UL, table: ArrayTable, ids: Ids, tol: float = 1e-10) -> Vector:
    """The optimum without these rows that is reached from u's theta; rho is measured against it.

    For logistic regression it is the only one; an MLP's anchor is a coarse number of the model like lam, and stays.
    """
    return np.asarray(u.model.fit(table.without(ids), start=u.theta, tol=tol).theta)


def answer(u: L2UL, ids: Ids, rtol: float | None = None) -> Vector:
    """theta without the rows; u stays as it is."""
    with quiet():
        return np.asarray(u.copy().unlearn(plain(ids), rtol=rtol).theta)


def unanchored(u: L2UL) -> bool:
    """Whether it trains an MLP without an anchor: its retrain is the optimum near its own theta then."""
    return u.model.name == "mlp" and u.model.anchor is None


def newton(u: L2UL, table: ArrayTable, ids: Ids, theta: Vector | None = None, over: Ids | None = None) -> Vector:
    """One Newton step from theta (u's own if None) with the mean Hessian of the rows `over`, or of those that stay."""
    start = u.theta if theta is None else theta
    rest = table.without(ids).ids()
    rows = rest if over is None else over
    X, y = table.take(ids)
    total = len(ids) * (u.model.data_gradient(start, X, y) + u.model.penalty_gradient(start))
    hessian = u.model.hessian(start, table.X[rows], table.y[rows])
    return np.asarray(start + np.linalg.solve(hessian, total) / len(rest))


def stable_newton(u: L2UL, table: ArrayTable, ids: Ids) -> Vector:
    """A Newton step, for the MLP with the Hessian of all rows: that of the rows that stay alone is unstable."""
    return newton(u, table, ids, over=table.ids() if u.model.name == "mlp" else None)


def score(model: Any, answered: Vector, theta: Vector, target: Vector, test: ArrayTable) -> Record:
    """rho, change, accuracy, retrain_accuracy, disagreement, nothing_disagreement of theta' against the retrain.

    rho is None where retraining changes nothing.
    """
    predicted, truth = model.predict(answered, test.X), model.predict(target, test.X)
    apart = disagreement(predicted, truth, model.predict(theta, test.X))
    return {
        "rho": rho(answered, target, theta).value,
        "change": parameter_distance(theta, target).value,
        "accuracy": accuracy(predicted, test.y).value,
        "retrain_accuracy": accuracy(truth, test.y).value,
        "disagreement": apart.value,
        "nothing_disagreement": apart.nothing,
    }
