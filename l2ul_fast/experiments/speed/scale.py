"""Time and peak memory against the number of rows, up to HIGGS's 11 million, everything streamed from one file.

The rows are the HIGGS stand-in, of which a smaller one is the beginning of a larger. Each n is measured in a process of
its own that has done all tasks once on the smallest file before, so that kernels are loaded and pools started.
Tasks: "kme" (counts of all rows), "retrain" (cold, streamed, without one row), "fit" (of L2UL: the model and sums of
derivatives), "request" (r = 1, median of `requests` calls after the fit). All rows of the file are trained on. Peak
memory is sampled every two milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from l2ul_fast.errors import UserError
from l2ul_fast.experiments.inputs import standin_file
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, register
from l2ul_fast.experiments.speed.cores import TASK_STYLES, named
from l2ul_fast.measure.records import Record, info, metric
from l2ul_fast.measure.timing import Times, once
from l2ul_fast.report.figure import Figure
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

D = 28
#: task -> the method it is recorded under.
TASKS = {"kme": "kme", "retrain": "retrain", "fit": "l2ul-expansion", "request": "l2ul-expansion"}
#: Repeats are as many as fit this many rows, from one to five.
ROWS = 2_000_000
CODE = "import sys; from l2ul_fast.experiments.speed.scale import worker; worker(sys.argv[1])"


class Peak:
    """Memory of this process while a block runs: `mib` above `idle`, the resident size before it."""

    def __init__(self, idle: float) -> None:
        self.idle, self.mib = idle, 0.0
        self._stop = threading.Event()

    @staticmethod
    def resident() -> float:
        import psutil

        return float(psutil.Process().memory_info().rss) / 2**20

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.mib = max(self.mib, self.resident() - self.idle)

    def __enter__(self) -> Peak:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self.mib = max(0.0, self.mib, self.resident() - self.idle)


def tasks_of(path: Path, plan: Record) -> dict[str, Callable[[], Any]]:
    """The tasks on one file. "request" is a list of seconds, and needs "fit" before it."""
    from l2ul_fast.baselines import Retrain
    from l2ul_fast.datasets.stream.stream import sample_partitions, stream_counts
    from l2ul_fast.models import LogisticModel
    from l2ul_fast.tables import FileTable
    from l2ul_fast.unlearner.l2ul import L2UL

    partitions = sample_partitions(path, random_state=plan["seed"])
    table = FileTable(path, "all")
    held: dict[str, L2UL] = {}

    def fit() -> None:
        held["u"] = L2UL("lr", random_state=plan["seed"]).fit(path, part="all")

    def request() -> list[float]:
        u, few = held["u"], min(plan["requests"], table.n // 20)
        rows = np.random.default_rng([plan["seed"], 63]).permutation(table.n)[: 2 * few].tolist()
        for row in rows[:few]:
            u.unlearn([row])
        return [once(lambda row=row: u.unlearn([row])) for row in rows[few:]]  # type: ignore[misc]

    return {
        "kme": lambda: stream_counts(path, partitions, by_class=True),
        "retrain": lambda: Retrain().prepare(table.without(np.array([0])), LogisticModel(table.d), plan["seed"]),
        "fit": fit,
        "request": request,
    }


def worker(text: str) -> None:
    """Measure the plan in `text` (JSON) and print one JSON object per task. Runs in a process of its own."""
    from l2ul_kernels import threads

    plan = json.loads(text)
    with threads(plan["threads"]):
        for call in tasks_of(Path(plan["small"]), plan | {"requests": 20}).values():
            call()
        idle = Peak.resident()
        tasks = tasks_of(Path(plan["large"]), plan)
        repeats = int(np.clip(ROWS // plan["n"], 1, 5))
        for task, call in tasks.items():
            seconds = []
            with Peak(idle) as peak:
                if task == "request":
                    seconds = call()
                else:
                    seconds = [once(call) for _ in range(1 if task == "fit" else repeats)]
            print(
                json.dumps({"task": task, **Times(seconds).facts, "peak_mib": peak.mib, "idle_mib": idle}), flush=True
            )


def jobs(context: Context) -> Iterator[Job]:
    """A process for each n."""
    for n in context.numbers["n"]:
        common = {"dataset": "higgs", "n": n, "model": "lr", "seed": context.seed}
        cells = tuple(
            {**common, "task": task, "method": method, "r": 1 if task == "request" else None}
            for task, method in TASKS.items()
        )
        yield Job(f"{n:,} rows", cells, partial(measure, context), seconds=4.0 + n / 100_000)


def measure(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """All tasks in a process of its own; those of the cells are recorded."""
    n, numbers = cells[0]["n"], context.numbers
    small, large = (standin_file("higgs", rows, context.data_dir) for rows in (min(numbers["n"]), n))
    plan = {"small": str(small), "large": str(large), "n": n, "threads": context.threads, "seed": context.seed}
    plan["requests"] = numbers["requests"]
    ended = subprocess.run([sys.executable, "-c", CODE, json.dumps(plan)], capture_output=True, text=True)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        raise UserError(f"measuring {n:,} rows failed: {lines[-1] if lines else f'exit code {ended.returncode}'}")
    found = {facts["task"]: facts for facts in map(json.loads, ended.stdout.splitlines())}
    for cell in cells:
        facts = found[cell["task"]]
        record: Record = {"source": "stand-in", "d": D, **facts, "file_mib": large.stat().st_size / 2**20}
        if cell["task"] in ("request", "retrain"):
            record["answer_seconds"] = facts["seconds"]
        if cell["task"] != "request":
            record["rows_per_second"] = n / facts["seconds"]
        yield {**cell, **record}


# Report --------------------------------------------------------------------------------------------------------------


COLUMNS = {
    "time": timed("seconds"),
    "rows per second": middle("rows_per_second", "{:,.0f}"),
    "peak memory (MiB)": middle("peak_mib", "{:,.0f}"),
    "file (MiB)": middle("file_mib", "{:,.0f}"),
}


def shown_tables(records: list[Record]) -> list[Table]:
    mine = named(one_thread_count(records))
    return [table_of("Time and memory by number of rows", mine, {"data": "dataset", "task": "task"}, COLUMNS, block=1)]


def shown_plots(records: list[Record]) -> list[Drawing]:
    """Left: seconds against n. Right: peak memory against n, beside the file's size."""
    mine = select(one_thread_count(records), failed=None)
    sizes = sorted({r["n"] for r in mine if r.get("n")})
    if not sizes:
        return []
    with drawing_style():
        figure, grid = subplots(1, 2, figsize=(11, 5))
        left, right = grid[0]
        for task, (name, colour, marker) in TASK_STYLES.items():
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


FIGURE = Figure(shown_tables, shown_plots)


register(
    Experiment(
        name="scale",
        title="Time and memory by n",
        help="Time and memory against n.",
        profiles={
            "tiny": {"n": (1000, 3000), "requests": 5},
            "quick": {"n": (10_000, 100_000, 500_000), "requests": 100},
            "paper": {"n": (10_000, 100_000, 1_000_000, 11_000_000), "requests": 1000},
            "full": {"n": (10_000, 100_000, 1_000_000, 11_000_000), "requests": 10_000},
        },
        jobs=jobs,
        figure=FIGURE,
        fields={
            "peak_mib": metric("peak memory of the task above idle_mib", "MiB"),
            "idle_mib": info("memory of the process after the warm-up", unit="MiB"),
            "file_mib": info("size of the file", unit="MiB"),
        },
        datasets=("higgs",),
        order=100,
    )
)
