"""An unlearner to and from its artifact directory.

`save` finishes what is due, so that everything it writes is a function of the rows that stay; a deferred save leaves
that for later and writes only what a request changed. Which file holds what:

main     which rows are forgotten, and which never were training rows
sums     of the head "expansion": nothing but its integers, so that two directories can be compared with `cmp`
head     of the other heads, but for
cells    the cells of each row (kme, paper)
theta    the parameters; not there after a deferred save: those of before would give the forgotten rows away
rows     X, y, weights; with store_rows=False the digests of rows; not there if they are in a dataset file
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.unlearner.artifact import schema
from l2ul_fast.unlearner.artifact.directory import NotTidied, Opened, append_artifact, open_artifact, save_artifact
from l2ul_fast.unlearner.artifact.journal import View
from l2ul_fast.unlearner.artifact.ledger import Entry, check_request_id, decode_rows, entry, theta_digest
from l2ul_fast.unlearner.heads import head_class
from l2ul_fast.unlearner.heads.base import Arrays
from l2ul_fast.unlearner.options import Options
from l2ul_fast.unlearner.rows import RowLabels, columns_from
from l2ul_fast.unlearner.store import STORES, FileStore
from l2ul_kernels.request.claims import FOREIGN, FORGOTTEN, PRESENT

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

REQUESTS = ("unlearn", "learn")
#: Whole numbers of a report that the rows at the fit decided.
COUNTED_ON_D = ("steps",)
#: Arrays of heads that have a row for each row, which a request zeroes.
PER_ROW = ("cells.packed",)
#: Groups whose rows a deferred save overwrites in place.
ERASABLE = ("rows", "cells")
_NONE = np.empty(0, np.int64)
#: What the directory of an unlearner looked like when it last saved there, so that its journal need not be read again.
_views: WeakKeyDictionary[L2UL, View] = WeakKeyDictionary()


# Save ----------------------------------------------------------------------------------------------------------------


def save(u: L2UL, directory: Path, *, defer: bool = False, request_id: str | None = None) -> None:
    """Write the state, all or nothing. Later saves of one object to one directory build on the earlier ones."""
    u._flush_log()
    if request_id is not None:
        _name_requests(u, check_request_id(request_id))
    here = directory.resolve() == u.saved_to
    if not defer:
        finish(u)
    elif here and not u.entries:
        return  # everything is there
    elif here and not _rewrites(u):
        _append(u, directory)
        return
    else:
        u.head.canonical()
    _write(u, directory, here)


def finish(u: L2UL) -> None:
    """Do what is due: afterwards everything that is kept is a function of the rows that stay."""
    u.head.canonical()  # decides by the exact root whether it left its cell of the grid
    if u.due:
        u.refresh()
    else:
        u.head.seal()


def find_request(entries: list[Entry], request_id: str) -> list[Entry]:
    """The entries of the requests of this name since the latest fit."""
    found: list[Entry] = []
    for e in entries:
        if e["action"] == "fit":
            found = []
        elif e.get("request_id") == request_id:
            found.append(e)
    return found


def _name_requests(u: L2UL, request_id: str) -> None:
    """Give the name to all requests that are not saved yet and have none; a name is used once."""
    new = [e for e in u.entries if e["action"] in REQUESTS and "request_id" not in e]
    done = find_request(u.history, request_id)
    if done and new:
        raise UserError(
            f"the request id {request_id!r} was used before ({done[0]['time']}): "
            "save the latest requests under another one"
        )
    if not new and not done and not find_request(u.entries, request_id):
        raise UserError(f"there is no new request that could be named {request_id!r}: call unlearn first")
    for e in new:
        e["request_id"] = request_id


def _rewrites(u: L2UL) -> bool:
    """Whether the rows or cells differ from those on disk by more than the rows that were forgotten."""
    actions = {e["action"] for e in u.entries}
    return bool(
        actions & {"fit", "learn"}
        or ("refresh" in actions and "cells" in _head_groups(u))
        or any("format" in e.get("refreshed", {}) for e in u.entries)
    )


def _facts(u: L2UL) -> dict[str, Any]:
    return {
        "params": u.params,
        "n": u.n,
        "d": u.d,
        "rows": int(u.status.size),
        "classes": u.classes_,
        "label": u.label,
        "fit": u.fit_id,
        "columns": None if u.columns is None else list(u.columns),
        "labels": None if u.labels is None else u.labels.fact(),
        "data": u.store.facts(),
        "report": coarse(u.report_),
        "head": u.head.kind,
        "head_facts": u.head.facts(),
        "due": u.due,
    }


def coarse(report: dict[str, Any]) -> dict[str, Any]:
    """What a report may tell after rows were forgotten: whole numbers, words and times, but no figure computed on D."""
    found: dict[str, Any] = {}
    for key, value in report.items():
        if key in COUNTED_ON_D:
            continue
        if isinstance(value, dict):
            timed = {k: v for k, v in value.items() if isinstance(v, float)} if "seconds" in key else {}
            found[key] = coarse(value) | timed
        elif value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and "seconds" in key):
            found[key] = value
    return found


def _head_groups(u: L2UL) -> dict[str, Arrays]:
    """What the head keeps, by file."""
    own = u.head.arrays()
    cells = {name: own.pop(name) for name in PER_ROW if name in own}
    found = {"sums" if u.head.exact_sums else "head": own, "cells": cells}
    return {group: arrays for group, arrays in found.items() if arrays}


def _groups(u: L2UL) -> dict[str, Arrays]:
    """All that is saved, by file."""
    main: Arrays = {"forgotten": np.flatnonzero(u.status == FORGOTTEN), "foreign": np.packbits(u.status == FOREIGN)}
    labels = {} if u.labels is None else u.labels.arrays()
    found = {"main": main | u.store.constants(), "theta": {"theta": u.theta}, "rows": u.store.arrays() | labels}
    return {group: own for group, own in found.items() if own} | _head_groups(u)


def _write(u: L2UL, directory: Path, here: bool) -> None:
    """The whole state."""
    theta = u.theta
    if not u.entries and (not u.history or u.history[-1].get("theta_after") != theta_digest(theta)):
        u.entries = [entry("refresh", n=u.n, refreshed={})]  # what a deferred save wrote, now with its theta
    for e in u.entries:
        e.pop("theta_after", None)  # parameters of before the request are a function of its rows
    if u.entries:
        u.entries[-1]["theta_after"] = theta_digest(theta)
    groups = _groups(u)
    arrays = {name: array for own in groups.values() for name, array in own.items()}
    history = u.entries if here else [*u.history, *u.entries]  # a new place gets the whole history
    try:
        u.generation = save_artifact(
            directory,
            _facts(u),
            arrays,
            groups={g: list(own) for g, own in groups.items()},
            erasable=ERASABLE,
            ledger_entry=history,
            base=u.generation if here else None,
        )
    except NotTidied as error:
        _saved(u, directory, error.generation)
        raise
    _saved(u, directory, u.generation)


def _append(u: L2UL, directory: Path) -> None:
    """What the latest requests changed."""
    for e in u.entries:
        e.pop("theta_after", None)
    changed = _head_groups(u)
    keep = ["main", *(["rows"] if u.store.arrays() else []), *(["cells"] if "cells" in changed else [])]
    changed.pop("cells", None)
    known = _views.pop(u, None)
    assert u.generation is not None
    try:
        view = append_artifact(
            directory,
            _facts(u),
            {name: array for own in changed.values() for name, array in own.items()},
            groups={g: list(own) for g, own in changed.items()},
            keep=keep,
            ledger_entry=u.entries,
            base=u.generation,
            known=known,
        )
    except NotTidied as error:
        _saved(u, directory, error.generation)
        raise
    _saved(u, directory, view.generation)
    _views[u] = view


def _saved(u: L2UL, directory: Path, generation: int) -> None:
    u.generation, u.saved_to = generation, directory.resolve()
    u.history.extend(u.entries)
    u.entries = []
    _views.pop(u, None)


# Load ----------------------------------------------------------------------------------------------------------------


def load(cls: type[L2UL], directory: Path, data: str | Path | None) -> L2UL:
    """Read and check everything that `save` wrote."""
    found = open_artifact(directory)
    with _garbled(directory):
        u = _build(cls, directory, found)
        u.store = STORES[found.facts["data"]["kind"]].from_saved(found.facts["data"], found.arrays, data)
        _add_head(u, directory, found)
        return u


def check_state(directory: Path, found: Opened) -> None:
    """DataError where `load` refuses what the directory holds; a dataset file is not looked at."""
    from l2ul_fast.unlearner.l2ul import L2UL

    if found.version != 1:  # those are fitted again, which takes the rows
        with _garbled(directory):
            u, kind = _build(L2UL, directory, found), found.facts["data"]["kind"]
            if kind != FileStore.kind:
                u.store = STORES[kind].from_saved(found.facts["data"], found.arrays, None)
            _add_head(u, directory, found)


@contextlib.contextmanager
def _garbled(directory: Path) -> Iterator[None]:
    """Whatever goes wrong with what was read is one sentence."""
    try:
        yield
    except DataError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError) as error:
        raise DataError(f"{directory} cannot be used: it lacks or garbles {error}; fit again") from error


def _build(cls: type[L2UL], directory: Path, found: Opened) -> L2UL:
    """The unlearner without its rows and head."""
    facts, arrays = found.facts, found.arrays
    schema.check("it", facts, schema.FACTS)
    params = dict(facts["params"])
    if found.version == 1:
        params = _params_of_version_1(directory, facts)
    u = cls(params.pop("model"), **params)
    u.n, u.d, u.classes_, u.label = facts["n"], facts["d"], list(facts["classes"]), facts["label"]
    u.report_, u.fit_id = facts["report"], facts.get("fit")
    size, foreign, forgotten = facts["rows"], arrays["foreign"], arrays["forgotten"]
    if foreign.shape != (-(-size // 8),) or foreign.dtype != np.uint8:
        raise ValueError("foreign, which has another size")
    if forgotten.ndim != 1 or forgotten.dtype != np.int64 or (np.diff(forgotten) <= 0).any():
        raise ValueError("forgotten, which is not ascending numbers of rows")
    seeds = arrays.get("cells.seed_rows", _NONE)
    for name, rows in (("forgotten", forgotten), ("cells.seed_rows", seeds), ("the journal", found.erased)):
        if rows.size and not 0 <= rows.min() <= rows.max() < size:
            raise ValueError(f"{name}, which has rows that do not exist")
    u.status = np.full(size, PRESENT, np.uint8)
    u.status[np.unpackbits(foreign, count=size).astype(bool)] = FOREIGN
    u.status[forgotten] = FORGOTTEN
    u.status[found.erased] = FORGOTTEN
    if (u.status == PRESENT).sum() != u.n:
        raise DataError(f"{directory} cannot be used: its counts do not add up to {u.n} rows")
    u.columns = columns_from(facts.get("columns"), u.d)
    u.labels = RowLabels.from_saved(facts.get("labels"), arrays, size)
    u.history, u.entries = list(found.ledger.entries), []
    u.saved_to, u.generation = directory.resolve(), found.generation
    return u


def _add_head(u: L2UL, directory: Path, found: Opened) -> None:
    """The head, beside rows that were checked, if they are there."""
    facts, arrays = found.facts, found.arrays
    if "store" in u.__dict__:
        u.store.check(u.status.size, u.d, len(u.classes_))
    packed = arrays.get("cells.packed")
    if packed is not None and packed.shape[:1] != u.status.shape:
        raise ValueError(f"cells.packed, which must have {u.status.size} rows")
    if found.version == 1:
        _expand_version_1(u, directory)
    else:
        least = u.d * (u.params["hidden"] if u.params["model"] == "mlp" else 1)
        if least > max(array.size for array in arrays.values()):  # before a model of that size takes memory
            raise ValueError(f"the parameters of its model, which are {least} at least")
        model = _model(u)
        head_facts = facts["head_facts"] | {"saved_due": bool(facts["due"])}
        known = {field.name for field in fields(Options)}
        Options(
            **{k: v for k, v in head_facts.get("options", {}).items() if k in known}
        )  # a UserError where they are none
        u.head = head_class(facts["head"]).from_arrays(model, head_facts, arrays)
    counts = u.class_counts
    held = counts
    if counts.size and "store" in u.__dict__ and u.store.keeps_rows:
        held = np.bincount(u.store.y[u.status == PRESENT], minlength=counts.size)
    if counts.size and (counts.sum() != u.n or not np.array_equal(held, counts)):
        raise DataError(f"{directory} cannot be used: its counts do not add up to {u.n} rows")
    if not np.isfinite(u.theta).all():
        raise ValueError("theta, which is not finite")


def request_of(e: dict[str, Any], size: int) -> dict[str, Any]:
    """A request of the log from its entry in the ledger."""
    moment = datetime.fromisoformat(e["time"]).timestamp()
    named = {"request_id": e["request_id"]} if "request_id" in e else {}
    return {"rows": decode_rows(e["rows"], size), "n": e["n"], "time": moment, **named}


def _model(u: L2UL) -> Any:
    """The untrained model; a head that has an anchor puts it in."""
    from l2ul_fast.models import GeneralisedLinearModel, LogisticModel, MLPModel

    p = u.params
    if p["model"] == "lr":
        return LogisticModel(u.d, len(u.classes_), p["lam"])
    if p["model"] == "mlp":
        return MLPModel(u.d, len(u.classes_), h=p["hidden"], activation=p["activation"], lam=p["lam"])
    return GeneralisedLinearModel(u.d, p["model"], p["lam"])


# Format version 1 ----------------------------------------------------------------------------------------------------


def _params_of_version_1(directory: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Today's arguments of L2UL for an unlearner of format version 1; DataError where nothing can be made of it."""
    params = dict(facts["params"])
    prior, _ = params.pop("prior"), params.pop("network")
    newton = params["head"] == "influence" and prior == "newton"
    if params["model"] != "lr" or not newton or facts["data"]["kind"] == "none":
        raise DataError(
            f"{directory} was saved by an earlier version, and what it keeps to unlearn from cannot be taken over: "
            "fit again, without the rows that were forgotten"
        )
    return params | {"head": "expansion"}


def _expand_version_1(u: L2UL, directory: Path) -> None:
    """A step of Newton's is replaced by an expansion at the optimum of the rows that stay."""
    from l2ul_fast.unlearner import fit as fitting

    table = u.retained()
    assert table is not None
    u.head = fitting.fit(u.params, table, u.status.size, lambda what, done, total: None).head
    u.report_ = coarse(u.report_)
    u.entries = [entry("refresh", n=u.n, refreshed={"format": 1})]
    warnings.warn(
        f"{directory} was saved by an earlier version: its model was trained again on the {u.n} rows that stay",
        stacklevel=5,
    )
