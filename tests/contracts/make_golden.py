"""Golden values: what kernels, stand-ins, draws and fits give at fixed seeds; `compute()` is used by test_locks.py.

    python tests/contracts/make_golden.py [PART ...]     records these parts of golden.json anew, and entries it lacks

Kernels, data and fits were recorded on commit 6aae32e, requests with the heads that came after it. A value that is
recorded anew is a change of behaviour: say so in the commit. Integers must be equal bit for bit. Floats are
compared relative to the largest entry: another order of compilation may fuse multiplications and additions elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from l2ul_fast import L2UL
from l2ul_fast.datasets import train_mask
from l2ul_fast.datasets.standin.rows import generate
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner import RetrainInstead
from l2ul_fast.unlearner.pairs import plan as draw
from l2ul_kernels import (
    Partitions,
    assign_cells,
    bits_per_cell,
    cell_counts,
    logistic_fit_pairs,
    mlp_gradient,
    mlp_hessian,
    mlp_hvp,
    mlp_logits,
    mlp_size,
    mlp_train,
    pack_cells,
    packed_width,
    sample_row_ids,
    softmax_fit_pairs,
)
from l2ul_kernels.codegen.llvm import VECTOR_BYTES
from l2ul_kernels.sgd import shuffle

PATH = Path(__file__).with_name("golden.json")
EXACT, ADAM = 1e-9, 1e-2
#: (rows, columns, partitions, seeds per partition); the psi lie on both sides of every width of a packed cell.
SHAPES = ((700, 3, 7, 2), (700, 10, 9, 4), (500, 28, 6, 16), (300, 89, 3, 64), (600, 5, 2, 300))
#: Rows of both requests; none is an anchor row of the MLP, which would move its anchor.
REQUESTS = ([7], list(range(21, 31)))
STANDINS = ("magic", "adult", "sepsis", "skin", "covtype", "susy", "higgs")


def digest(*arrays: Any) -> str:
    """SHA-256 of types, shapes and bytes."""
    h = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        h.update(f"{array.dtype.str}{array.shape}".encode())
        h.update(array.tobytes())
    return h.hexdigest()


def floats(values: Any, rel: float = EXACT) -> dict[str, Any]:
    """Numbers, and how far from them a result may be, in units of the largest."""
    return {"rel": rel, "values": np.asarray(values, np.float64).ravel().tolist()}


def normal_rows(n: int, d: int, dtype: Any, seed: int) -> Any:
    """Rows X (n, d)."""
    return np.random.default_rng([71, seed]).normal(size=(n, d)).astype(dtype)


def labelled(n: int, d: int, classes: int) -> tuple[Any, Any]:
    """X (n, d) float64 and noisy linear classes y (n,) uint8."""
    rng = np.random.default_rng([72, classes])
    X = rng.normal(size=(n, d))
    return X, (X @ rng.normal(size=(d, classes)) + rng.normal(size=(n, classes))).argmax(axis=1).astype(np.uint8)


def kernels() -> dict[str, Any]:
    """Seeds, cells, counts and packed cells."""
    found: dict[str, Any] = {}
    for n, d, t, psi in SHAPES:
        found[f"sample_row_ids n={n} t={t} psi={psi}"] = digest(sample_row_ids(n, t, psi, 3))
        found[f"packing t={t} psi={psi}"] = [bits_per_cell(psi), packed_width(t, psi)]
        for dtype in ("float32", "float64"):
            X = normal_rows(n, d, dtype, psi)
            partitions = Partitions.sample(X, t, psi, random_state=psi)
            cells = assign_cells(X, partitions)
            name = f"d={d} t={t} psi={psi} {dtype}"
            found[f"seeds {name}"] = digest(partitions.seeds, partitions.row_ids)
            found[f"assign_cells {name}"] = digest(cells)
            found[f"cell_counts {name}"] = digest(cell_counts(X, partitions))
            found[f"pack_cells {name}"] = digest(pack_cells(cells, psi))
    return found


def data() -> dict[str, Any]:
    """Stand-in rows, the split, shuffled numbers, draws of pairs and requests."""
    found: dict[str, Any] = {}
    for name in STANDINS:
        X, y = generate(name, 50, 450, 2000, seed=3)
        found[f"stand-in {name} y"] = digest(y)
        found[f"stand-in {name} rows"] = {"width": digest(X)}
        found[f"stand-in {name} means"] = floats(X.mean(axis=0, dtype=np.float64), 1e-6)
    for seed in (0, 7):
        found[f"train_mask seed={seed}"] = digest(train_mask(0, 70_000, seed), train_mask(123, 4567, seed))
    ids = np.arange(1000)
    shuffle.shuffle(ids, 5, 2)
    found["shuffle"] = digest(ids)
    X, y = labelled(800, 4, 3)
    for name, how in {
        "": {},
        " robust": {"robust": True},
        " forget_max": {"forget_max": 40},
        " shapes": {"shapes": {"random": 0.5, "one class": 0.5}},
    }.items():
        found[f"draw_pairs{name}"] = drawn(*draw.draw_pairs(800, y, 12, 60, X=X, random_state=[9, 1], **how))
        plan = draw.plan_pairs(800, y, 12, 60, random_state=[9, 1], **how)
        found[f"plan_pairs{name}"] = [*drawn(plan.n_forget, plan.class_sizes, plan.kinds), plan.seed]
    found["draw_forget_sets"] = drawn(*draw.draw_forget_sets(800, y, 12, X=X, random_state=[9, 2]))
    for kind in ("random", "one class", "one cluster", "half-space"):
        found[f"request {kind}"] = digest(draw.request(kind, 20, X, y, np.random.default_rng(4)))
    return found


def drawn(*arrays: Any) -> list[str]:
    """Digests; names as text, whose width depends on the longest."""
    return [digest(np.array(a, "U16") if np.asarray(a).dtype.kind == "U" else a) for a in arrays]


def fits() -> dict[str, Any]:
    """theta of seeded fits, and of requests."""
    found: dict[str, Any] = {}
    X, y = labelled(600, 4, 2)
    X3, y3 = labelled(600, 4, 3)
    rng = np.random.default_rng(6)
    ids = np.stack([rng.choice(600, 150, replace=False) for _ in range(3)])
    forget = np.array([1, 10, 40])
    for dtype in ("float32", "float64"):
        both = logistic_fit_pairs(X.astype(dtype), y, ids, forget, 1e-2, tol=1e-12)
        found[f"logistic_fit_pairs {dtype}"] = floats(np.concatenate(both[:2]))
    found["softmax_fit_pairs"] = floats(np.concatenate(softmax_fit_pairs(X3, y3, ids, forget, 1e-2, 3, tol=1e-12)[:2]))
    found["logistic theta"] = floats(LogisticModel(4).fit(ArrayTable(X, y, [0, 1]), tol=1e-12).theta)
    found["softmax theta"] = floats(LogisticModel(4, 3).fit(ArrayTable(X3, y3, [0, 1, 2]), tol=1e-12).theta)
    mlp = MLPModel(4, h=3, lam=0.03)
    start = mlp.start(2)
    found["mlp start"] = floats(start)
    theta = mlp.fit(ArrayTable(X, y, [0, 1]), start=start, tol=1e-12).theta
    found["mlp theta"] = floats(theta)
    anchor = mlp.train_anchor(X[:200], y[:200], seed=1, seeds=2, tol=1e-10)
    model, fit = mlp.fit_anchored(ArrayTable(X, y, [0, 1]), anchor)
    found["mlp anchored loss, grid"] = floats([model.loss(fit.theta, X, y), model.mu], 1e-6)
    with mock.patch("l2ul_fast.models.mlp.ANCHOR_WIDTH", 2.0**-40):  # anchors and strengths of before there was a grid
        anchor = mlp.train_anchor(X[:200], y[:200], seed=1, seeds=2, tol=1e-10)
    model, fit = mlp.fit_anchored(ArrayTable(X, y, [0, 1]), anchor, strengths=(5e-3, 1e-2, 2e-2, 4e-2))
    found["mlp anchored loss"] = floats([model.loss(fit.theta, X, y), model.mu], 1e-6)
    point = np.random.default_rng(8).normal(size=mlp_size(4, 3))
    vector = np.random.default_rng(9).normal(size=point.size)
    some = {"h": 3, "activation": "tanh"}
    found["mlp_gradient"] = floats(mlp_gradient(X, y, point, **some))
    found["mlp_logits"] = floats(mlp_logits(X[:20], point, **some))
    found["mlp_hessian"] = floats(mlp_hessian(X, y, point, **some))
    found["mlp_hvp"] = floats(mlp_hvp(X, y, point, vector, **some))
    starts = np.stack([start, mlp.start(3)])
    trained = mlp_train(X.astype(np.float32), y, starts, h=3, lam=1e-2, epochs=5, seed=4)
    found["mlp_train Adam"] = floats(trained, ADAM)
    return found


def requests() -> dict[str, Any]:
    """theta of an unlearner after fit, after one row and after ten more; of the same fit without these rows; cells."""
    found: dict[str, Any] = {}
    X, y = labelled(600, 4, 2)
    X3, y3 = labelled(600, 4, 3)
    sizes = {"psi": 4, "t": 8, "m": 20, "s": 100, "random_state": 3}
    for name, options, rows, labels, rel in (
        ("lr", {}, X, y, EXACT),
        ("lr float32", {}, X.astype(np.float32), y, EXACT),
        ("lr order 2", {"order": 2}, X, y, EXACT),
        ("lr optimum", {"anchor": "optimum"}, X, y, EXACT),
        ("lr learned", {"head": "learned"}, X, y, 1e-6),
        ("lr kme", {"head": "kme"}, X, y, 1e-5),
        ("multinomial", {}, X3, y3, 1e-7),
        ("multinomial kme", {"head": "kme"}, X3, y3, 1e-5),
        ("mlp", {"model": "mlp", "hidden": 3, "anchor_rows": 60}, X, y, 1e-5),
    ):
        u = L2UL(**(sizes | options)).fit(rows, labels)
        start = u.theta.copy()
        seen, retrained = [start], []
        for request in REQUESTS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RetrainInstead)  # kme knows how far off it is
                u.unlearn(request)
            seen.append(u.theta.copy())
            retrained.append(u.model.fit(u.retained(), start=start, tol=1e-12).theta)
        found[f"L2UL {name} theta"] = floats(seen, rel)
        found[f"L2UL {name} retrained"] = floats(retrained, max(rel, 1e-7))
        found[f"L2UL {name} n"] = u.n
        if options.get("head") == "kme":
            found[f"L2UL {name} counts"] = digest(u.head.cells.counts, u.head.cells.packed)
    return found


def compute() -> dict[str, Any]:
    """Everything that golden.json holds."""
    parts = {"kernels": kernels(), "data": data(), "fits": fits(), "requests": requests()}
    return {"vector_bytes": VECTOR_BYTES, **parts}


def record(parts: list[str]) -> None:
    """Rewrite golden.json: all of `parts`, and what it has no value for."""
    made, known = compute(), json.loads(PATH.read_text())
    lines = [f' "vector_bytes": {known["vector_bytes"]}']
    for part in ("kernels", "data", "fits", "requests"):
        values = made[part] if part in parts else made[part] | known[part]
        inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
        lines.append(f' "{part}": {{\n{inner}\n }}')
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{PATH.name}: {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    record(sys.argv[1:])
