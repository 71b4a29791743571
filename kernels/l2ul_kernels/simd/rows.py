"""The caller's rows as kernels see them: X by its address, so read-only and mapped arrays need no code of their own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from l2ul_kernels.arrays import Array, Float, Ints
from l2ul_kernels.codegen.pointers import address


class Rows(NamedTuple):
    """X (n, d) contiguous at `address`, float32 or float64 as `itemsize` says, with its labels."""

    address: int
    itemsize: int
    d: int
    y: Array  # (n,)
    weights: Float  # (n,), or (0,): all 1
    ids: Ints  # (k,) the rows to visit, or (0,): all of them as they lie


def rows_of(X: Array, y: Array, weights: Float | None = None, ids: Ints | None = None) -> Rows:
    """`Rows` of a contiguous X; the caller keeps X alive."""
    weights = np.empty(0) if weights is None else weights
    return Rows(address(X), X.itemsize, X.shape[1], y, weights, np.empty(0, np.int64) if ids is None else ids)
