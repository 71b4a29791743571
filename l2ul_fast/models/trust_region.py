"""A minimum of a loss that need not be convex, down to rounding: scipy's trust region, then Newton steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from l2ul_fast.models.fit import Fit

Vector = NDArray[np.float64]

#: Gradient norms down to which the trust region goes before Newton steps are tried: near rounding error it stalls.
NEAR = (1e-5, 1e-8, 0.0)
#: Of `scipy.optimize.minimize`; "trust-exact" reaches the same optima, on wide data in three times the time.
METHOD = "trust-ncg"


def trust_newton(
    evaluate: Callable[[Vector], tuple[float, Vector]],
    hessian: Callable[[Vector], Vector],
    start: Vector,
    tol: float,
    max_steps: int = 200,
    progress: Callable[[int, float], None] | None = None,
) -> Fit:
    """Minimise from `start` until the gradient norm is at most tol, or for about max_steps steps.

    evaluate(theta) -> (loss, gradient (p,)); hessian(theta) -> (p, p). progress(step, gradient norm) is called at each
    step. The steps of the answer are evaluations after the first; its gradient norm is Euclidean.
    """
    steps = -1

    def counted(theta: Vector) -> tuple[float, Vector]:
        nonlocal steps
        steps += 1
        loss, gradient = evaluate(theta)
        if progress and steps:
            progress(steps, float(np.linalg.norm(gradient)))
        return loss, gradient

    theta = np.array(start, np.float64)
    loss, gradient = counted(theta)
    norm = float(np.linalg.norm(gradient))
    for near in NEAR:
        curvature = None
        if norm > max(near, tol) and steps < max_steps:
            options = {"gtol": max(near, tol), "maxiter": max_steps - steps}
            found = minimize(counted, theta, jac=True, hess=hessian, method=METHOD, options=options)
            theta, loss, gradient, curvature = found.x, found.fun, found.jac, found.hess
            norm = float(np.linalg.norm(gradient))
        for _ in range(2):
            if not norm > tol or steps >= max_steps:
                return Fit(theta, norm, steps, bool(norm <= tol), None, loss)
            try:
                factor = cho_factor(hessian(theta) if curvature is None else curvature, check_finite=False)
            except np.linalg.LinAlgError:
                break  # at a saddle
            trial, curvature = theta - cho_solve(factor, gradient, check_finite=False), None
            trial_loss, trial_gradient = counted(trial)
            if not np.linalg.norm(trial_gradient) < norm:
                break
            theta, loss, gradient, norm = trial, trial_loss, trial_gradient, float(np.linalg.norm(trial_gradient))
    return Fit(theta, norm, steps, bool(norm <= tol), None, loss)
