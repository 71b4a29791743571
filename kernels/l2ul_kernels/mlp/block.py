"""One block of rows through the MLP, forwards and backwards: the unit of work of every MLP kernel.

Inside the kernels parameters are *padded*: V (h, dp) = [W1 | b1 | zeros], then W2 (o, h), then b2 (o), then zeros up to
whole vectors; a row is [x | 1 | zeros]. So a bias is one more feature and every product runs over whole vectors.

numba compiles a kernel together with all it calls: eight kernels would compile the blocks' functions eight times, some
5 s each. They are called through their addresses (`Scratch`): compiled and cached once for float32, once for float64.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from l2ul_kernels.arrays import Array
from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.codegen.pointers import entry_point
from l2ul_kernels.simd.elementwise import (
    copy_row,
    dot,
    exp_minus_all,
    fill,
    log_losses_all,
    logistic_all,
    relu_all,
    slope_all,
    tanh_all,
    transpose_all,
)
from l2ul_kernels.simd.gemm import gemm, stay_one
from l2ul_kernels.simd.rows import Rows
from l2ul_kernels.simd.views import matrix, vector


class Shape(NamedTuple):
    """Sizes of an MLP and of a block of its rows."""

    d: int  # features
    h: int  # hidden units
    o: int  # outputs: one logit for two classes, else one for each
    B: int  # rows per block
    dp: int  # d + 1 rounded up to whole vectors
    relu: int  # 1: relu, 0: tanh


class Parameters(NamedTuple):
    """Padded parameters, or their gradient."""

    V: Array  # (h, dp)
    W2: Array  # (o, h)
    b2: Array  # (o,)
    relu: int


class Block(NamedTuple):
    """A block of rows with all that is computed of them."""

    inputs: int  # d + 1
    x: Array  # (B, dp) rows
    xt: Array  # (dp, B) the same transposed
    hidden: Array  # (h, B) activations
    back: Array  # (h, B) errors of the hidden layer
    z: Array  # (o, B) logits, then their errors
    q: Array  # (o, B) curvatures (two classes) or probabilities
    y: Array  # (B,) labels
    w: Array  # (B,) weights; 0 where the block has no row
    loss: Array  # (B,)


class Scratch(NamedTuple):
    """Memory for blocks of one shape, and the entry points of what is done to them (see `call_at`)."""

    S: Array  # blocks, flat
    step: int  # elements from one to the next
    shape: Shape
    load: int
    forward: int
    errors: int
    gradient: int


@kernel()
def block_size(shape: Any) -> int:
    """Elements of a block."""
    return shape.B * (2 * shape.dp + 2 * shape.h + 2 * shape.o + 3)


@kernel()
def block_of(scratch: Any, i: int) -> Any:
    """The i-th block of the scratch."""
    S, at, shape = scratch.S, i * scratch.step, scratch.shape
    h, o, B, dp = shape.h, shape.o, shape.B, shape.dp
    hidden = at + 2 * B * dp
    z = hidden + 2 * h * B
    y = z + 2 * o * B
    return Block(
        shape.d + 1,
        matrix(S, at, B, dp),
        matrix(S, at + B * dp, dp, B),
        matrix(S, hidden, h, B),
        matrix(S, hidden + h * B, h, B),
        matrix(S, z, o, B),
        matrix(S, z + o * B, o, B),
        vector(S, y, B),
        vector(S, y + B, B),
        vector(S, y + 2 * B, B),
    )


@kernel()
def parameters_of(P: Any, at: int, shape: Any) -> Any:
    """Padded parameters in P from element `at` on."""
    h, o, w2 = shape.h, shape.o, at + shape.h * shape.dp
    return Parameters(matrix(P, at, h, shape.dp), matrix(P, w2, o, h), vector(P, w2 + o * h, o), shape.relu)


@kernel()
def load_block(block: Any, rows: Any, lo: int, hi: int) -> None:
    """Rows lo..hi-1, or rows ids[lo..hi-1] when ids are given, into the block; what is missing has weight 0."""
    stay_one()
    x, d, stride = block.x, rows.d, rows.d * rows.itemsize
    kind = x.dtype.type
    for b in range(x.shape[0]):
        if lo + b < hi:
            i = rows.ids[lo + b] if len(rows.ids) else lo + b
            copy_row(x, b, rows.address + i * stride, rows.itemsize, d)
            block.y[b] = rows.y[i]
            block.w[b] = kind(rows.weights[i]) if len(rows.weights) else kind(1)
        else:
            for k in range(d):
                x[b, k] = 0
            block.y[b] = 0
            block.w[b] = 0
        x[b, d] = 1
        for k in range(d + 1, x.shape[1]):
            x[b, k] = 0
    transpose_all(block.xt, x)


@kernel()
def forward_block(block: Any, P: Any) -> None:
    """Activations and logits: hidden = act(V x~), z = W2 hidden + b2."""
    stay_one()
    hidden, z, inputs = block.hidden, block.z, block.inputs
    gemm(hidden, P.V[:, :inputs], block.xt[:inputs], False)
    if P.relu:
        relu_all(hidden)
    else:
        tanh_all(hidden)
    for c in range(z.shape[0]):
        fill(z[c], P.b2[c])
    gemm(z, P.W2, hidden, True)


@kernel()
def _softmax_block(block: Any) -> None:
    """z -> probabilities in q and weight * (probability - [class]) in z; loss = log-losses."""
    stay_one()
    y, w, z, q, loss = block.y, block.w, block.z, block.q, block.loss
    o, B = z.shape
    for b in range(B):
        top = z[0, b]
        for c in range(1, o):
            top = max(top, z[c, b])
        loss[b] = top - z[int(y[b]), b]
        for c in range(o):
            q[c, b] = top - z[c, b]
    exp_minus_all(q)
    for b in range(B):
        total = q[0, b]
        for c in range(1, o):
            total += q[c, b]
        loss[b] += np.log(total)
        for c in range(o):
            q[c, b] /= total
            z[c, b] = w[b] * (q[c, b] - z.dtype.type(int(y[b]) == c))


@kernel()
def errors_block(block: Any, want_loss: int) -> Any:
    """Logits z -> their weighted errors (dloss/dz), q beside them; returns the weighted sum of losses if wanted."""
    stay_one()
    if block.z.shape[0] == 1:
        if want_loss:
            log_losses_all(block.loss, block.z, block.y)
        logistic_all(block.z, block.y, block.w, block.q)
    else:
        _softmax_block(block)
    return dot(block.loss, block.w) if want_loss else block.z.dtype.type(0)


@kernel()
def gradient_block(block: Any, P: Any, G: Any, want_loss: int) -> Any:
    """Add the block's gradient sum to G; returns the weighted sum of losses if wanted."""
    stay_one()
    z, hidden, back = block.z, block.hidden, block.back
    forward_block(block, P)
    loss = errors_block(block, want_loss)
    ones = block.xt[block.inputs - 1]
    for c in range(z.shape[0]):
        for j in range(hidden.shape[0]):
            G.W2[c, j] += dot(z[c], hidden[j])
        G.b2[c] += dot(z[c], ones)
    gemm(back, P.W2.T, z, False)
    slope_all(back, hidden, z.dtype.type(P.relu))
    gemm(G.V, back, block.x, True)
    return loss


@lru_cache(maxsize=2)
def _entry_points(dtype: str) -> tuple[int, ...]:
    """Those of (load_block, forward_block, errors_block, gradient_block) for blocks of float32 or float64."""
    i8, a, b = types.int64, *(numba.typeof(np.empty(n * (1,), dtype)) for n in (1, 2))
    block = types.NamedTuple([i8, *6 * [b], *3 * [a]], Block)
    P = types.NamedTuple([b, b, a, i8], Parameters)
    labels, weights, ids = (numba.typeof(np.empty(0, kind)) for kind in (np.uint8, np.float64, np.int64))
    rows = types.NamedTuple([i8, i8, i8, labels, weights, ids], Rows)
    wanted = [
        (load_block, (block, rows, i8, i8)),
        (forward_block, (block, P)),
        (errors_block, (block, i8)),
        (gradient_block, (block, P, P, i8)),
    ]
    found: list[int] = []
    ensure_compiled(("mlp blocks", dtype), lambda: found.extend(entry_point(f, sig) for f, sig in wanted))
    return tuple(found or (entry_point(f, sig) for f, sig in wanted))


def new_scratch(shape: Shape, blocks: int, dtype: Any = np.float64, extra: int = 0) -> Scratch:
    """Zeroed memory for that many blocks, with `extra` elements behind each."""
    line = 64 // np.dtype(dtype).itemsize
    step = -(-(int(block_size(shape)) + extra) // line) * line
    return Scratch(aligned_zeros(step * blocks, dtype), step, shape, *_entry_points(np.dtype(dtype).name))
