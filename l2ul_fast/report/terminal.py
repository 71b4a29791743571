"""What a run of the paper's experiments shows in the terminal: speed-ups in short, or every method in full."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text
from scipy import stats

from l2ul_fast.measure.records import Record, upgrade
from l2ul_fast.report.common import (
    bytes_text,
    dataset_label,
    erased_cell,
    factor_cell,
    group,
    median,
    methods_of,
    number_text,
    ours_of,
    pick,
    ratio_text,
    seconds_of,
    seconds_text,
    values,
)

#: Methods whose time is set against L2UL's in the short table: those of the paper.
RIVALS = ("retrain", "retrain-warm", "sisa", "deltagrad", "fyemu", "newton")


def interval(found: list[float]) -> tuple[float, float, float] | None:
    """(mean, low, high): the mean with its 95 % t-interval; None without values."""
    if not found:
        return None
    mean = float(np.mean(found))
    if len(found) < 2 or np.ptp(found) == 0:
        return mean, mean, mean
    half = float(stats.t.ppf(0.975, len(found) - 1) * np.std(found, ddof=1) / len(found) ** 0.5)
    return mean, mean - half, mean + half


def interval_text(found: list[float], scale: float = 1.0, digits: int = 3) -> str:
    got = interval([scale * v for v in found])
    if got is None:
        return "-"
    mean, low, high = (number_text(v, digits) for v in got)
    return mean if low == high else f"{mean} [{low}, {high}]"


def short_table(records: list[Record]) -> Table:
    """One line per dataset, model and r: what L2UL reaches and how many times faster it is than the others."""
    table = Table(title="L2UL (default head) beside the others; medians over the runs", title_justify="left")
    heads = ("accuracy - Retrain's, points", "rho", "time", *(f"x {r}" for r in RIVALS), "erased", "x retrain, erased")
    for name in ("data", "model", "r", *heads):
        table.add_column(name, justify="left" if name in ("data", "model") else "right")
    order = ("dataset", "source", "n", "model", "r_asked", "kind")
    for key, found in group(pick(records, kind="random"), *order).items():
        ours = pick(found, method=ours_of(found))
        if not ours:
            continue
        seconds = seconds_of(ours, False)
        gaps = [100 * (r["accuracy"] - r["retrain_accuracy"]) for r in ours]
        line = [dataset_label(*key[:3]), key[3], str(key[4]), f"{np.mean(gaps):+.2f}", number_text(median(ours, "rho"))]
        line.append(seconds_text(seconds))
        for rival in RIVALS:
            theirs = seconds_of(pick(found, method=rival), False)
            line.append("-" if theirs is None or not seconds else ratio_text(theirs / seconds))
        line += [erased_cell(ours).text, factor_cell(pick(found, method="retrain"), ours, True).text]
        table.add_row(*line)
    return table


def full_tables(records: list[Record]) -> list[Any]:
    """Every method: accuracy, rho, disagreement, times and state, mean and 95 % interval (times: median)."""
    parts: list[Any] = []
    for key, found in group(records, "dataset", "source", "n", "model", "r_asked", "kind").items():
        runs = len({(r["seed"], r["run"]) for r in found})
        title = f"{dataset_label(*key[:3])}: {key[3]}, {key[5]}, r = {key[4]}, {runs} runs; mean [95 % interval]"
        table = Table(title=title, title_justify="left")
        for name in (
            "method",
            "accuracy, %",
            "rho (nothing = 1)",
            "disagreement, %",
            "unlearn (median)",
            "erased",
            "prepare",
            "state",
        ):
            table.add_column(name, justify="left" if name == "method" else "right")
        for method in methods_of(found):
            mine = pick(found, method=method)
            own = "*" if any(r.get("reference") == "own" for r in mine) else ""
            table.add_row(
                method,
                interval_text(values(mine, "accuracy"), 100, 4),
                interval_text(values(mine, "rho")) + own,
                interval_text(values(mine, "disagreement"), 100),
                seconds_text(seconds_of(mine, False)),
                erased_cell(mine).text,
                seconds_text(median(mine, "prepare_seconds")),
                bytes_text(median(mine, "state_bytes")),
            )
        parts.append(table)
    if parts:
        parts += [
            Text("rho: distance to the retrained parameters; - where there are none (ensembles). * against a retrain"),
            Text("of its own training pipeline. disagreement: test rows that the retrained model answers otherwise."),
            Text("erased: time until nothing that the method keeps in memory gives the rows back."),
        ]
    return parts


def terminal(records: list[Record]) -> Group:
    """The summary of a run, whatever version wrote it."""
    records = [upgrade(r) for r in records]
    parts: list[Any] = full_tables(pick(records, experiment="baselines"))
    main = [r for r in records if r.get("experiment") in ("lr", "mlp")]
    if main:
        parts.append(short_table(main))
    speed = pick(records, experiment="baseline-speed")
    if speed:
        from l2ul_fast.report.figures.baseline_speed import table as speed_table

        parts.append(speed_table(speed))
    counted = group([r for r in records if r.get("experiment") not in ("environment", "gate")], "experiment")
    parts.append(Text("records: " + ", ".join(f"{key[0]} {len(found)}" for key, found in counted.items())))
    return Group(*parts)


def both(before: list[Record], after: list[Record]) -> Table:
    """Old and new values of reproduced cells side by side."""
    table = Table(title="recorded and measured again", title_justify="left")
    for name in ("cell", "value", "recorded", "again"):
        table.add_column(name, justify="right" if name in ("recorded", "again") else "left")
    for old, new in zip(before, after, strict=False):
        cell = "/".join(str(old[k]) for k in ("experiment", "dataset", "model", "method", "r", "run") if k in old)
        for key, value in old.items():
            if isinstance(value, float) and isinstance(new.get(key), float) and key != "at":
                table.add_row(cell, key, number_text(value, 4), number_text(new[key], 4))
                cell = ""
    return table
