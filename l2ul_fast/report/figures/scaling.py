"""How the work scales: with threads (cores) and with rows (scale)."""

from __future__ import annotations

from typing import Any

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PINK,
    YELLOW,
    Cell,
    dataset_label,
    group,
    median,
    number_text,
    pick,
    seconds,
    seconds_axis,
    settings_of,
    style,
)
from l2ul_fast.report.lines import middle_cell, of_experiment

TASKS = {
    "request": ("one request, r = 1", BLUE, "*"),
    "request 1000": ("one request, r = 1000", PINK, "o"),
    "kme": ("embedding of all rows (KME)", GREEN, "^"),
    "pairs": ("training pairs", YELLOW, "D"),
    "fit": ("fit of the unlearner", ORANGE, "v"),
    "retrain": ("Retrain", INK, "s"),
}


def _largest(records: list[Record]) -> list[Record]:
    """Records of the largest n only: thread counts are compared on one size."""
    return pick(records, n=max((r["n"] for r in records), default=None))


def _by_threads(records: list[Record], task: str) -> list[tuple[int, float]]:
    found = {k: median(pick(records, task=task, threads=k), "seconds") for (k,) in group(records, "threads")}
    return sorted((k, s) for k, s in found.items() if s)


def plot_cores(records: list[Record]) -> Any:
    """Left: seconds by threads. Right: times faster than with the fewest threads, beside the ideal."""
    from matplotlib.figure import Figure

    mine = _largest(of_experiment(records, "cores", one_thread_count=False))
    counts = sorted({r["threads"] for r in mine})
    with style():
        figure = Figure(figsize=(11, 5), layout="constrained")
        left, right = figure.subplots(1, 2)
        for task, (name, colour, marker) in TASKS.items():
            points = _by_threads(mine, task)
            if not points:
                continue
            x, y = [k for k, _ in points], [s for _, s in points]
            paint = {"color": colour, "marker": marker, "label": name, "markersize": 8}
            left.plot(x, y, **paint)
            right.plot(x, [y[0] / s for s in y], **paint)
        if counts:
            right.plot(
                counts, [k / counts[0] for k in counts], color=INK, linestyle=":", label="as many times as threads"
            )
        left.set(yscale="log", ylabel="time")
        seconds_axis(left.yaxis)
        right.set(ylabel=f"times faster than with {counts[0] if counts else 1} thread(s)")
        for axis in (left, right):
            axis.set_xticks(counts)
            axis.set_xlabel("threads")
            axis.grid()
        right.set_ylim(bottom=0)
        label = dataset_label(*settings_of(mine)[0]) if mine else ""
        figure.suptitle(f"Work by threads: {label}")
        handles, names = right.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    return figure


def table_cores(records: list[Record]) -> tuple[list[str], list[list[Any]]]:
    """A line per task: seconds at each number of threads, and the gain of the most over the fewest."""
    mine, rows = _largest(of_experiment(records, "cores", one_thread_count=False)), []
    counts = sorted({r["threads"] for r in mine})
    for task, (name, *_) in TASKS.items():
        points = dict(_by_threads(mine, task))
        if not points:
            continue
        first, last = points.get(counts[0]), points.get(counts[-1])
        gain = first / last if first and last and len(counts) > 1 else None
        own = pick(mine, task=task, threads=counts[-1])
        rate = median(own, "rate")
        text = f"{number_text(rate)} {own[0].get('unit', '')}" if own and rate is not None else "–"
        label = dataset_label(*settings_of(mine)[0])
        times = [seconds(points.get(k)) for k in counts]
        rows.append([label, name, *times, Cell("–" if gain is None else f"{gain:.2f}×", gain), Cell(text, rate)])
    heads = [f"{k} thread{'s' if k > 1 else ''}" for k in counts]
    return ["dataset", "task", *heads, "gain", "rate with the most threads"], rows


def plot_scale(records: list[Record]) -> Any:
    """Left: seconds against n. Right: peak memory against n, beside the file's size."""
    from matplotlib.figure import Figure

    mine = of_experiment(records, "scale")
    with style():
        figure = Figure(figsize=(11, 5), layout="constrained")
        left, right = figure.subplots(1, 2)
        for task, (name, colour, marker) in TASKS.items():
            own = pick(mine, task=task)
            sizes = sorted({r["n"] for r in own})
            if not sizes:
                continue
            paint = {"color": colour, "marker": marker, "label": name, "markersize": 8}
            left.plot(sizes, [median(pick(own, n=n), "seconds") for n in sizes], **paint)
            if task != "request":
                right.plot(sizes, [median(pick(own, n=n), "peak_mib") for n in sizes], **paint)
        sizes = sorted({r["n"] for r in mine})
        files = [median(pick(mine, n=n), "file_mib") for n in sizes]
        right.plot(sizes, files, color=INK, linestyle=":", label="size of the file")
        left.set(xscale="log", yscale="log", xlabel="n, rows", ylabel="time")
        seconds_axis(left.yaxis)
        right.set(xscale="log", yscale="log", xlabel="n, rows", ylabel="memory above the idle process (MiB)")
        for axis in (left, right):
            axis.grid()
        threads = sorted({r.get("threads") for r in mine}, key=str)
        label = ", ".join(sorted({f"{d}, {s}" for d, s, _ in settings_of(mine)}))
        figure.suptitle(f"Streamed from a file: {label} rows, {', '.join(map(str, threads))} thread(s)")
        known = {n: h for axis in (left, right) for h, n in zip(*axis.get_legend_handles_labels(), strict=True)}
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def table_scale(records: list[Record]) -> tuple[list[str], list[list[Any]]]:
    """A line per n and task."""
    mine, rows = of_experiment(records, "scale"), []
    for setting in settings_of(mine):
        for task, (name, *_) in TASKS.items():
            own = pick(mine, dataset=setting[0], source=setting[1], n=setting[2], task=task)
            if own:
                rows.append(
                    [
                        dataset_label(*setting),
                        name,
                        seconds(median(own, "seconds")),
                        middle_cell(own, "rows_per_second", "{:,.0f}"),
                        middle_cell(own, "peak_mib", "{:,.0f}"),
                        middle_cell(own, "file_mib", "{:,.0f}"),
                    ]
                )
    return ["dataset", "task", "time", "rows per second", "peak memory (MiB)", "file (MiB)"], rows
