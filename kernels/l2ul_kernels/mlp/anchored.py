"""Many retrained MLPs on the full data under an anchored penalty: the pairs of the anchored protocol.

Each pair wants w with  g(w) = mean gradient over the retained rows + mu (w - a) = 0,  near theta, the solution on all
rows. Steps are quasi-Newton: the inverse Hessian H_D^-1 at theta, corrected by each pair's own last steps (L-BFGS upon
H_D^-1). Sums over retained rows are sums over all rows minus sums over the forgotten ones, so one pass over the data
serves many pairs: a block of rows is gathered and transposed once and meets every pair's parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike

from l2ul_kernels.arrays import Array, Float, Ints
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.parallel import parallel_for
from l2ul_kernels.mlp.lbfgs import History, after_inverse, before_inverse
from l2ul_kernels.mlp.model import MAX_CLASSES, Layout, check_theta, layout, padded_sums, sums_of_items
from l2ul_kernels.simd.gemm import gemm
from l2ul_kernels.simd.rows import rows_of
from l2ul_kernels.simd.views import borrow
from l2ul_kernels.validate import check_floats, check_number, check_row_ids, check_starts, check_steps, check_xy

#: Steps that the correction of H_D^-1 remembers.
MEMORY = 8


class AnchoredPairs(NamedTuple):
    """theta_r (m, p), its gradient norm (m,) and the passes over the data that each pair took (m,)."""

    theta_r: Float
    gradient_norm: Float
    steps: Ints


class Steps(NamedTuple):
    """Gradients, directions and history (see lbfgs.History) of m pairs."""

    g: Float  # (m, padded)
    q: Float  # (m, padded)
    pairs: Float  # (m, 2 MEMORY, padded)
    ratios: Float  # (m, MEMORY)
    kept: Ints  # (m,)
    newest: Ints  # (m,)


@kernel()
def _directions(first: int, last: int, thread: int, active: Any, steps: Any, inverse: Any, memory: Any) -> None:
    """q = -(corrected inverse Hessian) g for pairs active[first..last-1]; memory = scratch vectors of each thread."""
    steps, memory = borrow((steps, memory))
    vectors, alphas = memory
    temp = vectors[thread : thread + 1]
    for k in range(first, last):
        i = active[k]
        history, kept, newest = History(steps.pairs[i], steps.ratios[i], alphas[thread]), steps.kept[i], steps.newest[i]
        for c in range(temp.shape[1]):
            temp[0, c] = -steps.g[i, c]
        before_inverse(temp[0], history, kept, newest)
        gemm(steps.q[i : i + 1], temp, inverse, False)
        after_inverse(steps.q[i], history, kept, newest)


class _Solver:
    """State of m pairs while they are solved; all arrays padded."""

    def __init__(self, lay: Layout, theta: Array, anchor: Array, mu: float, inverse: Array, m: int) -> None:
        self.lay, self.mu, self.m = lay, mu, m
        self.anchor = lay.pad(anchor)
        self.w = np.repeat(lay.pad(theta)[None], m, axis=0)
        self.inverse = np.zeros((lay.padded, lay.padded))
        self.inverse[np.ix_(lay.where, lay.where)] = inverse
        shapes = [(m, lay.padded), (m, lay.padded), (m, 2 * MEMORY, lay.padded), (m, MEMORY)]
        parts: Any = (*map(np.zeros, shapes), *np.zeros((2, m), np.int64))
        self.steps = Steps(*parts)
        self.g = self.steps.g

    def gradients(self, rows: Any, n: int, starts: Array, full: Array, w: Array, active: Array) -> Array:
        """Gradients (k, padded) of the active pairs at w (k, padded), given the sums `full` over all rows."""
        each = np.arange(len(active))
        items = np.stack([starts[active], starts[active + 1], each, each + 1, each], axis=1)
        sums = sums_of_items(rows, items, w, self.lay, len(active), False)[:, :-1]
        rest = (n - np.diff(starts)[active])[:, None]
        return (full - sums) / rest + self.mu * (w - self.anchor)

    def directions(self, active: Array) -> None:
        threads = numba.get_num_threads()
        memory = np.zeros((threads, self.lay.padded)), np.zeros((threads, MEMORY))
        parallel_for(_directions, len(active), active, self.steps, self.inverse, memory)

    def remember(self, i: Array, step: Array, change: Array) -> None:
        """Keep the newest (step, change of gradient) of the pairs i, where the curvature is positive."""
        curvature = np.einsum("ij,ij->i", step, change)
        good = curvature > 1e-10 * np.einsum("ij,ij->i", step, step)
        i, step, change, curvature = i[good], step[good], change[good], curvature[good]
        at, kept = (self.steps.newest[i] + 1) % MEMORY, self.steps.kept
        pairs, ratios = self.steps.pairs, self.steps.ratios
        pairs[i, 2 * at], pairs[i, 2 * at + 1], ratios[i, at] = step, change, 1 / curvature
        self.steps.newest[i], kept[i] = at, np.minimum(kept[i] + 1, MEMORY)


def mlp_anchored_pairs(
    X: ArrayLike,
    y: ArrayLike,
    forget_ids: ArrayLike,
    forget_starts: ArrayLike,
    theta: ArrayLike,
    anchor: ArrayLike,
    mu: float,
    inverse_hessian: ArrayLike,
    tol: float = 1e-8,
    max_steps: int = 40,
    h: int = 10,
    activation: str = "tanh",
    n_classes: int = 2,
) -> AnchoredPairs:
    """Retrained parameters of m requests on the full data X (n, d), each from theta (see the head of this file).

    Pair i forgets rows forget_ids[forget_starts[i]:forget_starts[i + 1]] (each row at most once). inverse_hessian
    (p, p) belongs to mean loss of all rows + mu / 2 |w - anchor|^2 at theta. A pair is done when its gradient norm is
    at most tol; after max_steps passes it is returned as it is: look at gradient_norm.
    """
    X, y = check_xy(X, y, n_classes, MAX_CLASSES)
    lay = layout(X.shape[1], h, n_classes, activation)
    theta, anchor = check_theta(theta, lay), check_theta(anchor, lay, name="anchor")
    inverse, mu = check_floats(inverse_hessian, "inverse_hessian"), check_number(mu, "mu")
    if inverse.shape != (lay.size, lay.size):
        raise ValueError(f"inverse_hessian must have shape ({lay.size}, {lay.size}), got {inverse.shape}")
    ids = check_row_ids(forget_ids, len(X))
    starts = check_starts(forget_starts, len(ids), "forget_starts")
    n, m, sizes = len(X), len(starts) - 1, np.diff(starts)
    if m and sizes.max() >= n:
        raise ValueError("a pair must leave at least one row to retain")
    everything, forgotten = (rows_of(X, y, ids=i) for i in (None, ids))
    goal = check_number(tol, "tol")
    state = _Solver(lay, theta, anchor, mu, inverse, m)
    active = np.arange(m)
    full = padded_sums(everything, n, state.w[:1], lay, want_loss=False)[:, :-1]  # for all: they start alike
    state.g[:] = state.gradients(forgotten, n, starts, full, state.w, active)
    norm, steps, length = np.linalg.norm(state.g, axis=1), np.zeros(m, np.int64), np.ones(m)
    for _ in range(check_steps(max_steps)):
        active = active[norm[active] > goal]
        if not len(active):
            break
        fresh = active[length[active] == 1.0]
        state.directions(fresh)
        trial = state.w[active] + length[active, None] * state.steps.q[active]
        full = padded_sums(everything, n, trial, lay, want_loss=False)[:, :-1]
        g = state.gradients(forgotten, n, starts, full, trial, active)
        new = np.linalg.norm(g, axis=1)
        steps[active] += 1
        # a step may raise the gradient once curvature is known; it must not run away
        good = new <= 0.9 * norm[active]
        worse, i = active[~good], active[good]
        state.remember(i, trial[good] - state.w[i], g[good] - state.g[i])
        state.w[i], state.g[i], norm[i], length[i] = trial[good], g[good], new[good], 1.0
        length[worse] *= 0.5
        state.steps.kept[worse] = 0
    return AnchoredPairs(np.ascontiguousarray(state.w[:, lay.where]), norm, steps)
