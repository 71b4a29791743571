"""Cells of rows: the index of the nearest seed in every partition."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from l2ul_kernels.arrays import Array
from l2ul_kernels.validate import cell_dtype, check_matrix, check_out
from l2ul_kernels.voronoi.driver import assign_block, blocks
from l2ul_kernels.voronoi.partitions import Partitions


def check_rows(X: ArrayLike, partitions: Partitions) -> Array:
    """X as an array of shape (n, d); dtype and memory order are left for `blocks`."""
    if not isinstance(partitions, Partitions):
        raise TypeError(f"partitions must be Partitions, got {type(partitions).__name__}")
    return check_matrix(X, partitions.n_features, "the seeds")


def assign_cells(X: ArrayLike, partitions: Partitions, out: Array | None = None) -> Array:
    """Index of the nearest seed of every row in every partition; the lowest index wins a tie.

    Parameters
    ----------
    X : (n, d) float32 or float64, any strides, read-only or memory-mapped; integers are read as float64
    partitions : Partitions of d features
    out : (n, t) array for the result, in no part the memory of X; C-contiguous ones are written in place

    Returns
    -------
    (n, t) uint8 (uint16 above 256 seeds): `out` when given

    Raises
    ------
    ValueError
        If a row has NaN, infinities or absurd magnitudes (`out` may then be partly written), or for a wrong shape.
    TypeError
        For numbers or an `out` of another type.
    """
    X = check_rows(X, partitions)
    shape, dtype = (len(X), partitions.n_partitions), cell_dtype(partitions.n_seeds)
    out = np.empty(shape, dtype) if out is None else check_out(out, shape, dtype, X)
    in_place = out.flags.c_contiguous and out.flags.aligned
    target = np.asarray(out) if in_place else np.empty(shape, dtype)
    for lo, rows in blocks(X, partitions.compute_dtype(X.dtype)):
        assign_block(rows, partitions, target[lo : lo + len(rows)], lo)
    if not in_place:
        out[...] = target
    return out
