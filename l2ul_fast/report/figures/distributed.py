"""Dask workers beside one process: counting shards, summing derivatives, making training pairs."""

from __future__ import annotations

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import BLUE, INK, drawing_style, subplots
from l2ul_fast.report.values import Drawing, Table, marked, plural, select, timed

#: What the records of an experiment are about.
WHAT = {
    "distributed-kme": "count {n:,} × {d} in {shards} shards",
    "distributed-sums": "fit {n:,} × {d} by sums",
    "distributed-pairs": "{m:,} {model} pairs, s = {s:,}",
}
#: Goal of counting: time of several one-thread workers over that of one process with as many threads.
TIME = 1.2

Pair = tuple[str, Record, Record]


def pairs_of(records: list[Record]) -> list[Pair]:
    """(what, record of workers, that of one process with as many threads, or with one where there is no such)."""
    found = []
    for r in select(records, experiment=tuple(WHAT), method="workers", failed=None):
        same = {name: r.get(name) for name in ("experiment", "model", "m")}
        alone = select(records, method="one process", threads=(1, r["workers"]), failed=None, **same)
        if alone:
            found.append((WHAT[r["experiment"]].format(**r), r, max(alone, key=lambda a: int(a["threads"]))))
    return found


def tables(records: list[Record]) -> list[Table]:
    rows = []
    for what, r, alone in pairs_of(records):
        ratio = r["seconds"] / alone["seconds"]
        goal = TIME if r["workers"] > 1 and r["experiment"] == "distributed-kme" else None
        beside = f"{plural(alone['threads'], 'thread')}: {timed('seconds')([alone]).text}"
        rows.append([what, r["workers"], timed("seconds")([r]), beside, marked(f"{ratio:.2f}×", ratio, goal)])
    note = (
        "HIGGS stand-in rows, not real data; page cache warm; client, scheduler and workers share the cores. Medians "
        "of interleaved repeats; all results equal those of one process."
    )
    columns = ["what", "one-thread workers", "measured", "one process", "of its time"]
    return [Table("Dask workers beside one process", columns, rows, note)]


def plots(records: list[Record]) -> list[Drawing]:
    """Wall times of workers as shares of those of one process."""
    found = pairs_of(records)
    if not found:
        return []
    with drawing_style():
        figure, grid = subplots(1, 1, figsize=(7.5, 1.0 + 0.4 * len(found)))
        names = [f"{what}, {plural(r['workers'], 'worker')}" for what, r, _ in found]
        grid[0][0].barh(names, [r["seconds"] / alone["seconds"] for _, r, alone in found], color=BLUE)
        grid[0][0].axvline(1, color=INK, linewidth=1)
        grid[0][0].invert_yaxis()
        grid[0][0].set(xlabel="wall time, one process = 1")
    alt = "Bars: wall time of Dask workers as a share of that of one process with as many threads."
    return [Drawing("distributed", figure, alt, "HIGGS stand-in.")]


FIGURE = Figure(tables, plots)
