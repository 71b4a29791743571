"""Checks of what a request names, each refusal one sentence; nothing has changed when one is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import check_rows
from l2ul_fast.unlearner.store import NoStore
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


def checked_ids(rows: ArrayLike) -> NDArray[np.int64]:
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


def refuse(code: int, ids: NDArray[np.int64]) -> NoReturn:
    """Raise what `claim` found."""
    raise UserError(_REASONS[code % 8].format(ids[code // 8]) + ": nothing was forgotten")


def rows_like(unlearner: L2UL, X: Any, y: ArrayLike | None) -> NDArray[np.int64]:
    """Numbers of rows of D that equal the given ones (each present row is used once); looks at all rows."""
    if X is None or y is None:
        raise UserError("name the rows to forget by number, or give X and y")
    wanted = check_rows(X, unlearner.model.d)  # says so where there is no model yet
    _, labels = unlearner._labels(y, unlearner.classes_)
    if len(wanted) != len(labels):
        raise UserError(f"X has {len(wanted)} rows but y has {len(labels)} labels")
    visible = np.flatnonzero(unlearner.status == PRESENT)
    if isinstance(unlearner.store, NoStore):
        return _by_digest(unlearner.store, visible, wanted, labels)
    table = unlearner.retained()
    assert table is not None
    places: dict[bytes, list[int]] = {}
    dtype: Any = None
    keys: set[bytes] = set()
    done = 0
    for rows, marks in table.blocks():
        if dtype is None:
            dtype = rows.dtype
            wanted = np.ascontiguousarray(wanted, dtype) + dtype.type(0)  # -0.0 is 0.0
            keys = {row.tobytes() + c.tobytes() for row, c in zip(wanted, labels, strict=True)}
        near = np.isin(rows[:, 0], wanted[:, 0])
        for i in np.flatnonzero(near):
            key = (rows[i] + dtype.type(0)).tobytes() + marks[i].tobytes()
            if key in keys:
                places.setdefault(key, []).append(int(visible[done + i]))
        done += len(rows)
    found = []
    for k, (row, c) in enumerate(zip(wanted, labels, strict=True)):
        found.append(_next(places.get(row.tobytes() + c.tobytes()), k))
    return np.array(found, np.int64)


def _next(left: list[int] | None, k: int) -> int:
    if not left:
        raise UserError(f"row {k} of the request is not among the rows of the model: nothing was forgotten")
    return left.pop(0)


def _by_digest(store: NoStore, visible: NDArray[np.int64], X: NDArray[Any], y: NDArray[np.uint8]) -> NDArray[np.int64]:
    wanted = store.digest(X, y)
    held = visible[np.isin(store.digests[visible], wanted)]
    places: dict[int, list[int]] = {}
    for row in held.tolist():
        places.setdefault(int(store.digests[row]), []).append(row)
    return np.array([_next(places.get(int(digest)), k) for k, digest in enumerate(wanted)], np.int64)


def brought(
    u: L2UL, rows: ArrayLike, ids: NDArray[np.int64], X: Any, y: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64] | None]:
    """(X, y, weights) of rows that come with their numbers, in the order of `ids` (ascending), checked against what is
    known of them.

    X, y are in the order of `rows`; the rows exist and are present.
    """
    if y is None:
        raise UserError("give y with X")
    forgotten = check_rows(X, u.d)
    _, labels = u._labels(y, u.classes_)
    if len(forgotten) != ids.size or labels.size != ids.size:
        raise UserError(f"{ids.size} rows are named, but X has {len(forgotten)} and y {labels.size}")
    order = np.argsort(np.asarray(rows), kind="stable")
    forgotten, labels = forgotten[order], labels[order]
    kept = forgotten.astype(u.store.dtype, copy=False)
    if isinstance(u.store, NoStore):
        other = u.store.digest(kept, labels) != u.store.digests[ids]
    else:
        own, marks = u.store.fetch(ids)
        other = (own != kept).any(axis=1) | (marks != labels)
    if other.any():
        raise UserError(f"the X and y given for row {ids[other.argmax()]} are not that row of the training data")
    return kept, labels, u.store.weights_of(ids)
