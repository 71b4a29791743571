"""L-BFGS in float64 for many MLPs at once: each pair's model on all rows, then from there on the retained rows.

Steps s_i with changes of the gradient y_i approximate the inverse Hessian: upon any first guess of it, the two loops
`before_inverse` and `after_inverse` apply what the pairs know (Nocedal and Wright, algorithm 7.4).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from l2ul_kernels.arrays import Array, Bytes, Float, Ints
from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.parallel import parallel_for
from l2ul_kernels.codegen.pointers import call_at
from l2ul_kernels.mlp.block import block_of, new_scratch, parameters_of
from l2ul_kernels.mlp.model import BLOCK, Layout
from l2ul_kernels.simd.elementwise import add_all, dot
from l2ul_kernels.simd.rows import Rows, rows_of
from l2ul_kernels.simd.views import borrow, matrix, vector

#: Pairs of steps and gradient changes that the polish remembers.
MEMORY = 20


class Batches(NamedTuple):
    """The rows of one model, dealt in turn to blocks of the scratch: row i to block first + i mod blocks."""

    first: int
    blocks: int


class History(NamedTuple):
    """The latest steps and changes of the gradient, in a ring."""

    pairs: Float  # (2 memory, padded): step i in line 2 i, its change of gradient behind it
    ratios: Float  # (memory,) 1 / (step . change)
    alphas: Float  # (memory,) scratch


class State(NamedTuple):
    """Vectors (padded,) of one minimisation."""

    theta: Float
    gradient: Float
    direction: Float
    trial: Float
    trial_gradient: Float
    history: History


class Fits(NamedTuple):
    """Results of m pairs."""

    T: Float  # (m, 2, padded) parameters, polished in place
    norms: Float  # (m, 2) gradient norms
    losses: Float  # (m, 2) with penalty
    steps: Ints  # (m, 2)


class Rule(NamedTuple):
    """lam: strength of the penalty; tol: gradient norm to reach (negative: only measure); max_steps of L-BFGS."""

    lam: float
    tol: float
    max_steps: int


@kernel()
def load_model(scratch: Any, batches: Any, rows: Any, ids: Any, picked: Any) -> None:
    """Deal the rows ids (n,) to the blocks of a model; picked (B,) is scratch for ids."""
    n = len(ids)
    for k in range(batches.blocks):
        count = 0
        for i in range(k, n, batches.blocks):
            picked[count] = ids[i]
            count += 1
        own = Rows(rows.address, rows.itemsize, rows.d, rows.y, rows.weights, picked)
        call_at(scratch.load, None, (block_of(scratch, batches.first + k), own, 0, count))


@kernel()
def batch_weights(scratch: Any, batches: Any, n: int, n_forget: int) -> None:
    """Weight 0 for the first n_forget of n rows dealt to the blocks, 1 for the others."""
    for k in range(batches.blocks):
        w = block_of(scratch, batches.first + k).w
        for i in range(k, n, batches.blocks):
            w[i // batches.blocks] = i >= n_forget


@kernel()
def _objective(scratch: Any, batches: Any, n: int, lam: float, theta: Any, gradient: Any) -> float:
    """Mean loss over the loaded blocks + lam / 2 |theta|^2, and its gradient."""
    P, G, loss = parameters_of(theta, 0, scratch.shape), parameters_of(gradient, 0, scratch.shape), 0.0
    for k in range(len(theta)):
        gradient[k] = 0.0
    for k in range(batches.blocks):
        block = block_of(scratch, batches.first + k)
        loss += call_at(scratch.gradient, block.loss[0], (block, P, G, 1))
    for k in range(len(theta)):
        gradient[k] = gradient[k] / n + lam * theta[k]
    return loss / n + 0.5 * lam * dot(theta, theta)


@kernel()
def before_inverse(q: Any, history: Any, kept: int, newest: int) -> None:
    """First loop, from the newest of the `kept` pairs to the oldest: q is then ready for the first guess."""
    memory = len(history.ratios)
    for back in range(kept):
        i = (newest - back) % memory
        history.alphas[i] = dot(history.pairs[2 * i], q) * history.ratios[i]
        add_all(q, history.pairs[2 * i + 1], -history.alphas[i])


@kernel()
def after_inverse(q: Any, history: Any, kept: int, newest: int) -> None:
    """Second loop, from the oldest pair to the newest, on what the first guess made of q."""
    memory = len(history.ratios)
    for back in range(kept - 1, -1, -1):
        i = (newest - back) % memory
        change = history.ratios[i] * dot(history.pairs[2 * i + 1], q)
        add_all(q, history.pairs[2 * i], history.alphas[i] - change)


@kernel()
def _direction(state: Any, kept: int, newest: int) -> None:
    """direction = minus the approximate inverse Hessian times the gradient."""
    q, history = state.direction, state.history
    for k in range(len(q)):
        q[k] = -state.gradient[k]
    before_inverse(q, history, kept, newest)
    if kept:
        change = history.pairs[2 * newest + 1]
        scale = 1.0 / (history.ratios[newest] * dot(change, change))
        for k in range(len(q)):
            q[k] *= scale
    after_inverse(q, history, kept, newest)


@kernel()
def _lbfgs(scratch: Any, batches: Any, n: int, rule: Any, max_steps: int, state: Any) -> Any:
    """Minimise from state.theta over the n loaded rows that have weight; (loss, gradient norm, steps)."""
    theta, g, q, trial, gt, history = state
    lam, padded = rule.lam, len(theta)
    loss = _objective(scratch, batches, n, lam, theta, g)
    kept, newest, steps = np.int64(0), np.int64(0), 0  # not literals: numba would compile `_direction` for each
    while steps < max_steps and dot(g, g) > rule.tol * rule.tol:
        _direction(state, kept, newest)
        slope = dot(g, q)
        length = 1.0 if kept else min(1.0, 0.1 / np.sqrt(max(-slope, 1e-300)))
        better, new = False, loss
        for _ in range(30):
            for k in range(padded):
                trial[k] = theta[k] + length * q[k]
            new = _objective(scratch, batches, n, lam, trial, gt)
            # near the optimum the loss is flat to rounding: there a smaller gradient decides
            flat = new <= loss + 1e-14 * abs(loss) and dot(gt, gt) < dot(g, g)
            if new <= loss + 1e-4 * length * slope or flat:
                better = True
                break
            length *= 0.5
        steps += 1
        if not better:
            if not kept:
                break
            kept = np.int64(0)  # forget the curvature and try the gradient itself
            continue
        following = (newest + 1) % MEMORY
        step, change = history.pairs[2 * following], history.pairs[2 * following + 1]
        for k in range(padded):
            step[k] = trial[k] - theta[k]
            change[k] = gt[k] - g[k]
            theta[k] = trial[k]
            g[k] = gt[k]
        loss = new
        curvature = dot(step, change)
        if curvature > 1e-12 * dot(step, step):
            newest = following
            history.ratios[newest] = 1.0 / curvature
            kept = min(kept + 1, np.int64(MEMORY))
    return loss, np.sqrt(dot(g, g)), steps


@kernel()
def _state_of(A: Any, at: int, padded: int) -> Any:
    """The state in the flat memory A from element `at` on; see `_state_size`."""
    ring = at + 5 * padded
    ratios = ring + 2 * MEMORY * padded
    history = History(
        matrix(A, ring, 2 * MEMORY, padded), vector(A, ratios, MEMORY), vector(A, ratios + MEMORY, MEMORY)
    )
    a, b, c = vector(A, at, padded), vector(A, at + padded, padded), vector(A, at + 2 * padded, padded)
    return State(a, b, c, vector(A, at + 3 * padded, padded), vector(A, at + 4 * padded, padded), history)


def _state_size(padded: int) -> int:
    return (5 + 2 * MEMORY) * padded + 2 * MEMORY


@kernel()
def _polish(first: int, last: int, thread: int, scratch: Any, rows: Any, pairs: Any, rule: Any, out: Any) -> None:
    """Polish the pairs first .. last - 1; pairs = (ids (m, s), n_forget (m,), picked, memory of the threads)."""
    scratch, rows, pairs, out = borrow((scratch, rows, pairs, out))
    ids, n_forget, picked, memory = pairs
    n, padded = ids.shape[1], out.T.shape[2]
    count = (n + scratch.shape.B - 1) // scratch.shape.B
    batches, state = Batches(thread * count, count), _state_of(memory, thread * memory.shape[1], padded)
    for i in range(first, last):
        load_model(scratch, batches, rows, ids[i], picked[thread])
        for run in range(2):
            if run:
                batch_weights(scratch, batches, n, n_forget[i])
            if run == 0 or rule.tol < 0:  # otherwise theta is still the polished one
                for k in range(padded):
                    state.theta[k] = out.T[i, run, k]
            rest, max_steps = n - n_forget[i] if run else n, rule.max_steps if rule.tol >= 0 else 0
            found = _lbfgs(scratch, batches, rest, rule, max_steps, state)
            out.losses[i, run], out.norms[i, run], out.steps[i, run] = found
            for k in range(padded):
                out.T[i, run, k] = state.theta[k]


def polish(X: Array, y: Bytes, ids: Ints, n_forget: Ints, T: Float, lay: Layout, rule: Rule) -> Fits:
    """Polish T (m, 2, padded) in place."""
    (m, n), threads = ids.shape, numba.get_num_threads()
    scratch = new_scratch(lay.shape(BLOCK), threads * -(-n // BLOCK))
    memory = aligned_zeros((threads, _state_size(lay.padded)))
    out = Fits(T, np.zeros((m, 2)), np.zeros((m, 2)), np.zeros((m, 2), np.int64))
    pairs = (ids, n_forget, np.zeros((threads, BLOCK), np.int64), memory)
    parallel_for(_polish, m, scratch, rows_of(X, y), pairs, rule, out)
    return out
