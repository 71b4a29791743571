"""Ridge regression of many targets at once, its strength chosen by exact leave-one-out.

Pairs come as features Z (m, q) and targets T (m, p); the map W (p, q) minimises

    ||T - Z W'||^2 + strength * ||W diag(scale)||^2,    scale = root mean square of Z's columns,

so that a rarely active feature is shrunk no more than a common one. Strengths are multiples of the mean eigenvalue of
the scaled Z'Z; an infinite one (W = 0) is always among the candidates. All strengths share one eigendecomposition, of
Z'Z where there are fewer features than pairs, else of ZZ'.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve, eigh

from l2ul_fast.errors import DataError

Matrix = NDArray[np.float64]
#: Strengths tried, relative to the mean eigenvalue of the scaled Gram matrix.
GRID = 10.0 ** np.arange(-9.0, 3.5, 0.5)
#: A pair whose leverage is nearer to 1 than this alone supports a direction: its error counts in full.
LONELY = 1e-12


class RidgeHead:
    """A fitted map, from z to W z.

    Attributes
    ----------
    W : (p, q) float64.
    strength : of the penalty, absolute; inf when W is zero: nothing was learned.
    left_out : (m, p) errors of predicting each target by the map that was fitted without it.
    loo : root mean square leave-one-out errors "nothing" (of W = 0) and "fitted", "rho" (the median over pairs of the
        relative error), "strength_relative", "m".
    """

    def __init__(self, W: Matrix, strength: float, left_out: Matrix, loo: dict[str, Any]) -> None:
        self.W, self.strength, self.left_out, self.loo = W, strength, left_out, loo

    @classmethod
    def fit(cls, Z: ArrayLike, T: ArrayLike) -> RidgeHead:
        """Fit on the pairs Z (m, q), T (m, p)."""
        features, targets = _matrix(Z, "Z"), _matrix(T, "T")
        m, q = features.shape
        if m != len(targets) or not m:
            raise DataError(f"Z and T must have the same number of rows, at least 1, got {m} and {len(targets)}")
        scale = np.sqrt(np.mean(features**2, axis=0))
        scale[scale == 0] = 1.0
        scaled = features / scale
        gram = scaled.T @ scaled if q <= m else scaled @ scaled.T
        values, vectors = eigh(gram, driver="evd")
        values = np.maximum(values, 0)
        # A (m, k) with A A' = scaled scaled': the same regression in coordinates whose Gram matrix is diagonal
        A = scaled @ vectors if q <= m else vectors * np.sqrt(values)
        B = A.T @ targets
        mean, size = float(values.mean()), np.einsum("ij,ij->i", targets, targets)
        nothing = float(np.sqrt(size.mean()))
        loo = {"nothing": nothing, "fitted": nothing, "rho": 1.0, "strength_relative": np.inf, "m": m}
        zero = cls(np.zeros((targets.shape[1], q)), np.inf, targets, loo)
        if m < 2 or mean == 0:
            return zero
        squares, left = A**2, np.empty_like(targets)

        def left_out(k: int) -> Matrix:
            """(m, p) at GRID[k]; good until the next call."""
            shrink = 1 / (values + GRID[k] * mean)
            np.matmul(A, shrink[:, None] * B, out=left)
            np.subtract(targets, left, out=left)
            return np.divide(left, np.maximum(1 - squares @ shrink, LONELY)[:, None], out=left)

        errors = [float(np.einsum("ij,ij->", found, found)) / m for found in map(left_out, range(len(GRID)))]
        best = int(np.argmin(errors))
        if not errors[best] < size.mean():
            return zero
        found, strength = left_out(best), float(GRID[best] * mean)
        # a pair that did not move has no relative error of its own
        relative = np.sqrt(np.einsum("ij,ij->i", found, found) / np.where(size > 0, size, size.max()))
        loo |= {"fitted": float(np.sqrt(errors[best])), "rho": float(np.median(relative))}
        loo["strength_relative"] = float(GRID[best])
        gram[np.diag_indices(len(gram))] += strength
        kept = cho_factor(gram, overwrite_a=True)
        W = cho_solve(kept, scaled.T @ targets) if q <= m else scaled.T @ cho_solve(kept, targets)
        return cls(np.ascontiguousarray((W / scale[:, None]).T), strength, found, loo)


def _matrix(values: ArrayLike, name: str) -> Matrix:
    out = np.ascontiguousarray(values, np.float64)
    if out.ndim != 2:
        raise DataError(f"{name} must be a matrix, got {out.ndim} dimension(s)")
    if not np.isfinite(out).all():
        raise DataError(f"{name} has NaN or infinities: reject those pairs first")
    return out
