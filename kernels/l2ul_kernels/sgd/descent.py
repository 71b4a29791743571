"""Minibatch gradient descent in compiled code: whole runs, and DeltaGrad's replays of them, as one call each.

Works for logistic regression ("lr"; theta as in logistic.py and softmax.py), least squares ("squares", theta and labels
as binary logistic regression) and the MLP ("mlp", theta as in mlp/model), in float64. A run is given as `ids`, the rows
batch by batch (None: as they lie), `starts` (batches + 1), and `order` (T,), the batch of every step. The objective is
the mean loss of a batch + sum_k lam_k (theta_k - centre_k)^2 / 2. Results are bit-identical for any number of threads.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike

from l2ul_kernels import validate
from l2ul_kernels.arrays import Float, Ints
from l2ul_kernels.codegen.jit import ensure_compiled
from l2ul_kernels.codegen.parallel import parallel_for
from l2ul_kernels.mlp.adam import MAX_EPOCHS
from l2ul_kernels.mlp.model import MAX_CLASSES
from l2ul_kernels.sgd import deltagrad
from l2ul_kernels.sgd.deltagrad import Batches, Cache, Extra, Pairs, Rule, Steps
from l2ul_kernels.sgd.minibatch import Engine, engine, padding
from l2ul_kernels.sgd.noise import Ascent, Net, noise_rows
from l2ul_kernels.threads import parallel_entry

#: Multiply-adds of noise below which starting other threads costs more than they save.
NOISE_SERIAL = 2_000_000


class Trace(NamedTuple):
    """A run of T steps: the parameters after it (p,), and before each step W (T, size) with the mean data gradients
    G (T, size) found there, both padded."""

    theta: Float
    W: Float
    G: Float


class Replay(NamedTuple):
    """A replay: parameters (p,), how many steps were exact, by L-BFGS and copied, pairs kept, the new cache or None."""

    theta: Float
    exact: int
    quasi: int
    copied: int
    pairs: int
    trace: Trace | None


def check_batches(ids: ArrayLike | None, starts: ArrayLike, order: ArrayLike, n: int) -> tuple[Ints | None, Ints, Ints]:
    """ids (k,) in 0 .. n - 1, starts (batches + 1,) ascending from 0 to k, order (T,) in 0 .. batches - 1, as int64.

    Without ids the last of starts may be any number of rows.
    """
    if ids is not None:
        ids = validate.check_row_ids(ids, n)
    starts = validate.check_starts(starts, None if ids is None else len(ids), "starts", n)
    order = validate.check_int64(order, len(starts) - 1, "order")
    if order.ndim != 1:
        raise ValueError(f"order must have one dimension, got shape {order.shape}")
    return ids, starts, order


def check_rates(rates: ArrayLike, steps: int) -> Float:
    """rates (steps,), or one number for all steps."""
    rates = validate.check_floats(rates, "rates")
    if rates.shape not in ((), (1,), (steps,)):
        raise ValueError(f"rates must be one number or have shape ({steps},), got {rates.shape}")
    return rates if rates.shape == (steps,) else np.full(steps, rates.item())


def batch_weights(weights: Float, ids: Ints | None, starts: Ints) -> Float:
    """(batches,) sum of the rows' weights in every batch."""
    sums = np.zeros(len(starts) - 1)
    some = np.flatnonzero(np.diff(starts))
    if some.size:
        by_visit = weights[: starts[-1]] if ids is None else weights[ids]
        sums[some] = np.add.reduceat(by_visit, starts[some])
    return sums


class Descent:
    """Gradient descent of one model on rows X (N, d) float32 or float64, y (N,) class indices.

    lam: penalty, a number or (p,). centre: (p,) or None for zero. keep_scratch: for many short runs by one thread; the
    scratch then holds copies of rows between them.
    """

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        kind: str = "lr",
        n_classes: int = 2,
        h: int = 10,
        activation: str = "tanh",
        lam: ArrayLike = 0.0,
        centre: ArrayLike | None = None,
        keep_scratch: bool = False,
    ) -> None:
        self.keep_scratch = keep_scratch
        self.X, self.y = validate.check_xy(X, y, n_classes, MAX_CLASSES)
        self.pad = padding(kind, self.X.shape[1], n_classes, h, activation)
        self.size = len(self.pad.where)
        lam = validate.check_floats(lam, "lam")
        self.lam = self._padded(np.full(self.size, lam.item()) if lam.ndim == 0 else lam, "lam")
        self.centre = self._padded(np.zeros(self.size) if centre is None else centre, "centre")
        if not ((self.lam >= 0) & (self.lam < np.inf)).all():
            raise ValueError("lam must not be negative, nor infinite")
        self._last: Any = (None, None)  # sizes of the latest run without weights, and its scratch

    def _padded(self, theta: ArrayLike, name: str) -> Float:
        out = np.zeros(self.pad.size)
        out[self.pad.where] = validate.check_vector(theta, self.size, name)
        return out

    @cached_property
    def _all(self) -> Ints:
        """The row of every visit when rows are taken as they lie."""
        return np.arange(len(self.X))

    def _engine(self, ids: Ints | None, starts: Ints, weights: Float, workers: int | None, largest: int = 0) -> Engine:
        largest = max(largest, int(np.diff(starts).max(initial=0)))
        count = numba.get_num_threads() if workers is None else validate.check_count(workers, 1, 4096, "workers")
        visits, key = self._all if ids is None else ids, (largest, count, ids is None)
        if self.keep_scratch and not weights.size and key == self._last[0]:
            return self._last[1]._replace(ids=visits)
        made = engine(self.pad, self.X, self.y, weights, visits, ids is None, largest, count)
        if self.keep_scratch and not weights.size:
            self._last = (key, made)
        return made

    def train(
        self,
        start: ArrayLike,
        ids: ArrayLike | None,
        starts: ArrayLike,
        order: ArrayLike,
        rates: ArrayLike,
        adam: bool = False,
        weights: ArrayLike | None = None,
        extra: ArrayLike | None = None,
        extra_weight: float = 0.0,
        keep: float = 1.0,
        trace: bool = False,
        workers: int | None = None,
        restart: int = 0,
    ) -> Trace:
        """T steps from start (p,) at rates (T,) or one rate: plain gradient steps, or Adam.

        weights (N,) multiply rows; a batch's gradient is its weighted mean times `keep`, and a batch without weight is
        passed over. extra (T, 2): ranges of ids whose mean gradient, without weights, is added in each step,
        times extra_weight.
        `workers` bounds the threads. W and G of the answer are empty without `trace`. Adam begins anew at step
        `restart`.
        """
        ids, starts, order = check_batches(ids, starts, order, len(self.X))
        u = self._padded(start, "start")
        steps = len(order)
        rates, restart = check_rates(rates, steps), validate.check_steps(restart, "restart")
        keep = validate.check_number(keep, "keep")
        extra_weight = validate.check_number(extra_weight, "extra_weight", -np.inf)
        factors = validate.check_weights(weights, len(self.X))
        sums = np.diff(starts).astype(np.float64) if weights is None else batch_weights(factors, ids, starts)
        if (sums < 0).any():
            raise ValueError("the weights of a batch must not sum to less than zero")
        scales = np.divide(1.0, sums, out=np.zeros(len(sums)), where=sums > 0) * keep
        ranges, more, longest = np.empty((0, 2), np.int64), np.empty(0), 0
        if extra is not None:
            ranges = validate.check_int64(extra, int(starts[-1]) + 1, "extra")
            if ranges.shape != (steps, 2):
                raise ValueError(f"extra must have shape ({steps}, 2), got {ranges.shape}")
            lengths = ranges[:, 1] - ranges[:, 0]
            more = np.divide(extra_weight, lengths, out=np.zeros(len(lengths)), where=lengths > 0)
            longest = int(lengths.max(initial=0))
        E = self._engine(ids, starts, factors, workers, longest)
        F = E._replace(weights=np.empty(0)) if factors.size else E
        cache = Cache(*(np.zeros((steps if trace else 0, self.pad.size)) for _ in range(2)))
        batches, work = Batches(E, starts, scales, F, starts), np.zeros((4, self.pad.size))

        def run(order: Ints) -> None:
            what = (Extra(ranges, more), int(adam), int(restart), u, work, cache)
            deltagrad.train(batches, Steps(order, rates, self.lam, self.centre), *what)

        ensure_compiled("sgd train", lambda: run(order[:0]))
        self._run(E, lambda: run(order))
        return Trace(u[self.pad.where], *cache)

    def replay(
        self,
        trace: Trace,
        forget: ArrayLike,
        ids: ArrayLike | None,
        starts: ArrayLike,
        order: ArrayLike,
        rates: ArrayLike,
        weights: Float,
        memory: int = 2,
        burn_in: int = 20,
        period: int = 5,
        limit: float = 0.0,
        hessian: ArrayLike | None = None,
        published: bool = False,
        keep_trace: bool = False,
        workers: int | None = None,
    ) -> Replay:
        """The run of `trace` again, without the rows `forget` (positions in ids, sorted): DeltaGrad.

        weights (N,): 1 for rows of the cached run, 0 for others; while this runs, 0 for the rows to forget as well.
        An exact gradient in the first burn_in steps after the paths part and in every `period`-th one after that; else
        the cached gradient, moved by L-BFGS with `memory` pairs (or by the constant `hessian` (p, p), if given). With
        limit > 0 a step is exact too where L-BFGS would stretch by more than that.
        """
        ids, starts, order = check_batches(ids, starts, order, len(self.X))
        steps, size, m = len(order), self.pad.size, validate.check_count(memory, 0, 1000, "memory")
        burn_in, period = validate.check_steps(burn_in, "burn_in"), validate.check_steps(period, "period", 1)
        W, G = validate.check_floats(trace.W, "trace.W"), validate.check_floats(trace.G, "trace.G")
        if W.shape != (steps, size) or G.shape != (steps, size):
            raise ValueError(f"the trace must have {steps} steps, got shapes {W.shape} and {G.shape}")
        rates = check_rates(rates, steps)
        places = validate.check_int64(forget, int(starts[-1]), "forget")
        if places.ndim != 1 or (np.diff(places) <= 0).any():
            raise ValueError("forget must ascend, each position once, in one dimension")
        factors = validate.check_weights(weights, len(self.X))
        if not getattr(weights, "flags", factors.flags).writeable:
            factors = factors.copy()  # they are written to below
        gone = places if ids is None else ids[places]
        full = batch_weights(factors, ids, starts).astype(np.int64)
        bounds = np.searchsorted(places, starts).astype(np.int64)
        curvature = np.zeros((0, 0))
        if hessian is not None:
            curvature = np.zeros((size, size))
            matrix = validate.check_floats(hessian, "hessian")
            if matrix.shape != (self.size, self.size):
                raise ValueError(f"hessian must have shape ({self.size}, {self.size}), got {matrix.shape}")
            curvature[np.ix_(self.pad.where, self.pad.where)] = matrix
        E = self._engine(ids, starts, factors, workers)
        F = self._engine(gone, bounds, np.empty(0), workers)
        u = W[0].copy() if steps else np.zeros(size)
        cache = Cache(*(np.zeros((steps if keep_trace else 0, size)) for _ in range(2)))
        S, Y = np.zeros((2, m, size))
        pairs = Pairs(S, Y, np.zeros((2 * m, 2 * m)), np.zeros(2 * m, np.int64), np.zeros(2 * m))
        rule = Rule(burn_in, period, validate.check_number(limit, "limit"), int(published), curvature)
        counts = np.zeros(4, np.int64)
        batches, work, old = Batches(E, starts, full, F, bounds), np.zeros((5, size)), Cache(W, G)

        def run(order: Ints) -> None:
            what = (old, rule, pairs, work, u, (counts, cache))
            deltagrad.replay(batches, Steps(order, rates, self.lam, self.centre), *what)

        ensure_compiled("sgd replay", lambda: run(order[:0]))
        before = factors[gone]
        factors[gone] = 0.0
        try:
            self._run(E, lambda: run(order))
        finally:
            factors[gone] = before
        theta = u[self.pad.where]
        new = Trace(theta, *cache) if keep_trace else None
        return Replay(theta, int(counts[0]), int(counts[1]), int(counts[2]), int(counts[3]), new)

    def _run(self, E: Engine, call: Any) -> None:
        if E.workers > 1 and len(E.partial) > self.pad.size:
            with parallel_entry():
                call()
        else:
            call()


def error_noise(
    start: ArrayLike,
    labels: ArrayLike,
    theta: ArrayLike,
    kind: str = "lr",
    n_classes: int = 2,
    h: int = 10,
    activation: str = "tanh",
    steps: int = 40,
    rate: float = 0.1,
    penalty: float = 0.1,
) -> tuple[Float, Float]:
    """(rows (n, d), log-losses (n, steps + 1)): noise that the model theta gets as wrong as `penalty` allows.

    From start (n, d), `steps` steps of Adam minimise the mean of -loss(row, label) + penalty |row|^2; theta stays.
    """
    rows = np.array(validate.check_matrix(start, name="start"), np.float64)
    steps = validate.check_count(steps, 0, MAX_EPOCHS, "steps")
    y = validate.check_labels(labels, len(rows), n_classes, np.int64, "start")
    pad = padding(kind, rows.shape[1], n_classes, h, activation)
    if kind == "squares":
        raise ValueError("noise is made against a log-loss")
    theta, units = validate.check_vector(theta, len(pad.where), "theta"), pad.shape.h
    losses = np.zeros((len(rows), steps + 1))
    memory = np.zeros((numba.get_num_threads(), 5, max(rows.shape[1], units, pad.shape.o)))
    net = Net(theta, units, pad.shape.o, int(activation == "relu"))
    ascent = Ascent(steps, validate.check_number(rate, "rate"), validate.check_number(penalty, "penalty"))
    cost = rows.size * steps * max(units, 1) * pad.shape.o
    threads = 1 if cost < NOISE_SERIAL else None
    parallel_for(noise_rows, len(rows), rows, y, net, ascent, (memory, losses), threads=threads)
    return rows, losses


__all__ = ["Descent", "Replay", "Trace", "error_noise"]
