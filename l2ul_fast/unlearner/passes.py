"""Passes over rows that end in integers or maxima: what an expansion needs to know of the data.

Such results do not depend on the order in which blocks of rows are added up, so the same passes run in this process or,
shard by shard, on the workers of a Dask cluster (`l2ul_fast.distributed.passes`), and give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.models.fit import weighted
from l2ul_fast.tables import Table
from l2ul_kernels.codegen.jit import ensure_compiled
from l2ul_kernels.linear import integer_sums as ints
from l2ul_kernels.linear.integer_sums import Terms

Vector = NDArray[np.float64]
Block = tuple[NDArray[Any], NDArray[Any], Vector | None]

NO_WEIGHTS = np.empty(0)


class Columns(NamedTuple):
    """largest (d,): of the columns' magnitudes; rows: how many have a positive weight; heaviest: the largest weight."""

    largest: Vector
    rows: int
    heaviest: float


class Passes(Protocol):
    """Each method is one pass over the rows."""

    def columns(self) -> Columns: ...

    def moments(self, inverse_scale: Vector, scale: float) -> NDArray[np.int64]:
        """(p,) sums of round(scale u^2)."""

    def derivatives(self, loss: int, anchor: Vector) -> Vector:
        """(3,) largest |e|, |w|, |c| at the anchor, times the rows' weights."""

    def sums(self, terms: Terms) -> NDArray[np.int64]:
        """The integer sums of all rows."""


class LocalPasses:
    """Passes over a table in this process, on its threads."""

    def __init__(self, table: Table) -> None:
        self.table, self.d = table, table.d

    def columns(self) -> Columns:
        return columns_of(weighted(self.table), self.d)

    def moments(self, inverse_scale: Vector, scale: float) -> NDArray[np.int64]:
        return moments_of(weighted(self.table), inverse_scale, scale)

    def derivatives(self, loss: int, anchor: Vector) -> Vector:
        return derivatives_of(weighted(self.table), loss, anchor)

    def sums(self, terms: Terms) -> NDArray[np.int64]:
        return sums_of(weighted(self.table), terms)


def columns_of(blocks: Iterable[Block], d: int) -> Columns:
    largest, rows, heaviest = np.zeros(d), 0, 0.0
    for X, _, weights in blocks:
        w = NO_WEIGHTS if weights is None else weights
        ensure_compiled(("extremes", X.dtype), lambda X=X, w=w: ints.column_extremes(X[:0], w[:0], largest))  # type: ignore[misc]
        ints.column_extremes(X, w, largest)
        rows += len(X) if weights is None else int((weights > 0).sum())
        heaviest = max(heaviest, 1.0 if weights is None else float(weights.max(initial=0.0)))
    return Columns(largest, rows, heaviest)


def moments_of(blocks: Iterable[Block], inverse_scale: Vector, scale: float) -> NDArray[np.int64]:
    out = np.zeros(inverse_scale.size, np.int64)
    for X, _, weights in blocks:
        ints.add_moments(X, NO_WEIGHTS if weights is None else weights, inverse_scale, scale, out)
    return out


def derivatives_of(blocks: Iterable[Block], loss: int, anchor: Vector) -> Vector:
    largest = np.zeros(3)
    for X, y, weights in blocks:
        ints.derivative_extremes(X, y, NO_WEIGHTS if weights is None else weights, loss, anchor, largest)
    return largest


def sums_of(blocks: Iterable[Block], terms: Terms) -> NDArray[np.int64]:
    out = np.zeros(ints.sums_size(terms.anchor.size, terms.classes, terms.order), np.int64)
    for X, y, weights in blocks:
        ints.add_all_rows(X, y, weights, 1, terms, out)
    return out
