"""A small MLP (one hidden layer): loss, gradient and logits of many rows, many parameter vectors in one pass.

theta (p,) float64 = [W1 (h, d) row by row, b1 (h), W2 (o, h) row by row, b2 (o)], where o = 1 logit for two classes and
o = C for more; activation "tanh" or "relu". Losses are log-losses; sums run over rows, nothing is penalised here.
Sums are taken block by block in an order that does not depend on the number of threads: results are bit-identical.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike

from l2ul_kernels.arrays import Array, Float, Ints
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.codegen.parallel import parallel_for
from l2ul_kernels.codegen.pointers import call_at
from l2ul_kernels.mlp.block import Shape, block_of, new_scratch, parameters_of
from l2ul_kernels.simd.gemm import lanes
from l2ul_kernels.simd.rows import Rows, rows_of
from l2ul_kernels.simd.views import borrow
from l2ul_kernels.validate import (
    check_class_count,
    check_count,
    check_floats,
    check_row_ids,
    check_sum,
    check_weights,
    check_xy,
)

#: Rows per block: the block, its transpose and the activations stay in the first two cache levels (tried 32 to 256).
BLOCK = 64
#: Rows whose sums are taken one after another; fixed, because it fixes the order of additions.
CHUNK = 32 * BLOCK
#: Parameter vectors that share one loaded block.
GROUP = 16
#: Bytes of partial sums kept at once.
PARTIAL_BYTES = 64 << 20
#: Up to this many rows a plain loop is faster than padding a block.
FEW = 16
ACTIVATIONS = ("tanh", "relu")
MAX_CLASSES = 256
#: Features and hidden units at most: offsets then fit any counter.
MOST = 1 << 20


class Layout(NamedTuple):
    """Sizes of one MLP and where its parameters lie among the padded ones of the kernels (see mlp/block)."""

    d: int
    h: int
    o: int
    relu: int
    size: int
    dp: int
    padded: int
    where: Ints

    def shape(self, block: int) -> Shape:
        return Shape(self.d, self.h, self.o, block, self.dp, self.relu)

    def pad(self, theta: Array, dtype: Any = np.float64) -> Array:
        """(..., p) -> (..., padded)."""
        out = np.zeros((*theta.shape[:-1], self.padded), dtype)
        out[..., self.where] = theta
        return out


def mlp_size(d: int, h: int = 10, n_classes: int = 2) -> int:
    """Number of parameters: h (d + 1) + o (h + 1)."""
    d, h = check_count(d, 1, MOST, "d"), check_count(h, 1, MOST, "h")
    o = 1 if check_class_count(n_classes, 2, MAX_CLASSES) == 2 else n_classes
    return h * (d + 1) + o * (h + 1)


def layout(d: int, h: int, n_classes: int, activation: str, itemsize: int = 8) -> Layout:
    """Layout of an MLP for kernels that compute in floats of `itemsize` bytes."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    h, n_classes = check_count(h, 1, MOST, "h"), check_class_count(n_classes, 2, MAX_CLASSES)
    return _layout(check_count(d, 1, MOST, "d"), h, 1 if n_classes == 2 else n_classes, activation, itemsize)


@lru_cache(maxsize=64)
def _layout(d: int, h: int, o: int, activation: str, itemsize: int) -> Layout:
    width = lanes(itemsize)
    dp = -(-(d + 1) // width) * width
    padded = -(-(h * dp + o * h + o) // width) * width
    first = np.arange(h)[:, None] * dp
    where = np.concatenate([(first + np.arange(d)).ravel(), first[:, 0] + d, h * dp + np.arange(o * h + o)])
    where.setflags(write=False)
    return Layout(d, h, o, int(activation == "relu"), len(where), dp, padded, where)


def check_theta(theta: ArrayLike, lay: Layout, many: bool = False, name: str = "theta") -> Float:
    """theta (p,), or also (W, p) if many, as contiguous float64."""
    theta = check_floats(theta, name)
    if theta.ndim not in (1, 1 + many) or theta.shape[-1] != lay.size:
        raise ValueError(f"{name} must have {lay.size} entries for d={lay.d}, h={lay.h}, got shape {theta.shape}")
    return theta


@kernel()
def output_errors(z: Any, label: int) -> None:
    """Logits z (o,) -> their errors: probability minus [class]."""
    if len(z) == 1:
        z[0] = 1.0 / (1.0 + np.exp(-z[0])) - label if z[0] > -700.0 else 0.0 - label
        return
    top, total = z.max(), 0.0
    for c in range(len(z)):
        z[c] = np.exp(z[c] - top)
        total += z[c]
    for c in range(len(z)):
        z[c] = z[c] / total - (c == label)


@kernel()
def few_gradient(X: Any, y: Any, theta: Any, h: int, o: int, relu: int, memory: Any, out: Any) -> None:
    """Add the gradient sum of the rows X (r, d), y (r,) to out (p,), in a plain loop; memory (h + o,) is scratch."""
    n, d = X.shape
    b1, w2 = h * d, h * d + h
    b2 = w2 + o * h
    a, z = memory[:h], memory[h : h + o]
    for i in range(n):
        for j in range(h):
            s = theta[b1 + j]
            for k in range(d):
                s += theta[j * d + k] * X[i, k]
            a[j] = max(s, 0.0) if relu else np.tanh(s)
        for c in range(o):
            z[c] = theta[b2 + c]
            for j in range(h):
                z[c] += theta[w2 + c * h + j] * a[j]
        output_errors(z, int(y[i]))
        for c in range(o):
            out[b2 + c] += z[c]
        for j in range(h):
            e = 0.0
            for c in range(o):
                e += theta[w2 + c * h + j] * z[c]
                out[w2 + c * h + j] += z[c] * a[j]
            slope = 1.0 if a[j] > 0.0 else 0.0
            e *= slope if relu else 1.0 - a[j] * a[j]
            out[b1 + j] += e
            for k in range(d):
                out[j * d + k] += e * X[i, k]


class SumItems(NamedTuple):
    """What `_sums` adds up."""

    bounds: Ints  # (items, 5): first row, end, first vector, end, first line of out
    P: Float  # (W, padded) parameters
    out: Float  # (lines, padded + 1): gradient and loss; each vector of an item has a line of its own


@kernel()
def _sums(first: int, last: int, thread: int, scratch: Any, rows: Any, items: Any, want_loss: int) -> None:
    """Gradient sums and loss sums of the items first .. last - 1."""
    rows, items = borrow((rows, items))
    block, shape, out, padded = block_of(scratch, thread), scratch.shape, items.out, items.P.shape[1]
    for i in range(first, last):
        start, end, vector, vectors, line = items.bounds[i]
        for lo in range(start, end, shape.B):
            call_at(scratch.load, None, (block, rows, lo, end))
            for w in range(vector, vectors):
                to = line + w - vector
                P = parameters_of(items.P, w * padded, shape)
                G = parameters_of(out, to * (padded + 1), shape)
                out[to, padded] += call_at(scratch.gradient, block.loss[0], (block, P, G, want_loss))


def sums_of_items(rows: Rows, bounds: Ints, P: Float, lay: Layout, lines: int, want_loss: bool) -> Float:
    """(lines, padded + 1) of `SumItems`."""
    items = SumItems(bounds, P, np.zeros((lines, lay.padded + 1)))
    scratch = new_scratch(lay.shape(BLOCK), numba.get_num_threads())
    parallel_for(_sums, len(bounds), scratch, rows, items, int(want_loss))
    return items.out


def padded_sums(rows: Rows, n: int, P: Float, lay: Layout, want_loss: bool = True) -> Float:
    """(W, padded + 1) gradient sums and loss sum over n rows (see `rows_of`) for padded parameters P (W, padded)."""
    chunks, total = -(-n // CHUNK), np.zeros((len(P), lay.padded + 1))
    at_once = max(1, PARTIAL_BYTES // (8 * (lay.padded + 1) * max(chunks, 1)))
    for lo in range(0, len(P), at_once):
        part = P[lo : lo + at_once]
        items = np.array(
            [
                (c * CHUNK, min(n, (c + 1) * CHUNK), w, min(len(part), w + GROUP), c * len(part) + w)
                for c in range(chunks)
                for w in range(0, len(part), GROUP)
            ],
            np.int64,
        ).reshape(-1, 5)
        partial = sums_of_items(rows, items, part, lay, chunks * len(part), want_loss)
        np.sum(partial.reshape(chunks, len(part), lay.padded + 1), axis=0, out=total[lo : lo + len(part)])
    return total


def mlp_sums(
    X: ArrayLike,
    y: ArrayLike,
    theta: ArrayLike,
    h: int = 10,
    activation: str = "tanh",
    n_classes: int = 2,
    weights: ArrayLike | None = None,
    ids: ArrayLike | None = None,
    gradient_out: Float | None = None,
) -> tuple[Any, Float]:
    """(loss sum, gradient sum (p,)) over the rows of X (n, d) with labels y (n,), or over rows X[ids].

    weights (n,) multiply the rows' losses. With theta (W, p) both are computed for W parameter vectors in one pass:
    (W,) and (W, p). The gradient is added to gradient_out when given. A NaN in X or theta shows in the result.
    """
    read = (X, y, theta, weights, ids)
    X, y = check_xy(X, y, n_classes, MAX_CLASSES)
    lay = layout(X.shape[1], h, n_classes, activation)
    theta = check_theta(theta, lay, many=True)
    check_sum(gradient_out, theta.shape, *read, name="gradient_out")
    index, factors = check_row_ids(ids, len(X)), check_weights(weights, len(X))
    many = theta.reshape(-1, lay.size)
    n = len(X) if ids is None else len(index)
    sums = padded_sums(rows_of(X, y, factors, index), n, lay.pad(many), lay)
    gradient = np.ascontiguousarray(sums[:, lay.where]).reshape(theta.shape)
    if gradient_out is not None:
        gradient_out += gradient
        gradient = gradient_out
    loss = sums[:, lay.padded]
    return (float(loss[0]) if theta.ndim == 1 else loss.copy()), gradient


def mlp_gradient(
    X: ArrayLike, y: ArrayLike, theta: ArrayLike, h: int = 10, activation: str = "tanh", n_classes: int = 2
) -> Float:
    """Mean gradient (p,) of the rows' losses, without penalty; of no rows it is zero. Fast for single rows too."""
    X, y = check_xy(X, y, n_classes, MAX_CLASSES)
    if len(X) > FEW:
        return mlp_sums(X, y, theta, h, activation, n_classes)[1] / len(X)
    lay = layout(X.shape[1], h, n_classes, activation)
    theta, out = check_theta(theta, lay), np.zeros(lay.size)
    rows, what = X.astype(np.float64), (theta, lay.h, lay.o, lay.relu, np.empty(lay.h + lay.o), out)
    ensure_compiled("mlp few", lambda: few_gradient(rows[:0], y[:0], *what))
    few_gradient(rows, y, *what)
    return out / max(len(X), 1)


@kernel()
def _logits(first: int, last: int, thread: int, scratch: Any, rows: Any, P: Any, out: Any) -> None:
    """out (n, o) = logits of the rows of the blocks first .. last - 1."""
    rows, out = borrow((rows, out))
    block, parameters = block_of(scratch, thread), parameters_of(P, 0, scratch.shape)
    B, o = block.x.shape[0], out.shape[1]
    for k in range(first, last):
        lo, hi = k * B, min(len(out), k * B + B)
        call_at(scratch.load, None, (block, rows, lo, hi))
        call_at(scratch.forward, None, (block, parameters))
        for i in range(lo, hi):
            for c in range(o):
                out[i, c] = block.z[c, i - lo]


def mlp_logits(X: ArrayLike, theta: ArrayLike, h: int = 10, activation: str = "tanh", n_classes: int = 2) -> Float:
    """Logits (n, o) of the rows X (n, d): o = 1 for two classes (positive means class 1), else one for every class."""
    X, y = check_xy(X, None, n_classes, MAX_CLASSES)
    lay = layout(X.shape[1], h, n_classes, activation)
    theta = check_theta(theta, lay)
    out, scratch = np.empty((len(X), lay.o)), new_scratch(lay.shape(BLOCK), numba.get_num_threads())
    parallel_for(_logits, -(-len(X) // BLOCK), scratch, rows_of(X, y), lay.pad(theta), out)
    return out
