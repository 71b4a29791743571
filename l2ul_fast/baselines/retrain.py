"""Retrain without the rows: the answer that all others are measured against."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Ids, Outcome, Vector, hessian_of, penalty_strength
from l2ul_fast.baselines.minibatch import Dealt, Recipe, RecipeLike, coupled_start, few_rows, start_of, train_rows
from l2ul_fast.checks import NotNegative, OneOf, Switch, checked
from l2ul_fast.protocols import Style
from l2ul_fast.tables import Table

#: Rows from which on a cold fit of logistic regression begins with a fit of few rows: it saves about three passes.
FEW_PAY = 200_000

Solver = Annotated[str, OneOf(("exact", "minibatch"))]


class Retrain(Dealt):
    """Trains on the retained rows, from the same start as the first time (cold) or from the present theta (warm).

    solver "exact" goes to a gradient norm of tol: Newton's method, one pass over the table per step, so any table will
    do. On many rows logistic regression begins with a fit of few of them, whose Hessian then saves that of all rows
    (see models.fit.chord); a warm start uses the Hessian kept from training. An MLP without an anchor begins with a
    short Adam run on few rows. Both choose rows and batches by row number, so that full and retained fits are coupled.
    solver "minibatch" runs `recipe` and nothing else, on rows in memory.
    """

    name = "retrain"
    style = Style("Retrain", "ink", "s")
    table_order = 10
    exact = True

    @checked
    def __init__(
        self, warm: Switch = False, solver: Solver = "exact", tol: NotNegative = 1e-10, recipe: RecipeLike | None = None
    ) -> None:
        if warm:
            self.name = WarmRetrain.name
        self.warm, self.solver, self.tol, self.recipe = warm, solver, tol, recipe or Recipe()
        self.in_memory = solver == "minibatch"

    def _prepare(self) -> None:
        if self.solver == "minibatch":
            self.theta, self.prepare_facts = self._run(None, self._deal_rows().weights)
        else:
            self._metric: Vector | None = None
            self.theta, self.prepare_facts = self._fit(self.table, None)
            self._keep_metric()

    def _outcome(self, ids: Ids) -> Outcome:
        start = self.theta if self.warm else None
        if self.solver == "minibatch":
            return Outcome(*self._run(start, self._deal.without(self._place[ids])), {})
        return Outcome(*self._fit(self.table.without(ids), start), {})

    def _committed(self, ids: Ids) -> None:
        if self.solver == "minibatch":
            super()._committed(ids)
        else:
            self._keep_metric()

    def _keep_metric(self) -> None:
        """The Hessian of the present rows at theta, for warm starts; two classes (more have flat directions)."""
        if self.warm and self.model.n_classes == 2:
            total = hessian_of(self.model, self.theta, self.table)
            self._metric = total / self.n + np.diag(penalty_strength(self.model))

    def _run(self, start: Vector | None, weights: Vector) -> tuple[Vector, dict[str, Any]]:
        begin = start_of(self.model, self.seed) if start is None else start
        theta, steps = train_rows(self._deal, self.model, begin, self.recipe, self.seed, weights)
        return theta, {"steps": steps}

    def _fit(self, table: Table, start: Vector | None) -> tuple[Vector, dict[str, Any]]:
        facts: dict[str, Any] = {}
        metric = self._metric if start is not None else None
        if start is None and self.model.name == "mlp" and self.model.anchor is None:
            start = coupled_start(table, self.model, self.seed)
        elif start is None and self.model.name == "lr" and table.n >= FEW_PAY:
            few = few_rows(table, self.seed)
            if len(np.unique(few.y[few.ids()])) == self.model.n_classes:
                first = self.model.fit(few, tol=1e-6)
                start, metric, facts = first.theta, first.hessian, {"few_steps": first.steps}
        options: dict[str, Any] = {} if metric is None else {"metric": metric}
        if self.model.name == "mlp":
            options["curvature"] = False
        fit = self.model.fit(table, start=start, tol=self.tol, **options)
        facts |= {"steps": fit.steps, "gradient_norm": fit.gradient_norm, "converged": bool(fit.converged)}
        return fit.theta, facts

    def _arrays(self) -> list[NDArray[Any]]:
        if self.solver == "minibatch":
            return super()._arrays()
        return [self.theta] if self._metric is None else [self.theta, self._metric]


class WarmRetrain(Retrain):
    """Retrain that starts at the present theta."""

    name = "retrain-warm"
    style = Style("Retrain, warm start", "ink", "D")
    table_order = 20

    @checked
    def __init__(self, solver: Solver = "exact", tol: NotNegative = 1e-10, recipe: RecipeLike | None = None) -> None:
        super().__init__(True, solver, tol, recipe)
