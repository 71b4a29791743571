"""Models of numbers by a linear predictor, least squares and Poisson regression, with LogisticModel's interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.models.fit import Fit, Rows, newton, weighted
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.linear.losses import NAMES, POISSON, derivatives, value

Float = NDArray[np.float64]

#: Largest gradient entry that may be left when a fit goes on until rounding stops it, relative to the first one.
ROUNDING = 1e-9

_NO_WEIGHTS = np.empty(0)


@kernel()
def glm_sums(X: Any, y: Any, weights: Any, loss: int, theta: Any, g: Any, H: Any) -> float:
    """Add the rows' gradients to g (p,), their Hessians' upper triangles to H (p, p); returns the sum of losses."""
    d, total = X.shape[1], 0.0
    for i in range(X.shape[0]):
        weight = weights[i] if weights.size else 1.0
        if weight == 0.0:
            continue
        z = theta[d]
        for j in range(d):
            z += theta[j] * np.float64(X[i, j])
        e, w, _ = derivatives(loss, z, np.float64(y[i]))
        total += weight * value(loss, z, np.float64(y[i]))
        e, w = e * weight, w * weight
        for j in range(d):
            x = np.float64(X[i, j])
            g[j] += e * x
            for k in range(j, d):
                H[j, k] += w * x * np.float64(X[i, k])
            H[j, d] += w * x
        g[d] += e
        H[d, d] += w
    return total


class GeneralisedLinearModel:
    """Mean loss over the rows + lam / 2 ||coef||^2 with loss "squared", (z - y)^2 / 2, or "poisson", e^z - y z.

    theta (p,) = [coef (d), intercept], p = d + 1; the intercept is not penalised. Targets y (n,) are numbers.

    Parameters
    ----------
    d : int
        Features.
    loss : "squared" or "poisson"
    lam : float
        Penalty in units of the mean loss.
    """

    n_classes = 0

    def __init__(self, d: int, loss: str = "squared", lam: float = 1e-3) -> None:
        if loss not in ("squared", "poisson"):
            raise UserError(f'the loss must be "squared" or "poisson", got {loss!r}')
        if d < 1 or not 0 < lam < np.inf:
            raise UserError(f"a linear model needs at least 1 feature and a positive penalty, got d={d}, lam={lam}")
        self.name = self.loss_name = loss
        self.d, self.lam, self.size = int(d), float(lam), d + 1
        self._code = NAMES.index(loss)
        self._penalised = np.arange(self.size) < d

    def __repr__(self) -> str:
        return f"GeneralisedLinearModel(d={self.d}, loss={self.name!r}, lam={self.lam})"

    def start(self) -> Float:
        """(p,) zeros."""
        return np.zeros(self.size)

    def _sums(self, theta: Float, rows: Any) -> tuple[float, Float, Float, float]:
        """(sum of losses, gradient, Hessian, sum of weights) of all rows, without penalty."""
        g, H, total, n = np.zeros(self.size), np.zeros((self.size, self.size)), 0.0, 0.0
        for X, y, weights in weighted(rows):
            X, y = np.ascontiguousarray(X), np.asarray(y)
            given = _NO_WEIGHTS if weights is None else np.asarray(weights, np.float64)
            total += glm_sums(X, y, given, self._code, theta, g, H)
            n += len(X) if weights is None else float(given.sum())
        return total, g, np.triu(H) + np.triu(H, 1).T, n

    def data_gradient(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike, weights: Any = None) -> Float:
        """(p,) mean gradient of the loss over the rows, each times its weight, without penalty."""
        g, H = np.zeros(self.size), np.zeros((self.size, self.size))
        given = _NO_WEIGHTS if weights is None else np.asarray(weights, np.float64)
        rows = np.ascontiguousarray(X)
        glm_sums(rows, np.asarray(y), given, self._code, np.asarray(theta, np.float64), g, H)
        return g / max(len(rows), 1)

    def penalty_gradient(self, theta: ArrayLike) -> Float:
        """(p,) lam * theta on the coefficients, 0 on the intercept."""
        return self.lam * np.where(self._penalised, np.asarray(theta, np.float64), 0.0)

    def gradient(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike) -> Float:
        """(p,) gradient of the objective."""
        return self.data_gradient(theta, X, y) + self.penalty_gradient(theta)

    def loss(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike) -> float:
        """The objective: mean loss over the rows with penalty."""
        at = np.asarray(theta, np.float64)
        total, _, _, n = self._sums(at, (X, y))
        return total / max(n, 1.0) + self.lam / 2 * float((at[self._penalised] ** 2).sum())

    def hessian(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike) -> Float:
        """(p, p) Hessian of the objective."""
        _, _, H, n = self._sums(np.asarray(theta, np.float64), (X, y))
        return H / max(n, 1.0) + self.lam * np.diag(self._penalised)

    def predict(self, theta: ArrayLike, X: ArrayLike) -> Float:
        """(n,) expected targets."""
        at = np.asarray(theta, np.float64)
        z = np.asarray(X, np.float64) @ at[:-1] + at[-1]
        return np.exp(z) if self._code == POISSON else z

    def fit(
        self,
        rows: tuple[ArrayLike, ArrayLike] | Rows,
        start: ArrayLike | None = None,
        tol: float = 1e-10,
        progress: Callable[[int, float], object] | None = None,
    ) -> Fit:
        """The minimiser over all rows, by Newton's method with one pass over the rows per step.

        tol is relative to the gradient at theta = 0, since targets have units; tol=0 goes on until rounding stops it.
        Raises UserError where it does not get there.
        """

        def objective(theta: Float) -> tuple[float, Float, Float]:
            total, g, H, n = self._sums(theta, rows)
            if n == 0.0:
                raise UserError("there are no rows to train on")
            penalty = self.lam / 2 * float((theta[self._penalised] ** 2).sum())
            gradient, hessian = g / n + self.penalty_gradient(theta), H / n + self.lam * np.diag(self._penalised)
            return total / n + penalty, gradient, hessian

        begin = self.start() if start is None else np.array(start, np.float64)
        scale = max(1.0, float(np.abs(objective(self.start())[1]).max()))
        fit = newton(objective, begin, tol * scale, progress=progress)
        if not fit.converged and not fit.gradient_norm <= (ROUNDING if tol < ROUNDING else tol) * scale:
            raise UserError(
                f"the {self.name} regression did not converge: after {fit.steps} Newton steps the gradient norm is "
                f"{fit.gradient_norm:.1e}; standardise the features or raise lam"
            )
        return fit
