"""Certified removal (Guo et al. 2020): a Newton step whose error a random linear term in the objective hides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve

from l2ul_fast.baselines.base import Baseline, Ids, Outcome, Vector
from l2ul_fast.baselines.newton import Newton, factor
from l2ul_fast.checks import Between, NotNegative, Positive, checked
from l2ul_fast.models.fit import newton
from l2ul_fast.protocols import Style
from l2ul_fast.tables import Table
from l2ul_kernels.linear.logistic import logistic_sums

#: Bound on |third derivative| of the logistic loss that the published bound uses (the true maximum is 0.0962).
GAMMA = 0.25


class Certified(Baseline):
    """Binary logistic regression with the objective sum of losses + n lam / 2 |theta|^2 + b.theta, b ~ N(0, sigma^2).

    Unlike elsewhere the intercept is penalised (the guarantee needs it) and rows longer than `radius` (constant feature
    included) are scaled down to it. Every answer adds a bound on its gradient residual to a budget; when the budget
    sigma * epsilon / sqrt(2 ln(1.5 / delta)) would be exceeded, the answer is a retrained model with a new b. Other
    models get a plain Newton step, and the facts say that it is not certified.
    """

    name = "certified"
    style = Style("Certified removal", "yellow", "h")
    table_order = 70

    anchor: Vector  #: where the curvature is taken: the present theta
    curvature: NDArray[np.float64]
    gram: NDArray[np.float64]
    b: Vector
    beta: float
    fits: int

    @checked
    def __init__(
        self,
        sigma: Positive = 1.0,
        epsilon: Positive = 1.0,
        delta: Between = 1e-4,
        radius: Positive | None = None,
        tol: NotNegative = 1e-10,
    ) -> None:
        self.sigma, self.epsilon, self.delta, self.radius, self.tol = sigma, epsilon, delta, radius, tol
        self._newton: Newton | None = None

    @property
    def budget(self) -> float:
        """The largest gradient residual (of the sum over rows) that b hides."""
        return self.sigma * self.epsilon / math.sqrt(2 * math.log(1.5 / self.delta))

    @property
    def trains_like_A(self) -> bool:
        return self._newton is not None

    def _prepare(self) -> None:
        self._newton = None
        if self.model.name != "lr" or self.model.n_classes != 2:
            self._newton = Newton(tol=self.tol)
            self._newton.prepare(self.table, self.model, self.seed)
            self.theta = self._newton.theta
            return
        self.lam, self.fits = float(self.model.lam), 0
        self.R = 3.0 * math.sqrt(self.model.d + 1) if self.radius is None else float(self.radius)
        self.__dict__.update(self._train(self.table))

    def _short(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """(n, d + 1) rows with their constant feature, none longer than the radius."""
        rows = np.hstack([X.astype(np.float64), np.ones((len(X), 1))])
        return np.asarray(rows * np.minimum(1.0, self.R / np.linalg.norm(rows, axis=1))[:, None])

    def _sums(self, table: Table, theta: Vector) -> tuple[float, Vector, Vector, int]:
        """(loss, gradient (p,), Hessian (p, p), rows) summed over the table, without penalty and b."""
        p = len(theta)
        loss, n, g, H = 0.0, 0, np.zeros(p + 1), np.zeros((p + 1, p + 1))
        for X, y in table.blocks():
            # the kernel adds an intercept of its own: it stays 0 and is dropped
            loss += logistic_sums(self._short(X), y, np.append(theta, 0.0), None, g, H)
            n += len(X)
        return loss, g[:p], H[:p, :p], n

    def _train(self, table: Table, b: Vector | None = None) -> dict[str, Any]:
        """State after training on a table, with a fresh b unless one is given."""
        p = self.model.size
        if b is None:
            b = np.random.default_rng([self.seed, 14, self.fits]).normal(0, self.sigma, p)

        def objective(theta: Vector) -> tuple[float, Vector, Vector]:
            loss, g, H, n = self._sums(table, theta)
            value = float(loss / n + self.lam / 2 * theta @ theta + b @ theta / n)
            return value, g / n + self.lam * theta + b / n, H / n + self.lam * np.eye(p)

        fit = newton(objective, np.zeros(p), self.tol)
        gram = sum((self._short(X).T @ self._short(X) for X, _ in table.blocks()), np.zeros((p, p)))
        assert fit.hessian is not None
        curvature = table.n * (fit.hessian - self.lam * np.eye(p))
        return {
            "theta": fit.theta,
            "anchor": fit.theta.copy(),
            "b": b,
            "curvature": curvature,
            "gram": gram,
            "beta": table.n * fit.gradient_norm * math.sqrt(p),
            "fits": self.fits + 1,
        }

    def _outcome(self, ids: Ids) -> Outcome:
        if self._newton is not None:
            done = self._newton._outcome(ids)
            return Outcome(done.theta, {**done.facts, "certified": False}, {})
        X, y = self.table.take(ids)
        rows, left = self._short(X), self.n - len(ids)
        s = 1 / (1 + np.exp(-(rows @ self.theta)))
        total = rows.T @ (s - y) + len(ids) * self.lam * self.theta
        weight = s * (1 - s)
        curvature = self.curvature - (rows * weight[:, None]).T @ rows
        gram = self.gram - rows.T @ rows
        kept, _ = factor(curvature + left * self.lam * np.eye(len(total)))
        move = cho_solve(kept, total)
        bound = residual_bound(gram, move, self.R)
        beta = self.beta + bound
        facts: dict[str, Any] = {"certified": True, "bound": bound, "beta": beta, "budget": self.budget}
        if beta > self.budget:
            state = self._train(self.table.without(ids))
            facts |= {"retrained": True, "beta": state["beta"]}
            return Outcome(state["theta"], facts, {k: v for k, v in state.items() if k != "theta"})
        theta = self.theta + move
        return Outcome(theta, facts | {"retrained": False}, {"gram": gram, "beta": beta})

    def _committed(self, ids: Ids) -> None:
        if self._newton is not None:
            self._newton.unlearn(ids, commit=True)
            return
        if not np.array_equal(self.anchor, self.theta):
            # the bound needs the Hessian at the present theta: one pass over the rows that stay
            self.anchor, self.curvature = self.theta.copy(), self._sums(self.table, self.theta)[2]

    def retrained(self, forget: Any) -> Vector:
        """theta of its own objective (same b) trained without these rows: what an answer approximates."""
        ids = self._ids(forget)
        if self._newton is not None:
            return np.asarray(self.model.fit(self.table.without(ids), start=self.theta, tol=self.tol).theta)
        return np.asarray(self._train(self.table.without(ids), self.b)["theta"])

    def residual(self, theta: Vector, table: Table) -> float:
        """Norm of the gradient of the summed objective (with b) on a table: what the bound bounds."""
        _, g, _, n = self._sums(table, theta)
        return float(np.linalg.norm(g + n * self.lam * theta + self.b))

    def _arrays(self) -> list[NDArray[Any]]:
        if self._newton is not None:
            return self._newton._arrays()
        return [*super()._arrays(), self.anchor, self.curvature, self.gram, self.b]


def residual_bound(gram: NDArray[np.float64], move: Vector, radius: float) -> float:
    """gamma |X| |move| |X move| for rows X of norm <= radius with Gram matrix X^T X: bounds the gradient after a step.

    |l''(z + u) - l''(z)| <= gamma |u| and |u| = |x.move| <= radius |move|, so the remainder X^T e has
    |e_i| <= gamma radius |move| |x_i.move|.
    """
    largest = math.sqrt(max(float(np.linalg.eigvalsh(gram)[-1]), 0.0))
    along = math.sqrt(max(float(move @ gram @ move), 0.0))
    return GAMMA * radius * largest * float(np.linalg.norm(move)) * along
