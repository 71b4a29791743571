"""Fig. 6 redrawn: accuracy after contaminated points are unlearned, and beside it the null control."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import INK, drawing_style, legend, style_of, subplots
from l2ul_fast.report.values import (
    MODELS,
    Cell,
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

REQUESTS = {"far": "far points labelled wrong", "flipped": "labels of class 1 flipped"}
SHOWN = (("accuracy", "asked for the contaminated points"), ("null_accuracy", "null control: asked for clean points"))


def _null(own: list[Record]) -> Cell:
    """How often a method recovers although it was asked for clean points: it forgot its model."""
    votes = [bool(r["fails_null_control"]) for r in own if r.get("fails_null_control") is not None]
    why = sorted({str(r["status"]) for r in own if r.get("status", "ok") != "ok"})
    text = "; ".join(why) or (f"{sum(votes)} of {len(votes)} runs" if votes else "contamination did no harm")
    return Cell(text, float(sum(votes)), "bad" if any(votes) else "")


COLUMNS = {
    "accuracy before": middle("original_accuracy"),
    "accuracy": middle("accuracy"),
    "Retrain's": middle("retrain_accuracy"),
    "recovered": middle("recovery"),
    "control: accuracy": middle("null_accuracy"),
    "control: recovered": middle("null_recovery"),
    "recovers in the control too": _null,
    "rho": middle("rho", "{:.3g}"),
    "runs": runs_of,
}


def tables(records: list[Record]) -> list[Table]:
    by = {"model": "model", "request": "points", "contaminated": "contaminated", "method": "method"}
    title = "Accuracy after contaminated points are unlearned"
    note = "Synthetic two-dimensional blobs. The control asks for as many clean points: what recovers there too forgot "
    return [table_of(title, one_thread_count(records), by, COLUMNS, f"{note}its model, not the points.", block=3)]


def plots(records: list[Record]) -> list[Drawing]:
    """Rows: model and request; columns: kind of contamination. Methods stand side by side at each amount."""
    mine = one_thread_count(records)
    models = [m for m in MODELS if select(mine, model=m)]
    kinds = [k for k in REQUESTS if select(mine, request=k)]
    if not models or not kinds:
        return []
    with drawing_style():
        figure, axes = subplots(2 * len(models), len(kinds), figsize=(11, 5.8 * len(models) + 0.8), sharey=True)
        for i, model in enumerate(models):
            for j, (name, what) in enumerate(SHOWN):
                for axis, kind in zip(axes[2 * i + j], kinds, strict=True):
                    _panel(axis, select(mine, model=model, request=kind), name, methods_of(mine))
                    axis.set_title(f"{MODELS[model]}, {REQUESTS[kind]}\n{what}", fontsize=10)
                axes[2 * i + j, 0].set_ylabel("accuracy on clean\ntest points")
        for axis in axes[-1]:
            axis.set_xlabel("contaminated points among the training rows")
        legend(figure, axes.ravel())
    alt = "Accuracy on clean test points by number of contaminated points, a panel per model, kind and request."
    caption = "Marks: medians over runs; lines: smallest to largest. Synthetic two-dimensional blobs."
    return [Drawing("contamination", figure, alt, f"{caption} Data: {sources(mine)}.")]


def _panel(axis: Any, records: list[Record], name: str, methods: list[str]) -> None:
    amounts = sorted({r["contaminated"] for r in records})
    width = 0.8 / max(1, len(methods))
    for i, method in enumerate(methods):
        found = [(k, values(select(records, method=method, contaminated=d), name)) for k, d in enumerate(amounts)]
        found = [(k, v) for k, v in found if v]
        x = [k + width * (i - (len(methods) - 1) / 2) for k, _ in found]
        shape = style_of(method)
        axis.vlines(x, [min(v) for _, v in found], [max(v) for _, v in found], color=shape.colour, linewidth=1.5)
        paint = {"marker": shape.marker if shape.marker != "_" else ".", "markersize": 8, "color": shape.colour}
        paint["markerfacecolor"] = "none" if method == "l2ul-paper" else shape.colour
        axis.plot(x, [np.median(v) for _, v in found], linestyle="", label=shape.label, **paint)
    axis.set_xticks(range(len(amounts)), [f"{a:,}" for a in amounts])
    axis.set_ylim(0, 1.06)
    for edge in range(len(amounts) - 1):
        axis.axvline(edge + 0.5, color=INK, alpha=0.13, linewidth=0.8)
    axis.grid(visible=False, axis="x")


FIGURE = Figure(tables, plots)
