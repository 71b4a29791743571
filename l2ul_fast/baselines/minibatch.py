"""Minibatch training on a table's rows, compiled: batches come from row numbers, so that runs with and without some
rows are coupled.

The rows of a table, hidden ones included, are put in an order drawn from the seed and cut into batches; those that are
not there have weight 0. So taking rows out never moves the others to another batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Baseline, Ids, Vector, penalty_strength, total_rows
from l2ul_fast.checks import Flag, Having, Whole, Within
from l2ul_fast.tables import ArrayTable, Table
from l2ul_kernels.sgd.descent import Descent
from l2ul_kernels.sgd.shuffle import shuffle

#: Rows of the Adam run that gives an MLP without an anchor its start, and its epochs.
START_ROWS, START_EPOCHS = 20_000, 20


@dataclass(frozen=True)
class Recipe:
    """Epochs, batch size and rate of minibatch training. decay: the rate falls to 0 as half a cosine over the run."""

    epochs: int = 20
    batch: int = 128
    rate: float = 0.01
    adam: bool = True
    decay: bool = True

    def __post_init__(self) -> None:
        Whole(0, 10**7)("epochs", self.epochs)
        Whole(1)("batch", self.batch)
        Within(0.0, above=True)("rate", self.rate)
        Flag()("adam", self.adam)
        Flag()("decay", self.decay)

    def rates(self, steps: int) -> Vector:
        """(steps,) learning rates."""
        if not self.decay:
            return np.full(steps, self.rate)
        return self.rate * 0.5 * (1 + np.cos(np.pi * np.arange(steps) / max(steps, 1)))


RecipeLike = Annotated[Recipe, Having(("epochs", "batch", "rate", "rates"), "a Recipe")]


def start_of(model: Any, seed: int) -> Vector:
    """(p,) the model's own start: zeros for a linear model, drawn from the seed for the MLP."""
    return np.asarray(model.start(seed) if model.name == "mlp" else model.start())


def descent(X: NDArray[Any], y: NDArray[np.uint8], model: Any, keep_scratch: bool = False) -> Descent:
    """Compiled gradient descent for a model on rows X (n, d), y (n,)."""
    kind = "mlp" if model.name == "mlp" else getattr(model, "kind", "lr")
    options = {"h": model.h, "activation": model.activation} if kind == "mlp" else {}
    centre = getattr(model, "anchor", None)
    lam = penalty_strength(model)
    return Descent(X, y, kind, model.n_classes, lam=lam, centre=centre, keep_scratch=keep_scratch, **options)


def row_order(table: ArrayTable, seed: int) -> Ids:
    """(N,) all row numbers in an order drawn from the seed."""
    return np.random.default_rng([seed, 11]).permutation(len(table.X))


class Deal:
    """Rows in training order: copies X (k, d), y (k,) of the rows `order` (k,), and weights (k,): 1, or 0 for rows that
    are not there, whose features are zeros.

    A copy, because rows in random order of a table larger than the caches take several times as long to fetch as to
    use. Batches are cut by place, so rows that leave never move others to another batch.
    """

    def __init__(self, table: ArrayTable, order: Ids) -> None:
        here = np.zeros(len(table.X), bool)
        here[table.ids()] = True
        there = here[order]
        self.X, self.y = np.zeros((len(order), table.d), table.X.dtype), np.zeros(len(order), np.uint8)
        if there.all():
            np.take(table.X, order, axis=0, out=self.X, mode="clip")  # "raise" would copy everything once more
            np.take(table.y, order, out=self.y, mode="clip")
        else:
            self.X[there], self.y[there] = table.X[order[there]], table.y[order[there]]
        self.weights = there.astype(np.float64)

    def without(self, places: Ids) -> Vector:
        """The weights when the rows at these places are gone."""
        weights = self.weights.copy()
        weights[places] = 0.0
        return weights

    def drop(self, places: Ids) -> None:
        """Take the rows at these places out for good."""
        self.weights[places] = 0.0
        self.X[places], self.y[places] = 0, 0

    def arrays(self) -> list[NDArray[Any]]:
        return [self.X, self.y, self.weights]


class Dealt(Baseline):
    """Base of methods that train in minibatches on all rows, in an order drawn from the seed."""

    in_memory = True

    def _deal_rows(self) -> Deal:
        order = row_order(self.table, self.seed)
        self._deal, self._place = Deal(self.table, order), places_of(order, len(order))
        return self._deal

    def _committed(self, ids: Ids) -> None:
        self._deal.drop(self._place[ids])

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), *self._deal.arrays(), self._place]


def places_of(order: Ids, total: int) -> Ids:
    """(total,) the place of every row number in `order`, or -1."""
    place = np.full(total, -1, np.int64)
    place[order] = np.arange(len(order))
    return place


def orders(batches: int, epochs: int, seed: Any) -> Ids:
    """(epochs * batches,) the batch of every step: each epoch takes all, in an order of its own."""
    rng = np.random.default_rng(seed)
    return rng.permuted(np.tile(np.arange(batches), (epochs, 1)), axis=1).ravel()


def edges(count: int, batch: int) -> Ids:
    """starts (batches + 1,) of the batches of `count` visits."""
    return np.append(np.arange(0, count, batch), count)


def train_rows(
    rows: Deal,
    model: Any,
    start: Vector,
    recipe: Recipe,
    seed: Any,
    weights: Vector | None = None,
    end: int | None = None,
    workers: int | None = None,
) -> tuple[Vector, int]:
    """(theta, steps) after training on dealt rows (those up to place `end`) from start (p,)."""
    weights, starts = (
        rows.weights if weights is None else weights,
        edges(len(rows.y) if end is None else end, recipe.batch),
    )
    order = orders(len(starts) - 1, recipe.epochs, [12, *seed] if isinstance(seed, list) else [12, seed])
    how: dict[str, Any] = {"adam": recipe.adam, "weights": weights, "workers": workers}
    done = descent(rows.X, rows.y, model).train(start, None, starts, order, recipe.rates(len(order)), **how)
    return done.theta, len(order)


def train_stages(run: Descent, stages: list[tuple[Ids, Recipe]], start: Vector, seed: int) -> tuple[Vector, list[int]]:
    """(theta, steps of each) after two stages, each an optimiser of its own, as one compiled call.

    A stage: visits (k,) to rows, which every epoch takes in an order of its own; and how it trains. Both use Adam, or
    neither does; a stage without epochs may say what it likes.
    """
    adam = any(recipe.adam and recipe.epochs > 0 for _, recipe in stages)
    visits: list[Ids] = []
    starts, rates, total = [], [], 0
    for pool, recipe in stages:
        for _ in range(recipe.epochs):
            order = pool.copy()
            shuffle(order, seed, len(visits))
            visits.append(order)
            starts.append(np.arange(total, total + len(pool), recipe.batch))
            total += len(pool)
        rates.append(recipe.rates(recipe.epochs * -(-len(pool) // recipe.batch)))
    first, second = (len(rate) for rate in rates)
    ids, edges = np.concatenate(visits or [stages[0][0][:0]]), np.concatenate([*starts, [total]])
    done = run.train(start, ids, edges, np.arange(first + second), np.concatenate(rates), adam=adam, restart=first)
    return done.theta, [first, second]


def few_rows(table: Table, seed: int, limit: int = START_ROWS) -> ArrayTable:
    """At most `limit` rows of a table, chosen by their numbers: rows that leave it are not replaced by others."""
    total, ids = total_rows(table), table.ids()
    chosen = np.sort(np.random.default_rng([seed, 13]).choice(total, min(limit, total), replace=False, shuffle=False))
    hidden = ids[np.minimum(np.searchsorted(ids, chosen), len(ids) - 1)] != chosen
    X_there, y_there = table.take(chosen[~hidden])
    X, y = np.zeros((len(chosen), table.d), X_there.dtype), np.zeros(len(chosen), np.uint8)
    X[~hidden], y[~hidden] = X_there, y_there
    return ArrayTable(X, y, table.classes, hidden=hidden)


def coupled_start(table: Table, model: Any, seed: int) -> Vector:
    """(p,) a start near a minimum for Newton's method on an MLP: Adam on few rows."""
    few = few_rows(table, seed)
    rows = Deal(few, row_order(few, seed))
    return train_rows(rows, model, start_of(model, seed), Recipe(epochs=START_EPOCHS), seed)[0]
