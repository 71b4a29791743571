"""A stream of requests: distance to the retrain, drift and latency as it goes on."""

from __future__ import annotations

from typing import Any

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import INK, MODELS, dataset_label, group, pick, seconds, seconds_axis, settings_of, style
from l2ul_fast.report.lines import draw_line, legend, method_name, methods_in, middle_cell, of_experiment

#: (field, label, where smaller values are drawn: a seal leaves only the solver's noise)
ROWS = (
    ("rho", "rho (1 = did nothing)", 1e-5),
    ("drift", "|theta − retrained|", 1e-8),
    ("unlearn_seconds", "time of one request", 1e-7),
)


def plot(records: list[Record]) -> Any:
    """A column per dataset, model and r; rows: rho, drift, latency."""
    from matplotlib.figure import Figure

    mine = of_experiment(records, "sequence")
    columns = [
        (model, setting, r)
        for model in MODELS
        for setting in settings_of(pick(mine, model=model))
        for r in sorted({q["r"] for q in pick(mine, model=model, dataset=setting[0])})
    ]
    with style():
        figure = Figure(figsize=(max(6.0, 3.9 * len(columns)), 9.5), layout="constrained")
        axes = figure.subplots(len(ROWS), max(1, len(columns)), squeeze=False, sharex="col", sharey="row")
        for j, (model, (dataset, source, n), r) in enumerate(columns):
            here = pick(mine, model=model, dataset=dataset, source=source, n=n, r=r)
            for axis, (name, label, floor) in zip(axes[:, j], ROWS, strict=True):
                for method in methods_in(here):
                    own = pick(here, method=method)
                    if name != {"nothing": "drift", "retrain": "unlearn_seconds"}.get(method, name):
                        continue
                    draw_line(axis, own, "requests", name, method, floor)
                if name == "rho":
                    axis.axhline(1, color=INK, linestyle=":", linewidth=1)
                axis.set(xscale="log", yscale="log")
                axis.grid()
                if j == 0:
                    axis.set_ylabel(label)
                if name == "unlearn_seconds":
                    seconds_axis(axis.yaxis)
            title = f"{MODELS[model]}, r = {r:,} per request\n{dataset_label(dataset, source, n)}"
            axes[0, j].set_title(title, fontsize=10)
            axes[-1, j].set_xlabel("requests answered")
        legend(figure, axes.ravel(), 4)
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[Any]]]:
    """A line per dataset, model, r, method and point of the stream: first, tenth and last."""
    mine, rows = of_experiment(records, "sequence"), []
    for setting in settings_of(mine):
        here = pick(mine, dataset=setting[0], source=setting[1], n=setting[2])
        for (model, r), cells in group(here, "model", "r").items():
            last = max(q["requests"] for q in cells)
            for method in methods_in(cells):
                for count in sorted({1, 10, last}):
                    own = pick(cells, method=method, requests=count)
                    if not own:
                        continue
                    time, again = (middle_cell(own, k).sort for k in ("unlearn_seconds", "refresh_seconds"))
                    rows.append(
                        [
                            dataset_label(*setting),
                            MODELS.get(model, model),
                            r,
                            method_name(method),
                            count,
                            middle_cell(own, "rho", "{:.3g}"),
                            middle_cell(own, "drift", "{:.2e}"),
                            middle_cell(own, "disagreement", "{:.3%}"),
                            middle_cell(own, "residual", "{:.1e}"),
                            seconds(time),
                            middle_cell(own, "refreshes", "{:.0f}"),  # type: ignore[arg-type]
                            seconds(again),
                            len(own),
                        ]  # type: ignore[arg-type]
                    )
    columns = [
        "dataset",
        "model",
        "r",
        "method",
        "requests so far",
        "rho",
        "drift",
        "disagree",
        "gradient left",
        "one request",
        "refreshes",
        "one refresh",
        "runs",
    ]
    return columns, rows
