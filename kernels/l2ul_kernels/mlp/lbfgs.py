"""L-BFGS in float64 for many MLPs at once: each pair's model on all rows, then from there on the retained rows."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.parallel import share
from l2ul_kernels.mlp.block import places
from l2ul_kernels.mlp.block_calls import far_blocks, far_gradient, far_load
from l2ul_kernels.mlp.model import BLOCK, Layout, rows_of, scratch
from l2ul_kernels.simd.elementwise import add_all, dot

#: Pairs of steps and gradient changes that L-BFGS remembers.
MEMORY = 20


@kernel()
def batch_weights(S: Any, s: int, step: int, shape: Any, n: int, n_forget: int, batches: int) -> None:
    """Weight 0 for the first n_forget of n rows dealt to `batches` blocks, 1 for the others."""
    for i in range(n):
        S[places(s + i % batches * step, shape).w + i // batches] = i >= n_forget


@kernel()
def load_model(
    load: int, S: Any, s: int, step: int, shape: Any, rows: Any, ids: Any, picked: Any, batches: int
) -> None:
    """Rows ids (n,) dealt to `batches` blocks, row i to block i mod batches; picked (B,) is scratch for ids."""
    n = len(ids)
    address, itemsize, y, weights, _ = rows
    for k in range(batches):
        count = 0
        for i in range(k, n, batches):
            picked[count] = ids[i]
            count += 1
        far_load(load, S, s + k * step, shape, (address, itemsize, y, weights, picked), 0, count)


@kernel()
def _objective(
    gradient: int,
    S: Any,
    s: int,
    step: int,
    shape: Any,
    batches: int,
    n: int,
    lam: float,
    A: Any,
    t: int,
    g: int,
    padded: int,
) -> float:
    """Mean loss over the loaded blocks + lam / 2 |theta|^2 with theta at A[t:]; its gradient goes to A[g:]."""
    for k in range(padded):
        A[g + k] = 0.0
    loss = 0.0
    for k in range(batches):
        loss += far_gradient(gradient, S, s + k * step, shape, A, t, A, g, 1)
    for k in range(padded):
        A[g + k] = A[g + k] / n + lam * A[t + k]
    return loss / n + 0.5 * lam * dot(A, t, A, t, padded)


@kernel()
def _direction(A: Any, g: int, q: int, history: int, padded: int, kept: int, newest: int, ratios: Any) -> None:
    """A[q:] = minus the L-BFGS inverse Hessian times A[g:]; history holds (step, change of gradient) pairs."""
    for k in range(padded):
        A[q + k] = -A[g + k]
    for back in range(kept):
        i = (newest - back) % MEMORY
        at = history + 2 * i * padded
        ratios[MEMORY + i] = dot(A, at, A, q, padded) * ratios[i]
        add_all(A, q, A, at + padded, -ratios[MEMORY + i], padded)
    if kept:
        at = history + 2 * newest * padded
        scale = 1.0 / (ratios[newest] * dot(A, at + padded, A, at + padded, padded))
        for k in range(padded):
            A[q + k] *= scale
    for back in range(kept - 1, -1, -1):
        i = (newest - back) % MEMORY
        at = history + 2 * i * padded
        add_all(A, q, A, at, ratios[MEMORY + i] - ratios[i] * dot(A, at + padded, A, q, padded), padded)


@kernel()
def _lbfgs(
    gradient: int,
    S: Any,
    s: int,
    step: int,
    shape: Any,
    batches: int,
    n: int,
    lam: float,
    A: Any,
    padded: int,
    ratios: Any,
    tol: float,
    max_steps: int,
) -> Any:
    """Minimise from A[0:padded]; (loss, gradient norm, steps). A holds all vectors."""
    # A = theta, gradient, direction, trial, its gradient, history, `padded` elements each but the last
    g, q, trial, gt, history = padded, 2 * padded, 3 * padded, 4 * padded, 5 * padded
    loss = _objective(gradient, S, s, step, shape, batches, n, lam, A, np.int64(0), g, padded)
    kept, newest, steps = np.int64(0), np.int64(0), 0
    while steps < max_steps and dot(A, g, A, g, padded) > tol * tol:
        _direction(A, g, q, history, padded, kept, newest, ratios)
        slope = dot(A, g, A, q, padded)
        length = 1.0 if kept else min(1.0, 0.1 / np.sqrt(max(-slope, 1e-300)))
        better = False
        for _ in range(30):
            for k in range(padded):
                A[trial + k] = A[k] + length * A[q + k]
            new = _objective(gradient, S, s, step, shape, batches, n, lam, A, trial, gt, padded)
            # near the optimum the loss is flat to rounding: there a smaller gradient decides
            flat = new <= loss + 1e-14 * abs(loss) and dot(A, gt, A, gt, padded) < dot(A, g, A, g, padded)
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
        at = history + 2 * ((newest + 1) % MEMORY) * padded
        for k in range(padded):
            A[at + k] = A[trial + k] - A[k]
            A[at + padded + k] = A[gt + k] - A[g + k]
            A[k] = A[trial + k]
            A[g + k] = A[gt + k]
        loss = new
        curvature = dot(A, at, A, at + padded, padded)
        if curvature > 1e-12 * dot(A, at, A, at, padded):
            newest = (newest + 1) % MEMORY
            ratios[newest] = 1.0 / curvature
            kept = np.int64(min(int(kept) + 1, MEMORY))
    return loss, np.sqrt(dot(A, g, A, g, padded)), steps


@kernel()
def _polish(
    first: int,
    last: int,
    thread: int,
    blocks: Any,
    rows: Any,
    ids: Any,
    n_forget: Any,
    T: Any,
    padded: int,
    S: Any,
    step: int,
    shape: Any,
    memory: Any,
    ratios: Any,
    picked: Any,
    lam: float,
    tol: float,
    max_steps: int,
    norms: Any,
    losses: Any,
    steps: Any,
) -> None:
    n = ids.shape[1]
    batches = (n + shape.B - 1) // shape.B
    s, A = thread * step * batches, memory[thread]
    for i in range(first, last):
        load_model(blocks[0], S, s, step, shape, rows, ids[i], picked[thread], batches)
        for run in range(2):
            if run:
                batch_weights(S, s, step, shape, n, n_forget[i], batches)
            if run == 0 or tol < 0:  # otherwise A still holds the polished theta
                for k in range(padded):
                    A[k] = T[i, run, k]
            rest = n - n_forget[i] if run else n
            losses[i, run], norms[i, run], steps[i, run] = _lbfgs(
                blocks[3],
                S,
                s,
                step,
                shape,
                batches,
                rest,
                lam,
                A,
                padded,
                ratios[thread],
                tol,
                max_steps if tol >= 0 else 0,
            )
            for k in range(padded):
                T[i, run, k] = A[k]


def polish(
    X: NDArray[Any],
    y: NDArray[np.uint8],
    ids: NDArray[np.int64],
    n_forget: NDArray[np.int64],
    T: NDArray[np.float64],
    lay: Layout,
    lam: float,
    tol: float,
    max_steps: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Polish T (m, 2, padded) in place; (gradient norms, losses, steps), (m, 2) each. tol < 0 only measures both."""
    m, n = ids.shape
    _, step = scratch(lay, BLOCK)
    threads, batches = numba.get_num_threads(), -(-n // BLOCK)
    S, picked = aligned_zeros(threads * step * batches), np.zeros((threads, BLOCK), np.int64)
    memory, ratios = aligned_zeros((threads, (5 + 2 * MEMORY) * lay.padded)), np.zeros((threads, 2 * MEMORY))
    norms, losses, steps = np.zeros((m, 2)), np.zeros((m, 2)), np.zeros((m, 2), np.int64)
    what = (
        far_blocks(S.dtype),
        rows_of(X, y, np.empty(0), np.empty(0, np.int64)),
        ids,
        n_forget,
        T,
        lay.padded,
        S,
        step,
        lay.shape(BLOCK),
        memory,
        ratios,
        picked,
        lam,
        tol,
        max_steps,
        norms,
        losses,
        steps,
    )
    share("mlp polish", _polish, m, *what)
    return norms, losses, steps
