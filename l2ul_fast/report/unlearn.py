"""The unlearning benchmark as tables with goals beside them, and one plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from l2ul_fast.report.kernels import COLOURS
from l2ul_fast.results import Record

KINDS = (("random", 1), ("random", 100), ("random", 1000), ("one class", 1000), ("one cluster", 1000))
SHOWN = ("nothing", "newton", "l2ul", "l2ul-learned", "l2ul-paper")
Line = tuple[str, str, str, str]


def _find(records: list[Record], **key: Any) -> list[Record]:
    return [r for r in records if all(r.get(k) == v for k, v in key.items())]


def _verdict(value: float, goal: float, at_least: bool) -> str:
    return "ok" if (value >= goal if at_least else value <= goal) else "MISS"


def speed(records: list[Record]) -> list[Line]:
    """(what, measured, goal, verdict) of latency, pairs and fit."""
    lines: list[Line] = []

    def line(what: str, value: float, goal: float, at_least: bool = True) -> None:
        sign = ">=" if at_least else "<="
        lines.append((what, f"{value:.1f}x", f"{sign} {goal:g}x", _verdict(value, goal, at_least)))

    for r in _find(records, experiment="latency"):
        method, model = r["method"], r["model"]
        if method.startswith("core, ") and r["r"] == 1:
            line(
                f"{model}: {method}, {r['us']:.1f} us, against torch eager", r["eager_ratio"], 8 if model == "lr" else 4
            )
            if model == "lr":
                line(f"{model}: {method}, against TorchScript", r["script_ratio"], 3)
        elif method.startswith("unlearn"):
            text = f"{model}: {method}, p50 {r['p50_us']:.1f} us, against torch eager"
            if model == "lr":
                line(text, r["eager_ratio"], 3)
                line(f"{model}: {method}, p99 over p50", r["p99_us"] / r["p50_us"], 3, False)
                if "idle_ratio" in r:
                    text = f"{model}: the same of a loop that does nothing, as long"
                    lines.append((text, f"{r['idle_ratio']:.1f}x", "", ""))
            else:
                lines.append((text, f"{r['eager_ratio']:.1f}x", "", ""))
        elif "gather_ratio" in r and method.startswith("core"):
            line(f"{model}: {method}, {r['us']:.0f} us, against gathering the rows", r["gather_ratio"], 10, False)
        elif method.startswith("save"):
            lines.append((f"{model}: {method} ({r['n']:,} rows kept)", f"{r['us'] / 1e3:.0f} ms", "", ""))
    for r in _find(records, experiment="pairs-lr", method="sklearn-lbfgs"):
        line(f"{r['m']} LR pairs, s={r['s']}, against scikit-learn lbfgs", r["ratio"], 10)
    for method, goal in (("sklearn", 20), ("vmap", 5)):
        for r in _find(records, experiment="pairs_mlp", method=method):
            line(f"{r['m']} MLP pairs, s={r['s']}, against {method}", r["ratio"], goal)
    for r in _find(records, experiment="fit"):
        line(f"fit on {r['n']:,} x {r['d']} ({r['seconds']:.1f} s), over its pair generation", r["ratio"], 3, False)
    return lines


def goal_of(dataset: str, model: str, method: str, kind: str) -> float | None:
    """The largest rho asked of a method, or None."""
    structured = kind != "random"
    if model == "mlp":
        return (0.20 if structured else 0.10) if method == "l2ul" else None
    if structured:
        return None
    if method == "l2ul":
        return 0.05
    if method == "l2ul-learned":
        return 0.10 if dataset in ("magic", "adult", "skin") else 0.30
    return None


def quality(records: list[Record], model: str) -> list[tuple[str, ...]]:
    """(dataset, method, median rho of each kind ..., accuracy gap to retrain, worst verdict)."""
    out: list[tuple[str, ...]] = []
    chosen = _find(records, experiment="unlearn-quality", model=model)
    for dataset in dict.fromkeys(r["dataset"] for r in chosen):
        mine = _find(chosen, dataset=dataset)
        for method in SHOWN:
            rows = _find(mine, method=method)
            if not rows:
                continue
            cells, verdicts = [], []
            for kind, r in KINDS:
                values = [q["rho"] for q in rows if q["kind"] == kind and (kind != "random" or _size(q) == r)]
                if not values:
                    cells.append("")
                    continue
                median = float(np.median(values))
                goal = goal_of(dataset, model, method, kind)
                verdicts += [] if goal is None else [_verdict(median, goal, False)]
                cells.append(f"{median:.3g}" + (" !" if goal is not None and median > goal else ""))
            gap = np.mean([q["accuracy"] - q["retrain_accuracy"] for q in rows]) * 100
            verdict = "" if not verdicts else "MISS" if "MISS" in verdicts else "ok"
            out.append((f"{dataset} ({rows[0]['source']}, n={rows[0]['n']:,})", method, *cells, f"{gap:+.2f}", verdict))
    return out


def _size(record: Record) -> int:
    """The nominal r of a request: small tables cannot give 1000 rows."""
    return next(r for r in (1, 100, 1000) if record["r"] <= r)


def terminal(records: list[Record]) -> Any:
    from rich.console import Group
    from rich.table import Table

    tables = []
    fast = Table(title="Speed (medians of interleaved repeats; HIGGS stand-in rows)")
    for name in ("what", "measured", "goal", ""):
        fast.add_column(name, justify="left" if name == "what" else "right")
    for line in speed(records):
        fast.add_row(*line)
    tables.append(fast)
    for model in ("lr", "mlp"):
        rows = quality(records, model)
        if not rows:
            continue
        table = Table(
            title=f"rho against a true retrain, {model} (0 = retrained exactly, 1 = did nothing)",
            caption="Medians over draws. ! = above the goal. Retrain scores 0 by definition; accuracy gap in points.",
        )
        for name in ("dataset", "method", *(f"{kind} {r}" for kind, r in KINDS), "accuracy gap", ""):
            table.add_column(name, justify="left" if name in ("dataset", "method") else "right")
        for row in rows:
            table.add_row(*row)
        tables.append(table)
    last = [r for r in _find(records, experiment="sequence") if r["requests"] == 100]
    if last:
        table = Table(title="100 requests, one after the other: rho against a retrain without all of them (goal < 0.3)")
        for name in ("dataset", "model", "rho", "median us", ""):
            table.add_column(name)
        for r in last:
            verdict = _verdict(r["rho"], 0.3, False)
            table.add_row(
                f"{r['dataset']} ({r['source']})", r["model"], f"{r['rho']:.3g}", f"{r['median_us']:.0f}", verdict
            )
        tables.append(table)
    return Group(*tables)


def plot(records: list[Record], path: Path) -> list[Path]:
    """rho of every method and kind, a panel per model, one point per dataset."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chosen = _find(records, experiment="unlearn-quality")
    models = [m for m in ("lr", "mlp") if _find(chosen, model=m)]
    if not models:
        return []
    figure, axes = plt.subplots(1, len(models), figsize=(7 * len(models), 5), layout="constrained", squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        mine = _find(chosen, model=model)
        methods = [m for m in SHOWN if _find(mine, method=m)]
        for colour, method in zip(COLOURS, methods, strict=False):
            for place, (kind, r) in enumerate(KINDS):
                values: dict[str, list[float]] = {}
                for q in _find(mine, method=method, kind=kind):
                    if kind != "random" or _size(q) == r:
                        values.setdefault(q["dataset"], []).append(max(q["rho"], 1e-6))
                xs = place + 0.13 * (methods.index(method) - len(methods) / 2)
                medians = [float(np.median(v)) for v in values.values()]
                label = method if place == 0 else None
                axis.scatter([xs] * len(medians), medians, color=colour, s=26, alpha=0.8, label=label)
        axis.axhline(1, color="black", linewidth=1, linestyle="--")
        axis.set_xticks(range(len(KINDS)), [f"{kind}\n{r}" for kind, r in KINDS])
        sources = sorted({r["source"] for r in mine})
        axis.set(
            yscale="log", ylabel="rho (1 = did nothing)", title=f"{model}: a point is a dataset ({', '.join(sources)})"
        )
        axis.grid(alpha=0.3)
        axis.legend()
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for target in written:
        figure.savefig(target, dpi=110)
    plt.close(figure)
    return written
