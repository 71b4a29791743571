"""What a fit returns, what rows a fit takes, and Newton's method over one pass of the data per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.checks import Labels, Numbers, all_finite, known_classes
from l2ul_fast.errors import DataError, UserError

Float = NDArray[np.float64]

#: A next step of Newton's method that is at most this share of theta means that rounding stopped it.
SMALL_STEP = 1e-9
#: Whoever asks for a smaller gradient than this wants just that.
LEAST_TOL = 1e-12


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


def weighted(rows: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.float64] | None]]:
    """(X, y, weights or None) blocks of one pass over `rows`: a tuple (X, y), or an object with blocks().

    Rows of weight 0 are hidden. A table in memory gives them so instead of copying all others.
    """
    if isinstance(rows, tuple):
        yield np.asarray(rows[0]), np.asarray(rows[1]), None
    elif hasattr(rows, "weighted_blocks"):
        yield from rows.weighted_blocks()
    else:
        for X, y in rows.blocks():
            yield X, y, None


def check_training(rows: Any, d: int, n_classes: int, of: str) -> Any:
    """Rows to train on: (X (n, d), y (n,)) of finite numbers, at least one, or a table of d columns."""
    if hasattr(rows, "blocks") and hasattr(rows, "d"):
        if rows.d != d:
            raise UserError(f"the model has {d} features but the rows have {rows.d}")
        if rows.n == 0:
            raise UserError(f"{of} needs at least one row")
        return rows
    if not isinstance(rows, tuple | list) or len(rows) != 2:
        raise UserError(f"rows must be (X, y) or a table, got {type(rows).__name__}")
    X = Numbers(2, double=False)("X", rows[0])
    y = Labels()("y", rows[1]) if n_classes else Numbers(1)("y", rows[1])
    if X.shape[1] != d:
        raise UserError(f"X must have shape (n, {d}), got {X.shape}")
    if len(X) != len(y):
        raise UserError(f"X has {len(X)} rows but y has {len(y)}")
    if len(X) == 0:
        raise UserError(f"{of} needs at least one row")
    if n_classes:
        known_classes(y, n_classes)
    return X, y


def softmax_rows(z: Float) -> Float:
    """(n, C) probabilities of scores z (n, C), or of the log-odds z (n,) of class 1."""
    z = finite_scores(np.stack([np.zeros_like(z), z], axis=1) if z.ndim == 1 else z)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def finite_scores(z: Float) -> Float:
    """The scores; DataError where one is no number: such a row has no class."""
    if not all_finite(z):
        raise DataError("a score is NaN or infinite: the parameters or the rows are not finite, or too large")
    return z


def chord(
    gradient: Callable[[Float], Float],
    start: Float,
    hessian: Float,
    tol: float,
    max_steps: int = 20,
    progress: Callable[[int, float], object] | None = None,
) -> tuple[Float, float, int]:
    """(theta, largest gradient entry, passes): quasi-Newton steps near an optimum, one gradient a pass.

    The steps use the inverse of `hessian` (p, p), of a nearby point or of some of the rows, corrected by BFGS. Stops at
    tol, or when a step does not halve the gradient: what is left is then for Newton's method.
    """
    theta, inverse = np.array(start, np.float64), np.linalg.inv(hessian)
    g = gradient(theta)
    norm, passes = float(np.abs(g).max()), 1
    while norm > tol and passes < max_steps:
        if progress:
            progress(passes, norm)
        step = -(inverse @ g)
        after = gradient(theta + step)
        passes += 1
        after_norm = float(np.abs(after).max())
        if not after_norm <= 0.5 * norm:
            break
        change = after - g
        curvature = float(change @ step)
        theta, g, norm = theta + step, after, after_norm
        if curvature > 0:
            bent = inverse @ change
            inverse += (curvature + change @ bent) / curvature**2 * np.outer(step, step)
            inverse -= (np.outer(bent, step) + np.outer(step, bent)) / curvature
    return theta, norm, passes


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
        step = solve_definite(hessian if gauge is None else hessian + gauge, gradient)
        # a value near zero may be what is left of large terms
        slope, t, noise = float(gradient @ step), 1.0, 1e-14 * max(abs(value), 1.0)
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
    converged = norm <= tol
    if not converged and tol >= LEAST_TOL and np.isfinite(norm):
        # rounding alone may keep the gradient of columns of very large values above tol
        step, reach = solve_definite(hessian if gauge is None else hessian + gauge, gradient), np.sqrt(np.diag(hessian))
        converged = bool(
            np.isfinite(reach).all() and (np.abs(step) * reach).max() <= SMALL_STEP * (np.abs(theta) * reach).max()
        )
    return Fit(theta, norm, steps, converged, hessian, value)


def solve_definite(matrix: Float, vector: Float) -> Float:
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
