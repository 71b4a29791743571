"""Distance to a true retrain (rho) by kind of request, beside its estimate, and what a request leaves due.

Every request starts from the same fitted unlearner and is compared with a retrain without its rows, converged down to
rounding (`tol=0`), so that rho of a single row is not the solver's error. rho = |theta' - theta_r| / |theta - theta_r|
with theta the optimum on all rows: doing nothing scores 1, a second retrain from another start the solver's floor.

Records, experiment "unlearn-rho", one per (dataset, model, request, draw, method, order, rtol):
  dataset, source, n, d, model, request ("random 100", ...), kind, r (rows really asked for), draw, seed
  method: nothing, retrain, newton, l2ul-expansion; order and rtol of the latter (rtol None: the instant answer)
  rho, change (|theta - theta_r|), seconds (of `u.unlearn`), error (its estimate of rho), tier, due
and for the instant answer:
  own_rho (lr): distance to A'(rest), the root of the polynomial summed without the rows, in units of what that moves
  own_equal (lr): whether the canonical theta equals that of A'(rest) bit for bit
  refresh_seconds, refreshed_rho: of the pass that was due (lr; None where none was), of the seal (mlp)
  rho_anew (mlp, all methods), anchor_moved: see `MlpRequests`

Experiment "unlearn-grid" says what the widths of the grid trade, one record per (dataset, factor, draw):
  factor: widths as a multiple of the rule's; draw: another row, and another place of the optimum in its cell
  rho: of that row's instant answer; crossing: expected share of single rows whose request leaves the cell, to first
  order, over all rows and places; narrowest, widest: of the widths
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.experiments.contenders import DEFAULT, Scratch, plain, quiet
from l2ul_fast.experiments.jobs import Done
from l2ul_fast.measure.records import Record
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.heads.base import Rows
from l2ul_fast.unlearner.heads.expansion import Expansion
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.pairs.plan import request
from l2ul_fast.unlearner.passes import LocalPasses
from l2ul_kernels.request import expansion as kernels

Vector = NDArray[np.float64]
Ids = NDArray[np.int64]

RHO, GRID = "unlearn-rho", "unlearn-grid"


class Asked(NamedTuple):
    """A kind of request: rows of one shape, `r` of them or a `share` of all rows."""

    kind: str
    r: int = 0
    share: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.kind} {self.r:d}" if self.r else f"{self.kind} {100 * self.share:g} %"

    def size(self, n: int) -> int:
        """Rows asked for of a table of n rows: small tables cannot give 1000."""
        return max(1, int(self.share * n) if self.share else min(self.r, n // 10))


#: The requests of the tables, in their order.
REQUESTS = (
    Asked("random", 1),
    Asked("random", 100),
    Asked("random", 1000),
    Asked("one class", 1000),
    Asked("one cluster", 1000),
    Asked("half-space", share=0.1),
    Asked("random", share=0.5),
)
#: Draws of a request before a table counts as too small for it.
TRIES = 20


def answer(u: L2UL, ids: Ids, rtol: float | None = None) -> Vector:
    """theta without the rows; u stays as it is."""
    with quiet():
        return u.copy().unlearn(ids, rtol=rtol).theta


def newton(u: L2UL, table: ArrayTable, ids: Ids, theta: Vector | None = None) -> Vector:
    """One Newton step with the Hessian of the rows that stay, from theta (u's own if None); one pass over the data."""
    start = u.theta if theta is None else theta
    rest = table.without(ids).ids()
    X, y = table.take(ids)
    total = len(ids) * (u.model.data_gradient(start, X, y) + u.model.penalty_gradient(start))
    hessian = u.model.hessian(start, table.X[rest], table.y[rest])
    return np.asarray(start + np.linalg.solve(hessian, total) / len(rest))


def requests_of(table: ArrayTable, draws: int, seed: int) -> Iterator[tuple[Asked, int, Ids]]:
    """(kind of request, draw, row numbers) of all requests on a table; every class keeps a row."""
    held = np.bincount(table.y)
    for place, asked in enumerate(REQUESTS):
        for draw in range(draws):
            # a stream of its own: never the seeds that training pairs were drawn with
            rng = np.random.default_rng([seed, 77, draw, place])
            for _ in range(TRIES):
                ids = request(asked.kind, asked.size(table.n), table.X, table.y, rng)
                left = held - np.bincount(table.y[ids], minlength=held.size)
                if left[held > 0].all():
                    yield asked, draw, np.sort(ids)
                    break
            else:
                raise UserError(f"every draw of {asked.name} takes out a whole class: use more rows")


def sums_without(head: Expansion, rest: Any) -> Expansion:
    """The expansion of the rows of `rest` at the anchor and scales of `head`, summed from scratch."""
    made = Expansion.at(
        head.model,
        head.order,
        head.classes,
        head.penalty,
        "given",
        head.anchor,
        head.exponents.copy(),
        LocalPasses(rest),
        head.weighted,
    )
    made.settle()
    return made


def relative(found: Vector, target: Vector, change: float) -> float | None:
    """Distance in units of `change`; None where retraining changes nothing."""
    return float(np.linalg.norm(found - target)) / change if change > 0 else None


def timed(u: L2UL, ids: Ids, rtol: float | None = None) -> tuple[Record, Vector]:
    """Take the rows out of u: (what a record says of the answer, theta')."""
    rows = plain(ids)
    with quiet():
        begin = time.perf_counter()
        result = u.unlearn(rows, rtol=rtol)
        seconds = time.perf_counter() - begin
    error = result.error
    known = None if error is None or not np.isfinite(error) else error
    facts: Record = {"seconds": seconds, "error": known, "tier": result.tier, "due": result.due is not None}
    return facts, np.array(result.theta)


class Cell:
    """Records of one request: every method's answer beside the retrain `target`, and beside a second one if given."""

    def __init__(self, facts: Record, theta: Vector, target: Vector, anew: Vector | None = None) -> None:
        self.theta, self.target, self.anew = theta, target, anew
        self.change = float(np.linalg.norm(theta - target))
        self.facts = facts | {"change": self.change}
        self.records: list[Record] = []

    def add(self, method: str, found: Vector, **more: Any) -> None:
        record: Record = {**self.facts, "method": method, "order": None, "rtol": None}
        record["rho"] = relative(found, self.target, self.change)
        if self.anew is not None:
            record["rho_anew"] = relative(found, self.anew, float(np.linalg.norm(self.theta - self.anew)))
        self.records.append(record | more)


def measure(
    dataset: str, source: str, train: ArrayTable, model: str, draws: int, done: Done, seed: int = 1
) -> Iterator[Record]:
    """Records of every kind of request on one dataset, those that are `done` left out."""
    base: Record = {"dataset": dataset, "source": source, "n": train.n, "d": train.d, "model": model, "seed": seed}
    compare: LogisticRequests | MlpRequests | None = None
    for asked, draw, ids in requests_of(train, draws, seed):
        key = {"request": asked.name, "draw": draw}
        if done(method=LAST, **key):
            continue
        if compare is None:  # a finished part needs no fit
            compare = (LogisticRequests if model == "lr" else MlpRequests)(train, seed)
        for record in compare.records(base | key | {"kind": asked.kind, "r": len(ids)}, ids):
            own = {name: record[name] for name in ("method", "order", "rtol")}
            if not done(**key, **own):
                yield record


#: The method whose record ends a request's.
LAST = "retrain"
#: rtol of the second answer of logistic regression and of the MLP.
LR_RTOL, MLP_RTOL = 1e-3, 1e-2


class LogisticRequests:
    """Logistic regression fitted on a table, and everybody's answers to a request on it."""

    def __init__(self, train: ArrayTable, seed: int) -> None:
        self.train = train
        self.u = L2UL("lr", random_state=seed).fit(train.X, train.y)
        self.third = Scratch(self.u)
        self.second = Scratch(L2UL("lr", order=2, random_state=seed).fit(train.X, train.y))
        self.theta = np.asarray(self.u.model.fit(train, start=self.u.theta, tol=0.0).theta)
        for scratch in (self.third, self.second):
            warm_up(scratch)

    def records(self, facts: Record, ids: Ids) -> list[Record]:
        model, theta, rest = self.u.model, self.theta, self.train.without(ids)
        target = np.asarray(model.fit(rest, start=theta, tol=0.0).theta)
        cell = Cell(facts, theta, target)
        cell.add("nothing", theta)
        cell.add("newton", newton(self.u, self.train, ids, theta))
        instant = self.third.renew()
        said, found = timed(instant, ids)
        cell.add(DEFAULT, found, order=3, **said, **self._beside(instant, found, rest, target, cell.change))
        said, found = timed(self.third.renew(), ids, LR_RTOL)
        cell.add(DEFAULT, found, order=3, rtol=LR_RTOL, **said)
        said, found = timed(self.second.renew(), ids)
        cell.add(DEFAULT, found, order=2, **said)
        begin = time.perf_counter()
        cold = np.asarray(model.fit(rest, tol=0.0).theta)
        cell.add("retrain", cold, seconds=time.perf_counter() - begin)
        return cell.records

    def _beside(self, after: L2UL, found: Vector, rest: ArrayTable, target: Vector, change: float) -> Record:
        """Of the instant answer: distance to its own retrain A'(rest), and what its refresh costs where one is due."""
        own = sums_without(after.head, rest)
        moved = float(np.linalg.norm(self.u.theta - own.theta))
        same = copy.deepcopy(after.head).canonical().tobytes() == own.theta.tobytes()
        facts: Record = {
            "own_rho": relative(found, own.theta, moved),
            "own_equal": bool(same),
            "refresh_seconds": None,
            "refreshed_rho": None,
        }
        if after.due is not None:
            begin = time.perf_counter()
            after.refresh()
            facts["refresh_seconds"] = time.perf_counter() - begin
            facts["refreshed_rho"] = relative(after.theta, target, change)
        return facts


class MlpRequests:
    """The same for the MLP, over all rows: those that its anchor was trained on are asked for like any other.

    Retrain is A's own fit of the rows that stay around the anchor as it is, a number of A like lam. But the anchor was
    trained on some of the rows too, and `refresh` trains it again without those that left: `rho_anew` is the distance
    to the fit around that anchor, in units of what this fit changes.
    """

    def __init__(self, train: ArrayTable, seed: int) -> None:
        self.train = train
        self.u = L2UL("mlp", random_state=seed).fit(train.X, train.y)
        self.theta = _optimum(self.u.model, train, self.u.theta)
        self.scratch = Scratch(self.u)
        warm_up(self.scratch, MLP_RTOL)

    def records(self, facts: Record, ids: Ids) -> list[Record]:
        theta, model, rest = self.theta, self.u.model, self.train.without(ids)
        target = _optimum(model, rest, theta)
        sealed = self.scratch.renew()
        said, found = timed(sealed, ids)
        begin = time.perf_counter()
        sealed.refresh()
        said["refresh_seconds"] = time.perf_counter() - begin
        anew = _optimum(sealed.model, rest, sealed.theta)
        said["refreshed_rho"] = relative(sealed.theta, anew, float(np.linalg.norm(theta - anew)))
        said["anchor_moved"] = bool(np.any(sealed.model.anchor != model.anchor))
        cell = Cell(facts, theta, target, anew)
        cell.add("nothing", theta)
        cell.add("newton", newton(self.u, self.train, ids, theta))
        cell.add(DEFAULT, found, **said)
        said, found = timed(self.scratch.renew(), ids, MLP_RTOL)
        cell.add(DEFAULT, found, rtol=MLP_RTOL, **said)
        begin = time.perf_counter()
        cold = _optimum(model, rest, None)
        cell.add("retrain", cold, seconds=time.perf_counter() - begin)
        return cell.records


def _optimum(model: Any, rows: ArrayTable, start: Vector | None) -> Vector:
    """The MLP's optimum next to `start`, or to its anchor, down to rounding."""
    return np.asarray(model.fit(rows, start=start, tol=0.0, curvature=False).theta)


def warm_up(scratch: Scratch, rtol: float | None = None) -> None:
    """A request for one row, one for several, and a refresh: the first ones compile."""
    u = scratch.renew()
    with quiet():
        u.unlearn([0])
        u.unlearn(np.arange(1, 10), rtol=rtol)
        u.refresh()


# The grid ------------------------------------------------------------------------------------------------------------

#: Widths looked at, as multiples of the rule's.
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def widths(head: Expansion) -> Vector:
    """(p,) of the grid's cell that the optimum is in."""
    state, p = head.state, head.p
    return np.asarray(state[kernels.HIGH, :p] - state[kernels.LOW, :p])


def shifts(u: L2UL, table: ArrayTable) -> Vector:
    """(n, p): by how much each row alone moves theta when it leaves, to first order (H^-1 times its gradient)."""
    rows = np.column_stack([table.X.astype(np.float64), np.ones(len(table.X))])
    slope = 1.0 / (1.0 + np.exp(-(rows @ u.theta))) - table.y
    return np.asarray((rows * slope[:, None]) @ u.head.inverse)


def measure_grid(
    dataset: str, source: str, train: ArrayTable, draws: int, done: Done, seed: int = 1
) -> Iterator[Record]:
    """rho of one row, and how many single requests leave the cell, for widths around those of the rule."""
    todo = [(f, draw) for f in FACTORS for draw in range(draws) if not done(factor=f, draw=draw)]
    if not todo:
        return
    u = L2UL("lr", random_state=seed).fit(train.X, train.y)
    model, rule = u.model, widths(u.head)
    theta = np.asarray(model.fit(train, start=u.theta, tol=0.0).theta)
    moves = np.abs(shifts(u, train))
    for factor, draw in todo:
        rng, h = np.random.default_rng([seed, 78, draw]), factor * rule
        row = np.array([rng.integers(train.n)])
        head = Expansion.build(model, train, theta, anchor=theta - (rng.random(h.size) - 0.5) * h)
        head.forget(Rows(*train.take(row), None, row))
        target = np.asarray(model.fit(train.without(row), start=theta, tol=0.0).theta)
        yield {
            "dataset": dataset,
            "source": source,
            "n": train.n,
            "d": train.d,
            "model": "lr",
            "method": DEFAULT,
            "r": 1,
            "seed": seed,
            "factor": factor,
            "draw": draw,
            "rho": relative(head.theta, target, float(np.linalg.norm(theta - target))),
            "crossing": float(np.mean(1.0 - np.prod(1.0 - np.minimum(moves / h, 1.0), axis=1))),
            "narrowest": float(h.min()),
            "widest": float(h.max()),
        }
