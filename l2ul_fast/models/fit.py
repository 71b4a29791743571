"""What a fit returns, what rows a fit takes, and Newton's method over one pass of the data per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


@dataclass
class Fit:
    """A converged fit: parameters and how well they satisfy the first-order condition."""

    theta: Float  #: (p,)
    gradient_norm: float  #: largest entry of the gradient of the objective at theta
    steps: int
    converged: bool
    hessian: Float | None  #: (p, p) of the objective at theta, where the solver had it
    loss: float  #: objective at theta, penalty included


class Rows(Protocol):
    """Rows of a table, read block by block."""

    @property
    def n(self) -> int: ...

    @property
    def d(self) -> int: ...

    def blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """(X (k, d), y (k,)) blocks; one pass over all rows."""
        ...


def newton(
    objective: Callable[[Float], tuple[float, Float, Float]],
    start: Float,
    tol: float,
    max_steps: int = 100,
    gauge: Float | None = None,
    progress: Callable[[int, float], object] | None = None,
) -> Fit:
    """Minimise a convex function by Newton steps that are halved until it falls.

    objective(theta) -> (value, gradient (p,), Hessian (p, p)) costs one pass over the data; no step needs more unless
    it is halved. `gauge` (p, p) is added to the Hessian of a step to fix directions in which nothing changes.
    progress(steps, gradient norm) is called after every pass.
    """
    theta, steps = np.array(start, np.float64), 0
    value, gradient, hessian = objective(theta)
    norm = float(np.abs(gradient).max())
    while norm > tol and steps < max_steps:
        if progress:
            progress(steps, norm)
        step = _solve(hessian if gauge is None else hessian + gauge, gradient)
        slope, t, noise = float(gradient @ step), 1.0, 1e-14 * abs(value)
        while True:
            trial = theta - t * step
            after = objective(trial)
            if after[0] <= value - 1e-4 * t * slope + noise or t < 1e-12:
                break
            t /= 2
        after_norm = float(np.abs(after[1]).max())
        if not after[0] < value - noise and not after_norm < norm:
            break  # both are down to rounding error (or not finite)
        theta, steps, norm = trial, steps + 1, after_norm
        value, gradient, hessian = after
    if progress:
        progress(steps, norm)
    return Fit(theta, norm, steps, norm <= tol, hessian, value)


def _solve(matrix: Float, vector: Float) -> Float:
    """Solve with a ridge where rounding made the matrix indefinite."""
    ridge, scale = 0.0, float(np.trace(matrix)) / len(matrix)
    for _ in range(20):
        try:
            factor = np.linalg.cholesky(matrix + ridge * np.eye(len(matrix)))
        except np.linalg.LinAlgError:
            ridge = max(10 * ridge, 1e-14 * scale, 1e-300)
            continue
        return np.linalg.solve(factor.T, np.linalg.solve(factor, vector))
    return vector / max(scale, 1e-300)  # a gradient step: the line search makes it safe
