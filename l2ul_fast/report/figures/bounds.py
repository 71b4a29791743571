"""Theorems 4.5 and 4.6: bounds with the measured error of U beside the measured excess loss."""

from __future__ import annotations

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import INK, drawing_style, legend, style_of, subplots
from l2ul_fast.report.values import (
    MODELS,
    NONE,
    Cell,
    Column,
    Drawing,
    Table,
    methods_of,
    middle,
    one_thread_count,
    runs_of,
    select,
    sources,
    table_of,
    values,
)

#: Excess losses below this (also negative ones) are drawn here.
FLOOR = 1e-12


def excess(record: Record) -> float | None:
    """The larger of both excess losses."""
    return max((v for k in ("excess_loss", "excess_retained") for v in values([record], k)), default=None)


def _mean(name: str) -> Column:
    def column(own: list[Record]) -> Cell:
        found = values(own, name)
        return Cell(f"{np.mean(found):.2e}", float(np.mean(found))) if found else NONE

    return column


def _held(name: str) -> Column:
    def column(own: list[Record]) -> Cell:
        found = [bool(r[name]) for r in own if r.get(name) is not None]
        if not found:
            return NONE
        return Cell(f"{sum(found)} of {len(found)}", sum(found) / len(found), "" if all(found) else "bad")

    return column


COLUMNS = {
    "epsilon": _mean("epsilon"),
    "epsilon on pairs": middle("epsilon_training", "{:.2e}"),
    "excess log-loss": _mean("excess_loss"),
    "paper's bound": _mean("bound"),
    "holds": _held("holds"),
    "corrected bound": _mean("corrected_bound"),
    "corrected holds": _held("corrected_holds"),
    "rho": middle("rho", "{:.3g}"),
    "runs": runs_of,
}


def tables(records: list[Record]) -> list[Table]:
    by = {"data": "dataset", "model": "model", "r": "r", "method": "method"}
    note = "Bounds come from the mean epsilon of the runs; excess losses are means."
    title = "Bounds beside the measured excess loss"
    return [table_of(title, one_thread_count(records), by, COLUMNS, note, block=2)]


def plots(records: list[Record]) -> list[Drawing]:
    """A panel per model: a point is a request; below the diagonal a bound holds."""
    mine = [r for r in one_thread_count(records) if r.get("epsilon")]
    models = [m for m in MODELS if select(mine, model=m)]
    if not models:
        return []
    with drawing_style():
        figure, grid = subplots(1, len(models), figsize=(6.2 * len(models), 6.4))
        for axis, model in zip(grid[0], models, strict=True):
            here = select(mine, model=model)
            for method in methods_of(here):
                own, shape = select(here, method=method), style_of(method)
                y = [max(excess(r) or FLOOR, FLOOR) for r in own]
                paint = {
                    "marker": "." if shape.marker == "_" else shape.marker,
                    "s": 36,
                    "alpha": 0.75,
                    "linewidths": 1.0,
                }
                axis.scatter([r["corrected_bound"] for r in own], y, color=shape.colour, label=shape.label, **paint)
                axis.scatter([r["bound"] for r in own], y, facecolors="none", edgecolors=shape.colour, **paint)
            ends = [v for r in here for v in (r["bound"], r["corrected_bound"])]
            line = [min(ends), max(ends)]
            axis.plot(line, line, color=INK, linewidth=1)
            axis.text(line[1], line[1], "excess = bound ", ha="right", va="bottom", fontsize=9)
            axis.set_title(f"{MODELS[model]} (Theorem {4.5 if model == 'lr' else 4.6})\n{sources(here)}", fontsize=11)
            axis.set(
                xscale="log", yscale="log", xlabel="bound on the excess log-loss", ylabel="measured excess log-loss"
            )
        legend(figure, grid[0], 3)
    alt = (
        "Scatter plot, a panel per model: measured excess log-loss against its bound; below the diagonal a bound holds."
    )
    caption = f"Filled: corrected bound. Hollow: the paper's. Excess below {FLOOR:g} is drawn at the bottom. "
    return [Drawing("bounds", figure, alt, f"{caption}Data: {sources(mine)}.")]


FIGURE = Figure(tables, plots)
