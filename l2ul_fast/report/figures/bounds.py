"""Theorems 4.5 and 4.6: bounds with the measured error of U beside the measured excess loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import INK, MODELS, Cell, dataset_label, group, pick, settings_of, style
from l2ul_fast.report.lines import legend, look_of, method_name, methods_in, middle_cell, of_experiment, sources

#: Excess losses below this (also negative ones) are drawn here.
FLOOR = 1e-12


def excess(record: Record) -> float | None:
    """The larger of both excess losses."""
    found = [record[k] for k in ("excess_loss", "excess_retained") if record.get(k) is not None]
    return max(found) if found else None


def plot(records: list[Record]) -> Any:
    """A panel per model: a point is a request; below the diagonal a bound holds."""
    from matplotlib.figure import Figure

    mine = [r for r in of_experiment(records, "bounds") if r.get("epsilon")]
    models = [m for m in MODELS if pick(mine, model=m)]
    with style():
        figure = Figure(figsize=(6.2 * max(1, len(models)), 6.4), layout="constrained")
        axes = figure.subplots(1, max(1, len(models)), squeeze=False)[0]
        for axis, model in zip(axes, models, strict=False):
            here = pick(mine, model=model)
            for method in methods_in(here):
                own, shape = pick(here, method=method), look_of(method)
                y = [max(excess(r) or FLOOR, FLOOR) for r in own]
                marker = "." if shape.marker == "_" else shape.marker
                paint = {"marker": marker, "s": 36, "alpha": 0.75, "linewidths": 1.0}
                axis.scatter([r["corrected_bound"] for r in own], y, color=shape.colour, label=shape.name, **paint)
                axis.scatter([r["bound"] for r in own], y, facecolors="none", edgecolors=shape.colour, **paint)
            ends = [v for r in here for v in (r["bound"], r["corrected_bound"])]
            line = np.array([min(ends), max(ends)])
            axis.plot(line, line, color=INK, linewidth=1)
            axis.text(line[1], line[1], "excess = bound ", ha="right", va="bottom", fontsize=9)
            theorem = "Theorem 4.5" if model == "lr" else "Theorem 4.6"
            axis.set_title(f"{MODELS[model]} ({theorem})\n{sources(here)}", fontsize=11)
            axis.set(
                xscale="log", yscale="log", xlabel="bound on the excess log-loss", ylabel="measured excess log-loss"
            )
            axis.grid()
        text = f"Filled: corrected bound. Hollow: the paper's. Excess below {FLOOR:g} is drawn at the bottom."
        figure.suptitle(text, fontsize=10)
        legend(figure, axes, 3)
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[Any]]]:
    """A line per dataset, model, r and method: bounds from the mean epsilon of the runs, excess losses as means."""
    mine, rows = of_experiment(records, "bounds"), []
    for setting in settings_of(mine):
        here = pick(mine, dataset=setting[0], source=setting[1], n=setting[2])
        for (model, r), cells in group(here, "model", "r").items():
            for method in methods_in(cells):
                own = pick(cells, method=method)
                rows.append(
                    [
                        dataset_label(*setting),
                        MODELS.get(model, model),
                        r,
                        method_name(method),
                        _mean(own, "epsilon"),
                        middle_cell(own, "epsilon_training", "{:.2e}"),
                        _mean(own, "excess_loss"),
                        _mean(own, "bound"),
                        _held(own, "holds"),
                        _mean(own, "corrected_bound"),
                        _held(own, "corrected_holds"),
                        middle_cell(own, "rho", "{:.3g}"),
                        len(own),
                    ]
                )
    columns = [
        "dataset",
        "model",
        "r",
        "method",
        "epsilon",
        "epsilon on pairs",
        "excess log-loss",
        "paper's bound",
        "holds",
        "corrected bound",
        "corrected holds",
        "rho",
        "runs",
    ]
    return columns, rows


def _mean(records: list[Record], name: str) -> Cell:
    found = [r[name] for r in records if r.get(name) is not None]
    return Cell(f"{np.mean(found):.2e}", float(np.mean(found))) if found else Cell("–", None)


def _held(records: list[Record], name: str) -> Cell:
    found = [bool(r[name]) for r in records if r.get(name) is not None]
    return Cell(f"{sum(found)} of {len(found)}", sum(found) / len(found)) if found else Cell("–", None)
