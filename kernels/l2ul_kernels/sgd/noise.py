"""Inputs that a model gets wrong: gradient ascent on rows of noise, the model held still. Rows are independent."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from l2ul_kernels.arrays import Float
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.mlp.model import output_errors
from l2ul_kernels.simd.elementwise import adam_step
from l2ul_kernels.simd.views import borrow


class Net(NamedTuple):
    """A model as one vector: an MLP (see mlp/model), or a linear one for h = 0."""

    theta: Float  # (p,)
    h: int
    o: int
    relu: int


class Ascent(NamedTuple):
    """Steps of Adam at this rate; penalty: strength of |row|^2."""

    steps: int
    rate: float
    penalty: float


@kernel()
def _loss(z: Any, label: int) -> float:
    """Log-loss of logits z (o,)."""
    if len(z) == 1:
        return max(z[0], 0.0) + np.log1p(np.exp(-abs(z[0]))) - label * z[0]
    top, total = z.max(), 0.0
    for c in range(len(z)):
        total += np.exp(z[c] - top)
    return np.log(total) + top - z[label]


#: Sums in any order and divisions that cannot raise: the loops over features then run in vectors.
_FLAGS = ("contract", "reassoc", "nsz")


@kernel(fastmath=_FLAGS)
def _input_gradient(x: Any, label: int, net: Any, z: Any, a: Any, out: Any) -> float:
    """out (d,) = derivative of the loss by the row x (d,); returns the loss. z (o,) and a (h,) are scratch."""
    theta, h, o, relu = net
    d = len(x)
    for c in range(o):
        z[c] = theta[o * d + c] if h == 0 else theta[h * d + h + o * h + c]
    if h == 0:
        for c in range(o):
            for k in range(d):
                z[c] += theta[c * d + k] * x[k]
    for j in range(h):
        s = theta[h * d + j]
        for k in range(d):
            s += theta[j * d + k] * x[k]
        a[j] = max(s, 0.0) if relu else np.tanh(s)
        for c in range(o):
            z[c] += theta[h * d + h + c * h + j] * a[j]
    loss = _loss(z, label)
    output_errors(z, label)
    for k in range(d):
        out[k] = 0.0
    if h == 0:
        for c in range(o):
            for k in range(d):
                out[k] += z[c] * theta[c * d + k]
    for j in range(h):
        e = 0.0
        for c in range(o):
            e += theta[h * d + h + c * h + j] * z[c]
        slope = 1.0 if a[j] > 0.0 else 0.0
        e *= slope if relu else 1.0 - a[j] * a[j]
        for k in range(d):
            out[k] += e * theta[j * d + k]
    return loss


@kernel()
def noise_rows(first: int, last: int, thread: int, X: Any, y: Any, net: Any, ascent: Any, out: Any) -> None:
    """Adam on rows first..last of X (n, d), minimising mean(-loss + penalty |row|^2).

    out = (scratch of the threads, losses (n, steps + 1)).
    """
    n, d = X.shape
    net, (memory, losses) = borrow((net, out))
    part, steps = memory[thread], ascent.steps
    z, a, g, mean, square = part[0, : net.o], part[1, : net.h], part[2, :d], part[3, :d], part[4, :d]
    shrink, share = 2.0 * ascent.penalty / n, 1.0 / n
    for i in range(first, last):
        x, left1, left2 = X[i], 1.0, 1.0
        for k in range(d):
            mean[k] = square[k] = 0.0
        for t in range(steps):
            losses[i, t] = _input_gradient(x, y[i], net, z, a, g)
            for k in range(d):
                g[k] = shrink * x[k] - share * g[k]
            left1, left2 = left1 * 0.9, left2 * 0.999
            adam_step(x, g, mean, square, ascent.rate / (1.0 - left1), 1.0 / (1.0 - left2))
        losses[i, steps] = _input_gradient(x, y[i], net, z, a, g)
