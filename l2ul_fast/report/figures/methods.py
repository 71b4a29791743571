"""Every method on every dataset (Figs. 2 to 5): accuracy beside Retrain's, rho, both times, what preparing costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.figures import speedup
from l2ul_fast.report.style import INK, OURS, drawing_style, legend, ours_of, plain, seconds_axis, style_of, subplots
from l2ul_fast.report.values import (
    MODELS,
    NONE,
    Cell,
    Column,
    Drawing,
    Table,
    Value,
    bytes_text,
    cells_of,
    erased_cell,
    factor,
    faster,
    group_by,
    listing,
    main_threads,
    median,
    method_cell,
    methods_of,
    middle,
    model_text,
    models_text,
    number_text,
    one_thread_count,
    plural,
    points,
    r_text,
    remarks,
    runs_of,
    seconds,
    select,
    settings_of,
    source_name,
    sources,
    timed,
    values,
)

#: Experiments whose records have one method's accuracy, rho and times per cell.
MAIN = ("lr", "mlp", "baselines")
#: What the paper's figures show, and beside it the closed form and our default; the table has them all.
DRAWN = ("retrain", "sisa", "deltagrad", "fyemu", "newton", "l2ul-paper", *OURS)
#: Figure of the paper by (experiment, r).
PAPER_FIGURE = {("lr", 1): "Fig. 2", ("mlp", 1): "Fig. 3", ("mlp", 100): "Fig. 4", ("mlp", 1000): "Fig. 5"}
RHO_NOTE = (
    "rho: distance to the retrained parameters, as a share of what doing nothing leaves (0 = retrained, 1 = did "
    "nothing, above 1 = worse than nothing)."
)
CALL = Cell("Call overhead", 0.5)


def rho_cell(records: list[Record]) -> Cell:
    """rho, or why there is none; below the solver's own noise it says so instead of feigning digits."""
    rho, floor = median(records, "rho"), median(records, "noise_floor")
    if rho is None:
        return Cell("– (ensemble)" if any("rho" in r for r in records) else "–", None)
    if rho == 0:
        return Cell("0", 0.0)
    if floor is not None and rho <= floor:
        return Cell(f"≤ {floor:.1g} (solver noise)", rho)
    dagger = "†" if any(r.get("rho_target") == "method" for r in records) else ""
    return Cell(number_text(rho) + dagger, rho, "bad" if rho > 1 else "")


COLUMNS: dict[str, Column] = {
    "rho": rho_cell,
    "answer": timed("answer_seconds"),
    "× Retrain": lambda own: NONE,  # see BESIDE
    "erased": erased_cell,
    "× Retrain, erased": lambda own: NONE,
    "disagree": middle("disagreement", "{:.2%}"),
    "accuracy": middle("accuracy", "{:.4f}"),
    "− Retrain": middle(points, "{:+.2f}"),
    "prepare": timed("prepare_seconds"),
    "state": lambda own: Cell(bytes_text(b := median(own, "state_bytes")), b),
    "runs": runs_of,
    "remark": remarks,
}
#: Columns that compare a time with Retrain's.
BESIDE = {"× Retrain": "answer_seconds", "× Retrain, erased": "erased_seconds"}


def table(records: list[Record]) -> Table:
    """Everything measured, a block per dataset, model, request and thread count; do nothing and Retrain first."""
    rows: list[dict[str, Any]] = []
    columns = dict(COLUMNS)
    if all(r.get("status", "ok") == "ok" for r in records):
        del columns["remark"]
    for data, model, _, request, threads, found in cells_of(records, "data", "model", "r_asked", "request", "threads"):
        head = {"dataset": data, "model": model_text(model), "r": f"r = {r_text(found)}", "request": request}
        head["threads"] = plural(threads or 1, "thread")
        retrain = select(found, method="retrain")
        for method, own in cells_of(found, "method"):
            beside = {name: factor(retrain, own, field) for name, field in BESIDE.items()}
            rows.append(head | {"method": method_cell(method)} | {k: make(own) for k, make in columns.items()} | beside)
            if method == "nothing" and median(own, "overhead_seconds") is not None:
                # what the harness takes for a call that does nothing
                rows.append(head | {"method": CALL, "answer": timed("overhead_seconds")(own)})
    return listing(
        f"{models_text(records)}: every cell, medians over runs",
        rows,
        f"{RHO_NOTE} − Retrain: accuracy minus Retrain's, in points. disagree: test rows predicted otherwise than by "
        "Retrain. answer: until the model without the rows can be used, quartiles over runs in brackets; erased: until "
        "nothing that the method keeps in memory gives the rows back, preparing it anew included where that is what it "
        "takes. Call overhead: what a call that does nothing takes here. † trains otherwise: its rho is against a "
        "retrain of its own.",
        block=5,
    )


def brief(records: list[Record]) -> Table:
    """What the default head reaches on each dataset, and its speed beside Retrain and Newton; of a run without it, what
    every method does."""
    rows = []
    every = not select(records, method=ours_of(records))
    random = select(records, request="random")
    for data, model, _, threads, method, own in cells_of(random, "data", "model", "r_asked", "threads", "method"):
        if method == "nothing" or not (every or method == ours_of(records)):
            continue
        cell = {name: own[0].get(name) for name in ("dataset", "source", "n", "model", "r_asked", "threads")}
        retrain, newton = (select(random, method=rival, **cell) for rival in ("retrain", "newton"))
        row = {
            "dataset": data,
            "model": model_text(model),
            "r": r_text(own),
            "threads": threads,
            "method": method_cell(method),
            "− Retrain": COLUMNS["− Retrain"](own),
            "rho": rho_cell(own),
            "answer": timed("answer_seconds")(own),
            "× Retrain": factor(retrain, own),
            "× Newton": factor(newton, own),
            "erased": timed("erased_seconds")(own),
            "× Retrain, erased": factor(retrain, own, "erased_seconds"),
        }
        rows.append(row)
    what = "every method" if every else "L2UL (default head)"
    return listing(f"{models_text(records)}: {what}, medians over runs", rows, block=2)


def break_even_table(records: list[Record]) -> Table:
    """Requests after which a method's preparation has paid, against retraining for every request."""
    rows = []
    for data, model, _, found in cells_of(select(records, request=("random", None)), "data", "model", "r_asked"):
        retrain = select(found, method="retrain")
        again, fit = median(retrain, "answer_seconds"), median(retrain, "prepare_seconds")
        for method, own in cells_of(found, "method"):
            prepare, request = median(own, "prepare_seconds"), median(own, "answer_seconds")
            if method in ("nothing", "retrain") or prepare is None or request is None or again is None:
                continue
            extra = max(0.0, prepare - (fit or 0.0))
            count = float(np.ceil(extra / (again - request))) if request < again else None
            row = {"dataset": data, "model": model_text(model), "r": f"r = {r_text(found)}"}
            row |= {"method": method_cell(method)}
            row |= {"break-even requests": Cell("never" if count is None else f"{count:,.0f}", count)}
            row |= {"extra preparation": seconds(extra), "one retrain": seconds(again), "one request": seconds(request)}
            rows.append(row)
    return listing(
        f"When preparing has paid ({models_text(records)}): requests until it is cheaper than retraining each time",
        rows,
        "Extra preparation is what a method does beyond the plain fit before the first request. Never: a request takes "
        "at least as long as retraining. The table of all cells says whether its answer is any good.",
        block=3,
    )


def thread_table(records: list[Record]) -> Table:
    """Time of one request by thread count; no rows where a run measured one only."""
    mine = select(records, request=("random", None))
    counts = sorted({k for (k,) in group_by(mine, "threads") if isinstance(k, int)})
    rows = []
    for data, model, _, found in cells_of(mine, "data", "model", "r_asked"):
        for method, own in cells_of(found, "method"):
            times = [median(select(own, threads=k), "answer_seconds") for k in counts]
            gain = times[0] / times[-1] if len(counts) > 1 and times[0] and times[-1] else None
            head = {"dataset": data, "model": model_text(model), "r": f"r = {r_text(found)}"}
            cells = {plural(k, "thread"): seconds(s) for k, s in zip(counts, times, strict=True)}
            rows.append(head | {"method": method_cell(method)} | cells | {"gain": faster(gain)})
    title = f"Time of one request by thread count ({models_text(records)})"
    note = "Medians over runs. The last column is how many times faster the largest thread count is."
    return listing(title, rows if len(counts) > 1 else [], note, block=3)


def plots(records: list[Record]) -> list[Drawing]:
    """One plot per model and r of random requests: accuracy beside Retrain's, and time."""
    out = []
    mine = one_thread_count(select(records, request=("random", None)))
    for model, asked, cells in cells_of(mine, "model", "r_asked"):
        experiment = cells[0]["experiment"]
        where = PAPER_FIGURE.get((experiment, asked))
        title = f"{MODELS.get(model, model)}, r = {r_text(cells)}"
        k = main_threads(cells)
        alt = (
            f"Bars per dataset and method for {title}: accuracy minus Retrain's in points, and time of one request "
            "on a logarithmic axis. The table below holds the same numbers."
        )
        caption = (
            f"{title}{f' ({where} of the paper)' if where else ''}, {plural(runs_of(cells), 'run')}, "
            f"{plural(k, 'thread') if k else 'threads unknown'}. Bars: medians; whiskers: quartiles over runs. "
            f"Shown are the paper's methods, the Newton step and L2UL; the table has all. Data: {sources(cells)}."
        )
        out.append(Drawing(f"{experiment}-{model}-r{asked}", _bars(cells, title), alt, caption))
    return out


#: What the bars show.
FIELDS: tuple[Value, ...] = (points, "answer_seconds")


def _bars(records: list[Record], title: str) -> Any:
    settings = settings_of(records)
    methods = [m for m in methods_of(records) if m in DRAWN] or methods_of(records)
    by = group_by(records, "dataset", "source", "n", "method")
    width = 0.84 / len(methods)
    with drawing_style():
        figure, grid = subplots(2, 1, figsize=(10.5, 6.2), height_ratios=(1.0, 1.2))
        axes = grid[:, 0]
        for i, method in enumerate(methods):
            x = np.arange(len(settings)) + width * (i - (len(methods) - 1) / 2)
            cells = [by.get((*s, method), []) for s in settings]
            for axis, name in zip(axes, FIELDS, strict=True):
                known = [(a, v) for a, c in zip(x, cells, strict=True) if (v := values(c, name))]
                if not known:
                    continue
                low, mid, high = np.array([np.quantile(v, (0.25, 0.5, 0.75)) for _, v in known]).T
                paint: dict[str, Any] = {"color": style_of(method).colour, "label": plain(style_of(method).label)}
                if method == "l2ul-paper":
                    paint |= {"color": "none", "edgecolor": style_of(method).colour, "hatch": "////", "linewidth": 0.8}
                axis.bar([a for a, _ in known], mid, width * 0.92, **paint)
                axis.vlines([a for a, _ in known], low, high, color=INK, linewidth=1)
        labels = [f"{d}\n{source_name(s)}" + (f"\nn = {n:,}" if isinstance(n, int) else "") for d, s, n in settings]
        for axis in axes:
            axis.set_xticks(range(len(settings)), [plain(text) for text in labels])
            axis.set_xlim(-0.55, len(settings) - 0.45)
            axis.grid(visible=False, axis="x")
            axis.tick_params(axis="x", length=0)
        axes[0].tick_params(axis="x", labelbottom=False)
        axes[0].set_title(plain(title))
        axes[0].axhspan(-0.5, 0.5, color=INK, alpha=0.07, linewidth=0, zorder=0)
        axes[0].axhline(0, color=INK, linewidth=0.8)
        axes[0].set_yscale("symlog", linthresh=0.5, linscale=0.8)
        ticks = (-50, -10, -2, -0.5, 0, 0.5, 2, 10)
        axes[0].set_yticks(ticks, [f"{t:+g}".replace("-", "−") if t else "0" for t in ticks])
        axes[0].set_ylabel("accuracy − Retrain's\n(points)")
        axes[1].set(yscale="log", ylabel="time of one request")
        seconds_axis(axes[1].yaxis)
        for axis in axes:
            axis.minorticks_off()
        legend(figure, axes)
    return figure


def tables(records: list[Record]) -> list[Table]:
    one = one_thread_count(records)
    return [table(records), *speedup.tables(one), break_even_table(one), thread_table(records)]


FIGURE = Figure(tables, plots)
