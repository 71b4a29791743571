"""Checks of what a request names, each refusal one sentence; nothing has changed when one is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from l2ul_fast.errors import UserError
from l2ul_fast.tables import check_rows
from l2ul_fast.unlearner.heads.base import Ids, Rows
from l2ul_kernels.request.claims import GONE, NOT_TRAINED, OUTSIDE, PRESENT, TWICE

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

INT64 = np.dtype(np.int64)

_REASONS = {
    OUTSIDE: "row {} does not exist",
    GONE: "row {} was forgotten before",
    TWICE: "row {} is named twice",
    NOT_TRAINED: "row {} is not a training row of this model (but a test row of its file, or a row of weight 0)",
}


def checked_ids(rows: ArrayLike) -> Ids:
    """Row numbers (r,) int64, ascending: the order of a request does not matter, bit for bit."""
    if isinstance(rows, np.ma.MaskedArray):
        raise UserError("row numbers must not be masked: name the rows to forget, and no others")
    if isinstance(rows, list) and not {bool, np.bool_}.isdisjoint(map(type, rows)):
        raise UserError("row numbers must be whole numbers, not truth values")
    try:
        ids = np.array(rows)  # ours: the ledger keeps it
    except ValueError:
        raise UserError("row numbers must be a list of whole numbers") from None
    if ids.dtype is not INT64:
        if ids.size == 0 and ids.ndim <= 1:
            return np.zeros(0, np.int64)
        if ids.dtype.kind not in "iu":
            raise UserError(f"row numbers must be whole numbers, got {ids.dtype}")
        if ids.dtype == np.uint64 and ids.max() > np.iinfo(np.int64).max:
            raise UserError(f"row {ids.max()} does not exist: nothing was forgotten")
        ids = ids.astype(INT64)
    if ids.ndim != 1:
        raise UserError(f"row numbers must be a list, got {ids.ndim} dimensions")
    if ids.size > 1:
        ids.sort()
    return ids


def refuse(code: int, ids: Ids) -> NoReturn:
    """Raise what `claim` found."""
    raise UserError(_REASONS[code % 8].format(ids[code // 8]) + ": nothing was forgotten")


class Request(NamedTuple):
    """ids (r,): the numbers of the rows that a request names, ascending. X, y: the rows themselves where the user
    brought them and they must be looked at, in an order of their own that `order` (r,) sorts by number."""

    ids: Ids
    X: Any = None
    y: ArrayLike | None = None
    order: Ids | None = None


def resolve_rows(u: L2UL, rows: ArrayLike | None, X: Any, y: ArrayLike | None) -> Request:
    """What a request names: numbers of rows, or the rows (X, y), or both. Whether they are present is not checked."""
    if X is None and y is not None:
        raise UserError("give X with y, or neither")
    if rows is None:
        rows = rows_like(u, X, y)
        X = None if u.store.keeps_rows else X
    ids = checked_ids(rows)
    return Request(ids) if X is None else Request(ids, X, y, np.argsort(np.asarray(rows), kind="stable"))


def rows_of(u: L2UL, request: Request) -> Rows:
    """The rows of a request, which are present: the unlearner's own, or those brought with it if they are the same."""
    ids, weights = request.ids, u.store.weights_of(request.ids)
    if request.X is None:
        return Rows(*u.store.fetch(ids), weights, ids)
    if request.y is None:
        raise UserError("give y with X")
    X = check_rows(request.X, u.d)
    _, y = u._labels(request.y, u.classes_)
    if len(X) != ids.size or y.size != ids.size:
        raise UserError(f"{ids.size} rows are named, but X has {len(X)} and y {y.size}")
    X, y = X[request.order].astype(u.store.dtype, copy=False), y[request.order]
    other = u.store.differ(ids, X, y)
    if other.any():
        raise UserError(f"the X and y given for row {ids[other.argmax()]} are not that row of the training data")
    return Rows(X, y, weights, ids)


def rows_like(u: L2UL, X: Any, y: ArrayLike | None) -> Ids:
    """Numbers of rows of D that equal the given ones (each present row is used once); looks at all rows."""
    if X is None or y is None:
        raise UserError("name the rows to forget by number, or give X and y")
    wanted = check_rows(X, u.model.d)  # says so where there is no model yet
    _, labels = u._labels(y, u.classes_)
    if len(wanted) != len(labels):
        raise UserError(f"X has {len(wanted)} rows but y has {len(labels)} labels")
    keys, places = u.store.places(wanted, labels, np.flatnonzero(u.status == PRESENT), u.retained())
    found = np.empty(len(keys), np.int64)
    for k, key in enumerate(keys):
        if not places.get(key):
            raise UserError(f"row {k} of the request is not among the rows of the model: nothing was forgotten")
        found[k] = places[key].pop(0)
    return found
