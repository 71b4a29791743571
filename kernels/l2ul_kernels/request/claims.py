"""What every request does: claim rows, read and erase them, take their cells out of the counts.

Each function is one call with few arguments: at r = 1 the calls themselves are half of the time. Nothing is allocated
here and nothing raises; a refused request leaves every array as it was.
"""

from __future__ import annotations

import math

import numpy as np

from l2ul_kernels._jit import FAST, kernel
from l2ul_kernels._memory import prefetch

#: States of a row in `gone` (N,) uint8.
PRESENT, FORGOTTEN, _CLAIMED, FOREIGN = 0, 1, 2, 3

#: What a whole request returns when it is done, or when nothing was changed and the long way must be taken.
DONE, OTHERWISE = -1, -2

#: Reasons why `claim` refuses a row.
OUTSIDE, GONE, TWICE, NOT_TRAINED, EMPTY = 1, 2, 3, 4, 5


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
        start = np.uint64(offsets[row // chunk_rows] + row % chunk_rows * width)
        for b in range(np.uint64(width)):  # unsigned: only such indices are taken in vectors
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
def leave_classes(y, at, left):  # type: ignore[no-untyped-def]
    """Take rows with classes y[at] (r,) out of left (C,) int64; returns -1, or a class that would have no row left.

    Then nothing has changed.
    """
    for i in range(at.size):
        left[y[at[i]]] -= 1
    for c in range(left.size):
        if left[c] <= 0:
            for i in range(at.size):
                left[y[at[i]]] += 1
            return c
    return -1


@kernel()
def claim_labelled(ids, gone, y, left):  # type: ignore[no-untyped-def]
    """claim, then leave_classes with the labels y (N,) of all rows, as one call.

    Returns -1, or 8 * position + reason, where EMPTY has the class for a position. Then nothing has changed.
    """
    refusal = claim(ids, gone)
    if refusal >= 0:
        return refusal
    empty = leave_classes(y, ids, left)
    if empty < 0:
        return -1
    release(ids, gone)
    return 8 * empty + EMPTY


@kernel()
def unclaim(ids, gone, y, left):  # type: ignore[no-untyped-def]
    """Undo claim_labelled."""
    release(ids, gone)
    for i in range(ids.size):
        left[y[ids[i]]] += 1


@kernel()
def ask_for(ids, X, y, packed):  # type: ignore[no-untyped-def]
    """Ask for all that is stored of a row, so that the waits overlap; of several rows the first is enough."""
    if ids.size > 0 and 0 <= ids[0] < y.size:
        row = ids[0]
        first = X.ctypes.data + row * X.shape[1] * X.itemsize
        prefetch(packed.ctypes.data + row * packed.shape[1])
        prefetch(y.ctypes.data + row)
        for line in range(0, X.shape[1] * X.itemsize, 64):
            prefetch(first + line)


@kernel()
def forget_cells(packed, ids, y, at, bits, counts):  # type: ignore[no-untyped-def]
    """Take the cells of rows ids out of counts (C, t, psi) int64 and zero their bytes in packed (N, width) uint8.

    y[at] (r,) are the rows' classes, bits is bits_per_cell(psi).
    """
    t = counts.shape[1]
    mask = (1 << bits) - 1
    for i in range(ids.size):
        row = ids[i]
        own = counts[y[at[i]]]
        done = 0
        if bits == 2:  # four cells in a byte (psi = 4): none waits for the one before
            done = t // 4 * 4
            for b in range(np.uint64(t // 4)):
                held, p = packed[row, b], np.uint64(4) * b
                own[p, held & 3] -= 1
                own[p + np.uint64(1), held >> 2 & 3] -= 1
                own[p + np.uint64(2), held >> 4 & 3] -= 1
                own[p + np.uint64(3), held >> 6] -= 1
        byte = done * bits // 8
        left = np.int64(0)  # bits that were read and not used yet
        have = 0
        for q in range(done, t):
            while have < bits:
                left |= np.int64(packed[row, byte]) << have
                have += 8
                byte += 1
            own[q, left & mask] -= 1
            left >>= bits
            have -= bits
        for b in range(np.uint64(packed.shape[1])):
            packed[row, b] = 0


@kernel()
def forget_stored(packed, ids, bits, counts, X, y):  # type: ignore[no-untyped-def]
    """forget_cells, then erase_rows, of rows whose X (N, d) and y (N,) are kept, as one call."""
    forget_cells(packed, ids, y, ids, bits, counts)
    erase_rows(X, y, ids)


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
