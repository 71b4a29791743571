"""The rows that a user means, and the columns: one place for all that takes rows out of a model.

list, array or range of whole numbers     positions of what was fitted
array or list of as many truth values     a mask of what was fitted
boolean pandas Series                     a mask whose entries belong to the rows with the labels of its own index
any other Series, an Index, or `labels=`  labels, looked up in the index of the fitted frame

Labels may name people: those of a forgotten row are overwritten like the row itself.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.tables import first_line

Ids = NDArray[np.int64]
INT64 = np.dtype(np.int64)
#: Bytes of a label, as JSON, up to which it is saved.
LONGEST_LABEL = 1000
#: Names that one sentence lists.
LISTED = 5


def row_numbers(
    rows: Any, size: int, labels: RowLabels | None = None, there: Callable[[], NDArray[np.bool_]] | None = None
) -> Ids:
    """(r,) numbers of the rows that a request names, in its order; whether they exist is not checked.

    size: rows at the fit. labels: those of the fitted frame. there() (size,): which rows still are, all if None.
    """
    if isinstance(rows, np.ma.MaskedArray):
        raise UserError("row numbers must not be masked: name the rows to forget, and no others")
    if hasattr(rows, "get_indexer") or (hasattr(rows, "iloc") and not hasattr(rows, "columns")):
        return _of_series(rows, size, labels, np.ones(size, bool) if there is None else there())
    if isinstance(rows, list | tuple):
        kinds = set(map(type, rows))
        if not kinds.isdisjoint({bool, np.bool_}) and not kinds <= {bool, np.bool_}:
            raise UserError("row numbers must be whole numbers, not truth values")
    try:
        ids = np.array(rows)  # ours: the ledger keeps it
    except Exception as error:
        raise UserError(f"row numbers must be a list of whole numbers: {first_line(error)}") from None
    if ids.dtype is not INT64:
        if ids.size == 0 and ids.ndim <= 1:
            return np.zeros(0, np.int64)
        if ids.dtype == bool and ids.ndim == 1:
            if ids.size != size:
                raise UserError(f"a mask must have {size} truth values, one for each row of the fit, got {ids.size}")
            return np.flatnonzero(ids)
        if ids.dtype.kind not in "iu":
            raise UserError(f"row numbers must be whole numbers, got {ids.dtype}")
        if ids.dtype == np.uint64 and ids.max() > np.iinfo(np.int64).max:
            raise UserError(f"row {ids.max()} does not exist: nothing was forgotten")
        ids = ids.astype(INT64)
    if ids.ndim != 1:
        raise UserError(f"row numbers must be a list, got {ids.ndim} dimensions")
    if labels is not None and labels.unsure:
        labels.ask(ids)
    return ids


def _of_series(rows: Any, size: int, labels: RowLabels | None, there: NDArray[np.bool_]) -> Ids:
    """The same of a pandas Series or Index."""
    mask = hasattr(rows, "iloc") and str(rows.dtype) in ("bool", "boolean")
    if mask and rows.isna().any():
        raise UserError("the mask has missing values: say yes or no for every row")
    if labels is None:
        if not mask:
            kind = type(rows).__name__
            raise UserError(
                f"a pandas {kind} names rows by their labels, which this model does not know: give positions as a list "
                "or array, or fit on a frame"
            )
        if len(rows) != size or not _counts_up(rows.index):
            raise UserError(
                f"the index of the mask is not 0 to {size - 1}, and the model knows no labels: give mask.to_numpy(), "
                "or fit on a frame"
            )
        return np.flatnonzero(rows.to_numpy(bool))
    if not mask:
        return labels.find(rows, there)
    index = rows.index.tolist()
    chosen = [label for label, yes in zip(index, rows.to_numpy(bool).tolist(), strict=True) if yes]
    missing = set(labels.values(size)[there].tolist()) - set(index)
    if missing:
        raise UserError(
            f"the mask says nothing of row {next(iter(missing))!r}: its index must be that of the fitted frame"
        )
    found, counts = labels.find(list(dict.fromkeys(chosen)), there, quiet=True), Counter(chosen)
    if Counter(labels.values(size)[found].tolist()) != counts:
        raise UserError("the mask says yes and no for rows of the same label: give mask.to_numpy()")
    return found


def _counts_up(index: Any) -> bool:
    """Whether a pandas Index is 0, 1, 2, ..."""
    return bool(index.dtype.kind in "iu" and np.array_equal(index.to_numpy(), np.arange(len(index))))


class RowLabels:
    """Labels of the rows of a frame, by row number.

    Attributes
    ----------
    known : (N,) int64 or object array, or None if labels are the numbers of the rows. Those of forgotten rows are 0
        or None.
    unsure : whether whole numbers of a request may have been meant as labels, which the first such request tells.
    lost : whether a saved state could not keep them.
    """

    def __init__(self, known: NDArray[Any] | None = None, lost: bool = False) -> None:
        self.known, self.lost = known, lost
        self.unsure = known is not None and known.dtype == np.int64

    @classmethod
    def of(cls, X: Any) -> RowLabels | None:
        """Those of the index of a pandas DataFrame, None for what has no index."""
        if not _is_frame(X):
            return None
        return cls(None if _counts_up(X.index) else _values(X.index))

    def values(self, size: int) -> NDArray[Any]:
        """(size,) labels by row number."""
        if self.lost:
            raise UserError("the labels of the rows are of a kind that is not saved: give positions as a list or array")
        return np.arange(size) if self.known is None else self.known

    def ask(self, ids: Ids) -> None:
        """Warn, once, where row numbers might have been meant as labels."""
        if self.known is not None and ids.size and np.isin(ids, self.known).all():
            self.unsure = False
            warn(
                "the numbers of this request were taken as positions, but they are labels of the fitted frame's index "
                "too: give labels=... if that is what you mean"
            )

    def find(self, wanted: Any, there: NDArray[np.bool_], quiet: bool = False) -> Ids:
        """(r,) numbers of the rows with these labels, of those that are there; all rows of a label, with a warning
        unless quiet."""
        asked = _listed(wanted)
        try:
            places: dict[Any, list[int]] = {label: [] for label in asked}
        except TypeError:
            raise UserError("a label must be a number, a word or another hashable value") from None
        if len(places) < len(asked):
            twice = next(label for label, count in Counter(asked).items() if count > 1)
            raise UserError(f"label {twice!r} is named twice: nothing was forgotten")
        own, near = self.values(there.size), there
        if own.dtype == np.int64 and all(type(label) is int and abs(label) < 2**63 for label in asked):
            near = there & np.isin(own, np.array(asked, np.int64))
        numbers = np.flatnonzero(near)
        for number, label in zip(numbers.tolist(), own[numbers].tolist(), strict=True):
            if label is not None and label in places:
                places[label].append(number)
        for label, found in places.items():
            if not found:
                raise UserError(
                    f"no row of the model has the label {label!r} (it never was there, or was forgotten): "
                    "nothing was forgotten"
                )
        several = [label for label, found in places.items() if len(found) > 1]
        if several and not quiet:
            others = " and others name" if len(several) > 1 else " names"
            warn(f"label {several[0]!r}{others} several rows ({len(places[several[0]])}): all of them are meant")
        return np.array([number for found in places.values() for number in found], np.int64)

    def erase(self, ids: Any) -> None:
        """Overwrite the labels of these rows."""
        if self.known is not None:
            self.known[ids] = 0 if self.known.dtype == np.int64 else None

    def extended(self, X: Any, size: int, more: int) -> RowLabels:
        """Those of `size` rows and of `more` that X brings: its index, or none where it has none."""
        brought = _values(X.index) if _is_frame(X) else None
        numbers = np.arange(size, size + more)
        if self.lost or (self.known is None and (brought is None or np.array_equal(brought, numbers))):
            return self
        own = self.values(size)
        new = np.full(more, None, object) if brought is None else brought
        if own.dtype != new.dtype:
            own, new = own.astype(object), new.astype(object)
        made = RowLabels(np.concatenate([own, new]))
        made.unsure = self.unsure and made.unsure
        return made

    # Saved -----------------------------------------------------------------------------------------------------------

    def fact(self) -> str:
        """Their way to the disk: "numbers" of rows, "kept" in an array, or "lost"."""
        return "numbers" if self.known is None and not self.lost else "kept" if self.arrays() else "lost"

    def arrays(self) -> dict[str, NDArray[Any]]:
        """A row for each row: whole numbers, or the bytes of their JSON, zeros where a row was forgotten."""
        if self.known is None or self.known.dtype == np.int64:
            return {} if self.known is None else {"labels": self.known}
        kinds = str | bool | int | float
        texts = [b"" if v is None else json.dumps(v).encode() if isinstance(v, kinds) else None for v in self.known]
        if None in texts or max(len(text or b"") for text in texts) > LONGEST_LABEL:
            return {}
        wide = np.array(texts, f"S{max(1, *(len(text or b'') for text in texts))}")
        return {"labels": wide.view(np.uint8).reshape(len(wide), -1)}

    @classmethod
    def from_saved(cls, fact: Any, arrays: dict[str, NDArray[Any]], size: int) -> RowLabels | None:
        """The labels that `fact` and `arrays` were taken from; ValueError where they do not fit."""
        if fact is None or fact == "numbers":
            return None if fact is None else cls()
        if fact != "kept":
            return cls(lost=True)
        saved = np.array(arrays["labels"])
        if saved.shape == (size,) and saved.dtype == np.int64:
            return cls(saved)
        if saved.dtype != np.uint8 or saved.ndim != 2 or len(saved) != size or not 0 < saved.shape[1] <= LONGEST_LABEL:
            raise ValueError("labels, which are of another kind or number")
        texts = np.ascontiguousarray(saved).view(f"S{saved.shape[1]}").ravel().tolist()
        values = [json.loads(text) if text else None for text in texts]
        if not all(value is None or isinstance(value, str | bool | int | float) for value in values):
            raise ValueError("labels, which must be words or numbers")
        return cls(np.fromiter(values, object, size))


def warn(text: str) -> None:
    """A warning of the first caller outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("l2ul_fast."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _is_frame(X: Any) -> bool:
    return hasattr(X, "iloc") and hasattr(X, "index")


def _values(index: Any) -> NDArray[Any]:
    """(n,) int64, or objects, of a pandas Index; our own copy."""
    if index.dtype.kind in "iu" and np.can_cast(index.dtype, np.int64):
        return np.array(index, np.int64)
    return np.fromiter(index.tolist(), object, len(index))


def _listed(labels: Any) -> list[Any]:
    """Labels as plain Python values."""
    if isinstance(labels, np.ma.MaskedArray):
        raise UserError("labels must not be masked: name the rows to forget, and no others")
    try:
        if isinstance(labels, str | bytes) or hasattr(labels, "columns"):
            raise TypeError
        found = labels.tolist() if hasattr(labels, "tolist") else list(labels)
        return [label.item() if isinstance(label, np.generic) else label for label in found]
    except Exception:
        raise UserError("labels must be a list of labels of the fitted frame's index") from None


# Columns -------------------------------------------------------------------------------------------------------------


def columns_of(X: Any) -> tuple[str, ...] | None:
    """Names of the columns of a frame (pandas, polars, ...); None without, or where they are no words."""
    if not hasattr(X, "columns") or not hasattr(X, "__array__"):
        return None
    names = list(X.columns)
    words = [isinstance(name, str) for name in names]
    if any(words) and not all(words):
        raise UserError("the names of the columns are words and others mixed: name all of them with words")
    return tuple(names) if words and all(words) else None


def columns_from(saved: Any, d: int) -> tuple[str, ...] | None:
    """The names of d columns in a saved state; ValueError where they are none."""
    if saved is None:
        return None
    if not isinstance(saved, list) or len(saved) != d or not all(isinstance(name, str) for name in saved):
        raise ValueError("columns, which must be the names of all columns")
    return tuple(saved)


def in_order(X: Any, columns: tuple[str, ...] | None) -> Any:
    """X with its columns in the order of the fit; DataError where a column is missing or was not there."""
    if columns is None:
        return X
    own = columns_of(X)
    if own is None or own == columns:
        return X
    missing, more = (_named(sorted(set(a) - set(b))) for a, b in ((columns, own), (own, columns)))
    if missing or more or len(own) != len(columns):
        said = " and ".join(
            text
            for text in (missing and f"lacks {missing}", more and f"has {more}, which the fit did not have")
            if text
        )
        raise DataError(f"X {said or 'has columns of the same name'}: give the columns of the fit, by their names")
    if len(set(own)) < len(own):
        raise DataError(
            "X has several columns of one name in another order than at the fit: nobody knows which is which"
        )
    return X[list(columns)]


def _named(names: Sequence[str]) -> str:
    """A few of the names for a sentence; nothing for none."""
    if not names:
        return ""
    shown = ", ".join(map(repr, names[:LISTED])) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
    return f"the column{'s' if len(names) > 1 else ''} {shown}"


def paired(X: Any, **others: Any) -> None:
    """UserError where targets or weights have the labels of X in another order: they are paired by position."""
    for name, values in others.items():
        if not _is_frame(X) or not _is_frame(values) or len(X) != len(values) or X.index.equals(values.index):
            continue
        if Counter(X.index.tolist()) == Counter(values.index.tolist()):
            raise UserError(f"{name} has the labels of X in another order: give {name}.loc[X.index], or arrays")
