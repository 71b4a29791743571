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
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.values import Cell as TableCell
from l2ul_fast.report.values import (
    Table,
    cells_of,
    median,
    method_cell,
    middle,
    model_text,
    one_thread_count,
    r_text,
    runs_of,
)

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


# Report --------------------------------------------------------------------------------------------------------------


#: Table 3 of the paper: {dataset: {method: (MIA, accuracy on the forgotten rows)}}; SISA has no MIA there.
PAPER: dict[str, dict[str, tuple[float | None, float]]] = {
    "magic": {"retrain": (0.79, 0.85), "sisa": (None, 0.79), "fyemu": (0.65, 0.71), "l2ul-paper": (0.75, 0.78)},
    "adult": {"retrain": (0.80, 0.81), "sisa": (None, 0.78), "fyemu": (0.68, 0.75), "l2ul-paper": (0.74, 0.76)},
    "skin": {"retrain": (1.0, 1.0), "sisa": (None, 1.0), "fyemu": (1.0, 1.0), "l2ul-paper": (1.0, 1.0)},
    "covtype": {"retrain": (0.73, 0.82), "sisa": (None, 0.76), "fyemu": (0.68, 0.76), "l2ul-paper": (0.67, 0.71)},
    "susy": {"retrain": (0.72, 0.73), "sisa": (None, 0.71), "fyemu": (0.69, 0.70), "l2ul-paper": (0.69, 0.71)},
    "higgs": {"retrain": (0.65, 0.74), "sisa": (None, 0.77), "fyemu": (0.68, 0.69), "l2ul-paper": (0.50, 0.63)},
}
COLUMNS = {
    "accuracy on forgotten": middle("forget_accuracy", "{:.3f}"),
    "Retrain's": middle("retrain_forget_accuracy", "{:.3f}"),
    "paper's": lambda own: _published(own, 1),
    "MIA (SVC)": middle("mia_svc", "{:.3f}"),
    "paper's MIA": lambda own: _published(own, 0),
    "MIA AUC [95 %]": lambda own: _auc(own),
    "gap to Retrain's MIA": middle("mia_gap", "{:.3f}"),
    "no MIA because": lambda own: TableCell("; ".join(sorted({str(w) for q in own if (w := q.get("mia_degenerate"))}))),
    "runs": runs_of,
}


def _published(own: list[Record], which: int) -> float | None:
    r = own[0]
    found = PAPER.get(str(r.get("dataset")), {}).get(str(r.get("method"))) if r.get("model") == "mlp" else None
    return found[which] if found else None


def _auc(own: list[Record]) -> TableCell:
    auc = middle("mia_auc", "{:.3f}")(own)
    low, high = median(own, "mia_auc_low"), median(own, "mia_auc_high")
    return auc if low is None or high is None else auc._replace(text=f"{auc.text} [{low:.3f}, {high:.3f}]")


def shown_tables(records: list[Record]) -> list[Table]:
    mine, rows = one_thread_count(records), []
    for data, model, _, found in cells_of(mine, "data", "model", "r_asked"):
        for method, own in cells_of(found, "method"):
            head = [data, model_text(model), f"r = {r_text(found)}", method_cell(method)]
            rows.append([*head, *(make(own) for make in COLUMNS.values())])
    note = (
        "The target of each column is Retrain's own value, not the lowest: a method that scores far below Retrain has "
        "damaged the model rather than forgotten the rows. The paper's columns are its Table 3, on its own machine."
    )
    title = "Table 3: accuracy and membership attacks on the forgotten rows"
    return [Table(title, ["dataset", "model", "r", "method", *COLUMNS], rows, note, block=3)]


FIGURE = Figure(shown_tables)


register(
    Experiment(
        name="efficacy",
        title="Efficacy (Table 3)",
        help="Table 3: membership inference and accuracy on 1000 forgotten rows.",
        profiles=PROFILES,
        jobs=jobs,
        figure=FIGURE,
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
