"""What a request gives back: the new model, and how far it is to be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import check_rows

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL
    from l2ul_fast.unlearner.notes import Block


class NotFitted(UserError, AttributeError):
    """Asked for something that only a fitted unlearner has."""


class Unfitted:
    """In place of all that `fit` makes."""

    def __getattr__(self, name: str) -> Any:
        raise NotFitted("this unlearner is not fitted yet: call fit, or load a saved one")


def finite(value: Any) -> Any:
    """A report with None where a number is infinite or NaN: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


class RetrainInstead(UserWarning):
    """The request is outside what the unlearner was trained for."""

    def __init__(self, r: int, n: int, largest: float) -> None:
        super().__init__(
            f"{r} of {n} rows is more than this unlearner was trained for ({largest:.1%}): retrain instead"
        )
        self.r, self.n, self.largest = r, n, largest


@dataclass(frozen=True)
class Trust:
    """share: r / n. largest: the largest share in the training pairs. distance: how unusual the request's gradient is,
    1 = as large as the 99th percentile of the training pairs (None for the direct head). advice: "ok" or "retrain
    instead".
    """

    share: float
    largest: float
    distance: float | None
    advice: str


class Unlearned:
    """The model without the rows of one request. theta (p,), rows (r,), predict, predict_proba, trust."""

    __slots__ = ("_block", "_k", "_rows", "_unlearner", "n")

    def __init__(self, unlearner: L2UL, block: Block, k: int, n: int, rows: NDArray[np.int64] | None) -> None:
        """Request k of a block; n: rows that are left; rows: None for the one that the block names."""
        self._unlearner, self._block, self._k, self.n, self._rows = unlearner, block, k, n, rows

    @property
    def theta(self) -> NDArray[np.float64]:
        return self._block.thetas[self._k + 1]

    @property
    def rows(self) -> NDArray[np.int64]:
        return self._block.rows[self._k : self._k + 1] if self._rows is None else self._rows

    @property
    def trust(self) -> Trust:
        """How this request compares with those the unlearner was trained on."""
        learned, r = self._unlearner.learned, self.rows.size
        share = r / (self.n + r)
        distance = None
        if r and not np.isnan(self._block.totals[self._k, 0]):
            z = self._block.totals[self._k] / np.sqrt(r)
            distance = learned.distance(z, self._unlearner.step.inverse_hessian(self.n))
        fine = share <= learned.largest and (distance is None or distance <= 2.0)
        return Trust(share, learned.largest, distance, "ok" if fine else "retrain instead")

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities (n, C)."""
        return self._unlearner.model.predict_proba(self.theta, check_rows(X, self._unlearner.d))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The likeliest class of each row."""
        index = self._unlearner.model.predict(self.theta, check_rows(X, self._unlearner.d))
        return np.asarray(self._unlearner.classes_)[index]
