"""Retrain without the rows: the answer that all others are measured against."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from l2ul_fast.baselines.base import Baseline, Ids, Outcome, Vector
from l2ul_fast.baselines.minibatch import Deal, Recipe, coupled_start, train_rows
from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable, Table


class Retrain(Baseline):
    """Trains on the retained rows, from the same start as the first time (cold) or from the present theta (warm).

    solver "exact" goes to a gradient norm of tol: Newton's method, one pass over the table per step, so any table will
    do. An MLP without an anchor then starts from a short Adam run whose batches come from row numbers, coupled between
    full and retained rows. solver "minibatch" runs `recipe` and nothing else, on rows in memory.
    """

    exact = True

    def __init__(
        self, warm: bool = False, solver: str = "exact", tol: float = 1e-10, recipe: Recipe | None = None
    ) -> None:
        if solver not in ("exact", "minibatch"):
            raise UserError(f'the solver must be "exact" or "minibatch", got {solver!r}')
        self.name = "retrain-warm" if warm else "retrain"
        self.warm, self.solver, self.tol, self.recipe = warm, solver, tol, recipe or Recipe()
        self.in_memory = solver == "minibatch"

    def _prepare(self) -> None:
        if self.solver == "minibatch":
            assert isinstance(self.table, ArrayTable)
            self._deal = Deal(self.table, self.seed, self.recipe.batch)
            self.theta, self.prepare_facts = self._run(None, self._deal.ids, self._deal.starts)
        else:
            self.theta, self.prepare_facts = self._fit(self.table, None)

    def _outcome(self, ids: Ids) -> Outcome:
        start = self.theta if self.warm else None
        if self.solver == "minibatch":
            return Outcome(*self._run(start, *self._deal.without(ids)), {})
        return Outcome(*self._fit(self.table.without(ids), start), {})

    def _committed(self, ids: Ids) -> None:
        if self.solver == "minibatch":
            self._deal.drop(ids)

    def _run(self, start: Vector | None, ids: Ids, starts: Ids) -> tuple[Vector, dict[str, Any]]:
        assert isinstance(self.table, ArrayTable)
        begin = self.recipe.start(self.model, self.seed) if start is None else start
        theta, steps = train_rows(self.table, self.model, begin, ids, starts, self.recipe, self.seed)
        return theta, {"steps": steps}

    def _fit(self, table: Table, start: Vector | None) -> tuple[Vector, dict[str, Any]]:
        if start is None and self.model.name == "mlp" and self.model.anchor is None:
            start = coupled_start(table, self.model, self.seed)
        fit = self.model.fit(table, start=start, tol=self.tol)
        return fit.theta, {"steps": fit.steps, "gradient_norm": fit.gradient_norm, "converged": bool(fit.converged)}

    def _arrays(self) -> list[NDArray[Any]]:
        return super()._arrays() + (self._deal.arrays() if self.solver == "minibatch" else [])
