"""The gradient of a few rows in a plain loop: no padding, no blocks, no threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_kernels.codegen.jit import kernel


@kernel()
def _output_errors(z: Any, label: int) -> None:
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
def few_gradient(X: Any, y: Any, ids: Any, theta: Any, h: int, o: int, relu: int, memory: Any, out: Any) -> None:
    """Add the gradient sum of rows X[ids] (r, d), y[ids] to out (p,); theta as in mlp.py, memory (2 (h + o),)."""
    d = X.shape[1]
    b1, w2 = h * d, h * d + h
    b2 = w2 + o * h
    a, z = memory[:h], memory[h : h + o]
    for i in ids:
        for j in range(h):
            s = theta[b1 + j]
            for k in range(d):
                s += theta[j * d + k] * X[i, k]
            a[j] = max(s, 0.0) if relu else np.tanh(s)
        for c in range(o):
            z[c] = theta[b2 + c]
            for j in range(h):
                z[c] += theta[w2 + c * h + j] * a[j]
        _output_errors(z, int(y[i]))
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
