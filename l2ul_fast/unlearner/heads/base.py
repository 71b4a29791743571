"""What every head offers: it takes rows out of what it keeps of the data and knows the model without them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import Table
from l2ul_fast.workers import Workers

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


class OutOfScale(UserError):
    """A row cannot be added to the present sums: a new expansion can."""


class Head(ABC):
    """theta of the rows that stay, and how it changes when rows leave or come.

    `forget` and `learn` either do all of their work or raise and change nothing. A head without integer sums is not
    exact: `refresh` then seals it, that is, brings theta to the optimum of the rows that stay, down to rounding.
    """

    kind: ClassVar[str]
    #: Whether it keeps integer sums, which rows leave without a trace; they are saved in a file of their own.
    exact_sums: ClassVar[bool] = False
    #: Estimated error down to which every request takes passes over the rows; None: an answer needs none.
    passes_until: ClassVar[float | None] = None
    model: Any
    #: What the latest answer is made of.
    tier: str
    #: Strength of the penalty, a constant and what each unit of weight adds, of heads that know weights of rows.
    penalty: tuple[float, float] | None = None
    _theta: Vector
    _counts: NDArray[np.int64]

    @property
    def theta(self) -> Vector:
        """(p,), a copy."""
        return self._theta.copy()

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """(C,) rows of each class that stay; empty for models of numbers."""
        return self._counts

    @property
    def least_rows(self) -> int:
        """Rows below which nothing can be learned anew."""
        return 1

    @property
    @abstractmethod
    def error(self) -> float | None:
        """Estimated rho of everything forgotten since `fit` or the latest refresh; None where it is not known."""

    @property
    @abstractmethod
    def due(self) -> str | None:
        """Why `refresh` should make a pass over the rows, or None."""

    @property
    def advice(self) -> str:
        """What to do about an answer that is far from a retrained model."""
        return "call refresh, or ask with rtol"

    @abstractmethod
    def forget(self, rows: Rows) -> None:
        """Take rows out that are in."""

    def forget_row(
        self, row: int, store: Any, status: NDArray[np.uint8]
    ) -> tuple[int, Vector, float | None, str | None]:
        """With exact sums: `forget` and all checks for one row of a store in memory, compiled as one call."""
        raise NotImplementedError

    @abstractmethod
    def learn(self, rows: Rows) -> None:
        """Add rows; CannotLearn where the head cannot, OutOfScale where only `expand_anew` can."""

    def expand_anew(self, table: Table) -> None:
        """Take over the rows of `table`, after OutOfScale."""
        raise NotImplementedError

    def warm(self, store: Any, status: NDArray[np.uint8]) -> None:  # noqa: B027 (most have nothing to do)
        """Compile, or load, what a request for rows of `store` calls; nothing changes."""

    @abstractmethod
    def refine(self, table: Table, rtol: float) -> None:
        """Passes over the rows that stay until the error is at most rtol."""

    @abstractmethod
    def refresh(
        self, table: Table | None, forgotten: Ids, report: Report, workers: Workers | None = None
    ) -> dict[str, Any]:
        """Make everything that is kept a function of the rows that stay, with as many passes over them as it takes.

        table: the rows that stay, None where they are not kept. workers: who make the passes, where the head can
        share them. Returns what was done.
        """

    def canonical(self) -> Vector:
        """theta (p,), made a function of the integer sums alone where there are some."""
        return self.theta

    def seal(self) -> None:  # noqa: B027
        """Clear what memory still tells of rows that left, in a state that is not due."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """JSON values that `from_arrays` needs."""

    @abstractmethod
    def arrays(self) -> Arrays:
        """What is saved, besides facts: functions of the rows that stay unless `due`."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, model: Any, facts: dict[str, Any], arrays: Arrays) -> Self:
        """The head that `facts` and `arrays` were taken from; ValueError if they do not fit each other."""


def on_grid(theta: Vector) -> Vector:
    """theta rounded to THETA_GRID, zeros positive."""
    return np.asarray(np.round(theta / THETA_GRID) * THETA_GRID + 0.0)


def checked(name: str, arrays: Arrays, shape: tuple[int, ...], dtype: type = np.float64) -> NDArray[Any]:
    """A copy of a saved array; ValueError unless it has this shape and type and all its values are finite."""
    found = np.array(arrays[name])
    if found.shape != shape or found.dtype != dtype or not np.isfinite(found).all():
        raise ValueError(f"{name}, which does not fit the model")
    return found


def checked_counts(name: str, arrays: Arrays, classes: int) -> NDArray[np.int64]:
    """Saved numbers of rows of each class; ValueError where they can be none."""
    found = np.array(arrays[name])
    right = found.shape == (classes,) and found.dtype == np.int64 and found.min(initial=0) >= 0
    if not right or (classes and not found.any()):
        raise ValueError(f"{name}, the rows of each class, which do not add up or do not fit the model")
    return found
