"""The influence function: one step with the Hessian of ALL rows, as if the forgotten ones were only reweighted."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve

from l2ul_fast.baselines.base import Baseline, Ids, Outcome, free_directions, hessian_of, penalty_strength
from l2ul_fast.baselines.newton import factor
from l2ul_fast.checks import Finite, NotNegative, Whole, checked
from l2ul_fast.protocols import Style


class Influence(Baseline):
    """theta' = theta + H_D^-1 sum_f (gradient of row f + penalty gradient), H_D of the summed objective on all rows.

    order=1 is the first-order version: theta' = theta + tau * the same sum / n, without a Hessian.
    """

    name = "influence"
    style = Style("Influence", "yellow", "d")
    table_order = 80

    @checked
    def __init__(self, order: Annotated[int, Whole(1, 2)] = 2, tau: Finite = 1.0, tol: NotNegative = 1e-10) -> None:
        self.order, self.tau, self.tol = order, tau, tol

    def _prepare(self) -> None:
        model = self.model
        self.theta = model.fit(self.table, tol=self.tol).theta
        self.anchor = self.theta[:0]  # where the curvature is taken
        self.curvature = np.zeros((0, 0))
        self.inverse = np.zeros((0, 0))
        if self.order == 2:
            self.anchor = self.theta.copy()
            self.curvature = hessian_of(model, self.theta, self.table)
            self._invert(self.n)

    def _invert(self, n: int) -> None:
        H, gauge = self.curvature + n * np.diag(penalty_strength(self.model)), free_directions(self.model)
        kept, self.damping = factor(H if gauge is None else H + n * gauge)
        self.inverse = cho_solve(kept, np.eye(len(H)))

    def _outcome(self, ids: Ids) -> Outcome:
        total = self._total(ids, self.theta)
        if self.order == 1:
            return Outcome(self.theta + self.tau / self.n * total, {"order": 1}, {})
        return Outcome(self.theta + self.inverse @ total, {"order": 2, "damping": self.damping}, {})

    def _committed(self, ids: Ids) -> None:
        if self.order == 1:
            return
        X, y = self.table.take(ids)  # the rows leave the kept Hessian as well
        strength = np.diag(penalty_strength(self.model))
        self.curvature -= len(X) * (self.model.hessian(self.anchor, X, y) - strength)
        self._invert(self.n)

    def _arrays(self) -> list[NDArray[Any]]:
        return [*super()._arrays(), self.anchor, self.curvature, self.inverse]
