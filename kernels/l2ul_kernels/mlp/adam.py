"""Training many small MLPs at once: Adam in float32, a polish in float64, one model per thread at a time.

The rows of a model are dealt to the batches in turn, row i to batch i mod n_batches, and every batch is gathered and
transposed once. A run on the retained rows uses the same batches in the same order with the forgotten rows at weight 0,
so that the two runs of a pair differ by those rows alone. A pair's first rows are its forget part: dealing spreads them
evenly over the batches.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.arrays import Array, Bytes, Float, Ints
from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.parallel import parallel_for
from l2ul_kernels.codegen.pointers import call_at
from l2ul_kernels.mlp.block import block_of, new_scratch, parameters_of
from l2ul_kernels.mlp.lbfgs import Batches, Rule, batch_weights, load_model, polish
from l2ul_kernels.mlp.model import MAX_CLASSES, Layout, check_theta, layout
from l2ul_kernels.simd.elementwise import adam_all
from l2ul_kernels.simd.rows import rows_of
from l2ul_kernels.simd.views import borrow, vector
from l2ul_kernels.validate import check_count, check_ids, check_number, check_steps, check_xy, refuse_unusable

#: Passes over the rows at most: the order of the batches of each is drawn beforehand.
MAX_EPOCHS = 1_000_000


class PairFits(NamedTuple):
    """m pairs: parameters (m, p) of the fits on all and on the retained rows; column 0 full, column 1 retained."""

    theta: Float
    theta_r: Float
    gradient_norm: Float
    loss: Float
    steps: Ints


class Training(NamedTuple):
    """m pairs to train and how."""

    ids: Ints  # (m, s)
    n_forget: Ints  # (m,)
    orders: tuple[Ints, ...]  # of both runs: (epochs, batches)
    rates: tuple[float, float]
    lam: float
    runs: int  # 1: on all rows only


@kernel()
def _adam(scratch: Any, batches: Any, order: Any, rate: float, lam: float, theta: Any, memory: Any) -> None:
    """Adam on the loaded batches in the given order (epochs, batches); theta (padded,), scratch memory (3, padded)."""
    epochs, kind, padded = len(order), theta.dtype.type, len(theta)
    mean, square, slope = memory[0], memory[1], memory[2]
    P, G = parameters_of(theta, 0, scratch.shape), parameters_of(slope, 0, scratch.shape)
    for k in range(padded):
        mean[k] = square[k] = 0
    done, left1, left2 = 0, 1.0, 1.0
    for epoch in range(epochs):
        for i in range(batches.blocks):
            block = block_of(scratch, batches.first + order[epoch, i])
            total = 0.0
            for b in range(len(block.w)):
                total += block.w[b]
            scale = 1.0 / total if total > 0 else 0.0
            for k in range(padded):
                slope[k] = 0
            call_at(scratch.gradient, block.loss[0], (block, P, G, 0))
            left1, left2 = left1 * 0.9, left2 * 0.999
            fix = math.sqrt(1.0 - left2)
            now = rate * 0.5 * (1.0 + math.cos(math.pi * done / (epochs * batches.blocks))) * fix / (1.0 - left1)
            how = (kind(scale), kind(lam), kind(now), kind(0.9), kind(0.999), kind(1e-8 * fix))
            adam_all(theta, mean, square, slope, *how)
            done += 1


@kernel()
def _train(first: int, last: int, thread: int, scratch: Any, rows: Any, what: Any, T: Any, memory: Any) -> None:
    """Run 0 trains T[i, 0] on all rows; run 1 trains T[i, 1], from T[i, 0], on the retained; T (m, 2, padded).

    memory = (3 padded lines of each thread, ids of a batch of each).
    """
    scratch, rows, what, T = borrow((scratch, rows, what, T))
    vectors, picked = borrow(memory)
    batches, padded = Batches(thread * what.orders[0].shape[1], what.orders[0].shape[1]), T.shape[2]
    for i in range(first, last):
        load_model(scratch, batches, rows, what.ids[i], picked[thread])
        for run in range(what.runs):
            theta = vector(T, (2 * i + run) * padded, padded)
            if run:
                batch_weights(scratch, batches, what.ids.shape[1], what.n_forget[i])
                for k in range(padded):
                    theta[k] = T[i, 0, k]
            _adam(scratch, batches, what.orders[run], what.rates[run], what.lam, theta, vectors[thread])


def batch_orders(epochs: int, batches: int, seed: int) -> Ints:
    """(epochs, batches): the order of the batches in every epoch, shared by all models."""
    rng = np.random.default_rng(seed)
    return rng.permuted(np.tile(np.arange(batches), (epochs, 1)), axis=1)


def _adam_runs(
    X: Array,
    y: Bytes,
    ids: Ints,
    n_forget: Ints,
    start: Array,
    lay: Layout,
    lam: float,
    epochs: tuple[int, ...],
    rates: tuple[float, float],
    batch: int,
    seed: int,
) -> NDArray[np.float32]:
    """(m, 2, padded) parameters after the runs; `start` is (p,) or (m, p)."""
    m, s = ids.shape
    batches = -(-s // batch)
    block = (s + 16 * batches - 1) // (16 * batches) * 16  # whole vectors
    T = aligned_zeros((m, 2, lay.padded), np.float32)
    with np.errstate(over="ignore"):
        T[:, 0, lay.where] = start
    if not np.isfinite(T).all():
        raise ValueError("start has NaN, an infinity or a value too large for float32")
    threads = numba.get_num_threads()
    scratch = new_scratch(lay.shape(block), threads * batches, np.float32)
    memory = aligned_zeros((threads, 3, lay.padded), np.float32), np.zeros((threads, block), np.int64)
    orders = tuple(batch_orders(e, batches, seed) for e in (*epochs, 0)[:2])
    what = Training(ids, n_forget, orders, (float(rates[0]), float(rates[1])), float(lam), len(epochs))
    parallel_for(_train, m, scratch, rows_of(X, y), what, T, memory)
    _refuse_what_float32_is_not(T, X, ids)
    return T


def _check_training(lam: float, epochs: int, batch: int, rate: float, tol: float | None, max_steps: int) -> Rule:
    """How to polish; nothing but a measurement without tol."""
    check_count(epochs, 1, MAX_EPOCHS, "epochs")
    check_count(batch, 1, 2**62, "batch")
    check_number(rate, "rate", open=True)
    goal = -1.0 if tol is None else check_number(tol, "tol")
    return Rule(check_number(lam, "lam"), goal, check_steps(max_steps))


def _refuse_what_float32_is_not(T: Array, X: Array, ids: Ints) -> None:
    """Name the row at fault when parameters T (m, ...) came out as NaN; a rate that is too high is nobody's fault."""
    failed = ~np.isfinite(T).all(axis=tuple(range(1, T.ndim)))
    if failed.any():
        refuse_unusable(X, np.unique(ids[failed]), np.float32)


def mlp_train(
    X: ArrayLike,
    y: ArrayLike,
    start: ArrayLike,
    ids: ArrayLike | None = None,
    h: int = 10,
    activation: str = "tanh",
    n_classes: int = 2,
    lam: float = 1e-3,
    epochs: int = 60,
    batch: int = 128,
    rate: float = 0.01,
    tol: float | None = None,
    max_steps: int = 500,
    seed: int = 0,
) -> Float:
    """Adam from start (m, p) on rows ids (m, s) of X (n, d), or all rows: m models (m, p) after `epochs` epochs.

    Minimises mean log-loss + lam / 2 |theta|^2; float32, learning rate `rate` falling to 0 as a cosine, the order of
    batches drawn from `seed`. With tol follows a polish by at most 2 max_steps of L-BFGS in float64, to a gradient norm
    of tol. The same for any number of threads.
    """
    X, y = check_xy(X, y, n_classes, MAX_CLASSES)
    lay = layout(X.shape[1], h, n_classes, activation, 4)
    start = np.atleast_2d(check_theta(start, lay, many=True, name="start"))
    rule = _check_training(lam, epochs, batch, rate, tol, max_steps)
    ids = np.broadcast_to(np.arange(len(X)), (len(start), len(X))) if ids is None else ids
    index, none = check_ids(ids, None, len(X))
    if len(index) != len(start):
        raise ValueError(f"start has {len(start)} models but ids has {len(index)}")
    T = _adam_runs(X, y, index, none, start, lay, lam, (epochs,), (rate, rate), batch, seed)
    theta = T[:, 0, lay.where].astype(np.float64)
    if tol is None:
        return theta
    wide = layout(X.shape[1], h, n_classes, activation)
    both = wide.pad(np.repeat(theta[:, None], 2, axis=1))
    polish(X, y, index, none, both, wide, rule)
    return both[:, 1, wide.where]


def mlp_fit_pairs(
    X: ArrayLike,
    y: ArrayLike,
    ids: ArrayLike,
    n_forget: ArrayLike,
    start: ArrayLike,
    h: int = 10,
    activation: str = "tanh",
    n_classes: int = 2,
    lam: float = 1e-3,
    epochs: int = 60,
    epochs_retained: int = 20,
    batch: int = 128,
    rate: float = 0.01,
    rate_retained: float = 0.002,
    tol: float | None = None,
    max_steps: int = 500,
    seed: int = 0,
) -> PairFits:
    """Fits of m pairs: theta[i] on rows ids[i] (m, s), theta_r[i] on rows ids[i, n_forget[i]:], from one start (p,).

    Without tol both are Adam in float32 (see `mlp_train`), the second from theta[i] with its own epochs and rate. With
    tol, Adam's theta is polished by L-BFGS in float64 until the gradient norm of mean loss + lam / 2 |theta|^2 is below
    tol, and theta_r starts from that and is polished alone; max_steps bounds each polish. gradient_norm and loss (with
    penalty) of both fits are measured in float64: look at them, a fit that did not get there is not marked otherwise.
    """
    X, y = check_xy(X, y, n_classes, MAX_CLASSES)
    lay = layout(X.shape[1], h, n_classes, activation, 4)
    start = check_theta(start, lay, name="start")
    rule = _check_training(lam, epochs, batch, rate, tol, max_steps)
    check_count(epochs_retained, 0, MAX_EPOCHS, "epochs_retained")
    check_number(rate_retained, "rate_retained")
    index, sizes = check_ids(ids, n_forget, len(X))
    runs = (epochs, epochs_retained) if tol is None else (epochs,)
    T = _adam_runs(X, y, index, sizes, start, lay, lam, runs, (rate, rate_retained), batch, seed)
    wide = layout(X.shape[1], h, n_classes, activation)
    both = wide.pad(T[:, :, lay.where].astype(np.float64))
    found = polish(X, y, index, sizes, both, wide, rule)
    theta = both[:, :, wide.where]
    return PairFits(theta[:, 0].copy(), theta[:, 1].copy(), found.norms, found.losses, found.steps)
