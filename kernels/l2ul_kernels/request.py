"""One request, compiled: claim the rows, fetch them, move theta, take their cells out of the counts.

Each function is one call with few arguments: at r = 1 the calls themselves are half of the time. Nothing is allocated
here and nothing raises; a refused request leaves every array as it was.
"""

from __future__ import annotations

import math

import numpy as np

from l2ul_kernels._jit import FAST, kernel
from l2ul_kernels.mlp_few import few_gradient

#: States of a row in `gone` (N,) uint8.
PRESENT, FORGOTTEN, _CLAIMED, FOREIGN = 0, 1, 2, 3

#: Reasons why `claim` refuses a row.
OUTSIDE, GONE, TWICE, NOT_TRAINED = 1, 2, 3, 4


@kernel()
def claim(ids, gone):  # type: ignore[no-untyped-def]
    """Mark rows ids (r,) int64 as forgotten in gone (N,) uint8; returns -1, or 8 * position + reason of a refusal."""
    for i in range(ids.size):
        row = ids[i]
        reason = 0
        if row < 0 or row >= gone.size:
            reason = OUTSIDE
        elif gone[row] == FORGOTTEN:
            reason = GONE
        elif gone[row] == _CLAIMED:
            reason = TWICE
        elif gone[row] == FOREIGN:
            reason = NOT_TRAINED
        if reason != 0:
            for j in range(i):
                gone[ids[j]] = PRESENT
            return 8 * i + reason
        gone[row] = _CLAIMED
    for i in range(ids.size):
        gone[ids[i]] = FORGOTTEN
    return -1


@kernel()
def release(ids, gone):  # type: ignore[no-untyped-def]
    """Undo `claim`, for a request that is refused for another reason."""
    for i in range(ids.size):
        gone[ids[i]] = PRESENT


@kernel()
def gather(X, y, ids, X_out, y_out):  # type: ignore[no-untyped-def]
    """X_out (r, d), y_out (r,) = the rows ids of X (N, d), y (N,)."""
    for i in range(ids.size):
        row = ids[i]
        y_out[i] = y[row]
        for j in range(X.shape[1]):
            X_out[i, j] = X[row, j]


@kernel()
def gather_mapped(memory, offsets, chunk_rows, mean, inverse_scale, y, ids, raw, X_out, y_out):  # type: ignore[no-untyped-def]
    """The same from a mapped file: memory (size,) uint8 holds chunks of float32 rows, standardised on the way.

    raw (r, 4 d) uint8 are the bytes of X_out (r, d) float32: places in a file need not be aligned.
    """
    width = raw.shape[1]
    for i in range(ids.size):
        row = ids[i]
        y_out[i] = y[row]
        start = offsets[row // chunk_rows] + row % chunk_rows * width
        for b in range(width):
            raw[i, b] = memory[start + b]
        for j in range(mean.size):
            X_out[i, j] = np.float32((np.float64(X_out[i, j]) - mean[j]) * inverse_scale[j])


@kernel()
def erase_rows(X, y, ids):  # type: ignore[no-untyped-def]
    """Zero the rows ids of X (N, d) and y (N,)."""
    for i in range(ids.size):
        y[ids[i]] = 0
        for j in range(X.shape[1]):
            X[ids[i], j] = 0


@kernel()
def leave_classes(labels, left):  # type: ignore[no-untyped-def]
    """Take rows with classes labels (r,) out of left (C,) int64; returns -1, or a class that would have no row left.

    Then nothing has changed.
    """
    for i in range(labels.size):
        left[labels[i]] -= 1
    for c in range(left.size):
        if left[c] <= 0:
            for i in range(labels.size):
                left[labels[i]] += 1
            return c
    return -1


@kernel()
def forget_cells(packed, ids, y, bits, counts):  # type: ignore[no-untyped-def]
    """Take the cells of rows ids out of counts (C, t, psi) int64 and zero their bytes in packed (N, width) uint8.

    y (r,) holds the rows' classes, bits is bits_per_cell(psi).
    """
    t = counts.shape[1]
    mask = (1 << bits) - 1
    for i in range(ids.size):
        row = ids[i]
        own = counts[y[i]]
        held = np.int64(0)  # bits that were read and not used yet
        have = 0
        byte = 0
        for p in range(t):
            while have < bits:
                held |= np.int64(packed[row, byte]) << have
                have += 8
                byte += 1
            own[p, held & mask] -= 1
            held >>= bits
            have -= bits
        for b in range(packed.shape[1]):
            packed[row, b] = 0


@kernel()
def forget_stored(packed, ids, y, bits, counts, X, labels):  # type: ignore[no-untyped-def]
    """forget_cells, then erase_rows of X (N, d) and labels (N,), as one call; y (r,) may be a part of labels."""
    forget_cells(packed, ids, y, bits, counts)
    erase_rows(X, labels, ids)


@kernel(fastmath=FAST)
def take_rows_out(X, y, theta, anchor, total, curvature):  # type: ignore[no-untyped-def]
    """Add the rows' gradient at theta to total (p,), subtract their Hessian at anchor from curvature (p, p).

    Binary logistic regression; X (r, d), y (r,) 0/1. The curvature stays exactly that of the rest at `anchor`.
    """
    r, d = X.shape
    weights = np.empty(r)
    for i in range(r):
        at_theta = theta[d]
        at_anchor = anchor[d]
        for j in range(d):
            at_theta += theta[j] * X[i, j]
            at_anchor += anchor[j] * X[i, j]
        residual = 1.0 / (1.0 + math.exp(-at_theta)) - y[i]
        s = 1.0 / (1.0 + math.exp(-at_anchor))
        weights[i] = s * (1.0 - s)
        for j in range(d):
            total[j] += residual * X[i, j]
        total[d] += residual
    whole = r // 4 * 4
    for i in range(0, whole, 4):  # four rows at a time: an entry of the matrix is read and written once for them
        for j in range(d):
            a, b = weights[i] * X[i, j], weights[i + 1] * X[i + 1, j]
            c, e = weights[i + 2] * X[i + 2, j], weights[i + 3] * X[i + 3, j]
            for k in range(d):
                curvature[j, k] -= (a * X[i, k] + b * X[i + 1, k]) + (c * X[i + 2, k] + e * X[i + 3, k])
            curvature[j, d] -= (a + b) + (c + e)
    for i in range(whole, r):
        for j in range(d):
            scaled = weights[i] * X[i, j]
            for k in range(d):
                curvature[j, k] -= scaled * X[i, k]
            curvature[j, d] -= scaled
    for j in range(d):
        curvature[d, j] = curvature[j, d]
    for i in range(r):
        curvature[d, d] -= weights[i]


@kernel(fastmath=FAST)
def refined_solve(inverse, curvature, ridge, right, steps, x, rest):  # type: ignore[no-untyped-def]
    """x (p,) with (curvature + ridge on all but the last diagonal entry) x = right, by refinement from `inverse`.

    inverse (p, p) is the inverse of a matrix close to that one (before the latest requests). Each step shrinks the
    error by the relative change since. Returns the last residual's norm over that of `right`; rest (p,) is scratch.
    """
    p = right.size
    for j in range(p):
        x[j] = 0.0
        rest[j] = right[j]
    scale = 0.0
    for j in range(p):
        scale += right[j] * right[j]
    norm = scale
    for _ in range(steps):
        for j in range(p):
            add = 0.0
            for k in range(p):
                add += inverse[j, k] * rest[k]
            x[j] += add
        norm = 0.0
        for j in range(p):
            value = right[j]
            for k in range(p):
                value -= curvature[j, k] * x[k]
            if j < p - 1:
                value -= ridge * x[j]
            rest[j] = value
            norm += value * value
    return math.sqrt(norm / scale) if scale > 0.0 else 0.0


@kernel(fastmath=FAST)
def newton_move(X, y, theta, anchor, curvature, inverse, correction, n, lam, work, out):  # type: ignore[no-untyped-def]
    """out (p,) = theta after one Newton step that takes the rows X (r, d), y (r,) out of a model of n rows.

    curvature (p, p), the Hessian sum at `anchor` over all n rows, loses these rows; `inverse` is refined, not changed.
    correction (p, p), or (0, 0) for none, is the learned part. work (3 + p, p) is scratch; work[0] leaves with
    r * (mean gradient of the rows + penalty gradient), of which z is the 1 / sqrt(r) fold, and work[3:] with the
    curvature as it was. Returns the relative residual of the linear system: not small when the curvature has changed
    too much for `inverse`.
    """
    p = theta.size
    for j in range(p):
        for k in range(p):
            work[3 + j, k] = curvature[j, k]
    left = n - X.shape[0]
    total = work[0]
    for j in range(p):
        total[j] = X.shape[0] * lam * theta[j] if j < p - 1 else 0.0
    take_rows_out(X, y, theta, anchor, total, curvature)
    return solve_move(theta, curvature, inverse, correction, left, lam, work, out)


@kernel(fastmath=FAST)
def solve_move(theta, curvature, inverse, correction, left, lam, work, out):  # type: ignore[no-untyped-def]
    """The second half of newton_move: from work[0] and the curvature of the `left` rows that stay to out (p,)."""
    residual = refined_solve(inverse, curvature, left * lam, work[0], 3, work[1], work[2])
    for j in range(theta.size):
        move = work[1, j]
        for k in range(correction.shape[1]):
            move += correction[j, k] * work[0, k] / left
        out[j] = theta[j] + move
    return residual


@kernel(fastmath=FAST)
def linear_move(W, total, theta, left, out):  # type: ignore[no-untyped-def]
    """out (p,) = theta + W total / left, W (p, p) float32 or float64; total = r * (mean + penalty gradient)."""
    for j in range(theta.size):
        move = 0.0
        for k in range(total.size):
            move += W[j, k] * total[k]
        out[j] = theta[j] + move / left


@kernel(fastmath=FAST)
def logistic_total(X, y, theta, lam, out):  # type: ignore[no-untyped-def]
    """out (p,) = r * (mean gradient of the rows X (r, d), y (r,) + penalty gradient) of binary logistic regression."""
    d = X.shape[1]
    for j in range(d):
        out[j] = X.shape[0] * lam * theta[j]
    out[d] = 0.0
    for i in range(X.shape[0]):
        value = theta[d]
        for j in range(d):
            value += theta[j] * X[i, j]
        residual = 1.0 / (1.0 + math.exp(-value)) - y[i]
        for j in range(d):
            out[j] += residual * X[i, j]
        out[d] += residual


@kernel(fastmath=FAST)
def linear_move_single(W, total, theta, left, work, out):  # type: ignore[no-untyped-def]
    """linear_move for W (p, wide) float32, in float32: half the bytes, twice the lanes.

    Columns beyond p are zeros: with whole vectors in every row no element is left to do alone. work (wide,) float32 is
    scratch that leaves with zeros there.
    """
    for k in range(total.size):
        work[k] = total[k]
    for k in range(total.size, work.size):
        work[k] = 0
    p = theta.size
    whole = p // 4 * 4
    for j in range(0, whole, 4):  # four sums at a time: none waits for its own last addition
        a = b = c = d = np.float32(0)
        for k in range(work.size):
            a += W[j, k] * work[k]
            b += W[j + 1, k] * work[k]
            c += W[j + 2, k] * work[k]
            d += W[j + 3, k] * work[k]
        out[j], out[j + 1] = theta[j] + a / left, theta[j + 1] + b / left
        out[j + 2], out[j + 3] = theta[j + 2] + c / left, theta[j + 3] + d / left
    for j in range(whole, p):
        move = np.float32(0)
        for k in range(work.size):
            move += W[j, k] * work[k]
        out[j] = theta[j] + move / left


@kernel()
def mlp_total(X, y, theta, centre, strength, h, o, relu, memory, out):  # type: ignore[no-untyped-def]
    """out (p,) = r * (mean gradient of a few rows X (r, d), y (r,) + penalty gradient) of the MLP.

    The penalty is strength / 2 |theta - centre|^2; h hidden units, o logits; memory (2 (h + o),) is scratch.
    """
    r = X.shape[0]
    for j in range(theta.size):
        out[j] = r * strength * (theta[j] - centre[j])
    few_gradient(X, y, theta, h, o, relu, memory, out)
