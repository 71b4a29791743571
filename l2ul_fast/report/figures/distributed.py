"""Dask workers beside one process: counting shards, making pairs, and what an empty task costs."""

from __future__ import annotations

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import BLUE, GREEN, INK, drawing_style, subplots
from l2ul_fast.report.values import Cell, Drawing, Table, marked, median, plural, seconds_text, select, value

#: Goals: time of k one-thread workers over that of one process with k threads; bytes to the scheduler per shard;
#: parallel efficiency of making pairs.
TIME, BYTES, EFFICIENCY = 1.2, 64 * 1024, 0.9


def tables(records: list[Record]) -> list[Table]:
    rows = [
        *_counts(select(records, experiment="distributed-kme")),
        *_pairs(select(records, experiment="distributed-pairs")),
    ]
    for r in select(records, experiment="distributed-tasks"):
        moved = f"{r['scheduler_bytes_per_task']:,.0f} bytes to the scheduler"
        rows.append([f"an empty task, {r['workers']} workers", seconds_text(r["seconds_per_task"]), moved, ""])
    note = (
        "HIGGS stand-in rows, not real data; page cache warm; client, scheduler and workers share the cores. Medians "
        "of interleaved repeats; all results equal those of one process."
    )
    return [Table("Dask workers beside one process", ["what", "measured", "beside", "ratio"], rows, note)]


def _counts(records: list[Record]) -> list[list[object]]:
    out: list[list[object]] = []
    for r in select(records, method="workers"):
        k = r["workers"]
        alone = median(select(records, method="one process", threads=k), "seconds")
        ratio = r["seconds"] / alone if alone else None
        what = f"count {r['n']:,} × {r['d']} in {r['shards']} shards, {plural(k, 'one-thread worker')}"
        text = "" if ratio is None else f"{ratio:.2f}× its time"
        beside = f"one process, {plural(k, 'thread')}: {seconds_text(alone)}"
        out.append([what, seconds_text(r["seconds"]), beside, marked(text, ratio, TIME if k > 1 else None)])
        if (moved := value(r, "scheduler_bytes_per_shard")) is not None and k > 1:
            size = marked(f"{moved / 1024:.1f} KiB", moved, BYTES, f"{BYTES // 1024} KiB")
            out.append(["bytes to the scheduler per shard", size, "", ""])
    return out


def _pairs(records: list[Record]) -> list[list[object]]:
    out: list[list[object]] = []
    for r in records:
        if not r.get("workers") or r.get("method") not in ("workers", None):
            continue
        k, share = r["workers"], value(r, "efficiency")
        what = f"{r['m']:,} {r['model']} pairs, s = {r['s']:,}, {plural(k, 'one-thread worker')}"
        alone = median(select(records, model=r["model"], m=r["m"], method="one process"), "seconds")
        base = value(r, "beside_seconds") or alone
        text = "" if share is None else f"{share:.0%} parallel efficiency"
        goal = EFFICIENCY if k > 1 else None
        cell = marked(text, share, goal, f"{EFFICIENCY:.0%}", at_least=True) if share is not None else Cell(text)
        out.append([what, seconds_text(r["seconds"]), f"one process, 1 thread: {seconds_text(base)}", cell])
    return out


def plots(records: list[Record]) -> list[Drawing]:
    """Wall time of counting against the number of leaves; none where only one number was measured."""
    kme = [r for r in select(records, experiment="distributed-kme") if "leaves" in r and "few" not in str(r["method"])]
    k = max((r["workers"] for r in kme), default=0)
    mine = sorted(select(kme, workers=k), key=lambda r: r["leaves"])
    if len({r["leaves"] for r in mine}) < 2:
        return []
    alone = median(select(records, experiment="distributed-kme", method="one process", threads=k), "seconds")
    with drawing_style():
        figure, grid = subplots(1, 1, figsize=(6.5, 4.2))
        axis = grid[0][0]
        leaves, times = [r["leaves"] for r in mine], [r["seconds"] for r in mine]
        axis.plot(leaves, times, "o-", color=BLUE, label=f"{k} one-thread workers")
        if alone:
            axis.axhline(alone, color=GREEN, label=f"one process, {plural(k, 'thread')}")
            axis.axhline(TIME * alone, color=INK, linestyle=":", linewidth=1, label=f"goal, {TIME}×")
        axis.set(xscale="log", ylim=(0, None), xlabel="leaves (tasks that count)", ylabel="wall time, s")
        axis.legend()
    alt = "Line: wall time of counting against the number of leaves, beside one process."
    return [Drawing("distributed", figure, alt, f"HIGGS stand-in, {mine[0]['n']:,} rows.")]


FIGURE = Figure(tables, plots)
