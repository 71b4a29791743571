"""Inputs that a model gets wrong: gradient ascent on rows of noise, the model held still. Rows are independent."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.mlp.plain import _output_errors


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
def _input_gradient(x: Any, label: int, theta: Any, h: int, relu: int, z: Any, a: Any, out: Any) -> float:
    """out (d,) = derivative of the loss by the row x (d,); returns the loss. h = 0: a linear model."""
    d, o = len(x), len(z)
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
    _output_errors(z, label)
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


@kernel(fastmath=_FLAGS)
def _adam_step(x: Any, g: Any, mean: Any, square: Any, shrink: float, share: float, rate: float, scale: float) -> None:
    """One step of Adam on x (d,) for the slope shrink * x - share * g; scale corrects the young second moment."""
    for k in range(np.uint64(len(x))):
        slope = shrink * x[k] - share * g[k]
        mean[k] = 0.9 * mean[k] + 0.1 * slope
        square[k] = 0.999 * square[k] + 0.001 * slope * slope
        x[k] -= rate * mean[k] / (np.sqrt(square[k] * scale) + 1e-8)


@kernel()
def noise_rows(
    first: int,
    last: int,
    thread: int,
    X: Any,
    y: Any,
    theta: Any,
    h: int,
    o: int,
    relu: int,
    steps: int,
    rate: float,
    penalty: float,
    memory: Any,
    losses: Any,
) -> None:
    """Adam on rows first..last of X (n, d), minimising mean(-loss + penalty |row|^2); losses (n, steps + 1)."""
    n, d = X.shape
    part = memory[thread]
    z, a, g, mean, square = part[0, :o], part[1, :h], part[2, :d], part[3, :d], part[4, :d]
    for i in range(first, last):
        for k in range(d):
            mean[k] = square[k] = 0.0
        left1 = left2 = 1.0
        for t in range(steps):
            losses[i, t] = _input_gradient(X[i], y[i], theta, h, relu, z, a, g)
            left1, left2 = left1 * 0.9, left2 * 0.999
            _adam_step(X[i], g, mean, square, 2.0 * penalty / n, 1.0 / n, rate / (1.0 - left1), 1.0 / (1.0 - left2))
        losses[i, steps] = _input_gradient(X[i], y[i], theta, h, relu, z, a, g)
