"""What a request gives back: the model without the rows, an estimate of its error, and how it was found."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import check_rows
from l2ul_fast.unlearner.rows import in_order


def finite(value: Any) -> Any:
    """A report with None where a number is infinite or NaN: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


class RetrainInstead(UserWarning):
    """The estimated error of the answer is so large that retraining (`refresh`) should follow."""


@dataclass(frozen=True)
class Trust:
    """What results said before they had an `error`: share r / n of the rows; advice "ok" or "retrain instead"."""

    share: float
    largest: float
    distance: float | None
    advice: str


#: Estimated rho above which an answer is not trusted.
UNTRUSTED = 0.5


class Unlearned:
    """The model without the rows of a request: a value, which later requests do not change.

    Attributes
    ----------
    theta : (p,) array, read-only
        Its parameters.
    rows : (r,) int64 array
        The rows that were forgotten, ascending.
    n : int
        The rows that stay.
    error : float or None
        Estimated rho of everything forgotten since the latest expansion: the distance to the retrained model in units
        of what retraining changes. None where the head cannot know.
    tier : str
        What was done: "order 3", "order 2", "new expansion", "instant", "secant steps", "network", ...
    due : str or None
        Why `refresh` should follow.
    """

    __slots__ = ("_classes", "_columns", "_model", "_rows", "due", "error", "n", "theta", "tier")

    def __init__(
        self,
        theta: NDArray[np.float64],
        rows: NDArray[np.int64] | int,
        n: int,
        error: float | None,
        tier: str,
        due: str | None,
        model: Any,
        classes: list[Any],
        columns: tuple[str, ...] | None = None,
    ) -> None:
        self.theta, self._rows, self.n, self.error, self.tier, self.due = theta, rows, n, error, tier, due
        self._model, self._classes, self._columns = model, classes, columns

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.atleast_1d(np.array(self._rows, np.int64))

    def __repr__(self) -> str:
        error = "not known" if self.error is None else f"{self.error:.1e}"
        due = f", due: {self.due}" if self.due else ""
        return f"<Unlearned: {self.rows.size} row(s) forgotten, {self.n} stay; error {error} ({self.tier}){due}>"

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities (n, C) of rows X (n, d)."""
        return class_probabilities(self._model, self.theta, in_order(X, self._columns))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The likeliest class, or the expected target, of each row of X (n, d)."""
        return predictions(self._model, self._classes, self.theta, in_order(X, self._columns))

    @property
    def trust(self) -> Trust:
        """Replaced by `error` and `due`."""
        warnings.warn("`.trust` is replaced by `.error` and `.due`", DeprecationWarning, stacklevel=2)
        bad = self.error is not None and self.error > UNTRUSTED
        r = self.rows.size
        return Trust(r / max(self.n + r, 1), 1.0, None, "retrain instead" if bad else "ok")


def class_probabilities(model: Any, theta: NDArray[np.float64], X: ArrayLike) -> NDArray[np.float64]:
    """(n, C); UserError for a model of numbers."""
    if not model.n_classes:
        raise UserError("this model predicts numbers, which have no class probabilities: use predict")
    return np.asarray(model.predict_proba(theta, check_rows(X, model.d)))


def predictions(model: Any, classes: list[Any], theta: NDArray[np.float64], X: ArrayLike) -> NDArray[Any]:
    """(n,) classes, or numbers."""
    found = model.predict(theta, check_rows(X, model.d))
    return np.asarray(classes)[found] if model.n_classes else np.asarray(found)
