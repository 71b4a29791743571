"""`l2ul bench unlearn`: latency of a request, cost of training pairs, and whether it really unlearns.

Real datasets are used where their original files are found, stand-ins otherwise; every record says which.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from l2ul_fast.errors import DataError
from l2ul_fast.experiments import pairs_lr, pairs_mlp, unlearn_latency, unlearn_quality
from l2ul_fast.experiments.jobs import some_rows
from l2ul_fast.results import Record, Run
from l2ul_fast.tables import ArrayTable, FileTable, in_memory
from l2ul_kernels.threads import thread_limit

ALL = ("magic", "adult", "sepsis", "skin", "covtype", "susy", "higgs")
#: The MLP's table; the others add nothing but time.
MLP = ("magic", "adult", "covtype", "higgs")
#: Rows, repeats, draws and pairs by profile. quick is for a look, full is what the documentation quotes.
PROFILES: dict[str, dict[str, Any]] = {
    "quick": {"rows": 8_000, "latency_rows": 100_000, "repeats": 5, "draws": 3, "cold": 1, "m": 200,
              "fit_rows": 100_000},
    "full": {"rows": None, "latency_rows": 1_000_000, "repeats": 11, "draws": 10, "cold": 10, "m": 1000,
             "fit_rows": 1_000_000},
}  # fmt: skip
#: Rows of the MLP's training sets at most; beyond, exact retrains from the anchor take minutes.
MLP_ROWS = 60_000
#: Features above which only two requests of each kind are also retrained from the anchor: each takes many seconds.
WIDE = 40
PARTS = ("latency", "pairs", "fit", "quality-lr", "quality-mlp", "sequence")

Progress = Callable[[str, int, int], None]


def tables_of(name: str, raw_dir: Path | None, rows: int | None, folder: Path) -> tuple[str, ArrayTable, ArrayTable]:
    """(label, training rows, test rows) of a dataset in memory: the real one if its files are there."""
    from l2ul_fast.datasets.convert import convert
    from l2ul_fast.datasets.standin import make

    try:
        path = convert(name, raw_dir, folder)
    except DataError:
        path = make(name, rows or 60_000, 0, folder)
    train = FileTable(path, "train")
    label = train.label
    both = []
    for part, share in ((train, 0.8), (FileTable(path, "test"), 0.2)):
        table = in_memory(part)
        part.close()
        both.append(some_rows(table, None if rows is None else max(100, int(rows * share))))
    return label, both[0], both[1]


def measure_fit(n: int, m: int, threads: int) -> Iterator[Record]:
    """Where the time of a whole `.fit` goes, beside its pair generation."""
    from l2ul_fast.unlearner.l2ul import L2UL

    X, y = unlearn_latency.rows_of_higgs(n)
    L2UL("lr", m=5, s=1000).fit(X[:5000], y[:5000])  # loads the kernels
    begin = time.perf_counter()
    u = L2UL("lr", m=m).fit(X, y)
    seconds = time.perf_counter() - begin
    parts = u.report_["seconds"]
    yield {
        "experiment": "fit", "dataset": "higgs", "source": "stand-in", "n": n, "d": X.shape[1], "model": "lr",
        "method": "l2ul", "threads": threads, "seconds": seconds, "pairs_seconds": parts["pairs"], "parts": parts,
        "ratio": seconds / parts["pairs"], "m": len(u.learned.pairs) if u.learned.pairs is not None else m,
    }  # fmt: skip


def run_all(
    run: Run,
    profile: str = "quick",
    raw_dir: Path | None = None,
    only: tuple[str, ...] = PARTS,
    datasets: tuple[str, ...] = ALL,
    progress: Progress = lambda what, done, total: None,
) -> None:
    """Everything `run` does not hold yet."""
    facts, k = PROFILES[profile], thread_limit()
    jobs: list[tuple[dict[str, Any], Callable[[], Any]]] = []
    if "latency" in only:
        jobs.append(
            ({"experiment": "latency"}, lambda: unlearn_latency.measure(facts["latency_rows"], facts["repeats"]))
        )
    if "pairs" in only:
        jobs.append(
            ({"experiment": "pairs-lr"}, lambda: pairs_lr.measure(facts["m"], 1000, 28, k, min(5, facts["repeats"])))
        )
        jobs.append(({"experiment": "pairs_mlp"}, lambda: pairs_mlp.measure(facts["m"], 3000, 28, k, 3)))
    if "fit" in only:
        jobs.append(({"experiment": "fit"}, lambda: measure_fit(facts["fit_rows"], facts["m"], k)))
    with tempfile.TemporaryDirectory(dir=run.folder) as name:
        folder = Path(name)
        for dataset in datasets:
            for model in ("lr", "mlp"):
                wanted = "quality-lr" in only if model == "lr" else "quality-mlp" in only and dataset in MLP
                if wanted:
                    key = {"experiment": "unlearn-quality", "dataset": dataset, "model": model}
                    jobs.append((key, partial(_quality, dataset, model, raw_dir, facts, folder)))
            if "sequence" in only and dataset in MLP:
                key = {"experiment": "sequence", "dataset": dataset}
                jobs.append((key, partial(_sequence, dataset, raw_dir, facts, folder)))
        for done, (key, measure) in enumerate(jobs):
            progress(" ".join(map(str, key.values())), done, len(jobs))
            if not run.has(**key):
                for record in list(measure()):  # all of a job or none: it is repeated if it was not finished
                    run.append(record | {"profile": profile})
        progress("done", len(jobs), len(jobs))


def _quality(name: str, model: str, raw_dir: Path | None, facts: dict[str, Any], folder: Path) -> Iterator[Record]:
    label, train, test = tables_of(name, raw_dir, facts["rows"], folder)
    if model == "lr":
        return unlearn_quality.measure_lr(name, label, train, test, draws=facts["draws"])
    train = some_rows(train, MLP_ROWS)
    cold = facts["cold"] if train.d <= WIDE else min(2, facts["cold"])
    return unlearn_quality.measure_mlp(name, label, train, test, draws=facts["draws"], cold_draws=cold)


def _sequence(name: str, raw_dir: Path | None, facts: dict[str, Any], folder: Path) -> Iterator[Record]:
    label, train, _ = tables_of(name, raw_dir, facts["rows"], folder)
    yield from unlearn_quality.measure_sequence(name, label, train, "lr")
    few = some_rows(train, MLP_ROWS)
    yield from unlearn_quality.measure_sequence(name, label, few, "mlp")
