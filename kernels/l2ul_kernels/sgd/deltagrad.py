"""DeltaGrad's replay of a gradient descent without some of its rows: few exact gradients, the others by L-BFGS."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.sgd.minibatch import batch_sum

#: Places of `counts`: exact steps, quasi-Newton steps, steps copied from the cache, pairs kept.
EXACT, QUASI, COPIED, PAIRS = 0, 1, 2, 3


@kernel()
def _dot(a: Any, b: Any) -> float:
    total = 0.0
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@kernel()
def lu_factor(A: Any, n: int, pivots: Any) -> None:
    """A[:n, :n] becomes its LU factors with row exchanges `pivots`; a vanishing pivot is left as it is."""
    for j in range(n):
        best = j
        for i in range(j + 1, n):
            if abs(A[i, j]) > abs(A[best, j]):
                best = i
        pivots[j] = best
        for k in range(n):
            A[j, k], A[best, k] = A[best, k], A[j, k]
        if A[j, j] != 0.0:
            for i in range(j + 1, n):
                A[i, j] /= A[j, j]
                for k in range(j + 1, n):
                    A[i, k] -= A[i, j] * A[j, k]


@kernel()
def lu_solve(A: Any, n: int, pivots: Any, b: Any) -> None:
    """b[:n] becomes the solution of the system that lu_factor factored."""
    for j in range(n):
        b[j], b[pivots[j]] = b[pivots[j]], b[j]
    for j in range(n):
        for k in range(j):
            b[j] -= A[j, k] * b[k]
    for j in range(n - 1, -1, -1):
        for k in range(j + 1, n):
            b[j] -= A[j, k] * b[k]
        b[j] = b[j] / A[j, j] if A[j, j] != 0.0 else 0.0


@kernel()
def compact_factor(S: Any, Y: Any, kept: int, M: Any, pivots: Any) -> float:
    """Factor the middle matrix M (2m, 2m) of the compact form for the `kept` pairs S, Y (m, size); returns sigma."""
    sigma = _dot(Y[kept - 1], S[kept - 1]) / _dot(S[kept - 1], S[kept - 1])
    for i in range(kept):
        for j in range(kept):
            sy = _dot(S[i], Y[j])
            M[i, j] = -sy if i == j else 0.0
            M[i, kept + j] = _dot(S[j], Y[i]) if j > i else 0.0  # L^T
            M[kept + i, j] = sy if i > j else 0.0  # L, the part of S^T Y below the diagonal
            M[kept + i, kept + j] = sigma * _dot(S[i], S[j])
    lu_factor(M, 2 * kept, pivots)
    return sigma


@kernel()
def compact_product(S: Any, Y: Any, kept: int, M: Any, pivots: Any, sigma: float, v: Any, small: Any, out: Any) -> None:
    """out = B v, B the L-BFGS matrix of the pairs; small (2m,) is scratch."""
    for i in range(kept):
        small[i] = _dot(Y[i], v)
        small[kept + i] = sigma * _dot(S[i], v)
    lu_solve(M, 2 * kept, pivots, small)
    for k in range(len(v)):
        t = sigma * v[k]
        for i in range(kept):
            t -= Y[i, k] * small[i] + sigma * S[i, k] * small[kept + i]
        out[k] = t


@kernel()
def _push(S: Any, Y: Any, kept: int, v: Any, change: Any) -> int:
    """The pair becomes the newest (last) of at most m; returns how many there are."""
    m = len(S)
    if kept == m:
        for i in range(m - 1):
            for k in range(len(v)):
                S[i, k], Y[i, k] = S[i + 1, k], Y[i + 1, k]
        kept -= 1
    for k in range(len(v)):
        S[kept, k], Y[kept, k] = v[k], change[k]
    return kept + 1


@kernel()
def replay(
    E: Any,
    F: Any,
    starts: Any,
    forget: Any,
    full: Any,
    order: Any,
    rates: Any,
    W: Any,
    G: Any,
    lam: Any,
    centre: Any,
    burn_in: int,
    period: int,
    limit: float,
    exact_hessian: Any,
    published: int,
    S: Any,
    Y: Any,
    M: Any,
    pivots: Any,
    small: Any,
    work: Any,
    u: Any,
    counts: Any,
    W_out: Any,
    G_out: Any,
) -> None:
    """u (size,), at first the common start, becomes the parameters after all steps without the rows of F.

    E has all visits, batch b those from starts[b] on, with weight 0 for the rows to forget; F has only the visits to
    forget, batch b those from forget[b] on. full (batches,) counts the rows of the cached batches, W and G (T, size)
    are the cached parameters before each step and mean data gradients. S, Y (m, size), M (2m, 2m), pivots and
    small (2m,), work (5, size) are scratch. W_out, G_out (T or 0, size) receive the new cache.
    """
    v, g, gf, bv, total = work[0], work[1], work[2], work[3], work[4]
    size, kept, sigma, first, shift = len(u), 0, 0.0, -1, 0
    for t in range(len(order)):
        b, rate = order[t], rates[t]
        n, c = full[b], forget[b + 1] - forget[b]
        if len(W_out):
            for k in range(size):
                W_out[t, k], G_out[t, k] = u[k], 0.0
        if n == c:
            shift += 1 if published and n > 0 else 0  # as published, the cache then lags behind
            continue
        w, cached = W[t - shift], G[t - shift]
        for k in range(size):
            v[k] = u[k] - w[k]
        square = _dot(v, v)
        if square == 0.0 and c == 0 and not published:  # still where the first run was: its step is the right one
            counts[COPIED] += 1
            for k in range(size):
                if len(W_out):
                    G_out[t, k] = cached[k]
                u[k] -= rate * (cached[k] + lam[k] * (u[k] - centre[k]))
            continue
        first = t if first < 0 else first
        age = t if published else t - first
        exact = age <= burn_in or (age - burn_in) % period == 0
        if not exact:
            if len(exact_hessian):
                for k in range(size):
                    bv[k] = _dot(exact_hessian[k], v)
            elif kept:
                compact_product(S, Y, kept, M, pivots, sigma, v, small, bv)
                exact = limit > 0.0 and not _dot(bv, bv) <= limit * limit * square
            else:
                exact = True
        if c:
            batch_sum(F, forget[b], forget[b + 1], u, gf)
        if exact:
            counts[EXACT] += 1
            batch_sum(E, starts[b], starts[b + 1], u, g)
            for k in range(size):
                all_rows = g[k] + gf[k] if c else g[k]
                total[k] = all_rows / n - cached[k] + lam[k] * v[k]
                g[k] *= 1.0 / (n - c)
            if square > 0.0 and _dot(v, total) > 0.0 and len(S):
                kept = _push(S, Y, kept, v, total)
                sigma = compact_factor(S, Y, kept, M, pivots)
                counts[PAIRS] += 1
            for k in range(size):
                if len(W_out):
                    G_out[t, k] = g[k]
                u[k] -= rate * (g[k] + lam[k] * (u[k] - centre[k]))
        else:
            counts[QUASI] += 1
            for k in range(size):
                here = bv[k] + cached[k] + lam[k] * (w[k] - centre[k])
                ridge = lam[k] * (u[k] - centre[k])
                if c:
                    away = lam[k] * (w[k] - centre[k]) if published else ridge
                    here = (n * here - (gf[k] + c * away)) / (n - c)
                if len(W_out):
                    G_out[t, k] = here - ridge
                u[k] -= rate * here


@kernel(fastmath=("contract",))
def _adam(u: Any, g: Any, mean: Any, square: Any, lam: Any, centre: Any, rate: float, scale: float) -> None:
    """One step of Adam on u (size,) along the gradient g and the penalty's; scale corrects the young second moment.

    With divisions that cannot raise it runs in vectors: else it would take as long as the gradient of 64 rows.
    """
    for k in range(np.uint64(len(u))):
        slope = g[k] + lam[k] * (u[k] - centre[k])
        mean[k] = 0.9 * mean[k] + 0.1 * slope
        square[k] = 0.999 * square[k] + 0.001 * slope * slope
        u[k] -= rate * mean[k] / (np.sqrt(square[k] * scale) + 1e-8)


@kernel()
def train(
    E: Any,
    F: Any,
    starts: Any,
    order: Any,
    rates: Any,
    scales: Any,
    extra: Any,
    extra_scale: Any,
    lam: Any,
    centre: Any,
    adam: int,
    restart: int,
    u: Any,
    work: Any,
    W_out: Any,
    G_out: Any,
) -> None:
    """u (size,) after gradient steps on the batches order (T,): plain, or Adam's with its usual constants, which
    begins anew at step `restart`.

    The gradient of batch b is scales[b] times its sum (0: no rows, no step); step t adds extra_scale[t] times the sum
    over the visits extra[t, 0]..extra[t, 1] of F if there are `extra`. work (4, size) is scratch.
    """
    g, more, mean, square = work[0], work[1], work[2], work[3]
    left1 = left2 = 1.0
    for t in range(len(order)):
        b = order[t]
        if t == 0 or t == restart:
            left1 = left2 = 1.0
            for k in range(len(u)):
                mean[k] = square[k] = 0.0
        if len(W_out):
            for k in range(len(u)):
                W_out[t, k], G_out[t, k] = u[k], 0.0
        if scales[b] == 0.0:
            continue
        batch_sum(E, starts[b], starts[b + 1], u, g)
        for k in range(len(u)):
            g[k] *= scales[b]
        if len(extra) and extra[t, 1] > extra[t, 0]:
            batch_sum(F, extra[t, 0], extra[t, 1], u, more)
            for k in range(len(u)):
                g[k] += extra_scale[t] * more[k]
        if len(W_out):
            for k in range(len(u)):
                G_out[t, k] = g[k]
        if not adam:
            for k in range(len(u)):
                u[k] -= rates[t] * (g[k] + lam[k] * (u[k] - centre[k]))
            continue
        left1, left2 = left1 * 0.9, left2 * 0.999
        _adam(u, g, mean, square, lam, centre, rates[t] / (1.0 - left1), 1.0 / (1.0 - left2))
