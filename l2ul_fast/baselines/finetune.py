"""Fine-tune: go on training on the retained rows and hope that the others fade."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from l2ul_fast.baselines.base import Baseline, Ids, Outcome
from l2ul_fast.baselines.minibatch import Deal, Recipe, places_of, row_order, train_rows
from l2ul_fast.protocols import Style


class Finetune(Baseline):
    """`recipe.epochs` epochs on the retained rows from theta; the forgotten rows have weight 0."""

    name = "finetune"
    style = Style("Fine-tune", "green", ">")
    table_order = 90
    in_memory = True

    def __init__(self, recipe: Recipe | None = None, tol: float = 1e-10) -> None:
        self.recipe, self.tol = recipe or Recipe(epochs=1, rate=1e-3), tol

    def _prepare(self) -> None:
        table = self._in_memory(self.table)
        self.theta = self.model.fit(table, tol=self.tol).theta
        order = row_order(table, self.seed)
        self._deal, self._place = Deal(table, order), places_of(order, len(order))

    def _outcome(self, ids: Ids) -> Outcome:
        assert self.theta is not None
        weights = self._deal.without(self._place[ids])
        theta, steps = train_rows(self._deal, self.model, self.theta, self.recipe, self.seed, weights)
        return Outcome(theta, {"steps": steps, "sample_visits": self.recipe.epochs * (self.n - len(ids))}, {})

    def _committed(self, ids: Ids) -> None:
        self._deal.drop(self._place[ids])

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), *self._deal.arrays(), self._place]
