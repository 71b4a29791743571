"""Checks of what a request names, each refusal one sentence; nothing has changed when one is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import check_rows, class_indices
from l2ul_kernels.request import GONE, NOT_TRAINED, OUTSIDE, PRESENT, TWICE

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

_REASONS = {
    OUTSIDE: "row {} does not exist",
    GONE: "row {} was forgotten before",
    TWICE: "row {} is named twice",
    NOT_TRAINED: "row {} is not a training row of this model",
}


def checked_ids(rows: ArrayLike) -> NDArray[np.int64]:
    """Row numbers (r,) int64, ascending: the order of a request does not matter, bit for bit."""
    ids = np.asarray(rows)
    if ids.dtype != np.int64:
        if ids.size == 0 and ids.ndim <= 1:
            return np.zeros(0, np.int64)
        if ids.dtype.kind not in "iu":
            raise UserError(f"row numbers must be whole numbers, got {ids.dtype}")
        ids = ids.astype(np.int64)
    if ids.ndim != 1:
        raise UserError(f"row numbers must be a list, got {ids.ndim} dimensions")
    return np.sort(ids) if ids.size > 1 else ids.copy()


def refuse(code: int, ids: NDArray[np.int64]) -> NoReturn:
    """Raise what `claim` found."""
    raise UserError(_REASONS[code % 8].format(ids[code // 8]) + ": nothing was forgotten")


def rows_like(unlearner: L2UL, X: Any, y: ArrayLike | None) -> NDArray[np.int64]:
    """Numbers of rows of D that equal the given ones (each present row is used once); looks at all rows."""
    if X is None or y is None:
        raise UserError("name the rows to forget by number, or give X and y")
    wanted = check_rows(X, unlearner.d)
    _, labels = class_indices(y, unlearner.classes_)
    if len(wanted) != len(labels):
        raise UserError(f"X has {len(wanted)} rows but y has {len(labels)} labels")
    table = unlearner.retained()
    visible = np.flatnonzero(unlearner.gone == PRESENT)
    places: dict[bytes, list[int]] = {}
    dtype: Any = None
    keys: set[bytes] = set()
    done = 0
    for rows, marks in table.blocks():
        if dtype is None:
            dtype = rows.dtype
            wanted = np.ascontiguousarray(wanted, dtype)
            keys = {row.tobytes() + bytes([c]) for row, c in zip(wanted, labels, strict=True)}
        near = np.isin(rows[:, 0], wanted[:, 0])
        for i in np.flatnonzero(near):
            key = rows[i].tobytes() + bytes([marks[i]])
            if key in keys:
                places.setdefault(key, []).append(int(visible[done + i]))
        done += len(rows)
    found = []
    for k, (row, c) in enumerate(zip(wanted, labels, strict=True)):
        left = places.get(row.tobytes() + bytes([c]))
        if not left:
            raise UserError(f"row {k} of the request is not among the rows of the model: nothing was forgotten")
        found.append(left.pop(0))
    return np.array(found, np.int64)
