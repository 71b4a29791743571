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

from typing import Any

import numba
import numpy as np
from numba import prange
from numpy.typing import NDArray

from l2ul_kernels._aligned import aligned_zeros
from l2ul_kernels._jit import ensure_compiled, kernel
from l2ul_kernels.linear.losses import MAGIC, MAGIC_BITS, as_bits, derivatives
from l2ul_kernels.mlp_product import MR, product
from l2ul_kernels.threads import parallel_entry

U = np.uint64
#: Rows whose third derivatives are one matrix product: 2^6 sums of terms of at most 2^44 stay below 2^51.
BLOCK = 64
#: Bits of a term of T at most, and of a term of G and H.
THIRD_BITS, TERM_BITS = 44, 50
#: float64 values per cache line.
LINE = 8
#: Entries of `scales`: the factors that make integers of u^2, e u, w u u; of c u u and u in T; of weights; half of the
#: largest c in the units of T.
MOMENT, FIRST, SECOND, THIRD, COLUMN, WEIGHT, HALF_THIRD, SCALES = 0, 1, 2, 3, 4, 5, 6, 7


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
def row_factors(row: int, X: Any, y: Any, weight: float, loss: int, anchor: Any, inverse_scale: Any, u: Any) -> Any:
    """u (p,) = the row divided by its columns' scales; returns (e, w, c) at the anchor, times the row's weight."""
    d = X.shape[1]
    z = 0.0
    for j in range(U(d)):
        x = np.float64(X[row, j])
        z += anchor[j] * x
        u[j] = x * inverse_scale[j]
    u[d] = inverse_scale[d]
    e, w, c = derivatives(loss, z + anchor[d], np.float64(y[row]))
    return e * weight, w * weight, c * weight


@kernel()
def write_pairs(u: Any, p: int, factor: float, out: Any, at: int) -> None:
    """out[at:] = integers nearest to factor u_k u_l, k <= l."""
    to = U(at)
    for k in range(U(p)):
        f = factor * u[k]
        for i in range(U(p) - k):
            out[to + i] = (f * u[k + i] + MAGIC) - MAGIC
        to += U(p) - k


@kernel()
def add_low_orders(
    u: Any, p: int, e: float, w: float, c: float, weight: float, sign: int, counted: bool, scales: Any, sums: Any,
    tops: int,
) -> None:  # fmt: skip
    """Add (sign 1) or subtract (-1) one row's terms but that of T."""
    sums[0] += sign
    sums[1] += sign * (as_bits(weight * scales[WEIGHT] + MAGIC) - MAGIC_BITS)
    at = U(tops)
    for j in range(U(p)):
        if abs(u[j]) >= 0.5:
            sums[at + j] += sign
    at += U(p)
    if counted:  # else the scales of the derivatives are constants of the loss
        sums[at] += sign * (abs(e) * scales[FIRST] >= 0.5 * scales[MOMENT])
        sums[at + U(1)] += sign * (abs(w) * scales[SECOND] >= 0.5 * scales[MOMENT])
        sums[at + U(2)] += sign * (abs(c) * scales[THIRD] >= scales[HALF_THIRD])
        sums[at + U(3)] += sign * (weight * scales[WEIGHT] >= 0.5 * scales[MOMENT])
    at += U(4)
    square, slope, curvature = sign * scales[MOMENT], sign * e * scales[FIRST], sign * w * scales[SECOND]
    for j in range(U(p)):
        sums[at + j] += as_bits(square * (u[j] * u[j]) + MAGIC) - MAGIC_BITS
    at += U(p)
    for j in range(U(p)):
        sums[at + j] += as_bits(slope * u[j] + MAGIC) - MAGIC_BITS
    at += U(p)
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


def block_memory(p: int, order: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(factors, pairs, product) of one worker."""
    wide = -(-p // LINE) * LINE
    q = -(-(p * (p + 1) // 2) // LINE) * LINE if order == 3 else LINE
    return aligned_zeros((BLOCK, wide)), aligned_zeros((BLOCK, q)), aligned_zeros((p if order == 3 else 1, q))


@kernel()
def _add_thirds(p: int, rows: int, factors: Any, pairs: Any, out: Any, sign: int, sums: Any, third: int) -> None:
    """Add the terms of T of a block: factors (rows, p) times pairs (rows, q), as far as j <= k."""
    wide, wide_pairs, q, one = factors.shape[1], pairs.shape[1], pairs_of(p), np.int64(1)
    first = 0
    for j in range(0, p, MR):
        m, start = min(MR, p - j), first // LINE * LINE
        product(
            out.reshape(-1), j * wide_pairs + start, wide_pairs, factors.reshape(-1), j, one, wide, pairs.reshape(-1),
            start, wide_pairs, m, wide_pairs - start, rows, np.int64(0),
        )  # fmt: skip
        for k in range(j, j + m):
            first += p - k
    at, first = U(third), U(0)
    for j in range(U(p)):
        for i in range(U(q) - first):
            sums[at + i] += sign * (as_bits(out[j, first + i] + MAGIC) - MAGIC_BITS)
        at += U(q) - first
        first += U(p) - j


@kernel()
def add_rows(
    X: Any, y: Any, weights: Any, ids: Any, first: int, last: int, sign: int, loss: int, order: int, counted: bool,
    anchor: Any, inverse_scale: Any, scales: Any, classes: int, sums: Any, factors: Any, pairs: Any, out: Any,
) -> None:  # fmt: skip
    """Add (sign 1) or subtract (-1) the rows ids[first:last], or first..last if ids is empty, to `sums`.

    Rows of weight 0 do not count; weights may be empty. Class counts are not touched if classes is 0.
    """
    p = anchor.size
    tops, third = tops_at(classes), moments_at(p, classes) + 2 * p + pairs_of(p)
    held = 0
    for k in range(first, last):
        row = ids[k] if ids.size else k
        weight = weights[row] if weights.size else 1.0
        if weight == 0.0:
            continue
        u = factors[held]
        e, w, c = row_factors(row, X, y, weight, loss, anchor, inverse_scale, u)
        add_low_orders(u, p, e, w, c, weight, sign, counted, scales, sums, tops)
        if classes:
            sums[U(2) + U(y[row])] += sign
        if order == 3:
            write_pairs(u, p, c * scales[THIRD], pairs.reshape(-1), held * pairs.shape[1])
            for j in range(U(p)):
                u[j] = (u[j] * scales[COLUMN] + MAGIC) - MAGIC
            held += 1
            if held == BLOCK:
                _add_thirds(p, held, factors, pairs, out, sign, sums, third)
                held = 0
    if held:
        _add_thirds(p, held, factors, pairs, out, sign, sums, third)


@kernel(parallel=True)
def _add_parts(
    X: Any, y: Any, weights: Any, sign: int, loss: int, order: int, counted: bool, anchor: Any, inverse_scale: Any,
    scales: Any, classes: int, sums: Any, factors: Any, pairs: Any, out: Any,
) -> None:  # fmt: skip
    """add_rows for all rows; worker w has its own sums[w] and memory."""
    workers, n = sums.shape[0], X.shape[0]
    for w in prange(workers):
        none = np.empty(0, np.int64)
        add_rows(
            X, y, weights, none, n * w // workers, n * (w + 1) // workers, sign, loss, order, counted, anchor,
            inverse_scale, scales, classes, sums[w], factors[w], pairs[w], out[w],
        )  # fmt: skip


#: Rows per thread below which a second thread does not pay.
ROWS_PER_THREAD = 512

_NO_WEIGHTS = np.empty(0)


def add_all_rows(
    X: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64] | None, sign: int, loss: int, order: int,
    counted: bool, anchor: NDArray[np.float64], inverse_scale: NDArray[np.float64], scales: NDArray[np.float64],
    classes: int, sums: NDArray[np.int64],
) -> None:  # fmt: skip
    """Add (sign 1) or subtract (-1) all rows X (n, d), y (n,) with weights (n,) or None to `sums`, on all threads.

    anchor, inverse_scale (p,); scales as `SCALES` says. The result does not depend on the number of threads.
    """
    n, p = len(X), anchor.size
    workers = max(1, min(numba.get_num_threads(), n // ROWS_PER_THREAD))
    weights = _NO_WEIGHTS if weights is None else weights
    one = block_memory(p, order)
    memory = [np.stack([part] * workers) if workers > 1 else part[None] for part in one]
    parts = np.zeros((workers, sums.size), np.int64)
    key = ("integer sums", X.dtype, y.dtype)

    def run(rows: slice, into: NDArray[np.int64]) -> None:
        with parallel_entry():
            _add_parts(
                X[rows], y[rows], weights[rows], sign, loss, order, counted, anchor, inverse_scale, scales, classes,
                into, *memory,
            )  # fmt: skip

    ensure_compiled(key, _add_parts, lambda: run(slice(0, 0), parts))
    run(slice(None), parts)
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
