"""Counts of rows per cell: the exact, addable form of a kernel mean embedding (mu = counts / n)."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import prange
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.threads import parallel_entry
from l2ul_kernels.voronoi.assign import check_cells
from l2ul_kernels.voronoi.driver import blocks, check_rows, run
from l2ul_kernels.voronoi.partitions import Partitions

MAX_CLASSES = 65535


def check_labels(y: ArrayLike | None, n: int, n_classes: int | None) -> tuple[NDArray[np.uint16] | None, int]:
    """(labels as uint16 or None, number of classes), with every label in 0 .. n_classes - 1."""
    if y is None:
        if n_classes is not None:
            raise ValueError("n_classes was given without labels y")
        return None, 1
    y = np.asarray(y)
    if y.shape != (n,):
        raise ValueError(f"y must have shape ({n},) to match X, got {y.shape}")
    if y.dtype.kind not in "iub":
        raise TypeError(f"labels y must be integers, got {y.dtype}")
    low, high = (int(y.min()), int(y.max())) if n else (0, 0)
    n_classes = high + 1 if n_classes is None else int(n_classes)
    if not 1 <= n_classes <= MAX_CLASSES:
        raise ValueError(f"n_classes must be from 1 to {MAX_CLASSES}, got {n_classes}")
    if low < 0 or high >= n_classes:
        raise ValueError(f"labels must lie in 0..{n_classes - 1}, found {low}..{high}")
    return np.ascontiguousarray(y, np.uint16), n_classes


def check_out(out: NDArray[Any] | None, shape: tuple[int, ...], sign: int) -> NDArray[np.int64]:
    if sign not in (1, -1):
        raise ValueError(f"sign must be 1 (add) or -1 (subtract), got {sign!r}")
    if out is None:
        return np.zeros(shape, np.int64)
    if not isinstance(out, np.ndarray) or out.dtype != np.int64:
        raise TypeError("out must be an int64 array")
    if out.shape != shape or not out.flags.writeable:
        raise ValueError(f"out must be a writeable array of shape {shape}, got {out.shape}")
    return out


def cell_counts(
    X: ArrayLike,
    partitions: Partitions,
    y: ArrayLike | None = None,
    n_classes: int | None = None,
    out: NDArray[np.int64] | None = None,
    sign: int = 1,
) -> NDArray[np.int64]:
    """How many rows of X (n, d) fall in each cell: int64 (t, psi), or (C, t, psi) by class with labels y (n,).

    Assigning and counting in one pass, no cells are stored. Added to `out` when given; sign=-1 subtracts instead, so
    that forgetting rows is the same call. Nothing is added when a row is refused (see `assign_cells`).
    """
    X = check_rows(X, partitions)
    labels, classes = check_labels(y, len(X), n_classes)
    shape = (partitions.n_partitions, partitions.n_seeds)
    out = check_out(out, shape if labels is None else (classes, *shape), sign)
    total = np.zeros((classes, *shape), np.int64)
    for lo, rows in blocks(X, partitions.compute_dtype(X.dtype)):
        part = None if labels is None else labels[lo : lo + len(rows)]
        total += run(rows, partitions, None, part, classes, lo).sum(axis=0)
    members = np.array([len(X)]) if labels is None else np.bincount(labels, minlength=classes)
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
    out: NDArray[np.int64] | None = None,
    sign: int = 1,
) -> NDArray[np.int64]:
    """The same counts from stored cells (n, t) instead of rows."""
    cells = check_cells(cells, psi)
    n, t = cells.shape
    labels, classes = check_labels(y, n, n_classes)
    out = check_out(out, (t, psi) if labels is None else (classes, t, psi), sign)
    labels = np.empty(0, np.uint16) if labels is None else labels
    with parallel_entry():
        workers = 1 if cells.size < 1_000_000 else numba.get_num_threads()
        counts = np.zeros((workers, classes, t, psi), np.int64)
        ensure_compiled(("count", cells.dtype), lambda: _count(cells[:0], labels[:0], counts))
        _count(cells, labels, counts)
    out += sign * counts.sum(axis=0).reshape(out.shape)
    return out
