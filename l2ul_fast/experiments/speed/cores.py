"""How the parts of the work scale with threads: the runner starts one process for every number of threads.

Everything runs on HIGGS stand-in rows in memory. All tasks take turns, warmed up before, medians of repeats:
"request" (r = 1, the whole call with its bookkeeping), "request 1000" (the same with r = 1000 or a hundredth of the
rows), "kme" (cell_counts of all rows, t = 100, psi = 4), "pairs" (m pairs of s rows), "retrain" (cold, to 1e-10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from l2ul_fast.experiments.inputs import standin_rows
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, register
from l2ul_fast.measure.records import Record, info
from l2ul_fast.measure.timing import interleave
from l2ul_fast.tables import ArrayTable

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
    from l2ul_fast.baselines import Retrain
    from l2ul_fast.models import LogisticModel
    from l2ul_fast.unlearner.l2ul import L2UL
    from l2ul_fast.unlearner.pairs.plan import draw_pairs
    from l2ul_kernels import Partitions, cell_counts

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
    from l2ul_fast.baselines.l2ul import quiet

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
            "source": "stand-in",
            "d": table.d,
            "model": "lr",
            "seconds": spent.median,
            "spread": spent.spread,
            "repeats": numbers["repeats"],
            "rate": amount / spent.median,
            "unit": f"{unit}/s",
        } | ({"answer_seconds": spent.median} if cell["r"] or task == "retrain" else {})


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
        figure="l2ul_fast.report.figures.cores:FIGURE",
        fields={"rate": info("work done per second"), "unit": info("of the rate", (str,))},
        datasets=("higgs",),
        order=90,
        each_thread_count=False,
    )
)
