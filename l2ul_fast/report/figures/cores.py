"""How the work scales with threads."""

from __future__ import annotations

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import BLUE, GREEN, INK, ORANGE, PINK, YELLOW, drawing_style, legend, seconds_axis, subplots
from l2ul_fast.report.values import (
    Cell,
    Drawing,
    Table,
    faster,
    group_by,
    median,
    number_text,
    plural,
    select,
    settings_of,
    sources,
    table_of,
    timed,
)

TASKS = {
    "request": ("one request, r = 1", BLUE, "*"),
    "request 1000": ("one request, r = 1000", PINK, "o"),
    "kme": ("embedding of all rows (KME)", GREEN, "^"),
    "pairs": ("training pairs", YELLOW, "D"),
    "fit": ("fit of the unlearner", ORANGE, "v"),
    "retrain": ("Retrain", INK, "s"),
}


def named(records: list[Record]) -> list[Record]:
    """Records with the task in words, in the order of the legend."""
    order = [*TASKS, *sorted({str(r.get("task")) for r in records} - set(TASKS))]
    found = [
        {**r, "task": TASKS.get(r["task"], (r["task"],))[0], "_": order.index(r["task"])}
        for r in records
        if r.get("task")
    ]
    return sorted(found, key=lambda r: r["_"])


def _largest(records: list[Record]) -> list[Record]:
    """Records of the largest n only: thread counts are compared on one size."""
    return select(records, n=max((r["n"] for r in records if r.get("n")), default=None), failed=None)


def _counts(records: list[Record]) -> list[int]:
    return sorted({r["threads"] for r in records if r.get("threads")})


def tables(records: list[Record]) -> list[Table]:
    mine = named(_largest(records))
    counts = _counts(mine)
    columns = {plural(k, "thread"): _at(k) for k in counts}
    if len(counts) > 1:
        columns["gain"] = lambda own: faster(_gain(own, counts))
    columns["rate with the most threads"] = lambda own: _rate(select(own, threads=counts[-1]))
    return [table_of("Time of each part of the work", mine, {"data": "dataset", "task": "task"}, columns, block=1)]


def _at(k: int):  # type: ignore[no-untyped-def]
    return lambda own: timed("seconds")(select(own, threads=k))


def _gain(own: list[Record], counts: list[int]) -> float | None:
    first, last = (median(select(own, threads=k), "seconds") for k in (counts[0], counts[-1]))
    return first / last if first and last else None


def _rate(own: list[Record]) -> Cell:
    rate = median(own, "rate")
    return Cell("–", None) if rate is None else Cell(f"{number_text(rate)} {own[0].get('unit', '')}", rate)


def plots(records: list[Record]) -> list[Drawing]:
    """Left: seconds by threads. Right: times faster than with the fewest. None for one count alone."""
    mine = _largest(records)
    counts = _counts(mine)
    if len(counts) < 2:
        return []
    with drawing_style():
        figure, grid = subplots(1, 2, figsize=(11, 5))
        left, right = grid[0]
        for task, (name, colour, marker) in TASKS.items():
            found = {k: median(own, "seconds") for (k,), own in group_by(select(mine, task=task), "threads").items()}
            points = sorted((k, s) for k, s in found.items() if s)
            if points:
                x, y = zip(*points, strict=True)
                paint = {"color": colour, "marker": marker, "label": name, "markersize": 8}
                left.plot(x, y, **paint)
                right.plot(x, [y[0] / s for s in y], **paint)
        ideal = [k / counts[0] for k in counts]
        right.plot(counts, ideal, color=INK, linestyle=":", label="as many times as threads")
        left.set(yscale="log", ylabel="time")
        seconds_axis(left.yaxis)
        right.set(ylabel=f"times faster than with {plural(counts[0], 'thread')}")
        for axis in (left, right):
            axis.set_xticks(counts)
            axis.set_xlabel("threads")
        right.set_ylim(bottom=0)
        legend(figure, (right,), 3)
    alt = "Lines by number of threads: time of each part of the work, and how many times faster than with the fewest."
    n = settings_of(mine)[0][2]
    return [Drawing("cores", figure, alt, f"Medians. Data: {sources(mine)}, n = {n:,}.")]


FIGURE = Figure(tables, plots)
