"""`l2ul kme`: kernel mean embedding of dataset files of any size."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from l2ul_fast.cli.options import LATE, progress_bar
from l2ul_fast.errors import UserError

Scheduler = Annotated[str | None, typer.Option(help="Dask scheduler whose workers do it, e.g. tcp://10.0.0.1:8786")]
Workers = Annotated[int | None, typer.Option(min=1, help="or: processes to start on this machine, one thread each")]


def kme(
    files: Annotated[
        list[str], typer.Argument(help="HDF5 dataset files, or a pattern; several count as one set. Or a manifest")
    ],
    t: Annotated[int, typer.Option(min=1, help="partitions")] = 100,
    psi: Annotated[int, typer.Option(min=2, max=4096, help="seeds per partition")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="which rows become seeds")] = 0,
    by_class: Annotated[bool, typer.Option("--by-class", help="one embedding per class")] = False,
    part: Annotated[Literal["all", "train", "test"], typer.Option(help="rows that count")] = "all",
    raw: Annotated[bool, typer.Option("--raw", help="compare rows as stored, not standardised")] = False,
    cells: Annotated[Path | None, typer.Option(help="also store every row's packed cells in this file")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="threads; default: all of this process's cores")] = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
    manifest: Annotated[
        Path | None, typer.Option(help="also write the list of shards, row offsets and checksums to this .json file")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object with the counts on standard output")] = False,
) -> None:
    """Count the rows in every cell; counts / n is the embedding. Memory stays flat, whatever the number of rows.

    With --scheduler or --workers, Dask workers count; the numbers are the same. Files may then be URLs too.
    """
    with contextlib.ExitStack() as stack:
        try:
            if scheduler is None and workers is None:
                facts, sample, count = _here(stack, files, threads, manifest)
            else:
                if cells is not None or threads is not None:
                    raise UserError("--cells and --threads are for one process: leave out --scheduler and --workers")
                facts, sample, count = _by_workers(stack, files, scheduler, workers, manifest)
            partitions = sample(t, psi, seed, standardise=not raw)
            begin = time.perf_counter()
            with progress_bar("kme", LATE) as progress:
                counts = count(partitions, by_class, part, progress)
            seconds = time.perf_counter() - begin
            if cells is not None:
                _store_cells(facts["files"], partitions, cells)
        except ValueError as error:
            raise error if isinstance(error, UserError) else UserError(str(error)) from error
        rows = int(counts.reshape(-1, t, psi)[:, 0].sum())
        rate = facts["rows"] / seconds
        if as_json:
            facts |= {"seconds": seconds, "rows_per_second": rate, "n": rows, "t": t, "psi": psi, "seed": seed}
            facts |= {"part": part, "standardised": not raw, "cells": None if cells is None else str(cells)}
            print(json.dumps(facts | {"classes": facts["classes"] if by_class else None, "counts": counts.tolist()}))
            return
        typer.echo(f"{rows} rows ({facts['label']}) x {facts['d']} columns, {t} partitions of {psi} cells")
        typer.echo(f"{seconds:.2f} s, {rate:,.0f} rows/s (first use includes loading the kernels)")
        fullest = counts.reshape(-1, t * psi).sum(axis=0).max() / max(rows, 1)
        typer.echo(f"fullest cell: {fullest:.1%} of the rows; --json prints all {counts.size} counts")
        if cells is not None:
            typer.echo(f"cells: {cells} ({cells.stat().st_size / max(facts['rows'], 1):.1f} bytes per row)")


Backend = tuple[dict[str, Any], Callable[..., Any], Callable[..., Any]]  # facts, drawing of seeds, counting


def _here(stack: contextlib.ExitStack, files: list[str], threads: int | None, manifest: Path | None) -> Backend:
    """By this process."""
    from l2ul_fast.datasets.stream.manifest import Manifest, describe, is_url
    from l2ul_fast.datasets.stream.stream import Shards, sample_partitions, stream_counts
    from l2ul_kernels import threads as budget

    for name in filter(is_url, files):
        raise UserError(f"{name} is a URL, which only workers read: add --workers {1 if threads is None else threads}")
    stack.enter_context(contextlib.nullcontext() if threads is None else budget(threads))
    shards = stack.enter_context(Shards([shard.path for shard in _listed(files)] or files))
    if manifest is not None:
        Manifest(describe(str(path.absolute())) for path in shards.paths).save(manifest)
    facts = _facts(shards, list(map(str, shards.paths)), None)
    return facts, partial(sample_partitions, shards), partial(stream_counts, shards)


def _by_workers(
    stack: contextlib.ExitStack, files: list[str], scheduler: str | None, workers: int | None, manifest: Path | None
) -> Backend:
    """By Dask workers."""
    from l2ul_fast import distributed

    client = stack.enter_context(distributed.connect(scheduler, workers))
    shards = distributed.describe_shards(client, files, _listed(files))
    if manifest is not None:
        shards.save(manifest)
    facts = _facts(shards, [shard.path for shard in shards.shards], distributed.worker_count(client))
    return (
        facts,
        partial(distributed.sample_partitions, client, shards),
        partial(distributed.stream_counts, client, shards),
    )


def _facts(shards: Any, files: list[str], workers: int | None) -> dict[str, Any]:
    facts = {"files": files, "label": shards.label, "d": shards.d, "classes": shards.classes, "rows": shards.n}
    return facts | {"workers": workers}


def _store_cells(files: list[str], partitions: Any, cells: Path) -> None:
    from l2ul_fast.datasets.stream.cellstore import stream_cells

    with progress_bar("cells", LATE) as progress:
        stream_cells(files, partitions, cells, progress)


def _listed(files: list[str]) -> list[Any]:
    """The shards of a manifest, if that is what was named."""
    from l2ul_fast.datasets.stream.manifest import load

    names = [name for name in files if name.endswith(".json")]
    if names and len(files) > 1:
        raise UserError(f"{names[0]} is a manifest, which names all shards: give nothing else with it")
    return load(Path(names[0])) if names else []
