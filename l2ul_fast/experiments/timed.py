"""Timing one method: its answers, requests as users make them, and the time until the rows are erased.

`prepare` is not timed but reported; `answer` gives the model without some rows and leaves the method as it was;
`time_requests` times what a user would call. For L2UL that is `unlearn` itself, which changes the unlearner, so it runs
on a copy that gets its rows back when a request needs them.

Two times belong to an answer: how long the model without the rows took, and how long until nothing that the method
keeps in memory gives the rows back (`erased_seconds`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from l2ul_fast.baselines import Answer, make
from l2ul_fast.baselines.base import Ids, Vector
from l2ul_fast.baselines.l2ul import DEFAULT, HEADS, L2ULMethod, plain, quiet, request
from l2ul_fast.measure.timing import clocked, once
from l2ul_fast.tables import ArrayTable

#: Methods that keep nothing of the rows once they have answered.
CLEAN = ("retrain", "sisa")
#: Gradient down to which a head's own retrain is trained: far below what one row changes.
OWN_TOL = 1e-9
#: Requests shorter than this (seconds) are repeated, at most so often, for at most so long.
SHORT, REPEATS, LONGEST = 0.005, 10, 0.01
#: Clean-ups of the default head that take less (seconds) are timed at every request, others once for every r.
CHEAP = 0.2


class CachedFit:
    """A model whose fit of one whole table, from its own start, is done once for all who ask for it.

    `seconds_saved` counts the seconds that later askers did not have to wait: they belong to their preparation.
    """

    def __init__(self, model: Any, table: ArrayTable) -> None:
        self._model, self._table = model, table
        self._kept: dict[float, tuple[Any, float]] = {}
        self.seconds_saved = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def fit(self, rows: Any, start: Any = None, tol: float = 1e-10, **options: Any) -> Any:
        if rows is not self._table or start is not None or "metric" in options:
            return self._model.fit(rows, start=start, tol=tol, **options)
        if tol in self._kept:
            found, seconds = self._kept[tol]
            self.seconds_saved += seconds
            return found
        seconds, found = clocked(lambda: self._model.fit(rows, tol=tol))
        self._kept[tol] = found, seconds
        return found


class WarmFit:
    """A model whose fits start at theta (p,) unless they are told where."""

    def __init__(self, model: Any, theta: Vector) -> None:
        self._model, self._theta = model, theta

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def fit(self, rows: Any, start: Any = None, tol: float = 1e-10, **options: Any) -> Any:
        return self._model.fit(rows, start=self._theta if start is None else start, tol=tol, **options)


class TimedMethod:
    """A method by its name: a baseline, or a plug-in with no more than the protocol's three functions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.method = make(name)
        self.exact = bool(getattr(self.method, "exact", False))
        self.theta: Vector | None = None
        self.prepare_seconds = 0.0
        self._cleanup: dict[int, float] = {}

    def prepare(self, table: ArrayTable, model: Any, seed: int) -> None:
        """Train on the table, and build what requests need."""
        before = getattr(model, "seconds_saved", 0.0)
        spent = once(lambda: self.method.prepare(table, model, seed))
        self.theta = getattr(self.method, "theta", None)
        self.prepare_seconds = spent + getattr(model, "seconds_saved", 0.0) - before
        self.table, self.model, self.seed = table, model, seed

    def answer(self, ids: Ids) -> Answer:
        """The model without these rows."""
        return self.timed_answer(ids)[0]

    def timed_answer(self, ids: Ids) -> tuple[Answer, float]:
        """(the model without these rows, seconds of the request)."""
        seconds, found = clocked(lambda: self.method.unlearn(ids))
        return found, seconds

    def time_requests(self, ids: Ids, fresh: Callable[[], Ids], known: float) -> list[float]:
        """Seconds of requests of as many rows as `ids`; `known` is what `timed_answer` took."""
        return [known] if known > SHORT else _repeat(lambda: self.method.unlearn(ids))

    def cleanup_seconds(self, ids: Ids, answer: Answer) -> float:
        """Seconds that `erased_seconds` adds to the answer's; measured once for every r."""
        if self.name in CLEAN or answer.facts.get("retrained"):
            return 0.0
        r = len(ids)
        if r not in self._cleanup:
            self._cleanup[r] = _warm(lambda: self._prepare_again(ids, answer))
        return self._cleanup[r]

    def _prepare_again(self, ids: Ids, answer: Answer) -> None:
        model = self.model if answer.theta is None else WarmFit(self.model, answer.theta)
        make(self.name).prepare(self.table.without(ids), model, self.seed)

    def reference(self, ids: Ids, model: Any) -> tuple[Vector, Vector] | None:
        """(before, retrained) of its own training where that is not A's (`model`): rho is measured against these."""
        own = getattr(self.method, "retrained", None)
        if own is None or self.theta is None or getattr(self.method, "trains_like_A", True):
            return None
        return self.theta, own(ids)

    def state_bytes(self) -> int:
        """Bytes kept between requests, the table itself left out."""
        return int(self.method.state_bytes())


class TimedL2UL(TimedMethod):
    """L2UL with one of its heads."""

    method: L2ULMethod

    def __init__(self, name: str, m: int | None = None) -> None:
        super().__init__(name)
        self.method = L2ULMethod(name, m)
        self._optimum: tuple[Vector, Any] | None = None

    @property
    def u(self) -> Any:
        """The fitted unlearner."""
        return self.method.u

    def timed_answer(self, ids: Ids) -> tuple[Answer, float]:
        return self.method.timed_answer(ids)

    def time_requests(self, ids: Ids, fresh: Callable[[], Ids], known: float) -> list[float]:
        """Requests one after the other, each of other rows, and of all of them: rows that have left come back first."""
        scratch = self.method.scratch
        seconds: list[float] = []
        while not seconds or (len(seconds) < REPEATS and sum(seconds) < LONGEST):
            ids = fresh()
            u, rows = scratch.holding(ids), plain(ids)
            with quiet():
                seconds.append(once(partial(u.unlearn, rows)))
        return seconds

    def cleanup_seconds(self, ids: Ids, answer: Answer) -> float:
        r = len(ids)  # also where nothing is due: scratch and the model of before are in memory until `refresh`
        if r not in self._cleanup or (self.name == DEFAULT and self._cleanup[r] < CHEAP):
            u = self.method.scratch.renew()
            request(u, ids)
            self._cleanup[r], done = clocked(u.refresh)
            answer.facts |= {name: done[name] for name in ("anchor_moved",) if name in done}
        return self._cleanup[r]

    def reference(self, ids: Ids, model: Any) -> tuple[Vector, Vector] | None:
        """Of a head that trains the MLP with another anchor than A, or without: the optima near its own theta."""
        own = self.u.model
        if own.name == "lr" or (own.mu == model.mu and np.array_equal(own.anchor, model.anchor)):
            return None
        if self._optimum is None:
            found = own.fit(self.table, start=self.theta, tol=OWN_TOL)
            self._optimum = found.theta, found.hessian
        start, metric = self._optimum
        end = own.fit(self.table.without(ids), start=start, tol=OWN_TOL, metric=metric, curvature=False)
        return start, end.theta


def erased_seconds(method: TimedMethod, ids: Ids, answer: Answer, answer_seconds: float) -> float | None:
    """Seconds until nothing that the method keeps in memory gives the rows `ids` back; None: that never happens.

    =====================================  ===========================================================================
    method                                 the answer's seconds, and
    =====================================  ===========================================================================
    nothing                                never
    retrain                                nothing: it keeps its theta only
    sisa                                   nothing: the answer trained all checkpoints anew that had seen the rows
    certified, when it retrained           nothing
    l2ul-expansion on integer sums         nothing while no new expansion is due (its sums are those of somebody who
                                           never had the rows), else `refresh`: one pass over the rows that stay
    L2UL's other heads, and its MLP        `refresh`, which seals them: theta at the optimum of the rows that stay,
                                           pairs, maps and seeds that the rows were in made anew
    all others                             preparing the method on the rows that stay, A's fit starting at the answer:
                                           kept Hessians and the point they belong to (newton, influence, certified,
                                           retrain-warm), DeltaGrad's cache, and the theta of methods that do not
                                           reach an optimum (fine-tune, NegGrad, D2D, FYEMU) depend on the rows
    =====================================  ===========================================================================

    Preparing anew, and the seal of heads that learn from pairs, are measured once for each method and r.
    """
    if method.name == "nothing":
        return None
    return answer_seconds + method.cleanup_seconds(ids, answer)


def timed(name: str, m: int | None = None) -> TimedMethod:
    """The method of this name. m: training pairs of L2UL's heads that learn from them."""
    return TimedL2UL(name, m) if name in HEADS else TimedMethod(name)


def _warm(call: Callable[[], object]) -> float:
    """Seconds of a call; if short, of a second one: the first may have loaded kernels."""
    first = once(call)
    return first if first > 10 * SHORT else once(call)


def _repeat(call: Callable[[], object]) -> list[float]:
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < REPEATS and time.perf_counter() - begin < LONGEST:
        seconds.append(once(call))
    return seconds
