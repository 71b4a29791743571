"""The gradient of one minibatch, for linear models and the MLP alike: what every compiled training loop is made of.

Parameters are *padded* here. Linear models: one line of `width` numbers per output, [coef (d), intercept, zeros]; the
MLP: see mlp/block. A batch is summed in chunks of CHUNK rows and the chunks are added in order, so that the sum does
not depend on the number of threads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import prange, types

from l2ul_kernels.arrays import Array, Bytes, Float, Ints
from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.codegen.pointers import address, call_at, entry_point
from l2ul_kernels.mlp.block import Scratch, Shape, block_of, new_scratch, parameters_of
from l2ul_kernels.mlp.model import MAX_CLASSES, Layout, layout
from l2ul_kernels.simd.columns import (
    PAD,
    add_dots,
    gather_rows,
    largest_scores,
    padded,
    probabilities,
    residuals,
    scores,
    width_of,
)
from l2ul_kernels.simd.gemm import stay_one
from l2ul_kernels.simd.rows import Rows
from l2ul_kernels.simd.views import borrow
from l2ul_kernels.validate import check_class_count

LOGISTIC, SOFTMAX, SQUARES, MLP = 0, 1, 2, 3
KINDS = ("lr", "squares", "mlp")

#: Rows per chunk: some 15 us of a linear model's work, 60 us of the MLP's; starting threads takes about 5.
CHUNK = 1024
#: Rows that are transposed (linear models: as in linear/sums) or run through the MLP at a time.
TILE = 128
BLOCK = 64


class Engine(NamedTuple):
    """Rows, model and scratch memory, as the kernels see them. weights (N,) or (0,) go by row, ids (n,) by visit.

    plain: visit i is row i, so that labels and weights can be read as they lie.
    """

    kind: int
    load: int
    gradient: int
    at: int
    itemsize: int
    y: Bytes
    weights: Float
    ids: Ints
    plain: int
    rows: Ints
    d: int  # the fields of a Shape: parallel loops cannot pass a tuple in a tuple
    h: int
    o: int
    B: int
    dp: int
    relu: int
    width: int
    S: Float
    step: int
    columns: Float
    values: Float
    partial: Float
    workers: int
    sum: int


@kernel()
def _errors(kind: int, values: Any, o: int, last: int) -> None:
    """Scores values[:o] -> weighted derivatives of the rows' losses; values[o:] hold labels, weights and scratch."""
    labels, weight, spare, end = values[o], values[o + 1], values[o + 2], np.uint64(last)
    if kind == LOGISTIC:
        slope = values[o + 3]  # into the scores' own place it would run row by row
        residuals(values[0], labels, 0, last, slope, spare)
        for i in range(end):
            values[0, i] = slope[i] * weight[i]
        return
    if kind == SQUARES:
        for i in range(end):
            values[0, i] -= labels[i]
    else:
        P = values[:o]
        largest_scores(P, 0, last, spare)
        probabilities(P, 0, last, spare, values[o + 3])
        for c in range(o):
            for i in range(end):
                values[c, i] -= 1.0 if labels[i] == c else 0.0
    for c in range(o):
        for i in range(end):
            values[c, i] *= weight[i]


@kernel()
def _linear_chunk(E: Any, slot: int, lo: int, hi: int, P: Any, g: int) -> None:
    """Add the gradient sum over the visits lo..hi at P to E.partial from element g."""
    columns, values, width, o = E.columns[slot], E.values[slot], E.width, E.o
    labels, weight = values[o], values[o + 1]
    for first in range(lo, hi, TILE):
        n = min(TILE, hi - first)
        last = -(-n // PAD) * PAD
        if E.plain and len(E.weights):
            from_row, rows = np.uint64(first), E.rows[slot]  # E.ids would be one more array to read
            for i in range(np.uint64(n)):
                rows[i] = from_row + i
            gather_rows(E.at, E.itemsize, E.d, rows, 0, n, columns)
            for i in range(np.uint64(n)):
                labels[i] = E.y[from_row + i]
            for i in range(np.uint64(n)):
                weight[i] = E.weights[from_row + i]
        else:
            gather_rows(E.at, E.itemsize, E.d, E.ids, first, first + n, columns)
            for i in range(n):
                row = E.ids[first + i]
                labels[i] = E.y[row]
                weight[i] = E.weights[row] if len(E.weights) else 1.0
        for i in range(n, last):
            labels[i] = 0.0
            weight[i] = 0.0
        for c in range(o):
            scores(columns, P[c * width : (c + 1) * width], 0, last, values[c])
        _errors(E.kind, values, o, last)
        for c in range(o):
            add_dots(columns, values[c], 0, last, E.partial[g + c * width : g + (c + 1) * width])


@kernel()
def _chunk(E: Any, slot: int, c: int, lo: int, hi: int, P: Any) -> None:
    """Line c of E.partial = gradient sum over the visits lo..hi."""
    stay_one()
    size = len(P)
    for k in range(c * size, (c + 1) * size):
        E.partial[k] = 0.0
    if E.kind == MLP:
        rows, shape = Rows(E.at, E.itemsize, E.d, E.y, E.weights, E.ids), Shape(E.d, E.h, E.o, E.B, E.dp, E.relu)
        scratch = Scratch(E.S, E.step, shape, E.load, 0, 0, E.gradient)
        block, G = block_of(scratch, slot), parameters_of(E.partial, c * size, shape)
        for first in range(lo, hi, BLOCK):
            call_at(E.load, None, (block, rows, first, hi))
            call_at(E.gradient, block.loss[0], (block, parameters_of(P, 0, shape), G, 0))
    else:
        _linear_chunk(E, slot, lo, hi, P, c * size)


@kernel(parallel=True)
def _chunks_at_once(E: Any, lo: int, hi: int, chunks: int, P: Any) -> None:
    for w in prange(E.workers):
        for c in range(w, chunks, E.workers):
            _chunk(E, w, c, lo + c * CHUNK, min(lo + (c + 1) * CHUNK, hi), P)


@kernel()
def _batch_sum(E: Any, lo: int, hi: int, P: Any, G: Any) -> None:
    """G (size,) = weighted sum of the gradients of the visits lo..hi at P (size,)."""
    E, P, G = borrow((E, P, G))
    chunks, size = -(-(hi - lo) // CHUNK), len(P)
    if chunks > 1 and E.workers > 1:
        _chunks_at_once(E, lo, hi, chunks, P)
    else:
        for c in range(chunks):
            _chunk(E, 0, c, lo + c * CHUNK, min(lo + (c + 1) * CHUNK, hi), P)
    for k in range(size):
        G[k] = 0.0
    for c in range(chunks):
        for k in range(size):
            G[k] += E.partial[c * size + k]


@kernel(inline=True)
def batch_sum(E: Any, lo: int, hi: int, P: Any, G: Any) -> None:
    """_batch_sum by its address E.sum: compiled once, not once for every loop that uses it."""
    call_at(E.sum, None, (E, lo, hi, P, G))


_addresses: dict[tuple[bool, ...], int] = {}


def _address(E: Engine) -> int:
    """Where the compiled _batch_sum is. Engines differ in type only by which arrays may be written."""
    key = tuple(a.flags.writeable for a in E if isinstance(a, np.ndarray))
    if key not in _addresses:
        flat = numba.typeof(np.empty(0))
        sig = (numba.typeof(E), types.int64, types.int64, flat, flat)
        ensure_compiled("sgd batch", lambda: entry_point(_batch_sum, sig))
        _addresses[key] = entry_point(_batch_sum, sig)
    return _addresses[key]


class Padding(NamedTuple):
    """Sizes of a model and where its parameters (p,) lie among the padded ones (size,)."""

    kind: int
    shape: Shape
    width: int
    size: int
    where: Ints
    lay: Layout | None


@lru_cache(maxsize=64)
def padding(kind: str, d: int, n_classes: int, h: int, activation: str) -> Padding:
    """The padding of a model: "lr" (binary or softmax), "squares" (one output, least squares) or "mlp"."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    check_class_count(n_classes, 2, MAX_CLASSES)
    if kind == "mlp":
        lay = layout(d, h, n_classes, activation)
        return Padding(MLP, lay.shape(BLOCK), 0, lay.padded, lay.where, lay)
    if kind == "squares" and n_classes != 2:
        raise ValueError(f"least squares has one output: labels 0 and 1, got {n_classes} classes")
    o = 1 if n_classes == 2 else n_classes
    width = width_of(d + 1)
    lines = np.arange(o)[:, None] * width
    where = np.concatenate([(lines + np.arange(d)).ravel(), lines[:, 0] + d])
    code = SQUARES if kind == "squares" else LOGISTIC if o == 1 else SOFTMAX
    return Padding(code, Shape(d, 0, o, TILE, 0, 0), width, o * width, where, None)


def engine(
    pad: Padding, X: Array, y: Bytes, weights: Float, ids: Ints, plain: bool, largest: int, workers: int
) -> Engine:
    """Scratch for batches of at most `largest` visits around the rows X (N, d), y (N,)."""
    chunks = max(1, -(-largest // CHUNK))
    workers = max(1, min(workers, chunks))
    load = gradient = step = 0
    S, columns, values = np.zeros(0), np.zeros((0, 0, 0)), np.zeros((0, 0, 0))
    if pad.lay is not None:
        S, step, _, load, _, _, gradient = new_scratch(pad.lay.shape(BLOCK), workers)
    else:
        columns = aligned_zeros((workers, pad.width, padded(TILE)))
        values = aligned_zeros((workers, pad.shape.o + 4, padded(TILE)))
    made = Engine(
        pad.kind,
        load,
        gradient,
        address(X),
        X.itemsize,
        y,
        weights,
        ids,
        int(plain),
        np.zeros((workers, TILE), np.int64),
        *pad.shape,
        pad.width,
        S,
        step,
        columns,
        values,
        np.zeros(chunks * pad.size),
        workers,
        0,
    )
    return made._replace(sum=_address(made))
