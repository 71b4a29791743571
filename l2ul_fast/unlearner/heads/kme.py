"""The paper's frame repaired: how well a head can do that sees forgotten rows through the cells they lie in, by class.

    theta' = theta + sqrt(r) / (n - r) W z,  z = sqrt(r) (mean over the forgotten rows of one-hot(y) x cells - D's mean)

W is ridge regression on the same training pairs as those of the head "learned", its strength chosen by leave-one-out.
Cells without the classes cannot tell in which direction to move: the sign of a row's influence depends on its label.
How near this comes to retraining is limited by what cells tell of a row, not by the regression.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import Table
from l2ul_fast.unlearner.heads.base import Arrays, Ids, Report, Rows, Vector, checked
from l2ul_fast.unlearner.heads.sealed import Kept, SealedHead
from l2ul_fast.unlearner.pairs.features import class_shifts
from l2ul_fast.unlearner.pairs.make import Pairs
from l2ul_fast.unlearner.pairs.ridge import RidgeHead
from l2ul_kernels.voronoi.subsets import count_rows

#: Rows up to which their cells' weights are added one by one; of more, cells are counted first.
FEW = 32


class Kme(SealedHead):
    """cells: the cells of all rows; W (C t psi, p) float32, a row of weights for each cell of each class; held_out: the
    relative error of pairs that it was not learned from, their median."""

    kind: ClassVar[str] = "kme"
    embeds: ClassVar[bool] = True
    instant: ClassVar[str] = "embedding"
    reveals: ClassVar[str] = "its parameters, its map and the seeds of its cells still depend on them"

    def __init__(self, kept: Kept, W: NDArray[Any], held_out: float) -> None:
        super().__init__(kept)
        self.W, self.held_out = np.ascontiguousarray(W, np.float32), held_out
        self._base = self._weigh(self.cells.counts)  # of D's own mean

    @classmethod
    def of(cls, kept: Kept, pairs: Pairs, table: Table, report: Report) -> tuple[Self, dict[str, Any]]:
        shifts = class_shifts(kept.cells, pairs, table.y)
        ridge = RidgeHead.fit(np.sqrt(pairs.n_forget)[:, None] * shifts, pairs.T)
        if np.isinf(ridge.strength):
            raise UserError("the training pairs taught nothing: raise m, s or psi")
        return cls(kept, ridge.W.T, ridge.loo["rho"]), {"head": ridge.loo}

    def forget(self, rows: Rows) -> None:
        """Take rows out that are in: their stored cells say all that is needed."""
        n, r = self.n, len(rows.X)
        leaving = self._weights_of(rows.ids, rows.y)
        theta = self._theta + (leaving - r / n * self._base) / (n - r)
        self._base = self._base - leaving
        self.cells.revert(rows.y, rows.ids)
        self._leave(rows, theta)

    def _weights_of(self, ids: Ids, y: NDArray[np.uint8]) -> Vector:
        """(p,) sum over the rows of the weights of their cells."""
        t, psi = self.cells.t, self.cells.psi
        packed = self.cells.packed[ids]
        if ids.size > FEW:
            return self._weigh(count_rows(packed, np.arange(ids.size), t, psi, y, len(self.cells.counts)))
        bits = self.cells.bits  # unpacked here: the kernel would start threads for a few bytes
        cells = np.unpackbits(packed, axis=1, bitorder="little")[:, : t * bits].reshape(-1, t, bits) @ (
            1 << np.arange(bits)
        )
        places = cells + (np.arange(t) * psi + y[:, None].astype(np.int64) * (t * psi))
        return np.asarray(self.W[places.ravel()].sum(axis=0, dtype=np.float64))

    def _weigh(self, counts: NDArray[np.int64]) -> Vector:
        """(p,) sum of the weights of these cells (C, t, psi), each as often as it is counted."""
        return np.asarray(counts.ravel().astype(np.float32) @ self.W, np.float64)

    def _estimate(self) -> float:
        return self.held_out

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"held_out": self.held_out}

    def arrays(self) -> Arrays:
        return super().arrays() | {"kme.W": self.W}

    @classmethod
    def _saved(cls, kept: Kept, facts: dict[str, Any], arrays: Arrays) -> tuple[Any, ...]:
        shape = kept.cells.counts.size, kept.model.size
        return checked("kme.W", arrays, shape, np.float32), float(facts["held_out"])
