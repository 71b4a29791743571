"""Minibatch training on a table's rows, compiled: batches come from row numbers, so that runs with and without some
rows are coupled.

The rows of a table, hidden ones included, are put in an order drawn from the seed and cut into batches; then those that
are not there drop out of their batches. So taking rows out never moves the others to another batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Ids, Vector, penalty_strength, total_rows
from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable, Table
from l2ul_kernels.sgd import Descent

#: Rows of the Adam run that gives an MLP without an anchor its start, and its epochs.
START_ROWS, START_EPOCHS = 20_000, 20


@dataclass(frozen=True)
class Recipe:
    """How minibatch training goes. decay: the rate falls to 0 as half a cosine over the run."""

    epochs: int = 20
    batch: int = 128
    rate: float = 0.01
    adam: bool = True
    decay: bool = True

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch < 1 or not self.rate > 0:
            raise UserError(
                f"epochs >= 0, batch >= 1 and rate > 0 are needed, got {self.epochs}, {self.batch}, {self.rate}"
            )

    def rates(self, steps: int) -> Vector:
        """(steps,) learning rates."""
        if not self.decay:
            return np.full(steps, self.rate)
        return self.rate * 0.5 * (1 + np.cos(np.pi * np.arange(steps) / max(steps, 1)))

    def start(self, model: Any, seed: int) -> Vector:
        """(p,) where training begins."""
        return start_of(model, seed)


def start_of(model: Any, seed: int) -> Vector:
    """(p,) the model's own start: zeros for a linear model, drawn from the seed for the MLP."""
    return np.asarray(model.start(seed) if model.name == "mlp" else model.start())


def descent(table: ArrayTable, model: Any) -> Descent:
    """Compiled gradient descent for a model on the rows of a table."""
    kind = "mlp" if model.name == "mlp" else getattr(model, "kind", "lr")
    options = {"h": model.h, "activation": model.activation} if kind == "mlp" else {}
    centre = getattr(model, "anchor", None)
    return Descent(table.X, table.y, kind, model.n_classes, lam=penalty_strength(model), centre=centre, **options)


def visible(table: ArrayTable) -> NDArray[np.bool_]:
    """(N,) which rows of the array are there."""
    mask = np.zeros(len(table.X), bool)
    mask[table.ids()] = True
    return mask


def cut(order: Ids, present: NDArray[np.bool_], batch: int) -> tuple[Ids, Ids]:
    """(ids (k,), starts (batches + 1,)): `order` cut into batches, then without the rows that are not present."""
    there = present[order]
    edges = np.append(np.arange(0, len(order), batch), len(order))
    starts = np.concatenate([[0], np.cumsum(there)])[edges]
    return order[there], starts


class Deal:
    """The batches of a table's rows: ids (n,) batch by batch, starts (batches + 1,), place (N,) of a row in ids or -1."""

    def __init__(self, table: ArrayTable, seed: int, batch: int) -> None:
        order = np.random.default_rng([seed, 11]).permutation(len(table.X))
        self.ids, self.starts = cut(order, visible(table), batch)
        self.place = np.full(len(table.X), -1, np.int64)
        self.place[self.ids] = np.arange(len(self.ids))

    def without(self, ids: Ids) -> tuple[Ids, Ids]:
        """(ids, starts) when these rows have dropped out."""
        places = np.sort(self.place[ids])
        return np.delete(self.ids, places), self.starts - np.searchsorted(places, self.starts)

    def drop(self, ids: Ids) -> None:
        """Take rows out for good."""
        self.ids, self.starts = self.without(ids)
        self.place[:] = -1
        self.place[self.ids] = np.arange(len(self.ids))

    def arrays(self) -> list[NDArray[Any]]:
        return [self.ids, self.starts, self.place]


def orders(batches: int, epochs: int, seed: Any) -> Ids:
    """(epochs * batches,) the batch of every step: each epoch takes all, in an order of its own."""
    rng = np.random.default_rng(seed)
    return rng.permuted(np.tile(np.arange(batches), (epochs, 1)), axis=1).ravel()


def train_rows(
    table: ArrayTable, model: Any, start: Vector, ids: Ids, starts: Ids, recipe: Recipe, seed: Any,
    workers: int | None = None,
) -> tuple[Vector, int]:  # fmt: skip
    """(theta, steps) after training on batches of a table's rows from start (p,)."""
    order = orders(len(starts) - 1, recipe.epochs, [12, *np.atleast_1d(seed)])
    run = descent(table, model).train(
        start, ids, starts, order, recipe.rates(len(order)), adam=recipe.adam, workers=workers
    )
    return run.theta, len(order)


def coupled_start(table: Table, model: Any, seed: int) -> Vector:
    """(p,) a start near a minimum for Newton's method: Adam on at most START_ROWS rows, chosen by their numbers."""
    order = np.random.default_rng([seed, 13]).permutation(total_rows(table))
    chosen = np.sort(order[:START_ROWS])
    there = np.isin(chosen, table.ids())
    X_there, y_there = table.take(chosen[there])
    X, y = np.zeros((len(chosen), table.d), X_there.dtype), np.zeros(len(chosen), np.uint8)
    X[there], y[there] = X_there, y_there
    few = ArrayTable(X, y, table.classes, hidden=~there)
    recipe = Recipe(epochs=START_EPOCHS)
    dealt = Deal(few, seed, recipe.batch)
    return train_rows(few, model, start_of(model, seed), dealt.ids, dealt.starts, recipe, seed)[0]
