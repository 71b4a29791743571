"""Public functions of l2ul_kernels: one sound argument or two replaced by odd arrays and numbers, given as expressions.

Memory behind arrays is watched: every `out` lies inside a larger array, whose rest must not change.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import numpy as np
from engine import Lie
from hypothesis import strategies as st
from strange import listed

ROOM = "kernels/l2ul_kernels"
MODULES = (
    f"{ROOM}/validate.py",
    f"{ROOM}/voronoi/partitions.py",
    f"{ROOM}/voronoi/pack.py:pack_cells,unpack_cells,one_hot",
    f"{ROOM}/voronoi/subsets.py:count_sets,count_rows,_run_sets",
    f"{ROOM}/voronoi/assign.py:assign_cells",
    f"{ROOM}/voronoi/counts.py:_check_classes,_check_counts,cell_counts,counts_from_cells",
)
#: Function -> its arguments when they are sound.
CALLS = {
    "Partitions.sample": "X n_partitions=5 n_seeds=4 random_state=0",
    "Partitions.from_seeds": "seeds row_ids=row_ids mean=np.zeros(3) scale=np.ones(3)",
    "assign_cells": "X P out=out",
    "cell_counts": "X P y=y n_classes=2 out=counts sign=1",
    "counts_from_cells": "cells psi=4 y=y n_classes=2 out=counts sign=1",
    "one_hot": "cells psi=4 dtype=np.float32",
    "pack_cells": "cells psi=4",
    "unpack_cells": "packed t=5 psi=4",
    "sample_row_ids": "n=60 n_partitions=5 n_seeds=4 random_state=0",
    "count_rows": "packed ids t=5 psi=4 y=y n_classes=2 bits=2",
    "count_sets": "packed ids bounds t=5 psi=4 y=y n_classes=2 bits=2",
    "bits_per_cell": "psi=4",
    "packed_width": "t=5 psi=4",
    "logistic_sums": "X y theta weights=weights gradient_out=gradient hessian_out=hessian",
    "logistic_gradient": "X y theta weights=weights",
    "logistic_loss": "X y theta",
    "logistic_hvp": "X theta vector",
    "logistic_fit_pairs": "X y pairs n_forget lam=1e-2 tol=1e-8 max_steps=30",
    "softmax_sums": "X y3 theta3 n_classes=3 weights=weights gradient_out=gradient3 hessian_out=hessian3",
    "softmax_gradient": "X y3 theta3 n_classes=3",
    "softmax_loss": "X y3 theta3 n_classes=3",
    "softmax_hvp": "X theta3 vector3 n_classes=3",
    "softmax_fit_pairs": "X y3 pairs n_forget lam=1e-2 n_classes=3 tol=1e-8 max_steps=30",
    "mlp_size": "d=3 h=2 n_classes=2",
    "mlp_sums": "X y net h=2 activation='tanh' n_classes=2 weights=weights ids=ids gradient_out=net_out",
    "mlp_gradient": "X y net h=2 activation='tanh' n_classes=2",
    "mlp_logits": "X net h=2 activation='tanh' n_classes=2",
    "mlp_hessian": "X y net h=2 activation='tanh' weights=weights ids=ids",
    "mlp_hvp": "X y net net_vector h=2 activation='tanh' n_classes=2 weights=weights",
    "mlp_train": "X y nets ids=None h=2 activation='tanh' n_classes=2 lam=1e-2 epochs=2 batch=8 max_steps=9 seed=0",
    "mlp_fit_pairs": "X y pairs n_forget net h=2 n_classes=2 lam=1e-2 epochs=2 epochs_retained=1 batch=8 seed=0",
}
#: Odd in place of an array; `a` is the sound one.
ARRAYS = listed("""
    a.astype(np.float16) | a.astype(np.float64) | a.astype(np.float32) | a.astype('>f8') | a.astype(complex) |
    a.astype(object) | a.astype(np.int8) | a.astype(np.uint64) | a.astype(np.int64) | a.astype(np.uint16) |
    a.astype(bool) | a.astype(str) | a[::-1] | a[..., ::-1] | a.T | a[:0] | a[:1] | a[1:] | a[None] | a.ravel() |
    a[..., :0] | np.asfortranarray(a) | a.tolist() | a * 0 | a * 0 - 1 | a * 0 + 3 | a * 0 + 7 | a * 0 + 255 |
    a * 0 + 65535 | a + 2**40 | a * np.nan | a * np.inf | a * 1e300 | np.broadcast_to(a[:1], a.shape) |
    np.ma.masked_array(a, a > 0) | readonly(a) | X | y | ids | out | np.repeat(a, 3, axis=0) | X.view(np.uint8) |
    np.lib.stride_tricks.as_strided(a, a.shape, [0] * a.ndim) | overlapping(a) | None | 'x' | 0 | [] | {}
""")
NUMBERS = listed("""
    0 | 1 | 2 | 3 | 5 | 8 | 16 | 17 | -1 | 255 | 256 | 4095 | 4096 | 4097 | 65535 | 65536 | 2**31 | 2**63 | -(2**70) |
    1.5 | 4.0 | np.nan | np.inf | 1e-320 | -0.0 | '4' | None | True | [4] | np.int8(4) | np.array(4) | 'tanh' |
    'relu' | 'x'
""")


@functools.cache
def prepared() -> dict[str, Any]:
    import l2ul_kernels as k

    rng = np.random.default_rng(4)
    X = rng.normal(size=(60, 3)).astype(np.float32)
    P = k.Partitions.sample(X, 5, 4, random_state=0)
    cells = k.assign_cells(X, P)
    size = k.mlp_size(3, 2)
    ids = np.arange(0, 60, 4)
    return {
        **{"X": X, "y": (np.arange(60) % 2).astype(np.uint8), "y3": (np.arange(60) % 3).astype(np.uint8), "P": P},
        **{"cells": cells, "packed": k.pack_cells(cells, 4), "seeds": P.seeds, "row_ids": P.row_ids, "ids": ids},
        **{"bounds": np.array([[0, 5], [5, 15]]), "pairs": np.arange(40).reshape(2, 20), "n_forget": np.array([2, 5])},
        **{
            "theta": rng.normal(size=4),
            "vector": rng.normal(size=4),
            "weights": np.ones(60),
            "theta3": rng.normal(size=12),
        },
        **{"vector3": rng.normal(size=12), "net": rng.normal(size=size), "net_vector": rng.normal(size=size)},
        "nets": rng.normal(size=(2, size)),
    }


#: Name -> shape and dtype of what is written to.
OUTS: dict[str, tuple[tuple[int, ...], Any]] = {
    **{
        "out": ((60, 5), np.uint8),
        "counts": ((2, 5, 4), np.int64),
        "gradient": ((4,), float),
        "hessian": ((4, 4), float),
    },
    **{"gradient3": ((12,), float), "hessian3": ((12, 12), float), "net_out": ((11,), float)},
}


def fresh() -> tuple[dict[str, Any], list[Any]]:
    """(arguments by name, copies of their own; the arrays around each `out`)."""
    held = {name: a.copy() if isinstance(a, np.ndarray) else a for name, a in prepared().items()}
    around = []
    for name, (shape, dtype) in OUTS.items():
        whole = np.full(int(np.prod(shape)) + 128, 77, dtype)
        held[name] = whole[64:-64].reshape(shape)
        held[name][:] = 0
        around.append(whole)
    return held, around


def readonly(a: Any) -> Any:
    a = a.copy()
    a.flags.writeable = False
    return a


def overlapping(a: Any) -> Any:
    """An array of this shape whose rows share memory with the next."""
    room = np.zeros(a.size + 64, a.dtype)
    strides = [a.itemsize, *([a.itemsize] * (a.ndim - 1))]
    return np.lib.stride_tricks.as_strided(room, a.shape, strides[: a.ndim])


def prepare() -> None:
    for name in CALLS:
        call(name, {})


def cases() -> Any:
    odd = st.sampled_from(ARRAYS) | st.sampled_from(NUMBERS)
    return st.fixed_dictionaries(
        {"call": st.sampled_from(tuple(CALLS)), "odd": st.dictionaries(st.integers(0, 9).map(str), odd, max_size=2)}
    )


def call(name: str, odd: dict[str, str]) -> tuple[Any, dict[str, Any], list[Any], dict[str, Any]]:
    """(result, arguments, arrays around each out, arguments by name) of a call."""
    import l2ul_kernels as k

    held, around = fresh()
    scope = {"np": np, "readonly": readonly, "overlapping": overlapping, **held}
    places, named = [], {}
    words = CALLS[name].split()
    for place, word in enumerate(words):
        key, _, text = word.rpartition("=")
        text = text if key else word
        with np.errstate(all="ignore"):
            value = eval(text, scope)  # noqa: S307
            changed = next((expression for at, expression in odd.items() if int(at) % len(words) == place), None)
            if changed is not None:
                with contextlib.suppress(Exception):  # where the expression makes nothing of this argument
                    value = eval(changed, {**scope, "a": value})  # noqa: S307
        if key:
            named[key] = value
        else:
            places.append(value)
    function = functools.reduce(getattr, name.split("."), k)
    return function(*places, **named), {str(i): v for i, v in enumerate(places)} | named, around, held


def run(case: Any, folder: Path) -> None:
    found, given, around, held = call(case["call"], case["odd"])
    for whole in around:
        if (whole[:64] != 77).any() or (whole[-64:] != 77).any():
            raise Lie(f"{case['call']} wrote outside its array")
    for name, before in prepared().items():
        if isinstance(before, np.ndarray) and not np.array_equal(held[name], before):
            raise Lie(f"{case['call']} changed its argument {name}")
    if case["call"] in ("cell_counts", "counts_from_cells", "count_rows") and isinstance(found, np.ndarray):
        cells = given.get("0")
        n = len(given["1"]) if case["call"] == "count_rows" else len(cells)
        per_partition = found.sum(axis=-1)
        per_partition = per_partition.sum(axis=0) if per_partition.ndim == 2 else per_partition
        if "out" not in CALLS[case["call"]] and not (per_partition == n).all():
            raise Lie(f"{n} rows were counted as {per_partition.tolist()}")
