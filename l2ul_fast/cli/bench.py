"""`l2ul bench ...`: measure, write records, show the table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from l2ul_fast.cli.bench_distributed import distributed
from l2ul_fast.cli.bench_resnet import resnet
from l2ul_fast.errors import UserError

if TYPE_CHECKING:
    from l2ul_fast.measure.records import Run

app = typer.Typer(help="Measure: every candidate in turn in one run, medians with spread.", no_args_is_help=True)
app.command()(distributed)
app.command()(resnet)
stderr = Console(stderr=True)


def numbers(text: str | None) -> list[int] | None:
    """'1,2,4' -> [1, 2, 4]; None stays None."""
    if text is None:
        return None
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UserError(f"expected positive numbers separated by commas, got {text!r}")
    return found


def progress_bar() -> Progress:
    """A bar on stderr with the remaining time, drawn once a second: ten times would show in what is measured."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr,
        refresh_per_second=1,
    )


@app.command()
def kernels(
    d: Annotated[str | None, typer.Option(help="Features, e.g. 3,28 (default: those of the seven datasets).")] = None,
    psi: Annotated[str | None, typer.Option(help="Seeds per partition, e.g. 4,64 (default: 2,4,16,64,256).")] = None,
    threads: Annotated[str | None, typer.Option(help="Thread counts (default: 1, 2, 4, ... all).")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds in which all candidates take turns.")] = 7,
    out: Annotated[Path, typer.Option(help="Folder of this run; an unfinished run in it is continued.")] = Path(
        "results/kernels"
    ),
    fresh: Annotated[bool, typer.Option(help="Discard what the folder holds and measure anew.")] = False,
    docs: Annotated[
        Path | None, typer.Option(help="Also keep the records in docs/ of this folder and rewrite its pages.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one record per line on stdout.")] = False,
) -> None:
    """Compare our kernels with every peer and with the machine's matrix product."""
    from l2ul_fast.experiments.speed import kernels as experiment

    wanted = thread_list(threads)
    run = start(out, fresh)
    with progress_bar() as bar:
        show = shower(bar)
        experiment.run_grid(
            run, numbers(d) or experiment.DIMENSIONS, numbers(psi) or experiment.SEEDS, wanted, repeats, progress=show
        )
    finish(run, as_json)
    publish(run, docs)


@app.command()
def stream(
    rows: Annotated[int, typer.Option(min=1000, help="Rows of the HIGGS stand-in.")] = 11_000_000,
    threads: Annotated[str | None, typer.Option(help="Thread counts (default: 1, 2, 4, ... all).")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds in which all candidates take turns.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder of this run; an unfinished run in it is continued.")] = Path(
        "results/stream"
    ),
    fresh: Annotated[bool, typer.Option(help="Discard what the folder holds and measure anew.")] = False,
    docs: Annotated[
        Path | None, typer.Option(help="Also keep the records in docs/ of this folder and rewrite its pages.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one record per line on stdout.")] = False,
) -> None:
    """Stream a large file beside its limits, reading alone and the kernel alone; rows by number, text, writing."""
    from l2ul_fast.experiments.speed import stream as experiment

    wanted = thread_list(threads)
    run = start(out, fresh)
    with progress_bar() as bar:
        experiment.run_all(run, rows, wanted, repeats, shower(bar))
    finish(run, as_json)
    publish(run, docs)


@app.command()
def unlearn(
    profile: Annotated[Literal["quick", "full"], typer.Option(help="full is what the documentation quotes.")] = "quick",
    only: Annotated[str | None, typer.Option(help="Parts, comma-separated: identity, rho-lr, latency, ...")] = None,
    datasets: Annotated[str | None, typer.Option(help="Datasets, comma-separated (default: all seven).")] = None,
    raw_dir: Annotated[
        Path | None, typer.Option(envvar="L2UL_RAW_DIR", help="Original files; without them stand-ins are used.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of this run; an unfinished run in it is continued.")] = Path(
        "results/unlearn"
    ),
    fresh: Annotated[bool, typer.Option(help="Discard what the folder holds and measure anew.")] = False,
    docs: Annotated[
        Path | None, typer.Option(help="Also keep the records in docs/ of this folder and rewrite its pages.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one record per line on stdout.")] = False,
) -> None:
    """What the unlearning core promises: identity, rho, error estimates, latency, two times, reconstruction."""
    from l2ul_fast.experiments.quality import unlearn as experiment

    parts = words(only, experiment.PARTS)
    names = words(datasets, experiment.ALL)
    run = start(out, fresh)
    with progress_bar() as bar:
        experiment.run_all(run, profile, raw_dir, parts, names, shower(bar))
    finish(run, as_json)
    publish(run, docs)


def publish(run: Run, root: Path | None) -> None:
    """Keep the records and the plot below root/docs and rewrite the page that shows them."""
    from l2ul_fast.report.publish import publish as rewrite

    if root is not None:
        stderr.print(f"rewrote {', '.join(str(page) for page in rewrite(run.folder, root))}")


def words(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """A comma-separated option, each word one of `known`; all of them when it is not given."""
    if text is None:
        return known
    found = tuple(word.strip() for word in text.split(","))
    for word in found:
        if word not in known:
            raise UserError(f"{word!r} is not one of {', '.join(known)}")
    return found


def thread_list(text: str | None) -> list[int] | None:
    """Thread counts of an option, none above what this process may use."""
    from l2ul_kernels.threads import thread_limit

    wanted = numbers(text)
    for k in wanted or []:
        if k > thread_limit():
            raise UserError(f"cannot use {k} threads: this process may run on {thread_limit()} core(s)")
    return wanted


def start(out: Path, fresh: bool) -> Run:
    """Open the run's folder and note the environment in it."""
    from l2ul_fast.measure.environment import describe
    from l2ul_fast.measure.records import Run

    if fresh and out.exists():
        shutil.rmtree(out)
    facts = describe()
    run = Run(out, facts)
    if not run.has(experiment="environment"):
        short = {key: facts[key] for key in ("cpu", "cores", "vector_bytes", "git")}
        run.append({"experiment": "environment", "method": "", **short, **facts["versions"]})
    return run


def shower(bar: Progress) -> Callable[[str, int, int], None]:
    """progress(what, done, total) that moves the bar."""
    task = bar.add_task("starting", total=None)

    def show(what: str, done: int, total: int) -> None:
        bar.update(task, description=what, completed=done, total=total)

    return show


def finish(run: Run, as_json: bool) -> None:
    """Records as JSON lines, or the tables, on stdout; where the page and the records are, on stderr."""
    from l2ul_fast.report.page import write_report
    from l2ul_fast.report.terminal import closing, console

    if as_json:
        for record in run.records:
            print(json.dumps(record))
    else:
        out = console()
        out.print(closing(run.records, columns=out.width))
    with stderr.status("drawing the report"):
        page, _ = write_report(run.folder)
    stderr.print(f"records: {run.path}\nreport: {page}", soft_wrap=True)
