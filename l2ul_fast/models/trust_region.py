"""Trust-region Newton with an exact Hessian: for a few hundred parameters and a loss that need not be convex."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

Vector = NDArray[np.float64]


class Minimum(NamedTuple):
    theta: Vector
    loss: float
    gradient_norm: float
    steps: int
    converged: bool


def bounded_step(values: Vector, gradient: Vector, radius: float) -> Vector:
    """Minimiser of g.x + x.diag(values).x / 2 with |x| <= radius; everything in the Hessian's eigenbasis."""
    if values[0] > 0:
        step = -gradient / values
        if np.linalg.norm(step) <= radius:
            return step
    low = max(0.0, -values[0])
    high = low + np.linalg.norm(gradient) / radius
    for _ in range(100):  # |x(shift)| falls as the shift grows
        shift = 0.5 * (low + high)
        with np.errstate(divide="ignore", invalid="ignore"):
            length = np.linalg.norm(gradient / (values + shift))
        if length > radius or not np.isfinite(length):
            low = shift
        else:
            high = shift
        if high - low <= 1e-10 * high:
            break
    return -gradient / (values + high)


class _Quadratic:
    """Steps with one Hessian H (p, p). Near a minimum a Cholesky factor will do; eigenvalues, some fifteen times as
    dear, are computed only where H is indefinite or its Newton step too long."""

    def __init__(self, H: Vector) -> None:
        self.H = H
        self._eigen: tuple[Vector, Vector] | None = None
        try:
            self._factor = cho_factor(H, check_finite=False)
        except np.linalg.LinAlgError:
            self._factor = None

    def step(self, gradient: Vector, radius: float) -> Vector:
        """(p,) minimiser of the quadratic model within the radius."""
        if self._factor is not None:
            step = -cho_solve(self._factor, gradient, check_finite=False)
            if np.linalg.norm(step) <= radius:
                return np.asarray(step)
        if self._eigen is None:
            self._eigen = np.linalg.eigh(self.H)
        values, vectors = self._eigen
        return np.asarray(vectors @ bounded_step(values, vectors.T @ gradient, radius))


def trust_newton(
    evaluate: Callable[[Vector], tuple[float, Vector]],
    hessian: Callable[[Vector], Vector],
    start: Vector,
    tol: float,
    max_steps: int = 200,
    radius: float = 1.0,
    progress: Callable[[int, float], None] | None = None,
) -> Minimum:
    """Minimise from `start` until the gradient norm is at most tol.

    evaluate(theta) -> (loss, gradient (p,)); hessian(theta) -> (p, p). Steps that do not lower the loss are not taken;
    where the loss is flat to rounding, the gradient norm decides. progress(step, gradient norm) is called at each step.
    """
    theta = np.array(start, np.float64)
    loss, gradient = evaluate(theta)
    norm, steps, failures = float(np.linalg.norm(gradient)), 0, 0
    moved = True
    while norm > tol and steps < max_steps and failures < 25 and np.isfinite(norm):
        if moved:
            model = _Quadratic(hessian(theta))
        step = model.step(gradient, radius)
        expected = -(gradient @ step + 0.5 * step @ (model.H @ step))
        new_loss, new_gradient = evaluate(theta + step)
        new_norm = float(np.linalg.norm(new_gradient))
        gain, noise = loss - new_loss, 1e-13 * abs(loss)
        ratio = gain / expected if expected > noise else float(new_norm < norm)
        moved = bool(ratio > 1e-3)
        if ratio < 0.25:
            radius = 0.25 * float(np.linalg.norm(step))
        elif ratio > 0.75 and np.linalg.norm(step) > 0.9 * radius:
            radius *= 2
        if moved:
            theta, loss, gradient, norm = theta + step, new_loss, new_gradient, new_norm
        failures = 0 if moved else failures + 1
        steps += 1
        if progress:
            progress(steps, norm)
    return Minimum(theta, loss, norm, steps, bool(norm <= tol))
