"""Slow, obvious NumPy versions of every kernel: the definition of what is right, for our tests and yours.

The ones of cells and counts stand here; `reference.linear`, `.mlp`, `.sgd`, `.network`, `.expansion` and `.request`
hold those of the other packages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from l2ul_kernels.arrays import Array, Bytes, Float, Ints


def squared_distances(X: Array, seeds: Array) -> Float:
    """(n, t, psi) squared distances of rows X (n, d) to seeds (t, psi, d), by differences, in float64."""
    X, seeds = X.astype(np.float64), seeds.astype(np.float64)
    return np.stack([((X[:, None, :] - s) ** 2).sum(axis=-1) for s in seeds], axis=1)


def assign_cells(X: Array, seeds: Array) -> Array:
    """(n, t) index of the nearest seed in each partition; the lowest index wins a tie."""
    cells = squared_distances(X, seeds).argmin(axis=-1)
    return cells.astype(np.uint8 if seeds.shape[1] <= 256 else np.uint16)


def cell_counts(cells: Array, psi: int) -> Ints:
    """(t, psi) how many of the rows of cells (n, t) lie in each cell."""
    return np.stack([np.bincount(column, minlength=psi) for column in cells.T]).astype(np.int64)


def class_counts(cells: Array, y: Array, psi: int, n_classes: int) -> Ints:
    """(C, t, psi) the same for the rows of each class."""
    return np.stack([cell_counts(cells[y == c], psi) for c in range(n_classes)])


def bits_per_cell(psi: int) -> int:
    """ceil(log2 psi)."""
    return int(psi - 1).bit_length()


def pack_cells(cells: Array, psi: int) -> Bytes:
    """(n, ceil(t * b / 8)) bytes: cell p of a row takes bits p * b .. p * b + b - 1, lowest bit first."""
    n, t = cells.shape
    b = bits_per_cell(psi)
    bits = (cells[:, :, None].astype(np.int64) >> np.arange(b)) & 1
    return np.packbits(bits.reshape(n, t * b).astype(np.uint8), axis=1, bitorder="little")


def unpack_cells(packed: Bytes, t: int, psi: int) -> Array:
    """(n, t) cells from what pack_cells made."""
    b = bits_per_cell(psi)
    bits = np.unpackbits(packed, axis=1, count=t * b, bitorder="little").reshape(len(packed), t, b)
    return (bits.astype(np.int64) << np.arange(b)).sum(axis=-1).astype(np.uint8 if psi <= 256 else np.uint16)


def one_hot(cells: Array, psi: int) -> NDArray[np.float32]:
    """(n, t * psi) dense 0/1 feature map."""
    n, t = cells.shape
    out = np.zeros((n, t, psi), np.float32)
    out[np.arange(n)[:, None], np.arange(t), cells] = 1
    return out.reshape(n, t * psi)
