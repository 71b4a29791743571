"""Counts of rows per cell: the exact, addable form of a kernel mean embedding (mu = counts / n)."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import prange
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.arrays import Ints
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.threads import parallel_entry
from l2ul_kernels.validate import check_array, check_cells, check_class_count, check_labels, check_out
from l2ul_kernels.voronoi.assign import check_rows
from l2ul_kernels.voronoi.driver import blocks, count_block
from l2ul_kernels.voronoi.partitions import Partitions


def _check_classes(y: ArrayLike | None, n: int, n_classes: int | None) -> tuple[NDArray[np.uint16], int]:
    """(labels as uint16, or none of them, and the number of classes), with every label in 0 .. n_classes - 1."""
    if y is None:
        if n_classes is not None:
            raise ValueError("n_classes was given without labels y")
        return np.empty(0, np.uint16), 1
    y = check_array(y, "labels", "iub", "integers")
    if n_classes is None:
        n_classes = int(y.max()) + 1 if y.size else 1
    n_classes = check_class_count(n_classes)
    return check_labels(y, n, n_classes, np.uint16), n_classes


def _check_counts(out: Ints | None, shape: tuple[int, int, int], y: ArrayLike | None, sign: int, *read: Any) -> Ints:
    """An array (C, t, psi) to add to, (t, psi) without labels; zeros for None."""
    if sign not in (1, -1):
        raise ValueError(f"sign must be 1 (add) or -1 (subtract), got {sign!r}")
    wanted = shape[1:] if y is None else shape
    return np.zeros(wanted, np.int64) if out is None else check_out(out, wanted, np.int64, y, *read)


def cell_counts(
    X: ArrayLike,
    partitions: Partitions,
    y: ArrayLike | None = None,
    n_classes: int | None = None,
    out: Ints | None = None,
    sign: int = 1,
) -> Ints:
    """How many rows fall in each cell, by assigning and counting in one pass; no cells are stored.

    Parameters
    ----------
    X, partitions : rows (n, d) and partitions as for `assign_cells`
    y : (n,) integers, the rows' classes, to count by class
    n_classes : int, 1 more than the largest label unless given
    out : int64 array of the result's shape, to add to
    sign : 1, or -1 to subtract instead: forgetting rows is the same call

    Returns
    -------
    (t, psi) int64, or (C, t, psi) with labels: `out` when given

    Raises
    ------
    ValueError, TypeError
        As `assign_cells`, or for labels beyond n_classes. Nothing is added then.
    """
    given, X = X, check_rows(X, partitions)
    labels, classes = _check_classes(y, len(X), n_classes)
    shape = (classes, partitions.n_partitions, partitions.n_seeds)
    out = _check_counts(out, shape, y, sign, given, partitions.seeds)
    total = np.zeros(shape, np.int64)
    for lo, rows in blocks(X, partitions.compute_dtype(X.dtype)):
        total += count_block(rows, partitions, labels[lo : lo + len(rows)], classes, lo)
    members = np.array([len(X)]) if y is None else np.bincount(labels, minlength=classes)
    total[:, :, 0] = members[:, None] - total[:, :, 1:].sum(axis=-1)  # cell 0 holds whoever is in no other cell
    out += sign * total.reshape(out.shape)
    return out


@kernel(parallel=True)
def _count(cells: Any, labels: Any, counts: Any) -> None:
    workers, (n, t) = len(counts), cells.shape
    by_class = len(labels) > 0
    for w in prange(workers):
        for i in range(n * w // workers, n * (w + 1) // workers):
            c = np.intp(labels[i]) if by_class else 0
            for p in range(t):
                counts[w, c, p, np.intp(cells[i, p])] += 1


def counts_from_cells(
    cells: ArrayLike,
    psi: int,
    y: ArrayLike | None = None,
    n_classes: int | None = None,
    out: Ints | None = None,
    sign: int = 1,
) -> Ints:
    """The same counts from stored cells (n, t) instead of rows."""
    given, cells = cells, check_cells(cells, psi)
    n, t = cells.shape
    labels, classes = _check_classes(y, n, n_classes)
    out = _check_counts(out, (classes, t, psi), y, sign, given)
    with parallel_entry():
        workers = 1 if cells.size < 1_000_000 else numba.get_num_threads()
        counts = np.zeros((workers, classes, t, psi), np.int64)
        ensure_compiled(("count", cells.dtype), lambda: _count(cells[:0], labels[:0], counts))
        _count(cells, labels, counts)
    out += sign * counts.sum(axis=0).reshape(out.shape)
    return out
