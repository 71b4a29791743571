"""The paper's figures 2 to 5 and table 3 redrawn from records of the experiments lr, mlp, baselines and efficacy."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import (
    INK,
    OURS,
    Cell,
    Drawing,
    Table,
    bytes_text,
    dataset_label,
    erased_cell,
    factor_cell,
    group,
    look,
    main_threads,
    median,
    method_cell,
    methods_of,
    number_text,
    pick,
    plain,
    runs_of,
    seconds,
    seconds_axis,
    seconds_of,
    settings_of,
    style,
    values,
)

#: Experiments whose records have one method's accuracy, rho and time per cell.
MAIN = ("lr", "mlp", "baselines")
#: What the paper's figures show, and beside it doing nothing, the closed form, and our default.
DRAWN = ("nothing", "retrain", "sisa", "deltagrad", "fyemu", "newton", "l2ul-paper", *OURS)
#: Figure of the paper by (experiment, r).
PAPER_FIGURE = {("lr", 1): "Fig. 2", ("mlp", 1): "Fig. 3", ("mlp", 100): "Fig. 4", ("mlp", 1000): "Fig. 5"}

#: Table 3 of the paper: {dataset: {method: (MIA, accuracy on the forgotten rows)}}; SISA has no MIA there.
PAPER_EFFICACY: dict[str, dict[str, tuple[float | None, float]]] = {
    "magic": {"retrain": (0.79, 0.85), "sisa": (None, 0.79), "fyemu": (0.65, 0.71), "l2ul-paper": (0.75, 0.78)},
    "adult": {"retrain": (0.80, 0.81), "sisa": (None, 0.78), "fyemu": (0.68, 0.75), "l2ul-paper": (0.74, 0.76)},
    "skin": {"retrain": (1.0, 1.0), "sisa": (None, 1.0), "fyemu": (1.0, 1.0), "l2ul-paper": (1.0, 1.0)},
    "covtype": {"retrain": (0.73, 0.82), "sisa": (None, 0.76), "fyemu": (0.68, 0.76), "l2ul-paper": (0.67, 0.71)},
    "susy": {"retrain": (0.72, 0.73), "sisa": (None, 0.71), "fyemu": (0.69, 0.70), "l2ul-paper": (0.69, 0.71)},
    "higgs": {"retrain": (0.65, 0.74), "sisa": (None, 0.77), "fyemu": (0.68, 0.69), "l2ul-paper": (0.50, 0.63)},
}


def main_records(records: list[Record], experiment: str | tuple[str, ...] = MAIN) -> list[Record]:
    """Records of the main experiments, of one thread count only."""
    chosen = pick(records, experiment=experiment)
    return pick(chosen, threads=main_threads(chosen))


def figures(records: list[Record]) -> list[Drawing]:
    """One figure per experiment, model and r of random requests: accuracy, its distance to Retrain's, time."""
    out = []
    for experiment in MAIN:
        mine = pick(main_records(records, experiment), kind=("random", None))
        for (model, r), cells in sorted(group(mine, "model", "r").items(), key=lambda g: (str(g[0][0]), g[0][1] or 0)):
            where = PAPER_FIGURE.get((experiment, r))
            title = f"{str(model).upper()}, forgetting {number_text(r)} row{'s' if r != 1 else ''}"
            data = ", ".join(sorted({f"{d}: {s}" for d, s, _ in settings_of(cells)}))
            out.append(
                Drawing(
                    f"{experiment}-{model}-r{r}",
                    _bars(cells, title),
                    f"Bars per dataset and method for {title}: test accuracy, accuracy minus Retrain's in points, and "
                    "time of one request on a logarithmic axis. The table below holds the same numbers.",
                    f"{title}{f' ({where} of the paper)' if where else ''}, {_runs(cells)}, {_threads(cells)}. "
                    f"Whiskers: quartiles over runs. Data: {data}.",
                )
            )
    return out


def _runs(records: list[Record]) -> str:
    k = runs_of(records)
    return f"{k} run{'s' if k != 1 else ''}"


def _threads(records: list[Record]) -> str:
    k = main_threads(records)
    return "threads unknown" if k is None else f"{k} thread{'s' if k != 1 else ''}"


def _bars(records: list[Record], title: str) -> Any:
    from matplotlib.figure import Figure

    settings = settings_of(records)
    methods = [m for m in methods_of(records) if m in DRAWN] or methods_of(records)
    by = group(records, "dataset", "source", "n", "method")
    width = 0.84 / len(methods)
    with style():
        figure = Figure(figsize=(10.5, 8.2), layout="constrained")
        axes = figure.subplots(3, 1, height_ratios=(1.0, 1.0, 1.3))
        for i, method in enumerate(methods):
            x = np.arange(len(settings)) + width * (i - (len(methods) - 1) / 2)
            cells = [by.get((*s, method), []) for s in settings]
            for axis, of in zip(axes, (_accuracy, _gap, _time), strict=True):
                found = [(a, of(c)) for a, c in zip(x, cells, strict=True)]
                known = [(a, v) for a, v in found if v]
                if not known:
                    continue
                low, mid, high = np.array([np.quantile(v, (0.25, 0.5, 0.75)) for _, v in known]).T
                paint: dict[str, Any] = {"color": look(method).colour, "label": plain(look(method).name)}
                if method == "l2ul-paper":
                    paint |= {"color": "none", "edgecolor": look(method).colour, "hatch": "////", "linewidth": 0.8}
                axis.bar([a for a, _ in known], mid, width * 0.92, **paint)
                axis.vlines([a for a, _ in known], low, high, color=INK, linewidth=1)
        labels = [f"{d}\n{s or 'unknown'}\nn = {n:,}" if isinstance(n, int) else f"{d}\n{s}" for d, s, n in settings]
        for axis in axes:
            axis.set_xticks(range(len(settings)), [plain(text) for text in labels])
            axis.set_xlim(-0.55, len(settings) - 0.45)
            axis.grid(axis="y")
            axis.tick_params(axis="x", length=0)
        for axis in axes[:2]:
            axis.tick_params(axis="x", labelbottom=False)
        axes[0].set(ylim=(0, 1), ylabel="test accuracy")
        axes[0].set_title(plain(title))
        axes[1].axhspan(-0.5, 0.5, color=INK, alpha=0.07, linewidth=0, zorder=0)
        axes[1].axhline(0, color=INK, linewidth=0.8)
        axes[1].set_yscale("symlog", linthresh=0.5, linscale=0.8)
        ticks = (-50, -10, -2, -0.5, 0, 0.5, 2, 10)
        axes[1].set_yticks(ticks, [f"{t:+g}".replace("-", "−") if t else "0" for t in ticks])
        axes[1].minorticks_off()
        axes[1].set_ylabel("accuracy − Retrain's\n(points)")
        axes[2].set(yscale="log", ylabel="time of one request")
        seconds_axis(axes[2].yaxis)
        axes[2].minorticks_off()
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _accuracy(records: list[Record]) -> list[float]:
    return values(records, "accuracy")


def _gap(records: list[Record]) -> list[float]:
    """Accuracy minus Retrain's of the same run, in points."""
    return [
        100 * (r["accuracy"] - r["retrain_accuracy"])
        for r in records
        if values([r], "accuracy") and values([r], "retrain_accuracy")
    ]


def _time(records: list[Record]) -> list[float]:
    return [s for s in values(records, "unlearn_seconds") if s > 0]


def _middle(found: list[float], text: Any) -> Cell:
    """Median as text; sorted by it."""
    if not found:
        return Cell("–", None)
    middle = float(np.median(found))
    return Cell(text(middle), middle)


def table(records: list[Record], experiment: str) -> Table:
    """Everything measured, a line per dataset, model, r, kind and method; do nothing and Retrain first."""
    mine = main_records(records, experiment)
    rows = []
    for setting in settings_of(mine):
        here = pick(mine, dataset=setting[0], source=setting[1], n=setting[2])
        for (model, r, kind), cells in group(here, "model", "r", "kind").items():
            retrain = pick(cells, method="retrain")
            for method in methods_of(cells):
                own = pick(cells, method=method)
                rho = median(own, "rho")
                rows.append(
                    [
                        dataset_label(*setting),
                        MODELS_SHORT.get(model, model),
                        r,
                        kind,
                        method_cell(method),
                        _middle(_accuracy(own), lambda v: f"{v:.4f}"),
                        _middle(_gap(own), lambda v: f"{v:+.2f}"),
                        Cell(_rho_text(own, rho), rho),
                        _middle(values(own, "disagreement"), lambda v: f"{100 * v:.3g} %"),
                        seconds(seconds_of(own, False)),
                        factor_cell(retrain, own, False),
                        erased_cell(own),
                        factor_cell(retrain, own, True),
                        seconds(median(own, "prepare_seconds")),
                        Cell(bytes_text(b := median(own, "state_bytes")), b),
                        runs_of(own),
                    ]
                )
    return Table(
        f"All cells of {experiment}: medians over runs ({_threads(mine)})",
        [
            "dataset",
            "model",
            "r",
            "rows forgotten",
            "method",
            "accuracy",
            "− Retrain",
            "rho",
            "disagree",
            "one request",
            "× Retrain",
            "erased",
            "× Retrain, erased",
            "prepare",
            "state",
            "runs",
        ],
        rows,
        "rho: distance to the retrained parameters, as a share of what doing nothing leaves (0 = retrained, 1 = did "
        "nothing, above 1 = worse than nothing). disagree: share of test rows predicted otherwise than by Retrain. "
        "− Retrain: accuracy minus Retrain's, in points. one request: until the model without the rows can be used; "
        "erased: until nothing that the method keeps in memory gives the rows back, preparing it anew included where "
        "that is what it takes. × Retrain: how many times faster than Retrain. † trains otherwise: its rho is "
        "against a retrain of its own.",
    )


MODELS_SHORT = {"lr": "LR", "mlp": "MLP"}


def _rho_text(records: list[Record], rho: float | None) -> str:
    """rho, or why there is none; below the solver's own noise it says so instead of feigning digits."""
    if rho is None:
        return "– (ensemble)" if any("rho" in r for r in records) else "–"
    floor = median(records, "noise_floor")
    if rho == 0:
        return "0"
    if floor is not None and rho <= floor:
        return f"≤ {floor:.1g} (solver noise)"
    return f"{rho:.3g}" + ("†" if any(r.get("reference") == "own" for r in records) else "")


def efficacy(records: list[Record]) -> Table:
    """Table 3: what can still be told of the forgotten rows, beside what Retrain shows and what the paper printed."""
    mine = main_records(records, "efficacy")
    rows = []
    for setting in settings_of(mine):
        here = pick(mine, dataset=setting[0], source=setting[1], n=setting[2])
        for (model, r), cells in group(here, "model", "r").items():
            for method in methods_of(cells):
                own = pick(cells, method=method)
                published = PAPER_EFFICACY.get(str(setting[0]), {}).get(method) if model == "mlp" else None
                why = sorted({str(q["mia_degenerate"]) for q in own if q.get("mia_degenerate")})
                low, high = median(own, "mia_auc_low"), median(own, "mia_auc_high")
                auc = _middle(values(own, "mia_auc"), lambda v: f"{v:.3f}")
                if low is not None and high is not None and auc.sort is not None:
                    auc = Cell(f"{auc.text} [{low:.3f}, {high:.3f}]", auc.sort)
                rows.append(
                    [
                        dataset_label(*setting),
                        MODELS_SHORT.get(model, model),
                        r,
                        method_cell(method),
                        _middle(values(own, "forget_accuracy"), lambda v: f"{v:.3f}"),
                        _middle(values(own, "retrain_forget_accuracy"), lambda v: f"{v:.3f}"),
                        published[1] if published else None,
                        _middle(values(own, "mia_svc"), lambda v: f"{v:.3f}"),
                        published[0] if published else None,
                        auc,
                        _middle(values(own, "mia_gap"), lambda v: f"{v:.3f}"),
                        "; ".join(why) or Cell("", None),
                        runs_of(own),
                    ]
                )
    return Table(
        "Table 3: accuracy and membership attacks on the forgotten rows",
        [
            "dataset",
            "model",
            "r",
            "method",
            "accuracy on forgotten",
            "Retrain's",
            "paper's accuracy",
            "MIA (SVC)",
            "paper's MIA",
            "MIA AUC [95 %]",
            "gap to Retrain's MIA",
            "no MIA because",
            "runs",
        ],
        rows,
        "The target of each column is Retrain's own value, not the lowest: a method that scores far below Retrain has "
        "damaged the model rather than forgotten the rows. The paper's columns are its Table 3, on its own machine.",
    )
