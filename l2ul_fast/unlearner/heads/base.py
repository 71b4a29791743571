"""What every head offers: it takes rows out of what it keeps of the data and knows the model without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import Table

Vector = NDArray[np.float64]
Ids = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
Report = Callable[[str, int, int], None]


#: Why heads without integer sums are due after every request.
NOT_AT_OPTIMUM = "the parameters are not at the optimum of the rows that stay"
#: theta after a seal is a multiple of this: coarser than what rounding does to an optimum, far finer than a row's part.
THETA_GRID = 2.0**-30


class Rows(NamedTuple):
    """Rows of a request: X (r, d), y (r,) class indices or targets, weights (r,) or None, their numbers ids (r,)."""

    X: NDArray[Any]
    y: NDArray[Any]
    weights: Vector | None
    ids: Ids


class CannotLearn(UserError):
    """This head can only forget."""


class Head(Protocol):
    """theta of the rows that stay, and how it changes when rows leave or come.

    `forget` and `learn` either do all of their work or raise and change nothing. A head without integer sums is not
    exact: `refresh` then seals it, that is, brings theta to the optimum of the rows that stay, down to rounding.
    """

    kind: ClassVar[str]
    #: Estimated error down to which every request takes passes over the rows; None: an answer needs none.
    passes_until: ClassVar[float | None]
    model: Any

    @property
    def theta(self) -> Vector:
        """(p,), a copy."""

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """(C,) rows of each class that stay; empty for models of numbers."""

    @property
    def error(self) -> float | None:
        """Estimated rho of everything forgotten since `fit` or the latest refresh; None where it is not known."""

    @property
    def tier(self) -> str:
        """What the latest answer is made of."""

    @property
    def due(self) -> str | None:
        """Why `refresh` should make a pass over the rows, or None."""

    def forget(self, rows: Rows) -> None:
        """Take rows out that are in."""

    def learn(self, rows: Rows) -> None:
        """Add rows; CannotLearn where the head cannot."""

    def refine(self, table: Table, rtol: float) -> None:
        """Passes over the rows that stay until the error is at most rtol."""

    def refresh(self, table: Table | None, forgotten: Ids, report: Report) -> dict[str, Any]:
        """Make everything that is kept a function of the rows that stay, with as many passes over them as it takes.

        table: the rows that stay, None where they are not kept. Returns what was done.
        """

    def facts(self) -> dict[str, Any]:
        """JSON values that `from_arrays` needs."""

    def arrays(self) -> Arrays:
        """What is saved, besides facts."""

    @classmethod
    def from_arrays(cls, model: Any, facts: dict[str, Any], arrays: Arrays) -> Self:
        """The head that `facts` and `arrays` were taken from; ValueError if they do not fit each other."""
