"""One dataset, one model, every method: accuracy, rho, disagreement and time of each request, beside a true retrain.

A record per (method, r, kind, run). All methods of a run get the same request, in turns that start at another one each
run. Fields:
  r: rows really forgotten, in every timed request; r_asked: r of the table that the record belongs to
  accuracy (test rows), retrain_accuracy; disagreement: share of test rows that the retrained model answers otherwise;
    nothing_disagreement
  rho (None for ensembles); reference: "A", or "own" where a method trains otherwise and is measured against its own
    retrain; noise_floor: what two retrains from different starts differ by, in units of rho
  answer_seconds: median of `repeats` requests, unlearn_spread theirs; unlearn_seconds is another name of it
  erased_seconds: until nothing that the method keeps gives the rows back (contenders.erased_seconds); None: never, or
    erased_status says why not
  prepare_seconds, state_bytes, exact
  of L2UL: error (its own estimate of rho), tier, due, anchor_moved; of certified removal: retrained (budget spent)
  status: why there is no answer (the numbers are None or missing then)
MLP: the anchor is a coarse number of A like lam, the same for all methods and for the target, which is the point that
the warm retrain reaches; anchor_moved is the number of its coordinates that are others once the rows have left it too
(the seal of l2ul-expansion, which follows). Retrain from the anchor is run and timed in the first `cold` runs only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines import Answer
from l2ul_fast.errors import UserError
from l2ul_fast.experiments.contenders import (
    ALL_METHODS,
    DEFAULT,
    CachedFit,
    Contender,
    Unlearner,
    contender,
    erased_seconds,
)
from l2ul_fast.experiments.jobs import Done
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import PAUSE
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.pairs.plan import request

Ids = NDArray[np.int64]
Vector = NDArray[np.float64]
#: (arena, answer, the retrained model, ids) -> more fields of a record
Extra = Callable[["Arena", Answer, Answer, Ids], Record]
LAM = 1e-3
#: Features above which a table is wide: the exact Hessian of an MLP of 10 units has (10 d)^2 entries.
WIDE = 40
#: What a method says of its own answer and a record repeats.
FACTS = ("error", "tier", "due", "anchor_moved", "retrained")
#: Test rows that are predicted at most: a ten-thousandth can still be seen.
TEST_ROWS = 200_000


class Arena:
    """A dataset, the model A trained on it, and the contenders, each prepared when it is first needed."""

    def __init__(
        self, dataset: str, label: str, train: ArrayTable, test: ArrayTable, model: str, seed: int, m: int | None
    ) -> None:
        self.dataset, self.label, self.train, self.test = dataset, label, train, first(test, TEST_ROWS)
        self.kind, self.seed, self.m = model, seed, m
        self._ready: dict[str, Contender] = {}
        self._failed: dict[str, UserError] = {}

    @cached_property
    def model(self) -> Any:
        """A for everybody."""
        if self.kind == "lr":
            return LogisticModel(self.train.d, len(self.train.classes), LAM)
        return self[DEFAULT].u.model  # type: ignore[attr-defined] # its fit settles anchor and mu

    @cached_property
    def trained(self) -> CachedFit:
        return CachedFit(self.model, self.train)

    def __getitem__(self, name: str) -> Contender:
        """The method, prepared; the same UserError each time if it cannot be prepared on this table."""
        if name in self._failed:
            raise self._failed[name]
        if name not in self._ready:
            made = contender(name, self.m)
            try:
                made.prepare(self.train, self.kind if isinstance(made, Unlearner) else self.trained, self.seed)
                for r in (3, 1):  # loads its kernels
                    made.answer(self.request("random", r, -1, 0))
            except UserError as error:
                self._failed[name] = error
                raise
            self._ready[name] = made
        return self._ready[name]

    def request(self, kind: str, r: int, run: int, turn: int) -> Ids:
        """Row numbers; the same for all methods of a run. turn > 0: others of the same sort, for timing."""
        rng = np.random.default_rng([self.seed, 101, r, run + 1, turn])
        n = len(self.train.X)
        if kind == "random":
            return np.sort(rng.choice(n, min(r, n // 5), replace=False))
        return np.sort(request(kind, min(r, n // 5), self.train.X, self.train.y, rng))


def chosen(arena: Arena, facts: dict[str, Any], methods: tuple[str, ...] = ALL_METHODS) -> tuple[str, ...]:
    """Those of the methods that the run asks for, less those that its profile leaves out on wide tables."""
    skips = facts.get("wide_skips", ()) if arena.train.d > WIDE else ()
    wanted = facts.get("methods") or methods
    return tuple(name for name in methods if name in wanted and name not in skips)


def first(table: ArrayTable, k: int) -> ArrayTable:
    return table if table.n <= k else ArrayTable(table.X[:k], table.y[:k], table.classes)


def compare(
    arena: Arena,
    requests: tuple[tuple[str, int], ...],
    runs: int,
    done: Done,
    methods: tuple[str, ...] = ALL_METHODS,
    cold: int | None = None,
    extra: Extra | None = None,
) -> Iterator[Record]:
    """Records of `runs` requests of each (kind, r); `cold`: how many of them Retrain is run for (None: all)."""
    base: Record = {
        "dataset": arena.dataset,
        "source": arena.label,
        "n": arena.train.n,
        "d": arena.train.d,
        "model": arena.kind,
    }
    for run in range(runs):
        for kind, r in requests:
            key = {**base, "kind": kind, "seed": arena.seed, "run": run}
            asked = [name for name in methods if name != "retrain" or cold is None or run < cold]
            todo = [name for name in asked if not done(**key, method=name, r_asked=r)]
            if todo:
                yield from _round(arena, key | {"r_asked": r}, kind, r, run, todo, extra)


def _round(
    arena: Arena, key: Record, kind: str, r: int, run: int, todo: list[str], extra: Extra | None
) -> Iterator[Record]:
    """One request, answered by every method in turn."""
    ids, test = arena.request(kind, r, run, 0), arena.test
    warm = arena["retrain-warm"]
    target = warm.answer(ids)
    before = warm.theta
    truth, unmoved = _classes(target, test), _predicted(arena.model, before, test)
    change = float(np.linalg.norm(_vector(before) - _vector(target.theta)))
    for turn in range(len(todo)):
        name = todo[(turn + run) % len(todo)]
        try:
            method = arena[name]
            time.sleep(PAUSE)  # until the threads of the method before sleep
            answer, known = method.timed_answer(ids)
        except UserError as error:
            yield {**key, "method": name, "r": len(ids), "accuracy": None, "rho": None, "status": str(error)}
            continue
        fresh, failed = _fresh(arena, kind, r, run), {}
        seconds = [known] if extra else method.time_requests(ids, fresh, known)  # attacks are not about time
        answered = float(np.median(seconds))
        try:
            erased = erased_seconds(method, ids, answer, answered)
        except UserError as error:  # a head may learn from too few pairs, but not from one less
            erased, failed = None, {"erased_status": str(error)}
        predicted = _classes(answer, test)
        record: Record = {
            **key,
            "method": name,
            "r": len(ids),
            "accuracy": float((predicted == test.y).mean()),
            "retrain_accuracy": float((truth == test.y).mean()),
            "disagreement": float((predicted != truth).mean()),
            "nothing_disagreement": float((unmoved != truth).mean()),
            **_distance(method, arena.model, answer, ids, target, before, change),
            "change": change,
            "answer_seconds": answered,
            "unlearn_seconds": answered,
            "unlearn_spread": float(np.subtract(*np.percentile(seconds, [75, 25])) / max(answered, 1e-12)),
            "erased_seconds": erased,
            **failed,
            "repeats": len(seconds),
            "prepare_seconds": method.prepare_seconds,
            "state_bytes": method.state_bytes(),
            "exact": method.exact,
            **{key: answer.facts[key] for key in FACTS if key in answer.facts},
        }
        if extra is not None:
            record |= extra(arena, answer, target, ids)
        yield record


def _distance(
    method: Contender, model: Any, answer: Answer, ids: Ids, target: Answer, before: Vector | None, change: float
) -> Record:
    """rho and what it was measured against; Retrain's own distance to the target is the noise floor."""
    if answer.theta is None:
        return {"rho": None, "reference": None}
    own = method.reference(ids, model)
    if own is not None:
        start, end = own
        moved = float(np.linalg.norm(start - end))
        rho = float(np.linalg.norm(answer.theta - end)) / moved if moved > 0 else None
        return {"rho": rho, "reference": "own"}
    rho = float(np.linalg.norm(answer.theta - _vector(target.theta))) / change if change > 0 else None
    return {"rho": rho, "reference": "A"} | ({"noise_floor": rho} if method.name == "retrain" else {})


def _fresh(arena: Arena, kind: str, r: int, run: int) -> Callable[[], Ids]:
    turn = 0

    def fresh() -> Ids:
        nonlocal turn
        turn += 1
        return arena.request(kind, r, run, turn)

    return fresh


def _vector(theta: Vector | None) -> Vector:
    assert theta is not None
    return theta


def _classes(answer: Answer, test: ArrayTable) -> NDArray[np.int64]:
    return np.asarray(answer.predict_proba(test.X)).argmax(axis=1)


def _predicted(model: Any, theta: Vector | None, test: ArrayTable) -> NDArray[np.int64]:
    return np.asarray(model.predict_proba(_vector(theta), test.X)).argmax(axis=1)
