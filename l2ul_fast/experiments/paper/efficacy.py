"""Table 3 of the paper: membership inference and accuracy on the 1000 forgotten rows. The target is Retrain's value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines import HEAD_NAMES, Answer
from l2ul_fast.baselines import METHODS as BASELINES
from l2ul_fast.baselines.base import Ids, Vector
from l2ul_fast.experiments.arena import PROFILES, Arena, comparison
from l2ul_fast.experiments.registry import Context, Experiment, Job, register
from l2ul_fast.measure.records import Record, info, metric
from l2ul_fast.metrics import mia_chundawat2023, pooled_attack

REQUESTS = (("random", 1000),)
#: The paper's methods and ours; the others add nothing but time.
METHODS = ("nothing", "retrain", "retrain-warm", "sisa", "deltagrad", "fyemu", "newton", "finetune", *HEAD_NAMES)
#: Rows that the attacker learns from at most, of either sort, by profile; the time of its support vector machine grows
#: with their square.
ATTACK_ROWS = {"tiny": 200, "quick": 250}


def jobs(context: Context) -> Iterator[Job]:
    """A job for each dataset."""
    attacker = Attacker(context.profile)
    plugged = tuple(name for name in context.methods if name not in METHODS and name not in BASELINES)
    for dataset in context.datasets:
        yield comparison(context, dataset, "mlp", REQUESTS, (*METHODS, *plugged), attacker)


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


register(
    Experiment(
        name="efficacy",
        title="Efficacy (Table 3)",
        help="Table 3: membership inference and accuracy on 1000 forgotten rows.",
        profiles=PROFILES,
        jobs=jobs,
        figure="l2ul_fast.report.figures.efficacy:FIGURE",
        fields={
            "mia_svc": info("share of forgotten rows called members by a support vector machine, as published"),
            "mia_svc_gap": metric("its distance to Retrain's"),
            "mia_auc": info("AUC of telling forgotten rows from rows that were never there; 0.5 is chance"),
            "mia_auc_low": info("lower end of its 95 % interval"),
            "mia_auc_high": info("upper end"),
            "mia_gap": metric("distance of mia_auc to Retrain's"),
            "mia_degenerate": info("why mia_svc is no number", (str,)),
            "tow": metric("tug of war: product of one minus the three accuracy gaps to Retrain", better="higher"),
        },
        order=30,
    )
)
