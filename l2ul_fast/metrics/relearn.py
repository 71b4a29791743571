"""Relearn time: knowledge that was only hidden comes back in fewer steps than Retrain needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_fast.checks import (
    ClassIndices,
    Count,
    Features,
    Finite,
    ModelLike,
    NotNegative,
    Number0,
    Numbers1,
    Positive,
    checked,
)
from l2ul_fast.metrics.value import Value, degenerate, losses, measured


@checked
def relearn_steps(
    model: ModelLike,
    theta: Numbers1,
    X: Features,
    y: ClassIndices,
    goal: Finite,
    rate: Positive = 0.1,
    batch: Count = 32,
    max_steps: Number0 = 2000,
    seed: Number0 = 0,
) -> int | None:
    """SGD steps from theta (p,) on D_f (X (r, d), y (r,)) until its mean log-loss is at most goal; None: never.

    Plain SGD without penalty; batches in an order drawn from the seed, the same for every theta. 0 when already there.
    """
    at, rng = np.array(theta, np.float64), np.random.default_rng(seed)
    order = np.zeros(0, np.int64)
    for step in range(max_steps + 1):
        if float(losses(model, at, X, y).mean()) <= goal:
            return step
        if len(order) == 0:
            order = rng.permutation(len(y))
        part, order = order[:batch], order[batch:]
        at -= rate * model.data_gradient(at, X[part], y[part])
    return None


@checked
def relearn_time(
    model: ModelLike,
    theta_new: Numbers1,
    theta_r: Numbers1,
    theta: Numbers1,
    X: Features,
    y: ClassIndices,
    slack: NotNegative = 0.05,
    **options: Any,
) -> Value:
    """Steps that theta' needs to relearn D_f (X (r, d), y (r,)), divided by the steps that Retrain needs. Target 1.

    Relearned: the mean log-loss on D_f is at most (1 + slack) times the original's. Doing nothing scores 0. Degenerate
    when Retrain is there without a step (a random D_f that the model generalises to: nothing was hidden) or one of
    the two never gets there. Options go to `relearn_steps`.
    """
    if len(y) == 0:
        return degenerate("no rows", 1.0, 0.0)
    goal = (1 + slack) * float(losses(model, theta, X, y).mean())
    retrained = relearn_steps(model, theta_r, X, y, goal, **options)
    if retrained == 0:
        return degenerate(f"Retrain's loss on D_f is within {slack:.0%} of the original's", 1.0, 0.0)
    if retrained is None:
        return degenerate("Retrain does not relearn D_f in the steps allowed", 1.0, 0.0)
    steps = relearn_steps(model, theta_new, X, y, goal, **options)
    if steps is None:
        return degenerate("D_f is not relearned in the steps allowed", 1.0, 0.0)
    return measured(steps / retrained, 1.0, 0.0)
