"""Public functions of l2ul_kernels with valid arguments, and every way in which each argument can be spoilt.

`rows()` is the table: a new public function needs a row there. `spoilt(row, name)` yields (how, arguments) with that
argument spoilt: such a call must end in one sentence, a ValueError or TypeError, and change no array. A fuzzer may take
both and spoil several arguments at once.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

import l2ul_kernels as lk
from l2ul_kernels.sgd.descent import Descent, error_noise

N, D, T, PSI, C, H = 48, 3, 2, 3, 3, 2
#: Not in the table: they take no data.
NO_DATA = {"available_cores", "warmup"}


@dataclass
class Is:
    """An argument: its valid value, and what spoils it besides what spoils every array (or every number)."""

    value: Any
    kind: str  # rows, ints, floats, out, count, number, or "" (is not spoilt)
    bound: Any = None  # ints and counts: the first value that is too large
    least: Any = None  # counts and numbers: the first that is not too small
    nan: bool = True  # rows: whether NaN is refused (else it shows in the result)
    scalar: bool = False  # floats: whether one number will do


def rows_(value, nan=True):
    return Is(value, "rows", nan=nan)


def ints(value, bound):
    return Is(np.asarray(value, np.int64), "ints", bound)


def floats(value, scalar=False):
    return Is(np.asarray(value, np.float64), "floats", scalar=scalar)


def out(value):
    return Is(value, "out")


def count(value, bound, least=1):
    return Is(value, "count", bound, least)


def number(value, least=0.0):
    return Is(value, "number", least=least)


def fixed(value):
    return Is(value, "")


def _with_threads(k):
    with lk.threads(k):
        pass


def _weights(rng, p):
    draw = lambda *shape: (0.3 * rng.normal(size=shape)).astype(np.float32)  # noqa: E731
    wide = {"W1.mu_D": draw(T * PSI, 8), "W1.mu_f": draw(T * PSI, 8), "W1.theta": draw(p, 8), "W2": draw(8, 4)}
    return {**wide, "W3": draw(4, p), "b1": draw(8), "b2": draw(4), "b3": draw(p)}


def rows():
    """{name: (function, {argument: Is})}, made anew at every call."""
    rng = np.random.default_rng(0)
    X, y, y2 = rng.normal(size=(N, D)), np.arange(N) % C, np.arange(N) % 2
    cells, sets = rng.integers(0, PSI, (N, T)), np.stack([rng.permutation(N)[:20] for _ in range(2)])
    packed, partitions = lk.pack_cells(cells, PSI), lk.Partitions.sample(X, T, PSI, 0)
    seeds, table = rng.normal(size=(T, PSI, D)), {}

    def store():
        return {"packed": Is(packed.copy(), "packed"), "t": count(T, 2**70), "psi": count(PSI, 4097, 2)}

    def labelled(labels=y, n_classes=C, least=2, most=2**70):
        return {"y": ints(labels, n_classes), "n_classes": count(n_classes, most, least)}

    def linear(nan=True):
        return {"X": rows_(X.copy(), nan), "y": ints(y2, 2)}

    def pairs():
        return {"ids": ints(sets, N), "n_forget": ints([1, 3], 20), "lam": number(0.1), "tol": number(1e-8)}

    by_class = {**labelled(least=1), "sign": Is(1, "sign"), "out": out(np.zeros((C, T, PSI), np.int64))}
    where = {"X": rows_(X), "partitions": Is(partitions, "partitions")}
    table["assign_cells"] = lk.assign_cells, {**where, "out": out(np.zeros((N, T), np.uint8))}
    table["cell_counts"] = lk.cell_counts, {**where, **by_class}
    stored = {"cells": ints(cells, PSI), "psi": count(PSI, 4097, 2)}
    table["counts_from_cells"] = lk.counts_from_cells, {**stored, **by_class}
    table["pack_cells"] = lk.pack_cells, stored
    table["one_hot"] = lk.one_hot, stored
    table["unpack_cells"] = lk.unpack_cells, store()
    table["bits_per_cell"] = lk.bits_per_cell, {"psi": count(PSI, 4097, 2)}
    table["packed_width"] = lk.packed_width, {"t": count(T, 2**70), "psi": count(PSI, 4097, 2)}
    few = {"n_partitions": count(T, 10**9), "n_seeds": count(PSI, 4097, 2)}
    table["sample_row_ids"] = lk.sample_row_ids, {"n": count(N, 2**70, PSI), **few}
    table["Partitions"] = lk.Partitions.sample, {"X": rows_(X, nan=False), **few}  # of the rows drawn
    drawn = {"seeds": rows_(seeds), "row_ids": ints(sets.ravel()[: T * PSI].reshape(T, PSI), 2**63)}
    standard = {"mean": Is(np.zeros(D), "scales"), "scale": Is(np.ones(D), "scales")}
    table["Partitions.from_seeds"] = lk.Partitions.from_seeds, {**drawn, **standard}
    chosen = {**store(), "ids": ints(sets[0], N), **labelled(least=1), "bits": count(2, 17, 2)}
    table["count_rows"] = lk.count_rows, chosen
    table["count_sets"] = lk.count_sets, {**chosen, "bounds": ints([[0, 5], [5, 20]], 21)}
    table["threads"] = _with_threads, {"k": count(1, 2**20)}

    p, many = D + 1, C * (D + 1)
    steps = {"max_steps": count(5, 2**70, 0)}
    table["logistic_fit_pairs"] = lk.logistic_fit_pairs, {**linear(), **pairs(), **steps}
    table["softmax_fit_pairs"] = lk.softmax_fit_pairs, {"X": rows_(X), **labelled(), **pairs(), **steps}
    for kind, size, data in (("logistic", p, linear), ("softmax", many, lambda: {"X": rows_(X.copy()), **labelled()})):
        at = lambda size=size: {"theta": floats(0.1 * np.ones(size))}  # noqa: E731
        outs = {"gradient_out": out(np.zeros(size)), "hessian_out": out(np.zeros((size, size)))}
        heavy = {"weights": floats(np.ones(N))}
        table[f"{kind}_sums"] = getattr(lk, f"{kind}_sums"), {**data(), **at(), **heavy, **outs}
        table[f"{kind}_gradient"] = getattr(lk, f"{kind}_gradient"), {**data(), **at()}
        table[f"{kind}_loss"] = getattr(lk, f"{kind}_loss"), {**data(), **at()}
        without = {name: value for name, value in data().items() if name != "y"}
        table[f"{kind}_hvp"] = getattr(lk, f"{kind}_hvp"), {**without, **at(), "v": floats(np.ones(size))}

    size = lk.mlp_size(D, H, C)
    table["mlp_size"] = lk.mlp_size, {"d": count(D, 2**70), "h": count(H, 2**70), "n_classes": count(C, 2**70, 2)}
    net = {"h": count(H, 2**70), "activation": Is("tanh", "name")}
    theta, theta2 = floats(0.1 * np.ones(size)), floats(0.1 * np.ones(lk.mlp_size(D, H)))
    data = {"X": rows_(X, nan=False), **labelled(), **net}
    some = {"weights": floats(np.ones(N)), "ids": ints(sets[0], N)}
    table["mlp_sums"] = lk.mlp_sums, {**data, "theta": theta, **some, "gradient_out": out(np.zeros(size))}
    table["mlp_gradient"] = lk.mlp_gradient, {**data, "theta": theta}
    table["mlp_logits"] = lk.mlp_logits, {k: v for k, v in data.items() if k != "y"} | {"theta": theta}
    table["mlp_hvp"] = lk.mlp_hvp, {**data, "theta": theta, "v": theta, "weights": some["weights"]}
    table["mlp_hessian"] = lk.mlp_hessian, {**linear(nan=False), **net, "theta": theta2, **some}
    recipe = {"lam": number(0.1), "rate": number(0.01), "epochs": count(2, 10**9), "batch": count(8, 2**70)}
    recipe |= {"tol": number(1e-3), "max_steps": count(2, 2**70, 0)}
    training = {"X": Is(X, "float32 rows"), **labelled(), **net, **recipe, "start": theta}
    table["mlp_train"] = lk.mlp_train, {**training, "ids": ints(sets[:1], N)}
    later = {"epochs_retained": count(1, 10**9, 0), "rate_retained": number(0.01)}
    table["mlp_fit_pairs"] = lk.mlp_fit_pairs, {**training, **later, "ids": ints(sets, N), "n_forget": ints([1, 3], 20)}
    asked = {"forget_ids": ints([1, 2, 5], N), "forget_starts": ints([0, 1, 3], 4), "mu": number(1.0)}
    asked |= {"theta": theta, "anchor": theta, "inverse_hessian": floats(np.eye(size)), "tol": number(1e-3), **steps}
    table["mlp_anchored_pairs"] = lk.mlp_anchored_pairs, {**data, **asked}

    weights = _weights(rng, p)
    layers = {name: Is(value, "rows" if value.ndim == 2 else "floats") for name, value in weights.items()}
    sizes = {"t": count(T, 2**70), "psi": count(PSI, 4097, 2)}
    table["DirectForward"] = lambda t, psi, **own: lk.DirectForward(own, t, psi), {**layers, **sizes}
    forward = lk.DirectForward(weights, T, PSI)
    forward.set_base(lk.counts_from_cells(cells, PSI), N, np.ones(p))
    counts, answer, wish = ints(lk.counts_from_cells(cells[:5], PSI), 2**62), out(np.zeros(p)), floats(np.ones(p))
    for r in (2, 20):
        taken = {"packed": Is(packed.copy(), "packed"), "ids": ints(sets[0][:r], N)}
        left = {**taken, "n_left": fixed(N - r)}
        table[f"DirectForward() {r}"] = forward.__call__, {**taken, "out": answer, "bits": count(2, 17, 2)}
        table[f"DirectForward.move {r}"] = forward.move, {**left, "out": answer}
        table[f"DirectForward.forget {r}"] = forward.forget, {**left, "theta": wish}
    table["DirectForward.from_counts"] = forward.from_counts, {"counts": counts, "r": count(5, 2**70), "out": answer}
    table["DirectForward.set_base"] = forward.set_base, {"counts": counts, "n": fixed(N), "theta": wish}

    descent = Descent(X, y2, "lr")
    table["Descent"] = (
        Descent,
        {**linear(nan=False), "lam": floats(np.ones(p), scalar=True), "centre": floats(np.zeros(p))},
    )
    run = {"ids": ints(sets[0], N), "starts": ints([0, 8, 20], 21), "order": ints([0, 1, 0], 2)}
    run |= {"rates": floats([0.1] * 3, scalar=True), "weights": floats(np.ones(N))}
    trace = descent.train(np.zeros(p), sets[0], [0, 8, 20], [0, 1, 0], 0.1, trace=True)
    way = {"start": floats(np.zeros(p)), "extra": ints([[0, 2]] * 3, 21), "extra_weight": number(0.5, -np.inf)}
    way |= {"keep": number(0.5), "restart": count(0, 2**70, 0), "workers": count(1, 10**6)}
    table["Descent.train"] = descent.train, {**run, **way}
    delta = {"trace": fixed(trace), "forget": ints([1, 4], 20), "limit": number(0.0), "hessian": floats(np.eye(p))}
    delta |= {"memory": count(2, 10**6, 0), "burn_in": count(1, 2**70, 0), "period": count(2, 2**70)}
    table["Descent.replay"] = descent.replay, {**run, **delta}
    noise = {"start": rows_(X, nan=False), "labels": ints(y2, 2), "theta": floats(np.ones(p))}
    noise |= {"steps": count(2, 10**9, 0), "rate": number(0.1), "penalty": number(0.1)}
    table["error_noise"] = error_noise, noise
    return table


def valid(row):
    """{argument: value}."""
    return {name: copy.deepcopy(argument.value) for name, argument in row[1].items()}


def spoilt(row, name):
    """(how, arguments with that one spoilt) in every way."""
    argument, values = row[1][name], valid(row)
    for how, value in _ways(argument, values, name):
        yield how, {**valid(row), name: value} if how != "shared" else value


def _ways(argument, values, name):
    value, kind = argument.value, argument.kind
    if kind in ("rows", "float32 rows", "ints", "floats", "scales", "packed"):
        yield from (way for way in _arrays(value) if not (argument.scalar and way[0] == "a number"))
    if kind in ("rows", "float32 rows", "scales") and argument.nan:
        for how, wrong in (("NaN", np.nan), ("infinite", np.inf)):
            yield how, _changed(value, wrong)
    if kind == "float32 rows":
        yield "too large for float32", _changed(value, 1e39)
    if kind == "scales":
        yield "huge", _changed(value, 1e300)
    if kind == "scales" and name == "scale":
        for wrong in (0.0, -1.0, 1e-320, 1e-300):
            yield f"scale {wrong}", _changed(value, wrong)
    if kind in ("floats", "scales"):
        yield "one short", value[:-1]
    if kind == "ints":
        yield "negative", _changed(value, -1)
        yield "of floats", value.astype(float)
        yield "NaN", _changed(value.astype(float), np.nan)
        yield "huge", _changed(value.astype(np.uint64), 2**63 + 1)
        yield "most negative", _changed(value, -(2**63))
        if argument.bound < 2**62:
            yield "beyond", _changed(value, argument.bound)
    if kind == "packed":
        yield "cells beyond psi", np.full_like(value, 0xFF)
        yield "signed", value.astype(np.int8)
        yield "too wide", np.hstack([value, value])
    if kind == "out":
        yield from _outs(value, values, name)
    if kind == "count":
        wrongs = (argument.least - 1, -(2**70), argument.bound, 1.5, np.nan, "4", [2], 2j)
        yield from ((f"{wrong!r}", wrong) for wrong in wrongs)
    if kind == "number":
        wrongs = (np.nan, np.inf, "x", [1.0, 2.0], 1j, *([] if argument.least == -np.inf else [-1.0]))
        yield from ((f"{wrong!r}", wrong) for wrong in wrongs)
    if kind == "sign":
        yield from ((f"{wrong!r}", wrong) for wrong in (0, 2, None, np.nan, "+"))
    if kind == "name":
        yield from ((f"{wrong!r}", wrong) for wrong in ("sine", 3, ["tanh"], None))
    if kind == "partitions":
        yield from ((type(wrong).__name__, wrong) for wrong in (value.seeds, 3))


def _changed(value, wrong):
    value = value.copy()
    value.flat[value.size // 2] = wrong
    return value


def _arrays(value):
    """What no array of numbers may be."""
    yield "masked", np.ma.masked_array(value, np.arange(value.size).reshape(value.shape) == 1)
    yield "objects", value.astype(object)
    yield "complex", value.astype(complex)
    yield "dates", np.zeros(value.shape, "M8[s]")
    yield "text", value.astype(str)
    yield "another dimension", value[None, None]
    yield "a number", np.float64(1)


def _outs(value, values, name):
    yield "read-only", np.broadcast_to(value[:1], value.shape)
    yield "self-overlapping", np.lib.stride_tricks.as_strided(value.copy(), value.shape, (0,) * value.ndim)
    if value.ndim > 1:
        windows = np.zeros(value.size + 1, value.dtype)
        strides = (*value.strides[:-2], value.itemsize, value.itemsize)
        yield "windows", np.lib.stride_tricks.as_strided(windows, value.shape, strides)
    yield "another type", value.astype(np.float32)
    yield "another shape", np.zeros((*value.shape, 1), value.dtype)
    yield "a list", value.tolist()
    yield "masked", np.ma.masked_array(value)
    for other, read in values.items():
        if other != name and isinstance(read, np.ndarray) and read.nbytes >= value.nbytes and read.flags.c_contiguous:
            own = {**values, other: read.copy()}
            own[name] = np.ndarray(value.shape, value.dtype, own[other])
            yield "shared", own
