"""`l2ul kme`: kernel mean embedding of dataset files of any size."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from l2ul_fast.cli.data import progress_bar, user_errors


def kme(
    files: Annotated[list[str], typer.Argument(help="HDF5 dataset files, or a pattern; several count as one set")],
    t: Annotated[int, typer.Option(min=1, help="partitions")] = 100,
    psi: Annotated[int, typer.Option(min=2, max=4096, help="seeds per partition")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="which rows become seeds")] = 0,
    by_class: Annotated[bool, typer.Option("--by-class", help="one embedding per class")] = False,
    part: Annotated[Literal["all", "train", "test"], typer.Option(help="rows that count")] = "all",
    raw: Annotated[bool, typer.Option("--raw", help="compare rows as stored, not standardised")] = False,
    cells: Annotated[Path | None, typer.Option(help="also store every row's packed cells in this file")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="threads; default: all of this process's cores")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object with the counts on standard output")] = False,
) -> None:
    """Count the rows in every cell; counts / n is the embedding. Memory stays flat, whatever the number of rows."""
    from l2ul_fast.datasets.cellstore import stream_cells
    from l2ul_fast.datasets.stream import Shards, sample_partitions, stream_counts
    from l2ul_fast.errors import UserError
    from l2ul_kernels import threads as budget

    with user_errors(), contextlib.ExitStack() as stack:
        try:
            stack.enter_context(contextlib.nullcontext() if threads is None else budget(threads))
            shards = stack.enter_context(Shards(files))
            partitions = sample_partitions(shards, t, psi, seed, standardise=not raw)
        except ValueError as error:
            raise UserError(str(error)) from error
        begin = time.perf_counter()
        with progress_bar("kme") as progress:
            counts = stream_counts(shards, partitions, by_class, part, progress)
        seconds = time.perf_counter() - begin
        if cells is not None:
            with progress_bar("cells") as progress:
                stream_cells(shards, partitions, cells, progress)
        rows = int(counts.reshape(-1, t, psi)[:, 0].sum())
        facts = {
            "files": [str(p) for p in shards.paths],
            "label": shards.label,
            "n": rows,
            "d": shards.d,
            "t": t,
            "psi": psi,
            "seed": seed,
            "part": part,
            "classes": shards.classes if by_class else None,
            "standardised": not raw,
            "seconds": seconds,
            "rows_per_second": shards.n / seconds,
            "cells": None if cells is None else str(cells),
        }
        if as_json:
            print(json.dumps(facts | {"counts": counts.tolist()}))
            return
        typer.echo(f"{rows} rows ({shards.label}) x {shards.d} columns, {t} partitions of {psi} cells")
        typer.echo(f"{seconds:.2f} s, {shards.n / seconds:,.0f} rows/s (first use includes loading the kernels)")
        fullest = counts.reshape(-1, t * psi).sum(axis=0).max() / max(rows, 1)
        typer.echo(f"fullest cell: {fullest:.1%} of the rows; --json prints all {counts.size} counts")
        if cells is not None:
            typer.echo(f"cells: {cells} ({cells.stat().st_size / max(shards.n, 1):.1f} bytes per row)")
