"""Fine-tune: go on training on the retained rows and hope that the others fade."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from l2ul_fast.baselines.base import Baseline, Ids, Outcome
from l2ul_fast.baselines.minibatch import Deal, Recipe, train_rows
from l2ul_fast.tables import ArrayTable


class Finetune(Baseline):
    """`recipe.epochs` epochs on the retained rows from theta; the forgotten rows are never read."""

    name = "finetune"
    in_memory = True

    def __init__(self, recipe: Recipe | None = None, tol: float = 1e-10) -> None:
        self.recipe, self.tol = recipe or Recipe(epochs=1, rate=1e-3), tol

    def _prepare(self) -> None:
        assert isinstance(self.table, ArrayTable)
        self.theta = self.model.fit(self.table, tol=self.tol).theta
        self._deal = Deal(self.table, self.seed, self.recipe.batch)

    def _outcome(self, ids: Ids) -> Outcome:
        assert self.theta is not None
        assert isinstance(self.table, ArrayTable)
        rows, starts = self._deal.without(ids)
        theta, steps = train_rows(self.table, self.model, self.theta, rows, starts, self.recipe, self.seed)
        return Outcome(theta, {"steps": steps, "sample_visits": self.recipe.epochs * len(rows)}, {})

    def _committed(self, ids: Ids) -> None:
        self._deal.drop(ids)

    def _arrays(self) -> list[NDArray[Any]]:
        return super()._arrays() + self._deal.arrays()
