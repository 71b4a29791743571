"""One dataset, one model, every method: accuracy, rho, disagreement and time of each request, beside a true retrain.

A record per (method, request, r, repeat). All methods of a repeat get the same request, in turns that start at another
one each time. A method whose training differs from A's is measured against a retrain of its own (`rho_target`). MLP:
the anchor is a coarse number of A like lam, the same for all methods and for the target, which is the point that the
warm retrain reaches; Retrain from the anchor is run and timed in the first `cold` repeats only. "nothing" has no time:
what timing it takes is the overhead of a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines import HEAD_NAMES, METHODS, Answer
from l2ul_fast.baselines.base import Ids, Vector
from l2ul_fast.baselines.l2ul import DEFAULT
from l2ul_fast.datasets.registry import get_info
from l2ul_fast.errors import UserError
from l2ul_fast.experiments import inputs
from l2ul_fast.experiments.registry import Cell, Context, Job, by_profile, say
from l2ul_fast.experiments.timed import CachedFit, TimedMethod, erased_seconds, timed
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import PAUSE
from l2ul_fast.metrics import accuracy, disagreement, parameter_distance, rho
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.pairs.plan import request

#: (arena, answer, the retrained model, ids) -> more fields of a record
Extra = Callable[["Arena", Answer, Answer, Ids], Record]
Requests = tuple[tuple[str, int], ...]
LAM = 1e-3
#: Features above which a table is wide: the exact Hessian of an MLP of 10 units has (10 d)^2 entries.
WIDE = 40
#: What a method says of its own answer and a record repeats.
FACTS = ("error", "tier", "due", "anchor_moved", "retrained")
#: (method, model) that this process has prepared once on so many rows: compiling is no part of `prepare_seconds`.
_compiled: set[tuple[str, str]] = set()
FEW = 300
#: Test rows that are predicted at most: a ten-thousandth can still be seen.
TEST_ROWS = 200_000
#: rows: of a dataset in all; m: training pairs of L2UL; cold: repeats in which the MLP is retrained from its anchor;
#: mlp_rows, wide_rows: training rows of the MLP at most (wide: above 40 features); wide_skips: methods left out
#: there (the heads that learn from pairs need 2.5 per parameter: a minute); complete: no subsets of originals.
#: quick: a few minutes. paper: the paper's n, m and 10 requests. full: more requests. tiny: to see that it works.
PROFILES = by_profile(
    {
        "rows": (1_000, 12_000, None),
        "runs": (2, 10, 10, 30),
        "m": (60, 200, 1000),
        "cold": (1, 2, 1, 10),
        "mlp_rows": (400, None),
        "wide_rows": (400, 2_500, 60_000, None),
        "wide_skips": ((), ("l2ul-learned", "l2ul-kme"), ()),
        "complete": (False, False, True),
    }
)


class Broken(UserError):
    """A method that raised something else than a sentence for users: its cells failed."""


def copied(table: ArrayTable) -> ArrayTable:
    """The same rows in arrays of their own."""
    return ArrayTable(table.X.copy(), table.y.copy(), table.classes)


class Arena:
    """A dataset, the model A trained on it, and the methods, each prepared when it is first needed."""

    def __init__(
        self, dataset: str, label: str, train: ArrayTable, test: ArrayTable, model: str, seed: int, m: int | None
    ) -> None:
        self.dataset, self.label, self.train, self.test = dataset, label, train, _first(test, TEST_ROWS)
        self.kind, self.seed, self.m = model, seed, m
        self._ready: dict[str, TimedMethod] = {}
        self._failed: dict[str, UserError] = {}

    @cached_property
    def model(self) -> Any:
        """A for everybody."""
        if self.kind == "lr":
            return LogisticModel(self.train.d, len(self.train.classes), LAM)
        return self[DEFAULT].method.u.model  # its fit settles anchor and mu

    @cached_property
    def trained(self) -> CachedFit:
        """A, whose fit of all rows is shared."""
        return CachedFit(self.model, self.train)

    def __getitem__(self, name: str) -> TimedMethod:
        """The method, prepared; the same UserError each time if it cannot be prepared on this table."""
        if name in self._failed:
            raise self._failed[name]
        if name not in self._ready:
            own = name not in METHODS and name not in HEAD_NAMES
            table = copied(self.train) if own else self.train  # what a plug-in does to its rows is its own affair
            model = self.kind if name in HEAD_NAMES else self.trained
            try:
                if not own and (name, self.kind) not in _compiled:
                    say(f"{name}: loading or compiling its kernels")
                    with suppress(Exception):  # on a few rows, which not every method can work with
                        timed(name, self.m).prepare(inputs.some_rows(table, FEW), model, self.seed)
                    _compiled.add((name, self.kind))
                say(f"{name}: preparing")
                made = timed(name, self.m)
                made.prepare(table, model, self.seed)
                for r in (3, 1):  # loads its kernels
                    made.answer(self.request("random", r, -1, 0))
            except UserError as error:
                self._failed[name] = error
                raise
            except Exception as error:  # a plug-in's: it costs its own rows only
                self._failed[name] = Broken(f"{type(error).__name__}: {error}")
                raise self._failed[name] from error
            self._ready[name] = made
        return self._ready[name]

    def request(self, kind: str, r: int, repeat: int, turn: int) -> Ids:
        """Row numbers; the same for all methods of a repeat. turn > 0: others of the same sort, for timing."""
        rng = np.random.default_rng([self.seed, 101, r, repeat + 1, turn])
        n = len(self.train.X)
        if kind == "random":
            return np.sort(rng.choice(n, forgotten(r, n), replace=False))
        return np.sort(request(kind, forgotten(r, n), self.train.X, self.train.y, rng))


def forgotten(r: int, n: int) -> int:
    """Rows really forgotten where r of n are asked for: at most a fifth."""
    return min(r, n // 5)


def comparison(
    context: Context,
    dataset: str,
    model: str,
    requests: Requests,
    methods: tuple[str, ...] | None = None,
    extra: Extra | None = None,
    seconds: float = 8.0,
) -> Job:
    """The job of one dataset and model: every method (or those of `methods`) at every request."""
    numbers = context.numbers
    wide = model == "mlp" and get_info(dataset).d > WIDE
    skipped = numbers["wide_skips"] if wide else ()
    names = [name for name in (methods or context.methods) if name in context.methods and name not in skipped]
    n = inputs.train_size(context, dataset, numbers["rows"])
    most = numbers["wide_rows"] if wide else numbers["mlp_rows"]
    n = n if model == "lr" or most is None else min(n, most)
    cold = None if model == "lr" else numbers["cold"]
    cells = cells_of(dataset, model, n, requests, names, numbers["runs"], context.seed, cold)

    def run(some: tuple[Cell, ...]) -> Iterator[Record]:
        yield from compare(arena_of(context, dataset, model), requests, some, extra)

    return Job(dataset, cells, run, seconds, group=f"{model} {dataset}")


def cells_of(
    dataset: str,
    model: str,
    n: int,
    requests: Requests,
    methods: Iterable[str],
    runs: int,
    seed: int,
    cold: int | None = None,
) -> tuple[Cell, ...]:
    """Cells of `runs` repeats of each request; `cold`: in how many of them Retrain is run (None: all)."""
    return tuple(
        {"dataset": dataset, "model": model, "method": name, "request": kind, "r": r, "seed": seed}
        | {"repeat": repeat, "n": n}
        for repeat in range(runs)
        for kind, r in _asked(requests, n)
        for name in methods
        if name != "retrain" or cold is None or repeat < cold
    )


def _asked(requests: Requests, n: int) -> dict[tuple[str, int], int]:
    """(kind, rows really forgotten) -> rows asked for, the fewest: small tables have fewer to give."""
    found: dict[tuple[str, int], int] = {}
    for kind, r in requests:
        found.setdefault((kind, forgotten(r, n)), r)
    return found


def compare(arena: Arena, requests: Requests, cells: tuple[Cell, ...], extra: Extra | None = None) -> Iterator[Record]:
    """A record for each cell; cells of one request follow each other."""
    asked = _asked(requests, arena.train.n)
    for (repeat, kind, r), some in groupby(cells, lambda cell: (cell["repeat"], cell["request"], cell["r"])):
        methods = [cell["method"] for cell in some]
        key = {"dataset": arena.dataset, "source": arena.label, "n": arena.train.n, "d": arena.train.d}
        key |= {"model": arena.kind, "request": kind, "seed": arena.seed, "repeat": repeat, "r_asked": asked[kind, r]}
        yield from _round(arena, key, kind, asked[kind, r], repeat, methods, extra)


def arena_of(context: Context, dataset: str, model: str) -> Arena:
    """The dataset with its methods; the last one is kept for the job of the same group that comes next."""
    numbers = context.numbers
    sizes = numbers["rows"], numbers["mlp_rows"], numbers["wide_rows"], numbers["m"], numbers["complete"]
    return _arena(dataset, model, sizes, context.seed, context.raw_dir, context.data_dir)


@lru_cache(maxsize=1)
def _arena(dataset: str, model: str, sizes: tuple[Any, ...], seed: int, raw_dir: Path | None, folder: Path) -> Arena:
    rows, mlp_rows, wide_rows, m, complete = sizes
    label, train, test = inputs.load(dataset, rows, raw_dir, folder, complete)
    if model == "mlp":
        train = inputs.some_rows(train, wide_rows if train.d > WIDE else mlp_rows)
    return Arena(dataset, label, train, test, model, seed, m)


def _first(table: ArrayTable, k: int) -> ArrayTable:
    return table if table.n <= k else ArrayTable(table.X[:k], table.y[:k], table.classes)


def _round(
    arena: Arena, key: Record, kind: str, r: int, repeat: int, methods: list[str], extra: Extra | None
) -> Iterator[Record]:
    """One request, answered by every method in turn."""
    ids, test = arena.request(kind, r, repeat, 0), arena.test
    warm = arena["retrain-warm"]
    target = warm.answer(ids)
    before = _vector(warm.theta)
    truth, unmoved = _classes(target, test), np.asarray(arena.model.predict_proba(before, test.X)).argmax(axis=1)
    change = parameter_distance(before, _vector(target.theta)).value

    def measured(name: str) -> Record:
        method = arena[name]
        time.sleep(PAUSE)  # until the threads of the method before sleep
        answer, first_seconds = method.timed_answer(ids.copy())
        seconds = [first_seconds]
        if extra is None:  # attacks are not about time
            seconds = method.time_requests(ids.copy(), _others(arena, kind, r, repeat), first_seconds)
        answered, failed = float(np.median(seconds)), {}
        try:
            erased = erased_seconds(method, ids, answer, answered)
        except UserError as error:  # a head may learn from too few pairs, but not from one less
            erased, failed = None, {"erased_status": str(error)}
        predicted = _classes(answer, test)
        apart = disagreement(predicted, truth, unmoved)
        idle = name == "nothing"
        record: Record = {
            "accuracy": accuracy(predicted, test.y).value,
            "retrain_accuracy": accuracy(truth, test.y).value,
            "disagreement": apart.value,
            "nothing_disagreement": apart.nothing,
            **_distance(method, arena.model, answer, ids, target, before),
            "change": change,
            "answer_seconds": None if idle else answered,
            **({"overhead_seconds": answered} if idle else {}),
            "answer_spread": float(np.subtract(*np.percentile(seconds, [75, 25])) / max(answered, 1e-12)),
            "erased_seconds": erased,
            **failed,
            "repeats": len(seconds),
            "prepare_seconds": method.prepare_seconds,
            "state_bytes": method.state_bytes(),
            "exact": method.exact,
            **{fact: answer.facts[fact] for fact in FACTS if fact in answer.facts},
        }
        if extra is not None:
            record |= extra(arena, answer, target, ids)
        return record

    for turn in range(len(methods)):
        name = methods[(turn + repeat) % len(methods)]
        base = {**key, "method": name, "r": len(ids)}
        try:
            yield base | measured(name)
        except Broken as error:
            yield base | {"status": str(error), "failed": True}
        except UserError as error:
            yield base | {"accuracy": None, "rho": None, "status": str(error)}
        except Exception as error:  # a plug-in's: it costs its own cells only
            yield base | {"status": f"{type(error).__name__}: {error}", "failed": True}


def _distance(method: TimedMethod, model: Any, answer: Answer, ids: Ids, target: Answer, before: Vector) -> Record:
    """rho and what it was measured against; Retrain's own distance to the target is the noise floor."""
    if answer.theta is None:
        return {"rho": None, "rho_target": None}
    own = method.reference(ids, model)
    if own is not None:
        start, end = own
        return {"rho": rho(answer.theta, end, start).value, "rho_target": "method"}
    found = rho(answer.theta, _vector(target.theta), before).value
    return {"rho": found, "rho_target": "model"} | ({"noise_floor": found} if method.name == "retrain" else {})


def _others(arena: Arena, kind: str, r: int, repeat: int) -> Callable[[], Ids]:
    """Further requests of the same sort, one at a call."""
    turn = 0

    def fresh() -> Ids:
        nonlocal turn
        turn += 1
        return arena.request(kind, r, repeat, turn)

    return fresh


def _vector(theta: Vector | None) -> Vector:
    assert theta is not None
    return theta


def _classes(answer: Answer, test: ArrayTable) -> NDArray[np.int64]:
    """Predicted classes; UserError where the answer is no model: numbers that are not finite, or of another shape."""
    probabilities = np.asarray(answer.predict_proba(test.X), np.float64)
    if probabilities.shape != (test.n, len(test.classes)) or not np.isfinite(probabilities).all():
        raise UserError("the answer's probabilities are not finite numbers for each test row and class")
    if answer.theta is not None and not np.isfinite(answer.theta).all():
        raise UserError("the answer's parameters are not finite")
    return probabilities.argmax(axis=1)
