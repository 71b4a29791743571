"""Checks of what a request names, each refusal one sentence; nothing has changed when one is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.unlearner.heads.base import Ids, Rows
from l2ul_fast.unlearner.rows import row_numbers, warn
from l2ul_kernels.request.claims import GONE, NOT_TRAINED, OUTSIDE, PRESENT, TWICE

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

_REASONS = {
    OUTSIDE: "row {} does not exist",
    GONE: "row {} was forgotten before",
    TWICE: "row {} is named twice",
    NOT_TRAINED: "row {} is not a training row of this model (but a test row of its file, or a row of weight 0)",
}


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


def resolve_rows(u: L2UL, rows: Any, X: Any, y: ArrayLike | None, labels: Any = None) -> Request:
    """What a request names: numbers or labels of rows, or the rows (X, y), or both. Whether they are present is not
    checked, but for rows named by labels."""
    if X is None and y is not None:
        raise UserError("give X with y, or neither")
    if labels is not None:
        if rows is not None:
            raise UserError("name the rows by numbers or by labels, not both")
        if u.labels is None:
            raise UserError("this model was not fitted on a frame, so its rows have no labels: give their positions")
        numbers = u.labels.find(labels, u.status == PRESENT)
    elif rows is None:
        numbers = rows_like(u, X, y)
        X = None if u.store.keeps_rows else X
    else:
        numbers = row_numbers(rows, u.status.size, u.labels, lambda: u.status == PRESENT)
    # the order of a request does not matter, bit for bit
    return (
        Request(np.sort(numbers)) if X is None else Request(np.sort(numbers), X, y, np.argsort(numbers, kind="stable"))
    )


def rows_of(u: L2UL, request: Request) -> Rows:
    """The rows of a request, which are present: the unlearner's own, or those brought with it if they are the same."""
    ids, weights = request.ids, u.store.weights_of(request.ids)
    if request.X is None:
        return Rows(*u.store.fetch(ids), weights, ids)
    if request.y is None:
        raise UserError("give y with X")
    X, y = brought(u, request.X, request.y)
    if len(X) != ids.size:
        raise UserError(f"{ids.size} rows are named, but X and y have {len(X)}")
    X, y = X[request.order], y[request.order]
    other = u.store.differ(ids, X, y)
    if other.any():
        raise UserError(f"the X and y given for row {ids[other.argmax()]} are not that row of the training data")
    return Rows(X, y, weights, ids)


def brought(u: L2UL, X: Any, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """(X (r, d) of the type of the rows at the fit, class indices or targets) of rows that a request brings."""
    rows, labels = u.checked(X), u._labels(y, u.classes_)[1]
    if len(rows) != len(labels):
        raise UserError(f"X has {len(rows)} rows but y has {len(labels)} labels")
    with np.errstate(over="ignore"):
        own = rows.astype(u.store.dtype, copy=False)
    if own.dtype != rows.dtype and not np.array_equal(own, rows):
        warn(f"the rows of the request were rounded to {own.dtype}, the type of the rows at the fit, to look for them")
    return own, labels


def rows_like(u: L2UL, X: Any, y: ArrayLike | None) -> Ids:
    """Numbers of rows of D that equal the given ones (each present row is used once); looks at all rows."""
    if X is None or y is None:
        raise UserError("name the rows to forget by number, or give X and y")
    wanted, labels = brought(u, X, y)
    keys, places = u.store.places(wanted, labels, np.flatnonzero(u.status == PRESENT), u.retained())
    found = np.empty(len(keys), np.int64)
    for k, key in enumerate(keys):
        if not places.get(key):
            raise UserError(f"row {k} of the request is not among the rows of the model: nothing was forgotten")
        found[k] = places[key].pop(0)
    return found
