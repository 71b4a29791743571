"""Fig. 6 redrawn: accuracy after dirty points are unlearned, and beside it the null control."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import INK, MODELS, Cell, group, pick, style
from l2ul_fast.report.lines import legend, look_of, method_name, methods_in, middle, middle_cell, of_experiment

KINDS = {"far": "far points labelled wrong", "flipped": "labels of class 1 flipped"}
SHOWN = (("accuracy", "asked for the dirty points"), ("null_accuracy", "null control: asked for clean points"))


def plot(records: list[Record]) -> Any:
    """Rows: model and request; columns: kind of dirt. Methods stand side by side at each amount."""
    from matplotlib.figure import Figure

    mine = of_experiment(records, "contamination")
    models, kinds = [m for m in MODELS if pick(mine, model=m)], [k for k in KINDS if pick(mine, kind=k)]
    methods = methods_in(mine)
    with style():
        figure = Figure(figsize=(11, 2.9 * 2 * len(models) + 0.8), layout="constrained")
        axes = figure.subplots(2 * len(models), len(kinds), squeeze=False, sharey=True)
        for i, model in enumerate(models):
            for j, (name, what) in enumerate(SHOWN):
                for axis, kind in zip(axes[2 * i + j], kinds, strict=True):
                    _panel(axis, pick(mine, model=model, kind=kind), name, methods)
                    axis.set_title(f"{MODELS[model]}, {KINDS[kind]}\n{what}", fontsize=10)
                axes[2 * i + j, 0].set_ylabel("accuracy on clean\ntest points")
        for axis in axes[-1]:
            axis.set_xlabel("dirty points among the training rows")
        sizes = sorted({int(r["n"]) - int(r["dirty"]) for r in pick(mine, kind="far")})
        clean = f", {sizes[0]:,} clean points" if sizes else ""
        figure.suptitle(f"Dirty data unlearned (synthetic two-dimensional blobs{clean})")
        legend(figure, axes.ravel())
    return figure


def _panel(axis: Any, records: list[Record], name: str, methods: list[str]) -> None:
    amounts = sorted({r["dirty"] for r in records})
    width = 0.8 / max(1, len(methods))
    for i, method in enumerate(methods):
        found = [(k, middle(pick(records, method=method, dirty=d), name)) for k, d in enumerate(amounts)]
        found = [(k, v) for k, v in found if v]
        if not found:
            continue
        x = [k + width * (i - (len(methods) - 1) / 2) for k, _ in found]
        shape = look_of(method)
        axis.vlines(x, [min(v) for _, v in found], [max(v) for _, v in found], color=shape.colour, linewidth=1.5)
        marker = shape.marker if shape.marker != "_" else "."
        face = "none" if method == "l2ul-paper" else shape.colour
        axis.plot(
            x,
            [np.median(v) for _, v in found],
            linestyle="",
            marker=marker,
            markersize=8,
            color=shape.colour,
            markerfacecolor=face,
            label=shape.name,
        )
    axis.set_xticks(range(len(amounts)), [f"{a:,}" for a in amounts])
    axis.set_ylim(0, 1.06)
    for edge in range(len(amounts) - 1):
        axis.axvline(edge + 0.5, color=INK, alpha=0.13, linewidth=0.8)
    axis.grid(axis="y")


def table(records: list[Record]) -> tuple[list[str], list[list[Any]]]:
    """A line per model, kind, amount and method: medians over runs."""
    mine, rows = of_experiment(records, "contamination"), []
    for (model, kind, dirty), here in group(mine, "model", "kind", "dirty").items():
        for method in methods_in(here):
            own = pick(here, method=method)
            votes = [r["forgot_its_model"] for r in own if r.get("forgot_its_model") is not None]
            why = sorted({r["status"] for r in own if r.get("status", "ok") != "ok"})
            verdict = f"{sum(votes)} of {len(votes)} runs" if votes else "dirt did no harm"
            rows.append(
                [
                    MODELS.get(model, model),
                    kind,
                    dirty,
                    method_name(method),
                    middle_cell(own, "original_accuracy"),
                    middle_cell(own, "accuracy"),
                    middle_cell(own, "retrain_accuracy"),
                    middle_cell(own, "recovery"),
                    middle_cell(own, "null_accuracy"),
                    middle_cell(own, "null_recovery"),
                    Cell("; ".join(why) or verdict, float(sum(votes))),
                    middle_cell(own, "rho", "{:.3g}"),
                    len(own),
                ]
            )
    columns = [
        "model",
        "dirt",
        "dirty points",
        "method",
        "accuracy before",
        "accuracy",
        "Retrain's",
        "recovered",
        "control: accuracy",
        "control: recovered",
        "recovers in the control too",
        "rho",
        "runs",
    ]
    return columns, rows
