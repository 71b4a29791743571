"""L2UL's heads as methods, beside the baselines that they are compared with."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Answer, Baseline, Ids, Outcome
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.protocols import Style
from l2ul_fast.tables import Table
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.result import RetrainInstead, Unlearned, finite

#: L2UL's rows in a table -> its arguments.
HEADS: dict[str, dict[str, Any]] = {
    "l2ul-expansion": {},
    "l2ul-learned": {"head": "learned"},
    "l2ul-kme": {"head": "kme"},
    "l2ul-paper": {"head": "paper"},
}
STYLES = {
    "l2ul-expansion": Style("L2UL", "blue", "*"),
    "l2ul-learned": Style("L2UL, learned", "sky", "*"),
    "l2ul-kme": Style("L2UL, embeddings by class", "green", "*"),
    "l2ul-paper": Style("L2UL as in the paper", "blue", "o"),
}
#: L2UL as users get it.
DEFAULT = "l2ul-expansion"
#: Rows per training pair of the paper's head for logistic regression.
PAPER_ROWS = 1000
#: Share of the rows that may have left the copy that requests are timed on.
SPENT = 0.05


class Scratch:
    """A copy of a fitted unlearner (on arrays) to try requests on, and to take them back: `renew`."""

    def __init__(self, first: L2UL) -> None:
        self.first, self.u = first, first.copy()

    def renew(self) -> L2UL:
        """The copy as the first one is: rows that were overwritten are copied back, all else is copied anew."""
        u, first = self.u, self.first
        here: Any = u.store
        there: Any = first.store
        gone = np.flatnonzero(u.status != first.status)
        here.X[gone], here.y[gone] = there.X[gone], there.y[gone]
        # the lock stays out: a copy has its own
        u.__setstate__({k: copy.deepcopy(v) for k, v in vars(first).items() if k not in ("store", "_lock")})
        return u

    def holding(self, rows: Ids) -> L2UL:
        """The copy, while these rows are in it and few others have left; else renewed and warmed by one request."""
        u, first = self.u, self.first
        if (u.status[rows] == first.status[rows]).all() and first.n - u.n + rows.size <= SPENT * first.n:
            return u
        u = self.renew()
        request(u, np.setdiff1d(np.arange(rows.size + 1), rows)[:1])
        return u


def request(u: L2UL, ids: Ids) -> Unlearned:
    """`u.unlearn` as users call it (a list of one number takes the shortest way), without its warning."""
    with quiet():
        return u.unlearn(plain(ids))


def plain(ids: Ids) -> Any:
    """Row numbers as users write them."""
    return [int(ids[0])] if len(ids) == 1 else ids


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warning that a request is large: that is what was asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RetrainInstead)
        yield


class L2ULMethod(Baseline):
    """L2UL with one of its heads; `u` is the fitted unlearner. m: training pairs of heads that learn from them."""

    in_memory = True

    def __init__(self, name: str = DEFAULT, m: int | None = None) -> None:
        self.name, self.style, self._m = name, STYLES[name], m

    def prepare(self, table: Table, model: Any, seed: int = 0) -> None:
        """Fit on the rows of the table. model: a name, or A itself, of which only the kind counts."""
        if isinstance(model, str):
            model = LogisticModel(table.d, len(table.classes)) if model == "lr" else MLPModel(table.d)
        super().prepare(table, model, seed)

    def _prepare(self) -> None:
        options = dict(HEADS[self.name])
        if self._m is not None:
            options["m"] = self._m
        if self.name == "l2ul-paper" and self.model.name == "lr":
            options["s"] = min(PAPER_ROWS, self.n // 2)
        self._rows = self.table.ids()
        self.u = L2UL(self.model.name, random_state=self.seed, **options).fit(*self.table.take(self._rows))
        self._take_over()

    def _take_over(self) -> None:
        self.theta, self.scratch = self.u.theta, Scratch(self.u)

    def _outcome(self, ids: Ids) -> Outcome:
        answer = self.timed_answer(np.searchsorted(self._rows, ids))[0]
        return Outcome(answer.theta, answer.facts, {}, answer.predict_proba)

    def _committed(self, ids: Ids) -> None:
        request(self.u, np.searchsorted(self._rows, ids))
        self.u.refresh()
        self._take_over()

    def _arrays(self) -> list[NDArray[Any]]:
        """What the head keeps, and the private copy of the rows."""
        store: Any = self.u.store
        return [*self.u.head.arrays().values(), store.X, store.y, self.u.status]

    def timed_answer(self, rows: Ids) -> tuple[Answer, float]:
        """(the model without these rows by their place in the fit, seconds of the request)."""
        u, asked = self.scratch.renew(), plain(rows)
        with quiet():
            start = time.perf_counter()
            found = u.unlearn(asked)
            seconds = time.perf_counter() - start
        facts = finite({"error": found.error, "tier": found.tier, "due": found.due})
        return Answer(np.array(found.theta), found.predict_proba, facts), seconds
