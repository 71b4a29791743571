"""What `L2UL.fit` does: train A on the rows, then build the head that can take rows out of it."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.models import GeneralisedLinearModel, LogisticModel
from l2ul_fast.models.fit import weighted
from l2ul_fast.tables import Table
from l2ul_fast.unlearner.heads import head_class
from l2ul_fast.unlearner.heads.base import Head, Report
from l2ul_fast.unlearner.heads.expansion import (
    MOST_PARAMETERS,
    Expansion,
    fit_by_sums,
    model_of_weight,
    polished,
    refuse_many,
    third_fits,
    total_weight_of,
    uncertainty,
)
from l2ul_fast.unlearner.passes import LocalPasses, Passes
from l2ul_fast.workers import Workers

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

#: Parameters up to which a Hessian without T is kept: inverting one of 1000 takes a tenth of a second, of 2500 seconds.
MOST_OF_HESSIAN = 1000
#: A model this far from the optimum, as a share of its length, is told at the fit.
FAR = 0.02
#: Rows that the noise floor of plain training is measured on.
FLOOR_ROWS = 20_000


@dataclass
class Fitted:
    """A head, and what the fit found out."""

    head: Head
    report: dict[str, Any]


class Laps:
    """Seconds of the parts of a fit by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = time.perf_counter()

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._clock = now - self._clock, now


def fit(params: dict[str, Any], table: Table, size: int, report: Report, workers: Workers | None = None) -> Fitted:
    """Train the model and build its head; `size` is the largest row number + 1. Workers share the work."""
    head = params["head"]
    tier = storage(params, table) if head == "expansion" else None
    if tier == "sums":
        return _expansion(params, table, report, workers)
    # imported here: only these need pairs, networks or the MLP
    if tier == "rows":
        return _wide(params, table, report)
    if tier == "hessian":
        from l2ul_fast.unlearner.heads import secant

        return secant.fit(params, table, size, report)
    found: Fitted = head_class(head).fit(params, table, size, report, workers)
    return found


def storage(params: dict[str, Any], table: Table) -> str:
    """What the head "expansion" keeps of the data: "sums" up to third derivatives, "hessian" or nothing but the "rows".

    Sums as long as T is small beside the rows (or not needed: least squares, order 2, an anchor that was asked for);
    then the Hessian and its inverse; with more than MOST_OF_HESSIAN parameters, weights of rows, or another loss, theta
    alone. An MLP and more than two classes have the Hessian only.
    """
    if params["model"] == "mlp" or len(table.classes) > 2:
        return "hessian"
    p, plain = table.d + 1, params["model"] == "lr" and getattr(table, "weights", None) is None
    asked = params["order"] == 2 or params["anchor"] != "grid"
    no_thirds = asked or params["model"] == "squared"
    if asked or (p <= MOST_PARAMETERS and (no_thirds or third_fits(p, table))):
        return "sums"
    return "hessian" if plain and params["penalty"] == "mean" and p <= MOST_OF_HESSIAN else "rows"


def _wide(params: dict[str, Any], table: Table, report: Report) -> Fitted:
    """Too many parameters for a Hessian."""
    from l2ul_fast.unlearner.heads.wide import Wide

    if not params["store_rows"]:
        raise UserError(
            f"{table.d + 1} parameters: requests take passes over the rows that stay, which must be kept: "
            "leave store_rows=False out"
        )
    lap, model = Laps(), linear_model(params, table)
    report("train the model", 0, 1)
    penalty = (0.0, model.lam) if params["penalty"] == "mean" else (model.lam * total_weight_of(table), 0.0)
    head = Wide.sealed(model, penalty, table, np.zeros(model.size))
    lap("train")
    report("done", 1, 1)
    return Fitted(head, {"seconds": lap.seconds})


def linear_model(params: dict[str, Any], table: Table) -> Any:
    """Untrained: logistic regression, or the regression that params ask for."""
    if params["model"] == "lr":
        return LogisticModel(table.d, len(table.classes), params["lam"])
    return GeneralisedLinearModel(table.d, params["model"], params["lam"])


def _expansion(params: dict[str, Any], table: Table, report: Report, workers: Workers | None) -> Fitted:
    """Integer sums at the anchor: no pairs, no cells."""
    lap, model = Laps(), linear_model(params, table)
    refuse_many(model.size)  # before hours of training
    report("train the model", 0, 1)
    passes: Passes = LocalPasses(table) if workers is None else workers.passes(table)
    found = model.fit(table) if workers is None else fit_by_sums(model, passes, len(table.classes))
    if params["anchor"] == "optimum":
        found = polished(model, table, found)
    lap("train")
    penalty = (0.0, model.lam) if params["penalty"] == "mean" else (model.lam * total_weight_of(table), 0.0)
    anchor = params["anchor"] if isinstance(params["anchor"], str) else np.array(params["anchor"])
    order = params["order"] if third_fits(model.size, table) else 2
    head = Expansion.build(
        model,
        table,
        found.theta,
        order=order,
        anchor=anchor,
        penalty=penalty,
        report=report,
        passes=passes,
        uncertain=0.0 if workers is not None else uncertainty(found, model),
    )
    head._answered = 0.0
    lap("expand")
    length = float(np.linalg.norm(found.theta))
    if head.offset > FAR * length:
        what = "anchor you gave" if head.where == "given" else "grid point"
        warnings.warn(
            f"the expansion at the {what} gives a model that lies {head.offset / length:.2g} of its length from the "
            "optimum: give a nearer anchor, or leave `anchor` out",
            stacklevel=4,
        )
    report("done", 1, 1)
    facts = {"seconds": lap.seconds, "gradient_norm": found.gradient_norm, "steps": found.steps, "order": head.order}
    return Fitted(head, facts)


def residual(head: Head, table: Table, theta: NDArray[np.float64]) -> float:
    """Largest entry of the gradient, at theta, of the objective over the rows of table."""
    model, total, n = head.model, np.zeros(theta.size), 0.0
    weighs = head.penalty is not None
    if head.penalty is not None:
        model = model_of_weight(model, head.penalty, table)
    for X, y, weights in weighted(table):
        if weights is None:
            total += len(X) * model.data_gradient(theta, X, y)
            n += len(X)
        elif weighs:
            total += len(X) * model.data_gradient(theta, X, y, weights)
            n += float(weights.sum())
        else:  # weights mark hidden rows only
            total += weights.sum() * model.data_gradient(theta, X[weights > 0], y[weights > 0])
            n += float(weights.sum())
    return float(np.abs(total / n + model.penalty_gradient(theta)).max())


def noise_floor(u: L2UL) -> float:
    """Share of the rows (FLOOR_ROWS at most) that the same training from another start answers otherwise."""
    table = u.retained()
    if u.params["model"] != "mlp" or table is None or getattr(u.model, "anchor", None) is not None:
        return 0.0
    other = u.model.fit(table, seed=u.params["random_state"] + 1, tol=1e-6, curvature=False).theta
    ids = table.ids()
    if ids.size > FLOOR_ROWS:
        ids = np.sort(np.random.default_rng(u.params["random_state"]).choice(ids, FLOOR_ROWS, replace=False))
    X = table.take(ids)[0]
    return float((u.model.predict(u.theta, X) != u.model.predict(other, X)).mean())
