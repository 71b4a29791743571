"""The head for linear models of many parameters, whose Hessian is too large to keep: conjugate gradients on the rows.

It keeps theta and the exact sum S of the gradients there of the rows that stay. A request takes the rows' gradients out
of S, which leaves the gradient that one Newton step must remove. The step is solved by conjugate gradients: a pass over
the rows that stay per product with their Hessian, which is never formed. Another pass makes S exact at the new theta;
what is left of it tells the error, and steps follow until the error is small enough.

So there is no instant answer here: every request takes passes, down to an estimated error of PASSES_UNTIL. The state is
`due` after a request like that of all heads without integer sums; the seal goes on until rounding stops it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.models.fit import weighted
from l2ul_fast.tables import Table
from l2ul_fast.unlearner.heads import base
from l2ul_fast.unlearner.heads.base import Arrays, Head, Ids, Report, Rows, Vector
from l2ul_fast.unlearner.passes import NO_WEIGHTS
from l2ul_fast.workers import Workers
from l2ul_kernels.linear.losses import LOGISTIC, NAMES, row_losses

#: Estimated error down to which a request takes passes when it names no rtol.
PASSES_UNTIL = 1e-2
#: Numbers of a block of rows that is converted to float64 at a time (32 MB).
BLOCK_NUMBERS = 1 << 22
#: Conjugate gradients stop when the residual has fallen to this share, or after so many products.
RESIDUAL_SHARE, PRODUCTS = 1e-3, 300
#: The step that is left is at most CAUTION times what the gradients' ratio says.
CAUTION = 3.0
#: Newton steps at most; how often a step is halved.
STEPS, HALVINGS = 60, 40
#: Largest mean gradient at which a seal is accepted, and at which it takes no further step.
CONVERGED, SEALED = 1e-8, 1e-13


class Sums(NamedTuple):
    """Of rows at one theta: the sum of their losses and of their gradients (p,), without penalty."""

    value: float
    gradient: Vector


class Wide(Head):
    """See the module. `sealed` makes one; in between, `due` says that a seal should follow."""

    kind: ClassVar[str] = "wide"
    passes_until: ClassVar[float | None] = PASSES_UNTIL
    penalty: tuple[float, float]

    def __init__(
        self, model: Any, penalty: tuple[float, float], counts: Ids, weight: float, theta: Vector, sums: Sums
    ) -> None:
        """penalty: its weight is penalty[0] + penalty[1] * the sum of weights. counts: rows of each class, none for
        models of numbers. sums: of the rows at theta."""
        self.model, self.loss, self.penalty = model, NAMES.index(model.loss_name), penalty
        self._counts, self._weight = counts, weight
        self._theta = self._first = theta
        self._sums = sums
        self._touched, self._error, self.tier = False, 0.0, "sealed"

    @classmethod
    def sealed(cls, model: Any, penalty: tuple[float, float], table: Any, start: Vector) -> Wide:
        """At the optimum of the rows of table, down to rounding."""
        classes = len(table.classes) if model.loss_name == NAMES[LOGISTIC] else 0
        counts, weight = np.zeros(classes, np.int64), 0.0
        for _, y, weights in weighted(table):
            present = np.ones(len(y), bool) if weights is None else weights > 0
            weight += float(present.sum() if weights is None else weights.sum())
            if classes:
                counts += np.bincount(y[present], minlength=classes)
        made = cls(model, penalty, counts, weight, start, Sums(np.inf, np.zeros(start.size)))
        made._sums = made._pass(table, start)
        made._polish(table)
        made._theta = made._first = base.on_grid(made._theta)
        made._sums = made._pass(table, made._theta)
        made._error, made.tier = 0.0, "sealed"
        return made

    # Look ------------------------------------------------------------------------------------------------------------

    @property
    def error(self) -> float | None:
        """Estimated rho of everything that changed since the latest seal."""
        return self._error

    @property
    def due(self) -> str | None:
        return base.NOT_AT_OPTIMUM if self._touched else None

    # Request ---------------------------------------------------------------------------------------------------------

    def forget(self, rows: Rows) -> None:
        """Take the rows' gradients out of S; `refine` moves theta."""
        self._change(rows, -1)

    def learn(self, rows: Rows) -> None:
        """Add rows: the same with the other sign."""
        self._change(rows, 1)

    def _change(self, rows: Rows, sign: int) -> None:
        if not len(rows.y):
            return
        own = Sums(0.0, np.zeros(self._theta.size))
        for X, y, weights in _pieces([(rows.X, rows.y, rows.weights)], self.model.d):
            own = self._add(own, X, y, weights, self._theta)
        gone = float(len(rows.y) if rows.weights is None else rows.weights.sum())
        if not np.isfinite(own.gradient).all():
            raise UserError("the answer would not be finite: the rows hold values too large for this model")
        self._sums = Sums(self._sums.value + sign * own.value, self._sums.gradient + sign * own.gradient)
        if self._counts.size:
            self._counts = self._counts + sign * np.bincount(rows.y, minlength=self._counts.size)
        self._weight += sign * gone
        self._touched, self._error, self.tier = True, np.inf, "not answered yet"

    def refine(self, table: Table, rtol: float) -> None:
        """Newton steps by conjugate gradients on the rows that stay, until the error is at most rtol. Where they do not
        get there, `error` says so."""
        for _ in range(STEPS):
            if self._error <= rtol or not self._newton_step(table):
                break
        self.tier = "conjugate gradients"

    def _newton_step(self, table: Any) -> bool:
        """One step on the rows of table, halved until the objective falls; whether anything changed."""
        before = self._residual(self._sums.gradient, self._theta)
        curvatures, diagonal = self._curvatures(table)
        step = self._solve(table, curvatures, diagonal, before)
        value, slope, t = self._objective(self._sums.value, self._theta), float(before @ step), 1.0
        for _ in range(HALVINGS):
            theta = self._theta + t * step
            sums = self._pass(table, theta)
            after = self._residual(sums.gradient, theta)
            fallen = float(np.linalg.norm(after)) < float(np.linalg.norm(before))
            if self._objective(sums.value, theta) <= value + 1e-4 * t * slope or (fallen and t == 1.0):
                break
            t /= 2
        else:
            return False
        self._theta, self._sums = theta, sums
        left = float(after @ (after / diagonal)) / max(float(before @ (before / diagonal)), 1e-300)
        distance = CAUTION * left**0.5 * t * float(np.linalg.norm(step))
        moved = float(np.linalg.norm(theta - self._first))
        self._error = distance / moved if moved > 1e-14 * float(np.linalg.norm(theta)) else 0.0
        return True

    def _polish(self, table: Any) -> None:
        """To the optimum of the rows of table, down to rounding; UserError where that is not reached."""
        size = np.inf
        for _ in range(STEPS):
            now = float(np.abs(self._residual(self._sums.gradient, self._theta)).max()) / self._weight
            if now <= SEALED or (now <= CONVERGED and not now < 0.5 * size):
                return
            size = now
            if not self._newton_step(table):
                break
        now = float(np.abs(self._residual(self._sums.gradient, self._theta)).max()) / self._weight
        if not now <= CONVERGED:
            raise UserError(
                f"the model did not converge: the gradient norm is {now:.1e}; standardise the features or raise lam"
            )

    # Sums over rows --------------------------------------------------------------------------------------------------

    def _strength(self) -> float:
        return self.penalty[0] + self.penalty[1] * self._weight

    def _residual(self, gradient: Vector, theta: Vector) -> Vector:
        """(p,) gradient of the objective, a sum over rows."""
        return gradient + self._strength() * np.append(theta[:-1], 0.0)

    def _objective(self, value: float, theta: Vector) -> float:
        return value + 0.5 * self._strength() * float(theta[:-1] @ theta[:-1])

    def _add(self, to: Sums, X: Vector, y: NDArray[Any], weights: Vector, theta: Vector) -> Sums:
        first, second = np.empty(len(y)), np.empty(len(y))
        value = row_losses(self.loss, X @ theta[:-1] + theta[-1], y, weights, first, second)
        return Sums(to.value + value, to.gradient + np.append(first @ X, first.sum()))

    def _pass(self, table: Any, theta: Vector) -> Sums:
        sums = Sums(0.0, np.zeros(theta.size))
        for X, y, weights in _pieces(weighted(table), self.model.d):
            sums = self._add(sums, X, y, weights, theta)
        return sums

    def _curvatures(self, table: Any) -> tuple[list[Vector], Vector]:
        """(second derivatives of the rows at theta, block by block; diagonal (p,) of the objective's Hessian)."""
        found, diagonal = [], np.append(np.full(self.model.d, self._strength()), 0.0)
        for X, y, weights in _pieces(weighted(table), self.model.d):
            first, second = np.empty(len(y)), np.empty(len(y))
            row_losses(self.loss, X @ self._theta[:-1] + self._theta[-1], y, weights, first, second)
            found.append(second)
            diagonal += np.append(np.einsum("i,ij,ij->j", second, X, X), second.sum())
        return found, np.maximum(diagonal, 1e-300)

    def _solve(self, table: Any, curvatures: list[Vector], diagonal: Vector, residual: Vector) -> Vector:
        """(p,) the Newton step -H^-1 residual, by conjugate gradients with the diagonal as preconditioner."""
        x, rest = np.zeros(residual.size), -residual
        z = rest / diagonal
        along, size = z, float(rest @ z)
        goal = RESIDUAL_SHARE**2 * size
        for _ in range(PRODUCTS):
            if not size > goal:
                break
            ahead = self._strength() * np.append(along[:-1], 0.0)
            for (X, _, _), w in zip(_pieces(weighted(table), self.model.d), curvatures, strict=True):
                u = w * (X @ along[:-1] + along[-1])
                ahead += np.append(u @ X, u.sum())
            length = float(along @ ahead)
            if not length > 0:
                break
            x, rest = x + size / length * along, rest - size / length * ahead
            z = rest / diagonal
            size, before = float(rest @ z), size
            along = z + size / before * along
        return x

    # Seal and keep ---------------------------------------------------------------------------------------------------

    def refresh(
        self, table: Table | None, forgotten: Ids, report: Report, workers: Workers | None = None
    ) -> dict[str, Any]:
        """Seal: everything that is kept becomes a function of the rows that stay, down to rounding."""
        if self.due is None:
            return {"sealed": False, "why": None}
        if table is None:
            raise UserError(f"{self.due}, and the rows are not kept (store_rows=False): fit again")
        report("the optimum of the rows that stay", 0, 1)
        made, why = Wide.sealed(self.model, self.penalty, table, self._theta), self.due
        self.__dict__ = made.__dict__
        return {"sealed": True, "why": why}

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = {"penalty": list(self.penalty), "weight": self._weight, "tier": self.tier}
        if self._touched:
            found["error"] = self._error if np.isfinite(self._error) else None
        return found

    def arrays(self) -> Arrays:
        found: Arrays = {"wide.theta": self._theta, "wide.gradient": self._sums.gradient, "wide.counts": self._counts}
        found["wide.value"] = np.array([self._sums.value])
        return found | ({"wide.first": self._first} if self._touched else {})

    @classmethod
    def from_arrays(cls, model: Any, facts: dict[str, Any], arrays: Arrays) -> Wide:
        p, opened = model.size, "error" in facts
        shapes = {"theta": (p,), "gradient": (p,), "value": (1,)} | ({"first": (p,)} if opened else {})
        found = {name: base.checked(f"wide.{name}", arrays, shape) for name, shape in shapes.items()}
        counts = base.checked_counts(
            "wide.counts", arrays, model.n_classes if model.loss_name == NAMES[LOGISTIC] else 0
        )
        penalty, weight = (float(facts["penalty"][0]), float(facts["penalty"][1])), float(facts["weight"])
        if not (np.isfinite([*penalty, weight]).all() and min(penalty) >= 0 and weight > 0):
            raise ValueError("the weight of the rows")
        sums = Sums(float(found["value"][0]), found["gradient"])
        made = cls(model, penalty, counts, weight, found["theta"], sums)
        if opened:
            made._touched, made._first, made.tier = True, found["first"], str(facts["tier"])
            made._error = np.inf if facts["error"] is None else float(facts["error"])
        return made


def _pieces(blocks: Any, d: int) -> Iterator[tuple[Vector, NDArray[Any], Vector]]:
    """(X (k, d) float64, y (k,), weights (k,) or none) of blocks of rows, few enough at a time to convert them."""
    k = max(1, BLOCK_NUMBERS // d)
    for X, y, weights in blocks:
        for start in range(0, len(X), k):
            part = slice(start, start + k)
            yield np.asarray(X[part], np.float64), y[part], NO_WEIGHTS if weights is None else weights[part]
