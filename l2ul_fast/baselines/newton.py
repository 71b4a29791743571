"""One Newton step on the retained rows, from the curvature kept at training time. Its cost does not depend on n."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from l2ul_fast.baselines.base import Baseline, Ids, Outcome, Vector, free_directions, hessian_of, penalty_strength
from l2ul_fast.checks import NotNegative, OneOf, checked
from l2ul_fast.errors import UserError
from l2ul_fast.protocols import Style
from l2ul_kernels.codegen.jit import CACHE, FAST, ensure_compiled

Matrix = NDArray[np.float64]
SOLVERS = ("auto", "compiled", "direct")

#: Relative residual at which the compiled solver stops, and above which its kept inverse is of no use.
EXACT, STALE = 1e-13, 1e-9
#: Corrections of the compiled solution at most.
REFINEMENTS = 6
#: Callees stand in this file, so numba's own cache stamp will do.
compiled = numba.njit(nogil=True, cache=CACHE, fastmath=set(FAST), error_model="numpy")
#: The penalty in the kept inverse is that of at most 1 / BEHIND more rows than there are.
BEHIND = 50


class Newton(Baseline):
    """theta' = theta + H_R^-1 sum_f (gradient of row f + penalty gradient), all at theta.

    H_R = H_D - sum_f H_f - r * penalty is the Hessian of the retained rows' summed objective; H_D is kept, the
    forgotten rows' part is taken off. Exact for a quadratic loss. Solvers: "compiled" (binary logistic regression;
    one row by a rank-one downdate of the kept inverse, refined with H_R itself, in one compiled call; several rows
    as "direct"), "direct" (factors H_R anew, any model). A Hessian that is not positive definite is damped, and the
    facts say by how much.
    After a committed request the kept curvature stays the one at the theta it was computed at, less the rows gone.
    """

    name = "newton"
    style = Style("Newton step", "yellow", "p")
    table_order = 60

    @checked
    def __init__(self, solver: Annotated[str, OneOf(SOLVERS)] = "auto", tol: NotNegative = 1e-10) -> None:
        self.solver, self.tol = solver, tol

    def _prepare(self) -> None:
        model = self.model
        binary = model.name == "lr" and model.n_classes == 2 and not hasattr(model, "kind")
        if self.solver == "compiled" and not binary:
            raise UserError('the solver "compiled" is for binary logistic regression: use "direct"')
        self._how = ("compiled" if binary else "direct") if self.solver == "auto" else self.solver
        self.theta = model.fit(self.table, tol=self.tol).theta
        self.anchor = self.theta.copy()  # where the curvature is taken
        self.curvature = hessian_of(model, self.theta, self.table)
        self._strength, self._gauge = penalty_strength(model), free_directions(model)
        self.inverse = np.zeros((0, 0))
        self._invert()
        if self._how == "compiled":
            _compile(self.table.take(self.table.ids()[:1])[0].dtype)

    def _invert(self) -> None:
        """The inverse for the present curvature and n, where the solver needs it."""
        if self._how == "compiled":
            kept, _ = factor(self.curvature + self.n * np.diag(self._strength))
            self.inverse, self._inverse_n = cho_solve(kept, np.eye(len(self.curvature))), self.n

    def _outcome(self, ids: Ids) -> Outcome:
        if self._how == "compiled" and ids.size == 1:
            X, y = self.table.take(ids)
            out = np.empty(self.theta.size)
            if step_without_row(X[0], int(y[0]), self.theta, self._kept(), self.model.lam, self.n, out) <= STALE:
                return Outcome(out, {"damping": 0.0}, {})
        total, left = self._total(ids, self.theta), self.n - len(ids)
        H = self._without(ids) + left * np.diag(self._strength)
        kept, damping = factor(H if self._gauge is None else H + left * self._gauge)
        return Outcome(self.theta + cho_solve(kept, total), {"damping": damping}, {})

    def _committed(self, ids: Ids) -> None:
        if self._how == "compiled" and ids.size == 1:
            X, _ = self.table.take(ids)
            if drop_row(X[0], self._kept()) and (self._inverse_n - self.n) * BEHIND <= self.n:
                return
        else:
            self.curvature = self._without(ids)
        self._invert()

    def _kept(self) -> Kept:
        return Kept(self.anchor, self.curvature, self.inverse)

    def _without(self, ids: Ids) -> Matrix:
        """The kept curvature less that of these rows."""
        X, y = self.table.take(ids)
        of_rows = len(ids) * (self.model.hessian(self.anchor, X, y) - np.diag(self._strength))
        return np.asarray(self.curvature - of_rows)

    def _arrays(self) -> list[NDArray[Any]]:
        return [self.theta, self.anchor, self.curvature, self.inverse]


def factor(H: Matrix) -> tuple[Any, float]:
    """(Cholesky factor of H + damping I, damping): 0 if H is positive definite, else as little as makes it so."""
    damping, scale = 0.0, 1e-3 * max(float(np.trace(H)) / len(H), 1e-300)
    for _ in range(30):
        try:
            return cho_factor(H + damping * np.eye(len(H))), damping
        except np.linalg.LinAlgError:
            damping = max(2 * damping, scale)
    raise UserError("the Hessian of the retained rows is not positive definite: retrain instead")


# One row, compiled ---------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """curvature (p, p): sum of the rows' Hessians at `anchor` (p,), without penalty; inverse (p, p): about that of
    curvature and penalty."""

    anchor: Vector
    curvature: Matrix
    inverse: Matrix


@compiled
def _times(A, v, out):  # type: ignore[no-untyped-def]
    """out (p,) = A v for A (p, p)."""
    for j in range(v.size):
        total = 0.0
        for k in range(v.size):
            total += A[j, k] * v[k]
        out[j] = total


@compiled
def _downdated(inverse, u, by, v, out):  # type: ignore[no-untyped-def]
    """out (p,) = (inverse + by u u') v: the Sherman-Morrison formula."""
    _times(inverse, v, out)
    along = 0.0
    for k in range(v.size):
        along += u[k] * v[k]
    for k in range(v.size):
        out[k] += by * along * u[k]


@compiled
def _row(x, theta, row):  # type: ignore[no-untyped-def]
    """The probability of class 1; row (p,) = [x, 1]."""
    d = x.size
    z, row[d] = theta[d], 1.0
    for k in range(d):
        row[k] = x[k]
        z += theta[k] * row[k]
    return 1.0 / (1.0 + math.exp(-z))


@compiled
def step_without_row(x, label, theta, kept, lam, n, out):  # type: ignore[no-untyped-def]
    """out (p,): theta after one Newton step without the row x (d,), label; returns the relative residual of the step.

    The system is (curvature - w x x' + (n - 1) lam P) step = gradient + lam P theta, of n rows.
    """
    anchor, curvature, inverse = kept
    d = x.size
    p = d + 1
    work = np.empty((5, p))
    row, total, u, rest, more = work[0], work[1], work[2], work[3], work[4]
    slope = _row(x, theta, row) - label
    s = _row(x, anchor, row)
    w = s * (1.0 - s)
    largest = 0.0
    for k in range(p):
        total[k] = slope * row[k]
        if k < d:
            total[k] += lam * theta[k]
        largest = max(largest, abs(total[k]))
    _times(inverse, row, u)
    reach = 0.0
    for k in range(p):
        reach += row[k] * u[k]
    by = w / (1.0 - w * reach)
    _downdated(inverse, u, by, total, out)
    residual = np.inf
    for _ in range(REFINEMENTS):
        _times(curvature, out, rest)
        along = 0.0
        for k in range(p):
            along += row[k] * out[k]
        worst = 0.0
        for k in range(p):
            rest[k] = total[k] - rest[k] + w * along * row[k]
            if k < d:
                rest[k] -= (n - 1) * lam * out[k]
            worst = max(worst, abs(rest[k]))
        residual = worst / largest if largest > 0.0 else 0.0
        if not residual > EXACT:
            break
        _downdated(inverse, u, by, rest, more)
        for k in range(p):
            out[k] += more[k]
    for k in range(p):
        out[k] += theta[k]
    return residual


@compiled
def drop_row(x, kept):  # type: ignore[no-untyped-def]
    """Take the row x (d,) out of curvature and inverse; False, and only curvature changed, if it cannot leave the
    inverse."""
    anchor, curvature, inverse = kept
    p = x.size + 1
    row, u = np.empty(p), np.empty(p)
    s = _row(x, anchor, row)
    w = s * (1.0 - s)
    _times(inverse, row, u)
    reach = 0.0
    for k in range(p):
        reach += row[k] * u[k]
    for j in range(p):
        for k in range(p):
            curvature[j, k] -= w * row[j] * row[k]
    if not 1.0 - w * reach > 1e-3:
        return False
    by = w / (1.0 - w * reach)
    for j in range(p):
        for k in range(p):
            inverse[j, k] += by * u[j] * u[k]
    return True


def _compile(dtype: np.dtype[Any]) -> None:
    """Compile (or load) both functions for rows of this type, one process at a time."""
    x, p, kept = np.zeros(1, dtype), np.zeros(2), Kept(np.zeros(2), np.eye(2), np.eye(2))
    ensure_compiled(("newton", dtype), lambda: (step_without_row(x, 0, p, kept, 1.0, 2, p.copy()), drop_row(x, kept)))
