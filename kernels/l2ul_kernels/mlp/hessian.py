"""Second derivatives of the MLP's loss sum: the exact Hessian (two classes) and Hessian-vector products (any C).

With x~ = [x, 1], u_j = w2_j t'_j and s(1 - s) = q the Hessian between the weights of units i and j is a Gram matrix of
x~ weighted by q u_i u_j (plus (s - y) w2_i t''_i when i = j): h (h + 1) / 2 weighted Gram matrices, of which only lower
triangles are computed, at the speed of `product`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.llvm import VECTOR_BYTES
from l2ul_kernels.codegen.parallel import share
from l2ul_kernels.mlp.block import places
from l2ul_kernels.mlp.block_calls import far_blocks, far_errors, far_forward, far_load
from l2ul_kernels.mlp.model import check_data, check_ids, check_theta, check_weights, layout, rows_of, scratch
from l2ul_kernels.simd.elementwise import add_all, dot, multiply_all, slope_all
from l2ul_kernels.simd.gemm import MR, product

#: Rows per block: long sums, because a block's Gram matrices are read and written once per block (tried 32 to 256).
BLOCK = 256
#: Partial sums: their number is fixed, not by threads, so that the order of additions is.
CHUNKS = 32


@kernel()
def _gram(S: Any, px: int, pxt: int, weights: int, weighted: int, shape: Any, out: Any, g: int) -> None:
    """Add the lower triangle of sum_b weight_b x~_b x~_b^T to out (d + 1, dp) from element g."""
    d, B, dp = shape.d, shape.B, shape.dp
    width, unit, add = VECTOR_BYTES // S.itemsize, np.int64(1), np.int64(1)
    for k in range(d + 1):
        multiply_all(S, weighted + k * B, S, weights, S, pxt + k * B, B)
    for k in range(0, d + 1, MR):
        count = min(MR, d + 1 - k)
        columns = min(dp, (k + count + width - 1) // width * width)
        product(out, g + k * dp, dp, S, weighted + k * B, B, unit, S, px, dp, count, columns, B, add)


@kernel()
def _hessian_block(S: Any, s: int, shape: Any, P: Any, out: Any, g: int) -> None:
    """Add one loaded block to out from g: Gram matrices, then (h, h + 1, dp) of V against [w2, b2], then (h + 1)^2."""
    d, h, B, dp, relu = shape.d, shape.h, shape.B, shape.dp, shape.relu
    at = places(s, shape)
    part, temp, cross = at.end, at.end + B, at.end + 2 * B
    weighted, ones, unit, add = cross + (h + 1) * B, at.xt + d * B, np.int64(1), np.int64(1)
    flat, minus_two = S.dtype.type(relu), S.dtype.type(-2)
    for j in range(h):
        for b in range(B):
            S[at.e + j * B + b] = P[h * dp + j]
    slope_all(S, at.e, S, at.a, flat, h * B)  # e = u
    cross_out = g + h * (h + 1) // 2 * (d + 1) * dp
    small_out = cross_out + h * (h + 1) * dp
    for i in range(h):
        multiply_all(S, part, S, at.q, S, at.e + i * B, B)
        for j in range(i + 1):
            multiply_all(S, at.l, S, part, S, at.e + j * B, B)
            if i == j and not relu:  # t'' = -2 t t'
                multiply_all(S, temp, S, at.z, S, at.e + i * B, B)
                multiply_all(S, temp, S, temp, S, at.a + i * B, B)
                add_all(S, at.l, S, temp, minus_two, B)
            _gram(S, at.x, at.xt, at.l, weighted, shape, out, g + (i * (i + 1) // 2 + j) * (d + 1) * dp)
        for j in range(h):
            multiply_all(S, cross + j * B, S, part, S, at.a + j * B, B)
        multiply_all(S, cross + h * B, S, part, S, ones, B)
        multiply_all(S, temp, S, at.z, S, ones, B)
        slope_all(S, temp, S, at.a + i * B, flat, B)
        add_all(S, cross + i * B, S, temp, S.dtype.type(1), B)
        product(out, cross_out + i * (h + 1) * dp, dp, S, cross, B, unit, S, at.x, dp, h + 1, dp, B, add)
    for i in range(h + 1):
        multiply_all(S, temp, S, at.q, S, at.a + i * B if i < h else ones, B)
        for j in range(i + 1):
            out[small_out + i * (h + 1) + j] += dot(S, temp, S, at.a + j * B if j < h else ones, B)


@kernel()
def _hessian(
    first: int,
    last: int,
    thread: int,
    blocks: Any,
    rows: Any,
    n: int,
    P: Any,
    out: Any,
    width: int,
    S: Any,
    step: int,
    shape: Any,
    chunk: int,
) -> None:
    s = thread * step
    for c in range(first, last):
        end = min(n, (c + 1) * chunk)
        for lo in range(c * chunk, end, shape.B):
            far_load(blocks[0], S, s, shape, rows, lo, end)
            far_forward(blocks[1], S, s, shape, P, 0)
            far_errors(blocks[2], S, s, shape, 0)
            _hessian_block(S, s, shape, P, out, c * width)


def _chunk_rows(n: int) -> int:
    return max(8 * BLOCK, -(-n // (CHUNKS * BLOCK)) * BLOCK)


def mlp_hessian(
    X: ArrayLike,
    y: ArrayLike,
    theta: ArrayLike,
    h: int = 10,
    activation: str = "tanh",
    weights: ArrayLike | None = None,
    ids: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Hessian (p, p) of the loss sum over the rows of X (n, d), or of X[ids]; two classes; exactly symmetric."""
    X, y = check_data(X, y, 2)
    d = X.shape[1]
    lay = layout(d, h, 2, activation)
    theta = check_theta(theta, lay)
    index, factors = check_ids(ids, len(X)), check_weights(weights, len(X))
    n = len(X) if ids is None else len(index)
    pairs, d1 = h * (h + 1) // 2, d + 1
    width = pairs * d1 * lay.dp + h * (h + 1) * lay.dp + (h + 1) ** 2
    width = -(-width // 8) * 8
    chunk = _chunk_rows(n)
    chunks = -(-n // chunk)
    S, step = scratch(lay, BLOCK, extra=(2 + h + 1 + d1) * BLOCK)
    out, shape = np.zeros(max(chunks, 1) * width), lay.shape(BLOCK)
    what = (far_blocks(S.dtype), rows_of(X, y, factors, index), n, lay.pad(theta), out, width, S, step, shape, chunk)
    share("mlp hessian", _hessian, chunks, *what)
    total = out.reshape(-1, width).sum(axis=0)
    grams, cross, small, _ = np.split(total, np.cumsum([pairs * d1 * lay.dp, h * (h + 1) * lay.dp, (h + 1) ** 2]))
    H = np.zeros((lay.size, lay.size))
    own = np.hstack([np.arange(h * d).reshape(h, d), h * d + np.arange(h)[:, None]])  # unit j's weights and bias
    tail = h * d + h + np.arange(h + 1)
    blocks = np.tril(grams.reshape(pairs, d1, lay.dp)[:, :, :d1])
    blocks += np.tril(blocks, -1).transpose(0, 2, 1)
    for i in range(h):
        for j in range(i + 1):
            H[np.ix_(own[i], own[j])] = H[np.ix_(own[j], own[i])] = blocks[i * (i + 1) // 2 + j]
        part = cross.reshape(h, h + 1, lay.dp)[i, :, :d1]
        H[np.ix_(tail, own[i])] = part
        H[np.ix_(own[i], tail)] = part.T
    low = np.tril(small.reshape(h + 1, h + 1))
    H[np.ix_(tail, tail)] = low + np.tril(low, -1).T
    return H


@kernel()
def _change_of_errors(S: Any, s: int, shape: Any, pr: int) -> None:
    """Changes of the logits at pr (o, B) -> changes of their errors."""
    o, B = shape.o, shape.B
    at = places(s, shape)
    if o == 1:
        multiply_all(S, pr, S, pr, S, at.q, B)
        return
    for b in range(B):
        mean = S.dtype.type(0)
        for c in range(o):
            mean += S[at.q + c * B + b] * S[pr + c * B + b]
        for c in range(o):
            S[pr + c * B + b] = S[at.w + b] * S[at.q + c * B + b] * (S[pr + c * B + b] - mean)


@kernel()
def _hvp_block(S: Any, s: int, shape: Any, P: Any, V: Any, G: Any, g: int) -> None:
    """Add the loaded block's Hessian times the padded direction V to padded G from g."""
    d, h, o, B, dp, relu = shape.d, shape.h, shape.o, shape.B, shape.dp, shape.relu
    at = places(s, shape)
    pt, pu, pr = at.end, at.end + h * B, at.end + 2 * h * B  # changes of activations, of hidden errors, of logits
    w2, g2, new, add, unit = h * dp, g + h * dp, np.int64(0), np.int64(1), np.int64(1)
    flat = S.dtype.type(relu)
    product(S, pt, B, V, new, dp, unit, S, at.xt, B, h, B, d + 1, new)
    slope_all(S, pt, S, at.a, flat, h * B)
    for c in range(o):
        for b in range(B):
            S[pr + c * B + b] = V[w2 + o * h + c]
    product(S, pr, B, V, w2, h, unit, S, at.a, B, o, B, h, add)
    product(S, pr, B, P, w2, h, unit, S, pt, B, o, B, h, add)
    _change_of_errors(S, s, shape, pr)
    for c in range(o):
        for j in range(h):
            G[g2 + c * h + j] += dot(S, pr + c * B, S, at.a + j * B, B) + dot(S, at.z + c * B, S, pt + j * B, B)
        G[g2 + o * h + c] += dot(S, pr + c * B, S, at.xt + d * B, B)
    product(S, pu, B, V, w2, unit, h, S, at.z, B, h, B, o, new)
    product(S, pu, B, P, w2, unit, h, S, pr, B, h, B, o, add)
    slope_all(S, pu, S, at.a, flat, h * B)
    if not relu:
        product(S, at.e, B, P, w2, unit, h, S, at.z, B, h, B, o, new)
        multiply_all(S, at.e, S, at.e, S, at.a, h * B)
        multiply_all(S, at.e, S, at.e, S, pt, h * B)
        add_all(S, pu, S, at.e, S.dtype.type(-2), h * B)
    product(G, g, dp, S, pu, B, unit, S, at.x, dp, h, dp, B, add)


@kernel()
def _hvp(
    first: int,
    last: int,
    thread: int,
    blocks: Any,
    rows: Any,
    n: int,
    P: Any,
    V: Any,
    out: Any,
    width: int,
    S: Any,
    step: int,
    shape: Any,
    chunk: int,
) -> None:
    s = thread * step
    for c in range(first, last):
        end = min(n, (c + 1) * chunk)
        for lo in range(c * chunk, end, shape.B):
            far_load(blocks[0], S, s, shape, rows, lo, end)
            far_forward(blocks[1], S, s, shape, P, 0)
            far_errors(blocks[2], S, s, shape, 0)
            _hvp_block(S, s, shape, P, V, out, c * width)


def mlp_hvp(
    X: ArrayLike,
    y: ArrayLike,
    theta: ArrayLike,
    v: ArrayLike,
    h: int = 10,
    activation: str = "tanh",
    n_classes: int = 2,
    weights: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Hessian of the loss sum over the rows of X (n, d) times the direction v (p,)."""
    X, y = check_data(X, y, n_classes)
    lay = layout(X.shape[1], h, n_classes, activation)
    theta, v = check_theta(theta, lay), check_theta(v, lay)
    if theta.ndim != 1 or v.ndim != 1:
        raise ValueError(f"theta and v must have shape ({lay.size},)")
    n, chunk = len(X), _chunk_rows(len(X))
    chunks = -(-n // chunk)
    S, step = scratch(lay, BLOCK, extra=(2 * h + lay.o) * BLOCK)
    out = np.zeros((max(chunks, 1), lay.padded))
    rows = rows_of(X, y, check_weights(weights, n), np.empty(0, np.int64))
    what = (
        far_blocks(S.dtype),
        rows,
        n,
        lay.pad(theta),
        lay.pad(v),
        out.ravel(),
        lay.padded,
        S,
        step,
        lay.shape(BLOCK),
        chunk,
    )
    share("mlp hvp", _hvp, chunks, *what)
    return out.sum(axis=0)[lay.where]
