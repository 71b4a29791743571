"""Multinomial logistic regression on gathered rows: the compiled parts.

Inside, parameters are (C, width): for each class its coefficients, its intercept, zeros. P (C, rows) holds scores, then
probabilities. Matrices over all parameters have index c * (d + 1) + k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.pointers import fetch_add
from l2ul_kernels.linear.sums import HESSIAN, PRODUCT, TILE, load_tile
from l2ul_kernels.simd.cholesky import cholesky, clear, copy, dot, solve
from l2ul_kernels.simd.columns import PAD, add_dots, add_gram, exp_negative, gather, scores


@kernel(fastmath=("contract",))
def softmax(P: Any, y: Any, weight: Any, lo: int, hi: int, scratch: Any) -> float:
    """Scores -> probabilities for the rows lo..hi; returns the weighted sum of their losses. scratch (2, rows)."""
    classes = P.shape[0]
    total = 0.0
    for i in range(np.uint64(lo), np.uint64(hi)):
        scratch[0, i] = P[0, i]
        scratch[1, i] = 0.0
    for c in range(1, classes):
        for i in range(np.uint64(lo), np.uint64(hi)):
            scratch[0, i] = max(scratch[0, i], P[c, i])
    for i in range(lo, hi):
        total += weight[i] * (scratch[0, i] - P[y[i], i])
    for c in range(classes):
        for i in range(np.uint64(lo), np.uint64(hi)):
            P[c, i] = exp_negative(P[c, i] - scratch[0, i])
            scratch[1, i] += P[c, i]
    for i in range(lo, hi):
        total += weight[i] * np.log(scratch[1, i])
    for c in range(classes):
        for i in range(np.uint64(lo), np.uint64(hi)):
            P[c, i] /= scratch[1, i]
    return total


@kernel()
def evaluate(columns: Any, theta: Any, lo: int, hi: int, y: Any, weight: Any, P: Any, scratch: Any) -> float:
    """Probabilities of the rows lo..hi at theta, and the weighted sum of their losses."""
    for c in range(len(theta)):
        scores(columns, theta[c], lo // PAD * PAD, -(-hi // PAD) * PAD, P[c])
    return softmax(P, y, weight, lo, hi, scratch)


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
def add_gradient(columns: Any, lo: int, hi: int, y: Any, weight: Any, P: Any, values: Any, out: Any) -> None:
    """out (C, width) += weighted sum of the gradients of the rows lo..hi."""
    for c in range(len(P)):
        for i in range(lo, hi):
            values[i] = weight[i] * (P[c, i] - (1.0 if y[i] == c else 0.0))
        add_rows(columns, lo, hi, values, out[c])


@kernel(inline=True)
def add_product(columns: Any, lo: int, hi: int, weight: Any, P: Any, V: Any, scratch: Any, out: Any) -> None:
    """out (C, width) += weighted sum of the Hessians of the rows lo..hi times a direction of scores V (C, rows)."""
    for i in range(lo, hi):
        scratch[1, i] = 0.0
        for c in range(len(P)):
            scratch[1, i] += P[c, i] * V[c, i]
    for c in range(len(P)):
        for i in range(lo, hi):
            scratch[0, i] = weight[i] * P[c, i] * (V[c, i] - scratch[1, i])
        add_rows(columns, lo, hi, scratch[0], out[c])


@kernel()
def add_hessian(
    columns: Any, lo: int, hi: int, weight: Any, P: Any, values: Any, scaled: Any, square: Any, out: Any
) -> None:
    """out (p, p) += weighted sum of the Hessians of the rows lo..hi; lower triangle of class blocks, each complete."""
    first, last, p = lo // PAD * PAD, -(-hi // PAD) * PAD, len(out) // len(P)
    for i in range(first, last):
        values[i] = 0.0
    for a in range(len(P)):
        for b in range(a + 1):
            for i in range(lo, hi):
                values[i] = weight[i] * P[a, i] * ((1.0 if a == b else 0.0) - P[b, i])
            clear(square)
            add_gram(columns, values, first, last, scaled, square)
            for j in range(p):
                for k in range(j + 1):
                    out[a * p + j, b * p + k] += square[j, k]
                    if k < j:
                        out[a * p + k, b * p + j] += square[j, k]


@kernel()
def sum_blocks(
    X: Any,
    at: int,
    y: Any,
    weight: Any,
    theta: Any,
    along: Any,
    mode: int,
    next_block: int,
    blocks: int,
    ids: Any,
    columns: Any,
    scratch: Any,
    scaled: Any,
    P: Any,
    V: Any,
    square: Any,
    labels: Any,
    factors: Any,
    loss: Any,
    vector: Any,
    matrix: Any,
) -> None:
    """As for two classes (see _sums): blocks of rows from a counter into loss[b], vector[b], matrix[b]."""
    n, total = X.shape[0], len(loss)
    while True:
        b = fetch_add(next_block, 1)
        if b >= blocks:
            return
        for lo in range(n * b // total, n * (b + 1) // total, TILE):
            hi = min(lo + TILE, n * (b + 1) // total)
            load_tile(X, at, lo, hi, ids, columns)
            for i in range(hi - lo):
                labels[i] = y[lo + i]
                factors[i] = weight[lo + i] if len(weight) > 0 else 1.0
            loss[b] += evaluate(columns, theta, 0, hi - lo, labels, factors, P, scratch)
            if mode == PRODUCT:
                for c in range(len(P)):
                    scores(columns, along[c], 0, -(-(hi - lo) // PAD) * PAD, V[c])
                add_product(columns, 0, hi - lo, factors, P, V, scratch, vector[b])
            else:
                add_gradient(columns, 0, hi - lo, labels, factors, P, scratch[0], vector[b])
            if mode == HESSIAN:
                add_hessian(columns, 0, hi - lo, factors, P, scratch[0], scaled, square, matrix[b])


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
def minimise(
    columns: Any,
    lo: int,
    hi: int,
    d: int,
    lam: float,
    tol: float,
    max_steps: int,
    y: Any,
    weight: Any,
    P: Any,
    scratch: Any,
    scaled: Any,
    square: Any,
    squares: Any,
    thetas: Any,
    flats: Any,
) -> tuple[float, int]:
    """(largest gradient entry, steps) of damped Newton over the rows lo..hi from thetas[0] (C, width), in place."""
    theta, trial, gradient = thetas[0], thetas[1], thetas[2]
    hessian, factor, flat, step = squares[0], squares[1], flats[0], flats[1]
    classes, p, n = len(theta), d + 1, hi - lo
    for c in range(classes):
        copy(theta[c], trial[c])
    norm, value, slope, t, steps = np.inf, np.inf, 0.0, 1.0, 0
    while True:
        after_value = evaluate(columns, trial, lo, hi, y, weight, P, scratch) / n
        clear(gradient)
        add_gradient(columns, lo, hi, y, weight, P, scratch[0], gradient)
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
            if not norm > tol or steps == max_steps or stuck:
                break
            clear(hessian)
            add_hessian(columns, lo, hi, weight, P, scratch[0], scaled, square, hessian)
            newton_matrix(hessian, classes, n, lam, factor)
            if not cholesky(factor, classes * p):
                break
            solve(factor, classes * p, flat, step)
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
def fit_some(
    X: Any,
    at: int,
    y: Any,
    ids: Any,
    n_forget: Any,
    next_pair: int,
    last: int,
    start: Any,
    lam: float,
    tol: float,
    max_steps: int,
    columns: Any,
    labels: Any,
    weight: Any,
    P: Any,
    scratch: Any,
    scaled: Any,
    square: Any,
    squares: Any,
    thetas: Any,
    flats: Any,
    out: Any,
    norms: Any,
    steps: Any,
) -> None:
    """Fit pairs below `last` one after the other, taken from the counter at `next_pair`; out (m, 2, C, d + 1)."""
    s, d, theta = ids.shape[1], X.shape[1], thetas[0]
    while True:
        pair = fetch_add(next_pair, 1)
        if pair >= last:
            return
        gather(X, ids[pair], at, columns)
        for i in range(s):
            labels[i] = y[ids[pair, i]]
        for c in range(len(theta)):
            copy(start[c], theta[c])
        for part in range(2):
            lo = n_forget[pair] if part else 0
            every = True  # a class without rows has no finite intercept
            for c in range(len(theta)):
                found = False
                for i in range(lo, s):
                    found = found or labels[i] == c
                every = every and found
            norms[pair, part] = np.inf
            if every:
                norms[pair, part], steps[pair, part] = minimise(
                    columns,
                    lo,
                    s,
                    d,
                    lam,
                    tol,
                    max_steps,
                    labels,
                    weight,
                    P,
                    scratch,
                    scaled,
                    square,
                    squares,
                    thetas,
                    flats,
                )
            for c in range(len(theta)):
                for k in range(d + 1):
                    theta[c, k] = theta[c, k] if every else 0.0
                    out[pair, part, c, k] = theta[c, k]
