"""Base class of the baselines: prepare (untimed), unlearn (timed by the caller), state_bytes.

A method is prepared once on a table and a model and then answers requests. An answer leaves the method as it was,
unless commit=True: then its state becomes that of the retained rows, and row numbers that left cannot be asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.checks import Flag, ModelLike, Number0, TableLike, checked
from l2ul_fast.errors import UserError
from l2ul_fast.protocols import Style
from l2ul_fast.tables import ArrayTable, Table
from l2ul_fast.unlearner.rows import row_numbers

Vector = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass
class Answer:
    """Answer to a request: parameters (None for an ensemble), predictions (n, C) of rows, and facts by name."""

    theta: Any
    predict_proba: Callable[[ArrayLike], Vector]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """A method's own answer: parameters or predictor, facts, and the attributes that change when it is committed."""

    theta: Any
    facts: dict[str, Any]
    state: dict[str, Any]
    predict_proba: Callable[[ArrayLike], Vector] | None = None


class Baseline:
    """Base of all methods. A method fills in `_prepare`, `_outcome` and, if it keeps more than theta, `_arrays`.

    Attributes after prepare: table, model, seed, n (rows now), theta (of the rows now; None for an ensemble),
    prepare_seconds.
    """

    name = "?"
    #: Name and marks in tables and plots, and the place there.
    style = Style("?")
    table_order = 1000
    #: Answers equal training without the rows (to the solver's precision).
    exact = False
    #: Reads rows by number again and again: needs an ArrayTable.
    in_memory = False

    theta: Any = None

    @property
    def trains_like_A(self) -> bool:
        """Whether its model is the minimiser of A's objective; else its answers approximate a retrain of its own."""
        return True

    @checked
    def prepare(self, table: TableLike, model: ModelLike, seed: Number0 = 0) -> None:
        """Train on the table and build what requests need."""
        start = time.perf_counter()
        if self.in_memory and not isinstance(table, ArrayTable):
            raise UserError(
                f"{self.name} needs its rows in memory, as it reads them many times: load them with tables.in_memory"
            )
        if table.d != model.d:
            raise UserError(f"the model has {model.d} features but the rows have {table.d}")
        self.table: Any = table
        self.model, self.seed, self.n = model, int(seed), table.n
        self._present = np.zeros(total_rows(table), bool)
        self._present[table.ids()] = True
        self._prepare()
        self.prepare_seconds = time.perf_counter() - start

    def unlearn(self, forget: ArrayLike, commit: bool = False) -> Answer:
        """The model without the rows with these numbers, in any order, each at most once."""
        ids = self._ids(forget)
        if commit is not True and commit is not False:
            commit = Flag()("commit", commit)
        if ids.size == 0:
            return self._answer(self._nothing())
        outcome = self._outcome(ids)
        if commit:
            for name, value in outcome.state.items():
                setattr(self, name, value)
            self.theta = outcome.theta
            self.table = self.table.without(ids)
            self._present[ids] = False
            self.n -= ids.size
            self._committed(ids)
        return self._answer(outcome)

    def state_bytes(self) -> int:
        """Bytes kept between requests beyond the training rows themselves."""
        return sum(array.nbytes for array in self._arrays())

    # --------------------------------------------------------------------------------------- what a method fills in

    def _prepare(self) -> None:
        raise NotImplementedError

    def _outcome(self, ids: Ids) -> Outcome:
        """The answer for row numbers ids (r,), ascending, r >= 1; changes nothing."""
        raise NotImplementedError

    def _committed(self, ids: Ids) -> None:
        """Called when the rows ids have left (n and theta are new already): take them out of what is kept."""

    def _arrays(self) -> list[NDArray[Any]]:
        """Everything that is kept."""
        return [] if self.theta is None else [self.theta]

    def _nothing(self) -> Outcome:
        """The answer of an empty request: the model as it is."""
        return Outcome(self.theta, {}, {})

    # --------------------------------------------------------------------------------------------------------- shared

    def _ids(self, forget: ArrayLike) -> Ids:
        if not hasattr(self, "table"):
            raise UserError(f"{self.name} must be prepared before it can unlearn")
        ids = np.sort(row_numbers(forget, self._present.size))
        if ids.size and (ids[0] < 0 or ids[-1] >= self._present.size):
            raise UserError(f"row {ids[0] if ids[0] < 0 else ids[-1]} does not exist")
        if not self._present[ids].all():
            raise UserError(f"row {ids[~self._present[ids]][0]} is not one of the rows of the model")
        if (ids[1:] == ids[:-1]).any():
            raise UserError(f"row {ids[1:][ids[1:] == ids[:-1]][0]} is asked for twice")
        if ids.size and ids.size >= self.n:
            raise UserError("all rows would be forgotten: there is nothing left to train on")
        return ids

    def _answer(self, outcome: Outcome) -> Answer:
        if outcome.predict_proba is not None:
            return Answer(outcome.theta, outcome.predict_proba, outcome.facts)
        theta, model = outcome.theta, self.model
        theta = theta.copy()
        return Answer(theta, lambda X: model.predict_proba(theta, X), outcome.facts)

    def _total(self, ids: Ids, theta: Vector) -> Vector:
        """(p,) sum over the rows of their gradient and the penalty's: what leaves the summed objective's gradient."""
        X, y = self.table.take(ids)
        return np.asarray(
            len(ids) * (self.model.data_gradient(theta, X, y) + self.model.penalty_gradient(theta)), np.float64
        )


def total_rows(table: Any) -> int:
    """Rows of the array or file, hidden ones included: row numbers lie below it."""
    return len(table.y)


def penalty_strength(model: Any) -> Vector:
    """(p,) diagonal of the penalty's Hessian."""
    return np.asarray(model.penalty_gradient(np.ones(model.size)) - model.penalty_gradient(np.zeros(model.size)))


def free_directions(model: Any) -> NDArray[np.float64] | None:
    """(p, p) to add to a Hessian where the objective has a flat direction: the intercepts of softmax regression."""
    if model.name != "lr" or model.n_classes == 2:
        return None
    free = (penalty_strength(model) == 0).astype(np.float64)
    return np.outer(free, free)


def steepest(model: Any, table: Table) -> tuple[float, float]:
    """(bound on the largest eigenvalue of a linear model's loss Hessian summed over the rows, norm of the longest row),
    constant feature included, in one pass over the table."""
    longest, gram = 0.0, np.zeros((model.d + 1, model.d + 1))
    for X, _ in table.blocks():
        rows = np.hstack([X.astype(np.float64), np.ones((len(X), 1))])
        gram += rows.T @ rows
        longest = max(longest, float(np.linalg.norm(rows, axis=1).max()))
    # how far the loss bends in the logits: squares by 1, the log-loss by s (1 - s), softmax by diag(p) - p p^T
    bend = 1.0 if hasattr(model, "kind") else 0.25 if model.n_classes == 2 else 0.5
    return bend * float(np.linalg.eigvalsh(gram)[-1]), longest


def hessian_of(model: Any, theta: Vector, table: Table) -> NDArray[np.float64]:
    """(p, p) sum over all rows of the loss Hessian at theta, penalty excluded, in one pass over the table."""
    strength, total = np.diag(penalty_strength(model)), np.zeros((model.size, model.size))
    for X, y in table.blocks():
        total += len(X) * (model.hessian(theta, X, y) - strength)
    return total
