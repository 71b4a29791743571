"""Figs. 7 and 8 redrawn: accuracy and rho against psi, s and m."""

from __future__ import annotations

from typing import Any

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import DASHES, INK, draw_line, drawing_style, legend, style_of, subplots
from l2ul_fast.report.values import (
    MODELS,
    Drawing,
    Table,
    cells_of,
    group_by,
    methods_of,
    middle,
    one_thread_count,
    points,
    remarks,
    runs_of,
    select,
    sources,
    table_of,
    values,
)

NAMES = {"psi": "psi (cells per partition)", "s": "s (rows per training pair)", "m": "m (training pairs)"}
COLUMNS = {
    "accuracy": middle("accuracy"),
    "− Retrain (points)": middle(points, "{:+.2f}"),
    "rho": middle("rho", "{:.3g}"),
    "disagree": middle("disagreement", "{:.2%}"),
    "runs": runs_of,
    "remark": remarks,
}


def tables(records: list[Record]) -> list[Table]:
    by = {"data": "dataset", "model": "model", "parameter": "varied", "method": "method", "value": "value", "r": "r"}
    return [table_of("Accuracy and rho by psi, s and m", one_thread_count(records), by, COLUMNS, block=3)]


def plots(records: list[Record]) -> list[Drawing]:
    """Two rows (accuracy, rho) per dataset and model, a column per parameter; line styles tell r."""
    from matplotlib.ticker import NullFormatter

    mine = one_thread_count(records)
    blocks = list(cells_of(mine, "model", "data"))
    with drawing_style():
        figure, axes = subplots(2 * len(blocks), 3, figsize=(11.5, 3.9 * len(blocks) + 1.0))
        for i, (model, data, here) in enumerate(blocks):
            for j, (parameter, label) in enumerate(NAMES.items()):
                varied = select(here, parameter=parameter)
                for row, (name, floor) in enumerate((("accuracy", None), ("rho", 1e-6))):
                    axis = axes[2 * i + row, j]
                    for method in methods_of(varied):
                        for dash, r in zip(DASHES, sorted({q["r"] for q in mine}), strict=False):
                            own = group_by(select(varied, method=method, r=r), "value")
                            found = {v: values(cells, name) for (v,), cells in own.items()}
                            text = f"{style_of(method).label}, r = {r:,}"
                            draw_line(axis, found, method, floor, linestyle=dash, label=text)
                    _reference(axis, here, name)
                    axis.set_xscale("log", base=2 if parameter == "psi" else 10)
                    ticks = sorted({q["value"] for q in varied})
                    axis.set_xticks(ticks, [f"{t:,}" for t in ticks], fontsize=9)
                    axis.xaxis.set_minor_formatter(NullFormatter())
                    if row:
                        axis.set(yscale="log", xlabel=label)
            axes[2 * i, 0].set_ylabel("test accuracy")
            axes[2 * i + 1, 0].set_ylabel("rho (1 = did nothing)")
            axes[2 * i, 0].set_title(f"{MODELS.get(model, model)}: {data}", fontsize=11)
            for row in (2 * i, 2 * i + 1):
                ends = [axis.get_ylim() for axis in axes[row]]
                for axis in axes[row]:
                    axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
        legend(figure, axes.ravel(), 3)
    alt = "Lines of accuracy and rho against psi, s and m, two rows of panels per dataset and model."
    caption = f"Lines: medians over {runs_of(mine)} run(s), bands: quartiles. Data: {sources(mine)}."
    return [Drawing("sensitivity", figure, alt, caption)]


def _reference(axis: Any, records: list[Record], name: str) -> None:
    if name == "rho":
        axis.axhline(1, color=INK, linewidth=1, linestyle=":", label="did nothing")
    elif found := values(select(records, method="retrain"), name):
        axis.axhline(sum(found) / len(found), color=INK, linewidth=1, alpha=0.8, label="Retrain (mean over r and runs)")


FIGURE = Figure(tables, plots)
