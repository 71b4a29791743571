"""One block of rows through the MLP, forwards and backwards: the unit of work of every MLP kernel.

Sizes travel as one `Shape`: d features, h hidden units, o outputs (1 logit for two
classes, else C), B rows per block, dp = d + 1 rounded up to whole vectors.
Inside the kernels parameters are *padded*: V (h, dp) = [W1 | b1 | zeros], then W2 (o, h), then b2 (o), then zeros up to
whole vectors; a row is [x | 1 | zeros]. So a bias is one more feature and every product runs over whole vectors.

A block's scratch is one flat array from element `s`, cut up by `places`:
x (B, dp) rows, xt (dp, B) the same transposed, a (h, B) activations, e (h, B) errors of the hidden layer, z (o, B)
logits and then their errors, q (o, B) curvatures (two classes) or probabilities, y, w, l (B) labels, weights, losses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.simd.elementwise import (
    copy_row,
    dot,
    exp_minus_all,
    log_losses_all,
    logistic_all,
    relu_all,
    slope_all,
    tanh_all,
    transpose_all,
)
from l2ul_kernels.simd.gemm import product, stay_one


class Shape(NamedTuple):
    d: int
    h: int
    o: int
    B: int
    dp: int
    relu: int


class Places(NamedTuple):
    x: int
    xt: int
    a: int
    e: int
    z: int
    q: int
    y: int
    w: int
    l: int  # noqa: E741
    end: int


@kernel()
def places(s: int, shape: Any) -> Any:
    """Element offsets (x, xt, a, e, z, q, y, w, l, end) of a block's scratch that starts at s."""
    h, o, B, dp = shape.h, shape.o, shape.B, shape.dp
    x = s
    xt = x + B * dp
    a = xt + dp * B
    e = a + h * B
    z = e + h * B
    q = z + o * B
    y = q + o * B
    return Places(x, xt, a, e, z, q, y, y + B, y + 2 * B, y + 3 * B)


@kernel()
def load_block(S: Any, s: int, shape: Any, rows: Any, lo: int, hi: int) -> None:
    """Rows lo..hi-1, or rows ids[lo..hi-1] when ids are given, into the scratch; what is missing has weight 0.

    rows = (address of X, bytes per number, y, weights, ids); weights and ids may be empty.
    """
    X, itemsize, y, weights, ids = rows
    stay_one()
    d, B, dp = shape.d, shape.B, shape.dp
    at = places(s, shape)
    one, zero = S.dtype.type(1), S.dtype.type(0)
    for b in range(B):
        row = at.x + b * dp
        if lo + b < hi:
            i = ids[lo + b] if len(ids) else lo + b
            copy_row(S, row, X + i * d * itemsize, itemsize, d)
            S[at.y + b] = y[i]
            S[at.w + b] = S.dtype.type(weights[i]) if len(weights) else one
        else:
            for k in range(d):
                S[row + k] = zero
            S[at.y + b] = zero
            S[at.w + b] = zero
        S[row + d] = one
        for k in range(d + 1, dp):
            S[row + k] = zero
    transpose_all(S, at.xt, at.x, B, dp)


@kernel()
def forward_block(S: Any, s: int, shape: Any, P: Any, p: int) -> None:
    """Activations a and logits z of the loaded block for the padded parameters P from element p."""
    stay_one()
    d, h, o, B, dp, relu = shape.d, shape.h, shape.o, shape.B, shape.dp, shape.relu
    at = places(s, shape)
    new, add, unit = np.int64(0), np.int64(1), np.int64(1)  # not literals: numba would compile `product` for each
    product(S, at.a, B, P, p, dp, unit, S, at.xt, B, h, B, d + 1, new)
    if relu:
        relu_all(S, at.a, h * B)
    else:
        tanh_all(S, at.a, h * B)
    w2 = p + h * dp
    for c in range(o):
        for b in range(B):
            S[at.z + c * B + b] = P[w2 + o * h + c]
    product(S, at.z, B, P, w2, h, unit, S, at.a, B, o, B, h, add)


@kernel()
def _softmax_block(S: Any, s: int, shape: Any) -> None:
    """z -> probabilities in q and weight * (probability - [class]) in z; l = log-losses."""
    stay_one()
    o, B = shape.o, shape.B
    at = places(s, shape)
    for b in range(B):
        top = S[at.z + b]
        for c in range(1, o):
            top = max(top, S[at.z + c * B + b])
        S[at.l + b] = top - S[at.z + int(S[at.y + b]) * B + b]
        for c in range(o):
            S[at.q + c * B + b] = top - S[at.z + c * B + b]
    exp_minus_all(S, at.q, o * B)
    for b in range(B):
        total = S[at.q + b]
        for c in range(1, o):
            total += S[at.q + c * B + b]
        S[at.l + b] += np.log(total)
        for c in range(o):
            S[at.q + c * B + b] /= total
            hit = S.dtype.type(int(S[at.y + b]) == c)
            S[at.z + c * B + b] = S[at.w + b] * (S[at.q + c * B + b] - hit)


@kernel()
def errors_block(S: Any, s: int, shape: Any, want_loss: int) -> Any:
    """Logits z -> their weighted errors (dloss/dz), q beside them; returns the weighted sum of losses if wanted."""
    stay_one()
    o, B = shape.o, shape.B
    at = places(s, shape)
    if o == 1:
        if want_loss:
            log_losses_all(S, at.l, S, at.z, S, at.y, B)
        logistic_all(S, at.z, S, at.y, S, at.w, S, at.q, B)
    else:
        _softmax_block(S, s, shape)
    return dot(S, at.l, S, at.w, B) if want_loss else S.dtype.type(0)


@kernel()
def gradient_block(S: Any, s: int, shape: Any, P: Any, p: int, G: Any, g: int, want_loss: int) -> Any:
    """Add the block's gradient sum to padded G from element g; returns the weighted sum of losses if wanted."""
    stay_one()
    d, h, o, B, dp, relu = shape.d, shape.h, shape.o, shape.B, shape.dp, shape.relu
    at = places(s, shape)
    forward_block(S, s, shape, P, p)
    loss = errors_block(S, s, shape, want_loss)
    w2, g2, new, add, unit = p + h * dp, g + h * dp, np.int64(0), np.int64(1), np.int64(1)
    for c in range(o):
        for j in range(h):
            G[g2 + c * h + j] += dot(S, at.z + c * B, S, at.a + j * B, B)
        G[g2 + o * h + c] += dot(S, at.z + c * B, S, at.xt + d * B, B)  # row d of xt is all ones
    product(S, at.e, B, P, w2, unit, h, S, at.z, B, h, B, o, new)
    slope_all(S, at.e, S, at.a, S.dtype.type(relu), h * B)
    product(G, g, dp, S, at.e, B, unit, S, at.x, dp, h, dp, B, add)
    return loss
