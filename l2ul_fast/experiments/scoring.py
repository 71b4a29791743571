"""What several experiments share: the numbers of a profile, the thread budget, retrains and scores of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.experiments.contenders import request
from l2ul_fast.experiments.jobs import Done, Setting
from l2ul_fast.measure.records import Record
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_kernels import threads

Vector = NDArray[np.float64]
Ids = NDArray[np.int64]
Measure = Callable[[Done], Iterator[Record]]
Numbers = dict[str, Any]

#: Rows per training pair in the paper.
PAPER_S = {"lr": 1000, "mlp": 3000}


def numbers_of(setting: Setting, experiment: str, profiles: dict[str, Numbers]) -> Numbers:
    """The experiment's numbers for the setting's profile; setting.facts[experiment] (a dict) replaces some of them."""
    if setting.profile not in profiles:
        raise UserError(f"the profile must be one of {', '.join(profiles)}, got {setting.profile!r}")
    own = setting.facts.get(experiment)
    return profiles[setting.profile] | (own if isinstance(own, dict) else {})


def chosen(setting: Setting, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the experiment's datasets that the setting asks for."""
    return tuple(name for name in names if name in setting.datasets)


def pinned(setting: Setting, measure: Measure) -> Measure:
    """The same measurement with the setting's number of threads."""

    def run(done: Done) -> Iterator[Record]:
        with threads(setting.threads):
            yield from measure(done)

    return run


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


def answer(u: L2UL, ids: Ids) -> Vector:
    """theta of a request, without taking it out of u."""
    return np.asarray(request(u.copy(), ids).theta)


def unanchored(u: L2UL) -> bool:
    """Whether it trains an MLP without an anchor: its retrain is the optimum near its own theta then."""
    return u.model.name == "mlp" and u.model.anchor is None


def newton_answer(u: L2UL, table: ArrayTable, ids: Ids) -> Vector:
    """One Newton step from u's theta: with the retained Hessian for logistic regression, with H_D for the MLP, whose
    retained Hessian alone is unstable."""
    model, theta = u.model, u.theta
    X, y = table.take(ids)
    total = len(ids) * (model.data_gradient(theta, X, y) + model.penalty_gradient(theta))
    rows = (table.without(ids) if model.name == "lr" else table).ids()
    hessian = model.hessian(theta, table.X[rows], table.y[rows])
    return np.asarray(theta + np.linalg.solve(hessian, total) / (table.n - len(ids)))


def accuracy(model: Any, theta: Vector, test: ArrayTable) -> float:
    return float((model.predict(theta, test.X) == test.y).mean())


def score(model: Any, answered: Vector, theta: Vector, target: Vector, test: ArrayTable) -> Record:
    """rho, change, accuracy, retrain_accuracy, disagreement, nothing_disagreement of theta' against the retrain.

    rho is None where retraining changes nothing.
    """
    predicted, truth = model.predict(answered, test.X), model.predict(target, test.X)
    change = float(np.linalg.norm(theta - target))
    return {
        "rho": float(np.linalg.norm(answered - target)) / change if change > 0 else None,
        "change": change,
        "accuracy": float((predicted == test.y).mean()),
        "retrain_accuracy": float((truth == test.y).mean()),
        "disagreement": float((predicted != truth).mean()),
        "nothing_disagreement": float((model.predict(theta, test.X) != truth).mean()),
    }
