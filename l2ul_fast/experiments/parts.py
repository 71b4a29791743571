"""What several experiments share: the numbers of a profile, the thread budget, retrains and scores of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.experiments.jobs import Done, Setting
from l2ul_fast.results import Record
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.steps import AnchoredStep
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

    s None: the paper's for its own head, else the unlearner's choice; anchor_rows None: the unlearner's choice.
    """
    sizes = {"m": numbers["m"], "random_state": seed}
    s = numbers["s"] or (PAPER_S[model] if options.get("head") == "direct" else None)
    if s is not None:
        sizes["s"] = min(s, table.n // 2)
    if model == "mlp":
        sizes["anchor_rows"] = numbers["anchor_rows"]
    return L2UL(model, **(options | sizes)).fit(table.X, table.y)


def nearest_retrain(u: L2UL, table: ArrayTable, ids: Ids, tol: float = 1e-10) -> Vector:
    """The optimum without these rows that is reached from u's theta; rho is measured against it.

    For logistic regression it is the only one. An anchored MLP whose request holds anchor rows gets its anchor polished
    on the others first, as in the unlearner itself.
    """
    model = u.model
    if isinstance(u.step, AnchoredStep) and np.isin(ids, u.step.anchor_rows).any():
        step = u.step.copy()
        X, y = u.store.fetch(ids)
        step.move(X, y, ids, u.theta, u.n)
        model = step.model
    return np.asarray(model.fit(table.without(ids), start=u.theta, tol=tol).theta)


def newton_answer(u: L2UL, table: ArrayTable, ids: Ids) -> Vector:
    """One Newton step from u's theta: with the retained Hessian for logistic regression, with H_D for the MLP."""
    from l2ul_fast.experiments.unlearn_quality import newton
    from l2ul_fast.unlearner.fitting_mlp import linear

    if u.model.name == "lr":
        return newton(u, table, ids)
    # from the inverse Hessian itself, so that no learned correction is in it
    rows = table.ids()
    inverse = np.linalg.inv(u.model.hessian(u.theta, table.X[rows], table.y[rows]))
    anchor_rows = u.step.anchor_rows if isinstance(u.step, AnchoredStep) else None
    step = linear(u.model, inverse, anchor_rows, len(table.X), table)
    X, y = table.take(ids)
    return step.move(X, y, ids, u.theta, u.n)


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
