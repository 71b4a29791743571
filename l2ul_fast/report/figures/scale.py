"""Time and memory against the number of rows, streamed from a file."""

from __future__ import annotations

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.figures.cores import TASKS, named
from l2ul_fast.report.style import INK, drawing_style, legend, seconds_axis, subplots
from l2ul_fast.report.values import (
    Drawing,
    Table,
    main_threads,
    median,
    middle,
    one_thread_count,
    select,
    sources,
    table_of,
    timed,
)

COLUMNS = {
    "time": timed("seconds"),
    "rows per second": middle("rows_per_second", "{:,.0f}"),
    "peak memory (MiB)": middle("peak_mib", "{:,.0f}"),
    "file (MiB)": middle("file_mib", "{:,.0f}"),
}


def tables(records: list[Record]) -> list[Table]:
    mine = named(one_thread_count(records))
    return [table_of("Time and memory by number of rows", mine, {"data": "dataset", "task": "task"}, COLUMNS, block=1)]


def plots(records: list[Record]) -> list[Drawing]:
    """Left: seconds against n. Right: peak memory against n, beside the file's size."""
    mine = select(one_thread_count(records), failed=None)
    sizes = sorted({r["n"] for r in mine if r.get("n")})
    if not sizes:
        return []
    with drawing_style():
        figure, grid = subplots(1, 2, figsize=(11, 5))
        left, right = grid[0]
        for task, (name, colour, marker) in TASKS.items():
            paint = {"color": colour, "marker": marker, "label": name, "markersize": 8}
            for axis, field in ((left, "seconds"), (right, "peak_mib")):
                found = [(n, median(select(mine, task=task, n=n), field)) for n in sizes]
                found = [(n, v) for n, v in found if v is not None]
                if found and (axis is left or task != "request"):
                    axis.plot(*zip(*found, strict=True), **paint)
        files = [(n, median(select(mine, n=n), "file_mib")) for n in sizes]
        right.plot(*zip(*files, strict=True), color=INK, linestyle=":", label="size of the file")
        left.set(xscale="log", yscale="log", xlabel="n, rows", ylabel="time")
        seconds_axis(left.yaxis)
        right.set(xscale="log", yscale="log", xlabel="n, rows", ylabel="memory above the idle process (MiB)")
        legend(figure, grid[0], 3)
    alt = "Lines against the number of rows: time of each part of the work, and peak memory beside the file's size."
    caption = f"Streamed from a file with {main_threads(mine) or '?'} thread(s); medians. Data: {sources(mine)}."
    return [Drawing("scale", figure, alt, caption)]


FIGURE = Figure(tables, plots)
