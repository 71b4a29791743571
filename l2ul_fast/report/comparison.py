"""A comparison of two runs as a table in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import look
from l2ul_fast.report.compare import IDENTITY, Comparison


def terminal(found: Comparison, everything: bool = False) -> Any:
    """A rich table: what got worse first, then what got better, and a sentence that sums up."""
    order = {"slower": 0, "worse": 0, "faster": 1, "better": 1, "too few runs": 2, "same": 3}
    colours = {0: "red", 1: "green", 2: "yellow", 3: "dim"}
    shown = [c for c in found.changes if everything or c.verdict not in ("same", "too few runs")]
    shown.sort(key=lambda c: (order[c.verdict], -abs(c.effect)))
    words = ", ".join(f"{found.count(w)} {w}" for w in ("slower", "worse", "faster", "better", "same", "too few runs"))
    text = f"{found.cells} cells in both runs, {len(found.changes)} values compared: {words}."
    if not shown:
        return text
    table = Table(title="What changed from A to B")
    for name in ("verdict", "experiment", "dataset", "model", "method", "r", "metric", "A", "B", "change", "runs", "p"):
        table.add_column(name, justify="right" if name in ("r", "A", "B", "change", "runs", "p") else "left")
    for c in shown:
        p = "–" if c.corrected is None else f"{c.corrected:.2g}"
        table.add_row(
            f"[{colours[order[c.verdict]]}]{c.verdict}[/]",
            *(
                _plain(x)
                for x in (
                    _place(c.cell),
                    f"{c.cell.get('dataset', '')} ({c.cell.get('source', '?')})",
                    c.cell.get("model", ""),
                    look(str(c.cell.get("method", ""))).name,
                    c.cell.get("r", ""),
                    c.metric.name,
                    c.metric.text(c.a),
                    c.metric.text(c.b),
                    c.change,
                    c.pairs,
                    p,
                )
            ),
        )
    return Group(table, text)


def _plain(x: Any) -> str:
    return escape(str(x))


def _place(cell: Record) -> str:
    """The experiment and what else tells its cells apart."""
    rest = [
        n for n in IDENTITY[8:] if n in cell and n not in ("profile", "m", "s", "t") and cell[n] not in ("random", 1)
    ]
    return " ".join([str(cell["experiment"]), *(f"{n}={cell[n]}" for n in rest)])
