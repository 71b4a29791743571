"""NegGrad+: gradient descent on retained rows and ascent on the forgotten ones at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Ids, Outcome
from l2ul_fast.baselines.minibatch import Dealt, Recipe, RecipeLike, descent, edges, orders
from l2ul_fast.checks import NotNegative, Share, checked
from l2ul_fast.protocols import Style


class NegGrad(Dealt):
    """Minimises keep * loss(retained batch) - (1 - keep) * loss(forget batch); forget batches are taken in turn.

    The penalty stays as in training. More epochs do not mean more forgetting: the loss of the forgotten rows has no
    upper bound, so this can go far beyond what retraining does.
    """

    name = "neggrad"
    style = Style("NegGrad", "orange", "X")
    table_order = 110

    @checked
    def __init__(self, recipe: RecipeLike | None = None, keep: Share = 0.95, tol: NotNegative = 1e-10) -> None:
        self.recipe, self.keep, self.tol = recipe or Recipe(epochs=1, rate=1e-3, adam=False), keep, tol

    def _prepare(self) -> None:
        self.theta = self.model.fit(self.table, tol=self.tol).theta
        deal = self._deal_rows()
        self._starts = edges(len(deal.y), self.recipe.batch)
        self._descent = descent(deal.X, deal.y, self.model)

    def _outcome(self, ids: Ids) -> Outcome:
        deal, batch = self._deal, self.recipe.batch
        places = np.random.default_rng([self.seed, 15]).permuted(self._place[ids])
        order = orders(len(self._starts) - 1, self.recipe.epochs, [12, self.seed])
        first = np.arange(len(order)) % -(-len(ids) // batch) * batch
        # visits of the forgotten rows stand behind all others, where only `extra` reaches them
        away = len(deal.y) + np.stack([first, np.minimum(first + batch, len(ids))], axis=1)
        visits = np.concatenate([np.arange(len(deal.y)), places])
        climb: dict[str, Any] = {"extra": away, "extra_weight": -(1 - self.keep), "keep": self.keep}
        how = {"adam": self.recipe.adam, "weights": deal.without(places), **climb}
        starts, rates = np.append(self._starts, len(visits)), self.recipe.rates(len(order))
        run = self._descent.train(self.theta, visits, starts, order, rates, **how)
        return Outcome(run.theta, {"steps": len(order), "keep": self.keep}, {})

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), self._starts]
