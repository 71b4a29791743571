"""A request on an expansion: rows leave the integer sums, and delta solves the polynomial that is left.

At the anchor g (see linear/integer_sums.py) the model of the rows that stay is g + delta with

    F(delta) = G + a P (g + delta) + H delta + T[delta, delta] / 2 = 0        P: strengths of the penalty, a: its weight

`forget_row` is the instant answer to a request for one row. Without a row, F at the present delta changes by that row's
own term, so one Newton step with the kept inverse of the Jacobian (Sherman-Morrison takes the row out of it) leads to
the new root up to the square of the step; nothing of T is evaluated. `polish` evaluates F and steps back to the root;
`solve` starts from the integers alone, so that its result depends on nothing else.

`state` (float64, rows of `width_of(p)` numbers, the rest zeros) is everything besides the integers:

    facts | anchor | delta | strengths | scales and inverse scales of the columns | bounds of delta in the grid's cell
    and of the columns' moments | reference | four rows of scratch | polished delta | inverse (p rows) | products of
    pairs (2 q numbers)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from l2ul_kernels.arrays import Float
from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import FAST, kernel
from l2ul_kernels.linear.integer_sums import (
    COLUMN,
    FIRST,
    MOMENT,
    SCALES,
    SECOND,
    THIRD,
    add_counts,
    add_first,
    add_second,
    add_third,
    moments_at,
    pairs_of,
    scale_row,
    tops_at,
    write_pairs,
)
from l2ul_kernels.linear.losses import derivatives
from l2ul_kernels.request.claims import DONE, EMPTY, FORGOTTEN, GONE, NOT_TRAINED, OUTSIDE, PRESENT
from l2ul_kernels.simd.cholesky import cholesky
from l2ul_kernels.simd.cholesky import solve as solve_factored

U = np.uint64
LINE = 8

#: Rows of `state`.
FACTS, ANCHOR, DELTA, STRENGTH, SCALE, INVERSE_SCALE, LOW, HIGH, MOMENT_LOW, MOMENT_HIGH, REFERENCE = range(11)
ROW, FACTORS, STEP, PRODUCT, POLISHED, INVERSE = 11, 12, 13, 14, 15, 16
#: Entries of the facts, behind the scales: what the loss and the sums are; the penalty's weight is CONSTANT plus
#: PER_WEIGHT times the sum of weights, one integer of which is worth UNIT; the numbers of rows for which the scales and
#: the grid hold.
LOSS, ORDER, COUNTED, CLASSES, CONSTANT, PER_WEIGHT, UNIT, FEWEST, MOST = range(SCALES, SCALES + 9)
#: And what the latest requests left: an estimate of the error of delta, and how fast it grows with the square of a
#: move; the error by which the root itself is wrong; how near to the cell's bounds delta may come; the weight that left
#: since the inverse was made, and how far delta had moved by the latest `polish`; distance from the reference, that up
#: to which it is rounding, and that above which the error must be judged anew; reasons why a new expansion is due.
DRIFT, CURVATURE, BIAS, MARGIN, LAG, STALE, DISTANCE, NEAREST, FARTHEST, DUE = range(SCALES + 9, SCALES + 19)
WIDEST_FACTS = 32

#: Returned by `forget_row` when the row has left the sums, but delta must be found by `polish` or `solve`.
POLISH = -2
#: Reasons for a new expansion, added up: the optimum left the grid's cell; a scale would be another without the rows
#: that left; so would the grid's width; the polynomial has no root nearby.
CELL, SCALE_CHANGED, WIDTH_CHANGED, NO_ROOT = 1, 2, 4, 8

#: A row that holds more than this share of the curvature along itself is no small change: delta is solved anew.
LARGEST_SHARE = 0.5
#: Drift, as a share of the bias and of the distance, above which the next request evaluates F.
BIAS_SHARE, DISTANCE_SHARE = 0.2, 5e-4
#: Relative error of the kept inverse above which `polish` makes it anew.
STALEST = 0.004
#: Steps of `polish` and `solve` at most; the relative size of a step that is rounding, and of one that is left out.
ROUNDS, ROUNDING, ENOUGH = 40, 4e-16, 1e-13
#: Steps with the kept inverse must shrink like this, else it is made anew; a last step that is small enough.
SHRINK, SMALL = 0.1, 1e-12
#: Rows of scratch before the matrix in `work`.
WORK = 6


def width_of(p: int) -> int:
    """Numbers in a row of the state: whole cache lines."""
    return max(WIDEST_FACTS, -(-p // LINE) * LINE)


def new_state(p: int, order: int) -> Float:
    """Zeros of the state's shape."""
    wide = width_of(p)
    pairs = -(-(p * (p + 1)) // wide) if order == 3 else 1
    return aligned_zeros((INVERSE + p + pairs, wide))


@kernel(fastmath=FAST)
def _instant_step(state: Any, p: int, e: float, w: float, c: float, penalty: float, left: float) -> bool:
    """Move delta to the root without the row in state[ROW]; penalty: the weight of it that leaves, `left` rows' stay.

    False if the row is too large a change; delta and the inverse are then as they were.
    """
    wide = U(state.shape[1])
    facts, anchor, delta, strength = state[FACTS], state[ANCHOR], state[DELTA], state[STRENGTH]
    x, total, step, product = state[ROW], state[FACTORS], state[STEP], state[PRODUCT]
    along = 0.0
    for j in range(wide):
        along += delta[j] * x[j]
    term, share = e + along * (w + 0.5 * c * along), w + c * along
    for j in range(wide):
        total[j] = term * x[j] + penalty * strength[j] * (anchor[j] + delta[j])
    held, dot = 0.0, 0.0
    for j in range(U(p)):
        line = state[U(INVERSE) + j]
        first, second = 0.0, 0.0
        for k in range(wide):
            first += line[k] * x[k]
            second += line[k] * total[k]
        product[j], step[j] = first, second
        held += x[j] * first
        dot += total[j] * first
    remaining = 1.0 - share * held
    if not remaining > 1.0 - LARGEST_SHARE or not remaining < 2.0:
        return False
    gain, size, polished = share / remaining, 0.0, state[POLISHED]
    for j in range(U(p)):
        delta[j] += step[j] + gain * dot * product[j]
        moved = delta[j] - polished[j]
        size += moved * moved
    for j in range(U(p)):
        factor, line = gain * product[j], state[U(INVERSE) + j]
        for k in range(U(p)):
            line[k] += factor * product[k]
    facts[LAG] += penalty
    # what is left out is T[moved, moved] / 2 and, since the inverse is that of an earlier delta, T[stale, moved]
    size = math.sqrt(size)
    facts[DRIFT] = size * (facts[CURVATURE] * (size + 2.0 * facts[STALE]) + facts[LAG] / left)
    return True


@kernel(fastmath=FAST)
def judge(sums: Any, state: Any, p: int) -> None:
    """Distance from the reference, and whether the optimum, the moments or the number of rows left their bounds."""
    facts, anchor, delta, reference = state[FACTS], state[ANCHOR], state[DELTA], state[REFERENCE]
    low, high, moment_low, moment_high = state[LOW], state[HIGH], state[MOMENT_LOW], state[MOMENT_HIGH]
    moments, rows = U(moments_at(p, int(facts[CLASSES]))), np.float64(sums[0])
    size, beyond, changed, margin = 0.0, 0, 0, facts[MARGIN]
    for j in range(U(p)):
        moved = anchor[j] + delta[j] - reference[j]
        size += moved * moved
        beyond += (delta[j] < low[j] + margin) | (delta[j] > high[j] - margin)
        mean = np.float64(sums[moments + j])
        changed += (mean < moment_low[j] * rows) | (mean >= moment_high[j] * rows)
    facts[DISTANCE] = math.sqrt(size)
    due = int(facts[DUE])
    if beyond > 0:
        due |= CELL
    if changed > 0 or not facts[FEWEST] <= rows <= facts[MOST]:
        due |= WIDTH_CHANGED
    facts[DUE] = due


@kernel()
def claim_row(row: int, status: Any, y: Any, sums: Any, classes: int) -> int:
    """DONE if the row may leave, else why not; a class (or, without classes, the model) keeps a row at least."""
    if row < 0 or row >= status.size:
        return OUTSIDE
    if status[row] == PRESENT:
        if classes == 0:
            return EMPTY if sums[0] <= 1 else DONE
        held = U(2) + U(y[row])
        return 8 * int(y[row]) + EMPTY if sums[held] <= 1 else DONE
    return GONE if status[row] == FORGOTTEN else NOT_TRAINED


@kernel()
def _filled(sums: Any, at: int) -> int:
    """How many of the scales of e, w, c and weights, counted from sums[at] on, have a row in their upper half."""
    return int(sums[at] > 0) + int(sums[at + 1] > 0) + int(sums[at + 2] > 0) + int(sums[at + 3] > 0)


@kernel()
def subtract_row(row: int, X: Any, y: Any, weights: Any, sums: Any, state: Any) -> tuple[float, float, float, float]:
    """Take one row's terms out of `sums`; returns (e, w, c, weight) at the anchor.

    The row goes to state[ROW]. A scale whose last large row leaves makes a new expansion due.
    """
    facts, u, x = state[FACTS], state[FACTORS], state[ROW]
    p = X.shape[1] + 1
    classes, counted = int(facts[CLASSES]), facts[COUNTED] > 0.0
    weight = weights[row] if weights.size else 1.0
    z = scale_row(row, X, state[ANCHOR], state[INVERSE_SCALE], u)
    e, w, c = derivatives(int(facts[LOSS]), z, np.float64(y[row]))
    e, w, c = e * weight, w * weight, c * weight
    tops, moments = tops_at(classes), moments_at(p, classes)
    second = moments + 2 * p
    held = _filled(sums, tops + p)
    add_counts((e, w, c), weight, -1, counted, facts, sums, tops, p)
    add_first(u, p, -facts[MOMENT], -e * facts[FIRST], -1, sums[tops:], sums[moments:], sums[moments + p :])
    add_second(u, p, -w * facts[SECOND], sums, second)
    if classes:
        sums[U(2) + U(y[row])] -= 1
    emptied = max(held - _filled(sums, tops + p), 0)
    for j in range(U(p)):
        emptied += (abs(u[j]) >= 0.5) & (sums[U(tops) + j] == 0)
    if emptied:
        facts[DUE] = int(facts[DUE]) | SCALE_CHANGED
    if facts[ORDER] == 3.0:
        pairs = state[INVERSE + p :].reshape(-1)
        write_pairs(u, p, c * facts[THIRD], pairs, 0)
        add_third(u, p, pairs, -1, facts, sums, second + pairs_of(p))
    for j in range(U(p - 1)):
        x[j] = X[row, j]
    x[p - 1] = 1.0
    return e, w, c, weight


@kernel()
def forget_row(
    row: int, X: Any, y: Any, weights: Any, status: Any, sums: Any, state: Any, out: Any
) -> tuple[int, float, int]:
    """The instant answer to a request for one row: theta without it into out (p,), the row itself overwritten.

    Returns (code, error, due): DONE, or POLISH if only delta is missing, or why the row is refused, and then nothing
    has changed; the estimated error relative to the distance from the reference; reasons for a new expansion.
    """
    p, facts = out.size, state[FACTS]
    code = claim_row(row, status, y, sums, int(facts[CLASSES]))
    if code != DONE:
        return code, 0.0, 0
    status[row] = FORGOTTEN
    e, w, c, weight = subtract_row(row, X, y, weights, sums, state)
    for j in range(U(p - 1)):
        X[row, j] = 0
    y[row] = 0
    if weights.size:
        weights[row] = 0.0
    left = sums[1] * facts[UNIT]
    if not _instant_step(state, p, e, w, c, facts[PER_WEIGHT] * weight, left):
        return POLISH, 0.0, 0
    judge(sums, state, p)
    for j in range(U(p)):
        out[j] = state[ANCHOR, j] + state[DELTA, j]
    distance = facts[DISTANCE]
    if distance > facts[FARTHEST] or facts[DRIFT] > BIAS_SHARE * facts[BIAS] + DISTANCE_SHARE * distance:
        return POLISH, 0.0, 0
    error = (facts[BIAS] + facts[DRIFT]) / distance if distance > facts[NEAREST] else 0.0
    return DONE, error, int(facts[DUE])


@kernel(fastmath=FAST)
def _add_product(sums: Any, at: Any, eta: Any, unit: float, p: int, out: Any) -> None:
    """out += unit H eta for H from sums[at] on."""
    for k in range(U(p)):
        mine, dot = unit * eta[k], 0.0
        out[k] += mine * np.float64(sums[at])
        for i in range(U(1), U(p) - k):
            term = np.float64(sums[at + i])
            out[k + i] += mine * term
            dot += eta[k + i] * term
        out[k] += unit * dot
        at += U(p) - k


@kernel(fastmath=FAST)
def residual(sums: Any, state: Any, p: int, order: int, out: Any) -> None:
    """out (p,) = F at delta, of order 3 or (without T) 2."""
    facts, anchor, delta, strength, scale = state[FACTS], state[ANCHOR], state[DELTA], state[STRENGTH], state[SCALE]
    eta = state[PRODUCT]  # delta in the columns' units
    penalty = facts[CONSTANT] + facts[PER_WEIGHT] * facts[UNIT] * sums[1]
    at = U(moments_at(p, int(facts[CLASSES])) + p)
    first, second = 1.0 / facts[FIRST], 1.0 / facts[SECOND]
    for j in range(U(p)):
        eta[j] = delta[j] * scale[j]
        out[j] = first * np.float64(sums[at + j])
    at += U(p)
    _add_product(sums, at, eta, second, p, out)
    at += U(pairs_of(p))
    if order == 3:
        _add_cubic(sums, at, state, p, out)
    for j in range(U(p)):
        out[j] = out[j] * scale[j] + penalty * strength[j] * (anchor[j] + delta[j])


@kernel(fastmath=FAST)
def _add_cubic(sums: Any, at: Any, state: Any, p: int, out: Any) -> None:
    """out += T[eta, eta] / 2 for T from sums[at] on and eta = state[PRODUCT].

    T has its entries j <= k <= l. With j < k they are summed over j first (m_kl), which serves both k and l.
    """
    q, eta = U(pairs_of(p)), state[PRODUCT]
    pairs = state[INVERSE + p :].reshape(-1)  # eta_k eta_l, twice where k < l; then m_kl
    to = U(0)
    for k in range(U(p)):
        pairs[to] = eta[k] * eta[k]
        for i in range(U(1), U(p) - k):
            pairs[to + i] = 2.0 * eta[k] * eta[k + i]
        to += U(p) - k
    for i in range(q):
        pairs[q + i] = 0.0
    unit = 0.5 / (state[FACTS, THIRD] * state[FACTS, COLUMN])
    first = U(0)
    for j in range(U(p)):
        own, dot, mine = U(p) - j, 0.0, eta[j]
        for i in range(own):
            term = np.float64(sums[at + i])
            dot += term * pairs[first + i]
            out[j + i] += unit * mine * mine * term if i > U(0) else 0.0
        for i in range(own, q - first):
            term = np.float64(sums[at + i])
            dot += term * pairs[first + i]
            pairs[q + first + i] += mine * term
        out[j] += unit * dot
        at += q - first
        first += own
    to = q
    for k in range(U(p)):
        out[k] += 2.0 * unit * pairs[to] * eta[k]
        for i in range(U(1), U(p) - k):
            m = 2.0 * unit * pairs[to + i]
            out[k] += m * eta[k + i]
            out[k + i] += m * eta[k]
        to += U(p) - k


@kernel(fastmath=FAST)
def jacobian(sums: Any, state: Any, p: int, order: int, out: Any) -> None:
    """out (p, p) = the Jacobian of F at delta, whole."""
    facts, strength, scale, delta = state[FACTS], state[STRENGTH], state[SCALE], state[DELTA]
    penalty = facts[CONSTANT] + facts[PER_WEIGHT] * facts[UNIT] * sums[1]
    second = 1.0 / facts[SECOND]
    at = U(moments_at(p, int(facts[CLASSES])) + 2 * p)
    for k in range(U(p)):
        for i in range(U(p) - k):
            out[k, k + i] = second * np.float64(sums[at + i])
        at += U(p) - k
    if order == 3:
        eta, unit = state[PRODUCT], 1.0 / (facts[THIRD] * facts[COLUMN])
        for j in range(U(p)):
            eta[j] = unit * delta[j] * scale[j]
        for j in range(U(p)):
            for k in range(j, U(p)):  # the entries (j, k, l), l = k .. p - 1
                diagonal = np.float64(sums[at])
                out[k, k] += eta[j] * diagonal
                if k > j:
                    out[j, k] += eta[k] * diagonal
                dot = 0.0
                for i in range(U(1), U(p) - k):
                    term = np.float64(sums[at + i])
                    out[k, k + i] += eta[j] * term
                    dot += eta[k + i] * term
                    if k > j:
                        out[j, k + i] += eta[k] * term
                out[j, k] += dot
                at += U(p) - k
    for j in range(U(p)):
        for k in range(j, U(p)):
            out[j, k] *= scale[j] * scale[k]
            out[k, j] = out[j, k]
        out[j, j] += penalty * strength[j]


@kernel(fastmath=FAST)
def invert(p: int, state: Any, work: Any) -> bool:
    """The inverse of the positive definite matrix work[WORK:] (p, p), which is overwritten, into the state."""
    matrix, unit, column = work[WORK:], work[0], work[1]
    if not cholesky(matrix, p):
        return False
    for j in range(p):
        for k in range(p):
            unit[k] = 1.0 if k == j else 0.0
        solve_factored(matrix, p, unit, column)
        for k in range(p):
            state[INVERSE + k, j] = column[k]
    for j in range(p):
        for k in range(j):
            mean = 0.5 * (state[INVERSE + j, k] + state[INVERSE + k, j])
            state[INVERSE + j, k] = mean
            state[INVERSE + k, j] = mean
    return True


@kernel(fastmath=FAST)
def _step(sums: Any, state: Any, p: int, order: int, work: Any) -> tuple[float, float]:
    """work[1] = inverse times F at delta; returns (its length, F times it)."""
    residual(sums, state, p, order, work[0])
    size, merit = 0.0, 0.0
    for j in range(U(p)):
        move, line = 0.0, state[U(INVERSE) + j]
        for k in range(U(p)):
            move += line[k] * work[0, k]
        work[1, j] = move
        size += move * move
        merit += move * work[0, j]
    return math.sqrt(size), merit


@kernel(fastmath=FAST)
def _length(v: Any, p: int) -> float:
    total = 0.0
    for j in range(U(p)):
        total += v[j] * v[j]
    return math.sqrt(total)


@kernel()
def polish(sums: Any, state: Any, p: int, work: Any) -> bool:
    """Bring delta back to the root with the kept inverse; False if its steps do not shrink fast: then `solve`."""
    order, before, done = int(state[FACTS, ORDER]), np.inf, False
    for _ in range(ROUNDS):
        size, _merit = _step(sums, state, p, order, work)
        length = _length(state[DELTA], p)
        rate = size / before if before < np.inf else SHRINK
        done = rate * size <= ENOUGH * length
        if not done and not size < SHRINK * before:
            return False
        if size > ROUNDING * length:
            for j in range(p):
                state[DELTA, j] -= work[1, j]
        if done:
            break
        before = size
    facts, moved = state[FACTS], 0.0
    for j in range(p):
        moved += (state[DELTA, j] - state[POLISHED, j]) ** 2
        state[POLISHED, j] = state[DELTA, j]
    facts[DRIFT] = 0.0
    facts[STALE] += math.sqrt(moved)
    if done and facts[LAG] / (sums[1] * facts[UNIT]) + 2.0 * facts[CURVATURE] * facts[STALE] > STALEST:
        jacobian(sums, state, p, order, work[WORK:])
        done = invert(p, state, work)
        facts[LAG], facts[STALE] = 0.0, 0.0
    return done


@kernel()
def _solve(sums: Any, state: Any, p: int, work: Any) -> bool:
    """`solve` but for its marks."""
    order, delta = int(state[FACTS, ORDER]), state[DELTA]
    for j in range(p):
        delta[j] = 0.0
    jacobian(sums, state, p, 2, work[WORK:])
    if not invert(p, state, work):
        return False
    for _ in range(3):  # refined: the residual of order 2 is linear
        _step(sums, state, p, 2, work)
        for j in range(p):
            delta[j] -= work[1, j]
    if order == 2:
        return True
    start, trial = work[5], work[3]
    for j in range(p):
        start[j] = delta[j]
    found, theta = False, _length(state[ANCHOR], p)  # at the optimum delta is nothing but rounding of theta
    for _ in range(ROUNDS):
        jacobian(sums, state, p, 3, work[WORK:])
        if not invert(p, state, work):
            break
        size, merit = _step(sums, state, p, 3, work)
        if size <= ROUNDING * (_length(delta, p) + theta):
            found = True
            break
        for j in range(p):
            trial[j], work[4, j] = delta[j], work[1, j]
        share, better = 1.0, False
        while share > 1e-3:
            for j in range(p):
                delta[j] = trial[j] - share * work[4, j]
            after, after_merit = _step(sums, state, p, 3, work)
            if abs(after_merit) < abs(merit) or after <= ROUNDING * (_length(delta, p) + theta):
                better = True
                break
            share *= 0.5
        if not better:  # rounding, or no way down
            for j in range(p):
                delta[j] = trial[j]
            found = size <= SMALL * _length(delta, p) + 10 * ROUNDING * theta
            break
    if not found:  # Halley's step: three to fifteen times nearer than the root of order 2 where there is no root
        for j in range(p):
            delta[j] = 0.0
        residual(sums, state, p, 2, work[2])
        for j in range(p):
            delta[j] = 0.5 * start[j]
        jacobian(sums, state, p, 3, work[WORK:])
        halley = invert(p, state, work)
        for j in range(p):
            delta[j] = start[j]
            if halley:
                delta[j] = 0.0
                for k in range(p):
                    delta[j] -= state[INVERSE + j, k] * work[2, k]
        if not halley:
            jacobian(sums, state, p, 2, work[WORK:])
            invert(p, state, work)
    return found


@kernel()
def solve(sums: Any, state: Any, p: int, work: Any) -> bool:
    """delta and the inverse from the integers alone: Newton's method on F from the root of order 2, safeguarded.

    False if there is no root of order 3 nearby; delta is then that of order 2. work (WORK + p, width of the state).
    """
    found = _solve(sums, state, p, work)
    for j in range(p):
        state[POLISHED, j] = state[DELTA, j]
    facts = state[FACTS]
    facts[LAG], facts[STALE], facts[DRIFT] = 0.0, 0.0, 0.0
    return found


@kernel(fastmath=FAST)
def _bend(sums: Any, state: Any, p: int, v: Any, sign: float, u: Any, work: Any) -> None:
    """work[0] = T[v + sign u, v + sign u] / 2."""
    eta, scale = state[PRODUCT], state[SCALE]
    for j in range(U(p)):
        eta[j] = (v[j] + sign * u[j]) * scale[j]
        work[0, j] = 0.0
    _add_cubic(sums, U(moments_at(p, int(state[FACTS, CLASSES])) + 2 * p + pairs_of(p)), state, p, work[0])
    for j in range(U(p)):
        work[0, j] *= scale[j]


@kernel(fastmath=FAST)
def _solved(state: Any, p: int, b: Any, out: Any) -> float:
    """out = inverse b; returns its length."""
    for j in range(U(p)):
        total, line = 0.0, state[U(INVERSE) + j]
        for k in range(U(p)):
            total += line[k] * b[k]
        out[j] = total
    return _length(out, p)


@kernel(fastmath=FAST)
def nonlinearity(sums: Any, state: Any, p: int, work: Any) -> tuple[float, float, float]:
    """What the terms of fourth order, which are left out, are judged by: (v, a, c).

    v: mean of (x . delta)^2 over the rows, weighted by their curvature. a: |inverse T[delta, u]| / |delta| for
    u = inverse T[delta, delta], whose length over |delta|^2 is c.
    """
    facts, delta, scale, eta = state[FACTS], state[DELTA], state[SCALE], state[PRODUCT]
    at = U(moments_at(p, int(facts[CLASSES])) + 2 * p)
    for j in range(U(p)):
        eta[j] = delta[j] * scale[j]
        work[0, j] = 0.0
    _add_product(sums, at, eta, 1.0, p, work[0])
    last = np.float64(sums[at + U(pairs_of(p)) - U(1)]) * scale[p - 1] * scale[p - 1]
    v = 0.0
    for j in range(U(p)):
        v += eta[j] * work[0, j]
    v = v / last if last > 0.0 else np.inf
    length = _length(delta, p)
    if facts[ORDER] != 3.0 or length == 0.0:
        return v, 0.0, 0.0
    u = work[2]
    _bend(sums, state, p, delta, 0.0, delta, work)
    curved = 2.0 * _solved(state, p, work[0], u)
    for j in range(U(p)):
        u[j] *= 2.0
    _bend(sums, state, p, delta, 1.0, u, work)
    for j in range(U(p)):
        work[3, j] = work[0, j]
    _bend(sums, state, p, delta, -1.0, u, work)
    for j in range(U(p)):
        work[3, j] = 0.5 * (work[3, j] - work[0, j])  # T[delta, u]
    return v, _solved(state, p, work[3], work[4]) / length, curved / (length * length)
