"""Multinomial logistic regression: sums over many rows, and many small fits in parallel.

theta (p,) = [coef (C, d) row by row, intercept (C)], p = C (d + 1). Objective of a fit: mean over rows of the negative
log-probability of the row's class, plus lam / 2 ||coef||^2. Adding one number to all intercepts changes no probability;
fits have intercepts that sum to zero. Labels are 0 .. C - 1. Results are bit-identical for every number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import ensure_compiled
from l2ul_kernels.codegen.pool import spread
from l2ul_kernels.linear.softmax_kernels import fit_some, sum_blocks
from l2ul_kernels.linear.sums import GRADIENT, HESSIAN, PRODUCT, TILE, block_count, tile_memory, worker_count
from l2ul_kernels.simd.columns import CHUNK, padded, width_of
from l2ul_kernels.validate import check_ids, check_lam, check_sum, check_theta, check_weights, check_xy, refuse_unusable
from l2ul_kernels.voronoi.partitions import address

#: Pairs between two calls of `progress`, for each thread.
REPORT = 4

Float = NDArray[np.float64]


def _by_class(theta: ArrayLike, n_classes: int, d: int, name: str = "theta") -> Float:
    """(C, width): coefficients, intercept, zeros of every class."""
    flat = check_theta(theta, n_classes * (d + 1), name)
    out = np.zeros((n_classes, width_of(d + 1)))
    out[:, :d], out[:, d] = flat[: n_classes * d].reshape(n_classes, d), flat[n_classes * d :]
    return out


def _flat(blocks: Float) -> Float:
    """(..., C, d + 1) -> (..., p) in theta's order."""
    lead = blocks.shape[:-2]
    return np.concatenate([blocks[..., :-1].reshape(*lead, -1), blocks[..., -1]], axis=-1)


def _order(n_classes: int, d: int) -> NDArray[np.int64]:
    """order[i] = index c * (d + 1) + k of theta's entry i."""
    return _flat(np.arange(n_classes * (d + 1), dtype=np.float64).reshape(n_classes, d + 1)).astype(np.int64)


def _classes(n_classes: int) -> int:
    if not 2 <= n_classes <= 1000:
        raise ValueError(f"n_classes must be from 2 to 1000, got {n_classes}")
    return int(n_classes)


def _sums(
    X: NDArray[Any],
    y: NDArray[Any],
    theta: ArrayLike,
    C: int,
    mode: int,
    weights: ArrayLike | None = None,
    direction: ArrayLike | None = None,
) -> tuple[float, Float, Float]:
    """(loss, gradient or Hessian times direction (p,), Hessian (p, p)) summed over rows; the Hessian only if asked."""
    (n, d), p = X.shape, C * (X.shape[1] + 1)
    point, width = _by_class(theta, C, d), width_of(d + 1)
    along = point if direction is None else _by_class(direction, C, d, "v")
    weight = check_weights(weights, n)
    blocks = min(block_count(n), 16) if mode == HESSIAN else block_count(n)  # a Hessian may have megabytes
    loss, vector = np.zeros(blocks), np.zeros((blocks, C, width))
    matrix = np.zeros((blocks, p, p) if mode == HESSIAN else (1, 1, 1))
    next_block = np.zeros(1, np.int64)
    workers, rows = min(worker_count(n, p), blocks), padded(TILE)
    memory = [
        (
            *tile_memory(d, 2),
            aligned_zeros((C, rows)),
            aligned_zeros((C, rows)),
            aligned_zeros((width, width)),
            np.zeros_like(y, shape=rows),
            np.zeros(rows),
        )
        for _ in range(workers)
    ]

    def run(worker: int, last: int) -> None:
        sum_blocks(
            X,
            address(X),
            y,
            weight,
            point,
            along,
            mode,
            address(next_block),
            last,
            *memory[worker],
            loss,
            vector,
            matrix,
        )

    ensure_compiled(("softmax sums", X.dtype, y.dtype), lambda: run(0, 0))
    next_block[0] = 0
    spread(run, workers, blocks)
    total = float(loss.sum())
    if np.isnan(total) or np.isnan(vector).any():
        refuse_unusable(X, None)
    hessian = matrix.sum(axis=0)
    if mode == HESSIAN:
        hessian = (np.tril(hessian) + np.tril(hessian, -1).T)[np.ix_(_order(C, d), _order(C, d))]
    return total, _flat(vector.sum(axis=0)[:, : d + 1]), hessian


def softmax_sums(
    X: ArrayLike,
    y: ArrayLike,
    theta: ArrayLike,
    n_classes: int,
    weights: ArrayLike | None = None,
    gradient_out: Float | None = None,
    hessian_out: Float | None = None,
) -> float:
    """Sum over rows (not mean, no penalty) of the loss; gradient (p,) and Hessian (p, p) are added to the outs given.

    X (n, d), y (n,) of 0 .. C - 1, weights (n,) multiply the rows' terms. NaN in X is a ValueError, outs unchanged.
    """
    C = _classes(n_classes)
    X, y = check_xy(X, y, C)
    p = C * (X.shape[1] + 1)
    check_sum(gradient_out, (p,), "gradient_out")
    check_sum(hessian_out, (p, p), "hessian_out")
    total, gradient, hessian = _sums(X, y, theta, C, GRADIENT if hessian_out is None else HESSIAN, weights)
    if gradient_out is not None:
        gradient_out += gradient
    if hessian_out is not None:
        hessian_out += hessian
    return total


def softmax_gradient(X: ArrayLike, y: ArrayLike, theta: ArrayLike, n_classes: int) -> Float:
    """(p,) mean gradient of the loss over the rows, without penalty; zeros for no rows."""
    X, y = check_xy(X, y, _classes(n_classes))
    return _sums(X, y, theta, n_classes, GRADIENT)[1] / max(len(X), 1)


def softmax_loss(X: ArrayLike, y: ArrayLike, theta: ArrayLike, n_classes: int) -> float:
    """Mean loss over the rows, without penalty; 0 for no rows."""
    X, y = check_xy(X, y, _classes(n_classes))
    return _sums(X, y, theta, n_classes, GRADIENT)[0] / max(len(X), 1)


def softmax_hvp(X: ArrayLike, theta: ArrayLike, v: ArrayLike, n_classes: int) -> Float:
    """(p,) mean Hessian of the loss over the rows, without penalty, times v (p,). It does not depend on labels."""
    X, y = check_xy(X, np.zeros(len(np.asarray(X)), np.uint8), _classes(n_classes))
    return _sums(X, y, theta, n_classes, PRODUCT, None, v)[1] / max(len(X), 1)


def softmax_fit_pairs(
    X: ArrayLike,
    y: ArrayLike,
    ids: ArrayLike,
    n_forget: ArrayLike,
    lam: float,
    n_classes: int,
    tol: float = 1e-10,
    max_steps: int = 50,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[Float, Float, Float, NDArray[np.int64]]:
    """Fit m pairs: all rows ids[i] of X, and those without the first n_forget[i] (see `logistic_fit_pairs`).

    A gradient norm is infinite where a class has no row left: its intercept then has no finite optimum.
    """
    C = _classes(n_classes)
    X, y = check_xy(X, y, C)
    ids, n_forget = check_ids(ids, n_forget, len(X))
    lam = check_lam(lam)
    (m, s), d = ids.shape, X.shape[1]
    width, rows, p = width_of(d + 1), padded(s), C * (d + 1)
    thetas, norms, steps = np.zeros((m, 2, C, d + 1)), np.zeros((m, 2)), np.zeros((m, 2), np.int64)
    workers = max(1, min(numba.get_num_threads(), m))
    memory = [
        (
            aligned_zeros((width, rows)),
            np.zeros_like(y, shape=rows),
            np.ones(rows),
            aligned_zeros((C, rows)),
            aligned_zeros((2, rows)),
            aligned_zeros((3, CHUNK)),
            aligned_zeros((width, width)),
            np.zeros((2, p, p)),
            aligned_zeros((3, C, width)),
            np.zeros((2, p)),
        )
        for _ in range(workers)
    ]
    next_pair, start = np.zeros(1, np.int64), np.zeros((C, width))

    def run(worker: int, last: int) -> None:
        fit_some(
            X,
            address(X),
            y,
            ids,
            n_forget,
            address(next_pair),
            last,
            start,
            lam,
            float(tol),
            int(max_steps),
            *memory[worker],
            thetas,
            norms,
            steps,
        )

    ensure_compiled(("softmax pairs", X.dtype, y.dtype), lambda: run(0, 0))
    take = REPORT * workers if progress else max(m, 1)
    for first in range(0, m, take):
        last = min(first + take, m)
        next_pair[0] = first
        spread(run, workers, last)
        if progress:
            progress(last, m)
    if np.isnan(norms).any():
        refuse_unusable(X, np.unique(ids[np.isnan(norms).any(axis=1)]))
    flat = _flat(thetas)
    return np.ascontiguousarray(flat[:, 0]), np.ascontiguousarray(flat[:, 1]), norms, steps
