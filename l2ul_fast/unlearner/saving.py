"""An unlearner to and from its artifact directory."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import DataError
from l2ul_fast.tables import FileTable
from l2ul_fast.unlearner.artifact import load_artifact, read_ledger, save_artifact
from l2ul_fast.unlearner.cellstate import CellState
from l2ul_fast.unlearner.learned import Learned
from l2ul_fast.unlearner.ledger import decode_rows
from l2ul_fast.unlearner.newton_step import NewtonStep
from l2ul_fast.unlearner.notes import Notes
from l2ul_fast.unlearner.pairs import Pairs
from l2ul_fast.unlearner.ridge import RidgeHead
from l2ul_fast.unlearner.steps import AnchoredStep, DirectStep, LinearStep, Step
from l2ul_fast.unlearner.store import ArrayStore, FileStore, NoStore
from l2ul_kernels import Partitions, assign_cells, pack_cells, packed_width
from l2ul_kernels.request import FOREIGN, FORGOTTEN, PRESENT

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

Arrays = dict[str, NDArray[Any]]
#: Rows of a data file that are looked at when an unlearner is loaded.
SAMPLE = 100
_PAIRS = ("rows", "starts", "n_forget", "n", "theta", "theta_r", "Z", "T")


def save(u: L2UL, directory: Path) -> None:
    """Write everything, all or nothing. Later saves of one object to one directory build on the earlier ones."""
    arrays: Arrays = {
        "theta": u.theta, "forgotten": np.flatnonzero(u.gone == FORGOTTEN),
        "foreign": np.packbits(u.gone == FOREIGN), "packed": u.cells.packed, "counts": u.cells.counts,
        "seeds": np.asarray(u.cells.partitions.seeds), "seed_rows": np.asarray(u.cells.partitions.row_ids),
    }  # fmt: skip
    groups: dict[str, list[str]] = {"cells": ["packed"]}
    arrays |= _model_arrays(u.model) | _step_arrays(u.step)
    learned = u.learned
    if learned.metric is not None:
        arrays["learned.metric"] = learned.metric
    if learned.pairs is not None:
        pairs = {f"pairs.{name}": getattr(learned.pairs, name) for name in _PAIRS}
        arrays |= pairs
        groups["pairs"] = list(pairs)
    if learned.head is not None:
        arrays |= {f"head.{name}": value for name, value in learned.head.arrays().items()}
    if learned.weights is not None:
        arrays |= {f"weights.{name}": value for name, value in learned.weights.items()}
    data: dict[str, Any]
    if isinstance(u.store, ArrayStore):
        data = {"kind": "arrays"}
        arrays |= {"X": u.store.X, "y": u.store.y}
        groups["rows"] = ["X", "y"]
    elif isinstance(u.store, FileStore):
        data = {"kind": "file", **u.store.reference()}
    else:
        data = {"kind": "none", "dtype": u.store.dtype.name}
        arrays |= {"digests": u.store.digests, "digest_key": u.store.key}
    facts = {
        "params": u.params, "n": u.n, "d": u.d, "rows": int(u.gone.size), "classes": u.classes_, "label": u.label,
        "data": data, "report": u.report_, "largest": learned.largest, "reach": learned.reach,
        "rejected": 0 if learned.pairs is None else learned.pairs.rejected,
        "full_pairs": learned.pairs is not None and learned.pairs.full, "step": type(u.step).__name__,
        "class_counts": u.class_counts.tolist(), "mu": getattr(u.model, "mu", None),
    }  # fmt: skip
    if directory.resolve() == u.saved_to:
        u.generation = save_artifact(directory, facts, arrays, groups=groups, ledger_entry=u.entries, base=u.generation)
        u.history += u.entries
    else:  # a new place gets the whole history
        history = [*u.history, *u.entries]
        u.generation = save_artifact(directory, facts, arrays, groups=groups, ledger_entry=history)
        u.history, u.saved_to = history, directory.resolve()
    u.entries = []


def _model_arrays(model: Any) -> Arrays:
    anchor = getattr(model, "anchor", None)
    return {} if anchor is None else {"model.anchor": np.asarray(anchor)}


def _step_arrays(step: Step) -> Arrays:
    if isinstance(step, NewtonStep):
        parts = {"anchor": step.anchor, "curvature": step.curvature, "correction": step.correction}
        return {f"step.{name}": np.ascontiguousarray(part) for name, part in parts.items()}
    if isinstance(step, AnchoredStep):
        return {"step.W": np.ascontiguousarray(step.W), "step.anchor_rows": step.anchor_rows}
    if isinstance(step, LinearStep):
        return {"step.W": np.ascontiguousarray(step.W)}
    return {}


def load(cls: type[L2UL], directory: Path, data: str | Path | None) -> L2UL:
    """Read and check everything that `save` wrote."""
    facts, arrays = load_artifact(directory)
    try:
        return _build(cls, directory, facts, arrays, data)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{directory} cannot be used: it lacks or garbles {error}; fit again") from error


def _build(cls: type[L2UL], directory: Path, facts: dict[str, Any], arrays: Arrays, data: Any) -> L2UL:
    params = dict(facts["params"])
    u = cls(params.pop("model"), **params)
    u.n, u.d, u.classes_, u.label = int(facts["n"]), int(facts["d"]), list(facts["classes"]), str(facts["label"])
    u.report_ = facts["report"]
    u.notes = Notes(arrays["theta"])
    u.class_counts = np.array(facts["class_counts"], np.int64)
    u.gone = np.full(int(facts["rows"]), PRESENT, np.uint8)
    u.gone[np.unpackbits(arrays["foreign"], count=u.gone.size).astype(bool)] = FOREIGN
    u.gone[arrays["forgotten"]] = FORGOTTEN
    u.model = _model(u, facts, arrays)
    partitions = Partitions.from_seeds(arrays["seeds"], arrays["seed_rows"])
    u.cells = CellState(partitions, np.array(arrays["packed"]), np.array(arrays["counts"]))
    if u.cells.counts[:, 0].sum() != u.n or (u.gone == PRESENT).sum() != u.n:
        raise DataError(f"{directory} cannot be used: its counts do not add up to {u.n} rows")
    u.learned = _learned(facts, arrays)
    u.store = _store(facts, arrays, u, data)
    u.step = _step(u, facts, arrays)
    _check_shapes(u)
    if isinstance(u.store, FileStore):
        _check_rows_are_the_same(u, u.store)
    ledger = read_ledger(directory)
    u.history, u.entries = list(ledger.entries), []
    u._log = _forget_log(u.history, u.gone.size)
    u.saved_to, u.generation = directory.resolve(), int(facts["generation"])
    return u


def _check_shapes(u: L2UL) -> None:
    """ValueError where arrays do not fit each other: compiled code trusts them."""
    rows, p, C, cells = u.gone.size, u.model.size, len(u.classes_), u.cells
    wanted: list[tuple[str, Any, tuple[int, ...]]] = [
        ("theta", u.theta, (p,)), ("packed", cells.packed, (rows, packed_width(cells.t, cells.psi))),
        ("counts", cells.counts, (C, cells.t, cells.psi)), ("class_counts", u.class_counts, (C,)),
        ("seeds", cells.partitions.seeds, (cells.t, cells.psi, u.d)),
    ]  # fmt: skip
    square = (("anchor", (p,)), ("curvature", (p, p)), ("W", (p, p)))
    wanted += [(name, getattr(u.step, name), shape) for name, shape in square if hasattr(u.step, name)]
    if isinstance(u.store, ArrayStore):
        wanted += [("X", u.store.X, (rows, u.d)), ("y", u.store.y, (rows,))]
    elif isinstance(u.store, NoStore):
        wanted.append(("digests", u.store.digests, (rows,)))
    for name, array, shape in wanted:
        if array.shape != shape:
            raise ValueError(f"{name}, which has shape {array.shape} instead of {shape}")
    if isinstance(u.store, ArrayStore) and u.store.y.max() >= C:
        raise ValueError("y, which has labels of other classes")


def _check_rows_are_the_same(u: L2UL, store: FileStore) -> None:
    """Rows of the data file must lie in the cells that were stored for them: notices a file in another order."""
    present = np.flatnonzero(u.gone == PRESENT)
    some = present[:: max(1, present.size // SAMPLE)]
    cells = pack_cells(assign_cells(store.fetch(some)[0], u.cells.partitions), u.cells.psi)
    if (cells != u.cells.packed[some]).any():
        raise DataError(
            "the data file holds other rows, or in another order, than when this model was fitted: fit again"
        )


def _forget_log(history: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """The requests since the latest fit, as `unlearn` would have noted them."""
    log: list[dict[str, Any]] = []
    for e in history:
        if e["action"] == "fit":
            log = []
        elif e["action"] == "unlearn":
            moment = datetime.fromisoformat(e["time"]).timestamp()
            log.append({"rows": decode_rows(e["rows"], size), "n": e["n"], "time": moment})
    return log


def _model(u: L2UL, facts: dict[str, Any], arrays: Arrays) -> Any:
    from l2ul_fast.models import LogisticModel, MLPModel

    p = u.params
    if p["model"] == "lr":
        return LogisticModel(u.d, len(u.classes_), p["lam"])
    anchor = arrays.get("model.anchor")
    return MLPModel(
        u.d, len(u.classes_), h=p["hidden"], activation=p["activation"], lam=p["lam"], anchor=anchor, mu=facts["mu"]
    )


def _learned(facts: dict[str, Any], arrays: Arrays) -> Learned:
    learned = Learned(float(facts["largest"]), float(facts["reach"]), arrays.get("learned.metric"))
    if "pairs.rows" in arrays:
        held = {name: arrays[f"pairs.{name}"] for name in _PAIRS}
        learned.pairs = Pairs(**held, rejected=int(facts["rejected"]), full=bool(facts["full_pairs"]))
    if "head.W" in arrays:
        learned.head = RidgeHead.from_arrays({k[5:]: v for k, v in arrays.items() if k.startswith("head.")})
    weights = {k[8:]: v for k, v in arrays.items() if k.startswith("weights.")}
    learned.weights = weights or None
    return learned


def _step(u: L2UL, facts: dict[str, Any], arrays: Arrays) -> Step:
    kind = facts["step"]
    if kind == "NewtonStep":
        correction = arrays["step.correction"]
        curvature = np.array(arrays["step.curvature"])
        return NewtonStep(u.model, arrays["step.anchor"], curvature, u.n, correction if correction.size else None)
    if kind == "LinearStep":
        return LinearStep(u.model, arrays["step.W"])
    if kind == "AnchoredStep":
        return AnchoredStep(u.model, arrays["step.W"], arrays["step.anchor_rows"], u.gone.size, u.store.fetch)
    if kind == "DirectStep" and u.learned.weights is not None:
        return DirectStep(u.model, u.learned.weights, u.cells, u.theta, u.n)
    raise DataError(f"the saved head is of an unknown kind ({kind}): fit again")


def _store(facts: dict[str, Any], arrays: Arrays, u: L2UL, data: Any) -> ArrayStore | FileStore | NoStore:
    reference = facts["data"]
    if reference["kind"] == "none":
        return NoStore(arrays["digests"], arrays["digest_key"], np.dtype(reference["dtype"]))
    if reference["kind"] == "arrays":
        return ArrayStore(np.array(arrays["X"]), np.array(arrays["y"]))
    paths = [str(data)] if data is not None else list(reference["paths"])
    try:
        table = FileTable(paths, reference["part"])
    except DataError as error:
        raise DataError(f"the data file of this model cannot be used ({error}); say where it is with --data") from error
    store = FileStore(table)
    if store.reference()["fingerprint"] != reference["fingerprint"]:
        table.close()
        raise DataError(f"{paths[0]} is not the file this model was fitted on (other rows): restore it, or fit again")
    return store
