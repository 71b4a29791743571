"""One Newton step on the retained rows, from the curvature kept at training time. Its cost does not depend on n."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from l2ul_fast.baselines.base import Baseline, Ids, Outcome, Vector, free_directions, hessian_of, penalty_strength
from l2ul_fast.errors import UserError
from l2ul_fast.unlearner.newton_step import NewtonStep

Matrix = NDArray[np.float64]
SOLVERS = ("auto", "compiled", "woodbury", "direct")


class Newton(Baseline):
    """theta' = theta + H_R^-1 sum_f (gradient of row f + penalty gradient), all at theta.

    H_R = H_D - sum_f H_f - r * penalty is the Hessian of the retained rows' summed objective; H_D is kept, the
    forgotten rows' part is taken off. Exact for a quadratic loss. Solvers: "compiled" (binary logistic regression, in
    microseconds), "woodbury" (rank-r downdate of the kept Cholesky factor; binary logistic regression), "direct"
    (factors H_R anew, any model). A Hessian that is not positive definite is damped, and the facts say by how much.
    After a committed request the kept curvature stays the one at the theta it was computed at, less the rows gone.
    """

    name = "newton"

    def __init__(self, solver: str = "auto", tol: float = 1e-10) -> None:
        if solver not in SOLVERS:
            raise UserError(f"the solver must be one of {', '.join(SOLVERS)}, got {solver!r}")
        self.solver, self.tol = solver, tol

    def _prepare(self) -> None:
        model = self.model
        binary = model.name == "lr" and model.n_classes == 2 and not hasattr(model, "kind")
        if self.solver in ("compiled", "woodbury") and not binary:
            raise UserError(f'the solver "{self.solver}" is for binary logistic regression: use "direct"')
        self._how = ("compiled" if binary else "direct") if self.solver == "auto" else self.solver
        self.theta = model.fit(self.table, tol=self.tol).theta
        self.anchor = self.theta.copy()  # where the curvature is taken
        self.curvature = hessian_of(model, self.theta, self.table)
        self._strength, self._gauge = penalty_strength(model), free_directions(model)
        self._refactor()

    def _refactor(self) -> None:
        """What the solvers keep of curvature and n."""
        self._step = self._factor = None
        if self._how == "compiled":
            self._step = NewtonStep(self.model, self.anchor, self.curvature.copy(), self.n, None)
        elif self._how == "woodbury":
            self._factor, self.damping = factor(self.curvature + self.n * np.diag(self._strength))

    def _outcome(self, ids: Ids) -> Outcome:
        assert self.theta is not None
        if self._step is not None:
            return self._compiled(self._step, ids)
        total, left = self._total(ids, self.theta), self.n - len(ids)
        if self._how == "woodbury":
            move, damping = self._woodbury(ids, total), self.damping
        else:
            H = self._without(ids) + left * np.diag(self._strength)
            kept, damping = factor(H if self._gauge is None else H + left * self._gauge)
            move = cho_solve(kept, total)
        return Outcome(self.theta + move, {"damping": damping}, {})

    def _compiled(self, step: NewtonStep, ids: Ids) -> Outcome:
        assert self.theta is not None
        X, y = self.table.take(ids)
        inverse = step.inverse.copy()
        try:
            theta = step.move(X, y, ids, self.theta, self.n)
        finally:
            curvature = step.curvature.copy()
            step.curvature[:], step.inverse[:] = self.curvature, inverse
        return Outcome(theta, {"damping": 0.0}, {"curvature": curvature})

    def _committed(self, ids: Ids) -> None:
        if self._how != "compiled":
            self.curvature = self._without(ids)
        self._refactor()

    def _without(self, ids: Ids) -> Matrix:
        """The kept curvature less that of these rows."""
        X, y = self.table.take(ids)
        of_rows = len(ids) * (self.model.hessian(self.anchor, X, y) - np.diag(self._strength))
        return np.asarray(self.curvature - of_rows)

    def _woodbury(self, ids: Ids, total: Vector) -> Vector:
        """Solve with H_D - U^T U - r * penalty: U by the Woodbury identity, the penalty by iterating, which contracts
        by r / (n - r) each time."""
        X, _ = self.table.take(ids)
        rows = np.hstack([X.astype(np.float64), np.ones((len(X), 1))])
        s = 1 / (1 + np.exp(-np.abs(rows @ self.anchor)))
        U = np.sqrt(s * (1 - s))[:, None] * rows
        solved = cho_solve(self._factor, U.T)  # (p, r)
        inner = cho_factor(np.eye(len(ids)) - U @ solved)

        def solve(v: Vector) -> Vector:
            first = cho_solve(self._factor, v)
            return np.asarray(first + solved @ cho_solve(inner, U @ first))

        move = solve(total)
        for _ in range(200):
            before, move = move, solve(total + len(ids) * self._strength * move)
            if np.abs(move - before).max() <= 1e-15 * np.abs(move).max():
                break
        return move

    def _arrays(self) -> list[NDArray[Any]]:
        kept = [self.theta, self.anchor, self.curvature]
        if self._step is not None:
            kept += [self._step.curvature, self._step.inverse]
        if self._factor is not None:
            kept.append(self._factor[0])
        return [a for a in kept if a is not None]


def factor(H: Matrix) -> tuple[Any, float]:
    """(Cholesky factor of H + damping I, damping): 0 if H is positive definite, else as little as makes it so."""
    damping, scale = 0.0, 1e-3 * max(float(np.trace(H)) / len(H), 1e-300)
    for _ in range(30):
        try:
            return cho_factor(H + damping * np.eye(len(H))), damping
        except np.linalg.LinAlgError:
            damping = max(2 * damping, scale)
    raise UserError("the Hessian of the retained rows is not positive definite: retrain instead")
