"""`l2ul bench NAME...`, generated from the registry of experiments, and `l2ul reproduce`."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from l2ul_fast.cli.options import parse_names, parse_settings, parse_words, progress_bar, stderr, stdout, thread_list
from l2ul_fast.cli.process import exit_code
from l2ul_fast.errors import UserError

ALL = "Every figure and table of the paper in one run, then the report."


class Experiments(TyperGroup):
    """The commands of the registry, read when they are asked for."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override] # its base is another in each version
        return ["all", *_registry(ctx)]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        known = _registry(ctx)
        if cmd_name != "all" and cmd_name not in known:
            return None
        one = typer.Typer(add_completion=False)
        help = ALL if cmd_name == "all" else known[cmd_name].help
        one.command(cmd_name, help=help)(_command(cmd_name))
        return typer.main.get_command(one)


def _registry(ctx: typer.Context) -> dict[str, Any]:
    from l2ul_fast.experiments import registry

    return registry.load(tuple(ctx.params.get("experiment") or ()))


app = typer.Typer(
    cls=Experiments,
    help="Measure: every candidate in turn in one run, medians with spread. Several experiments may be named.",
    no_args_is_help=True,
)


@app.callback()
def bench(
    experiment: Annotated[
        list[Path] | None, typer.Option(is_eager=True, help="A Python file that registers experiments of your own.")
    ] = None,
) -> None:
    """Measure: every candidate in turn in one run, medians with spread. Several experiments may be named."""


def _command(name: str) -> Callable[..., None]:
    """The command of one experiment; further experiments may follow its name."""

    def command(
        context: typer.Context,
        more: Annotated[list[str] | None, typer.Argument(help="Further experiments for the same run.")] = None,
        profile: Annotated[
            Literal["tiny", "quick", "paper", "full"], typer.Option(help="quick: minutes; paper: the paper's sizes.")
        ] = "quick",
        datasets: Annotated[str | None, typer.Option(help="Datasets, comma-separated (default: all it uses).")] = None,
        data: Annotated[
            list[Path] | None,
            typer.Option(help="A dataset of your own: h5, csv, parquet, npz, or a Python file with a class Dataset."),
        ] = None,
        methods: Annotated[str | None, typer.Option(help="Methods, comma-separated (default: all).")] = None,
        method: Annotated[
            list[Path] | None, typer.Option(help="A Python file with a class Method: your own, beside the others.")
        ] = None,
        select: Annotated[str | None, typer.Option(help="Only jobs whose name holds one of these words.")] = None,
        set_: Annotated[
            list[str] | None, typer.Option("--set", help="Replace a number of the profile: name=value.")
        ] = None,
        runs: Annotated[int | None, typer.Option(min=1, help="Repetitions of each request: --set runs=N.")] = None,
        threads: Annotated[
            str | None, typer.Option(help="Thread counts, e.g. 1,2,4: a process each (default: by experiment).")
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
        overwrite: Annotated[bool, typer.Option(help="Discard what the folder holds and measure anew.")] = False,
        retry_failed: Annotated[bool, typer.Option(help="Measure cells again that failed before.")] = False,
        dry_run: Annotated[
            bool, typer.Option(help="List the jobs, their cells and expected time; measure nothing.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print one record per line on stdout.")] = False,
    ) -> None:
        from l2ul_fast.experiments import registry, runner

        own = tuple(context.parent.params.get("experiment") or ()) if context.parent else ()
        known = registry.load(own)
        named = tuple(dict.fromkeys([name, *(more or [])]))
        for other in named:
            if other != "all" and other not in known:
                raise UserError(f"{other!r} is not one of the experiments all, {', '.join(known)}")
        of_all = tuple(e.name for e in known.values() if e.in_all)
        chosen = tuple(dict.fromkeys(e for w in named for e in (of_all if w == "all" else (w,))))
        plugins = {"experiments": own, "methods": tuple(method or ()), "data": tuple(data or ())}
        files = {kind: tuple(str(file.resolve()) for file in some) for kind, some in plugins.items() if some}
        with redirect_stdout(sys.stderr):  # what files of the user print is no part of the output
            extra = runner.use_plugins(files)
        numbers = parse_settings(set_) | ({} if runs is None else {"runs": runs})
        settable = {number for e in chosen for some in known[e].profiles.values() for number in some}
        for number in numbers:
            if number not in settable:
                raise UserError(f"--set {number}: the experiments have the numbers {', '.join(sorted(settable))}")
        options = runner.Options(
            experiments=chosen,
            profile=profile,
            datasets=tuple(dict.fromkeys((*parse_names(datasets, _dataset_names()), *extra))),
            methods=parse_names(methods, runner.known_methods([known[e] for e in chosen])),
            select=parse_words(select),
            numbers=numbers,
            seed=seed,
            data_dir=str(data_dir),
            raw_dir=None if raw_dir is None else str(raw_dir),
            plugins=files,
            retry_failed=retry_failed,
        )
        folder = out or Path("results") / (profile if named == ("all",) else "-".join((*named, profile)))
        _run(options, folder, thread_list(threads), jobs, overwrite, dry_run, as_json)

    return command


def _dataset_names() -> tuple[str, ...]:
    from l2ul_fast.datasets.registry import dataset_names

    return tuple(dataset_names())


def _run(
    options: Any, folder: Path, threads: list[int] | None, jobs: int, overwrite: bool, dry_run: bool, as_json: bool
) -> None:
    """Measure what is missing, in this process or in others; then the tables and the page."""
    from l2ul_fast.experiments import runner

    with redirect_stdout(sys.stderr):
        plan = runner.plan_of(options, threads, jobs, folder)
    if not any(part.tasks for part in plan):
        stderr.print("error: there is nothing to measure: no job fits --select, --datasets and the experiments")
        raise typer.Exit(2)
    if dry_run:
        stdout().print(_listing(plan, folder, overwrite, options.profile == "quick" and not options.numbers))
        return
    if overwrite and folder.exists():
        shutil.rmtree(folder)
    begin, run = time.time(), runner.open_run(options, folder)
    missing = sum(len(task.todo(run, options.retry_failed)) for part in plan for task in part.tasks)
    summary = runner.Summary(known=sum(len(task.job.cells) for part in plan for task in part.tasks))
    if missing:
        try:
            with progress_bar() as progress, redirect_stdout(sys.stderr):
                summary = runner.measure_all(plan, run, jobs, progress)
        except KeyboardInterrupt as stop:
            program = sys.argv[0] if Path(sys.argv[0]).name == "l2ul" else "l2ul"
            words = shlex.join([program, *(word for word in sys.argv[1:] if word != "--overwrite")])
            stderr.print(f"stopped: {len(run.refresh()):,} records are kept in {run.path}; to go on: {words}")
            raise typer.Exit(exit_code(stop)) from None
    _show(run, as_json, bool(missing))
    text = f"measured {summary.new:,} cells in {time.time() - begin:.0f} s" if missing else "nothing was missing"
    stderr.print(f"{text}; {summary.known:,} were there before; records: {run.path}")
    if summary.failed:
        stderr.print(f"{summary.failed:,} cells failed: their records say why; --retry-failed measures them again")
        raise typer.Exit(1)


def _show(run: Any, as_json: bool, new: bool) -> None:
    """Records as JSON lines or tables on stdout; the page, drawn anew where there is something new."""
    from l2ul_fast.experiments import registry
    from l2ul_fast.report.page import write_report
    from l2ul_fast.report.terminal import closing, console

    if as_json:
        for record in run.records:
            print(json.dumps(record))
    else:
        with redirect_stdout(sys.stderr):
            shown = closing(run.records, registry.exhibits(), registry.styles_of())
        console().print(shown)
    page = run.folder / "report" / "index.html"
    if new or not page.exists():
        with stderr.status("drawing the report"), redirect_stdout(sys.stderr):
            page, _ = write_report(run.folder, None, registry.exhibits(), registry.styles_of())
    stderr.print(f"report: {page}")


def _listing(plan: list[Any], folder: Path, overwrite: bool, usual: bool) -> Any:
    """A table of the jobs, with their cells that are missing and what they are expected to take.

    A job that has begun is expected to go on as it did; of others the time is known for the `usual` numbers only.
    """
    from rich.table import Table

    from l2ul_fast.measure.records import Run

    run = Run(folder) if folder.exists() and not overwrite else None
    table = Table("experiment", "job", "threads", "cells", "missing", "expected", title=f"{folder}")
    cells = missing = 0
    seconds: list[float | None] = []
    for part in plan:
        for task in part.tasks:
            count, todo = len(task.job.cells), len(task.todo(run)) if run else len(task.job.cells)
            spent = max((r.get("at") or 0.0 for r in run.records if task.wrote(r)), default=0.0) if run else 0.0
            each = spent / (count - todo) if count > todo else task.job.seconds / max(count, 1) if usual else None
            seconds.append(0.0 if not todo else None if each is None else each * todo)
            row = task.experiment.name, task.job.name, part.threads, count, todo, _seconds_text(seconds[-1])
            table.add_row(*map(str, row))
            cells, missing = cells + count, missing + todo
    table.add_section()
    whole = None if None in seconds else sum(s for s in seconds if s is not None)
    table.add_row("all", "", "", str(cells), str(missing), _seconds_text(whole))
    table.caption = "Expected: as the job went so far, else as with the profile quick on two cores; ?: not known."
    return table


def _seconds_text(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:,.0f} s"


def reproduce(
    run: Annotated[str, typer.Argument(help="Folder of a run (or its name under results/).")],
    cell: Annotated[str, typer.Argument(help="Number of a record (its line), or values such as lr/magic/newton/r=1.")],
    out: Annotated[Path | None, typer.Option(help="Also keep the new records in this folder.")] = None,
) -> None:
    """Measure one cell of a run again, with the same seed, and show both results."""
    from l2ul_fast.experiments.reproduce import reproduce_cell
    from l2ul_fast.report.runs import find_run
    from l2ul_fast.report.terminal import both, console, render

    with stderr.status("measuring"):
        before, after = reproduce_cell(find_run(run), cell, out)
    console().print(render([both(before, after)]))
