"""Do nothing: the row every table needs to compare with."""

from __future__ import annotations

from l2ul_fast.baselines.base import Baseline, Ids, Outcome
from l2ul_fast.protocols import Style


class Nothing(Baseline):
    """Keeps the model as it was trained on all rows. rho = 1 by definition."""

    name = "nothing"
    style = Style("Do nothing", "grey", "_")
    table_order = 0

    def _prepare(self) -> None:
        self.theta = self.model.fit(self.table).theta

    def _outcome(self, ids: Ids) -> Outcome:
        return Outcome(self.theta, {}, {})
