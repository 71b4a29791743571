"""Rows a model is trained on, whether they lie in memory or in a file: blocks for one pass, rows by number.

Both kinds give X as the model sees it (arrays as given; files standardised by their stored mean and scale, float32)
and y as class indices 0..C-1. Row numbers are those of the array or file; `without` hides rows, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import DataError

if TYPE_CHECKING:
    from l2ul_fast.datasets.file.table import FileTable as FileTable

Block = tuple[NDArray[Any], NDArray[np.uint8]]

MOST_CLASSES = 255
#: Rows per block of an array: enough work for many threads, little enough to copy.
BLOCK_ROWS = 262_144


class Table(Protocol):
    """Rows that models train on: n rows (hidden ones not counted) of d columns."""

    n: int
    d: int
    classes: list[Any]
    label: str
    y: NDArray[np.uint8]  # of all rows, hidden ones too
    shards: Any  # the files of the rows, as datasets.stream.Shards; None of rows in memory

    def blocks(self) -> Iterator[Block]:
        """X (k, d) and y (k,) for all visible rows in order; valid until the next block is asked for."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of X."""

    def take(self, ids: NDArray[np.int64], out: NDArray[Any] | None = None) -> Block:
        """X (k, d) and y (k,) of the rows with these numbers, hidden or not; X in `out` (k, d) if given."""

    def ids(self) -> NDArray[np.int64]:
        """Numbers of the visible rows, ascending."""

    def without(self, ids: NDArray[np.int64]) -> Table:
        """The same rows with these hidden too."""


def class_indices(y: ArrayLike, classes: list[Any] | None = None) -> tuple[list[Any], NDArray[np.uint8]]:
    """(classes in ascending order, index of each label (n,) uint8); DataError for labels that are not classes."""
    labels = _plain_labels(y)
    found = np.unique(labels)
    known = found if classes is None else np.asarray(classes)
    if len(known) > MOST_CLASSES:
        raise DataError(f"there are {len(known)} classes, at most {MOST_CLASSES} are supported")
    unknown = found[~np.isin(found, known)]
    if unknown.size:
        raise DataError(f"label {unknown[0]} is not one of the model's classes {known.tolist()}")
    return known.tolist(), np.searchsorted(known, labels).astype(np.uint8)


def _plain_labels(y: ArrayLike) -> NDArray[Any]:
    """(n,) numbers, truth values or words: what a saved state can hold."""
    refuse_mask("labels", y)
    try:
        labels = np.asarray(y)
        if labels.dtype.kind == "O" or (labels.dtype.kind == "U" and isinstance(y, list | tuple)):
            values = labels.tolist() if labels.dtype.kind == "O" else list(y)  # type: ignore[arg-type]
            words = [isinstance(value, str) for value in values]
            labels = np.asarray(labels, str) if all(words) else np.array([] if any(words) else values)
            if any(words) and not all(words):
                raise DataError("labels must be numbers or words, not both")
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"labels must be a list of numbers or of words: {first_line(error)}") from None
    if labels.ndim != 1:
        raise DataError(f"labels must be a list, got {labels.ndim} dimensions")
    if labels.dtype.kind not in "biufU":
        raise DataError(f"labels must be numbers or words, got {labels.dtype}: name the classes otherwise")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise DataError("a label is NaN or infinite")
    return labels


def first_line(error: BaseException) -> str:
    """The message of somebody else's exception, as a part of one sentence."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def refuse_mask(name: str, values: Any) -> None:
    """DataError for masked arrays, whose masks would be lost."""
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(f"{name} must not be masked: fill in or leave out what is masked")


def check_rows(X: ArrayLike, d: int | None = None) -> NDArray[Any]:
    """X (n, d) as C-contiguous float32 or float64, all finite; DataError otherwise."""
    refuse_mask("X", X)
    try:
        rows = np.asarray(X)
        if rows.dtype.kind not in "fiubO":
            raise TypeError(f"got {rows.dtype}")
        rows = rows.astype(np.float32 if rows.dtype.newbyteorder("=") == np.float32 else np.float64, copy=False)
    except Exception as error:  # whatever __array__ raises
        raise DataError(f"X must hold numbers, in rows of equal length: {first_line(error)}") from None
    if rows.ndim != 2 or (d is not None and rows.shape[1] != d):
        raise DataError(f"X must have shape (n, {d if d is not None else 'd'}), got {rows.shape}")
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise DataError(f"row {int(bad.argmax())} of X has a NaN or an infinity")
    return np.ascontiguousarray(rows)


class ArrayTable:
    """Rows in memory. X (n, d) float32 or float64, y (n,) class indices, or targets where classes is empty; weights
    (n,) of the rows, or None; nothing is copied."""

    shards = None

    def __init__(
        self,
        X: NDArray[Any],
        y: NDArray[Any],
        classes: list[Any],
        hidden: NDArray[np.bool_] | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        if len(X) != len(y):
            raise DataError(f"X has {len(X)} rows but y has {len(y)} labels")
        self.X, self.y, self.classes, self.weights = X, y, classes, weights
        self.label = "arrays"
        self.hidden = hidden
        self.d = X.shape[1]
        self.n = len(X) - (0 if hidden is None else int(hidden.sum()))

    def blocks(self) -> Iterator[Block]:
        for start in range(0, len(self.X), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            X, y = self.X[part], self.y[part]
            if self.hidden is not None and self.hidden[part].any():
                keep = ~self.hidden[part]
                X, y = X[keep], y[keep]
            yield X, y

    def weighted_blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.uint8], NDArray[np.float64] | None]]:
        """(X, y, weights) of all rows without copying any: hidden rows have weight 0; None where all weigh 1."""
        for start in range(0, len(self.X), BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            weights = None if self.weights is None else self.weights[part]
            if self.hidden is not None and self.hidden[part].any():
                keep = ~self.hidden[part]
                weights = keep.astype(np.float64) if weights is None else np.where(keep, weights, 0.0)
            yield self.X[part], self.y[part], weights

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.X.dtype

    def take(self, ids: NDArray[np.int64], out: NDArray[Any] | None = None) -> Block:
        if out is None:
            return self.X.take(ids, axis=0), self.y.take(ids)
        y = self.y.take(ids)  # refuses numbers that are too large, which "clip" would not
        return np.take(self.X, ids, axis=0, out=out, mode="wrap"), y  # "raise" would copy everything once more

    def ids(self) -> NDArray[np.int64]:
        return np.arange(len(self.X)) if self.hidden is None else np.flatnonzero(~self.hidden)

    def without(self, ids: NDArray[np.int64]) -> ArrayTable:
        hidden = np.zeros(len(self.X), bool) if self.hidden is None else self.hidden.copy()
        hidden[ids] = True
        return ArrayTable(self.X, self.y, self.classes, hidden, self.weights)


def in_memory(table: Table) -> ArrayTable:
    """All visible rows of a table as one array; row i of it is row table.ids()[i]."""
    if table.shards is None and table.n == len(table.y):
        return cast(ArrayTable, table)
    parts = [(X.copy(), y.copy()) for X, y in table.blocks()]
    return ArrayTable(np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts]), table.classes)


def __getattr__(name: str) -> Any:
    """FileTable, which needs h5py, imported when it is asked for."""
    if name == "FileTable":
        from l2ul_fast.datasets.file.table import FileTable

        return FileTable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
