"""How fast the baselines themselves are, with the goals they were built to: a slow baseline would flatter us."""

from __future__ import annotations

from rich.table import Table

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import number_text, pick, seconds_text

#: (part, peer) -> how many times faster ours must be.
GOALS = {
    ("speed lr", "newton-cholesky"): 5.0,
    ("speed lr", "lbfgs"): 5.0,
    ("speed mlp", "torch"): 5.0,
    ("speed mlp", "torch, 1 thread"): 5.0,
    ("speed mlp", "sklearn"): 10.0,
}
#: Share of a method's own arithmetic that everything else may cost.
OVERHEAD = 0.2


def rows(records: list[Record]) -> list[tuple[str, str, str, str, str]]:
    """(what, time, measured, goal, ok or missed) lines."""
    found = []
    for part, title in (("speed lr", "Retrain LR"), ("speed mlp", "Retrain MLP")):
        for r in pick(records, part=part):
            reached = f"gradient {r['gradient_norm']:.0e}" if "gradient_norm" in r else f"loss {r.get('loss', 0):.4f}"
            goal = GOALS.get((part, r["method"]))
            verdict = "" if goal is None else "ok" if r["ratio"] >= goal else "missed"
            found.append(
                (
                    f"{title}, {r['n']:,} x {r['d']}: {r['method']} ({reached})",
                    seconds_text(r["seconds"]),
                    f"ours is {r['ratio']:.1f}x faster" if goal else "",
                    f">= {goal:g}x" if goal else "",
                    verdict,
                )
            )
    found += [
        (
            f"{r['method']} {r['model']}, {r['n']:,} x {r['d']}, r = {r.get('r', 100)}: over its own arithmetic",
            seconds_text(r["seconds"]),
            f"{number_text(100 * r['overhead'])} %",
            f"<= {100 * OVERHEAD:g} %",
            "ok" if r["overhead"] <= OVERHEAD else "missed",
        )
        for r in pick(records, part="speed overhead")
    ]
    return found


def table(records: list[Record]) -> Table:
    """For the terminal."""
    made = Table(
        title="How fast the baselines are (synthetic rows; medians of interleaved repeats)", title_justify="left"
    )
    for name in ("what", "time", "measured", "goal", ""):
        made.add_column(name, justify="left" if name in ("what", "") else "right")
    for line in rows(records):
        made.add_row(*line)
    return made


def columns(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """For the report page."""
    return ["what", "time", "measured", "goal", "reached"], [list(line) for line in rows(records)]
