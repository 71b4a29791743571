"""Logistic regression of one gathered subset by Newton's method: a quick way, and a careful way for when it fails.

Quick: Gram matrices in the precision of the data are enough for a direction, and a Cholesky factor is kept for further
steps while it still shrinks the gradient fast; only the gradient is exact. Its largest entry must fall with every step.
Careful: a fresh double-precision Hessian and a backtracking line search on the loss in every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from l2ul_kernels.arrays import Array, Float
from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.simd.cholesky import cholesky, clear, copy, dot, solve
from l2ul_kernels.simd.columns import CHUNK, PAD, add_dots, add_gram, losses, padded, residuals, scores, width_of


class Rule(NamedTuple):
    """lam: strength of the penalty; tol: largest entry of the gradient at which a fit is done; max_steps of Newton."""

    lam: float
    tol: float
    max_steps: int


class Work(NamedTuple):
    """A gathered subset of rows with one worker's memory; widths and rows padded as in simd/columns."""

    columns: Array  # (width, rows), in the precision of the data
    y: Float  # (rows,), like all up to `used`
    z: Float  # scores
    residual: Float  # probability - y
    terms: Float  # losses
    w: Array  # curvature, in the columns' precision
    used: Array  # the curvature that the Hessian was made with
    scaled: Array  # (3, CHUNK) scratch of add_gram, in the columns' precision
    exact: Float  # (3, CHUNK) the same in double precision
    hessian: Float  # (width, width) the sum over rows, lower blocks, without the penalty
    factor: Float  # (width, width) Cholesky factor of the mean Hessian with penalty
    gradient: Float  # (width,), like all that follow
    step: Float
    trial: Float
    theta: Float


def new_work(s: int, d: int, dtype: Any) -> Work:
    """Memory for subsets of s rows of d features."""
    width, rows = width_of(d + 1), padded(s)
    parts: Any = (
        aligned_zeros((width, rows), dtype),
        *aligned_zeros((4, rows)),
        *aligned_zeros((2, rows), dtype),
        aligned_zeros((3, CHUNK), dtype),
        aligned_zeros((3, CHUNK)),
        *aligned_zeros((2, width, width)),
        *aligned_zeros((4, width)),
    )
    return Work(*parts)


@kernel(inline=True)
def evaluate(work: Any, theta: Any, lo: int, hi: int) -> None:
    """z, residual and w of the rows lo..hi at theta; the rows around them that pad count for nothing."""
    first, last = lo // PAD * PAD, -(-hi // PAD) * PAD
    scores(work.columns, theta, first, last, work.z)
    residuals(work.z, work.y, first, last, work.residual, work.w)
    for i in range(first, lo):
        work.residual[i] = 0.0
        work.w[i] = 0
    for i in range(hi, last):
        work.residual[i] = 0.0
        work.w[i] = 0


@kernel(inline=True)
def mean_gradient(work: Any, theta: Any, lo: int, hi: int, d: int, lam: float) -> float:
    """The mean gradient with penalty, from the residuals at theta; returns its largest entry."""
    out = work.gradient
    for k in range(len(out)):
        out[k] = 0.0
    add_dots(work.columns, work.residual, lo // PAD * PAD, -(-hi // PAD) * PAD, out)
    norm = 0.0
    for k in range(d + 1):
        out[k] = out[k] / (hi - lo) + (lam * theta[k] if k < d else 0.0)
        norm = norm if abs(out[k]) <= norm or norm != norm else abs(out[k])  # NaN comes through
    return norm


@kernel(inline=True)
def mean_loss(work: Any, theta: Any, lo: int, hi: int, d: int, lam: float) -> float:
    """The mean loss with penalty, from the scores at theta."""
    losses(work.z, work.y, lo, hi, work.terms)
    total = 0.0
    for i in range(lo, hi):
        total += work.terms[i]
    return total / (hi - lo) + lam / 2 * dot(theta, theta, d)


@kernel(inline=True)
def curvature(work: Any, lo: int, hi: int, downdate: bool, careful: bool) -> None:
    """The Hessian over the rows lo..hi from the last `evaluate`; or, to downdate, take the first lo rows out of it."""
    w, used = work.w, work.used
    first, last = (0, -(-lo // PAD) * PAD) if downdate else (lo // PAD * PAD, -(-hi // PAD) * PAD)
    for i in range(first, last):
        if downdate:
            w[i] = -used[i] if i < lo else 0
        else:
            used[i] = w[i]
    if not downdate:
        clear(work.hessian)
    if careful:
        add_gram(work.columns, w, first, last, work.exact, work.hessian)
    else:
        add_gram(work.columns, w, first, last, work.scaled, work.hessian)


@kernel(inline=True)
def factorise(work: Any, n: int, d: int, lam: float, careful: bool) -> bool:
    """Cholesky factor of the mean Hessian with penalty; if careful, with a ridge where it needs one."""
    hessian, factor, ridge = work.hessian, work.factor, 0.0
    for _ in range(20 if careful else 1):
        for i in range(d + 1):
            for j in range(i + 1):
                factor[i, j] = hessian[i, j] / n
            factor[i, i] += ridge + (lam if i < d else 0.0)
        if cholesky(factor, d + 1):
            return True
        ridge = max(10 * ridge, 1e-10)
    return False


@kernel(inline=True)
def minimise(work: Any, rule: Any, d: int, lo: int, hi: int, downdate: bool) -> tuple[float, int]:
    """(largest gradient entry, steps) after minimising over the rows lo..hi from work.theta, in place.

    downdate: the residuals at theta and a Hessian near it for the rows 0..hi are there: the first step is cheap.
    """
    lam, theta, gradient, step, trial = rule.lam, work.theta, work.gradient, work.step, work.trial
    copy(theta, trial)
    norm, value, value_after, slope, t, steps = np.inf, np.inf, 0.0, 0.0, 0.0, 0  # norm infinite: nothing to compare
    known, factored, fresh, careful, stuck = downdate, False, False, False, False
    while True:
        if not known:
            evaluate(work, trial, lo, hi)
        known = False
        after = mean_gradient(work, trial, lo, hi, d, lam)
        if careful:
            value_after = mean_loss(work, trial, lo, hi, d, lam)
        if norm == np.inf:
            better = True
        elif careful:
            noise = 1e-14 * value
            better = value_after <= value - 1e-4 * t * slope + noise
            stuck = better and value_after >= value - noise and not after < 0.5 * norm
        else:
            better = after < 0.9 * norm
            # Kept, this factor would shrink the gradient by `shrink` per step. A new one costs about three gradients.
            shrink = 2 * after / norm
            factored = better and after * shrink * shrink * shrink < rule.tol
        if better:
            copy(trial, theta)
            norm, value = after, value_after
            if not norm > rule.tol or steps == rule.max_steps or stuck:
                break
            fresh = not factored
            if fresh:
                curvature(work, lo, hi, downdate, careful)
                fresh, downdate = not downdate, False
                better = factorise(work, hi - lo, d, lam, careful)
        if better:
            solve(work.factor, d + 1, gradient, step)
            slope, t, steps = dot(gradient, step, d + 1), 1.0, steps + 1
        elif careful and t > 1e-12:
            t /= 2
        elif careful:
            break
        else:  # the same point again, with a new factor if this was an old one
            careful, factored, norm, t = fresh, False, np.inf, 0.0
        for k in range(d + 1):
            trial[k] = theta[k] - t * step[k] if t > 0.0 else theta[k]
    return norm, steps
