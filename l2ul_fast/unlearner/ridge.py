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
    """A fitted map. `predict(z)` is W z.

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
        Z, T = _matrix(Z, "Z"), _matrix(T, "T")
        if len(Z) != len(T) or not len(Z):
            raise DataError(f"Z and T must have the same number of rows, at least 1, got {len(Z)} and {len(T)}")
        scale = np.sqrt(np.mean(Z**2, axis=0))
        scale[scale == 0] = 1.0
        Z = Z / scale
        m, q = Z.shape
        # A (m, k) A' = Z Z': the same regression in coordinates in which its Gram matrix is diagonal
        if q <= m:
            values, vectors = eigh(Z.T @ Z, driver="evd")
            A = Z @ vectors
        else:
            values, vectors = eigh(Z @ Z.T, driver="evd")
            A = vectors * np.sqrt(np.maximum(values, 0))
        values, B = np.maximum(values, 0), A.T @ T
        mean, size = float(values.mean()), np.einsum("ij,ij->i", T, T)
        loo = {"nothing": float(np.sqrt(size.mean())), "fitted": float(np.sqrt(size.mean())), "rho": 1.0,
               "strength_relative": np.inf, "m": m}  # fmt: skip
        zero = cls(np.zeros((T.shape[1], q)), np.inf, T, loo)
        if m < 2 or mean == 0:
            return zero
        squares, left = A**2, np.empty_like(T)

        def left_out(k: int) -> Matrix:
            """(m, p) at GRID[k]; good until the next call."""
            shrink = 1 / (values + GRID[k] * mean)
            np.matmul(A, shrink[:, None] * B, out=left)
            np.subtract(T, left, out=left)
            return np.divide(left, np.maximum(1 - squares @ shrink, LONELY)[:, None], out=left)

        errors = [float(np.einsum("ij,ij->", found, found)) / m for found in map(left_out, range(len(GRID)))]
        best = int(np.argmin(errors))
        if not errors[best] < size.mean():
            return zero
        found = left_out(best)
        # a pair that did not move has no relative error of its own
        relative = np.sqrt(np.einsum("ij,ij->i", found, found) / np.where(size > 0, size, size.max()))
        loo |= {"fitted": float(np.sqrt(errors[best])), "rho": float(np.median(relative)),
                "strength_relative": float(GRID[best])}  # fmt: skip
        strength = float(GRID[best] * mean)
        system = Z.T @ Z if q <= m else Z @ Z.T
        system[np.diag_indices(len(system))] += strength
        kept = cho_factor(system, overwrite_a=True)
        W = cho_solve(kept, Z.T @ T) if q <= m else Z.T @ cho_solve(kept, T)
        return cls(np.ascontiguousarray((W / scale[:, None]).T), strength, found, loo)

    def predict(self, z: Matrix) -> Matrix:
        """W z for one z (q,), or for the rows of z (m, q)."""
        return z @ self.W.T


def _matrix(values: ArrayLike, name: str) -> Matrix:
    out = np.ascontiguousarray(values, np.float64)
    if out.ndim != 2:
        raise DataError(f"{name} must be a matrix, got {out.ndim} dimension(s)")
    if not np.isfinite(out).all():
        raise DataError(f"{name} has NaN or infinities: reject those pairs first")
    return out
