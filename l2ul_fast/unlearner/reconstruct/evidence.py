"""What the attacker holds, and what an attack gives: see the package."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.unlearner.artifact.directory import load_artifact, read_header
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_kernels.request.claims import FORGOTTEN, PRESENT

Vector = NDArray[np.float64]
RowsAndLabels = tuple[ArrayLike, Any]

ROW, CONFIRMS, INHERENT, OUTSIDE, CHANCE = "row", "confirms", "inherent", "outside", "chance"
#: Why attacks that subtract them find nothing.
UNKNOWN_ROWS = "the rows that stay are not known: give them as data"


class Attack(NamedTuple):
    """One attack and what came of it.

    Attributes
    ----------
    name : str
    used : str
        The trace it used, or why there is none.
    row : (d,) array or None
        Its estimate of the features of a forgotten row, as the model sees them; None if it found no trace.
    kind : str
        "row", "confirms", "inherent", "outside" or "chance".
    error : float or None
        Distance of the estimate from the nearest true row over that row's length; None without an estimate or truth.
    """

    name: str
    used: str
    row: Vector | None = None
    kind: str = ROW
    error: float | None = None


class Labelled(NamedTuple):
    """Rows X (k, d) float64 and class indices or targets y (k,); y is None where labels are not known."""

    X: Vector
    y: NDArray[Any] | None


@dataclass
class Evidence:
    """A directory as it was found, the unlearner in it, and the rows that stay: X (n, d), y (n,), weights (n,)."""

    directory: Path
    opened: Path  # a copy, as opening it has left it
    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    u: L2UL
    X: Vector | None
    y: NDArray[Any] | None
    weights: Vector | None
    forgotten: NDArray[np.int64]
    truth: Labelled | None = None
    candidates: Labelled | None = None
    before: Evidence | None = None

    @classmethod
    def open(cls, directory: Path, scratch: Path, data: Any) -> Evidence:
        """Read a directory through a copy of it: loading deletes what a killed save left behind, which is evidence."""
        read_header(directory)
        try:
            shutil.copytree(directory, scratch)
        except (OSError, shutil.Error) as error:
            raise DataError(f"cannot read {directory}: {error}") from None
        facts, arrays = load_artifact(scratch)
        given = data if isinstance(data, tuple) else None
        u = L2UL.load(scratch, None if given is not None else data)
        forgotten = np.flatnonzero(u.status == FORGOTTEN)
        return cls(directory, scratch, facts, arrays, u, *_retained(u, given), forgotten)

    @property
    def theta(self) -> Vector:
        """(p,), the one that is given to users; a deferred save keeps none, then that of its integers."""
        return np.asarray(self.arrays.get("theta", self.u.theta), np.float64)

    @property
    def d(self) -> int:
        return int(self.u.d)

    @property
    def sums(self) -> Any:
        """The expansion, of which integer sums are saved; None for other heads."""
        return self.u.head if self.u.head.exact_sums else None

    @property
    def stored(self) -> NDArray[Any]:
        """The rows that stay, in the type they are stored in."""
        assert self.X is not None
        return self.X.astype(self.u.store.dtype)

    @property
    def points(self) -> dict[str, Vector]:
        """Saved arrays that may be parameters."""
        found = {"theta": self.theta}
        for name, array in self.arrays.items():
            if array.shape == self.theta.shape and array.dtype == np.float64 and name != "theta" and array.any():
                found[name.rsplit(".", 1)[-1]] = np.asarray(array)
        return found

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.directory.rglob("*") if path.is_file())

    @property
    def lost(self) -> float:
        """Weight of the forgotten rows: known where all weigh 1 or from a state before, else taken as mean weights."""
        if self.before is not None and self.before.sums is not None:
            return float(self.before.sums.weight - self.sums.weight)
        return float(self.forgotten.size) * (1.0 if self.weights is None else float(self.weights.mean()))

    def plausible(self, values: Vector) -> bool:
        """Whether numbers are of the size of the rows that stay, or of their sums."""
        largest = np.abs(self.theta).max() if self.X is None else np.abs(self.X).max()
        return bool(np.isfinite(values).all()) and float(np.abs(values).max()) <= 1e3 * (1 + self.u.n * float(largest))

    def beyond(self, x: Vector) -> float:
        """How far x (d,) lies outside the range of the rows that stay, in units of it."""
        assert self.X is not None
        low, high = self.X.min(axis=0), self.X.max(axis=0)
        room = np.maximum(high - low, np.finfo(float).tiny)
        return float((np.maximum(low - x, x - high) / room).clip(0).max())

    def all_rows(self) -> Any:
        """The table of the user's file, forgotten rows and all; None where the model was fitted on arrays."""
        return (
            None if self.u.store.can_grow else self.u.store.table(self.u.classes_, np.zeros(self.u.status.size, bool))
        )

    def add(self, before: Evidence | None, truth: RowsAndLabels | None, candidates: RowsAndLabels | None) -> None:
        """What else the attacker was given. If no candidates: the truth, and rows that differ from it in one feature by
        a hundredth."""
        self.before = before
        file = self.all_rows()
        if truth is not None:
            self.truth = self._labelled(truth, "the truth")
        elif file is not None:
            X, y = file.take(self.forgotten)
            self.truth = Labelled(X.astype(np.float64), y)
        if candidates is not None:
            self.candidates = self._labelled(candidates, "a candidate")
        elif self.truth is not None and self.truth.y is not None:
            x = self.truth.X[:1]
            near = np.repeat(x, min(self.d, 4), axis=0)
            near[np.arange(len(near)), np.arange(len(near))] += 0.01 * (1.0 + np.abs(near).max())
            self.candidates = Labelled(np.concatenate([near, x]), np.repeat(self.truth.y[:1], len(near) + 1))

    def _labelled(self, rows: RowsAndLabels, what: str) -> Labelled:
        try:
            X = np.atleast_2d(np.asarray(rows[0], np.float64))
            y = None if rows[1] is None else np.atleast_1d(np.asarray(rows[1]))
        except (TypeError, ValueError, IndexError):
            raise UserError(f"{what} must be rows of numbers and their labels") from None
        fits = X.ndim == 2 and X.shape[1] == self.d and np.isfinite(X).all() and (y is None or y.shape == X.shape[:1])
        if not fits:
            raise UserError(f"{what} must be rows of {self.d} finite features, each with a label")
        if y is not None and self.u.classes_ and not np.isin(y, self.u.classes_).all():
            raise UserError(f"{what} has a label that is not one of the classes {self.u.classes_}")
        return Labelled(X, None if y is None else _indices(self.u, y))


def _indices(u: L2UL, y: NDArray[Any]) -> NDArray[Any]:
    """Class indices, or targets."""
    return np.searchsorted(u.classes_, y).astype(np.uint8) if u.classes_ else y.astype(np.float64)


def _retained(u: L2UL, given: Any) -> tuple[Vector | None, NDArray[Any] | None, Vector | None]:
    here, store = np.flatnonzero(u.status == PRESENT), u.store
    table = u.retained()
    if table is not None:
        X, y = table.take(here)
    elif given is None:
        return None, None, None
    else:
        X, y = np.asarray(given[0], store.dtype), np.asarray(given[1])
        if X.shape != (u.status.size, u.d) or y.shape != X.shape[:1]:
            raise UserError(f"the data must be all {u.status.size} rows of {u.d} features by number, got {X.shape}")
        X, y = X[here], _indices(u, y)[here]
    return X.astype(np.float64), y, store.weights_of(here)
