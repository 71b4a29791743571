"""Table 3 of the paper: membership inference and accuracy on the 1000 forgotten rows. The target is Retrain's value.

Fields besides those of `methods`: forget_accuracy, retrain_forget_accuracy, mia_svc (chundawat2023: share of D_f called
member by a support vector machine on the entropy of predictions; not balanced, as published), mia_auc (ours: balanced,
threshold-free) with its 95 % interval mia_auc_low .. mia_auc_high, mia_gap = |mia_auc - Retrain's|, mia_svc_gap, tow,
mia_degenerate (why mia_svc is no number, or None).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines import Answer
from l2ul_fast.experiments.arena import Arena, Ids, chosen, compare
from l2ul_fast.experiments.contenders import HEADS
from l2ul_fast.experiments.jobs import Done, Job, Setting
from l2ul_fast.experiments.paper.mlp import arena_of
from l2ul_fast.measure.records import Record
from l2ul_fast.metrics import mia_chundawat2023, pooled_attack
from l2ul_fast.metrics.value import Vector

REQUESTS = (("random", 1000),)
#: The paper's methods and ours; the others add nothing but time.
METHODS = ("nothing", "retrain", "retrain-warm", "sisa", "deltagrad", "fyemu", "newton", "finetune", *HEADS)
#: Rows that the attacker learns from at most, of either sort, by profile; the time of its support vector machine grows
#: with their square.
ATTACK_ROWS = {"tiny": 200, "quick": 250}


def jobs(setting: Setting) -> list[Job]:
    """A job for each dataset."""
    return [Job("efficacy", name, partial(measure, setting, name), weight=8.0) for name in setting.datasets]


def measure(setting: Setting, name: str, done: Done) -> Iterator[Record]:
    facts = setting.facts
    arena = arena_of(setting, name)
    methods = chosen(arena, facts, METHODS)
    yield from compare(arena, REQUESTS, facts["runs"], done, methods, facts["cold"], Attacker(setting.profile))


class Attacker:
    """What an attacker makes of an answer, beside what it makes of the retrained model (found once per request)."""

    def __init__(self, profile: str) -> None:
        self.rows = ATTACK_ROWS.get(profile, 2000)
        self._known: tuple[Answer, Record] | None = None

    def __call__(self, arena: Arena, answer: Answer, target: Answer, ids: Ids) -> Record:
        if self._known is None or self._known[0] is not target:
            self._known = target, _values(arena, target, ids, self.rows)
        retrained = self._known[1]
        ours = _values(arena, answer, ids, self.rows)
        keys = ("forget_accuracy", "mia_svc", "mia_auc", "mia_degenerate", "mia_auc_low", "mia_auc_high")
        record = {key: ours[key] for key in keys}
        for name, gap in (("mia_auc", "mia_gap"), ("mia_svc", "mia_svc_gap")):
            both = ours[name], retrained[name]
            record[gap] = None if None in both else abs(both[0] - both[1])
        record["retrain_forget_accuracy"] = retrained["forget_accuracy"]
        record["tow"] = float(np.prod([1 - abs(ours[k] - retrained[k]) for k in ("forget_accuracy", "retain", "test")]))
        return record


def _values(arena: Arena, answer: Answer, ids: Ids, limit: int) -> Record:
    train, test, rng = arena.train, arena.test, np.random.default_rng([arena.seed, 5, len(ids)])
    retain = np.setdiff1d(train.ids(), ids, assume_unique=True)
    retain = rng.choice(retain, min(limit, len(retain)), replace=False)
    outside = rng.choice(test.n, min(limit, test.n), replace=False)
    forget_p, retain_p, test_p = (
        np.asarray(answer.predict_proba(X)) for X in (train.X[ids], train.X[retain], test.X[outside])
    )
    svc = mia_chundawat2023(retain_p, test_p, forget_p, limit=2 * limit)
    scores = [_confidence(forget_p, train.y[ids]), _confidence(test_p, test.y[outside])]
    auc = pooled_attack(scores[:1], scores[1:], rates=(), n_boot=100).auc
    low, high = auc.interval or (None, None)
    return {
        "forget_accuracy": float((forget_p.argmax(axis=1) == train.y[ids]).mean()),
        "retain": float((retain_p.argmax(axis=1) == train.y[retain]).mean()),
        "test": float((test_p.argmax(axis=1) == test.y[outside]).mean()),
        "mia_svc": svc.value,
        "mia_degenerate": svc.degenerate,
        "mia_auc": auc.value,
        "mia_auc_low": low,
        "mia_auc_high": high,
    }


def _confidence(proba: Vector, y: NDArray[Any]) -> Vector:
    """(n,) log-odds of the true class."""
    p = np.clip(np.take_along_axis(proba, y.astype(np.int64)[:, None], axis=1)[:, 0], 1e-15, 1 - 1e-15)
    return np.asarray(np.log(p / (1 - p)))
