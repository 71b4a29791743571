"""Theorem 7.1: how many rows U was trained on, predicted and counted, and what it costs to take one out of U."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    drawing_style,
    method_order,
    seconds_axis,
    style_of,
    subplots,
)
from l2ul_fast.report.values import (
    Cell,
    Drawing,
    Table,
    group_by,
    median,
    middle,
    one_thread_count,
    select,
    sources,
    table_of,
    timed,
)

CELL = {"data": "dataset", "model": "model", "method": "method"}


def tables(records: list[Record]) -> list[Table]:
    mine = one_thread_count(records)
    return [
        table_of(
            "Share of rows that trained U",
            select(mine, task="probability"),
            {"data": "dataset", "model": "model", "method": "method", "s": "s", "k": "in at least k subsets"},
            {"predicted": middle("predicted", "{:.3%}"), "counted": middle("counted", "{:.3%}")},
            block=1,
        ),
        table_of(
            "Cost of taking one row out of U",
            select(mine, task="refresh"),
            CELL,
            {
                "one request": timed("answer_seconds"),
                "refresh of U": timed("refresh_seconds"),
                "pairs dropped": middle("pairs_dropped"),
                "what refresh did": lambda own: Cell(str(own[0].get("head") or own[0].get("status") or "")),
            },
            block=1,
        ),
    ]


def plots(records: list[Record]) -> list[Drawing]:
    mine = one_thread_count(records)
    with drawing_style():
        figure, grid = subplots(1, 2, figsize=(12, 5.6))
        _shares(grid[0][0], select(mine, task="probability"))
        _costs(grid[0][1], select(mine, task="refresh"))
    alt = "Left: share of rows in at least k training subsets against n, by the theorem and counted. Right: time of a "
    alt += "request beside the time to take the row out of U."
    return [Drawing("leak", figure, alt, f"Data: {sources(mine)}.")]


def _shares(axis: Any, records: list[Record]) -> None:
    keys = sorted({(r["model"], r["method"]) for r in records}, key=lambda key: (key[0], method_order(key[1])))
    for colour, (model, method) in zip((BLUE, ORANGE, GREEN, PINK), keys, strict=False):
        own = select(records, model=model, method=method)
        for k, dash, marker in ((1, "-", "o"), (2, "--", "s")):
            points = sorted({(r["n"], r["predicted"]) for r in select(own, k=k)})
            if points:
                name = f"{model.upper()}, {style_of(method).label}, s ≤ {max(r['s'] for r in own):,}, k ≥ {k}"
                axis.plot(*zip(*points, strict=True), color=colour, linestyle=dash, label=name)
                counted = [(n, np.mean([r["counted"] for r in select(own, k=k, n=n)])) for n, _ in points]
                axis.plot(*zip(*counted, strict=True), color=colour, marker=marker, linestyle="", markersize=7)
    axis.set(xscale="log", yscale="log", xlabel="n, rows of the dataset", ylabel="share of rows that trained U")
    for n, dataset in sorted({(r["n"], r["dataset"]) for r in records}):
        axis.annotate(dataset, (n, 1.0), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=9)
    axis.set_title("Rows that U was trained on\nlines: Theorem 7.1, marks: counted (sizes only)", fontsize=11, pad=16)
    if records:
        axis.legend(fontsize=9, loc="lower left")


def _costs(axis: Any, records: list[Record]) -> None:
    labels: list[str] = []
    for (dataset, model, method), own in group_by(records, "dataset", "model", "method").items():
        request, refresh = (median(own, name) for name in ("answer_seconds", "refresh_seconds"))
        if request is None or refresh is None or method == "nothing":
            continue
        place = len(labels)
        axis.barh(place + 0.19, request, 0.36, color=BLUE, label="request")
        axis.barh(place - 0.19, refresh, 0.36, color=ORANGE, hatch="//", label="refresh of U")
        labels.append(f"{dataset}, {str(model).upper()}, {style_of(method).label}")
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="time")
    seconds_axis(axis.xaxis)
    axis.grid(visible=False, axis="y")
    axis.set_title(f"One row: request, and taking it out of U\n{sources(records)}", fontsize=11)
    known = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    if known:
        axis.legend(known.values(), known.keys(), fontsize=9)


FIGURE = Figure(tables, plots)
