"""Multinomial logistic regression: sums over many rows, and many small fits in parallel.

theta (p,) = [coef (C, d) row by row, intercept (C)], p = C (d + 1). Objective of a fit: mean over rows of the negative
log-probability of the row's class, plus lam / 2 ||coef||^2. Adding one number to all intercepts changes no probability;
fits have intercepts that sum to zero. Labels are 0 .. C - 1. Results are bit-identical for every number of threads.

Inside, parameters are (C, width): for each class its coefficients, its intercept, zeros. Matrices over all parameters
have index c * (d + 1) + k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from l2ul_kernels.arrays import Array, Float, Ints
from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.linear.logistic import Pairs, fit_all
from l2ul_kernels.linear.newton import Rule
from l2ul_kernels.linear.sums import GRADIENT, HESSIAN, PRODUCT, TILE, Sums, add_sums, block_count, load_tile, sum_rows
from l2ul_kernels.simd.cholesky import cholesky, clear, copy, dot, solve
from l2ul_kernels.simd.columns import (
    CHUNK,
    PAD,
    add_dots,
    add_gram,
    gather,
    largest_scores,
    padded,
    probabilities,
    scores,
    width_of,
)
from l2ul_kernels.simd.rows import rows_of
from l2ul_kernels.simd.views import borrow
from l2ul_kernels.validate import check_ids, check_lam, check_number, check_steps, check_vector, check_weights, check_xy

MAX_CLASSES = 1000


class Block(NamedTuple):
    """Some rows with what follows from them at one theta; rows and widths padded as in simd/columns."""

    columns: Float  # (width, rows)
    y: Array  # (rows,)
    weight: Float  # (rows,)
    P: Float  # (C, rows) scores, then probabilities
    top: Float  # (rows,) scratch, like all that follow
    total: Float  # (rows,)
    scaled: Float  # (3, CHUNK)
    square: Float  # (width, width)


class Work(NamedTuple):
    """Memory of one Newton fit."""

    block: Block
    hessian: Float  # (p, p)
    factor: Float  # (p, p)
    theta: Float  # (C, width), like the next two
    trial: Float
    gradient: Float
    flat: Float  # (p,) the gradient
    step: Float  # (p,)


class _Scratch(NamedTuple):
    """Memory of one thread that sums."""

    block: Block
    V: Float  # (C, rows) scores of a direction
    ids: Ints  # (TILE,)


def _new_block(n: int, d: int, C: int, y: Array) -> Block:
    width, rows = width_of(d + 1), padded(n)
    shapes = [(C, rows), (rows,), (rows,), (3, CHUNK), (width, width)]
    columns, labels = aligned_zeros((width, rows)), np.zeros_like(y, shape=rows)
    return Block(columns, labels, np.ones(rows), *map(aligned_zeros, shapes))


# One block of rows ---------------------------------------------------------------------------------------------------


@kernel()
def evaluate(block: Any, theta: Any, lo: int, hi: int) -> float:
    """Probabilities of the rows lo..hi at theta; returns the weighted sum of their losses."""
    P, top, loss = block.P, block.top, 0.0
    for c in range(len(theta)):
        scores(block.columns, theta[c], lo // PAD * PAD, -(-hi // PAD) * PAD, P[c])
    largest_scores(P, lo, hi, top)
    for i in range(lo, hi):
        loss += block.weight[i] * (top[i] - P[block.y[i], i])
    probabilities(P, lo, hi, top, block.total)
    for i in range(lo, hi):
        loss += block.weight[i] * np.log(block.total[i])
    return loss


@kernel()
def add_rows(columns: Any, lo: int, hi: int, values: Any, out: Any) -> None:
    """out += sum over the rows lo..hi of values_i row_i. The values of rows that pad are overwritten."""
    first, last = lo // PAD * PAD, -(-hi // PAD) * PAD
    for i in range(first, lo):
        values[i] = 0.0
    for i in range(hi, last):
        values[i] = 0.0
    add_dots(columns, values, first, last, out)


@kernel()
def add_gradient(block: Any, lo: int, hi: int, out: Any) -> None:
    """out (C, width) += weighted sum of the gradients of the rows lo..hi."""
    y, weight, P, values = block.y, block.weight, block.P, block.top
    for c in range(len(P)):
        for i in range(lo, hi):
            values[i] = weight[i] * (P[c, i] - (1.0 if y[i] == c else 0.0))
        add_rows(block.columns, lo, hi, values, out[c])


@kernel(inline=True)
def add_product(block: Any, lo: int, hi: int, V: Any, out: Any) -> None:
    """out (C, width) += weighted sum of the Hessians of the rows lo..hi times a direction of scores V (C, rows)."""
    P, values, mean = block.P, block.top, block.total
    for i in range(lo, hi):
        mean[i] = 0.0
        for c in range(len(P)):
            mean[i] += P[c, i] * V[c, i]
    for c in range(len(P)):
        for i in range(lo, hi):
            values[i] = block.weight[i] * P[c, i] * (V[c, i] - mean[i])
        add_rows(block.columns, lo, hi, values, out[c])


@kernel()
def add_hessian(block: Any, lo: int, hi: int, out: Any) -> None:
    """out (p, p) += weighted sum of the Hessians of the rows lo..hi; lower triangle of class blocks, each complete."""
    weight, P, values, square = block.weight, block.P, block.top, block.square
    first, last, p = lo // PAD * PAD, -(-hi // PAD) * PAD, len(out) // len(P)
    for i in range(first, last):
        values[i] = 0.0
    for a in range(len(P)):
        for b in range(a + 1):
            for i in range(lo, hi):
                values[i] = weight[i] * P[a, i] * ((1.0 if a == b else 0.0) - P[b, i])
            clear(square)
            add_gram(block.columns, values, first, last, block.scaled, square)
            for j in range(p):
                for k in range(j + 1):
                    out[a * p + j, b * p + k] += square[j, k]
                    if k < j:
                        out[a * p + k, b * p + j] += square[j, k]


# Fits ----------------------------------------------------------------------------------------------------------------


@kernel(inline=True)
def newton_matrix(hessian: Any, classes: int, n: int, lam: float, factor: Any) -> None:
    """Mean Hessian with penalty. Adding one number to all intercepts changes nothing: a term that forbids it."""
    p = len(hessian) // classes
    for a in range(len(hessian)):
        for b in range(a + 1):
            factor[a, b] = hessian[a, b] / n
            if a % p == p - 1 and b % p == p - 1:
                factor[a, b] += 1.0
        if a % p < p - 1:
            factor[a, a] += lam


@kernel(inline=True)
def minimise(work: Any, rule: Any, d: int, lo: int, hi: int) -> tuple[float, int]:
    """(largest gradient entry, steps) of damped Newton over the rows lo..hi from work.theta (C, width), in place."""
    block, theta, trial, gradient, flat, step = work.block, work.theta, work.trial, work.gradient, work.flat, work.step
    classes, p, n, lam = len(theta), d + 1, hi - lo, rule.lam
    for c in range(classes):
        copy(theta[c], trial[c])
    norm, value, slope, t, steps = np.inf, np.inf, 0.0, 1.0, 0
    while True:
        after_value = evaluate(block, trial, lo, hi) / n
        clear(gradient)
        add_gradient(block, lo, hi, gradient)
        after = 0.0
        for c in range(classes):
            after_value += lam / 2 * dot(trial[c], trial[c], d)
            for k in range(p):
                flat[c * p + k] = gradient[c, k] / n + (lam * trial[c, k] if k < d else 0.0)
                after = after if abs(flat[c * p + k]) <= after or after != after else abs(flat[c * p + k])
        noise = 1e-14 * abs(value)
        if norm == np.inf or after_value <= value - 1e-4 * t * slope + noise:
            stuck = norm < np.inf and after_value >= value - noise and not after < 0.5 * norm
            norm, value, t = after, after_value, 1.0
            for c in range(classes):
                copy(trial[c], theta[c])
            if not norm > rule.tol or steps == rule.max_steps or stuck:
                break
            clear(work.hessian)
            add_hessian(block, lo, hi, work.hessian)
            newton_matrix(work.hessian, classes, n, lam, work.factor)
            if not cholesky(work.factor, classes * p):
                break
            solve(work.factor, classes * p, flat, step)
            slope, steps = dot(flat, step, classes * p), steps + 1
        else:
            t /= 2
            if t < 1e-12:
                break
        for c in range(classes):
            for k in range(p):
                trial[c, k] = theta[c, k] - t * step[c * p + k]
    return norm, steps


@kernel()
def _fit_some(first: int, last: int, work: Any, rows: Any, pairs: Any, rule: Any, out: Any) -> None:
    """Fit the pairs first .. last - 1, one after the other; out.theta (m, 2, C, d + 1)."""
    rows, pairs, work, out = borrow((rows, pairs, work, out))
    s, d, theta, y = pairs.ids.shape[1], rows.d, work.theta, work.block.y
    for pair in range(first, last):
        gather(rows, pairs.ids[pair], work.block.columns)
        for i in range(s):
            y[i] = rows.y[pairs.ids[pair, i]]
        clear(theta)
        for part in range(2):
            lo = pairs.n_forget[pair] if part else 0
            every = True  # a class without rows has no finite intercept
            for c in range(len(theta)):
                found = False
                for i in range(lo, s):
                    found = found or y[i] == c
                every = every and found
            out.norms[pair, part] = np.inf
            if every:
                out.norms[pair, part], out.steps[pair, part] = minimise(work, rule, d, lo, s)
            for c in range(len(theta)):
                for k in range(d + 1):
                    theta[c, k] = theta[c, k] if every else 0.0
                    out.theta[pair, part, c, k] = theta[c, k]


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
) -> tuple[Float, Float, Float, Ints]:
    """Fit m pairs: all rows ids[i] of X, and those without the first n_forget[i] (see `logistic_fit_pairs`).

    A gradient norm is infinite where a class has no row left: its intercept then has no finite optimum.
    """
    X, y = check_xy(X, y, n_classes, MAX_CLASSES)
    pairs, d, C = Pairs(*check_ids(ids, n_forget, len(X))), X.shape[1], int(n_classes)
    rule = Rule(check_lam(lam), check_number(tol, "tol"), check_steps(max_steps))
    p, wide = C * (d + 1), (C, width_of(d + 1))
    shapes = [(p, p), (p, p), wide, wide, wide, (p,), (p,)]
    work = lambda s: Work(_new_block(s, d, C, y), *map(aligned_zeros, shapes))  # noqa: E731
    out = fit_all(_fit_some, work, X, y, pairs, rule, (C, d + 1), progress)
    flat = _flat(out.theta)
    return np.ascontiguousarray(flat[:, 0]), np.ascontiguousarray(flat[:, 1]), out.norms, out.steps


# Sums ----------------------------------------------------------------------------------------------------------------


@kernel()
def _sum_blocks(first: int, last: int, scratch: Any, rows: Any, theta: Any, along: Any, mode: int, out: Any) -> None:
    """Sums of the blocks first .. last - 1 at theta (C, width), each into its own place of `out`."""
    scratch, rows, out = borrow((scratch, rows, out))
    block, V = scratch.block, scratch.V
    n, total = len(rows.y), len(out.loss)
    for b in range(first, last):
        for lo in range(n * b // total, n * (b + 1) // total, TILE):
            hi = min(lo + TILE, n * (b + 1) // total)
            load_tile(rows, lo, hi, scratch.ids, block.columns)
            for i in range(hi - lo):
                block.y[i] = rows.y[lo + i]
                block.weight[i] = rows.weights[lo + i] if len(rows.weights) > 0 else 1.0
            out.loss[b] += evaluate(block, theta, 0, hi - lo)
            if mode == PRODUCT:
                for c in range(len(V)):
                    scores(block.columns, along[c], 0, -(-(hi - lo) // PAD) * PAD, V[c])
                add_product(block, 0, hi - lo, V, out.vector[b])
            else:
                add_gradient(block, 0, hi - lo, out.vector[b])
            if mode == HESSIAN:
                add_hessian(block, 0, hi - lo, out.matrix[b])


def _by_class(theta: ArrayLike, n_classes: int, d: int, name: str = "theta") -> Float:
    """(C, width): coefficients, intercept, zeros of every class."""
    flat = check_vector(theta, n_classes * (d + 1), name)
    out = np.zeros((n_classes, width_of(d + 1)))
    out[:, :d], out[:, d] = flat[: n_classes * d].reshape(n_classes, d), flat[n_classes * d :]
    return out


def _flat(blocks: Float) -> Float:
    """(..., C, d + 1) -> (..., p) in theta's order."""
    lead = blocks.shape[:-2]
    return np.concatenate([blocks[..., :-1].reshape(*lead, -1), blocks[..., -1]], axis=-1)


def _order(n_classes: int, d: int) -> Ints:
    """order[i] = index c * (d + 1) + k of theta's entry i."""
    return _flat(np.arange(n_classes * (d + 1), dtype=np.float64).reshape(n_classes, d + 1)).astype(np.int64)


def _sums(
    X: Array,
    y: Array,
    theta: ArrayLike,
    C: int,
    mode: int,
    weights: ArrayLike | None = None,
    direction: ArrayLike | None = None,
) -> tuple[float, Float, Float]:
    """(loss, gradient or Hessian times direction (p,), Hessian (p, p)) summed over rows; the Hessian only if asked."""
    (n, d), p = X.shape, C * (X.shape[1] + 1)
    point = _by_class(theta, C, d)
    along = point if direction is None else _by_class(direction, C, d, "v")
    blocks = min(block_count(n), 16) if mode == HESSIAN else block_count(n)  # a Hessian may have megabytes
    matrices = (blocks, p, p) if mode == HESSIAN else (1, 1, 1)
    out = Sums(np.zeros(blocks), np.zeros((blocks, *point.shape)), np.zeros(matrices))
    what = (rows_of(X, y, check_weights(weights, n)), point, along, mode, out)

    def scratch() -> _Scratch:
        return _Scratch(_new_block(TILE, d, C, y), aligned_zeros((C, padded(TILE))), np.zeros(TILE, np.int64))

    loss, vector, matrix = sum_rows(("softmax sums", y.dtype), _sum_blocks, scratch, X, *what)
    if mode == HESSIAN:
        matrix = (np.tril(matrix) + np.tril(matrix, -1).T)[np.ix_(_order(C, d), _order(C, d))]
    return loss, _flat(vector[:, : d + 1]), matrix


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
    read = (X, y, theta, weights)
    X, y = check_xy(X, y, n_classes, MAX_CLASSES)
    p = n_classes * (X.shape[1] + 1)
    return add_sums(lambda mode: _sums(X, y, theta, n_classes, mode, weights), p, gradient_out, hessian_out, read)


def softmax_gradient(X: ArrayLike, y: ArrayLike, theta: ArrayLike, n_classes: int) -> Float:
    """(p,) mean gradient of the loss over the rows, without penalty; zeros for no rows."""
    X, y = check_xy(X, y, n_classes, MAX_CLASSES)
    return _sums(X, y, theta, n_classes, GRADIENT)[1] / max(len(X), 1)


def softmax_loss(X: ArrayLike, y: ArrayLike, theta: ArrayLike, n_classes: int) -> float:
    """Mean loss over the rows, without penalty; 0 for no rows."""
    X, y = check_xy(X, y, n_classes, MAX_CLASSES)
    return _sums(X, y, theta, n_classes, GRADIENT)[0] / max(len(X), 1)


def softmax_hvp(X: ArrayLike, theta: ArrayLike, v: ArrayLike, n_classes: int) -> Float:
    """(p,) mean Hessian of the loss over the rows, without penalty, times v (p,). It does not depend on labels."""
    X, y = check_xy(X, None, n_classes, MAX_CLASSES)
    return _sums(X, y, theta, n_classes, PRODUCT, None, v)[1] / max(len(X), 1)
