"""What moves theta at a request. Each step owns what it knows of the data and takes the forgotten rows out of it.

`total` below is r * (mean gradient of the forgotten rows at theta + penalty gradient) = sqrt(r) * z.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from time import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.unlearner.cellstate import CellState
from l2ul_fast.unlearner.store import ArrayStore, Store, held_by
from l2ul_kernels._aligned import aligned_zeros
from l2ul_kernels._forward import direct_request
from l2ul_kernels.forward import DirectForward
from l2ul_kernels.request import OTHERWISE, linear_move, linear_move_single, logistic_total
from l2ul_kernels.request_held import Held
from l2ul_kernels.request_mlp import RequestSums, mlp_move, mlp_total
from l2ul_kernels.request_symmetric import pack_symmetric, symmetric_move, unpack_symmetric

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

Vector = NDArray[np.float64]

Fetch = Callable[[NDArray[np.int64]], tuple[NDArray[Any], NDArray[np.uint8]]]

#: Rows up to which a plain loop over them beats the blocked kernel (`l2ul bench unlearn`).
FEW = 32


#: Columns of a float32 matrix that a product takes at a time.
WIDE = 64
#: Asymmetry, as a share of the largest entry, that is rounding: half of the matrix is kept then.
SYMMETRIC = 1e-6


class Step(Protocol):
    model: Any

    def request(self, u: L2UL, row: int) -> int:
        """A whole request for one row that u keeps in memory as one compiled call: claim it, write what u notes of a
        request, take it out of everything. Returns DONE, what the claim refuses, or OTHERWISE where there is no such
        call; if not DONE, nothing has changed."""

    def move_stored(self, store: Store, ids: NDArray[np.int64], theta: Vector, n: int) -> Vector:
        """theta after the rows `ids` of `store` have left a model of n rows."""

    def move(self, X: NDArray[Any], y: NDArray[np.uint8], ids: NDArray[np.int64], theta: Vector, n: int) -> Vector:
        """The same for rows that were fetched: X (r, d), y (r,)."""

    @property
    def total(self) -> Vector | None:
        """That of the latest request, or None."""

    def inverse_hessian(self, n: int) -> NDArray[np.float64] | None:
        """Of the mean loss over the n rows that stay, or None where it is not known."""

    def copy(self) -> Step:
        """One to try a request on: it changes nothing here."""


class LinearStep:
    """theta + W z: W is a cached inverse Hessian, a learned matrix, or their sum."""

    def __init__(self, model: Any, W: NDArray[Any]) -> None:
        self.model = model
        p = model.size
        self.W = W
        wide = -(-p // WIDE) * WIDE
        self._total, self._single, self._single_sums = (
            np.zeros(p),
            np.zeros(wide, np.float32),
            np.zeros(wide, np.float32),
        )
        self._binary_lr = model.name == "lr" and model.n_classes == 2
        if model.name == "mlp":
            o = 1 if model.n_classes == 2 else model.n_classes
            self._sizes = (model.h, o, int(model.activation == "relu"))
            self._memory, self._zero = np.empty(2 * (model.h + o)), np.zeros(p)
            self._sums = RequestSums(model.d, model.h, model.n_classes, model.activation)

    @property
    def W(self) -> NDArray[Any]:
        """(p, p) float32 or float64."""
        p = self.model.size
        return unpack_symmetric(self._kept, p) if self._kept.ndim == 1 else self._kept[:, :p]

    @W.setter
    def W(self, W: NDArray[Any]) -> None:
        p, single = len(W), W.dtype == np.float32
        if single and np.abs(W - W.T).max() <= SYMMETRIC * np.abs(W).max():
            self._kept = pack_symmetric(W)
            return
        wide = -(-p // WIDE) * WIDE if single else p  # rows of float32 in whole vectors
        self._kept = aligned_zeros((p, wide), W.dtype)
        self._kept[:, :p] = W

    def _penalty(self) -> tuple[Vector, float]:
        """The MLP's: where it pulls to, and how strongly."""
        return (self._zero if self.model.anchor is None else self.model.anchor), self.model.strength

    def sum_rows(self, X: NDArray[Any], y: NDArray[np.uint8], at: NDArray[np.int64], theta: Vector) -> None:
        """Put r * (mean gradient + penalty gradient) of the rows X[at] into `total`."""
        model, r = self.model, at.size
        if model.name == "mlp" and r <= FEW:
            mlp_total(X, y, at, theta, *self._penalty(), *self._sizes, self._memory, self._total)
        elif model.name == "mlp" and r <= RequestSums.MOST:
            self._total[:] = self._sums(X, y, at, theta) + r * model.penalty_gradient(theta)
        elif self._binary_lr:
            logistic_total(X[at], y[at], theta, model.lam, self._total)
        else:
            self._total[:] = r * (model.data_gradient(theta, X[at], y[at]) + model.penalty_gradient(theta))

    def apply(self, theta: Vector, left: int) -> Vector:
        """theta + W total / left."""
        out = np.empty(theta.size)
        if self._kept.ndim == 1:
            symmetric_move(self._kept, self._total, theta, left, self._single, self._single_sums, out)
        elif self._kept.dtype == np.float32:
            linear_move_single(self._kept, self._total, theta, left, self._single, out)
        else:
            linear_move(self._kept, self._total, theta, left, out)
        return out

    def request(self, u: L2UL, row: int) -> int:
        return OTHERWISE  # the matrix takes longer than the calls around it

    def move_stored(self, store: Store, ids: NDArray[np.int64], theta: Vector, n: int) -> Vector:
        if isinstance(store, ArrayStore):  # read where they lie
            return self._move(store.X, store.y, ids, ids, theta, n)
        return self.move(*store.fetch(ids), ids, theta, n)

    def move(self, X: NDArray[Any], y: NDArray[np.uint8], ids: NDArray[np.int64], theta: Vector, n: int) -> Vector:
        return self._move(X, y, np.arange(len(X)), ids, theta, n)

    def _move(
        self, X: NDArray[Any], y: NDArray[np.uint8], at: NDArray[np.int64], ids: NDArray[np.int64], theta: Vector,
        n: int,
    ) -> Vector:  # fmt: skip
        """theta without the rows X[at], y[at], which are rows `ids` of D."""
        left = n - at.size
        if at.size <= FEW and self.model.name == "mlp" and self._kept.dtype == np.float32:
            out = np.empty(theta.size)
            mlp_move(
                X, y, at, theta, *self._penalty(), *self._sizes, left, self._kept, self._memory, self._total,
                self._single, self._single_sums, out,
            )  # fmt: skip
            return out
        self.sum_rows(X, y, at, theta)
        return self.apply(theta, left)

    @property
    def total(self) -> Vector:
        return self._total

    def inverse_hessian(self, n: int) -> NDArray[np.float64]:
        return np.asarray(self.W, np.float64)

    def copy(self) -> LinearStep:
        other = copy.copy(self)
        other._total = self._total.copy()
        return other


class AnchoredStep(LinearStep):
    """LinearStep of an anchored MLP. A request that holds anchor rows first moves the anchor (milliseconds, not micro).

    anchor_rows (k,) are the anchor's row numbers; fetch reads rows by number.
    """

    def __init__(self, model: Any, W: NDArray[Any], anchor_rows: NDArray[np.int64], size: int, fetch: Fetch) -> None:
        super().__init__(model, W)
        self.anchor_rows, self.fetch = anchor_rows, fetch
        self._is_anchor = np.zeros(size, bool)
        self._is_anchor[anchor_rows] = True

    def _move(
        self, X: NDArray[Any], y: NDArray[np.uint8], at: NDArray[np.int64], ids: NDArray[np.int64], theta: Vector,
        n: int,
    ) -> Vector:  # fmt: skip
        if not (self._is_anchor[ids[0]] if ids.size == 1 else self._is_anchor[ids].any()):
            return super()._move(X, y, at, ids, theta, n)
        old, mu = self.model.anchor, self.model.mu
        left = np.setdiff1d(self.anchor_rows, ids)
        if left.size < 2:
            raise UserError("the request takes out all anchor rows: fit again")
        plain = self.model.with_anchor(None, None)
        found = plain.fit(self.fetch(left), start=old, tol=1e-8)
        if not found.converged:
            raise UserError("the anchor cannot be trained again without these rows: fit again")
        r = at.size
        # the penalty pulls to the new anchor afterwards: n - r rows' worth of mu (new - old) more
        self.sum_rows(X, y, at, theta)
        self._total += (n - r) * mu * (found.theta - old)
        out = self.apply(theta, n - r)
        self.model = self.model.with_anchor(found.theta, mu)
        self._is_anchor = self._is_anchor.copy()  # copies of this step may share it
        self._is_anchor[ids] = False
        self.anchor_rows = left
        return out


def wipe(step: Step) -> None:
    """Overwrite what the latest request left in scratch memory: its gradient gives a single row away."""
    for name in ("_work", "_total", "_single", "_single_sums", "_memory"):
        if hasattr(step, name):
            getattr(step, name)[:] = 0
    for name in ("_sums", "_forward"):
        if hasattr(step, name):
            getattr(step, name).wipe()


def let_go(step: Step) -> None:
    """Do not keep the notes of requests alive any longer."""
    if hasattr(step, "_held"):
        step._held = None


class DirectStep:
    """The paper's head: theta' = N_U(mu_D, mu_f, theta), from the stored cells."""

    total = None

    def __init__(
        self, model: Any, weights: Mapping[str, NDArray[np.float32]], cells: CellState, theta: Vector, n: int
    ) -> None:
        self.model, self.weights = model, dict(weights)
        self._cells = cells
        self._forward = DirectForward(weights, cells.t, cells.psi)
        self._held: Held | None = None
        self.rebase(theta, n)
        self._forward.compile(cells.packed)

    def rebase(self, theta: Vector, n: int) -> None:
        """Take mu_D from the counts anew."""
        self._forward.set_base(self._cells.counts.sum(axis=0), n, theta)

    def peek(self, ids: NDArray[np.int64]) -> Vector:
        """theta' of a request, without taking its rows out."""
        return self._forward(self._cells.packed, ids, np.empty(self._forward.p))

    def request(self, u: L2UL, row: int) -> int:
        held = self._held = held_by(u, self._forward.own, self._held)
        if held is None:
            return OTHERWISE
        return direct_request(held.table, row, u.notes.used, u.n, time())

    def move_stored(self, store: Store, ids: NDArray[np.int64], theta: Vector, n: int) -> Vector:
        return self._forward.move(self._cells.packed, ids, n - ids.size, np.empty(self._forward.p))

    def move(self, X: NDArray[Any], y: NDArray[np.uint8], ids: NDArray[np.int64], theta: Vector, n: int) -> Vector:
        return self._forward.move(self._cells.packed, ids, n - ids.size, np.empty(self._forward.p))

    def inverse_hessian(self, n: int) -> None:
        return None

    def copy(self) -> DirectStep:
        other = copy.copy(self)
        other._forward, other._held = copy.deepcopy(self._forward), None
        return other
