"""A linear map that is learned from training pairs alone: theta' = theta + W total / (n - r).

total = r (mean gradient of the forgotten rows + gradient of the penalty) at theta, so that W stands for an inverse
Hessian without anybody having computed one. It is ridge regression from sqrt(r) times that mean gradient to what
retraining changes, its strength chosen by leave-one-out. Logistic regression with any number of classes learns from
pairs on subsets, the anchored MLP from retrainings on all rows.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import Table
from l2ul_fast.unlearner.heads.base import Arrays, Report, Rows, Vector, checked
from l2ul_fast.unlearner.heads.sealed import Kept, SealedHead
from l2ul_fast.unlearner.heads.secant import gradient_sum
from l2ul_fast.unlearner.pairs.make import Pairs
from l2ul_fast.unlearner.pairs.ridge import RidgeHead
from l2ul_kernels.codegen.jit import ensure_compiled
from l2ul_kernels.request.claims import logistic_total

#: Rows of binary logistic regression up to which a plain loop over them beats the blocked kernel.
FEW = 32
#: W is kept in float32 from this many parameters on: a request then reads half the bytes.
SINGLE = 100


class Learned(SealedHead):
    """W (p, p); held_out: the relative error of pairs that it was not learned from, their median."""

    kind: ClassVar[str] = "learned"
    instant: ClassVar[str] = "learned map"
    reveals: ClassVar[str] = "whoever holds it can compute the rows of a small request from its parameters and map"

    def __init__(self, kept: Kept, W: NDArray[Any], held_out: float) -> None:
        super().__init__(kept)
        self.W = np.ascontiguousarray(W, np.float32 if len(W) > SINGLE else np.float64)
        self.held_out = held_out
        self._bend = np.zeros(kept.theta.size)  # see `forget`

    @classmethod
    def of(cls, kept: Kept, pairs: Pairs, table: Table, report: Report) -> tuple[Self, dict[str, Any]]:
        ridge = RidgeHead.fit(pairs.Z, pairs.T)
        if np.isinf(ridge.strength):
            raise UserError("the training pairs taught nothing: raise m or s")
        return cls(kept, ridge.W, ridge.loo["rho"]), {"head": ridge.loo}

    def total(self, theta: Vector, X: NDArray[Any], y: NDArray[np.uint8]) -> Vector:
        """(p,) r * (mean gradient of the rows X (r, d), y (r,) at theta + gradient of the penalty)."""
        model, r = self.model, len(X)
        if r > FEW or model.name != "lr" or model.n_classes > 2:
            return np.asarray(gradient_sum(model, X, y, theta) + r * model.penalty_gradient(theta))
        out = np.empty(theta.size)
        what = (theta, model.lam, out)
        key = ("logistic total", X.dtype, y.dtype)
        ensure_compiled(key, lambda: logistic_total(X[:0], y[:0], *what))
        logistic_total(X, y, *what)
        return out

    def forget(self, rows: Rows) -> None:
        """Take rows out that are in.

        What the step overlooks is how the rows' own gradients change along it: their Hessians have left too. Taken at
        theta', where it balances the others' gradients, the step would be W total(theta') / n. The difference, in
        units of the step, is added up in `_bend`.
        """
        n, r = self.n, len(rows.X)
        total = self.total(self._theta, rows.X, rows.y)
        step = self._times(total) / (n - r)
        theta = self._theta + step
        if not np.isfinite(theta).all():
            raise UserError("the rows of this request are too large to answer it with finite parameters")
        length = float(np.linalg.norm(step))
        if length > 0:
            after = self._times(self.total(theta, rows.X, rows.y)) / n
            self._bend = self._bend + (after - step) / length
        self._leave(rows, theta)

    def _times(self, total: Vector) -> Vector:
        return np.asarray(self.W @ total.astype(self.W.dtype), np.float64)

    def _estimate(self) -> float:
        return self.held_out + float(np.linalg.norm(self._bend))

    def refine(self, table: Table, rtol: float) -> None:
        super().refine(table, rtol)
        if not self._moved:
            self._bend = np.zeros(self._theta.size)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"held_out": self.held_out}

    def arrays(self) -> Arrays:
        return super().arrays() | {"learned.W": self.W, "learned.bend": self._bend}

    @classmethod
    def _saved(cls, kept: Kept, facts: dict[str, Any], arrays: Arrays) -> tuple[Any, ...]:
        p = kept.model.size
        W = checked("learned.W", arrays, (p, p), np.float32 if p > SINGLE else np.float64)
        return W, float(facts["held_out"])

    @classmethod
    def from_arrays(cls, model: Any, facts: dict[str, Any], arrays: Arrays) -> Self:
        head = super().from_arrays(model, facts, arrays)
        head._bend = checked("learned.bend", arrays, (model.size,))
        return head

    def compile(self, table: Table) -> None:
        self.total(self._theta, np.empty((0, table.d), table.dtype), np.empty(0, np.uint8))
