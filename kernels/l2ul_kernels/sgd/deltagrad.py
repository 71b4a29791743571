"""DeltaGrad's replay of a gradient descent without some of its rows: few exact gradients, the others by L-BFGS."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from l2ul_kernels.arrays import Float, Ints
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.sgd.minibatch import Engine, batch_sum
from l2ul_kernels.simd.cholesky import dot
from l2ul_kernels.simd.elementwise import adam_step
from l2ul_kernels.simd.views import borrow

#: Places of `counts`: exact steps, quasi-Newton steps, steps copied from the cache, pairs kept.
EXACT, QUASI, COPIED, PAIRS = 0, 1, 2, 3


class Batches(NamedTuple):
    """Batch b has the visits starts[b] .. starts[b + 1] of E, with weight 0 for the rows to forget."""

    E: Engine
    starts: Ints  # (batches + 1,)
    full: NDArray[
        Any
    ]  # (batches,) rows of the cached batches; or what the sum of a batch is multiplied with (0: no step)
    F: Engine  # has only the visits to forget, or `extra` ones
    forget: Ints  # (batches + 1,) where each batch's begin


class Steps(NamedTuple):
    """T steps of gradient descent. The penalty is sum_k lam_k (theta_k - centre_k)^2 / 2."""

    order: Ints  # (T,) the batch of every step
    rates: Float  # (T,)
    lam: Float  # (size,)
    centre: Float  # (size,)


class Extra(NamedTuple):
    """Step t adds scale[t] times the sum over the visits ranges[t, 0] .. ranges[t, 1] of F, if there are ranges."""

    ranges: Ints  # (T or 0, 2)
    scale: Float  # (T or 0,)


class Cache(NamedTuple):
    """Parameters before each step and the mean data gradients there; empty arrays keep none."""

    W: Float  # (T or 0, size)
    G: Float  # (T or 0, size)


class Rule(NamedTuple):
    """Which steps are exact; see `Descent.replay`."""

    burn_in: int
    period: int
    limit: float
    published: int
    hessian: Float  # (size, size) in place of L-BFGS, or (0, 0)


class Pairs(NamedTuple):
    """Up to m pairs (step, change of gradient), oldest first, and the compact form of their L-BFGS matrix."""

    S: Float  # (m, size)
    Y: Float  # (m, size)
    M: Float  # (2m, 2m) factored
    pivots: Ints  # (2m,)
    small: Float  # (2m,) scratch


@kernel()
def _dot(a: Any, b: Any) -> float:
    return dot(a, b, len(a))


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
def compact_factor(pairs: Any, kept: int) -> float:
    """Factor the middle matrix M (2m, 2m) of the compact form for the `kept` pairs; returns sigma."""
    S, Y, M = pairs.S, pairs.Y, pairs.M
    sigma = _dot(Y[kept - 1], S[kept - 1]) / _dot(S[kept - 1], S[kept - 1])
    for i in range(kept):
        for j in range(kept):
            sy = _dot(S[i], Y[j])
            M[i, j] = -sy if i == j else 0.0
            M[i, kept + j] = _dot(S[j], Y[i]) if j > i else 0.0  # L^T
            M[kept + i, j] = sy if i > j else 0.0  # L, the part of S^T Y below the diagonal
            M[kept + i, kept + j] = sigma * _dot(S[i], S[j])
    lu_factor(M, 2 * kept, pairs.pivots)
    return sigma


@kernel()
def compact_product(pairs: Any, kept: int, sigma: float, v: Any, out: Any) -> None:
    """out = B v, B the L-BFGS matrix of the pairs."""
    S, Y, small = pairs.S, pairs.Y, pairs.small
    for i in range(kept):
        small[i] = _dot(Y[i], v)
        small[kept + i] = sigma * _dot(S[i], v)
    lu_solve(pairs.M, 2 * kept, pairs.pivots, small)
    for k in range(len(v)):
        t = sigma * v[k]
        for i in range(kept):
            t -= Y[i, k] * small[i] + sigma * S[i, k] * small[kept + i]
        out[k] = t


@kernel()
def _push(pairs: Any, kept: int, v: Any, change: Any) -> int:
    """The pair becomes the newest (last) of at most m; returns how many there are."""
    S, Y, m = pairs.S, pairs.Y, len(pairs.S)
    if kept == m:
        for i in range(m - 1):
            for k in range(len(v)):
                S[i, k], Y[i, k] = S[i + 1, k], Y[i + 1, k]
        kept -= 1
    for k in range(len(v)):
        S[kept, k], Y[kept, k] = v[k], change[k]
    return kept + 1


@kernel()
def replay(batches: Any, steps: Any, cached_run: Any, rule: Any, pairs: Any, work: Any, u: Any, out: Any) -> None:
    """u (size,), at first the common start, becomes the parameters after all steps without the rows to forget.

    work (5, size) is scratch. out = (counts, new cache).
    """
    batches, steps, cached_run, rule, pairs = borrow((batches, steps, cached_run, rule, pairs))
    work, u, out = borrow((work, u, out))
    E, starts, full, F, forget = batches
    order, rates, lam, centre = steps
    burn_in, period, limit, published, exact_hessian = rule
    W, G = cached_run
    counts, (W_out, G_out) = out
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
                compact_product(pairs, kept, sigma, v, bv)
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
            if square > 0.0 and _dot(v, total) > 0.0 and len(pairs.S):
                kept = _push(pairs, kept, v, total)
                sigma = compact_factor(pairs, kept)
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


@kernel()
def train(batches: Any, steps: Any, extra: Any, adam: int, restart: int, u: Any, work: Any, cache: Any) -> None:
    """u (size,) after the gradient steps: plain, or Adam's with its usual constants, which begins anew at `restart`.

    The gradient of batch b is full[b] times its sum. work (4, size) is scratch; the cache is filled if it has lines.
    """
    batches, steps, extra, u, work, cache = borrow((batches, steps, extra, u, work, cache))
    E, starts, scales, F, _ = batches
    order, rates, lam, centre = steps
    W_out, G_out = cache
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
        if len(extra.ranges) and extra.ranges[t, 1] > extra.ranges[t, 0]:
            batch_sum(F, extra.ranges[t, 0], extra.ranges[t, 1], u, more)
            for k in range(len(u)):
                g[k] += extra.scale[t] * more[k]
        if len(W_out):
            for k in range(len(u)):
                G_out[t, k] = g[k]
        for k in range(len(u)):
            g[k] += lam[k] * (u[k] - centre[k])
        if adam:
            left1, left2 = left1 * 0.9, left2 * 0.999
            adam_step(u, g, mean, square, rates[t] / (1.0 - left1), 1.0 / (1.0 - left2))
        else:
            for k in range(len(u)):
                u[k] -= rates[t] * g[k]
