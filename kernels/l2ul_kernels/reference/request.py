"""Slow NumPy oracles of request/claims.py: the same results by other means, for tests. Arguments are never changed."""

from __future__ import annotations

import numpy as np

from l2ul_kernels.arrays import Array, Float
from l2ul_kernels.reference import unpack_cells
from l2ul_kernels.request import FOREIGN, FORGOTTEN, GONE, NOT_TRAINED, OUTSIDE, TWICE


def claim(ids: Array, gone: Array) -> tuple[int, Array]:
    """(-1 or 8 * position + reason, gone afterwards): the first row at fault decides, and then nothing changes."""
    for i, row in enumerate(ids.tolist()):
        if not 0 <= row < gone.size:
            return 8 * i + OUTSIDE, gone.copy()
        if row in ids[:i].tolist():
            return 8 * i + TWICE, gone.copy()
        if gone[row] in (FORGOTTEN, FOREIGN):
            return 8 * i + (GONE if gone[row] == FORGOTTEN else NOT_TRAINED), gone.copy()
    after = gone.copy()
    after[ids] = FORGOTTEN
    return -1, after


def gather_mapped(
    memory: bytes, offsets: Array, chunk_rows: int, mean: Float, scale_inverse: Float, ids: Array
) -> Array:
    """X (r, d) float32: rows out of the bytes of a file, standardised in float64."""
    d = mean.size
    starts = [int(offsets[row // chunk_rows]) + int(row % chunk_rows) * 4 * d for row in ids]
    raw = np.array([np.frombuffer(memory[s : s + 4 * d], "<f4") for s in starts], np.float64).reshape(len(ids), d)
    return ((raw - mean) * scale_inverse).astype(np.float32)


def forget_cells(packed: Array, ids: Array, y: Array, psi: int, counts: Array) -> tuple[Array, Array]:
    """(packed, counts) without the rows ids of classes y; counts (C, t, psi)."""
    packed, counts = packed.copy(), counts.copy()
    t = counts.shape[1]
    cells = unpack_cells(packed[ids], t, psi)
    for row, c in zip(cells, y.tolist(), strict=True):
        counts[c, np.arange(t), row] -= 1
    packed[ids] = 0
    return packed, counts


def _sigmoid(X: Array, theta: Float) -> Float:
    z = X.astype(np.float64) @ theta[:-1] + theta[-1]
    return np.exp(-np.logaddexp(0, -z))


def total(X: Array, y: Array, theta: Float, lam: float) -> Float:
    """(p,) r * (mean gradient + penalty gradient) of binary logistic regression."""
    wide = np.hstack([X.astype(np.float64), np.ones((len(X), 1))])
    penalty = np.append(len(X) * lam * theta[:-1], 0.0)
    return wide.T @ (_sigmoid(X, theta) - y) + penalty
