"""How the parts of the work scale with threads: the runner starts one process for every number of threads.

Everything runs on HIGGS stand-in rows in memory. All tasks take turns, warmed up before, medians of repeats:
"request" (r = 1, the whole call with its bookkeeping), "request 1000" (the same with r = 1000 or a hundredth of the
rows), "kme" (cell_counts of all rows, t = 100, psi = 4), "pairs" (m pairs of s rows), "retrain" (cold, to 1e-10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from l2ul_fast.baselines import Retrain
from l2ul_fast.baselines.l2ul import quiet
from l2ul_fast.experiments.inputs import standin_rows
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, register
from l2ul_fast.measure.records import Record, info
from l2ul_fast.measure.timing import interleave
from l2ul_fast.models import LogisticModel
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import BLUE, GREEN, INK, ORANGE, PINK, YELLOW, drawing_style, legend, seconds_axis, subplots
from l2ul_fast.report.values import Cell as TableCell
from l2ul_fast.report.values import (
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
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.pairs.plan import draw_pairs
from l2ul_kernels import Partitions, cell_counts

#: task -> the method it is recorded under.
TASKS = {
    "request": "l2ul-expansion",
    "request 1000": "l2ul-expansion",
    "kme": "kme",
    "pairs": "pairs",
    "retrain": "retrain",
}
R = 1000


def jobs(context: Context) -> Iterator[Job]:
    """All tasks of this number of threads."""
    n = context.numbers["n"]
    sizes = {"request": 1, "request 1000": min(R, n // 100)}
    cells = tuple(
        {"dataset": "higgs", "n": n, "task": task, "method": method, "r": sizes.get(task), "seed": context.seed}
        for task, method in TASKS.items()
    )
    yield Job(f"{context.threads} thread(s)", cells, partial(measure, context), seconds=5.0)


def calls_of(table: ArrayTable, context: Context) -> dict[str, Callable[[], object]]:
    """One call per task; a request takes rows that are still there, as many as it says."""
    numbers, seed = context.numbers, context.seed
    rng = np.random.default_rng([seed, 61])
    u = L2UL("lr", random_state=seed).fit(table.X, table.y)
    model = LogisticModel(table.d)
    partitions = Partitions.sample(table.X, random_state=seed)
    ids, n_forget, _ = draw_pairs(table.n, table.y, numbers["m"], numbers["s"], random_state=[seed, 62])
    order, r = rng.permutation(table.n), min(R, table.n // 100)
    half = table.n // 2
    singles, sets = iter(order[:half].tolist()), iter(order[half : half + half // r * r].reshape(-1, r))

    return {
        "request": lambda: u.unlearn([next(singles)]),
        "request 1000": lambda: u.unlearn(next(sets)),
        "kme": lambda: cell_counts(table.X, partitions),
        "pairs": lambda: model.fit_pairs(table.X, table.y, ids, n_forget),
        "retrain": lambda: Retrain().prepare(table, model, seed),
    }


def measure(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Medians of all tasks in turn."""
    numbers, table = context.numbers, standin_rows(context.numbers["n"])
    every = calls_of(table, context)
    calls = {cell["task"]: every[cell["task"]] for cell in cells}
    inner = {"request": numbers["calls"], "request 1000": max(1, numbers["calls"] // 10)}
    with quiet():
        for task, call in calls.items():
            for _ in range(inner.get(task, 1)):
                call()
        times = interleave(calls, numbers["repeats"], inner)
    work = {"kme": (table.n, "rows"), "pairs": (numbers["m"], "pairs"), "retrain": (table.n, "rows")}
    for cell in cells:
        task, spent = cell["task"], times[cell["task"]]
        amount, unit = work.get(task, (1, "requests"))
        yield {
            **cell,
            **{"source": "stand-in", "d": table.d, "model": "lr"},
            **spent.facts,
            **{"rate": amount / spent.median, "unit": f"{unit}/s"},
            **({"answer_seconds": spent.median} if cell["r"] or task == "retrain" else {}),
        }


# Report --------------------------------------------------------------------------------------------------------------


TASK_STYLES = {
    "request": ("one request, r = 1", BLUE, "*"),
    "request 1000": ("one request, r = 1000", PINK, "o"),
    "kme": ("embedding of all rows (KME)", GREEN, "^"),
    "pairs": ("training pairs", YELLOW, "D"),
    "fit": ("fit of the unlearner", ORANGE, "v"),
    "retrain": ("Retrain", INK, "s"),
}


def named(records: list[Record]) -> list[Record]:
    """Records with the task in words, in the order of the legend."""
    order = [*TASK_STYLES, *sorted({str(r.get("task")) for r in records} - set(TASK_STYLES))]
    found = [
        {**r, "task": TASK_STYLES.get(r["task"], (r["task"],))[0], "_": order.index(r["task"])}
        for r in records
        if r.get("task")
    ]
    return sorted(found, key=lambda r: r["_"])


def _largest(records: list[Record]) -> list[Record]:
    """Records of the largest n only: thread counts are compared on one size."""
    return select(records, n=max((r["n"] for r in records if r.get("n")), default=None), failed=None)


def _counts(records: list[Record]) -> list[int]:
    return sorted({r["threads"] for r in records if r.get("threads")})


def shown_tables(records: list[Record]) -> list[Table]:
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


def _rate(own: list[Record]) -> TableCell:
    rate = median(own, "rate")
    return TableCell("–", None) if rate is None else TableCell(f"{number_text(rate)} {own[0].get('unit', '')}", rate)


def shown_plots(records: list[Record]) -> list[Drawing]:
    """Left: seconds by threads. Right: times faster than with the fewest. None for one count alone."""
    mine = _largest(records)
    counts = _counts(mine)
    if len(counts) < 2:
        return []
    with drawing_style():
        figure, grid = subplots(1, 2, figsize=(11, 5))
        left, right = grid[0]
        for task, (name, colour, marker) in TASK_STYLES.items():
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


FIGURE = Figure(shown_tables, shown_plots)


register(
    Experiment(
        name="cores",
        title="Scaling by cores",
        help="Latency, embedding, pairs and Retrain by thread count.",
        profiles={
            "tiny": {"n": 3_000, "m": 10, "s": 200, "repeats": 2, "calls": 3},
            "quick": {"n": 200_000, "m": 100, "s": 1000, "repeats": 5, "calls": 50},
            "paper": {"n": 2_000_000, "m": 1000, "s": 1000, "repeats": 11, "calls": 200},
            "full": {"n": 5_000_000, "m": 1000, "s": 3000, "repeats": 21, "calls": 200},
        },
        jobs=jobs,
        figure=FIGURE,
        fields={"rate": info("work done per second"), "unit": info("of the rate", (str,))},
        datasets=("higgs",),
        order=90,
    )
)
