"""Distance to a true retrain (rho) by kind of request, beside its estimate, and what a request leaves due.

Every request starts from the same fitted unlearner and is compared with a retrain without its rows, converged down to
rounding (`tol=0`), so that rho of a single row is not the solver's error. rho is relative to theta, the optimum on all
rows: doing nothing scores 1, a second retrain from another start the solver's floor.

Experiment "unlearn-rho": methods nothing, retrain, newton and l2ul-expansion with its order and rtol (None: the instant
answer). The instant answer of logistic regression is also compared with A'(rest), the root of the polynomial summed
without the rows (`own_rho`, `own_equal`); the MLP's with the fit around a new anchor (`rho_anew`, see `MlpRequests`).

Experiment "unlearn-grid": what the widths of the grid trade. `factor` multiplies the rule's widths; each repeat has
another row, and another place of the optimum in its cell.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from l2ul_fast.baselines.base import Ids, Vector
from l2ul_fast.baselines.l2ul import DEFAULT, Scratch, plain, quiet
from l2ul_fast.errors import UserError
from l2ul_fast.experiments.inputs import tables, train_size
from l2ul_fast.experiments.registry import Cell, Context, Job
from l2ul_fast.experiments.scoring import newton
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import clocked, once
from l2ul_fast.metrics import parameter_distance, rho
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.heads.base import Rows
from l2ul_fast.unlearner.heads.expansion import Expansion
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.pairs.plan import request
from l2ul_fast.unlearner.passes import LocalPasses
from l2ul_fast.unlearner.result import finite
from l2ul_kernels.request import expansion as kernels

RHO, GRID = "unlearn-rho", "unlearn-grid"


class Asked(NamedTuple):
    """A kind of request: rows of one shape, `r` of them or a `share` of all rows."""

    kind: str
    r: int = 0
    share: float = 0.0

    @property
    def name(self) -> str:
        """Its column of a table."""
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
#: rtol of the second answer of logistic regression and of the MLP.
LR_RTOL, MLP_RTOL = 1e-3, 1e-2
#: (method, order, rtol) of what is compared.
Answers = dict[tuple[str, int | None, float | None], Record]
NOTHING, NEWTON, RETRAIN = ("nothing", None, None), ("newton", None, None), ("retrain", None, None)
COMPARED = {
    "lr": (NOTHING, NEWTON, (DEFAULT, 3, None), (DEFAULT, 3, LR_RTOL), (DEFAULT, 2, None), RETRAIN),
    "mlp": (NOTHING, NEWTON, (DEFAULT, None, None), (DEFAULT, None, MLP_RTOL), RETRAIN),
}


def expansion_of(u: L2UL) -> Expansion:
    """The default head of a linear model, with what only it has."""
    return cast(Expansion, u.head)


def sized(n: int) -> dict[tuple[str, int], Asked]:
    """(kind, rows) of every request on a table of n rows -> what it is; on small ones, two may be the same."""
    return {(asked.kind, asked.size(n)): asked for asked in reversed(REQUESTS)}


def rho_jobs(context: Context, model: str) -> Iterator[Job]:
    """Logistic regression on every dataset, or the MLP on those of the profile."""
    numbers = context.numbers
    lr = [(name, numbers["rows"]) for name in context.datasets]
    mlp = [(name, rows) for name, rows in numbers["mlp"] if name in context.datasets]
    draws = numbers["draws"] if model == "lr" else numbers["mlp_draws"]
    for dataset, rows in lr if model == "lr" else mlp:
        n = train_size(context, dataset, rows)
        base = {"experiment": RHO, "dataset": dataset, "n": n, "model": model, "seed": context.seed}
        cells = tuple(
            {**base, "request": kind, "r": r, "repeat": draw, "method": method, "order": order, "rtol": rtol}
            for kind, r in reversed(sized(n))
            for draw in range(draws)
            for method, order, rtol in COMPARED[model]
        )
        seconds = draws * (3.0 if model == "lr" else 15.0)
        yield Job(f"{dataset} {n:,} rows", cells, partial(measure_rho, context, dataset, rows), seconds)


def measure_rho(context: Context, dataset: str, rows: int, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Everybody's answers to every request on one dataset."""
    label, train, _ = tables(context, dataset, rows)
    model, seed = cells[0]["model"], context.seed
    compare: LogisticRequests | MlpRequests = (LogisticRequests if model == "lr" else MlpRequests)(train, seed)
    for kind, r, draw in dict.fromkeys((cell["request"], cell["r"], cell["repeat"]) for cell in cells):
        asked = sized(train.n)[kind, r]
        answers = compare.answers(draw_request(train, asked, draw, seed))
        facts = {"source": label, "d": train.d, "r_asked": asked.r or r}
        for cell in cells:
            if (cell["request"], cell["r"], cell["repeat"]) == (kind, r, draw):
                yield {**cell, **facts, **answers[cell["method"], cell["order"], cell["rtol"]]}


def draw_request(table: ArrayTable, asked: Asked, draw: int, seed: int) -> Ids:
    """Row numbers of one request, ascending; every class keeps a row.

    Raises
    ------
    UserError
        If every draw takes out a whole class.
    """
    held = np.bincount(table.y)
    # a stream of its own: never the seeds that training pairs were drawn with
    rng = np.random.default_rng([seed, 77, draw, REQUESTS.index(asked)])
    for _ in range(TRIES):
        ids = request(asked.kind, asked.size(table.n), table.X, table.y, rng)
        left = held - np.bincount(table.y[ids], minlength=held.size)
        if left[held > 0].all():
            return np.sort(ids)
    raise UserError(f"every draw of {asked.name} takes out a whole class: use more rows")


def sums_without(head: Expansion, rest: Any) -> Expansion:
    """The expansion of the rows of `rest` at the anchor and scales of `head`, summed from scratch."""
    setup = head.setup._replace(where="given")
    made = Expansion.at(setup, head.anchor, head.exponents.copy(), LocalPasses(rest))
    made.settle()
    return made


def timed(u: L2UL, ids: Ids, rtol: float | None = None) -> tuple[Record, Vector]:
    """Take the rows out of u: (what a record says of the answer, theta')."""
    rows = plain(ids)
    with quiet():
        seconds, result = clocked(partial(u.unlearn, rows, rtol=rtol))
    facts = finite({"error": result.error, "tier": result.tier, "due": result.due is not None})
    return {"seconds": seconds, **facts}, np.array(result.theta)


def scored(found: Vector, target: Vector, theta: Vector, anew: Vector | None = None) -> Record:
    """rho of an answer against the retrain `target`, and against a second one if given."""
    record: Record = {"rho": rho(found, target, theta).value, "change": parameter_distance(theta, target).value}
    return record if anew is None else record | {"rho_anew": rho(found, anew, theta).value}


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

    def answers(self, ids: Ids) -> Answers:
        """What each record says."""
        model, theta, rest = self.u.model, self.theta, self.train.without(ids)
        target = np.asarray(model.fit(rest, start=theta, tol=0.0).theta)
        score = partial(scored, target=target, theta=theta)
        instant = self.third.renew()
        said, found = timed(instant, ids)
        answers: Answers = {
            NOTHING: score(theta),
            NEWTON: score(newton(self.u, self.train, ids, theta)),
            (DEFAULT, 3, None): score(found) | said | self._beside(instant, found, rest, target),
        }
        for scratch, order, rtol in ((self.third, 3, LR_RTOL), (self.second, 2, None)):
            said, found = timed(scratch.renew(), ids, rtol)
            answers[DEFAULT, order, rtol] = score(found) | said
        seconds, cold = clocked(partial(model.fit, rest, tol=0.0))
        answers[RETRAIN] = score(np.asarray(cold.theta)) | {"seconds": seconds}
        return answers

    def _beside(self, after: L2UL, found: Vector, rest: ArrayTable, target: Vector) -> Record:
        """Of the instant answer: distance to its own retrain A'(rest), and what its refresh costs where one is due."""
        own = sums_without(expansion_of(after), rest)
        same = copy.deepcopy(after.head).canonical().tobytes() == own.theta.tobytes()
        facts: Record = {
            "own_rho": rho(found, own.theta, self.u.theta).value,
            "own_equal": bool(same),
            "refresh_seconds": None,
            "refreshed_rho": None,
        }
        if after.due is not None:
            facts["refresh_seconds"] = once(after.refresh)
            facts["refreshed_rho"] = rho(after.theta, target, self.theta).value
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

    def answers(self, ids: Ids) -> Answers:
        """What each record says."""
        theta, model, rest = self.theta, self.u.model, self.train.without(ids)
        target = _optimum(model, rest, theta)
        sealed = self.scratch.renew()
        said, found = timed(sealed, ids)
        said["refresh_seconds"] = once(sealed.refresh)
        anew = _optimum(sealed.model, rest, sealed.theta)
        said["refreshed_rho"] = rho(sealed.theta, anew, theta).value
        said["anchor_moved"] = bool(np.any(sealed.model.anchor != model.anchor))
        score = partial(scored, target=target, theta=theta, anew=anew)
        answers: Answers = {
            NOTHING: score(theta),
            NEWTON: score(newton(self.u, self.train, ids, theta)),
            (DEFAULT, None, None): score(found) | said,
        }
        said, found = timed(self.scratch.renew(), ids, MLP_RTOL)
        answers[DEFAULT, None, MLP_RTOL] = score(found) | said
        seconds, cold = clocked(partial(_optimum, model, rest, None))
        answers[RETRAIN] = score(cold) | {"seconds": seconds}
        return answers


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
    return np.asarray((rows * slope[:, None]) @ expansion_of(u).inverse)


def grid_jobs(context: Context) -> Iterator[Job]:
    """Every dataset."""
    numbers = context.numbers
    for dataset in context.datasets:
        n = train_size(context, dataset, numbers["rows"])
        base = {"experiment": GRID, "dataset": dataset, "n": n, "model": "lr", "method": DEFAULT, "r": 1}
        cells = tuple(
            {**base, "factor": factor, "repeat": draw, "seed": context.seed}
            for factor in FACTORS
            for draw in range(numbers["draws"])
        )
        yield Job(dataset, cells, partial(measure_grid, context, dataset), seconds=1.0 * numbers["draws"])


def measure_grid(context: Context, dataset: str, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """rho of one row, and how many single requests leave the cell, for widths around those of the rule."""
    label, train, _ = tables(context, dataset, context.numbers["rows"])
    u = L2UL("lr", random_state=context.seed).fit(train.X, train.y)
    model, rule = u.model, widths(expansion_of(u))
    theta = np.asarray(model.fit(train, start=u.theta, tol=0.0).theta)
    moves = np.abs(shifts(u, train))
    for cell in cells:
        rng, h = np.random.default_rng([context.seed, 78, cell["repeat"]]), cell["factor"] * rule
        row = np.array([rng.integers(train.n)])
        head = Expansion.build(model, train, theta, anchor=theta - (rng.random(h.size) - 0.5) * h)
        head.forget(Rows(*train.take(row), None, row))
        target = np.asarray(model.fit(train.without(row), start=theta, tol=0.0).theta)
        yield {
            **cell,
            "source": label,
            "d": train.d,
            "rho": rho(head.theta, target, theta).value,
            "crossing": float(np.mean(1.0 - np.prod(1.0 - np.minimum(moves / h, 1.0), axis=1))),
            "narrowest": float(h.min()),
            "widest": float(h.max()),
        }
