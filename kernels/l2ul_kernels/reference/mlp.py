"""Slow, obvious NumPy versions of the MLP kernels: the definition of what is right, for our tests and yours."""

from __future__ import annotations

import numpy as np

from l2ul_kernels.arrays import Array


def unpack(theta: Array, d: int, h: int, n_classes: int = 2) -> tuple[Array, ...]:
    """theta (p,) -> W1 (h, d), b1 (h,), W2 (o, h), b2 (o,)."""
    o = 1 if n_classes == 2 else n_classes
    W1, b1, W2, b2 = np.split(theta, np.cumsum([h * d, h, o * h]))
    return W1.reshape(h, d), b1, W2.reshape(o, h), b2


def _hidden(X: Array, theta: Array, h: int, activation: str, n_classes: int) -> tuple[Array, ...]:
    """(activations (n, h), their slopes (n, h), their second derivatives (n, h))."""
    W1, b1, _, _ = unpack(theta, X.shape[1], h, n_classes)
    a = X.astype(np.float64) @ W1.T + b1
    if activation == "relu":
        return np.maximum(a, 0), (a > 0).astype(float), np.zeros_like(a)
    t = np.tanh(a)
    return t, 1 - t**2, -2 * t * (1 - t**2)


def logits(X: Array, theta: Array, h: int = 10, activation: str = "tanh", n_classes: int = 2) -> Array:
    """(n, o) logits."""
    _, _, W2, b2 = unpack(theta, X.shape[1], h, n_classes)
    return _hidden(X, theta, h, activation, n_classes)[0] @ W2.T + b2


def probabilities(z: Array) -> Array:
    """(n, C) probabilities of logits (n, o)."""
    z = np.hstack([np.zeros_like(z), z]) if z.shape[1] == 1 else z
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def losses(X: Array, y: Array, theta: Array, h: int = 10, activation: str = "tanh", n_classes: int = 2) -> Array:
    """(n,) log-losses."""
    z = logits(X, theta, h, activation, n_classes)
    z = np.hstack([np.zeros_like(z), z]) if z.shape[1] == 1 else z
    # The true class's logit goes first: subtracted last it would cost a small loss its leading digits.
    return np.logaddexp.reduce(z - z[np.arange(len(y)), y][:, None], axis=1)


def gradients(X: Array, y: Array, theta: Array, h: int = 10, activation: str = "tanh", n_classes: int = 2) -> Array:
    """(n, p) gradient of every row's loss."""
    _, _, W2, _ = unpack(theta, X.shape[1], h, n_classes)
    t, slope, _ = _hidden(X, theta, h, activation, n_classes)
    errors = probabilities(logits(X, theta, h, activation, n_classes)) - np.eye(n_classes)[y]
    errors = errors[:, 1:] if n_classes == 2 else errors
    hidden = (errors @ W2) * slope
    n = len(X)
    first, second = hidden[:, :, None] * X[:, None, :], errors[:, :, None] * t[:, None, :]
    return np.hstack([first.reshape(n, -1), hidden, second.reshape(n, -1), errors])


def hessian(X: Array, y: Array, theta: Array, h: int = 10, activation: str = "tanh") -> Array:
    """(p, p) Hessian of the loss sum, two classes, row by row: s (1 - s) dz dz^T + (s - y) d2z."""
    d, p = X.shape[1], len(theta)
    _, _, W2, _ = unpack(theta, d, h)
    t, slope, bend = _hidden(X, theta, h, activation, 2)
    s = probabilities(logits(X, theta, h, activation))[:, 1]
    H = np.zeros((p, p))
    for i, x in enumerate(X.astype(np.float64)):
        u = W2[0] * slope[i]
        dz = np.concatenate([np.outer(u, x).ravel(), u, t[i], [1.0]])
        d2z = np.zeros((p, p))
        for j in range(h):
            own = np.append(np.arange(j * d, (j + 1) * d), h * d + j)  # unit j's weights and its bias
            row = np.append(x, 1.0)
            d2z[np.ix_(own, own)] = W2[0, j] * bend[i, j] * np.outer(row, row)
            d2z[own, h * d + h + j] = d2z[h * d + h + j, own] = slope[i, j] * row
        H += s[i] * (1 - s[i]) * np.outer(dz, dz) + (s[i] - y[i]) * d2z
    return H
