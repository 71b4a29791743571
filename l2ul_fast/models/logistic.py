"""Logistic regression, binary and multinomial, as one flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.checks import Finite, Labels, Number0, Within, checked, parameters, plain
from l2ul_fast.errors import UserError
from l2ul_fast.models.fit import (
    LEAST_TOL,
    Fit,
    Float,
    Rows,
    check_training,
    chord,
    finite_scores,
    newton,
    softmax_rows,
    solve_definite,
    weighted,
)
from l2ul_fast.models.linear import ROUNDING, LinearModel
from l2ul_kernels.linear import logistic, softmax
from l2ul_kernels.validate import check_matrix


class LogisticModel(LinearModel):
    """Mean log-loss + lam / 2 ||coef||^2; intercepts are not penalised.

    Two classes: theta (p,) = [coef (d), intercept], p = d + 1. More: theta = [coef (C, d) row by row, intercept (C)],
    p = C (d + 1), intercepts of a fit sum to zero. Labels are class indices 0 .. C - 1, X (n, d) is used as given.

    Attributes
    ----------
    name, d, n_classes, lam : "lr", features, classes, penalty.
    size : p, the length of theta.
    """

    name, loss_name = "lr", "logistic"

    @checked
    def __init__(self, d: Number0, n_classes: Number0 = 2, lam: Finite = 1e-3) -> None:
        if d < 1 or n_classes < 2:
            raise UserError(
                f"logistic regression needs at least 1 feature and 2 classes, got d={d}, classes={n_classes}"
            )
        if not 0 < lam < np.inf:
            raise UserError(f"lam must be positive and finite (without a penalty the fit need not exist), got {lam}")
        super().__init__(d, 1 if n_classes == 2 else int(n_classes), lam)
        self.n_classes = int(n_classes)

    def __repr__(self) -> str:
        return f"LogisticModel(d={self.d}, n_classes={self.n_classes}, lam={self.lam})"

    # ------------------------------------------------------------------------------------------- objective at theta

    def _add_sums(
        self, theta: ArrayLike, X: ArrayLike, y: ArrayLike, g: Float, H: Float | None, weights: Any = None
    ) -> float:
        if self.n_classes == 2:
            return logistic.logistic_sums(X, y, theta, weights, g, H)
        return softmax.softmax_sums(X, y, theta, self.n_classes, weights, g, H)

    def data_gradient(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike, weights: Any = None) -> Float:
        """(p,) mean gradient of the log-loss over rows, each times its weight (two classes only), without penalty."""
        theta, X, y = parameters("theta", theta, self.size), plain("X", X), plain("y", y)
        if self.n_classes == 2:
            return logistic.logistic_gradient(X, y, theta, weights)
        return softmax.softmax_gradient(X, y, theta, self.n_classes)

    def loss(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike) -> float:
        """The objective: mean log-loss over the rows with penalty."""
        theta, X, y = parameters("theta", theta, self.size), plain("X", X), plain("y", y)
        if self.n_classes == 2:
            mean = logistic.logistic_loss(X, y, theta)
        else:
            mean = softmax.softmax_loss(X, y, theta, self.n_classes)
        return mean + self._penalty(theta)

    def hvp(self, theta: ArrayLike, X: ArrayLike, y: ArrayLike, v: ArrayLike) -> Float:
        """(p,) Hessian of the objective times v (p,), without forming it. Labels do not matter."""
        theta, X, v = parameters("theta", theta, self.size), plain("X", X), parameters("v", v, self.size)
        if self.n_classes == 2:
            return logistic.logistic_hvp(X, theta, v) + self.penalty_gradient(v)
        return softmax.softmax_hvp(X, theta, v, self.n_classes) + self.penalty_gradient(v)

    # --------------------------------------------------------------------------------------------------- prediction

    def logits(self, theta: ArrayLike, X: ArrayLike) -> Float:
        """(n,) log-odds of class 1 for two classes, else (n, C) scores."""
        theta, X = parameters("theta", theta, self.size), plain("X", X)
        if X.ndim != 2 or X.shape[1] != self.d:
            raise ValueError(f"X must have shape (n, {self.d}), got {X.shape}")
        if self.n_classes == 2:
            return X @ theta[:-1] + theta[-1]
        coef = theta[: self.n_classes * self.d].reshape(self.n_classes, self.d)
        return X @ coef.T + theta[self.n_classes * self.d :]

    def predict_proba(self, theta: ArrayLike, X: ArrayLike) -> Float:
        """(n, C) class probabilities."""
        return softmax_rows(self.logits(theta, X))

    def predict(self, theta: ArrayLike, X: ArrayLike) -> NDArray[np.int64]:
        """(n,) most likely class."""
        z = finite_scores(self.logits(theta, X))
        return (z > 0).astype(np.int64) if self.n_classes == 2 else z.argmax(axis=1)

    # ------------------------------------------------------------------------------------------------------ fitting

    def fit(
        self,
        rows: tuple[ArrayLike, ArrayLike] | Rows,
        start: ArrayLike | None = None,
        tol: float = 1e-10,
        progress: Callable[[int, float], object] | None = None,
        metric: Float | None = None,
    ) -> Fit:
        """The minimiser over all rows, by Newton's method with one pass over the rows per step.

        rows: arrays (X, y), or an object with n, d and blocks(). Raises UserError when the largest gradient entry does
        not fall to tol; tol=0 goes on until rounding stops it (and raises above 1e-9). progress(steps, gradient norm)
        is called after every pass. With a `metric` (p, p), the Hessian near the optimum or of some of the rows, passes
        need only gradients as long as each halves it; the fit then has no Hessian unless Newton's method had to finish.
        """
        rows = check_training(rows, self.d, self.n_classes, "logistic regression")
        tol = Within(0.0)("tol", tol)
        begin = self.start() if start is None else parameters("start", start, self.size).copy()
        counts = np.zeros(self.n_classes)  # filled by the first pass
        n = 0.0

        def one_pass() -> Iterator[Any]:
            nonlocal n
            for X, y, weights in weighted(rows):
                if n == 0:
                    counts[:] += np.bincount(y, weights, minlength=self.n_classes)
                yield X, y, weights
            if not counts.all():
                missing = ", ".join(str(c) for c in np.flatnonzero(counts == 0))
                raise UserError(f"logistic regression needs rows of every class, but there are none of class {missing}")
            n = float(counts.sum())

        def objective(theta: Float) -> tuple[float, Float, Float]:
            return self._objective(theta, one_pass())

        def slope(theta: Float) -> Float:
            g = np.zeros(self.size)
            for X, y, weights in one_pass():
                g += len(X) * logistic.logistic_gradient(X, y, theta, weights)
            return g / n + self.penalty_gradient(theta)

        gauge, passes = None, 0
        if self.n_classes > 2:  # the same number added to all intercepts changes nothing: keep their sum at zero
            begin[~self._penalised] -= begin[~self._penalised].mean()
            gauge = np.outer(~self._penalised, ~self._penalised).astype(np.float64)
        elif metric is not None:
            begin, norm, passes = chord(slope, begin, metric, tol, progress=progress)
            if norm <= tol:
                return Fit(begin, norm, passes - 1, True, None, float("nan"))
        fit = newton(objective, begin, tol, gauge=gauge, progress=progress)
        if not fit.converged and tol > 0:
            again = self._fit_scaled(rows, begin, tol, gauge, progress=progress)
            fit = replace(again, steps=again.steps + fit.steps) if again.converged and tol >= LEAST_TOL else fit

        def down_to_rounding() -> bool:
            """Whether no more than rounding is left to gain, whatever the units of the columns."""
            _, g, H = objective(fit.theta)
            return float(g @ solve_definite(H if gauge is None else H + gauge, g)) <= ROUNDING**2

        if not fit.converged and not (tol == 0.0 and (fit.gradient_norm <= ROUNDING or down_to_rounding())):
            raise UserError(
                f"logistic regression did not converge: after {fit.steps} Newton steps the gradient norm is "
                f"{fit.gradient_norm:.1e}, not below {tol:.1e}; standardise the features or raise lam"
            )
        return replace(fit, steps=fit.steps + passes)

    def fit_pairs(
        self,
        X: ArrayLike,
        y: ArrayLike,
        ids: ArrayLike,
        n_forget: ArrayLike,
        tol: float = 1e-10,
        progress: Callable[[int, int], object] | None = None,
    ) -> tuple[Float, Float, Float, NDArray[np.int64]]:
        """(theta (m, p), theta_r (m, p), gradient_norm (m, 2), steps (m, 2)) of m pairs.

        Pair i has the rows ids[i] of X, of which the first n_forget[i] are forgotten. A gradient norm above tol marks a
        fit that did not converge (infinite: a class has no rows); reject such pairs.
        """
        X, y = check_matrix(plain("X", X), self.d, "the model"), plain("y", y)
        ids, n_forget = Labels(False, 2)("ids", ids), Labels(False)("n_forget", n_forget)
        tol = Within(0.0)("tol", tol)
        if self.n_classes == 2:
            return logistic.logistic_fit_pairs(X, y, ids, n_forget, self.lam, tol, progress=progress)
        return softmax.softmax_fit_pairs(X, y, ids, n_forget, self.lam, self.n_classes, tol, progress=progress)
