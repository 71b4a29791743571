"""`l2ul compare A B`: what changed from one run to another beyond the noise.

A cell is everything that says what was measured: records.IDENTITY, and the fields that its experiment declared for
that, which the run keeps. Its runs are paired by seed. A change counts when a paired t-test over the runs rejects "no
change" after Holm's correction for all tests made (so that the chance of any false alarm is alpha), and when it is
larger than a minimum effect. Fewer than three paired runs are never judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import IDENTITY, REPEAT, Record
from l2ul_fast.protocols import Styles
from l2ul_fast.report import style
from l2ul_fast.report.runs import environment_of, find_run, load, measured, styles_of
from l2ul_fast.report.values import (
    Cell,
    Table,
    bytes_text,
    dataset_label,
    group_by,
    listing,
    median,
    method_cell,
    plural,
    seconds_text,
    value,
)

MIN_RUNS = 3
#: rho below this is as good as 0: without a recorded solver floor, rounding decides the rest.
TINY = 1e-12


class Metric(NamedTuple):
    """One compared quantity. ratio: changes count as shares, not as differences."""

    name: str
    ratio: bool
    more_is_better: bool
    words: tuple[str, str]  #: (good, bad)
    read: Callable[[Record], float | None]
    text: Callable[[float | None], str]


def _rho(record: Record) -> float | None:
    """rho, no lower than the solver's own noise: what lies below is all one."""
    found = value(record, "rho")
    return None if found is None else max(found, value(record, "noise_floor") or 0.0, TINY)


def _forget_gap(record: Record) -> float | None:
    """Distance of the accuracy on forgotten rows to Retrain's, which is its target."""
    mine, target = value(record, "forget_accuracy"), value(record, "retrain_forget_accuracy")
    return None if mine is None or target is None else abs(mine - target)


def _time(name: str) -> Metric:
    def read(record: Record) -> float | None:
        found = value(record, name)
        # doing nothing takes no time worth comparing
        return found if found is not None and found > 0 and record.get("method") != "nothing" else None

    return Metric(name, True, False, ("faster", "slower"), read, seconds_text)


def _share(name: str, more: bool, read: Callable[[Record], float | None] | None = None) -> Metric:
    def text(v: float | None) -> str:
        return "–" if v is None else f"{100 * v:.2f} %"

    return Metric(name, False, more, ("better", "worse"), read or (lambda r: value(r, name)), text)


METRICS = (
    *(_time(name) for name in ("answer_seconds", "erased_seconds", "prepare_seconds", "seconds", "refresh_seconds")),
    Metric("rho", True, False, ("better", "worse"), _rho, lambda v: "–" if v is None else f"{v:.3g}"),
    _share("accuracy", True),
    _share("disagreement", False),
    _share("forget_accuracy gap", False, _forget_gap),
    _share("mia_gap", False),
    Metric("state_bytes", True, False, ("better", "worse"), lambda r: value(r, "state_bytes") or None, bytes_text),
)


@dataclass
class Change:
    """One metric of one cell in both runs."""

    cell: Record
    metric: Metric
    a: float  #: median over the paired runs
    b: float
    effect: float  #: median over pairs of log(b / a), or of b - a
    pairs: int
    noise: float  #: spread of the timings themselves, as a share
    p: float | None  #: None: too few runs to judge
    corrected: float | None = None
    verdict: str = "same"

    @property
    def change(self) -> str:
        if self.metric.ratio:
            return f"{100 * math.expm1(self.effect):+.1f} %" if self.effect < 1.6 else f"×{math.exp(self.effect):.3g}"
        return f"{100 * self.effect:+.2f} points"

    @property
    def bad(self) -> bool:
        return self.verdict == self.metric.words[1]

    def as_json(self) -> Record:
        unit, change = ("share", math.expm1(self.effect)) if self.metric.ratio else ("difference", self.effect)
        values = {"metric": self.metric.name, "a": self.a, "b": self.b, "runs": self.pairs, "change": change}
        return {
            **self.cell,
            **values,
            "unit": unit,
            "p": self.p,
            "p_corrected": self.corrected,
            "verdict": self.verdict,
        }


@dataclass
class Comparison:
    """All compared values, and sentences on what to mind."""

    changes: list[Change]
    cells: int
    warnings: list[str]
    lost: int = 0  #: cells with a value before and none after
    styles: Styles = field(default_factory=dict)  #: of the methods, as the runs wrote them

    @property
    def bad(self) -> list[Change]:
        return [c for c in self.changes if c.bad]

    def count(self, verdict: str) -> int:
        return sum(c.verdict == verdict for c in self.changes)


def compare_runs(
    a: Path | str,
    b: Path | str,
    min_effect: float = 0.10,
    min_points: float = 0.1,
    alpha: float = 0.05,
    fields: Mapping[str, Mapping[str, str]] | None = None,
) -> Comparison:
    """Compare run A (before) with run B (after); UserError when they share no cell, or no value of one.

    fields: {experiment: {field of its own: "identity" or "repeat"}} for runs that do not say so themselves.
    """
    folders = [find_run(a), find_run(b)]
    found = [load(folder) for folder in folders]
    machines = [environment_of(f, r) for f, r in zip(folders, found, strict=True)]
    own = own_fields({"fields": fields}, *machines)
    cells = [_cells(records, own) for records in found]
    shared = [key for key in cells[0] if key in cells[1]]
    if not shared:
        why = _why_none(*found)
        raise UserError(f"{a} and {b} share no cell, so there is nothing to compare{why}")
    warnings = _machine_warnings(*machines)
    changes, unpaired, lost = [], 0, 0
    for key in shared:
        pairs = _pairs(cells[0][key], cells[1][key], _named(own, dict(key)["experiment"], "repeat"))
        unpaired += not pairs
        lost += any(_broken(after) and not _broken(before) for before, after in pairs)
        changes += _changes(dict(key), pairs)
    lost += max(0, sum(bool(r.get("failed")) for r in found[1]) - sum(bool(r.get("failed")) for r in found[0]))
    if lost:
        warnings.append(f"{plural(lost, 'cell')} lost: there is a value in {a} and none in {b}.")
    if unpaired:
        warnings.append(f"{unpaired} shared cells have no run with the same seed in both and were left out.")
    for name, mine in ((a, cells[0]), (b, cells[1])):
        if len(mine) > len(shared):
            warnings.append(f"{len(mine) - len(shared)} of {len(mine)} cells are in {name} only.")
    if not changes:
        raise UserError(f"{a} and {b} share {len(shared)} cells but no value of them, so there is nothing to compare")
    judge(changes, min_effect, min_points, alpha)
    shift = [c.effect for c in changes if c.metric.name == "answer_seconds"]
    if len(shift) >= 5 and abs(np.median(shift)) > math.log1p(min_effect):
        how = "slower" if np.median(shift) > 0 else "faster"
        warnings.append(
            f"Half of all requests are at least {100 * abs(math.expm1(np.median(shift))):.0f} % {how} in {b}: "
            "a change common to all methods is often the machine's."
        )
    return Comparison(changes, len(shared), warnings, lost, {**styles_of(machines[0]), **styles_of(machines[1])})


def _broken(record: Record) -> bool:
    """Whether a cell failed, or has no accuracy, distance or time."""
    known = [metric.read(record) for metric in METRICS if metric.name in record]
    return (
        bool(record.get("failed"))
        or record.get("status", "ok") != "ok"
        or (bool(known) and not any(v is not None for v in known))
    )


def own_fields(*environments: Record) -> dict[str, dict[str, str]]:
    """{experiment: {field: role}} of the fields that experiments declared for themselves, of all runs together."""
    out: dict[str, dict[str, str]] = {}
    for environment in environments:
        found = environment.get("fields")
        for experiment, roles in found.items() if isinstance(found, dict) else ():
            if isinstance(roles, dict):
                out.setdefault(experiment, {}).update({str(name): str(role) for name, role in roles.items()})
    return out


def _named(own: Mapping[str, Mapping[str, str]], experiment: str, role: str) -> list[str]:
    """Fields of this role; experiments of one family ("unlearn-rho") have those of the first word."""
    found = own.get(experiment) or own.get(experiment.split("-")[0]) or {}
    return [name for name, its in found.items() if its == role]


def _cells(records: list[Record], own: Mapping[str, Mapping[str, str]]) -> dict[tuple[Any, ...], list[Record]]:
    """{((field, value), ...): records}: what tells cells apart, where it is known."""
    out: dict[tuple[Any, ...], list[Record]] = {}
    for r in measured(records):
        names = (*IDENTITY, *_named(own, r["experiment"], "identity"))
        key = tuple((name, v) for name in names if (v := r.get(name)) is not None)
        try:
            if r["experiment"] != "gate":
                out.setdefault(key, []).append(r)
        except TypeError:
            raise UserError("a record has a list or an object where it should name what was measured") from None
    return out


def _pairs(a: list[Record], b: list[Record], repeat: Iterable[str] = ()) -> list[tuple[Record, Record]]:
    """Runs of one cell with the same seed and draw of rows; several of the same are paired in their order."""
    mine, other = (group_by(side, *REPEAT, *repeat) for side in (a, b))
    return [both for key in mine if key in other for both in zip(mine[key], other[key], strict=False)]


def _changes(cell: Record, pairs: list[tuple[Record, Record]]) -> list[Change]:
    out = []
    for metric in METRICS:
        both = [(x, y) for ra, rb in pairs if (x := metric.read(ra)) is not None and (y := metric.read(rb)) is not None]
        if not both:
            continue
        if metric.words[0] == "faster":
            # one preparation that serves ten runs is written to ten records, but was timed once
            both = list(dict.fromkeys(both))
        x, y = np.array(both).T
        moved = np.log(y / x) if metric.ratio else y - x
        spread = max((median(side, "answer_spread") or 0.0 for side in zip(*pairs, strict=True)), default=0.0)
        noise = spread if metric.name in ("answer_seconds", "erased_seconds") else 0.0
        middle = float(np.median(moved))
        before, after = float(np.median(x)), float(np.median(y))
        out.append(Change(cell, metric, before, after, middle, len(both), noise, paired_p(moved)))
    return out


def paired_p(moved: np.ndarray[Any, Any]) -> float | None:
    """Two-sided p of "the mean of the differences (k,) is 0"; None for fewer than MIN_RUNS."""
    k = len(moved)
    if k < MIN_RUNS:
        return None
    mean, sd = float(np.mean(moved)), float(np.std(moved, ddof=1))
    if sd <= 1e-12 * abs(mean):  # every run moved alike, or none at all
        return 1.0 if mean == 0 else 0.0
    return float(2 * stats.t.sf(abs(mean) / (sd / math.sqrt(k)), k - 1))


def holm(p: list[float]) -> list[float]:
    """Holm's step-down correction: values at most alpha are rejected with a family-wise error of at most alpha."""
    order = np.argsort(p, kind="stable")
    out, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        out[i] = highest
    return out


def judge(changes: list[Change], min_effect: float, min_points: float, alpha: float) -> None:
    """Set each change's corrected p and verdict."""
    tested = [c for c in changes if c.p is not None]
    for c, corrected in zip(tested, holm([c.p for c in tested if c.p is not None]), strict=True):
        c.corrected = corrected
    for c in changes:
        needed = math.log1p(max(min_effect, c.noise)) if c.metric.ratio else min_points / 100
        if c.corrected is None:
            c.verdict = "too few runs" if abs(c.effect) > needed else "same"
        elif c.corrected <= alpha and abs(c.effect) > needed:
            good = (c.effect > 0) == c.metric.more_is_better
            c.verdict = c.metric.words[0 if good else 1]


def _machine_warnings(a: Record, b: Record) -> list[str]:
    out = []
    for name, what in (("cpu", "CPUs"), ("cores", "numbers of cores")):
        if a.get(name) != b.get(name) and (a.get(name) or b.get(name)):
            out.append(
                f"The runs are from machines with different {what} ({a.get(name)} and {b.get(name)}): "
                "differences in time may be the machine's."
            )
    versions = [m["versions"] if isinstance(m.get("versions"), dict) else {} for m in (a, b)]
    moved = [k for k in versions[0] if k in versions[1] and versions[0][k] != versions[1][k] and k != "l2ul-fast"]
    if moved:
        text = ", ".join(f"{k} {versions[0][k]} and {versions[1][k]}" for k in moved)
        out.append(f"The runs used different versions: {text}.")
    return out


def _why_none(a: list[Record], b: list[Record]) -> str:
    """The nearest reason, where there is one."""
    for name in ("experiment", "profile", "threads", "dataset", "source", "n"):
        x, y = (sorted({str(r[name]) for r in measured(run) if r.get(name)}) for run in (a, b))
        if x and y and not set(x) & set(y):
            return f" (they have different values of {name}: {', '.join(x[:4])} and {', '.join(y[:4])})"
    return ""


# --- shown ------------------------------------------------------------------------------------------------------------

ORDER = {"slower": 0, "worse": 0, "faster": 1, "better": 1, "too few runs": 2, "same": 3}
MARKS = {0: "bad", 1: "good"}


def summary(found: Comparison) -> str:
    counts = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in ORDER)
    return f"{found.cells} cells in both runs, {len(found.changes)} values compared: {counts}."


def table(found: Comparison, everything: bool = False) -> Table:
    """What got worse first, then what got better; a block per dataset."""
    shown = [c for c in found.changes if everything or c.verdict not in ("same", "too few runs")]
    shown.sort(key=lambda c: (ORDER[c.verdict], _data(c.cell), -abs(c.effect)))
    with style.using(found.styles):
        rows = [
            {
                "data": _data(c.cell),
                "cell": _place(c.cell),
                "method": method_cell(str(c.cell.get("method", ""))).text,
                "metric": c.metric.name,
                "verdict": Cell(c.verdict, c.verdict, MARKS.get(ORDER[c.verdict], "")),
                "A": c.metric.text(c.a),
                "B": c.metric.text(c.b),
                "change": c.change,
                "runs": c.pairs,
                "p": None if c.corrected is None else f"{c.corrected:.2g}",
            }
            for c in shown
        ]
    return listing("What changed from A to B", rows, block=1)


def _data(cell: Record) -> str:
    return dataset_label(*(cell.get(k) for k in ("dataset", "source", "n"))) if cell.get("dataset") else ""


def _place(cell: Record) -> str:
    """The experiment and what else tells its cells apart."""
    known = ("experiment", "dataset", "source", "n", "d", "method", "profile", "m", "s", "t")
    rest = [f"{name}={v}" for name, v in cell.items() if name not in known and v not in ("random", 1)]
    return " ".join([str(cell["experiment"]), *rest])
