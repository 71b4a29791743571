"""Fine-tune: go on training on the retained rows and hope that the others fade."""

from __future__ import annotations

from l2ul_fast.baselines.base import Ids, Outcome
from l2ul_fast.baselines.minibatch import Dealt, Recipe, RecipeLike, train_rows
from l2ul_fast.checks import NotNegative, checked
from l2ul_fast.protocols import Style


class Finetune(Dealt):
    """`recipe.epochs` epochs on the retained rows from theta; the forgotten rows have weight 0."""

    name = "finetune"
    style = Style("Fine-tune", "green", ">")
    table_order = 90

    @checked
    def __init__(self, recipe: RecipeLike | None = None, tol: NotNegative = 1e-10) -> None:
        self.recipe, self.tol = recipe or Recipe(epochs=1, rate=1e-3), tol

    def _prepare(self) -> None:
        self.theta = self.model.fit(self.table, tol=self.tol).theta
        self._deal_rows()

    def _outcome(self, ids: Ids) -> Outcome:
        weights = self._deal.without(self._place[ids])
        theta, steps = train_rows(self._deal, self.model, self.theta, self.recipe, self.seed, weights)
        return Outcome(theta, {"steps": steps, "sample_visits": self.recipe.epochs * (self.n - len(ids))}, {})
