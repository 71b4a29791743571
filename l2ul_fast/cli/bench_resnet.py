"""`l2ul bench resnet`: unlearning ResNet-18 on CIFAR-10."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def resnet(
    profile: Annotated[
        Literal["tiny", "local", "paper"],
        typer.Option(
            help="tiny: seconds. local: width 16, 10,000 images, under 20 minutes on 2 cores. paper: a large machine."
        ),
    ] = "local",
    methods: Annotated[
        str | None,
        typer.Option(help="Comma-separated (default: all but rum-published). Retrain and nothing always run."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat everything with this many seeds.")] = 1,
    augment: Annotated[
        bool | None,
        typer.Option("--augment/--no-augment", help="Train on flipped and shifted images, or on them as is."),
    ] = None,
    raw_dir: Annotated[
        Path | None, typer.Option(envvar="L2UL_RAW_DIR", help="CIFAR-10 batches; without them a stand-in is made.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of this run; an unfinished run in it is continued.")] = Path(
        "results/resnet"
    ),
    fresh: Annotated[bool, typer.Option(help="Discard what the folder holds and measure anew.")] = False,
    page: Annotated[Path | None, typer.Option(help="Also rewrite the tables of this page (docs/resnet.md).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one record per line on stdout.")] = False,
) -> None:
    """ToW, MIA gap and time of L2UL, RUM, ADV+IMP and others beside Retrain and doing nothing."""
    from l2ul_fast.cli.bench import finish, progress_bar, publish, shower, start, words
    from l2ul_fast.experiments.paper import resnet as experiment

    names = experiment.DEFAULT if methods is None else words(methods, experiment.NAMES)
    run = start(out, fresh)
    with progress_bar() as bar:
        experiment.run_all(run, profile, raw_dir, names, seeds, augment, shower(bar))
    finish(run, as_json)
    publish(run, page.parent.parent if page is not None else None)
