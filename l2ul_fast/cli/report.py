"""`l2ul report RUN` and `l2ul compare A B`: read records, measure nothing."""

from __future__ import annotations

import json
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from l2ul_fast.cli.options import stderr
from l2ul_fast.errors import UserError


def report(
    run: Annotated[str, typer.Argument(help="Folder of a run, finished or not (or its name under results/).")],
    out: Annotated[Path | None, typer.Option(help="Folder for the page and its plots (default: RUN/report).")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    publish_to: Annotated[
        Path | None,
        typer.Option("--publish", help="Instead: keep records and plots in docs/ of this folder, rewrite its pages."),
    ] = None,
) -> None:
    """Write one self-contained HTML page of a run, with its plots as PNG and SVG beside it; prints the page's path."""
    from l2ul_fast.experiments import registry

    if publish_to is not None:
        from l2ul_fast.report.publish import publish

        with stderr.status("drawing"):
            pages = publish(run, publish_to, registry.exhibits(), registry.styles_of())
        for page in pages:
            print(page)
        return
    from l2ul_fast.report.page import write_report

    with stderr.status("drawing"):
        page, missing = write_report(run, out, registry.exhibits(), registry.styles_of(), unmeasured(run))
    for text in missing:
        stderr.print(f"missing: {text}", markup=False)
    print(page)
    if open_page:
        webbrowser.open(page.resolve().as_uri())


#: Numbers of a run's options above which its cells are not counted.
MOST = 10_000


def unmeasured(run: str) -> list[str]:
    """Sentences on what the run's own options ask for and it does not hold; its plug-ins are not loaded for this."""
    from l2ul_fast.experiments import registry, runner
    from l2ul_fast.measure.records import Run
    from l2ul_fast.report.runs import find_run

    folder = find_run(run)
    if not (folder / "options.json").is_file():
        return []
    out = []
    try:
        options, held = replace(runner.Options.read(folder / "options.json"), plugins={}), Run(folder)
        if any(isinstance(v, int) and v > MOST for v in options.numbers.values()):
            return []  # a foreign file may ask for more cells than memory holds
        for name in options.experiments:
            own = [r.get("threads") for r in held.records if r.get("experiment") == name]
            counts = sorted({k for k in own if isinstance(k, int)}) or None
            plan = runner.plan_of(replace(options, experiments=(name,)), counts, folder=folder)
            tasks = [task for part in plan for task in part.tasks]
            if left := sum(len(task.todo(held)) for task in tasks):
                every = sum(len(task.job.cells) for task in tasks)
                out.append(f"{registry.load()[name].title}: {left:,} of {every:,} cells are not measured yet.")
    except Exception:  # options of another version, or of plug-ins: the page says what the records alone tell
        return out
    return out


def compare(
    a: Annotated[str, typer.Argument(help="The run before.")],
    b: Annotated[str, typer.Argument(help="The run after.")],
    min_effect: Annotated[
        float, typer.Option(min=0, help="Changes of times and rho below this share are not reported.")
    ] = 0.10,
    min_points: Annotated[float, typer.Option(min=0, help="The same for accuracies and shares, in points.")] = 0.1,
    alpha: Annotated[float, typer.Option(min=1e-9, max=0.5, help="Chance of any false alarm among all cells.")] = 0.05,
    everything: Annotated[bool, typer.Option("--all", help="Show the cells that did not change, too.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per compared value on stdout.")
    ] = False,
) -> None:
    """Tell what got faster, slower, better or worse from run A to run B. Exit code 0: nothing slower or worse, 1:
    something is, 2: the runs cannot be compared."""
    from l2ul_fast.experiments import registry
    from l2ul_fast.report.compare import compare_runs, summary, table
    from l2ul_fast.report.terminal import console, render

    try:
        fields = {name: roles for e in registry.load().values() for name, roles in e.roles.items()}
        found = compare_runs(a, b, min_effect, min_points, alpha, fields)
    except UserError as error:
        stderr.print(f"error: {error}", markup=False)
        raise typer.Exit(2) from None
    for text in found.warnings:
        stderr.print(f"warning: {text}", markup=False)
    if as_json:
        for change in found.changes:
            print(json.dumps(change.as_json()))
    else:
        out, shown = console(), table(found, everything)
        if shown.rows:
            out.print(render([shown], out.width))
        out.print(summary(found), soft_wrap=True)
    if found.bad or found.lost:
        raise typer.Exit(1)
