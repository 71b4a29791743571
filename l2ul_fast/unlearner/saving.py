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
from l2ul_fast.unlearner.heads.base import Arrays, Head
from l2ul_fast.unlearner.heads.expansion import Expansion
from l2ul_fast.unlearner.ledger import decode_rows, theta_digest
from l2ul_fast.unlearner.store import ArrayStore, FileStore, NoStore, Store
from l2ul_kernels.request.claims import FOREIGN, FORGOTTEN, PRESENT

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

#: Rows of a data file that are looked at when an unlearner is loaded.
SAMPLE = 100


def head_class(kind: str) -> type[Head]:
    """The class of a saved head."""
    if kind == "expansion":
        return Expansion
    if kind == "secant":
        from l2ul_fast.unlearner.heads.secant import Secant

        return Secant
    if kind == "learned":
        from l2ul_fast.unlearner.heads.learned import Learned

        return Learned
    if kind == "kme":
        from l2ul_fast.unlearner.heads.kme import Kme

        return Kme
    if kind == "paper":
        from l2ul_fast.unlearner.heads.paper import Paper

        return Paper
    raise DataError(f"the saved head is of an unknown kind ({kind}): fit again")


def save(u: L2UL, directory: Path, *, defer: bool = False, request_id: str | None = None) -> None:
    """Write everything, all or nothing. Later saves of one object to one directory build on the earlier ones."""
    if not defer:
        if u.due:
            u.refresh()
        elif isinstance(u.head, Expansion):
            u.head.canonical()
    u._flush_log()
    if u.entries:
        u.entries[-1]["theta_after"] = theta_digest(u.theta)
    head = u.head
    arrays: Arrays = {
        "theta": u.theta, "forgotten": np.flatnonzero(u.status == FORGOTTEN),
        "foreign": np.packbits(u.status == FOREIGN),
    }  # fmt: skip
    own = head.arrays()
    arrays |= own
    groups: dict[str, list[str]] = {"sums" if isinstance(head, Expansion) else "head": list(own)}
    data: dict[str, Any]
    if isinstance(u.store, ArrayStore):
        data, rows = {"kind": "arrays"}, {"X": u.store.X, "y": u.store.y}
        if u.store.weights.size:
            rows["weights"] = u.store.weights
        arrays |= rows
        groups["rows"] = list(rows)
    elif isinstance(u.store, FileStore):
        data = {"kind": "file", **u.store.reference()}
    else:
        assert isinstance(u.store, NoStore)
        data = {"kind": "none", "dtype": u.store.dtype.name}
        arrays |= {"digests": u.store.digests, "digest_key": u.store.key}
        if u.store.weights.size:
            arrays["weights"] = u.store.weights
    facts = {
        "params": u.params, "n": u.n, "d": u.d, "rows": int(u.status.size), "classes": u.classes_, "label": u.label,
        "data": data, "report": u.report_, "head": head.kind, "head_facts": head.facts(), "due": u.due,
    }  # fmt: skip
    if directory.resolve() == u.saved_to:
        u.generation = save_artifact(directory, facts, arrays, groups=groups, ledger_entry=u.entries, base=u.generation)
        u.history += u.entries
    else:  # a new place gets the whole history
        history = [*u.history, *u.entries]
        u.generation = save_artifact(directory, facts, arrays, groups=groups, ledger_entry=history)
        u.history, u.saved_to = history, directory.resolve()
    u.entries = []


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
    u.status = np.full(int(facts["rows"]), PRESENT, np.uint8)
    u.status[np.unpackbits(arrays["foreign"], count=u.status.size).astype(bool)] = FOREIGN
    u.status[arrays["forgotten"]] = FORGOTTEN
    u.head = head_class(facts["head"]).from_arrays(_model(u, facts), facts["head_facts"], arrays)
    if (u.status == PRESENT).sum() != u.n or (u.classes_ and u.class_counts.sum() != u.n):
        raise DataError(f"{directory} cannot be used: its counts do not add up to {u.n} rows")
    u.store = _store(facts, arrays, data)
    _check_rows(u)
    u.history, u.entries = list(read_ledger(directory).entries), []
    u.saved_to, u.generation = directory.resolve(), int(facts["generation"])
    return u


def _check_rows(u: L2UL) -> None:
    """ValueError where the rows do not fit the rest: compiled code trusts them."""
    store, n = u.store, u.status.size
    if isinstance(store, FileStore):
        return
    held = store.X if isinstance(store, ArrayStore) else store.digests
    wanted = (n, u.d) if isinstance(store, ArrayStore) else (n,)
    if held.shape != wanted or store.weights.shape not in ((0,), (n,)):
        raise ValueError(f"its rows, which have shape {held.shape} instead of {wanted}")
    if isinstance(store, ArrayStore) and (
        store.y.shape != (n,) or (u.classes_ and (store.y.dtype != np.uint8 or store.y.max() >= len(u.classes_)))
    ):
        raise ValueError("y, which has labels of other classes")


def request_of(e: dict[str, Any], size: int) -> dict[str, Any]:
    """A request of the log from its entry in the ledger."""
    moment = datetime.fromisoformat(e["time"]).timestamp()
    return {"rows": decode_rows(e["rows"], size), "n": e["n"], "time": moment}


def _model(u: L2UL, facts: dict[str, Any]) -> Any:
    """The untrained model; a head that has an anchor puts it in."""
    from l2ul_fast.models import GeneralisedLinearModel, LogisticModel, MLPModel

    p = u.params
    if p["model"] == "lr":
        return LogisticModel(u.d, len(u.classes_), p["lam"])
    if p["model"] == "mlp":
        return MLPModel(u.d, len(u.classes_), h=p["hidden"], activation=p["activation"], lam=p["lam"])
    return GeneralisedLinearModel(u.d, p["model"], p["lam"])


def _store(facts: dict[str, Any], arrays: Arrays, data: Any) -> Store:
    reference = facts["data"]
    weights: NDArray[np.float64] | None = np.array(arrays["weights"]) if "weights" in arrays else None
    if reference["kind"] == "none":
        own = np.empty(0) if weights is None else weights
        return NoStore(np.array(arrays["digests"]), arrays["digest_key"], np.dtype(reference["dtype"]), own)
    if reference["kind"] == "arrays":
        return ArrayStore(np.array(arrays["X"]), np.array(arrays["y"]), weights)
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
