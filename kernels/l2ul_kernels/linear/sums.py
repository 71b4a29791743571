"""Sums over many rows, block by block: what a full-data Newton step of logistic regression needs.

The Python drivers here serve two classes (logistic.py) and many (softmax.py): these differ in what they sum per block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from l2ul_kernels.arrays import Array, Float
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.codegen.parallel import parallel_for
from l2ul_kernels.simd.columns import gather
from l2ul_kernels.validate import check_sum, refuse_unusable

#: Rows transposed at a time: in double precision up to 40 features of them stay in the first cache, where gradient and
#: Hessian sums ran 7 % faster than with 512 (1 M x 28, `l2ul bench baseline-speed`).
TILE = 128
#: Rows of a block at least. Blocks depend on the number of rows only, so that sums do not depend on threads.
BLOCK_ROWS = 2048
#: Blocks at most, each with its own partial sums.
MAX_BLOCKS = 128
#: Multiply-adds below which other threads could not help in time (0.2 ms).
SERIAL = 2_000_000

#: What is summed: loss and gradient; these and the Hessian; the Hessian times a vector; the gradient alone.
GRADIENT, HESSIAN, PRODUCT, SLOPE = 0, 1, 2, 3


class Sums(NamedTuple):
    """Sums of every block of rows."""

    loss: Float  # (blocks,)
    vector: Float  # (blocks, ..., width): gradient, or for PRODUCT the Hessian times a direction
    matrix: Float  # (blocks, k, k): the Hessian's lower blocks; something else unless HESSIAN


def block_count(n: int) -> int:
    """Blocks that n rows are summed in."""
    return max(1, min(MAX_BLOCKS, -(-n // BLOCK_ROWS)))


@kernel(inline=True)
def load_tile(rows: Any, lo: int, hi: int, ids: Any, columns: Any) -> None:
    """The rows lo..hi, column by column; ids (TILE,) is scratch."""
    for i in range(hi - lo):
        ids[i] = lo + i
    gather(rows, ids[: hi - lo], columns)


def sum_rows(key: Any, sum_blocks: Any, make_scratch: Callable[[], Any], X: Array, *what: Any) -> Float | Any:
    """sum_blocks(first, last, scratch, *what) for all blocks of what[-1], on the threads that n rows are worth.

    Returns (loss, vector, matrix) summed over blocks. NaN or infinities in X are a ValueError.
    """
    out: Sums = what[-1]
    n, p = len(X), out.vector[0].size
    threads = 1 if n * p * p < SERIAL else min(numba.get_num_threads(), len(out.loss))
    scratch = [make_scratch() for _ in range(threads)]
    ensure_compiled(key, lambda: sum_blocks(0, 0, scratch[0], *what))
    if threads == 1:
        sum_blocks(0, len(out.loss), scratch[0], *what)
    else:
        parallel_for(lambda first, last, t: sum_blocks(first, last, scratch[t], *what), len(out.loss), threads=threads)
    loss, vector, matrix = (part.sum(axis=0) for part in out)
    if not (np.isfinite(loss) and np.isfinite(out.vector).all()):
        refuse_unusable(X, None)
    return float(loss), vector, matrix


def add_sums(
    sums: Callable[[int], Any], p: int, gradient_out: Float | None, hessian_out: Float | None, read: tuple[Any, ...]
) -> float:
    """The loss of sums(mode) = (loss, gradient, Hessian); the others are added to the outs given, which are checked."""
    check_sum(gradient_out, (p,), *read, name="gradient_out")
    check_sum(hessian_out, (p, p), *read, gradient_out, name="hessian_out")
    total, gradient, hessian = sums(GRADIENT if hessian_out is None else HESSIAN)
    if gradient_out is not None:
        gradient_out += gradient
    if hessian_out is not None:
        hessian_out += hessian
    return float(total)
