"""The compared methods behind one interface: the baselines, and L2UL with each of its heads.

`prepare` is untimed and reported; `answer` gives the model without some rows and leaves the method as it was;
`time_requests` times what a user would call. For L2UL that is `unlearn` itself, which changes the unlearner, so it runs
on a copy that gets its rows back when a request needs them.

Two times belong to an answer: how long the model without the rows took, and how long until nothing that the method
keeps in memory gives the rows back (`erased_seconds`).
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines import METHODS, Answer, Baseline
from l2ul_fast.measure.timing import once
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.result import RetrainInstead, Unlearned, finite
from l2ul_fast.unlearner.store import ArrayStore

Ids = NDArray[np.int64]
Vector = NDArray[np.float64]

#: L2UL's rows in a table -> its arguments.
HEADS: dict[str, dict[str, Any]] = {
    "l2ul-expansion": {},
    "l2ul-learned": {"head": "learned"},
    "l2ul-kme": {"head": "kme"},
    "l2ul-paper": {"head": "paper"},
}
#: L2UL as users get it.
DEFAULT = "l2ul-expansion"
#: Every method, in the order of a table: the two references first, L2UL last.
ALL_METHODS = (*METHODS, *HEADS)
#: Methods that keep nothing of the rows once they have answered.
CLEAN = ("retrain", "sisa")
#: Rows per training pair of the paper's head for logistic regression.
PAPER_ROWS = 1000
#: Gradient down to which a head's own retrain is trained: far below what one row changes.
OWN_TOL = 1e-9
#: Requests shorter than this (seconds) are repeated, at most so often, for at most so long.
SHORT, REPEATS, LONGEST = 0.005, 10, 0.01
#: Clean-ups of the default head that take less (seconds) are timed at every request, others once for every r.
CHEAP = 0.2
#: Share of the rows that may have left the copy that requests are timed on.
SPENT = 0.05


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
        begin = time.perf_counter()
        found = self._model.fit(rows, tol=tol)
        self._kept[tol] = found, time.perf_counter() - begin
        return found


class WarmFit:
    """A model whose fits start at theta (p,) unless they are told where."""

    def __init__(self, model: Any, theta: Vector) -> None:
        self._model, self._theta = model, theta

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def fit(self, rows: Any, start: Any = None, tol: float = 1e-10, **options: Any) -> Any:
        return self._model.fit(rows, start=self._theta if start is None else start, tol=tol, **options)


class Scratch:
    """A copy of a fitted unlearner (on arrays) to try requests on, and to take them back: `renew`."""

    def __init__(self, first: L2UL) -> None:
        self.first, self.u = first, first.copy()

    def renew(self) -> L2UL:
        """The copy as the first one is: rows that were overwritten are copied back, all else is copied anew."""
        u, first = self.u, self.first
        here, there = u.store, first.store
        assert isinstance(here, ArrayStore)
        assert isinstance(there, ArrayStore)
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


class Contender:
    """A baseline under its name in METHODS."""

    exact = False
    theta: Vector | None
    prepare_seconds: float

    def __init__(self, name: str) -> None:
        self.name = name
        self.method: Baseline = METHODS[name]()
        self.exact = self.method.exact
        self._cleanup: dict[int, float] = {}

    def prepare(self, table: ArrayTable, model: Any, seed: int) -> None:
        """Train on the table, and build what requests need."""
        self.method = self._made(table)
        before = getattr(model, "seconds_saved", 0.0)
        self.method.prepare(table, model, seed)
        self.theta = self.method.theta
        self.prepare_seconds = self.method.prepare_seconds + getattr(model, "seconds_saved", 0.0) - before

    def _made(self, table: ArrayTable) -> Baseline:
        if self.name != "deltagrad":
            return METHODS[self.name]()
        # published for large tables: 20 epochs of one batch would leave a small one untrained
        batch = min(16384, max(256, table.n // 20))
        return METHODS[self.name](batch=batch, epochs=20 if 20 * table.n >= 1000 * batch else 50)

    def answer(self, ids: Ids) -> Answer:
        """The model without these rows."""
        return self.timed_answer(ids)[0]

    def timed_answer(self, ids: Ids) -> tuple[Answer, float]:
        """(the model without these rows, seconds of the request)."""
        start = time.perf_counter()
        found = self.method.unlearn(ids)
        return found, time.perf_counter() - start

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
        method = self.method
        rest = method.table.without(ids)
        assert isinstance(rest, ArrayTable)
        model = method.model if answer.theta is None else WarmFit(method.model, answer.theta)
        self._made(rest).prepare(rest, model, method.seed)

    def reference(self, ids: Ids, model: Any) -> tuple[Vector, Vector] | None:
        """(before, retrained) of its own training where that is not A's (`model`): rho is measured against these."""
        own = getattr(self.method, "retrained", None)
        if own is None or self.theta is None or self.method.trains_like_A:
            return None
        return self.theta, own(ids)

    def state_bytes(self) -> int:
        """Bytes kept between requests, the table itself left out."""
        return self.method.state_bytes()


class Unlearner(Contender):
    """L2UL with one of its heads."""

    def __init__(self, name: str, m: int | None = None) -> None:
        self.name, self._m = name, m
        self._cleanup = {}
        self._optimum: tuple[Vector, Any] | None = None

    def prepare(self, table: ArrayTable, model: Any, seed: int) -> None:
        """Fit on the table. model: a name, or A itself, of which only the kind counts."""
        kind = model if isinstance(model, str) else model.name
        options = dict(HEADS[self.name])
        if self._m is not None:
            options["m"] = self._m
        if self.name == "l2ul-paper" and kind == "lr":
            options["s"] = min(PAPER_ROWS, table.n // 2)
        start = time.perf_counter()
        self.u = L2UL(kind, random_state=seed, **options).fit(table.X, table.y)
        self.prepare_seconds = time.perf_counter() - start
        self.theta, self.table = self.u.theta, table
        self._scratch = Scratch(self.u)

    def timed_answer(self, ids: Ids) -> tuple[Answer, float]:
        u, rows = self._scratch.renew(), plain(ids)
        with quiet():
            start = time.perf_counter()
            found = u.unlearn(rows)
            seconds = time.perf_counter() - start
        facts = finite({"error": found.error, "tier": found.tier, "due": found.due})
        return Answer(np.array(found.theta), found.predict_proba, facts), seconds

    def time_requests(self, ids: Ids, fresh: Callable[[], Ids], known: float) -> list[float]:
        """Requests one after the other, each of other rows, and of all of them: rows that have left come back first."""
        scratch = self._scratch
        seconds: list[float] = []
        while not seconds or (len(seconds) < REPEATS and sum(seconds) < LONGEST):
            ids = fresh()
            u, rows = scratch.holding(ids), plain(ids)
            with quiet():
                start = time.perf_counter()
                u.unlearn(rows)
                seconds.append(time.perf_counter() - start)
        return seconds

    def cleanup_seconds(self, ids: Ids, answer: Answer) -> float:
        r = len(ids)  # also where nothing is due: scratch and the model of before are in memory until `refresh`
        if r not in self._cleanup or (self.name == DEFAULT and self._cleanup[r] < CHEAP):
            u = self._scratch.renew()
            request(u, ids)
            start = time.perf_counter()
            done = u.refresh()
            self._cleanup[r] = time.perf_counter() - start
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

    def state_bytes(self) -> int:
        """What the head keeps, and the private copy of the rows."""
        u = self.u
        kept = [*u.head.arrays().values(), u.store.X, u.store.y, u.status]  # type: ignore[attr-defined] # arrays
        return sum(array.nbytes for array in kept)


def erased_seconds(method: Contender, ids: Ids, answer: Answer, answer_seconds: float) -> float | None:
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


def contender(name: str, m: int | None = None) -> Contender:
    """By its name in a table. m: training pairs of L2UL."""
    return Unlearner(name, m) if name in HEADS else Contender(name)


def _warm(call: Callable[[], object]) -> float:
    """Seconds of a call; if short, of a second one: the first may have loaded kernels."""
    first = once(call)
    return first if first > 10 * SHORT else once(call)


def _repeat(call: Callable[[], object]) -> list[float]:
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < REPEATS and time.perf_counter() - begin < LONGEST:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds
