"""`l2ul bench distributed`: Dask workers beside one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def distributed(
    rows: Annotated[int, typer.Option(min=10_000, max=11_000_000, help="Rows of the HIGGS stand-in.")] = 11_000_000,
    workers: Annotated[int | None, typer.Option(min=2, help="One-thread workers (default: as many as cores).")] = None,
    pair_share: Annotated[float, typer.Option(min=0.01, max=1, help="Share of the usual number of pairs.")] = 1.0,
    pair_seconds: Annotated[float, typer.Option(min=0, help="Go on with each kind of pairs for so long.")] = 180,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds in which all candidates take turns.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder of this run; an unfinished run in it is continued.")] = Path(
        "results/distributed"
    ),
    fresh: Annotated[bool, typer.Option(help="Discard what the folder holds and measure anew.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Also rewrite the figures of this page (docs/distributed.md).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one record per line on stdout.")] = False,
) -> None:
    """Count shards and make pairs on Dask workers beside one process; what a task costs; the cost model's figures."""
    from l2ul_fast.cli.bench import finish, progress_bar, publish, shower, start
    from l2ul_fast.distributed.cluster import dask_distributed
    from l2ul_fast.errors import UserError
    from l2ul_kernels.threads import thread_limit

    dask_distributed()
    cores = thread_limit()
    k = cores if workers is None else workers
    if not 2 <= k <= cores:
        raise UserError(f"{k} workers cannot be compared with {k} threads of one process: there are {cores} core(s)")
    from l2ul_fast.experiments.speed import distributed as experiment

    run = start(out, fresh)
    with progress_bar() as bar:
        experiment.run_all(run, rows, k, repeats, pair_share, pair_seconds, shower(bar))
    finish(run, as_json)
    publish(run, page.parent.parent if page is not None else None)
