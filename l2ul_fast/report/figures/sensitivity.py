"""Figs. 7 and 8 redrawn: accuracy and rho against psi, s and m."""

from __future__ import annotations

from typing import Any

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import INK, MODELS, dataset_label, group, pick, settings_of, style
from l2ul_fast.report.lines import (
    draw_line,
    legend,
    look_of,
    method_name,
    methods_in,
    middle,
    middle_cell,
    of_experiment,
)

NAMES = {"psi": "psi (cells per partition)", "s": "s (rows per training pair)", "m": "m (training pairs)"}
DASHES = ("-", "--", ":", "-.")


def plot(records: list[Record]) -> Any:
    """Two rows (accuracy, rho) per dataset and model, a column per parameter; line styles tell r."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    mine = of_experiment(records, "sensitivity")
    blocks = [(m, s) for m in MODELS for s in settings_of(pick(mine, model=m))]
    sizes = sorted({r["r"] for r in mine})
    with style():
        figure = Figure(figsize=(11.5, 3.9 * len(blocks) + 1.0), layout="constrained")
        axes = figure.subplots(2 * len(blocks), 3, squeeze=False)
        for i, (model, setting) in enumerate(blocks):
            here = pick(mine, model=model, dataset=setting[0], source=setting[1], n=setting[2])
            for j, (parameter, label) in enumerate(NAMES.items()):
                varied = pick(here, parameter=parameter)
                for row, (name, floor) in enumerate((("accuracy", None), ("rho", 1e-6))):
                    axis = axes[2 * i + row, j]
                    for method in methods_in(varied):
                        for style_, r in zip(DASHES, sizes, strict=False):
                            own, text = pick(varied, method=method, r=r), f"{look_of(method).name}, r = {r:,}"
                            draw_line(axis, own, "value", name, method, floor, linestyle=style_, label=text)
                    _references(axis, here, name)
                    axis.set_xscale("log", base=2 if parameter == "psi" else 10)
                    ticks = sorted({r["value"] for r in varied})
                    axis.set_xticks(ticks, [f"{t:,}" for t in ticks], fontsize=9)
                    axis.xaxis.set_minor_formatter(NullFormatter())
                    axis.grid()
                    if row:
                        axis.set(yscale="log", xlabel=label)
                if j == 0:
                    axes[2 * i, j].set_ylabel("test accuracy")
                    axes[2 * i + 1, j].set_ylabel("rho (1 = did nothing)")
                    axes[2 * i, j].set_title(f"{MODELS[model]}: {dataset_label(*setting)}", fontsize=11)
            for row in (0, 1):
                low = min(axis.get_ylim()[0] for axis in axes[2 * i + row])
                high = max(axis.get_ylim()[1] for axis in axes[2 * i + row])
                for axis in axes[2 * i + row]:
                    axis.set_ylim(low, high)
        legend(figure, axes.ravel(), 3)
    return figure


def _references(axis: Any, records: list[Record], name: str) -> None:
    if name == "rho":
        axis.axhline(1, color=INK, linewidth=1, linestyle=":", label="did nothing")
        return
    found = middle(pick(records, method="retrain"), name)
    if found:
        axis.axhline(sum(found) / len(found), color=INK, linewidth=1, alpha=0.8, label="Retrain (mean over r and runs)")


def table(records: list[Record]) -> tuple[list[str], list[list[Any]]]:
    """A line per dataset, model, parameter value, r and method; nothing and Retrain once per r."""
    mine, rows = of_experiment(records, "sensitivity"), []
    for setting in settings_of(mine):
        here = pick(mine, dataset=setting[0], source=setting[1], n=setting[2])
        for (model, parameter, value, r), cells in group(here, "model", "parameter", "value", "r").items():
            for method in methods_in(cells):
                own = pick(cells, method=method)
                gap = middle_cell(own, lambda q: _gap(q), "{:+.2f}")
                why = sorted({q["status"] for q in own if q.get("status", "ok") != "ok"})
                rows.append(
                    [
                        dataset_label(*setting),
                        MODELS.get(model, model),
                        parameter,
                        value,
                        r,
                        method_name(method),
                        middle_cell(own, "accuracy"),
                        gap,
                        middle_cell(own, "rho", "{:.3g}"),
                        middle_cell(own, "disagreement", "{:.2%}"),
                        len(own),
                        "; ".join(why),
                    ]
                )
    columns = [
        "dataset",
        "model",
        "varied",
        "value",
        "r",
        "method",
        "accuracy",
        "− Retrain (points)",
        "rho",
        "disagree",
        "runs",
        "remark",
    ]
    return columns, rows


def _gap(record: Record) -> float | None:
    a, b = record.get("accuracy"), record.get("retrain_accuracy")
    return None if a is None or b is None else 100 * (a - b)
