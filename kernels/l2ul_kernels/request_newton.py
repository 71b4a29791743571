"""The Newton step of a request, for binary logistic regression: rows leave the curvature, theta moves.

Everything but the rows lies in two flat arrays, because each array argument of a compiled function costs a tenth of a
microsecond, in lines of `wide` numbers: p padded with zeros to whole cache lines, so that no product has a rest.

    state   anchor (wide) | curvature (wide, wide) | inverse (wide, wide) | correction transposed (wide, wide), or none
    work    total, move, rest (wide) | curvature before the request (wide, wide) | CHUNK rows, and the same weighted
            (wide each) | slopes, curvatures and other values of theirs (6, CHUNK)

total = r * (mean gradient of the rows that leave + penalty gradient).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_kernels._aligned import aligned_zeros
from l2ul_kernels._columns import residuals
from l2ul_kernels._emit import VECTOR_BYTES
from l2ul_kernels._jit import FAST, kernel
from l2ul_kernels._memory import prefetch
from l2ul_kernels.mlp_product import NV, product, tile
from l2ul_kernels.request import DONE, OTHERWISE, ask_for, claim_labelled, forget_stored, unclaim
from l2ul_kernels.request_held import (
    BITS,
    ITEM,
    asked_for,
    cell_counts,
    own_double,
    parameters,
    row_cells,
    row_marks,
    rows_double,
    rows_single,
    totals_and_times,
)

U = np.uint64
#: float64 values per cache line.
LINE = 8
#: float64 values per vector.
LANES = VECTOR_BYTES // 8
#: Rows at a time: they, the same weighted and the curvature share the first cache.
CHUNK = 64
#: Corrections of the solution at most: each shrinks its error by the relative change since the inverse was made.
REFINEMENTS = 3
#: Relative residual at which it is exact for all purposes, and fewer will do.
EXACT = 1e-12


def newton_arrays(p: int, corrected: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(state, work) for p parameters, zeros."""
    wide = padded(p)
    state = wide + (3 if corrected else 2) * wide * wide
    return aligned_zeros(state), aligned_zeros(3 * wide + wide * wide + 2 * CHUNK * wide + 6 * CHUNK)


def curvature_before(work: NDArray[np.float64], p: int) -> NDArray[np.float64]:
    """(p, p) as it was before the latest newton_move."""
    wide = padded(p)
    return work[3 * wide :][: wide * wide].reshape(wide, wide)[:p, :p]


@kernel()
def padded(p: int) -> int:
    """`wide`: p rounded up to whole cache lines."""
    return -(-p // LINE) * LINE


@kernel()
def _copy(source: Any, at: int, target: Any, to: int, n: int) -> None:
    """target[to:] = the n values source[at:]; unsigned indices, as only these are taken in vectors."""
    first, second = U(at), U(to)
    for k in range(U(n)):
        target[second + k] = source[first + k]


@kernel()
def _part(work: Any, values: int, k: int) -> Any:
    return work[values + k * CHUNK : values + (k + 1) * CHUNK]


@kernel(fastmath=FAST)
def _take_chunk(X: Any, y: Any, ids: Any, theta: Any, state: Any, work: Any, half: bool) -> None:
    """take_rows_out for at most CHUNK rows; half: what is right of the diagonal's blocks is left as it was."""
    d, n = X.shape[1], ids.size
    wide = padded(d + 1)
    rows = wide * (3 + wide)
    scaled = rows + CHUNK * wide
    values = scaled + CHUNK * wide
    slopes, weights, labels = _part(work, values, 0), _part(work, values, 1), _part(work, values, 2)
    at_theta, at_anchor, spare = _part(work, values, 3), _part(work, values, 4), _part(work, values, 5)
    for i in range(n):
        row, to = ids[i], U(rows + i * wide)
        first, second = theta[d], state[d]
        for k in range(U(d)):
            value = np.float64(X[row, k])
            work[to + k] = value
            first += theta[k] * value
            second += state[k] * value
        work[to + U(d)] = 1.0
        at_theta[i], at_anchor[i], labels[i] = first, second, y[row]
    residuals(at_theta, labels, 0, n, slopes, spare)
    residuals(at_anchor, labels, 0, n, spare, weights)
    for i in range(n):
        minus, line, to = -weights[i], U(rows + i * wide), U(scaled + i * wide)
        for k in range(U(wide)):
            work[to + k] = minus * work[line + k]
    one, zero = np.int64(1), np.int64(0)  # not literals: numba would compile `product` for each
    product(work, zero, wide, work, values, wide, one, work, rows, wide, one, wide, n, one)
    step = LINE if half else wide
    for i in range(0, wide, step):
        lines, columns = min(step, d + 1 - i), i + step
        product(state, wide + i * wide, wide, work, scaled + i, one, wide, work, rows, wide, lines, columns, n, one)


@kernel()
def take_rows_out(X: Any, y: Any, ids: Any, theta: Any, state: Any, work: Any) -> None:
    """Add the gradient of rows X[ids] (r, d), y[ids] 0/1 at theta (p,) to `total`; the curvature loses theirs at
    `anchor`: it stays exactly that of the rest."""
    width, half = X.shape[1] * X.itemsize, ids.size >= CHUNK
    for lo in range(0, ids.size, CHUNK):
        for i in range(lo + CHUNK, min(lo + 2 * CHUNK, ids.size)):  # the next rows are on their way meanwhile
            for line in range(0, width + 63, 64):
                prefetch(X.ctypes.data + ids[i] * width + min(line, width - 1))
        _take_chunk(X, y, ids[lo : lo + CHUNK], theta, state, work, half)
    wide = padded(X.shape[1] + 1)
    for j in range(X.shape[1] + 1 if half else 0):
        for k in range(j):
            state[wide + k * wide + j] = state[wide + j * wide + k]


@kernel(fastmath=FAST)
def _take_row(X: Any, y: Any, row: int, theta: Any, state: Any, work: Any) -> None:
    """take_rows_out for one row, where calls and loops around CHUNK rows would cost more than what they do; the
    curvature before goes to `work` on the way."""
    d = X.shape[1]
    wide = padded(d + 1)
    before, line = U(3 * wide), U(3 * wide + wide * wide)
    at_theta, at_anchor = theta[d], state[d]
    for k in range(U(d)):
        value = np.float64(X[row, k])
        work[line + k] = value
        at_theta += theta[k] * value
        at_anchor += state[k] * value
    work[line + U(d)] = 1.0
    for k in range(U(d + 1), U(wide)):
        work[line + k] = 0.0
    slope = 1.0 / (1.0 + math.exp(-at_theta)) - y[row]
    chance = 1.0 / (1.0 + math.exp(-at_anchor))
    weight = chance * (1.0 - chance)
    for k in range(U(wide)):
        work[k] += slope * work[line + k]
    for j in range(U(d + 1)):
        factor, old, here = weight * work[line + j], before + j * U(wide), U(wide) + j * U(wide)
        for k in range(U(wide)):
            value = state[here + k]
            work[old + k] = value
            state[here + k] = value - factor * work[line + k]


@kernel()
def _line_times(out: Any, to: int, a: int, matrix: Any, at: int, wide: int, rows: int, keep: int) -> None:
    """out[to : to + wide] = (itself if `keep`) + out[a : a + rows] times the (rows, wide) matrix from `at` on.

    `product` for a single line: it is small enough to be compiled into its caller.
    """
    one, j = np.int64(1), 0
    while j < wide:
        v = min(NV, (wide - j) // LANES)
        tile(out, to + j, wide, out, a, wide, one, matrix, at + j, wide, rows, keep, one, v)
        j += v * LANES


@kernel(fastmath=FAST)
def refined_solve(state: Any, work: Any, p: int, ridge: float, steps: int) -> float:
    """`move` with (curvature + ridge on all but the last diagonal entry) move = total, in at most `steps` refinements.

    `inverse` is the inverse of a matrix close to that one (before the latest requests). `rest` leaves with what is
    missing; returns its norm over that of `total`.
    """
    wide, new, one = padded(p), np.int64(0), np.int64(1)
    move, rest, curvature, inverse = wide, 2 * wide, wide, wide + wide * wide
    scale, end, m, q = 0.0, U(wide), U(move), U(rest)
    for k in range(end):
        work[m + k] = 0.0
        work[q + k] = work[k]
        scale += work[k] * work[k]
    norm = scale
    for _ in range(steps):
        _line_times(work, move, rest, state, inverse, wide, p, one)
        _line_times(work, rest, move, state, curvature, wide, p, new)
        last = work[p - 1] - work[rest + p - 1]  # no ridge on the intercept
        for k in range(end):
            work[q + k] = work[k] - work[q + k] - ridge * work[m + k]
        work[rest + p - 1] = last
        norm = 0.0
        for k in range(end):
            norm += work[q + k] * work[q + k]
        if norm <= EXACT * EXACT * scale:
            break
    return math.sqrt(norm / scale) if scale > 0.0 else 0.0


@kernel(fastmath=FAST)
def solve_move(theta: Any, state: Any, work: Any, left: int, lam: float, out: Any) -> float:
    """out (p,) = theta + the Newton step for `total` on the `left` rows that stay; returns the residual of its system.

    The residual is not small when the curvature has changed too much for `inverse`.
    """
    p = theta.size
    wide = padded(p)
    residual = refined_solve(state, work, p, left * lam, REFINEMENTS)
    move, correction = U(wide), wide + 2 * wide * wide
    for k in range(U(p)):
        out[k] = theta[k] + work[move + k]
    for j in range(p if state.size > correction else 0):
        factor, line = work[j] / left, U(correction + j * wide)
        for k in range(U(p)):
            out[k] += factor * state[line + k]
    return residual


@kernel(fastmath=FAST)
def newton_move(X: Any, y: Any, ids: Any, theta: Any, state: Any, work: Any, n: int, lam: float, out: Any) -> float:
    """solve_move after rows X[ids] (r, d), y[ids] have left a model of n rows. work keeps the curvature as it was."""
    p, r = theta.size, ids.size
    wide = padded(p)
    for k in range(U(wide)):
        work[k] = 0.0
    for k in range(U(p - 1)):
        work[k] = r * lam * theta[k]
    if r == 1:
        _take_row(X, y, ids[0], theta, state, work)
    else:
        _copy(state, wide, work, 3 * wide, wide * wide)
        take_rows_out(X, y, ids, theta, state, work)
    return solve_move(theta, state, work, n - r, lam, out)


@kernel(fastmath=FAST)
def _request(table: Any, ids: Any, X: Any, k: int, n: int, now: float) -> int:
    gone, y = row_marks(table)
    left, counts = cell_counts(table)
    packed, state, work, limits = row_cells(table), own_double(table, 0), own_double(table, 1), own_double(table, 2)
    thetas = parameters(table)
    ask_for(ids, X, y, packed)
    refusal = claim_labelled(ids, gone, y, left)
    if refusal >= 0:
        return refusal
    if not newton_move(X, y, ids, thetas[k], state, work, n, limits[0], thetas[k + 1]) < limits[1]:
        p = thetas.shape[1]
        _copy(work, 3 * padded(p), state, padded(p), p * padded(p))
        unclaim(ids, gone, y, left)
        return OTHERWISE
    forget_stored(packed, ids, table[BITS], counts, X, y)
    totals, times = totals_and_times(table)
    times[k] = now
    for j in range(U(thetas.shape[1])):
        totals[k, j] = work[j]
    return DONE


@kernel()
def newton_request(table: Any, row: int, k: int, n: int, now: float) -> int:
    """A whole request for one of n rows as one call: claim_labelled, newton_move, forget_stored, and its notes.

    `table` is that of a Held whose own arrays are state, work, (lam, stale). Returns DONE, or what the claim refuses,
    or OTHERWISE if the residual is not below `stale`. If it is not done, nothing has changed but what is noted for k.
    """
    ids = asked_for(table, k, row)
    if table[ITEM] == 4:
        return _request(table, ids, rows_single(table), k, n, now)
    return _request(table, ids, rows_double(table), k, n, now)
