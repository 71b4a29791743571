"""Distance to Retrain in parameters and in the objective of the retained rows; where the solver's own error ends it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from l2ul_fast.checks import ModelLike, Numbers1, Results1, RowSet, checked
from l2ul_fast.errors import DataError
from l2ul_fast.metrics.value import Number, Value, Vector, degenerate, measured, number
from l2ul_fast.models.mlp import blocks_of


def _vectors(*thetas: ArrayLike) -> list[Vector]:
    found = [np.asarray(t, np.float64) for t in thetas]
    if len({v.shape for v in found}) != 1 or found[0].ndim != 1:
        raise DataError(f"parameter vectors must have one shape (p,), got {[v.shape for v in found]}")
    return found


@checked
def parameter_distance(theta_new: Results1, theta_r: Numbers1, theta: Numbers1 | None = None) -> Value:
    """||theta' - theta_r||, all (p,). Target 0; with theta, doing nothing's distance beside. MLP: align first."""
    new, target = _vectors(theta_new, theta_r)
    nothing = None if theta is None else float(np.linalg.norm(_vectors(theta, theta_r)[0] - target))
    return measured(float(np.linalg.norm(new - target)), 0.0, nothing)


@checked
def rho(theta_new: Results1, theta_r: Numbers1, theta: Numbers1, error: Number = None) -> Value:
    """||theta' - theta_r|| / ||theta - theta_r||. Target 0; doing nothing scores 1; above 1 it made things worse.

    `error` bounds the distance of theta_r from the true retrained parameters (`solver_error`, or the distance between
    two retrains). With it the interval holds every rho that the true ones could give, and a change less than twice
    the error is degenerate: rho would measure the solver.
    """
    new, target, before = _vectors(theta_new, theta_r, theta)
    away, change = float(np.linalg.norm(new - target)), float(np.linalg.norm(before - target))
    if change == 0:
        return degenerate("retraining changes nothing (0/0)", 0.0, 1.0)
    if error is None:
        return measured(away / change, 0.0, 1.0)
    e = number(error)
    if e is None:
        return degenerate("the solver's error is not known", 0.0, 1.0)
    if e < 0:
        raise DataError(f"the solver's error must not be negative, got {e}")
    if not 2 * e < change:
        return degenerate(f"the change ({change:.1e}) is not above twice the solver's error ({e:.1e})", 0.0, 1.0)
    return measured(away / change, 0.0, 1.0, (max(0.0, away - e) / (change + e), (away + e) / (change - e)))


@checked
def sequential_gap(in_turn: Results1, at_once: Results1, theta: Numbers1) -> Value:
    """||theta'_{A, then B} - theta'_{A and B}|| / ||theta - theta'_{A and B}|| of one method. Target 0 (exact methods).

    How far the answer depends on the way rows were asked for, in units of what the joint request changes: errors that
    grow with every request show here first. Ensembles and MLPs: any vectors will do, such as all probabilities.
    """
    turn, once, before = _vectors(in_turn, at_once, theta)
    change = float(np.linalg.norm(before - once))
    if change == 0:
        return degenerate("the joint request changes nothing (0/0)", 0.0)
    return measured(float(np.linalg.norm(turn - once)) / change, 0.0)


@checked
def solver_error(model: ModelLike, theta: Numbers1, rows: RowSet) -> Value:
    """Bound on the distance of theta (p,) from the stationary point nearby: ||gradient||_2 / lambda_min. Target 0.

    To first order (the Hessian at theta stands for the Hessian on the way). Degenerate where the Hessian is not
    positive definite. Directions that change nothing (the sum of a multinomial intercept) are left out.
    """
    theta = np.asarray(theta, np.float64)
    n, g, H = 0, np.zeros(model.size), np.zeros((model.size, model.size))
    for X, y in blocks_of(rows):  # the penalty is in every block's mean, so a weighted mean keeps it once
        n += len(y)
        g += len(y) * model.gradient(theta, X, y)
        H += len(y) * model.hessian(theta, X, y)
    if n == 0:
        return degenerate("no rows", 0.0)
    values = np.linalg.eigvalsh(H / n)
    if getattr(model, "name", "") == "lr" and model.n_classes > 2:
        values = values[1:] if abs(values[0]) < 1e-10 * values[-1] else values
    if not values[0] > 1e-14 * values[-1]:
        return degenerate(f"the Hessian is not positive definite (smallest eigenvalue {values[0]:.1e})", 0.0)
    return measured(float(np.linalg.norm(g / n) / values[0]), 0.0)


@checked
def rho_floor(theta: Numbers1, theta_r: Numbers1, error: Number) -> Value:
    """error / ||theta - theta_r||: a rho below this says nothing. Target 0."""
    e = number(error)
    if e is None:
        return degenerate("the solver's error is not known", 0.0)
    if e < 0:
        raise DataError(f"the solver's error must not be negative, got {e}")
    before, target = _vectors(theta, theta_r)
    if (change := float(np.linalg.norm(before - target))) == 0:
        return degenerate("retraining changes nothing (0/0)", 0.0)
    return measured(e / change, 0.0)


@checked
def rho_floor_two(theta: Numbers1, theta_r: Numbers1, theta_r2: Numbers1) -> Value:
    """||theta_r - theta_r2|| / ||theta - theta_r|| of two retrains (other seed, other start). Target 0.

    Near or above 1, retraining is not a function of the data and rho has no meaning: use a function metric.
    """
    first, second = _vectors(theta_r, theta_r2)
    return rho_floor(theta, theta_r, float(np.linalg.norm(first - second)))


def _mean(rows: Any, of: Any, theta: Vector) -> Any:
    """Mean of of(X, y) over blocks, weighted by their rows; None without rows, NaN for a theta that is not finite."""
    n, total = 0, 0.0
    of = of if np.isfinite(theta).all() else lambda X, y: np.nan
    for X, y in blocks_of(rows):
        n += len(y)
        total = total + len(y) * of(X, y)
    return total / n if n else None


@checked
def gradient_residual(
    model: ModelLike,
    theta_new: Results1,
    retained: RowSet,
    theta: Numbers1 | None = None,
    theta_r: Numbers1 | None = None,
) -> Value:
    """||gradient of the retained rows' objective at theta'||_2. Target: Retrain's (0 up to its tolerance).

    Needs no retraining: with theta only, it compares with doing nothing at the cost of two passes.
    """
    found: list[float | None] = []
    for t in (theta_new, theta, theta_r):
        if t is None:
            found.append(None)
            continue
        at = np.asarray(t, np.float64)
        g = _mean(retained, lambda X, y, at=at: model.gradient(at, X, y), at)
        if g is None:
            return degenerate("no rows", 0.0)
        found.append(float(np.linalg.norm(g)))
    value, nothing, target = found
    return measured(float("nan") if value is None else value, 0.0 if target is None else target, nothing)


@checked
def excess_loss(
    model: ModelLike, theta_new: Results1, theta_r: Numbers1, retained: RowSet, theta: Numbers1 | None = None
) -> Value:
    """Objective of the retained rows (penalty included) at theta' minus at theta_r. Target 0.

    Never negative for logistic regression (up to rounding); an MLP may find a lower point than Retrain's. Degenerate
    when doing nothing is within rounding of Retrain: the objective cannot tell them apart.
    """
    thetas = [np.asarray(t, np.float64) for t in (theta_new, theta_r, *([] if theta is None else [theta]))]
    found = [_mean(retained, lambda X, y, t=t: model.loss(t, X, y), t) for t in thetas]
    if found[0] is None:
        return degenerate("no rows", 0.0)
    nothing = None if theta is None else found[2] - found[1]
    if nothing is not None and abs(nothing) <= 8 * np.finfo(float).eps * abs(found[1]):
        return degenerate("doing nothing is at Retrain's objective to rounding", 0.0, nothing)
    return measured(found[0] - found[1], 0.0, nothing)
