"""Logistic regression of one gathered subset by Newton's method: a quick way, and a careful way for when it fails.

Quick: Gram matrices in the precision of the data are enough for a direction, and a Cholesky factor is kept for further
steps while it still shrinks the gradient fast; only the gradient is exact. Its largest entry must fall with every step.
Careful: a fresh double-precision Hessian and a backtracking line search on the loss in every step.

Arrays of a subset, widths and rows padded as in _columns: y, z (scores), residual (probability - y), terms (losses), w
(curvature, in the columns' dtype), used (the curvature that the Hessian was made with), all (rows,); hessian, factor
(width, width), the sum over rows, lower blocks, without the penalty; theta, gradient, step, trial (width,).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.simd.cholesky import cholesky, clear, copy, dot, solve
from l2ul_kernels.simd.columns import PAD, add_dots, add_gram, losses, residuals, scores


@kernel(inline=True)
def evaluate(columns: Any, theta: Any, lo: int, hi: int, y: Any, z: Any, residual: Any, w: Any) -> None:
    """z, residual and w of the rows lo..hi at theta; the rows around them that pad count for nothing."""
    first, last = lo // PAD * PAD, -(-hi // PAD) * PAD
    scores(columns, theta, first, last, z)
    residuals(z, y, first, last, residual, w)
    for i in range(first, lo):
        residual[i] = 0.0
        w[i] = 0
    for i in range(hi, last):
        residual[i] = 0.0
        w[i] = 0


@kernel(inline=True)
def mean_gradient(columns: Any, residual: Any, theta: Any, lo: int, hi: int, d: int, lam: float, out: Any) -> float:
    """The mean gradient with penalty into out, from the residuals at theta; its largest entry."""
    for k in range(len(out)):
        out[k] = 0.0
    add_dots(columns, residual, lo // PAD * PAD, -(-hi // PAD) * PAD, out)
    norm = 0.0
    for k in range(d + 1):
        out[k] = out[k] / (hi - lo) + (lam * theta[k] if k < d else 0.0)
        norm = norm if abs(out[k]) <= norm or norm != norm else abs(out[k])  # NaN comes through
    return norm


@kernel(inline=True)
def mean_loss(y: Any, z: Any, theta: Any, lo: int, hi: int, d: int, lam: float, terms: Any) -> float:
    """The mean loss with penalty, from the scores at theta."""
    losses(z, y, lo, hi, terms)
    total = 0.0
    for i in range(lo, hi):
        total += terms[i]
    return total / (hi - lo) + lam / 2 * dot(theta, theta, d)


@kernel(inline=True)
def curvature(
    columns: Any,
    lo: int,
    hi: int,
    downdate: bool,
    careful: bool,
    w: Any,
    used: Any,
    scaled: Any,
    exact: Any,
    hessian: Any,
) -> None:
    """The Hessian over the rows lo..hi from the last `evaluate`; or, to downdate, take the first lo rows out of it."""
    first, last = (0, -(-lo // PAD) * PAD) if downdate else (lo // PAD * PAD, -(-hi // PAD) * PAD)
    for i in range(first, last):
        if downdate:
            w[i] = -used[i] if i < lo else 0
        else:
            used[i] = w[i]
    if not downdate:
        clear(hessian)
    if careful:
        add_gram(columns, w, first, last, exact, hessian)
    else:
        add_gram(columns, w, first, last, scaled, hessian)


@kernel(inline=True)
def factorise(hessian: Any, n: int, d: int, lam: float, careful: bool, factor: Any) -> bool:
    """Cholesky factor of the mean Hessian with penalty; if careful, with a ridge where it needs one."""
    ridge = 0.0
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
def minimise(
    columns: Any,
    rows: Any,
    weights: Any,
    scaled: Any,
    exact: Any,
    squares: Any,
    vectors: Any,
    theta: Any,
    lo: int,
    hi: int,
    d: int,
    lam: float,
    tol: float,
    max_steps: int,
    downdate: bool,
) -> tuple[float, int]:
    """(largest gradient entry, steps) after minimising over the rows lo..hi from theta, in place.

    rows (4, ...) = y, z, residual, terms; weights (2, ...) = w, used; squares (2, ...) = hessian, factor; vectors
    (3, ...) = gradient, step, trial; scaled and exact (3, CHUNK) as add_gram wants them in either precision.
    downdate: the residuals at theta and a Hessian near it for the rows 0..hi are there: the first step is cheap.
    """
    y, z, residual, terms, w, used = rows[0], rows[1], rows[2], rows[3], weights[0], weights[1]
    hessian, factor, gradient, step, trial = squares[0], squares[1], vectors[0], vectors[1], vectors[2]
    copy(theta, trial)
    norm, value, value_after, slope, t, steps = np.inf, np.inf, 0.0, 0.0, 0.0, 0  # norm infinite: nothing to compare
    known, factored, fresh, careful, stuck = downdate, False, False, False, False
    while True:
        if not known:
            evaluate(columns, trial, lo, hi, y, z, residual, w)
        known = False
        after = mean_gradient(columns, residual, trial, lo, hi, d, lam, gradient)
        if careful:
            value_after = mean_loss(y, z, trial, lo, hi, d, lam, terms)
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
            factored = better and after * shrink * shrink * shrink < tol
        if better:
            copy(trial, theta)
            norm, value = after, value_after
            if not norm > tol or steps == max_steps or stuck:
                break
            fresh = not factored
            if fresh:
                curvature(columns, lo, hi, downdate, careful, w, used, scaled, exact, hessian)
                fresh, downdate = not downdate, False
                better = factorise(hessian, hi - lo, d, lam, careful, factor)
        if better:
            solve(factor, d + 1, gradient, step)
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
