"""Rows whose columns lie far apart in size, brought to one scale for a fit; theta stays in the caller's units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.models.fit import Float, weighted

#: Root of the mean square of a column above which hidden units would start saturated, and rows it is looked for in.
FAR, LOOKED_AT = 100.0, 256


class ScaledRows:
    """The rows less their columns' means, over their deviations; any table, read as it is."""

    def __init__(self, rows: Any, d: int) -> None:
        self._rows, self.d, n = rows, d, 0.0
        most, total, square = np.zeros(d), np.zeros(d), np.zeros(d)
        for X, _, weights in weighted(rows):
            if len(X):
                most = np.maximum(most, np.abs(X if weights is None else X[weights != 0]).max(axis=0, initial=0.0))
            n += len(X) if weights is None else float(weights.sum())
        unit = np.where(most > 0, most, 1.0)  # squares of the values themselves may overflow
        for X, _, weights in weighted(rows):
            total += _sum(X / unit, weights)
        mean = total / n
        for X, _, weights in weighted(rows):
            square += _sum((X / unit - mean) ** 2, weights)
        deviation = np.sqrt(square / n)
        self.centre = mean * unit
        self.scale = np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0) * unit

    def weighted_blocks(self) -> Iterator[tuple[Float, NDArray[Any], NDArray[np.float64] | None]]:
        for X, y, weights in weighted(self._rows):
            yield (X - self.centre) / self.scale, y, weights


def _sum(X: Float, weights: NDArray[np.float64] | None) -> Float:
    return np.asarray(X.sum(axis=0) if weights is None else X[weights != 0].T @ weights[weights != 0])


def far_apart(rows: Any) -> bool:
    """Whether the first rows in memory have a large column (files are standardised when they are read)."""
    if not isinstance(rows, tuple) and not hasattr(rows, "X"):
        return False
    X, _, weights = next(iter(weighted(rows)))
    X = X[:LOOKED_AT] if weights is None else X[:LOOKED_AT][weights[:LOOKED_AT] != 0]
    if not (np.abs(X).max(initial=0.0) > FAR and len(X)):
        return False
    return bool((np.sqrt(np.mean((np.asarray(X, np.float64) / FAR) ** 2, axis=0)) > 1).any())
