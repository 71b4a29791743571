"""Binary logistic regression: thousands of small fits in parallel, and the sums of one Newton step over many rows.

theta (p,) = [coef (d), intercept], p = d + 1. Objective of a fit: mean over rows of log(1 + exp(z)) - y z, with
z = coef . x + intercept, plus lam / 2 ||coef||^2; the intercept is not penalised. Labels are 0 or 1.
Results are bit-identical for every number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.codegen.pointers import fetch_add
from l2ul_kernels.codegen.pool import spread
from l2ul_kernels.linear.newton import minimise
from l2ul_kernels.linear.sums import (
    GRADIENT,
    HESSIAN,
    PRODUCT,
    SLOPE,
    block_count,
    sum_blocks,
    tile_memory,
    worker_count,
)
from l2ul_kernels.simd.columns import CHUNK, gather, padded, width_of
from l2ul_kernels.validate import (
    check_ids,
    check_lam,
    check_sum,
    check_theta,
    check_weights,
    check_xy,
    mirror,
    refuse_unusable,
)
from l2ul_kernels.voronoi.partitions import address

#: Pairs between two calls of `progress`, for each thread.
REPORT = 32

Float = NDArray[np.float64]


@kernel(inline=True)
def _fit_pair(
    X: Any,
    at: int,
    y: Any,
    ids: Any,
    r: int,
    lam: float,
    tol: float,
    max_steps: int,
    columns: Any,
    rows: Any,
    weights: Any,
    scaled: Any,
    exact: Any,
    squares: Any,
    vectors: Any,
    thetas: Any,
    norms: Any,
    steps: Any,
) -> None:
    """Fit all rows ids, then those after the first r. No finite optimum (one class only): norm is infinite."""
    s, d = len(ids), X.shape[1]
    gather(X, ids, at, columns)
    positive, positive_r = 0, 0
    for i in range(s):
        rows[0, i] = y[ids[i]]
        positive += y[ids[i]]
        positive_r += y[ids[i]] if i >= r else 0
    theta, downdate = vectors[3], False
    for k in range(d + 1):
        theta[k] = 0.0
    for part in range(2):
        lo, ones = (r, positive_r) if part else (0, positive)
        if ones == 0 or ones == s - lo:
            norms[part] = np.inf
            for k in range(d + 1):
                theta[k] = 0.0
        else:
            for i in range(lo if downdate else 0):
                rows[2, i] = 0.0
            norms[part], steps[part] = minimise(
                columns, rows, weights, scaled, exact, squares, vectors, theta, lo, s, d, lam, tol, max_steps, downdate
            )
        downdate = norms[part] <= tol and steps[part] > 0 and 2 * r <= s
        for k in range(d + 1):
            thetas[part, k] = theta[k]


@kernel()
def _fit_some(
    X: Any,
    at: int,
    y: Any,
    ids: Any,
    n_forget: Any,
    next_pair: int,
    last: int,
    lam: float,
    tol: float,
    max_steps: int,
    columns: Any,
    rows: Any,
    weights: Any,
    scaled: Any,
    exact: Any,
    squares: Any,
    vectors: Any,
    thetas: Any,
    norms: Any,
    steps: Any,
) -> None:
    """Fit pairs below `last` one after the other, taking the next one from the counter at `next_pair`."""
    while True:
        i = fetch_add(next_pair, 1)
        if i >= last:
            return
        _fit_pair(
            X,
            at,
            y,
            ids[i],
            n_forget[i],
            lam,
            tol,
            max_steps,
            columns,
            rows,
            weights,
            scaled,
            exact,
            squares,
            vectors,
            thetas[i],
            norms[i],
            steps[i],
        )


def _memory(s: int, d: int, dtype: Any) -> tuple[NDArray[Any], ...]:
    """columns, rows, weights, scaled, exact, squares, vectors of one worker (see _newton.minimise)."""
    width, rows = width_of(d + 1), padded(s)
    shapes = ((width, rows), (4, rows), (2, rows), (3, CHUNK), (3, CHUNK), (2, width, width), (4, width))
    kinds = (dtype, float, dtype, dtype, float, float, float)
    return tuple(aligned_zeros(shape, kind) for shape, kind in zip(shapes, kinds, strict=True))


def _run_pairs(
    X: NDArray[Any],
    y: NDArray[np.uint8],
    ids: NDArray[np.int64],
    n_forget: NDArray[np.int64],
    lam: float,
    tol: float,
    max_steps: int,
    progress: Callable[[int, int], object] | None,
) -> tuple[Float, Float, NDArray[np.int64]]:
    (m, s), d = ids.shape, X.shape[1]
    thetas, norms, steps = np.zeros((m, 2, d + 1)), np.zeros((m, 2)), np.zeros((m, 2), np.int64)
    workers = max(1, min(numba.get_num_threads(), m))
    memory = [_memory(s, d, X.dtype) for _ in range(workers)]
    next_pair = np.zeros(1, np.int64)

    def run(worker: int, last: int) -> None:
        _fit_some(
            X,
            address(X),
            y,
            ids,
            n_forget,
            address(next_pair),
            last,
            lam,
            tol,
            max_steps,
            *memory[worker],
            thetas,
            norms,
            steps,
        )

    ensure_compiled(("logistic pairs", X.dtype), lambda: run(0, 0))
    take = REPORT * workers if progress else max(m, 1)
    for first in range(0, m, take):
        last = min(first + take, m)
        next_pair[0] = first
        spread(run, workers, last)
        if progress:
            progress(last, m)
    return thetas, norms, steps


def logistic_fit_pairs(
    X: ArrayLike,
    y: ArrayLike,
    ids: ArrayLike,
    n_forget: ArrayLike,
    lam: float,
    tol: float = 1e-10,
    max_steps: int = 50,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[Float, Float, Float, NDArray[np.int64]]:
    """Fit m pairs: all rows ids[i] of X, and those without the first n_forget[i].

    X (n, d) float32 or float64, y (n,) of 0 and 1, ids (m, s), n_forget (m,) from 0 to s - 1. Returns theta (m, p),
    theta_r (m, p), gradient_norm (m, 2), steps (m, 2): largest entry of the mean gradient with penalty, and Newton
    steps taken, of either fit. A norm above tol means not converged; it is infinite where only one class is left: the
    intercept then has no finite optimum. `progress(done, m)` is called from time to time.
    """
    X, y = check_xy(X, y)
    ids, n_forget = check_ids(ids, n_forget, len(X))
    lam = check_lam(lam)
    thetas, norms, steps = _run_pairs(X, y, ids, n_forget, lam, float(tol), int(max_steps), progress)
    if np.isnan(norms).any():
        refuse_unusable(X, np.unique(ids[np.isnan(norms).any(axis=1)]))
    return np.ascontiguousarray(thetas[:, 0]), np.ascontiguousarray(thetas[:, 1]), norms, steps


def _sums(
    X: NDArray[Any],
    y: NDArray[Any],
    theta: ArrayLike,
    mode: int,
    weights: ArrayLike | None = None,
    direction: ArrayLike | None = None,
) -> tuple[float, Float, Float]:
    """(loss, gradient or Hessian times direction (p,), Hessian (p, p)) summed over rows; the Hessian only if asked."""
    (n, d), p = X.shape, X.shape[1] + 1
    width = width_of(p)
    point, along = np.zeros(width), np.zeros(width)
    point[:p] = check_theta(theta, p)
    if direction is not None:
        along[:p] = check_theta(direction, p, "v")
    weight = check_weights(weights, n)
    blocks = block_count(n)
    loss, vector = np.zeros(blocks), np.zeros((blocks, width))
    matrix = np.zeros((blocks if mode == HESSIAN else 1, width, width))
    next_block = np.zeros(1, np.int64)
    workers = worker_count(n, p)
    memory = [tile_memory(d, 4) for _ in range(workers)]

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

    ensure_compiled(("logistic sums", X.dtype), lambda: run(0, 0))
    next_block[0] = 0
    spread(run, workers, blocks)
    total = float(loss.sum())
    if np.isnan(total) or np.isnan(vector).any():
        refuse_unusable(X, None)
    return total, vector.sum(axis=0)[:p], mirror(matrix.sum(axis=0)[:p, :p])


def logistic_sums(
    X: ArrayLike,
    y: ArrayLike,
    theta: ArrayLike,
    weights: ArrayLike | None = None,
    gradient_out: Float | None = None,
    hessian_out: Float | None = None,
) -> float:
    """Sum over rows (not mean, no penalty) of the loss; gradient (p,) and Hessian (p, p) are added to the outs given.

    X (n, d), y (n,) of 0 and 1, weights (n,) multiply the rows' terms. The result depends on how rows are split over
    several calls only by rounding, and not at all on the number of threads. NaN in X is a ValueError, outs unchanged.
    """
    X, y = check_xy(X, y)
    p = X.shape[1] + 1
    check_sum(gradient_out, (p,), "gradient_out")
    check_sum(hessian_out, (p, p), "hessian_out")
    total, gradient, hessian = _sums(X, y, theta, GRADIENT if hessian_out is None else HESSIAN, weights)
    if gradient_out is not None:
        gradient_out += gradient
    if hessian_out is not None:
        hessian_out += hessian
    return total


def logistic_gradient(X: ArrayLike, y: ArrayLike, theta: ArrayLike, weights: ArrayLike | None = None) -> Float:
    """(p,) mean gradient of the loss over the rows, without penalty; zeros for no rows. weights (n,) multiply the rows'
    gradients (the mean is still over n)."""
    X, y = check_xy(X, y)
    return _sums(X, y, theta, SLOPE, weights)[1] / max(len(X), 1)


def logistic_loss(X: ArrayLike, y: ArrayLike, theta: ArrayLike) -> float:
    """Mean loss over the rows, without penalty; 0 for no rows."""
    X, y = check_xy(X, y)
    return _sums(X, y, theta, GRADIENT)[0] / max(len(X), 1)


def logistic_hvp(X: ArrayLike, theta: ArrayLike, v: ArrayLike) -> Float:
    """(p,) mean Hessian of the loss over the rows, without penalty, times v (p,). It does not depend on labels."""
    X, y = check_xy(X, np.zeros(len(np.asarray(X)), np.uint8))
    return _sums(X, y, theta, PRODUCT, None, v)[1] / max(len(X), 1)
