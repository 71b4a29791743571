"""Models of numbers by a linear predictor, least squares and Poisson regression, with LogisticModel's interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from l2ul_fast.checks import Finite, Number0, Within, checked, parameters, plain
from l2ul_fast.errors import UserError
from l2ul_fast.models.fit import LEAST_TOL, Fit, Float, Rows, check_training, finite_scores, newton, weighted
from l2ul_fast.models.linear import LinearModel, readable_rows
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.linear.losses import NAMES, POISSON, derivatives, value
from l2ul_kernels.validate import readable

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


class GeneralisedLinearModel(LinearModel):
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

    @checked
    def __init__(self, d: Number0, loss: str = "squared", lam: Finite = 1e-3) -> None:
        if not isinstance(loss, str) or loss not in ("squared", "poisson"):
            raise UserError(f'the loss must be "squared" or "poisson", got {loss!r}')
        if d < 1 or not 0 < lam < np.inf:
            raise UserError(f"a linear model needs at least 1 feature and a positive penalty, got d={d}, lam={lam}")
        super().__init__(d, 1, lam)
        self.name = self.loss_name = loss
        self._code = NAMES.index(loss)

    def __repr__(self) -> str:
        return f"GeneralisedLinearModel(d={self.d}, loss={self.name!r}, lam={self.lam})"

    def _add_sums(
        self, theta: ArrayLike, X: ArrayLike, y: ArrayLike, g: Float, H: Float | None, weights: Any = None
    ) -> float:
        X = readable_rows(X, self.d)
        y, at = readable(plain("y", y), np.float64), readable(theta, np.float64)
        given = _NO_WEIGHTS if weights is None else readable(weights, np.float64)
        if y.shape != (len(X),) or given.shape not in ((0,), y.shape) or at.shape != (self.size,):
            shapes = f"{y.shape}, {given.shape} and {at.shape}"
            raise UserError(f"{len(X)} rows do not fit targets, weights and theta of shapes {shapes}")
        if not np.isfinite(y).all():
            raise UserError("a target is NaN or infinite")
        return glm_sums(X, y, given, self._code, at, g, np.zeros((self.size, self.size)) if H is None else H)

    def _whole(self, H: Float) -> Float:
        return np.triu(H) + np.triu(H, 1).T

    def predict(self, theta: ArrayLike, X: ArrayLike) -> Float:
        """(n,) expected targets."""
        at = parameters("theta", theta, self.size)
        z = finite_scores(readable_rows(plain("X", X), self.d) @ at[:-1] + at[-1])
        return finite_scores(np.exp(z)) if self._code == POISSON else z

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
        rows = check_training(rows, self.d, 0, f"the {self.name} regression")
        tol = Within(0.0)("tol", tol)

        def objective(theta: Float) -> tuple[float, Float, Float]:
            return self._objective(theta, weighted(rows))

        begin = self.start() if start is None else parameters("start", start, self.size).copy()
        scale = max(1.0, float(np.abs(objective(self.start())[1]).max()))
        fit = newton(objective, begin, tol * scale, progress=progress)
        if not fit.converged and not fit.gradient_norm <= tol * scale and tol >= LEAST_TOL:
            again = self._fit_scaled(rows, begin, tol, relative=True, progress=progress)
            fit = replace(again, steps=again.steps + fit.steps) if again.converged else fit
        if not fit.converged and not fit.gradient_norm <= (ROUNDING if tol < ROUNDING else tol) * scale:
            raise UserError(
                f"the {self.name} regression did not converge: after {fit.steps} Newton steps the gradient norm is "
                f"{fit.gradient_norm:.1e}; standardise the features or raise lam"
            )
        return fit
