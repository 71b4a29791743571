"""Slow, obvious NumPy versions of sgd/: gradient descent, DeltaGrad's replay, noise. Gradients are passed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from l2ul_kernels.arrays import Array

Vector = Array
#: mean gradient (p,) of rows (by number) at theta
Gradient = Callable[[Vector, Vector], Vector]


def train(
    gradient: Gradient,
    start: Vector,
    batches: Sequence[Vector],
    order: Sequence[int],
    rate: float,
    lam: Vector,
    adam: bool = False,
) -> tuple[Vector, list[Vector], list[Vector]]:
    """(theta, parameters before each step, mean data gradients there)."""
    u = np.array(start, float)
    W, G, mean, square, done = [], [], np.zeros_like(u), np.zeros_like(u), 0
    for b in order:
        W.append(u)
        if len(batches[b]) == 0:
            G.append(np.zeros_like(u))
            continue
        G.append(gradient(u, batches[b]))
        step = G[-1] + lam * u
        if adam:
            done += 1
            mean, square = 0.9 * mean + 0.1 * step, 0.999 * square + 0.001 * step**2
            step = mean / (1 - 0.9**done) / (np.sqrt(square / (1 - 0.999**done)) + 1e-8)
        u = u - rate * step
    return u, W, G


def compact(S: Vector, Y: Vector) -> Vector:
    """The L-BFGS matrix (p, p) of pairs S, Y (k, p), oldest first, started at (y.s / s.s) I of the newest."""
    sigma = S[-1] @ Y[-1] / (S[-1] @ S[-1])
    A = S @ Y.T
    lower = np.tril(A, -1)
    middle = np.block([[-np.diag(np.diag(A)), lower.T], [lower, sigma * S @ S.T]])
    wide = np.hstack([Y.T, sigma * S.T])
    return sigma * np.eye(S.shape[1]) - wide @ np.linalg.solve(middle, wide.T)


def replay(
    gradient: Gradient,
    W: list[Vector],
    G: list[Vector],
    batches: Sequence[Vector],
    order: Sequence[int],
    forget: Vector,
    rate: float,
    lam: Vector,
    memory: int,
    burn_in: int,
    period: int,
    published: bool = False,
) -> tuple[Vector, int]:
    """(theta of DeltaGrad, number of exact steps)."""
    pairs: list[tuple[Vector, Vector]] = []
    u, first, exact, at = np.array(W[0], float), None, 0, -1
    for t, b in enumerate(order):
        at += 1
        stay, go = np.setdiff1d(batches[b], forget), np.intersect1d(batches[b], forget)
        n, c = len(batches[b]), len(go)
        if len(stay) == 0:
            at -= 1 if published and n else 0
            continue
        v = u - W[at]
        if not published and not v.any() and c == 0:
            u = u - rate * (G[at] + lam * u)
            continue
        first = t if first is None else first
        age = t if published else t - first
        of_go = gradient(u, go) if c else np.zeros_like(u)
        if age <= burn_in or (age - burn_in) % period == 0 or not pairs:
            exact += 1
            of_stay = gradient(u, stay)
            y = ((n - c) * of_stay + c * of_go) / n - G[at] + lam * v
            if v @ y > 0:
                pairs = [*pairs, (v, y)][-memory:]
            u = u - rate * (of_stay + lam * u)
        else:
            B = compact(np.array([s for s, _ in pairs]), np.array([y for _, y in pairs]))
            step = B @ v + G[at] + lam * W[at]
            if c:
                step = (n * step - c * (of_go + lam * (W[at] if published else u))) / (n - c)
            u = u - rate * step
    return u, exact
