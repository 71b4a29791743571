"""`l2ul bench all | lr mlp ... | baselines` and `l2ul reproduce`: the paper's experiments in one resumable run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from l2ul_fast.cli.bench import app, shower, start, stderr, thread_list, words
from l2ul_fast.errors import UserError

#: Command -> what its help says. `all` is every experiment but `baselines`.
COMMANDS = {
    "all": "Every figure and table of the paper in one run, then the report.",
    "lr": "Fig. 2: logistic regression, one row forgotten, every method.",
    "mlp": "Figs. 3-5: the MLP, 1, 100 and 1000 rows forgotten, every method.",
    "efficacy": "Table 3: membership inference and accuracy on 1000 forgotten rows.",
    "contamination": "Fig. 6: dirty points in two-dimensional data, with the null control.",
    "sensitivity": "Figs. 7-8: psi, s and m.",
    "bounds": "Theorems 4.5 and 4.6 beside the measured excess loss.",
    "leak": "Theorem 7.1: rows that trained the unlearner; cost of refreshing it.",
    "sequence": "A stream of requests: latency, rho and drift.",
    "cores": "Latency, embedding, pairs and Retrain by thread count.",
    "scale": "Time and memory against n.",
    "baselines": "Every baseline with 1, 100 and 1000 rows forgotten, LR and MLP; and how fast the baselines are.",
}


def command(name: str, text: str) -> Callable[..., None]:
    """The command of one experiment; further experiments may follow its name."""

    def bench(
        more: Annotated[list[str] | None, typer.Argument(help="Further experiments for the same run.")] = None,
        profile: Annotated[
            Literal["tiny", "quick", "paper", "full"], typer.Option(help="quick: minutes; paper: the paper's sizes.")
        ] = "quick",
        datasets: Annotated[str | None, typer.Option(help="Datasets, comma-separated (default: all seven).")] = None,
        only: Annotated[str | None, typer.Option(help="Only jobs whose name holds one of these words.")] = None,
        methods: Annotated[
            str | None, typer.Option(help="Methods of lr, mlp, efficacy and baselines, comma-separated (default: all).")
        ] = None,
        runs: Annotated[int | None, typer.Option(min=1, help="Requests of each size (default: by profile).")] = None,
        threads: Annotated[
            str | None, typer.Option(help="Thread counts, e.g. 1,2,4: a process each (default: all cores).")
        ] = None,
        jobs: Annotated[
            int, typer.Option(min=1, help="Jobs at once, each on cores of its own; times then share memory and caches.")
        ] = 1,
        seed: Annotated[int, typer.Option(min=0, help="Seed of models and requests.")] = 1,
        raw_dir: Annotated[
            Path | None, typer.Option(envvar="L2UL_RAW_DIR", help="Original files; without them stand-ins are used.")
        ] = None,
        data_dir: Annotated[
            Path, typer.Option(envvar="L2UL_DATA_DIR", help="Where HDF5 files are made and found again.")
        ] = Path("data"),
        out: Annotated[
            Path | None, typer.Option(help="Folder of this run; an unfinished run in it is continued.")
        ] = None,
        fresh: Annotated[bool, typer.Option(help="Discard what the folder holds and measure anew.")] = False,
        docs: Annotated[
            Path | None, typer.Option(help="Also keep medians in docs/ of this folder and rewrite its README.md.")
        ] = None,
        share: Annotated[str | None, typer.Option(hidden=True)] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one record per line on stdout.")] = False,
    ) -> None:
        from l2ul_fast.experiments import plan
        from l2ul_fast.experiments.contenders import ALL_METHODS
        from l2ul_fast.experiments.jobs import DATASETS as KNOWN
        from l2ul_kernels.threads import thread_limit

        wanted = tuple(dict.fromkeys([name, *(more or [])]))
        for other in wanted:
            if other not in COMMANDS:
                raise UserError(f"{other!r} is not one of the experiments {', '.join(COMMANDS)}")
        experiments = tuple(e for w in wanted for e in (plan.EXPERIMENTS if w == "all" else (w,)))
        names = words(datasets, tuple(KNOWN)) if datasets or name != "baselines" else ("magic", "adult")
        folder = out or Path("results") / (profile if wanted == ("all",) else "-".join((*wanted, profile)))
        counts = thread_list(threads) or [max(1, thread_limit() // jobs)]
        options: dict[str, Any] = {
            "experiments": experiments,
            "profile": profile,
            "datasets": names,
            "seed": seed,
            "runs": runs,
            "raw_dir": None if raw_dir is None else str(raw_dir),
            "data_dir": str(data_dir),
            "methods": words(methods, ALL_METHODS) if methods else None,
            "only": tuple(word.strip() for word in (only or "").split(",") if word.strip()),
        }
        begin = time.time()
        if jobs > 1 or len(counts) > 1:
            start(folder, fresh)
            for k in counts:
                spawn(options, folder, k, jobs)
        else:
            measure(options, folder, counts[0], fresh, share)
        if share is None:
            finish(folder, as_json, time.time() - begin)
            if docs is not None:
                publish(folder, docs)

    bench.__doc__ = text
    return bench


def setting_from(options: dict[str, Any], threads: int) -> Any:
    """The Setting that a run's options stand for."""
    from l2ul_fast.experiments.plan import setting_of

    setting = setting_of(
        options["profile"],
        datasets=tuple(options["datasets"]),
        folder=Path(options["data_dir"]),
        raw_dir=None if options["raw_dir"] is None else Path(options["raw_dir"]),
        threads=threads,
        seed=options["seed"],
    )
    if options["runs"] is not None:
        setting.facts["runs"] = options["runs"]
    if options.get("methods"):
        setting.facts["methods"] = tuple(options["methods"])
    return setting


def measure(options: dict[str, Any], folder: Path, threads: int, fresh: bool, share: str | None) -> None:
    """All jobs (or share "i/k" of them) in this process, with a budget of `threads`."""
    import torch  # noqa: F401 - before the budget, which sets the threads of what is imported

    from l2ul_fast.experiments.jobs import run_jobs
    from l2ul_fast.experiments.plan import jobs_of
    from l2ul_fast.experiments.quality import gate
    from l2ul_kernels import threads as budget

    run = start(folder, fresh)
    if not (folder / "options.json").exists():
        from l2ul_fast.measure.records import write_atomic

        write_atomic(folder / "options.json", json.dumps(options, indent=2) + "\n")
    setting = setting_from(options, threads)
    todo = jobs_of(setting, tuple(options["experiments"]), tuple(options["only"]))
    if share is not None:
        i, k = (int(part) for part in share.split("/"))
        todo = todo[i::k]
    with paper_bar() as bar, budget(threads):
        show = shower(bar)
        show("correctness check", 0, 1)
        found = gate.check()
        if not run.has(experiment="gate", threads=threads):
            run.append({"experiment": "gate", "method": "", "threads": threads, **found})
        run_jobs(run, todo, setting, show)


def paper_bar() -> Progress:
    """A bar in percent of the expected work, with the remaining time."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr,
    )


def spawn(options: dict[str, Any], folder: Path, threads: int, jobs: int) -> None:
    """`jobs` processes with `threads` threads each, on cores of their own; numba's limit is set before they start."""
    cores = sorted(os.sched_getaffinity(0))
    if threads * jobs > len(cores):
        raise UserError(f"{jobs} jobs of {threads} thread(s) need {jobs * threads} cores, there are {len(cores)}")
    running = []
    for i in range(jobs):
        own = set(cores[i * threads : (i + 1) * threads])
        words_of = [
            sys.executable,
            "-m",
            "l2ul_fast.cli",
            "bench",
            *options["experiments"],
            "--profile",
            options["profile"],
            "--datasets",
            ",".join(options["datasets"]),
            "--seed",
            str(options["seed"]),
            "--threads",
            str(threads),
            "--data-dir",
            options["data_dir"],
            "--out",
            str(folder),
            "--share",
            f"{i}/{jobs}",
        ]
        for flag, value in (("--raw-dir", options["raw_dir"]), ("--runs", options["runs"])):
            words_of += [] if value is None else [flag, str(value)]
        for flag in ("only", "methods"):
            words_of += [f"--{flag}", ",".join(options[flag])] if options[flag] else []
        names = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, str(threads))
        running.append(
            subprocess.Popen(words_of, env=environment, preexec_fn=lambda own=own: os.sched_setaffinity(0, own))  # type: ignore[misc]
        )
    try:
        codes = [process.wait() for process in running]
    except BaseException:
        for process in running:
            process.terminate()
        raise
    if any(codes):
        raise UserError(f"a process of the run failed (exit codes {codes}); run the same command again to go on")


def finish(folder: Path, as_json: bool, seconds: float) -> None:
    """The summary in the terminal and the report page."""
    from l2ul_fast.cli import bench
    from l2ul_fast.measure.records import Run

    bench.finish(Run(folder), as_json)
    stderr.print(f"measured in {seconds:.0f} s")


def publish(folder: Path, root: Path) -> None:
    """Keep the run's medians and headline plot below root/docs and rewrite the README's tables from them."""
    from l2ul_fast.report.publish import publish as rewrite

    stderr.print(f"rewrote {', '.join(str(page) for page in rewrite(folder, root))}")


def reproduce(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    cell: Annotated[str, typer.Argument(help="Number of a record (its line), or values such as lr/magic/newton/r=1.")],
    out: Annotated[Path | None, typer.Option(help="Also keep the new records in this folder.")] = None,
) -> None:
    """Measure one cell of a run again, with the same seed, and show both results."""
    from l2ul_fast.experiments.reproduce import reproduce_cell
    from l2ul_fast.report.terminal import both, console, render

    with stderr.status("measuring"):
        before, after = reproduce_cell(run, cell, setting_from, out)
    console().print(render([both(before, after)], console().width))


for _name, _text in COMMANDS.items():
    app.command(_name, help=_text)(command(_name, _text))
