"""`l2ul bench unlearn`: what the unlearning core promises, measured.

    identity        are the sums after requests, bit for bit, those of somebody who never had the rows?
    rho-lr, rho-mlp how far is the answer from a true retrain, by kind of request, and does its estimate of that hold?
    grid            what the widths of the grid trade: rho of one row for requests that leave a pass due
    latency         one row beside an expert's Newton step and torch; a long stream; a durable request
    times           until the answer is usable, and until the rows are erased, of every head beside Retrain
    slow-down       requests chosen to make the server work
    reconstruction  what every known attack gets out of a saved directory
    fit             what third derivatives cost at the fit
    pairs           training pairs of the learned heads beside scikit-learn and torch

Real datasets are used where their files are found, stand-ins otherwise; every record says which. Records are appended
as they are measured, and a run that is started again leaves out what it already has.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from l2ul_fast.datasets.file.layout import default_data_dir
from l2ul_fast.errors import UserError
from l2ul_fast.experiments.contenders import DEFAULT, HEADS
from l2ul_fast.experiments.jobs import DATASETS, Done, Job, Setting, dataset_file, run_jobs, some_rows
from l2ul_fast.experiments.quality import heads as unlearn_quality
from l2ul_fast.experiments.quality import identity as unlearn_identity
from l2ul_fast.experiments.speed import pairs_lr, pairs_mlp
from l2ul_fast.experiments.speed import requests as unlearn_latency
from l2ul_fast.measure.records import Record, Run
from l2ul_kernels.threads import thread_limit

ALL = DATASETS
PARTS = ("identity", "rho-lr", "rho-mlp", "grid", "latency", "times", "slow-down", "reconstruction", "fit", "pairs")
#: quick is for a look, full is what the documentation quotes.
#: parts, datasets: those that are run when none are named. rows: of a dataset in all at most; the real ones have fewer.
#: mlp: (dataset, rows in all); higgs with 20,000 is the size the goals of its times are for. cases: of identity; draws:
#: of every kind of request. latency: {shape: rows}, rounds of 100 calls each. attacked: rows of a reconstructed model.
PROFILES: dict[str, dict[str, Any]] = {
    "quick": {
        "parts": tuple(part for part in PARTS if part != "pairs"),
        "datasets": ("magic", "adult"),
        "rows": 40_000,
        "cases": 5,
        "draws": 3,
        "mlp": (("magic", 20_000),),
        "mlp_draws": 1,
        "latency": {"magic": 19_000, "higgs": 40_000},
        "rounds": 20,
        "stream": 20_000,
        "stream_rows": 60_000,
        "durable": (10_000, 100_000),
        "durable_draws": 20,
        "times": {"lr": ("magic",), "mlp": ("magic",)},
        "heads": (DEFAULT,),
        "sizes": (1, 100),
        "times_draws": 2,
        "m": 200,
        "slow": ("magic",),
        "requests": 1000,
        "attacked": 1_500,
        "attacks": 1,
        "attacked_models": ("lr",),
        "scenes": (unlearn_identity.SAVED,),
        "fit_rows": 200_000,
        "sums_rows": 100_000,
        "repeats": 3,
        "pairs": 200,
    },
    "full": {
        "parts": PARTS,
        "datasets": DATASETS,
        "rows": 600_000,
        "cases": 20,
        "draws": 10,
        "mlp_draws": 10,
        "mlp": (("magic", 600_000), ("adult", 600_000), ("higgs", 600_000), ("higgs", 20_000), ("covtype", 25_000)),
        "latency": {"magic": 19_000, "higgs": 1_000_000, "covtype": 200_000, "sepsis": 40_000},
        "rounds": 100,
        "stream": 100_000,
        "stream_rows": 1_000_000,
        "durable": (10_000, 100_000, 1_000_000),
        "durable_draws": 100,
        "times": {"lr": ("magic", "higgs"), "mlp": ("magic",)},
        "sizes": (1, 100, 1000),
        "heads": tuple(HEADS),
        "times_draws": 5,
        "m": 1000,
        "slow": ("magic", "adult", "skin", "susy", "higgs"),
        "requests": 1000,
        "attacked": 3_000,
        "attacks": 3,
        "attacked_models": ("lr", "mlp"),
        "scenes": unlearn_identity.SCENES,
        "fit_rows": 11_000_000,
        "sums_rows": 1_000_000,
        "repeats": 5,
        "pairs": 1000,
    },
}
#: Bytes of rows above which only a quarter of the identity's cases are run: each saves two directories.
LARGE = 40_000_000

Progress = Callable[[str, int, int], None]


def available(model: str, head: str = "expansion") -> bool:
    """Whether the head is there; else a warning says that it is left out."""
    module = "secant" if model == "mlp" and head == "expansion" else head
    if find_spec(f"l2ul_fast.unlearner.heads.{module}") is not None:
        return True
    warnings.warn(f"the head {head!r} of {model!r} is left out: heads/{module}.py does not exist yet", stacklevel=2)
    return False


def run_all(
    run: Run,
    profile: str = "quick",
    raw_dir: Path | None = None,
    only: tuple[str, ...] | None = None,
    datasets: tuple[str, ...] | None = None,
    progress: Progress = lambda what, done, total: None,
    *,
    data_dir: Path | None = None,
    rows: int | None = None,
    numbers: dict[str, Any] | None = None,
) -> int:
    """Measure everything that `run` does not hold yet; returns how many records are new.

    Parameters
    ----------
    only, datasets : tuples of str, optional
        Parts and datasets; those of the profile if None or all are named.
    raw_dir, data_dir : paths, optional
        Original files; HDF5 files (default: L2UL_DATA_DIR, or data/), found there or made.
    rows : int, optional
        Rows of the file that the whole fit is timed on (default: by profile).
    numbers : dict, optional
        Replaces numbers of the profile.
    """
    if profile not in PROFILES:
        raise UserError(f"the profile must be one of {', '.join(PROFILES)}, got {profile!r}")
    facts = PROFILES[profile] | (numbers or {})
    if rows is not None:
        facts = facts | {"fit_rows": rows}
    parts = facts["parts"] if only is None or set(only) == set(PARTS) else only
    names = facts["datasets"] if datasets is None or set(datasets) == set(ALL) else datasets
    setting = Setting(profile, facts, tuple(names), data_dir or default_data_dir(), raw_dir, thread_limit(), seed=1)
    with tempfile.TemporaryDirectory(dir=run.folder) as scratch:
        return run_jobs(run, jobs(setting, tuple(parts), Path(scratch)), setting, progress)


def jobs(setting: Setting, parts: tuple[str, ...], scratch: Path) -> list[Job]:
    """The jobs of these parts; scratch is for directories that are saved and deleted."""
    makers: dict[str, Callable[[Setting, Path], Iterator[Job]]] = {
        "identity": _identity,
        "rho-lr": _rho_lr,
        "rho-mlp": _rho_mlp,
        "grid": _grid,
        "latency": _latency,
        "times": _times,
        "slow-down": _slow,
        "reconstruction": _reconstruction,
        "fit": _fit,
        "pairs": _pairs,
    }
    return [job for part in parts for job in makers[part](setting, scratch)]


def _identity(setting: Setting, scratch: Path) -> Iterator[Job]:
    facts = setting.facts
    for name in setting.datasets:

        def measure(done: Done, name: str = name) -> Iterator[Record]:
            label, train, test = setting.tables(name, facts["rows"])
            cases = facts["cases"] if train.X.nbytes <= LARGE else -(-facts["cases"] // 4)
            return unlearn_identity.measure(name, label, train, test, cases, scratch, done, setting.seed)

        yield Job(unlearn_identity.IDENTITY, name, measure, 3.0)


def _rho_lr(setting: Setting, scratch: Path) -> Iterator[Job]:
    facts = setting.facts
    for name in setting.datasets:

        def measure(done: Done, name: str = name) -> Iterator[Record]:
            label, train, _ = setting.tables(name, facts["rows"])
            return unlearn_quality.measure(name, label, train, "lr", facts["draws"], done, setting.seed)

        yield Job(unlearn_quality.RHO, f"{name} lr", measure, 3.0 * facts["draws"])


def _rho_mlp(setting: Setting, scratch: Path) -> Iterator[Job]:
    facts = setting.facts
    chosen = [(name, rows) for name, rows in facts["mlp"] if name in setting.datasets]
    if not chosen or not available("mlp"):
        return
    for name, rows in chosen:

        def measure(done: Done, name: str = name, rows: int = rows) -> Iterator[Record]:
            label, train, _ = setting.tables(name, rows)
            return unlearn_quality.measure(name, label, train, "mlp", facts["mlp_draws"], done, setting.seed)

        yield Job(unlearn_quality.RHO, f"{name} {rows} mlp", measure, 15.0 * facts["mlp_draws"])


def _grid(setting: Setting, scratch: Path) -> Iterator[Job]:
    facts = setting.facts
    for name in setting.datasets:

        def measure(done: Done, name: str = name) -> Iterator[Record]:
            label, train, _ = setting.tables(name, facts["rows"])
            return unlearn_quality.measure_grid(name, label, train, facts["draws"], done, setting.seed)

        yield Job(unlearn_quality.GRID, name, measure, 1.0 * facts["draws"])


def _latency(setting: Setting, scratch: Path) -> Iterator[Job]:
    facts = setting.facts
    for name, n in facts["latency"].items():

        def one(done: Done, name: str = name, n: int = n) -> Iterator[Record]:
            return unlearn_latency.measure_latency(name, n, facts["rounds"], name == "higgs", done)

        yield Job(unlearn_latency.LATENCY, name, one, 10.0)

    def flat(done: Done) -> Iterator[Record]:
        return unlearn_latency.measure_flat(facts["stream_rows"], facts["stream"], done)

    yield Job(unlearn_latency.FLAT, "stream", flat, 5.0)
    for n in facts["durable"]:

        def durable(done: Done, n: int = n) -> Iterator[Record]:
            return unlearn_latency.measure_durable(n, facts["durable_draws"], scratch, done)

        yield Job(unlearn_latency.DURABLE, str(n), durable, 3.0)


def _times(setting: Setting, scratch: Path) -> Iterator[Job]:
    facts = setting.facts
    for model, chosen in facts["times"].items():
        for name in (name for name in chosen if name in setting.datasets):

            def measure(done: Done, name: str = name, model: str = model) -> Iterator[Record]:
                label, train, _ = setting.tables(name, facts["rows"])
                if model == "mlp":
                    train = some_rows(train, 60_000)
                return unlearn_latency.measure_times(
                    name,
                    label,
                    train,
                    model,
                    facts["heads"],
                    facts["m"],
                    facts["sizes"],
                    facts["times_draws"],
                    scratch,
                    available,
                    done,
                    setting.seed,
                )

            yield Job(unlearn_latency.TIMES, f"{name} {model}", measure, 10.0 if model == "lr" else 30.0)


def _slow(setting: Setting, scratch: Path) -> Iterator[Job]:
    facts = setting.facts
    for name in (name for name in facts["slow"] if name in setting.datasets):

        def measure(done: Done, name: str = name) -> Iterator[Record]:
            label, train, _ = setting.tables(name, facts["rows"])
            return unlearn_latency.measure_slow(name, label, train, facts["requests"], done, setting.seed)

        yield Job(unlearn_latency.SLOW, name, measure, 5.0)


def _reconstruction(setting: Setting, scratch: Path) -> Iterator[Job]:
    facts, name = setting.facts, setting.datasets[0]
    if find_spec("l2ul_fast.unlearner.reconstruct") is None:
        warnings.warn("reconstruction is left out: unlearner/reconstruct does not exist yet", stacklevel=2)
        return
    for subject in unlearn_identity.SUBJECTS:
        if subject.model not in facts["attacked_models"] or not available(subject.model, subject.head):
            continue

        def measure(done: Done, subject: unlearn_identity.Subject = subject) -> Iterator[Record]:
            label, train, _ = setting.tables(name, facts["rows"])
            path = dataset_file(name, facts["rows"], setting.raw_dir, setting.folder)
            return unlearn_identity.measure_reconstruction(
                subject,
                name,
                label,
                some_rows(train, facts["attacked"]),
                path,
                facts["m"],
                facts["attacks"],
                facts["scenes"],
                scratch,
                done,
                setting.seed,
            )

        title = f"{subject.model} {subject.method} {subject.how}"
        yield Job(unlearn_identity.RECONSTRUCTION, title, measure, 3.0 if subject.model == "lr" else 15.0)


def _fit(setting: Setting, scratch: Path) -> Iterator[Job]:
    facts = setting.facts

    def whole(done: Done) -> Iterator[Record]:
        path = dataset_file("higgs", facts["fit_rows"], setting.raw_dir, setting.folder, complete=True)
        return unlearn_latency.measure_fit(path, facts["repeats"], done)

    def sums(done: Done) -> Iterator[Record]:
        return unlearn_latency.measure_sums(facts["sums_rows"], facts["repeats"], done)

    yield Job(unlearn_latency.FIT, f"file {facts['fit_rows']}", whole, 1e-5 * facts["fit_rows"])
    yield Job(unlearn_latency.FIT, "sums", sums, 5.0)


def _pairs(setting: Setting, scratch: Path) -> Iterator[Job]:
    facts, k = setting.facts, setting.threads

    def lr(done: Done) -> Iterator[Record]:
        if not done():
            yield from pairs_lr.measure(facts["pairs"], 1000, 28, k, facts["repeats"])

    def mlp(done: Done) -> Iterator[Record]:
        if not done():
            yield from pairs_mlp.measure(facts["pairs"], 3000, 28, k, 3)

    yield Job("pairs-lr", "pairs", lr, 30.0)
    yield Job("pairs_mlp", "pairs", mlp, 120.0)
