"""Second derivatives of the MLP's loss sum: the exact Hessian (two classes) and Hessian-vector products (any C).

With x~ = [x, 1], u_j = w2_j t'_j and s(1 - s) = q the Hessian between the weights of units i and j is a Gram matrix of
x~ weighted by q u_i u_j (plus (s - y) w2_i t''_i when i = j): h (h + 1) / 2 weighted Gram matrices, of which only lower
triangles are computed, at the speed of `product`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike

from l2ul_kernels.arrays import Array, Float
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.llvm import VECTOR_BYTES
from l2ul_kernels.codegen.parallel import parallel_for
from l2ul_kernels.codegen.pointers import call_at
from l2ul_kernels.mlp.block import block_of, block_size, new_scratch, parameters_of
from l2ul_kernels.mlp.model import MAX_CLASSES, check_theta, layout
from l2ul_kernels.simd.elementwise import add_all, dot, fill, multiply_all, slope_all
from l2ul_kernels.simd.gemm import MR, gemm
from l2ul_kernels.simd.rows import rows_of
from l2ul_kernels.simd.views import borrow, matrix, vector
from l2ul_kernels.validate import check_row_ids, check_weights, check_xy, mirror

#: Rows per block: long sums, because a block's Gram matrices are read and written once per block (tried 32 to 256).
BLOCK = 256
#: Partial sums: their number is fixed, not by threads, so that the order of additions is.
CHUNKS = 32


class Chunks(NamedTuple):
    """n rows in chunks, each of which is summed by itself: the order of additions does not depend on threads."""

    n: int
    rows: int  # per chunk
    parts: int  # chunks


class Hessian(NamedTuple):
    """Sums of every chunk; lower triangles."""

    units: Float  # (chunks, h (h + 1) / 2, d + 1, dp) Gram matrix of each pair of units
    cross: Float  # (chunks, h, h + 1, dp) a unit's weights against [w2, b2]
    head: Float  # (chunks, h + 1, h + 1) [w2, b2] against itself


class Work(NamedTuple):
    """Scratch behind a block."""

    part: Array  # (B,) q u_i
    temp: Array  # (B,)
    cross: Array  # (h + 1, B)
    weighted: Array  # (d + 1, B)


@kernel()
def _work_of(scratch: Any, i: int) -> Any:
    """The work behind the i-th block."""
    S, shape, at = scratch.S, scratch.shape, i * scratch.step + block_size(scratch.shape)
    h, B = shape.h, shape.B
    cross = at + 2 * B
    weighted = cross + (h + 1) * B
    return Work(vector(S, at, B), vector(S, at + B, B), matrix(S, cross, h + 1, B), matrix(S, weighted, shape.d + 1, B))


@kernel()
def _add_gram(block: Any, weight: Any, weighted: Any, out: Any) -> None:
    """out (d + 1, dp) += lower triangle of sum_b weight_b x~_b x~_b'."""
    lines, width = weighted.shape[0], VECTOR_BYTES // weight.itemsize
    for k in range(lines):
        multiply_all(weighted[k], weight, block.xt[k])
    for k in range(0, lines, MR):
        end = min(k + MR, lines)
        columns = (end + width - 1) // width * width
        gemm(out[k:end, :columns], weighted[k:end], block.x[:, :columns], True)


@kernel()
def _add_block(block: Any, P: Any, work: Any, units: Any, cross: Any, head: Any) -> None:
    """Add one block that went through `forward` and `errors` to the sums of a chunk."""
    h, kind = block.hidden.shape[0], block.z.dtype.type
    u, q, error, part, temp = block.back, block.q[0], block.z[0], work.part, work.temp
    hidden, ones, weight, relu = block.hidden, block.xt[block.inputs - 1], block.loss, kind(P.relu)
    for j in range(h):
        fill(u[j], P.W2[0, j])
    slope_all(u, hidden, relu)  # u_j = w2_j a'_j
    pair = 0
    for i in range(h):
        multiply_all(part, q, u[i])
        for j in range(i + 1):
            multiply_all(weight, part, u[j])
            if i == j and not P.relu:  # tanh'' = -2 a a'
                multiply_all(temp, error, u[i])
                multiply_all(temp, temp, hidden[i])
                add_all(weight, temp, kind(-2))
            _add_gram(block, weight, work.weighted, units[pair])
            pair += 1
        for j in range(h):
            multiply_all(work.cross[j], part, hidden[j])
        multiply_all(work.cross[h], part, ones)
        multiply_all(temp, error, ones)
        slope_all(temp, hidden[i], relu)
        add_all(work.cross[i], temp, kind(1))
        gemm(cross[i], work.cross, block.x, True)
    for i in range(h + 1):
        multiply_all(temp, q, hidden[i] if i < h else ones)
        for j in range(i + 1):
            head[i, j] += dot(temp, hidden[j] if j < h else ones)


@kernel()
def _hessian(first: int, last: int, thread: int, scratch: Any, rows: Any, P: Any, chunks: Any, out: Any) -> None:
    """Hessians of the chunks first .. last - 1."""
    rows, out = borrow((rows, out))
    block, parameters = block_of(scratch, thread), parameters_of(P, 0, scratch.shape)
    work = _work_of(scratch, thread)
    for c in range(first, last):
        end = min(chunks.n, (c + 1) * chunks.rows)
        for lo in range(c * chunks.rows, end, scratch.shape.B):
            call_at(scratch.load, None, (block, rows, lo, end))
            call_at(scratch.forward, None, (block, parameters))
            call_at(scratch.errors, block.loss[0], (block, 0))
            _add_block(block, parameters, work, out.units[c], out.cross[c], out.head[c])


def _chunks(n: int) -> Chunks:
    rows = max(8 * BLOCK, -(-n // (CHUNKS * BLOCK)) * BLOCK)
    return Chunks(n, rows, -(-n // rows))


def mlp_hessian(
    X: ArrayLike,
    y: ArrayLike,
    theta: ArrayLike,
    h: int = 10,
    activation: str = "tanh",
    weights: ArrayLike | None = None,
    ids: ArrayLike | None = None,
) -> Float:
    """Hessian (p, p) of the loss sum over the rows of X (n, d), or of X[ids]; two classes; exactly symmetric."""
    X, y = check_xy(X, y)
    d = X.shape[1]
    lay = layout(d, h, 2, activation)
    theta = check_theta(theta, lay)
    index, factors = check_row_ids(ids, len(X)), check_weights(weights, len(X))
    n = len(X) if ids is None else len(index)
    pairs, d1, chunks = h * (h + 1) // 2, d + 1, _chunks(n)
    scratch = new_scratch(lay.shape(BLOCK), numba.get_num_threads(), extra=(2 + h + 1 + d1) * BLOCK)
    shapes = ((pairs, d1, lay.dp), (h, h + 1, lay.dp), (h + 1, h + 1))
    sums = Hessian(*(np.zeros((max(chunks.parts, 1), *shape)) for shape in shapes))
    rows = rows_of(X, y, factors, index)
    parallel_for(_hessian, chunks.parts, scratch, rows, lay.pad(theta), chunks, sums)
    units, cross, head = (part.sum(axis=0) for part in sums)
    H = np.zeros((lay.size, lay.size))
    own = np.hstack([np.arange(h * d).reshape(h, d), h * d + np.arange(h)[:, None]])  # unit j's weights and bias
    tail = h * d + h + np.arange(h + 1)
    blocks = mirror(units[:, :, :d1])
    for i in range(h):
        for j in range(i + 1):
            H[np.ix_(own[i], own[j])] = H[np.ix_(own[j], own[i])] = blocks[i * (i + 1) // 2 + j]
        H[np.ix_(tail, own[i])] = cross[i, :, :d1]
        H[np.ix_(own[i], tail)] = cross[i, :, :d1].T
    H[np.ix_(tail, tail)] = mirror(head)
    return H


class Changes(NamedTuple):
    """Scratch behind a block: changes along a direction."""

    hidden: Array  # (h, B) of the activations
    back: Array  # (h, B) of the hidden layer's errors
    z: Array  # (o, B) of the logits, then of their errors


@kernel()
def _changes_of(scratch: Any, i: int) -> Any:
    """The changes behind the i-th block."""
    S, shape, at = scratch.S, scratch.shape, i * scratch.step + block_size(scratch.shape)
    h, B = shape.h, shape.B
    return Changes(matrix(S, at, h, B), matrix(S, at + h * B, h, B), matrix(S, at + 2 * h * B, shape.o, B))


@kernel()
def _change_of_errors(block: Any, change: Any) -> None:
    """Changes of the logits (o, B) -> changes of their errors."""
    q, w = block.q, block.w
    o, B = change.shape
    if o == 1:
        multiply_all(change, change, q)
        return
    for b in range(B):
        mean = change.dtype.type(0)
        for c in range(o):
            mean += q[c, b] * change[c, b]
        for c in range(o):
            change[c, b] = w[b] * q[c, b] * (change[c, b] - mean)


@kernel()
def _add_product(block: Any, P: Any, V: Any, change: Any, G: Any) -> None:
    """G += the block's Hessian times the direction V; both have the shape of the parameters P."""
    hidden, z, back, inputs = block.hidden, block.z, block.back, block.inputs
    kind = z.dtype.type
    relu, ones = kind(P.relu), block.xt[inputs - 1]
    gemm(change.hidden, V.V[:, :inputs], block.xt[:inputs], False)
    slope_all(change.hidden, hidden, relu)
    for c in range(z.shape[0]):
        fill(change.z[c], V.b2[c])
    gemm(change.z, V.W2, hidden, True)
    gemm(change.z, P.W2, change.hidden, True)
    _change_of_errors(block, change.z)
    for c in range(z.shape[0]):
        for j in range(hidden.shape[0]):
            G.W2[c, j] += dot(change.z[c], hidden[j]) + dot(z[c], change.hidden[j])
        G.b2[c] += dot(change.z[c], ones)
    gemm(change.back, V.W2.T, z, False)
    gemm(change.back, P.W2.T, change.z, True)
    slope_all(change.back, hidden, relu)
    if not P.relu:
        gemm(back, P.W2.T, z, False)
        multiply_all(back, back, hidden)
        multiply_all(back, back, change.hidden)
        add_all(change.back, back, kind(-2))
    gemm(G.V, change.back, block.x, True)


@kernel()
def _hvp(first: int, last: int, thread: int, scratch: Any, rows: Any, points: Any, chunks: Any, out: Any) -> None:
    """out (chunks, padded): Hessians of the chunks first .. last - 1 at points[0] times points[1]."""
    rows = borrow(rows)
    block, change, shape = block_of(scratch, thread), _changes_of(scratch, thread), scratch.shape
    P, V = parameters_of(points, 0, shape), parameters_of(points, points.shape[1], shape)
    for c in range(first, last):
        end, G = min(chunks.n, (c + 1) * chunks.rows), parameters_of(out, c * out.shape[1], shape)
        for lo in range(c * chunks.rows, end, shape.B):
            call_at(scratch.load, None, (block, rows, lo, end))
            call_at(scratch.forward, None, (block, P))
            call_at(scratch.errors, block.loss[0], (block, 0))
            _add_product(block, P, V, change, G)


def mlp_hvp(
    X: ArrayLike,
    y: ArrayLike,
    theta: ArrayLike,
    v: ArrayLike,
    h: int = 10,
    activation: str = "tanh",
    n_classes: int = 2,
    weights: ArrayLike | None = None,
) -> Float:
    """Hessian of the loss sum over the rows of X (n, d) times the direction v (p,)."""
    X, y = check_xy(X, y, n_classes, MAX_CLASSES)
    lay = layout(X.shape[1], h, n_classes, activation)
    theta, v = check_theta(theta, lay), check_theta(v, lay, name="v")
    chunks = _chunks(len(X))
    scratch = new_scratch(lay.shape(BLOCK), numba.get_num_threads(), extra=(2 * h + lay.o) * BLOCK)
    rows, out = rows_of(X, y, check_weights(weights, len(X))), np.zeros((max(chunks.parts, 1), lay.padded))
    parallel_for(_hvp, chunks.parts, scratch, rows, lay.pad(np.stack([theta, v])), chunks, out)
    return out.sum(axis=0)[lay.where]
