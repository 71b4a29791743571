"""Binary logistic regression: thousands of small fits in parallel, and the sums of one Newton step over many rows.

theta (p,) = [coef (d), intercept], p = d + 1. Objective of a fit: mean over rows of log(1 + exp(z)) - y z, with
z = coef . x + intercept, plus lam / 2 ||coef||^2; the intercept is not penalised. Labels are 0 or 1.
Results are bit-identical for every number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike

from l2ul_kernels.arrays import Array, Float, Ints
from l2ul_kernels.codegen.alignment import aligned_parts
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.codegen.parallel import parallel_for
from l2ul_kernels.linear.newton import Rule, minimise, new_work
from l2ul_kernels.linear.sums import (
    GRADIENT,
    HESSIAN,
    PRODUCT,
    SLOPE,
    TILE,
    Sums,
    add_sums,
    block_count,
    load_tile,
    sum_rows,
)
from l2ul_kernels.simd.columns import (
    CHUNK,
    PAD,
    add_dots,
    add_gram,
    gather,
    losses,
    padded,
    residuals,
    scores,
    width_of,
)
from l2ul_kernels.simd.rows import rows_of
from l2ul_kernels.simd.views import borrow
from l2ul_kernels.validate import (
    check_ids,
    check_lam,
    check_number,
    check_steps,
    check_vector,
    check_weights,
    check_xy,
    mirror,
    refuse_unusable,
)

#: Pairs between two calls of `progress`, for each thread: of two classes, of more.
REPORT = 32, 4


class Pairs(NamedTuple):
    """m subsets of rows; the first n_forget of each are left out in the second fit of the pair."""

    ids: Ints  # (m, s)
    n_forget: Ints  # (m,)


class Fits(NamedTuple):
    """Both fits of m pairs."""

    theta: Float  # (m, 2, ...) parameters
    norms: Float  # (m, 2) largest entry of the gradient
    steps: Ints  # (m, 2) Newton steps


@kernel(inline=True)
def _fit_pair(pair: int, rows: Any, pairs: Any, rule: Any, work: Any, out: Any) -> None:
    """Fit all rows of a pair, then those that stay. No finite optimum (one class only): norm is infinite."""
    y, ids, r, theta, d = rows.y, pairs.ids[pair], pairs.n_forget[pair], work.theta, rows.d
    norms, steps = out.norms[pair], out.steps[pair]
    s = len(ids)
    gather(rows, ids, work.columns)
    positive, positive_r = 0, 0
    for i in range(s):
        work.y[i] = y[ids[i]]
        positive += y[ids[i]]
        positive_r += y[ids[i]] if i >= r else 0
    downdate = False
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
                work.residual[i] = 0.0
            norms[part], steps[part] = minimise(work, rule, d, lo, s, downdate)
        downdate = norms[part] <= rule.tol and steps[part] > 0 and 2 * r <= s
        for k in range(d + 1):
            out.theta[pair, part, k] = theta[k]


@kernel()
def _fit_some(first: int, last: int, work: Any, rows: Any, pairs: Any, rule: Any, out: Any) -> None:
    """Fit the pairs first .. last - 1, one after the other."""
    rows, pairs, work, out = borrow((rows, pairs, work, out))
    for pair in range(first, last):
        _fit_pair(pair, rows, pairs, rule, work, out)


def fit_all(
    fit_some: Any, new_work: Any, X: Array, y: Array, pairs: Pairs, rule: Rule, shape: tuple[int, ...], progress: Any
) -> Fits:
    """Fits of all pairs, of parameters of this shape: fit_some(first, last, new_work(s), rows, pairs, rule, out).

    progress(done, m) is called after some pairs of each thread.
    """
    m, s = pairs.ids.shape
    out = Fits(np.zeros((m, 2, *shape)), np.zeros((m, 2)), np.zeros((m, 2), np.int64))
    work = [new_work(s) for _ in range(max(1, min(numba.get_num_threads(), m)))]
    what = (rows_of(X, y), pairs, rule, out)
    ensure_compiled((fit_some, X.dtype, y.dtype), lambda: fit_some(0, 0, work[0], *what))
    take = REPORT[len(shape) - 1] * len(work) if progress else max(m, 1)
    for start in range(0, m, take):
        count = min(take, m - start)

        def some(first: int, last: int, thread: int, start: int = start) -> None:
            fit_some(start + first, start + last, work[thread], *what)

        parallel_for(some, count, threads=len(work))
        if progress:
            progress(start + count, m)
    failed = np.isnan(out.norms).any(axis=1)
    if failed.any():
        refuse_unusable(X, np.unique(pairs.ids[failed]))
    return out


def logistic_fit_pairs(
    X: ArrayLike,
    y: ArrayLike,
    ids: ArrayLike,
    n_forget: ArrayLike,
    lam: float,
    tol: float = 1e-10,
    max_steps: int = 50,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[Float, Float, Float, Ints]:
    """Fit m pairs: all rows ids[i] of X, and those without the first n_forget[i].

    X (n, d) float32 or float64, y (n,) of 0 and 1, ids (m, s), n_forget (m,) from 0 to s - 1. Returns theta (m, p),
    theta_r (m, p), gradient_norm (m, 2), steps (m, 2): largest entry of the mean gradient with penalty, and Newton
    steps taken, of either fit. A norm above tol means not converged; it is infinite where only one class is left: the
    intercept then has no finite optimum. `progress(done, m)` is called from time to time.
    """
    X, y = check_xy(X, y)
    pairs, d = Pairs(*check_ids(ids, n_forget, len(X))), X.shape[1]
    rule = Rule(check_lam(lam), check_number(tol, "tol"), check_steps(max_steps))
    out = fit_all(_fit_some, lambda s: new_work(s, d, X.dtype), X, y, pairs, rule, (d + 1,), progress)
    return np.ascontiguousarray(out.theta[:, 0]), np.ascontiguousarray(out.theta[:, 1]), out.norms, out.steps


class _Scratch(NamedTuple):
    """Memory for a tile of rows."""

    ids: Ints  # (TILE,)
    columns: Float  # (width, rows)
    values: Float  # (4, rows) labels, scores, residuals, curvatures
    scaled: Float  # (3, CHUNK)


def _scratch(d: int) -> _Scratch:
    rows = padded(TILE)
    parts = ((width_of(d + 1), rows), float), ((4, rows), float), ((3, CHUNK), float)
    return _Scratch(np.zeros(TILE, np.int64), *aligned_parts(*parts, zeros=True))


@kernel(inline=True)
def _weigh(weight: Any, lo: int, n: int, last: int, values: Any) -> None:
    """Multiply the values of the n rows from lo by their weight (if there are weights); those that pad by 0."""
    if len(weight) > 0:
        for i in range(n):
            values[i] *= weight[lo + i]
    for i in range(n, last):
        values[i] = 0.0


@kernel()
def _sum_blocks(first: int, last: int, scratch: Any, rows: Any, theta: Any, along: Any, mode: int, out: Any) -> None:
    """Sums of the blocks first .. last - 1 at theta (width,), each into its own place of `out`."""
    scratch, rows, out = borrow((scratch, rows, out))
    columns, values = scratch.columns, scratch.values
    labels, z, residual, w = values[0], values[1], values[2], values[3]
    n, total = len(rows.y), len(out.loss)
    for b in range(first, last):
        for lo in range(n * b // total, n * (b + 1) // total, TILE):
            hi = min(lo + TILE, n * (b + 1) // total)
            end = -(-(hi - lo) // PAD) * PAD
            load_tile(rows, lo, hi, scratch.ids, columns)
            for i in range(hi - lo):
                labels[i] = rows.y[lo + i]
            scores(columns, theta, 0, end, z)
            residuals(z, labels, 0, end, residual, w)
            if mode == PRODUCT:
                scores(columns, along, 0, end, z)
                for i in range(hi - lo):
                    residual[i] = w[i] * z[i]
            _weigh(rows.weights, lo, hi - lo, end, residual)
            add_dots(columns, residual, 0, end, out.vector[b])
            if mode == HESSIAN:
                _weigh(rows.weights, lo, hi - lo, end, w)
                add_gram(columns, w, 0, end, scratch.scaled, out.matrix[b])
            if mode in (GRADIENT, HESSIAN):
                losses(z, labels, 0, end, residual)
                _weigh(rows.weights, lo, hi - lo, end, residual)
                for i in range(hi - lo):
                    out.loss[b] += residual[i]


def _padded(theta: ArrayLike, p: int, name: str = "theta") -> Float:
    """theta (p,) -> (width,)"""
    out = np.zeros(width_of(p))
    out[:p] = check_vector(theta, p, name)
    return out


def _sums(
    X: Array,
    y: Array,
    theta: ArrayLike,
    mode: int,
    weights: ArrayLike | None = None,
    direction: ArrayLike | None = None,
) -> tuple[float, Float, Float]:
    """(loss, gradient or Hessian times direction (p,), Hessian (p, p)) summed over rows; the Hessian only if asked."""
    (n, d), p = X.shape, X.shape[1] + 1
    point = _padded(theta, p)
    along = point if direction is None else _padded(direction, p, "v")
    blocks, width = block_count(n), len(point)
    out = Sums(np.zeros(blocks), np.zeros((blocks, width)), np.zeros((blocks if mode == HESSIAN else 1, width, width)))
    what = (rows_of(X, y, check_weights(weights, n)), point, along, mode, out)
    loss, vector, matrix = sum_rows("logistic sums", _sum_blocks, lambda: _scratch(d), X, *what)
    return loss, vector[:p], mirror(matrix[:p, :p])


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
    read = (X, y, theta, weights)
    X, y = check_xy(X, y)
    return add_sums(lambda mode: _sums(X, y, theta, mode, weights), X.shape[1] + 1, gradient_out, hessian_out, read)


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
    X, y = check_xy(X, None)
    return _sums(X, y, theta, PRODUCT, None, v)[1] / max(len(X), 1)
