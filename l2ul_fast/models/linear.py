"""Base of the models with a linear predictor: theta, penalty, and the objective in one pass over the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.checks import parameters, plain
from l2ul_fast.models.fit import Fit, Float, newton, weighted
from l2ul_fast.models.scaled import ScaledRows
from l2ul_kernels.validate import check_matrix, readable

#: Largest gradient entry that may be left when a fit goes on until rounding stops it.
ROUNDING = 1e-9


def readable_rows(X: ArrayLike, d: int) -> NDArray[Any]:
    """X (n, d) as kernels and BLAS read it: contiguous, float32 or float64; a ValueError or TypeError otherwise."""
    X = check_matrix(X, d, "the model")
    return readable(X, np.float32 if X.dtype == np.float32 else np.float64)


class LinearModel:
    """Mean loss over the rows + lam / 2 ||coef||^2; theta (p,) = coefficients of all outputs, then free intercepts.

    A model fills in `_add_sums`.
    """

    def __init__(self, d: int, outputs: int, lam: float) -> None:
        self.d, self.lam, self.size = int(d), float(lam), outputs * (int(d) + 1)
        self._penalised = np.arange(self.size) < outputs * d

    def start(self) -> Float:
        """(p,) zeros."""
        return np.zeros(self.size)

    def _add_sums(
        self, theta: ArrayLike, X: ArrayLike, y: ArrayLike, g: Float, H: Float | None, weights: Any = None
    ) -> float:
        """The rows' loss; adds their gradient to g (p,) and their Hessian, at least above the diagonal, to H (p, p)."""
        raise NotImplementedError

    def data_gradient(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike, weights: Any = None) -> Float:
        """(p,) mean gradient of the loss over the rows, each times its weight, without penalty."""
        g, X = np.zeros(self.size), plain("X", X)
        self._add_sums(parameters("theta", theta, self.size), X, plain("y", y), g, None, weights)
        return g / max(len(X), 1)

    def penalty_gradient(self, theta: ArrayLike) -> Float:
        """(p,) lam * theta on the coefficients, 0 on intercepts."""
        return self.lam * np.where(self._penalised, parameters("theta", theta, self.size), 0.0)

    def gradient(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike) -> Float:
        """(p,) gradient of the objective."""
        return self.data_gradient(theta, X, y) + self.penalty_gradient(theta)

    def loss(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike) -> float:
        """The objective: mean loss over the rows with penalty."""
        at = parameters("theta", theta, self.size)
        return self._objective(at, weighted((plain("X", X), plain("y", y))))[0]

    def hessian(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike) -> Float:
        """(p, p) Hessian of the objective."""
        g, H, X = np.zeros(self.size), np.zeros((self.size, self.size)), plain("X", X)
        self._add_sums(parameters("theta", theta, self.size), X, plain("y", y), g, H)
        return self._whole(H) / max(len(X), 1) + self.lam * np.diag(self._penalised)

    def _whole(self, H: Float) -> Float:
        """H with what is above the diagonal below it too, where sums leave that out."""
        return H

    def _penalty(self, theta: ArrayLike) -> float:
        return self.lam / 2 * float((np.asarray(theta, np.float64)[self._penalised] ** 2).sum())

    def _objective(
        self, theta: ArrayLike, blocks: Iterable[Any], strength: Float | None = None
    ) -> tuple[float, Float, Float]:
        """(value, gradient (p,), Hessian (p, p)) of the objective over blocks (X, y, weights or None).

        strength (p,): the penalty of each parameter, where it is not that of the model.
        """
        g, H, total, n = np.zeros(self.size), np.zeros((self.size, self.size)), 0.0, 0.0
        for X, y, weights in blocks:
            total += self._add_sums(theta, X, y, g, H, weights)
            n += len(X) if weights is None else float(np.sum(weights))
        n, H = max(n, 1.0), self._whole(H)
        if strength is not None:
            t = np.asarray(theta, np.float64)
            return total / n + 0.5 * float(strength @ t**2), g / n + strength * t, H / n + np.diag(strength)
        pull, penalty = self.lam * np.where(self._penalised, theta, 0.0), self.lam * np.diag(self._penalised)
        return total / n + self._penalty(theta), g / n + pull, H / n + penalty

    def _fit_scaled(
        self,
        rows: Any,
        start: Float,
        tol: float,
        gauge: Float | None = None,
        relative: bool = False,
        progress: Callable[[int, float], object] | None = None,
    ) -> Fit:
        """The same minimiser by Newton's method on columns of one size; its gradient norm is in their units.

        relative: tol is a share of the gradient at zero.
        """
        scaled, outputs = ScaledRows(rows, self.d), self.size // (self.d + 1)
        into = np.zeros((self.size, self.size))  # theta of the scaled rows = into @ theta
        for k in range(outputs):
            at, free = np.arange(k * self.d, (k + 1) * self.d), outputs * self.d + k
            into[at, at], into[free, at], into[free, free] = scaled.scale, scaled.centre, 1.0
        pull = self.lam / np.maximum(scaled.scale, 1e-150) ** 2
        strength = np.append(np.tile(pull, outputs), np.zeros(outputs))

        def objective(theta: Float) -> tuple[float, Float, Float]:
            return self._objective(theta, scaled.weighted_blocks(), strength)

        limit = tol * max(1.0, float(np.abs(objective(self.start())[1]).max())) if relative else tol
        fit = newton(objective, into @ start, limit, gauge=gauge, progress=progress)
        fit.converged |= fit.gradient_norm <= max(limit, ROUNDING)
        fit.theta = np.asarray(np.linalg.solve(into, fit.theta), np.float64)
        if gauge is not None:
            fit.theta[~self._penalised] -= fit.theta[~self._penalised].mean()
        found: Any = fit.hessian
        with np.errstate(over="ignore", invalid="ignore"):
            hessian = into.T @ found @ into
        fit.hessian = hessian if np.isfinite(hessian).all() else None
        return fit
