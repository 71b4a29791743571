"""One block of rows through the MLP, forwards and backwards: the unit of work of every MLP kernel.

Sizes travel as one tuple ``shape = (d, h, o, B, dp, relu)``: d features, h hidden units, o outputs (1 logit for two
classes, else C), B rows per block, dp = d + 1 rounded up to whole vectors.
Inside the kernels parameters are *padded*: V (h, dp) = [W1 | b1 | zeros], then W2 (o, h), then b2 (o), then zeros up to
whole vectors; a row is [x | 1 | zeros]. So a bias is one more feature and every product runs over whole vectors.

A block's scratch is one flat array from element `s`, cut up by `places`:
x (B, dp) rows, xt (dp, B) the same transposed, a (h, B) activations, e (h, B) errors of the hidden layer, z (o, B)
logits and then their errors, q (o, B) curvatures (two classes) or probabilities, y (B) labels, w (B) weights, l (B) losses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_kernels._jit import kernel
from l2ul_kernels.mlp_product import product, stay_one
from l2ul_kernels.mlp_vector import (
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


@kernel()
def places(s: int, shape: Any) -> Any:
    """Element offsets (x, xt, a, e, z, q, y, w, l, end) of a block's scratch that starts at s."""
    d, h, o, B, dp, _ = shape
    x = s
    xt = x + B * dp
    a = xt + dp * B
    e = a + h * B
    z = e + h * B
    q = z + o * B
    y = q + o * B
    return x, xt, a, e, z, q, y, y + B, y + 2 * B, y + 3 * B


@kernel()
def load_block(S: Any, s: int, shape: Any, rows: Any, lo: int, hi: int) -> None:
    """Rows lo..hi-1, or rows ids[lo..hi-1] when ids are given, into the scratch; what is missing has weight 0.

    rows = (address of X, bytes per number, y, weights, ids); weights and ids may be empty.
    """
    X, itemsize, y, weights, ids = rows
    stay_one()
    d, h, o, B, dp, relu = shape
    px, pxt, pa, pe, pz, pq, py, pw, pl, end = places(s, shape)
    one, zero = S.dtype.type(1), S.dtype.type(0)
    for b in range(B):
        at = px + b * dp
        if lo + b < hi:
            i = ids[lo + b] if len(ids) else lo + b
            copy_row(S, at, X + i * d * itemsize, itemsize, d)
            S[py + b] = y[i]
            S[pw + b] = S.dtype.type(weights[i]) if len(weights) else one
        else:
            for k in range(d):
                S[at + k] = zero
            S[py + b] = zero
            S[pw + b] = zero
        S[at + d] = one
        for k in range(d + 1, dp):
            S[at + k] = zero
    transpose_all(S, pxt, px, B, dp)


@kernel()
def forward_block(S: Any, s: int, shape: Any, P: Any, p: int) -> None:
    """Activations a and logits z of the loaded block for the padded parameters P from element p."""
    stay_one()
    d, h, o, B, dp, relu = shape
    px, pxt, pa, pe, pz, pq, py, pw, pl, end = places(s, shape)
    new, add, unit = np.int64(0), np.int64(1), np.int64(1)  # not literals: numba would compile `product` for each
    product(S, pa, B, P, p, dp, unit, S, pxt, B, h, B, d + 1, new)
    if relu:
        relu_all(S, pa, h * B)
    else:
        tanh_all(S, pa, h * B)
    w2 = p + h * dp
    for c in range(o):
        for b in range(B):
            S[pz + c * B + b] = P[w2 + o * h + c]
    product(S, pz, B, P, w2, h, unit, S, pa, B, o, B, h, add)


@kernel()
def _softmax_block(S: Any, s: int, shape: Any) -> None:
    """z -> probabilities in q and weight * (probability - [class]) in z; l = log-losses."""
    stay_one()
    d, h, o, B, dp, relu = shape
    px, pxt, pa, pe, pz, pq, py, pw, pl, end = places(s, shape)
    for b in range(B):
        top = S[pz + b]
        for c in range(1, o):
            top = max(top, S[pz + c * B + b])
        S[pl + b] = top - S[pz + int(S[py + b]) * B + b]
        for c in range(o):
            S[pq + c * B + b] = top - S[pz + c * B + b]
    exp_minus_all(S, pq, o * B)
    for b in range(B):
        total = S[pq + b]
        for c in range(1, o):
            total += S[pq + c * B + b]
        S[pl + b] += np.log(total)
        for c in range(o):
            S[pq + c * B + b] /= total
            hit = S.dtype.type(int(S[py + b]) == c)
            S[pz + c * B + b] = S[pw + b] * (S[pq + c * B + b] - hit)


@kernel()
def errors_block(S: Any, s: int, shape: Any, want_loss: int) -> Any:
    """Logits z -> their weighted errors (dloss/dz), q beside them; returns the weighted sum of losses if wanted."""
    stay_one()
    d, h, o, B, dp, relu = shape
    px, pxt, pa, pe, pz, pq, py, pw, pl, end = places(s, shape)
    if o == 1:
        if want_loss:
            log_losses_all(S, pl, S, pz, S, py, B)
        logistic_all(S, pz, S, py, S, pw, S, pq, B)
    else:
        _softmax_block(S, s, shape)
    return dot(S, pl, S, pw, B) if want_loss else S.dtype.type(0)


@kernel()
def gradient_block(S: Any, s: int, shape: Any, P: Any, p: int, G: Any, g: int, want_loss: int) -> Any:
    """Add the block's gradient sum to padded G from element g; returns the weighted sum of losses if wanted."""
    stay_one()
    d, h, o, B, dp, relu = shape
    px, pxt, pa, pe, pz, pq, py, pw, pl, end = places(s, shape)
    forward_block(S, s, shape, P, p)
    loss = errors_block(S, s, shape, want_loss)
    w2, g2, new, add, unit = p + h * dp, g + h * dp, np.int64(0), np.int64(1), np.int64(1)
    for c in range(o):
        for j in range(h):
            G[g2 + c * h + j] += dot(S, pz + c * B, S, pa + j * B, B)
        G[g2 + o * h + c] += dot(S, pz + c * B, S, pxt + d * B, B)  # row d of xt is all ones
    product(S, pe, B, P, w2, unit, h, S, pz, B, h, B, o, new)
    slope_all(S, pe, S, pa, S.dtype.type(relu), h * B)
    product(G, g, dp, S, pe, B, unit, S, px, dp, h, dp, B, add)
    return loss
