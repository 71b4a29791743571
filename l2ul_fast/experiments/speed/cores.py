"""How the parts of the work scale with threads.

A process measures at the setting's number of threads; the caller starts one process per number, and the report puts
their records side by side.

Everything runs on HIGGS stand-in rows in memory. All tasks take turns, warmed up before, medians of repeats.
One record per (task, threads):
  dataset "higgs", source "stand-in", n, d, model "lr", seed, threads
  task: "request" (r = 1, the whole call with its bookkeeping), "request 1000" (the same with r = 1000 or a hundredth
    of the rows), "kme" (cell_counts of all rows, t = 100, psi = 4), "pairs" (m pairs of s rows), "retrain" (cold, to
    1e-10)
  method: l2ul-expansion for the requests, else the task
  seconds, spread (interquartile range over median); unlearn_seconds: the same for requests and retrain
  rate, unit: work per second (requests, rows, pairs)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from l2ul_fast.baselines import Retrain
from l2ul_fast.datasets.standin.rows import generate
from l2ul_fast.experiments.contenders import DEFAULT, quiet
from l2ul_fast.experiments.jobs import Done, Job, Setting
from l2ul_fast.experiments.scoring import Numbers, numbers_of, pinned
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import interleave
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.pairs.plan import draw_pairs
from l2ul_kernels import Partitions, cell_counts

PROFILES: dict[str, Numbers] = {
    "quick": {"n": 200_000, "m": 100, "s": 1000, "repeats": 5, "calls": 50},
    "paper": {"n": 2_000_000, "m": 1000, "s": 1000, "repeats": 11, "calls": 200},
    "full": {"n": 5_000_000, "m": 1000, "s": 3000, "repeats": 21, "calls": 200},
}
TASKS = ("request", "request 1000", "kme", "pairs", "retrain")
R = 1000


def standin_rows(n: int) -> ArrayTable:
    """Standardised rows of the HIGGS stand-in."""
    X, y = generate("higgs", 0, n, n, 3)
    return ArrayTable(((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32), y, [0, 1])


def calls_of(table: ArrayTable, numbers: Numbers, seed: int) -> dict[str, Callable[[], object]]:
    """One call per task; a request takes rows that are still there, as many as it says."""
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


def measure(setting: Setting, numbers: Numbers, done: Done) -> Iterator[Record]:
    todo = [task for task in TASKS if not done(task=task, n=numbers["n"])]
    if not todo:
        return
    table = standin_rows(numbers["n"])
    calls = {task: call for task, call in calls_of(table, numbers, setting.seed).items() if task in todo}
    inner = {"request": numbers["calls"], "request 1000": max(1, numbers["calls"] // 10)}
    with quiet():
        for task, call in calls.items():
            for _ in range(inner.get(task, 1)):
                call()
        times = interleave(calls, numbers["repeats"], inner)
    work = {"kme": (table.n, "rows"), "pairs": (numbers["m"], "pairs"), "retrain": (table.n, "rows")}
    for task in todo:
        amount, unit = work.get(task, (1, "requests"))
        request = task.startswith("request")
        record: Record = {
            "dataset": "higgs",
            "source": "stand-in",
            "n": table.n,
            "d": table.d,
            "model": "lr",
            "task": task,
            "method": DEFAULT if request else task,
            "r": {"request": 1, "request 1000": R}.get(task),
            "seed": setting.seed,
            "threads": setting.threads,
            "seconds": times[task].median,
            "spread": times[task].spread,
            "rate": amount / times[task].median,
            "unit": f"{unit}/s",
        }
        if request or task == "retrain":
            record["unlearn_seconds"] = times[task].median
        yield record


def jobs(setting: Setting) -> list[Job]:
    numbers = numbers_of(setting, "cores", PROFILES)

    def run(done: Done) -> Iterator[Record]:
        return measure(setting, numbers, done)

    return [Job("cores", f"{setting.threads} thread(s)", pinned(setting, run), 5.0)]
