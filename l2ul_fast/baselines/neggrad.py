"""NegGrad+: gradient descent on retained rows and ascent on the forgotten ones at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Baseline, Ids, Outcome
from l2ul_fast.baselines.minibatch import Deal, Recipe, descent, orders
from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable


class NegGrad(Baseline):
    """Minimises keep * loss(retained batch) - (1 - keep) * loss(forget batch); forget batches are taken in turn.

    The penalty stays as in training. More epochs do not mean more forgetting: the loss of the forgotten rows has no
    upper bound, so this can go far beyond what retraining does.
    """

    name = "neggrad"
    in_memory = True

    def __init__(self, recipe: Recipe | None = None, keep: float = 0.95, tol: float = 1e-10) -> None:
        if not 0 <= keep <= 1:
            raise UserError(f"keep must lie in 0..1, got {keep}")
        self.recipe, self.keep, self.tol = recipe or Recipe(epochs=1, rate=1e-3, adam=False), keep, tol

    def _prepare(self) -> None:
        assert isinstance(self.table, ArrayTable)
        self.theta = self.model.fit(self.table, tol=self.tol).theta
        self._deal = Deal(self.table, self.seed, self.recipe.batch)

    def _outcome(self, ids: Ids) -> Outcome:
        assert self.theta is not None
        assert isinstance(self.table, ArrayTable)
        rows, starts = self._deal.without(ids)
        order = orders(len(starts) - 1, self.recipe.epochs, [12, self.seed])
        turns = -(-len(ids) // self.recipe.batch)
        first = np.arange(len(order)) % turns * self.recipe.batch
        away = len(rows) + np.stack([first, np.minimum(first + self.recipe.batch, len(ids))], axis=1)
        everything = np.concatenate([rows, np.random.default_rng([self.seed, 15]).permuted(ids)])
        run = descent(self.table, self.model).train(
            self.theta, everything, np.append(starts, len(everything)), order, self.recipe.rates(len(order)),
            adam=self.recipe.adam, extra=away, extra_weight=-(1 - self.keep), keep=self.keep,
        )  # fmt: skip
        return Outcome(run.theta, {"steps": len(order), "keep": self.keep}, {})

    def _committed(self, ids: Ids) -> None:
        self._deal.drop(ids)

    def _arrays(self) -> list[NDArray[Any]]:
        return super()._arrays() + self._deal.arrays()
