"""Sums over many rows, block by block: what a full-data Newton step of logistic regression needs."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.pointers import fetch_add
from l2ul_kernels.simd.columns import (
    CHUNK,
    PAD,
    add_dots,
    add_gram,
    gather,
    losses,
    padded,
    residuals,
    scores,
    width_of,
)

#: Rows transposed at a time: in double precision up to 40 features of them stay in the first cache, where gradient and
#: Hessian sums ran 7 % faster than with 512 (1 M x 28, `l2ul bench baselines --only speed`).
TILE = 128
#: Rows of a block at least. Blocks depend on the number of rows only, so that sums do not depend on threads.
BLOCK_ROWS = 2048
#: Blocks at most, each with its own partial sums.
MAX_BLOCKS = 128
#: Multiply-adds below which other threads could not help in time (0.2 ms).
SERIAL = 2_000_000

#: What is summed: loss and gradient; these and the Hessian; the Hessian times a vector; the gradient alone.
GRADIENT, HESSIAN, PRODUCT, SLOPE = 0, 1, 2, 3


def block_count(n: int) -> int:
    """Blocks that n rows are summed in."""
    return max(1, min(MAX_BLOCKS, -(-n // BLOCK_ROWS)))


def worker_count(n: int, p: int) -> int:
    """Threads worth using for n rows."""
    return 1 if n * p * p < SERIAL else max(1, min(numba.get_num_threads(), block_count(n)))


def tile_memory(d: int, vectors: int) -> tuple[NDArray[Any], ...]:
    """ids, columns, rows, scaled of one worker, with `vectors` values per row."""
    rows = padded(TILE)
    columns = aligned_zeros((width_of(d + 1), rows))
    return np.zeros(TILE, np.int64), columns, aligned_zeros((vectors, rows)), aligned_zeros((3, CHUNK))


@kernel(inline=True)
def load_tile(X: Any, at: int, lo: int, hi: int, ids: Any, columns: Any) -> None:
    """The rows lo..hi of X, column by column."""
    for i in range(hi - lo):
        ids[i] = lo + i
    gather(X, ids[: hi - lo], at, columns)


@kernel(inline=True)
def weigh(weight: Any, lo: int, n: int, last: int, values: Any) -> None:
    """Multiply the values of the n rows from lo by their weight (if there are weights); those that pad by 0."""
    if len(weight) > 0:
        for i in range(n):
            values[i] *= weight[lo + i]
    for i in range(n, last):
        values[i] = 0.0


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
    rows: Any,
    scaled: Any,
    loss: Any,
    vector: Any,
    matrix: Any,
) -> None:
    """Take blocks of rows from the counter at `next_block`; each fills its own loss[b], vector[b] and matrix[b].

    vector: gradient, or for mode PRODUCT the Hessian times `along`; matrix: the Hessian's lower blocks, mode HESSIAN.
    """
    labels, z, residual, w = rows[0], rows[1], rows[2], rows[3]
    n, total = X.shape[0], len(loss)
    while True:
        b = fetch_add(next_block, 1)
        if b >= blocks:
            return
        for lo in range(n * b // total, n * (b + 1) // total, TILE):
            hi = min(lo + TILE, n * (b + 1) // total)
            last = -(-(hi - lo) // PAD) * PAD
            load_tile(X, at, lo, hi, ids, columns)
            for i in range(hi - lo):
                labels[i] = y[lo + i]
            scores(columns, theta, 0, last, z)
            residuals(z, labels, 0, last, residual, w)
            if mode == PRODUCT:
                scores(columns, along, 0, last, z)
                for i in range(hi - lo):
                    residual[i] = w[i] * z[i]
            weigh(weight, lo, hi - lo, last, residual)
            add_dots(columns, residual, 0, last, vector[b])
            if mode == HESSIAN:
                weigh(weight, lo, hi - lo, last, w)
                add_gram(columns, w, 0, last, scaled, matrix[b])
            if mode in (GRADIENT, HESSIAN):
                losses(z, labels, 0, last, residual)
                weigh(weight, lo, hi - lo, last, residual)
                for i in range(hi - lo):
                    loss[b] += residual[i]
