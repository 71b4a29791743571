"""What every request does: claim rows, read and erase them, take their cells out of the counts.

Each function is one call with few arguments: at r = 1 the calls themselves are half of the time. Nothing is allocated
here and nothing raises; a refused request leaves every array as it was.
"""

from __future__ import annotations

import math

import numpy as np

from l2ul_kernels.codegen.jit import FAST, kernel

#: States of a row in `gone` (N,) uint8.
PRESENT, FORGOTTEN, _CLAIMED, FOREIGN = 0, 1, 2, 3

#: What a request returns when it is done.
DONE = -1

#: Reasons why a request refuses a row, or a class (`EMPTY`: none of its rows would stay).
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
def gather_mapped(memory, offsets, chunk_rows, scaling, y, ids, raw, y_out):  # type: ignore[no-untyped-def]
    """The same from a mapped file: memory (size,) uint8 holds chunks of float32 rows, standardised on the way.

    raw (r, 4 d) uint8 receives the bytes of X (r, d) float32: places in a file need not be aligned. scaling (2, d) are
    the columns' means and inverse scales.
    """
    width, X = raw.shape[1], raw.view(np.float32)
    for i in range(ids.size):
        row = ids[i]
        y_out[i] = y[row]
        start = np.uint64(offsets[row // chunk_rows] + row % chunk_rows * width)
        for b in range(np.uint64(width)):  # unsigned: only such indices are taken in vectors
            raw[i, b] = memory[start + b]
        for j in range(X.shape[1]):
            X[i, j] = np.float32((np.float64(X[i, j]) - scaling[0, j]) * scaling[1, j])


@kernel()
def erase_rows(X, y, ids):  # type: ignore[no-untyped-def]
    """Zero the rows ids of X (N, d) and y (N,)."""
    for i in range(ids.size):
        y[ids[i]] = 0
        for j in range(X.shape[1]):
            X[ids[i], j] = 0


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
