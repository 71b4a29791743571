"""Exact sums over rows: gradients, Hessians and third derivatives of a linear model at one point, as integers.

Each row's term is rounded once to fixed point, so adding and subtracting rows is exact in any order, on any number of
threads or machines: the sums without a row equal, bit for bit, those of somebody who never had it.

At the anchor g, a row x (the intercept's 1 last) with predictor z = g . x and derivatives e, w, c of its loss adds

    G_j   += e x_j            H_jk  += w x_j x_k  (j <= k)            T_jkl += c x_j x_k x_l  (j <= k <= l)

Columns are divided by a power of two above their largest magnitude first (u, |u| < 1), derivatives likewise. G and H
are rounded term by term. T is a matrix product of rounded factors, u_j and c u_k u_l: their products and the sums of a
block of rows are integers below 2^53, so the product may run in floating point, in any order, and stay exact.

`sums` (int64) holds, for p parameters and C classes:

    rows | weight | classes (C) | tops (p + 4) | moments (p) | G (p) | H (q) | T (t)

with q = p (p + 1) / 2 pairs and t = p (p + 1) (p + 2) / 6 triples. `weight` is the sum of the rows' weights, `tops`
counts the rows in the upper half of each scale (columns, e, w, c, weights): when one becomes zero, the scale would be
another without the rows that have left. `moments` are sums of u^2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import prange

from l2ul_kernels.arrays import Array, Float, Ints
from l2ul_kernels.codegen.alignment import aligned_parts
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.linear.losses import MAGIC, MAGIC_BITS, as_bits, derivatives
from l2ul_kernels.simd.gemm import gemm
from l2ul_kernels.simd.views import borrow, vector
from l2ul_kernels.threads import parallel_entry

U = np.uint64
#: Rows whose third derivatives are one matrix product: 2^6 sums of terms of at most 2^44 stay below 2^51.
BLOCK = 64
#: Bits of a term of T at most, and of a term of G and H.
THIRD_BITS, TERM_BITS = 44, 50
#: float64 values per cache line, and pairs whose products are made together: 64 rows of them stay in the first cache.
LINE, STRIP = 8, 32
#: The bits of four MAGICs, as their sum wraps.
FOUR_MAGICS = 4 * MAGIC_BITS % 2**64
#: Entries of `scales`: the factors that make integers of u^2, e u, w u u; of c u u and u in T; of weights; half of the
#: largest c in the units of T.
MOMENT, FIRST, SECOND, THIRD, COLUMN, WEIGHT, HALF_THIRD, SCALES = 0, 1, 2, 3, 4, 5, 6, 7


class Terms(NamedTuple):
    """What a row adds to the sums."""

    loss: int
    order: int  # 2, or 3 with T
    counted: bool  # whether `tops` counts e, w, c and weights: else their scales are constants of the loss
    anchor: Float  # (p,)
    inverse_scale: Float  # (p,)
    scales: Float  # as `SCALES` says
    classes: int  # 0: class counts are not kept


class Memory(NamedTuple):
    """Memory of one worker; of all workers with one axis more."""

    factors: Float  # (BLOCK + 1, wide) the u of collected rows, zeros behind p
    values: Float  # (6, BLOCK) their predictors, targets, weights; then e, w, c
    held: Ints  # (p + 3, wide) scratch, like the next two
    pairs: Float  # (BLOCK, q and a line more)
    product: Float  # (p, the same)


@kernel()
def pairs_of(p: int) -> int:
    """Pairs j <= k of p parameters."""
    return p * (p + 1) // 2


@kernel()
def triples_of(p: int) -> int:
    """Triples j <= k <= l of p parameters."""
    return p * (p + 1) * (p + 2) // 6


@kernel()
def tops_at(classes: int) -> int:
    """Where `tops` begin in `sums`."""
    return 2 + classes


@kernel()
def moments_at(p: int, classes: int) -> int:
    """Where `moments` begin in `sums`; G, H and T follow."""
    return tops_at(classes) + p + 4


def sums_size(p: int, classes: int, order: int) -> int:
    """Length of `sums`."""
    return moments_at(p, classes) + 2 * p + pairs_of(p) + (triples_of(p) if order == 3 else 0)


def fixed_point_bits(rows: int) -> int:
    """Bits behind the binary point of a term below 1, such that `rows` of them add up to less than 2^62."""
    return min(TERM_BITS, 62 - max(int(rows), 1).bit_length())


@kernel()
def scale_row(row: int, X: Any, anchor: Any, inverse_scale: Any, u: Any) -> float:
    """u (p,) = the row divided by its columns' scales; returns its predictor at the anchor."""
    d = X.shape[1]
    z = 0.0
    for j in range(U(d)):
        x = np.float64(X[row, j])
        z += anchor[j] * x
        u[j] = x * inverse_scale[j]
    u[d] = inverse_scale[d]
    return z + anchor[d]


@kernel()
def write_pairs(u: Any, p: int, factor: float, out: Any, at: int) -> None:
    """out[at:] = integers nearest to factor u_k u_l, k <= l. Up to LINE more of both arrays are touched."""
    to = U(at)
    for k in range(U(p)):
        f = factor * u[k]
        for i in range((U(p) - k + U(LINE - 1)) // U(LINE) * U(LINE)):  # whole vectors: the next line overwrites
            out[to + i] = (f * u[k + i] + MAGIC) - MAGIC
        to += U(p) - k


@kernel()
def add_counts(
    derivatives: Any, weight: float, sign: int, counted: bool, scales: Any, sums: Any, tops: int, p: int
) -> None:
    """Add (sign 1) or subtract (-1) one row, its weight, and what is counted of its derivatives (e, w, c)."""
    sums[0] += sign
    sums[1] += sign * (as_bits(weight * scales[WEIGHT] + MAGIC) - MAGIC_BITS)
    if counted:  # else the scales of the derivatives are constants of the loss
        e, w, c = derivatives
        at = U(tops) + U(p)
        sums[at] += sign * (abs(e) * scales[FIRST] >= 0.5 * scales[MOMENT])
        sums[at + U(1)] += sign * (abs(w) * scales[SECOND] >= 0.5 * scales[MOMENT])
        sums[at + U(2)] += sign * (abs(c) * scales[THIRD] >= scales[HALF_THIRD])
        sums[at + U(3)] += sign * (weight * scales[WEIGHT] >= 0.5 * scales[MOMENT])


@kernel()
def add_first(u: Any, n: int, square: float, slope: float, sign: int, tops: Any, moments: Any, gradient: Any) -> None:
    """Add the row's terms to the first n of the columns' tops, of the moments and of G (square, slope have sign and
    scale)."""
    for j in range(U(n)):
        tops[j] += sign * (abs(u[j]) >= 0.5)
        moments[j] += as_bits(square * (u[j] * u[j]) + MAGIC) - MAGIC_BITS
        gradient[j] += as_bits(slope * u[j] + MAGIC) - MAGIC_BITS


@kernel()
def add_second(u: Any, p: int, curvature: float, sums: Any, second: int) -> None:
    """The term of H of one row: curvature u_k u_l, where the curvature has sign and scale."""
    at = U(second)
    for k in range(U(p)):
        f = curvature * u[k]
        for i in range(U(p) - k):
            sums[at + i] += as_bits(f * u[k + i] + MAGIC) - MAGIC_BITS
        at += U(p) - k


@kernel()
def add_third(u: Any, p: int, pairs: Any, sign: int, scales: Any, sums: Any, third: int) -> None:
    """The term of T of one row: pairs (q,) are its rounded c u_k u_l. Every product is an integer of at most 2^44."""
    at, first, q = U(third), U(0), U(pairs_of(p))
    for j in range(U(p)):
        f = sign * ((u[j] * scales[COLUMN] + MAGIC) - MAGIC)
        for i in range(q - first):
            sums[at + i] += as_bits(f * pairs[first + i] + MAGIC) - MAGIC_BITS
        at += q - first
        first += U(p) - j


@kernel()
def _add_seconds(p: int, rows: int, factors: Any, curvatures: Any, held: Any) -> None:
    """Add the terms of H of a block of rows, four at a time, to held (p, wide): the integers of `add_second`."""
    wide = U(factors.shape[1])
    for i in range(rows, -(-rows // 4) * 4):
        curvatures[i] = 0.0
    for i in range(0, rows, 4):
        a, b, c, d = factors[i], factors[i + 1], factors[i + 2], factors[i + 3]
        fa, fb, fc, fd = curvatures[i], curvatures[i + 1], curvatures[i + 2], curvatures[i + 3]
        for k in range(U(p)):
            ak, bk, ck, dk, line = fa * a[k], fb * b[k], fc * c[k], fd * d[k], held[k]
            for j in range(k // U(LINE) * U(LINE), wide):  # whole vectors: what lies left of the diagonal is dropped
                first = as_bits(ak * a[j] + MAGIC) + as_bits(bk * b[j] + MAGIC)
                line[j] += first + as_bits(ck * c[j] + MAGIC) + as_bits(dk * d[j] + MAGIC) - FOUR_MAGICS


def block_memory(p: int, order: int) -> Memory:
    """`Memory` of one worker."""
    wide = -(-p // LINE) * LINE
    q = -(-(p * (p + 1) // 2) // LINE) * LINE + LINE if order == 3 else LINE
    shapes = [(BLOCK + 1, wide), (6, BLOCK), (p + 3, wide), (BLOCK, q), (p if order == 3 else 1, q)]
    kinds: Any = (float, float, np.int64, float, float)
    return Memory(*aligned_parts(*zip(shapes, kinds, strict=True), zeros=True))


@kernel()
def _add_thirds(p: int, rows: int, memory: Any, sign: int, sums: Any, third: int) -> None:
    """Add the terms of T of a block: factors (rows, p) times pairs (rows, q), as far as j <= k."""
    factors, pairs, out = memory.factors[:rows], memory.pairs[:rows], memory.product
    wide, q = pairs.shape[1] - LINE, pairs_of(p)
    lines, first = 0, 0  # lines: columns of T's factor that have entries in the strip; first: where the next one begins
    for start in range(0, wide, STRIP):
        end = min(start + STRIP, wide)
        while lines < p and first < end:
            first += p - lines
            lines += 1
        gemm(out[:lines, start:end], factors[:, :lines].T, pairs[:, start:end], False)
    at, skip = U(third), U(0)
    for j in range(U(p)):
        for i in range(U(q) - skip):
            sums[at + i] += sign * (as_bits(out[j, skip + i] + MAGIC) - MAGIC_BITS)
        at += U(q) - skip
        skip += U(p) - j


@kernel()
def _add_block(p: int, rows: int, sign: int, terms: Any, sums: Any, memory: Any) -> None:
    """The terms of `rows` <= BLOCK rows that were collected in memory.factors and memory.values."""
    factors, values, held, scales = memory.factors, memory.values, memory.held, terms.scales
    wide, tops = factors.shape[1], tops_at(terms.classes)
    second = moments_at(p, terms.classes) + 2 * p
    z, y, weight, e, w, c = values[0], values[1], values[2], values[3], values[4], values[5]
    for i in range(U(rows)):  # the same for every row, so in vectors
        first, curvature, third = derivatives(terms.loss, z[i], y[i])
        e[i], w[i], c[i] = first * weight[i], curvature * weight[i], third * weight[i]
    for k in range(U(p + 3)):
        for j in range(U(wide)):
            held[k, j] = 0
    moments, gradient, largest = held[p], held[p + 1], held[p + 2]
    square = sign * scales[MOMENT]
    for i in range(rows):
        add_counts((e[i], w[i], c[i]), weight[i], sign, terms.counted, scales, sums, tops, p)
        add_first(factors[i], wide, square, sign * e[i] * scales[FIRST], sign, largest, moments, gradient)
        if terms.order == 3:
            write_pairs(vector(factors, i * wide, wide + LINE), p, c[i] * scales[THIRD], memory.pairs[i], 0)
    for i in range(U(rows)):
        w[i] = sign * w[i] * scales[SECOND]
    _add_seconds(p, rows, factors, w, held)
    at = U(tops)
    for j in range(U(p)):
        sums[at + j] += largest[j]
        sums[at + U(p + 4) + j] += moments[j]
        sums[at + U(2 * p + 4) + j] += gradient[j]
    at = U(second)
    for k in range(U(p)):
        for i in range(U(p) - k):
            sums[at + i] += held[k, k + i]
        at += U(p) - k
    if terms.order == 3:
        for i in range(rows):
            u = factors[i]
            for j in range(U(wide)):
                u[j] = (u[j] * scales[COLUMN] + MAGIC) - MAGIC
        _add_thirds(p, rows, memory, sign, sums, second + pairs_of(p))


@kernel()
def add_rows(X: Any, y: Any, weights: Any, sign: int, terms: Any, sums: Any, memory: Any) -> None:
    """Add (sign 1) or subtract (-1) the rows X (n, d), y (n,) to `sums`.

    Rows of weight 0 do not count; weights may be empty. Class counts are not touched if terms.classes is 0.
    """
    terms, memory = borrow((terms, memory))
    p, rows, n, values = terms.anchor.size, 0, X.shape[0], memory.values
    for row in range(n):
        weight = weights[row] if weights.size else 1.0
        if weight == 0.0:
            continue
        values[0, rows] = scale_row(row, X, terms.anchor, terms.inverse_scale, memory.factors[rows])
        values[1, rows], values[2, rows] = np.float64(y[row]), weight
        if terms.classes:
            sums[U(2) + U(y[row])] += sign
        rows += 1
        if rows == BLOCK or row == n - 1:
            _add_block(p, rows, sign, terms, sums, memory)
            rows = 0
    if rows:
        _add_block(p, rows, sign, terms, sums, memory)


@kernel(parallel=True)
def _add_parts(X: Any, y: Any, weights: Any, sign: int, terms: Any, sums: Any, memory: Any) -> None:
    """add_rows for all rows; worker w has its own sums[w] and memory."""
    workers, n = sums.shape[0], X.shape[0]
    for w in prange(workers):
        lo, hi = n * w // workers, n * (w + 1) // workers
        m = memory
        own = Memory(m.factors[w], m.values[w], m.held[w], m.pairs[w], m.product[w])
        add_rows(X[lo:hi], y[lo:hi], weights[lo:hi], sign, terms, sums[w], own)


#: Rows per thread below which a second thread does not pay.
ROWS_PER_THREAD = 512

_NO_WEIGHTS = np.empty(0)


def add_all_rows(X: Array, y: Array, weights: Float | None, sign: int, terms: Terms, sums: Ints) -> None:
    """Add (sign 1) or subtract (-1) all rows X (n, d), y (n,) with weights (n,) or None to `sums`, on all threads.

    The result does not depend on the number of threads.
    """
    n = len(X)
    workers = max(1, min(numba.get_num_threads(), n // ROWS_PER_THREAD))
    weights = _NO_WEIGHTS if weights is None else weights
    memory = block_memory(terms.anchor.size, terms.order)
    if workers == 1:  # threads would only have to be woken
        what = (sign, terms, sums, memory)
        key = ("integer sums of few rows", X.dtype, y.dtype)
        ensure_compiled(key, lambda: add_rows(X[:0], y[:0], weights[:0], *what))
        add_rows(X, y, weights, *what)
        return
    stacked: Any = [np.stack([part] * workers) for part in memory]
    memory = Memory(*stacked)
    parts = np.zeros((workers, sums.size), np.int64)

    def run(rows: slice) -> None:
        with parallel_entry():
            _add_parts(X[rows], y[rows], weights[rows], sign, terms, parts, memory)

    ensure_compiled(("integer sums", X.dtype, y.dtype), lambda: run(slice(0, 0)))
    run(slice(None))
    sums += parts.sum(axis=0)


@kernel()
def column_extremes(X: Any, weights: Any, largest: Any) -> None:
    """largest (d,) = max(largest, |x_j|) over rows of positive weight."""
    for i in range(X.shape[0]):
        if weights.size == 0 or weights[i] > 0.0:
            for j in range(X.shape[1]):
                value = abs(np.float64(X[i, j]))
                if value > largest[j]:
                    largest[j] = value


@kernel()
def derivative_extremes(X: Any, y: Any, weights: Any, loss: int, anchor: Any, largest: Any) -> None:
    """largest (3,) = max(largest, |e|, |w|, |c|) at the anchor, times the rows' weights."""
    d = X.shape[1]
    for i in range(X.shape[0]):
        z = 0.0
        for j in range(d):
            z += anchor[j] * np.float64(X[i, j])
        e, w, c = derivatives(loss, z + anchor[d], np.float64(y[i]))
        weight = weights[i] if weights.size else 1.0
        largest[0] = max(largest[0], abs(e) * weight)
        largest[1] = max(largest[1], abs(w) * weight)
        largest[2] = max(largest[2], abs(c) * weight)


@kernel()
def add_moments(X: Any, weights: Any, inverse_scale: Any, scale: float, out: Any) -> None:
    """out (p,) int64 += sum of round(scale u_j^2) over rows of positive weight, the intercept's last."""
    d = X.shape[1]
    last = inverse_scale[d] * inverse_scale[d]
    for i in range(X.shape[0]):
        if weights.size == 0 or weights[i] > 0.0:
            for j in range(U(d)):
                u = np.float64(X[i, j]) * inverse_scale[j]
                out[j] += as_bits(scale * (u * u) + MAGIC) - MAGIC_BITS
            out[d] += as_bits(scale * last + MAGIC) - MAGIC_BITS
