"""A stream of requests: distance to the retrain, drift and latency as it goes on."""

from __future__ import annotations

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import INK, draw_line, drawing_style, legend, seconds_axis, subplots
from l2ul_fast.report.values import (
    MODELS,
    Drawing,
    Table,
    cells_of,
    group_by,
    methods_of,
    middle,
    one_thread_count,
    runs_of,
    select,
    sources,
    table_of,
    timed,
    values,
)

#: (field, label, where smaller values are drawn: a refresh leaves only the solver's noise)
ROWS = (
    ("rho", "rho (1 = did nothing)", 1e-5),
    ("drift", "|theta − retrained|", 1e-8),
    ("answer_seconds", "time of one request", 1e-7),
)
#: What a reference has to show; all others show everything.
ONLY = {"nothing": "drift", "retrain": "answer_seconds"}
COLUMNS = {
    "rho": middle("rho", "{:.3g}"),
    "drift": middle("drift", "{:.2e}"),
    "disagree": middle("disagreement", "{:.3%}"),
    "gradient left": middle("residual", "{:.1e}"),
    "one request": timed("answer_seconds"),
    "refreshes": middle("refreshes", "{:.0f}"),
    "one refresh": timed("refresh_seconds"),
    "runs": runs_of,
}


def tables(records: list[Record]) -> list[Table]:
    """The first, the tenth and the last request of every stream."""
    mine = one_thread_count(records)
    last = max((r["requests"] for r in mine), default=0)
    by = {"data": "dataset", "model": "model", "r": "r", "method": "method", "requests": "requests so far"}
    title = "Distance, drift and latency after the first, the tenth and the last request"
    return [table_of(title, select(mine, requests=(1, 10, last)), by, COLUMNS, block=2)]


def plots(records: list[Record]) -> list[Drawing]:
    """A column per dataset, model and r; rows: rho, drift, latency."""
    mine = one_thread_count(records)
    columns = list(cells_of(mine, "model", "data", "r"))
    with drawing_style():
        figure, axes = subplots(
            len(ROWS), max(1, len(columns)), figsize=(max(6.0, 3.9 * len(columns)), 9.5), sharex="col", sharey="row"
        )
        for j, (model, data, r, here) in enumerate(columns):
            for axis, (name, label, floor) in zip(axes[:, j], ROWS, strict=True):
                for method in methods_of(here):
                    if ONLY.get(method, name) == name:
                        own = group_by(select(here, method=method), "requests")
                        draw_line(axis, {k: values(found, name) for (k,), found in own.items()}, method, floor)
                if name == "rho":
                    axis.axhline(1, color=INK, linestyle=":", linewidth=1)
                axis.set(xscale="log", yscale="log")
                if j == 0:
                    axis.set_ylabel(label)
                if name == "answer_seconds":
                    seconds_axis(axis.yaxis)
            axes[0, j].set_title(f"{MODELS.get(model, model)}, r = {r:,} per request\n{data}", fontsize=10)
            axes[-1, j].set_xlabel("requests answered")
        legend(figure, axes.ravel())
    alt = "Lines over the number of answered requests, a column per dataset and model: rho, drift, time of one request."
    caption = f"Lines: medians over {runs_of(mine)} run(s), bands: quartiles. Data: {sources(mine)}."
    return [Drawing("sequence", figure, alt, caption)]


FIGURE = Figure(tables, plots)
