"""How fast the baselines themselves are, with the goals they were built to: a slow baseline would flatter us."""

from __future__ import annotations

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import style_of
from l2ul_fast.report.values import Cell, Table, marked, median, model_text, number_text, ratio_text, select, timed

#: (task, peer) -> how many times faster ours must be.
GOALS = {
    ("speed lr", "newton-cholesky"): 5.0,
    ("speed lr", "lbfgs"): 5.0,
    ("speed mlp", "torch"): 5.0,
    ("speed mlp", "torch, 1 thread"): 5.0,
    ("speed mlp", "sklearn"): 10.0,
}
#: Share of a method's own arithmetic that everything else may cost.
OVERHEAD = 0.2


def tables(records: list[Record]) -> list[Table]:
    return [_peers(records), _overhead(records)]


def _peers(records: list[Record]) -> Table:
    rows = []
    for task in ("speed lr", "speed mlp"):
        for r in select(records, task=task, failed=None):
            reached = f"gradient {r['gradient_norm']:.0e}" if "gradient_norm" in r else f"loss {r.get('loss', 0):.4f}"
            goal, ratio = GOALS.get((task, r["method"])), median([r], "ratio")
            cell = marked(ratio_text(ratio), ratio, goal, at_least=True) if goal else Cell("–")
            rows.append(
                [f"{model_text(r['model'])}, {r['n']:,} × {r['d']}", r["method"], timed("seconds")([r]), cell, reached]
            )
    columns = ["data", "trained by", "time", "ours is faster by", "reached"]
    return Table("Retrain beside other libraries", columns, rows, "Synthetic rows; medians of interleaved repeats.", 1)


def _overhead(records: list[Record]) -> Table:
    rows = []
    for r in select(records, task="speed overhead", failed=None):
        text = f"{number_text(100 * r['overhead'])} %"
        data = f"{model_text(r['model'])}, {r['n']:,} × {r['d']}, r = {r.get('r') or 100}"
        goal = marked(text, r["overhead"], OVERHEAD, f"{100 * OVERHEAD:g} %")
        rows.append([data, style_of(r["method"]).label, timed("seconds")([r]), goal])
    title = "Time of a method beyond its own arithmetic"
    return Table(title, ["data", "method", "time", "over its arithmetic"], rows, block=1)


FIGURE = Figure(tables)
