"""Slow, obvious NumPy versions of the logistic kernels: the definition of what is right, for our tests and yours."""

from __future__ import annotations

import numpy as np

from l2ul_kernels.arrays import Array, Float


def _with_ones(X: Array) -> Float:
    return np.column_stack([X.astype(np.float64), np.ones(len(X))])


def logistic_sums(X: Array, y: Array, theta: Float, weights: Float | None = None) -> tuple[float, Float, Float]:
    """(loss, gradient (p,), Hessian (p, p)), weighted sums over the rows without penalty; y of 0 and 1."""
    A, w = _with_ones(X), np.ones(len(X)) if weights is None else weights
    z = A @ theta
    prob = np.exp(-np.logaddexp(0, -z))
    loss = np.where(y == 1, np.logaddexp(0, -z), np.logaddexp(0, z))
    curvature = np.exp(-np.logaddexp(0, -z) - np.logaddexp(0, z))
    return float((w * loss).sum()), A.T @ (w * (prob - y)), (A.T * (w * curvature)) @ A


def softmax_sums(
    X: Array, y: Array, theta: Float, n_classes: int, weights: Float | None = None
) -> tuple[float, Float, Float]:
    """The same for C classes; theta = [coef (C, d) row by row, intercept (C)]."""
    A, w, d = _with_ones(X), np.ones(len(X)) if weights is None else weights, X.shape[1]
    B = np.column_stack([theta[: n_classes * d].reshape(n_classes, d), theta[n_classes * d :]])
    z = A @ B.T
    log_prob = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
    prob, truth = np.exp(log_prob), np.eye(n_classes)[y]
    g = ((prob - truth) * w[:, None]).T @ A
    H = np.zeros((n_classes, d + 1, n_classes, d + 1))
    for a in range(n_classes):
        for b in range(n_classes):
            H[a, :, b, :] = (A.T * (w * prob[:, a] * ((a == b) - prob[:, b]))) @ A
    at = np.arange(n_classes * (d + 1)).reshape(n_classes, d + 1)
    order = np.concatenate([at[:, :d].ravel(), at[:, d]])
    H = H.reshape(len(order), len(order))[np.ix_(order, order)]
    return float(-(w * (log_prob * truth).sum(axis=1)).sum()), g.ravel()[order], H


def fit(X: Array, y: Array, lam: float, n_classes: int = 2, steps: int = 200) -> Float:
    """The minimiser of mean loss + lam / 2 ||coef||^2, by Newton steps that are halved until the loss falls."""
    d = X.shape[1]
    p = d + 1 if n_classes == 2 else n_classes * (d + 1)
    coef = np.arange(p) < (d if n_classes == 2 else n_classes * d)
    gauge = np.zeros((p, p)) if n_classes == 2 else np.outer(~coef, ~coef).astype(float)

    def objective(theta: Float) -> tuple[float, Float, Float]:
        sums = logistic_sums(X, y, theta) if n_classes == 2 else softmax_sums(X, y, theta, n_classes)
        loss, g, H = (part / len(X) for part in sums)
        return float(loss + lam / 2 * theta[coef] @ theta[coef]), g + lam * coef * theta, H + lam * np.diag(coef)

    theta = np.zeros(p)
    value, g, H = objective(theta)
    for _ in range(steps):
        step, t = np.linalg.solve(H + gauge, g), 1.0
        while objective(theta - t * step)[0] > value + 1e-14 and t > 1e-9:
            t /= 2
        theta = theta - t * step
        value, g, H = objective(theta)
        if np.abs(g).max() < 1e-13:
            break
    return theta
