"""DeltaGrad (Wu, Dobriban, Davidson 2020): replay gradient descent from cached gradients, few of them computed anew."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Ids, Outcome, Vector, penalty_strength, steepest
from l2ul_fast.baselines.minibatch import Dealt, Recipe, descent, edges, orders, start_of
from l2ul_fast.checks import Count, NotNegative, Number0, Positive, Switch, Times, checked
from l2ul_fast.protocols import Style
from l2ul_kernels.sgd.descent import Trace


class DeltaGrad(Dealt):
    """Trains by plain minibatch gradient descent and keeps every iterate and gradient; a request replays the run.

    Steps are exact for `burn_in` steps after the paths part and every `period` steps; in between the cached gradient is
    corrected by L-BFGS with `memory` pairs. A step is exact too where L-BFGS would stretch by more than `limit` (0: no
    limit). It is 1 for an MLP; a linear model's is twice what its Hessian can be: after a committed request the cached
    gradients are approximate, and pairs made from them can be wild. as_published: a batch that is forgotten as a whole
    leaves the cache one step behind, the penalty of the forgotten rows is taken at the cached parameters, the burn-in
    counts from the first step, and a linear model has no limit. `epochs` and `batch` None: the published 20 and 16,384
    on large tables, smaller batches and more epochs on those that 20 epochs of one batch would leave untrained.
    """

    name = "deltagrad"
    style = Style("DeltaGrad", "green", "v")
    table_order = 40

    @checked
    def __init__(
        self,
        epochs: Times | None = None,
        batch: Count | None = None,
        rate: Positive = 0.1,
        memory: Times = 2,
        burn_in: Number0 | None = None,
        period: Count = 5,
        limit: NotNegative | None = None,
        as_published: Switch = False,
    ) -> None:
        self.epochs, self.batch, self.rate = epochs, batch, rate
        self.memory, self.burn_in, self.period, self.limit = memory, burn_in, period, limit
        self.as_published = as_published

    @property
    def trains_like_A(self) -> bool:
        return False

    def _prepare(self) -> None:
        table, mlp = self.table, self.model.name == "mlp"
        batch = min(16384, max(256, table.n // 20)) if self.batch is None else self.batch
        few = self.batch is None and 20 * table.n < 1000 * batch
        epochs = (50 if few else 20) if self.epochs is None else self.epochs
        self.recipe = Recipe(epochs, batch, self.rate, adam=False, decay=False)
        deal = self._deal_rows()
        self.starts = edges(len(deal.y), self.recipe.batch)
        self.batch_order = orders(len(self.starts) - 1, self.recipe.epochs, [12, self.seed])
        self._options: dict[str, Any] = {
            "memory": self.memory,
            "burn_in": (80 if mlp else 20) if self.burn_in is None else self.burn_in,
            "period": self.period,
            "limit": self._default_limit() if self.limit is None else self.limit,
            "published": self.as_published,
        }
        self._descent = descent(deal.X, deal.y, self.model)
        self.trace = self._run(deal.weights, True)
        self.theta = self.trace.theta

    def _run(self, weights: Vector, trace: bool = False) -> Trace:
        """The run on the rows with a weight, every gradient computed."""
        start, rate = start_of(self.model, self.seed), self.recipe.rate
        return self._descent.train(start, None, self.starts, self.batch_order, rate, weights=weights, trace=trace)

    def _default_limit(self) -> float:
        if self.model.name == "mlp":
            return 1.0
        if self.as_published:
            return 0.0
        return float(2 * (steepest(self.model, self.table)[0] / self.n + penalty_strength(self.model).max()))

    def _outcome(self, ids: Ids) -> Outcome:
        places = np.sort(self._place[ids])
        how = {"weights": self._deal.weights, "keep_trace": True, **self._options}
        done = self._descent.replay(self.trace, places, None, self.starts, self.batch_order, self.recipe.rate, **how)
        facts = {"exact_steps": done.exact, "quasi_steps": done.quasi, "copied_steps": done.copied, "pairs": done.pairs}
        return Outcome(done.theta, facts, {"trace": done.trace})

    def _committed(self, ids: Ids) -> None:
        super()._committed(ids)  # the trace is the new run's already
        if self.limit is None:
            self._options["limit"] = self._default_limit()

    def retrained(self, forget: Any) -> Vector:
        """theta of the same run replayed with exact gradients throughout: what the answer approximates."""
        return self._run(self._deal.without(self._place[self._ids(forget)])).theta

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), self.trace.W, self.trace.G, self.starts, self.batch_order]
