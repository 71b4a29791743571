"""The Newton step of binary logistic regression: what moves theta at a request by default."""

from __future__ import annotations

import copy
from time import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.unlearner.store import ArrayStore, Store, held_by
from l2ul_kernels.request import OTHERWISE
from l2ul_kernels.request_held import Held
from l2ul_kernels.request_newton import (
    curvature_before,
    newton_arrays,
    newton_move,
    newton_request,
    padded,
    solve_move,
)

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

Vector = NDArray[np.float64]

#: Relative residual of the linear system above which the kept inverse is made anew.
STALE = 1e-6
#: The same with a fresh inverse: above it the system is singular to working precision.
SINGULAR = 1e-4


class NewtonStep:
    """Binary logistic regression: one exact Newton step on the rows that stay, plus a learned correction (or none).

    curvature (p, p) is the sum of the rows' Hessians at `anchor`; rows leave it at the same point, so it is at any time
    exactly the curvature of the rows that stay, and no trace of the others is in it.
    """

    def __init__(
        self, model: Any, anchor: Vector, curvature: NDArray[np.float64], n: int, correction: NDArray[np.float64] | None
    ) -> None:
        self.model, self.lam = model, model.lam
        self._own = *newton_arrays(anchor.size), np.array([model.lam, STALE])
        self._held: Held | None = None
        self.anchor[:], self.curvature[:] = anchor, curvature
        if correction is not None:
            self.correction = correction
        self._invert(n)

    @property
    def _state(self) -> NDArray[np.float64]:
        return self._own[0]

    @property
    def _work(self) -> NDArray[np.float64]:
        return self._own[1]

    def _matrix(self, k: int) -> NDArray[np.float64]:
        """Matrix k of the state, (p, p); (0, p) if it is not there."""
        p = self.model.size
        wide = padded(p)
        return self._state[wide + k * wide * wide :][: wide * wide].reshape(-1, wide)[:p, :p]

    @property
    def anchor(self) -> Vector:
        return self._state[: self.model.size]

    @property
    def curvature(self) -> NDArray[np.float64]:
        return self._matrix(0)

    @property
    def inverse(self) -> NDArray[np.float64]:
        """Of curvature and penalty, as they were some requests ago."""
        return self._matrix(1)

    @property
    def correction(self) -> NDArray[np.float64]:
        """(p, p), or (0, 0) for none."""
        own = self._matrix(2)
        return own.T if own.size else np.zeros((0, 0))

    @correction.setter
    def correction(self, correction: NDArray[np.float64]) -> None:
        state, _ = newton_arrays(len(correction), corrected=True)
        known = min(state.size, self._state.size)
        state[:known] = self._state[:known]
        self._own = state, self._work, self._own[2]
        self._matrix(2)[:] = correction.T

    def _invert(self, n: int) -> None:
        system = self.curvature.copy()
        inner = np.arange(len(system) - 1)
        system[inner, inner] += n * self.lam
        try:
            self.inverse[:] = np.linalg.inv(system)
        except np.linalg.LinAlgError:
            raise UserError("the rows that would stay do not determine the model: retrain instead") from None

    def request(self, u: L2UL, row: int) -> int:
        held = self._held = held_by(u, self._own, self._held)
        if held is None:
            return OTHERWISE
        return newton_request(held.table, row, u.notes.used, u.n, time())

    def move_stored(self, store: Store, ids: NDArray[np.int64], theta: Vector, n: int) -> Vector:
        if isinstance(store, ArrayStore):  # read where they lie
            return self._move(store.X, store.y, ids, theta, n)
        return self.move(*store.fetch(ids), ids, theta, n)

    def move(self, X: NDArray[Any], y: NDArray[np.uint8], ids: NDArray[np.int64], theta: Vector, n: int) -> Vector:
        return self._move(X, y, np.arange(len(X)), theta, n)

    def _move(self, X: NDArray[Any], y: NDArray[np.uint8], at: NDArray[np.int64], theta: Vector, n: int) -> Vector:
        """theta without the rows X[at]."""
        out = np.empty(theta.size)
        residual = newton_move(X, y, at, theta, self._state, self._work, n, self.lam, out)
        if not residual < STALE:
            left, inverse = n - at.size, self.inverse.copy()
            try:
                self._invert(left)
                residual = solve_move(theta, self._state, self._work, left, self.lam, out)
                if not residual < SINGULAR:
                    raise UserError("the rows that would stay do not determine the model: retrain instead")
            except BaseException:
                self.curvature[:], self.inverse[:] = curvature_before(self._work, theta.size), inverse
                raise
        return out

    @property
    def total(self) -> Vector:
        return self._work[: self.model.size]

    def inverse_hessian(self, n: int) -> NDArray[np.float64]:
        return n * self.inverse

    def copy(self) -> NewtonStep:
        other = copy.copy(self)
        other._own, other._held = (self._state.copy(), self._work.copy(), self._own[2]), None
        return other
