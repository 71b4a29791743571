"""Theorem 7.1: how many rows U was trained on, predicted and counted, and what it costs to take one out of U."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    Cell,
    dataset_label,
    group,
    median,
    pick,
    seconds,
    seconds_axis,
    settings_of,
    style,
)
from l2ul_fast.report.lines import method_name, methods_in, middle_cell, of_experiment, sources


def plot(records: list[Record]) -> Any:
    """Left: share of rows in at least k training subsets against n. Right: a request beside refreshing U after it."""
    from matplotlib.figure import Figure

    mine = of_experiment(records, "leak")
    with style():
        figure = Figure(figsize=(12, 5.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _shares(left, pick(mine, part="probability"))
        _costs(right, pick(mine, part="refresh"))
    return figure


def _shares(axis: Any, records: list[Record]) -> None:
    colours = (BLUE, ORANGE, GREEN, PINK)
    keys = sorted({(r["model"], r["method"]) for r in records})
    for colour, (model, method) in zip(colours, keys, strict=False):
        own = pick(records, model=model, method=method)
        for k, dash, marker in ((1, "-", "o"), (2, "--", "s")):
            points = sorted({(r["n"], r["predicted"]) for r in pick(own, k=k)})
            if not points:
                continue
            s = max(r["s"] for r in own)
            name = f"{model.upper()}, {method}, s ≤ {s:,}, k ≥ {k}"
            axis.plot(*zip(*points, strict=True), color=colour, linestyle=dash, label=name)
            counted = [(n, np.mean([r["counted"] for r in pick(own, k=k, n=n)])) for n, _ in points]
            axis.plot(*zip(*counted, strict=True), color=colour, marker=marker, linestyle="", markersize=7)
    axis.set(xscale="log", yscale="log", xlabel="n, rows of the dataset", ylabel="share of rows that trained U")
    names = sorted({(r["n"], r["dataset"]) for r in records})
    for n, dataset in names:
        axis.annotate(dataset, (n, 1.0), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=9)
    axis.set_title("Rows that U was trained on\nlines: Theorem 7.1, marks: counted (sizes only)", fontsize=11, pad=16)
    axis.grid()
    if records:
        axis.legend(fontsize=9, loc="lower left")


def _costs(axis: Any, records: list[Record]) -> None:
    labels: list[str] = []
    for (dataset, model, method), own in _timed(records):
        request, refresh = (median(own, name) for name in ("unlearn_seconds", "refresh_seconds"))
        if request is None or refresh is None:
            continue
        place = len(labels)
        axis.barh(place + 0.19, request, 0.36, color=BLUE, label="request" if place == 0 else None)
        if refresh > 0:
            place = len(labels)
        axis.barh(place - 0.19, refresh, 0.36, color=ORANGE, hatch="//", label="refresh of U" if place else None)
        labels.append(f"{dataset}, {str(model).upper()}, {method}")
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="time")
    seconds_axis(axis.xaxis)
    axis.grid(axis="x")
    axis.set_title(f"One row: request, and taking it out of U\n{sources(records)}", fontsize=11)
    known = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    if known:
        axis.legend(known.values(), known.keys(), fontsize=9)


def _timed(records: list[Record]) -> list[tuple[tuple[Any, ...], list[Record]]]:
    return [item for item in group(records, "dataset", "model", "method").items() if item[0][2] != "nothing"]


def table(records: list[Record]) -> tuple[list[str], list[list[Any]]]:
    """Probabilities first, a line per dataset, method and k; then costs, a line per dataset, model and method."""
    mine, rows = of_experiment(records, "leak"), []
    none = Cell("", None)
    chances = pick(mine, part="probability")
    for setting in settings_of(chances):
        here = pick(chances, dataset=setting[0], n=setting[2])
        for (model, method, s, k), own in group(here, "model", "method", "s", "k").items():
            rows.append(
                [
                    dataset_label(*setting),
                    str(model).upper(),
                    method_name(method),
                    s,
                    f"k ≥ {k}",
                    middle_cell(own, "predicted", "{:.3%}"),
                    middle_cell(own, "counted", "{:.3%}"),
                    none,
                    none,
                    none,
                    none,
                ]
            )
    costs = pick(mine, part="refresh")
    for setting in settings_of(costs):
        here = pick(costs, dataset=setting[0], source=setting[1], n=setting[2])
        for (model,), cells in group(here, "model").items():
            for method in methods_in(cells):
                own = pick(cells, method=method)
                rows.append(
                    [
                        dataset_label(*setting),
                        str(model).upper(),
                        method_name(method),
                        none,
                        none,
                        none,
                        none,
                        seconds(median(own, "unlearn_seconds")),
                        seconds(median(own, "refresh_seconds")),
                        middle_cell(own, "pairs_dropped"),
                        str(own[0].get("head") or own[0].get("status") or ""),
                    ]
                )
    columns = [
        "dataset",
        "model",
        "method",
        "s",
        "in subsets",
        "predicted",
        "counted",
        "one request",
        "refresh of U",
        "pairs dropped",
        "what refresh did",
    ]
    return columns, rows
