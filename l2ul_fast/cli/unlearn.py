"""`l2ul fit`, `l2ul unlearn`, `l2ul show`: a durable unlearner in a directory."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from l2ul_fast.cli.bench import progress_bar, shower
from l2ul_fast.cli.data import user_errors
from l2ul_fast.errors import UserError

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads; default: all of this process's cores.")]
Data = Annotated[Path | None, typer.Option(help="The dataset file, if it has moved since the fit.")]
Dir = Annotated[Path, typer.Argument(help="Directory of a fitted unlearner.")]


def _budget(threads: int | None) -> contextlib.AbstractContextManager[Any]:
    from l2ul_kernels import threads as budget

    try:
        return contextlib.nullcontext() if threads is None else budget(threads)
    except ValueError as error:
        raise UserError(str(error)) from error


def _client(scheduler: str | None, workers: int | None) -> contextlib.AbstractContextManager[Any]:
    """A Dask client if the options ask for one, else None."""
    if scheduler is None and workers is None:
        return contextlib.nullcontext()
    from l2ul_fast.distributed import connect

    return connect(scheduler, workers)


def fit(
    file: Annotated[str, typer.Argument(help="HDF5 dataset file (see `l2ul data`).")],
    out: Annotated[Path, typer.Option(help="Directory to write; an unlearner in it is replaced.")],
    model: Annotated[Literal["lr", "mlp"], typer.Option(help="Logistic regression, or an MLP of one layer.")] = "lr",
    head: Annotated[Literal["influence", "direct"], typer.Option(help="direct is the paper's network.")] = "influence",
    prior: Annotated[Literal["newton", "none"], typer.Option(help="none: purely learned.")] = "newton",
    lam: Annotated[float, typer.Option(help="Penalty, in units of the mean loss.")] = 1e-3,
    psi: Annotated[int, typer.Option(min=2, max=4096, help="Seeds per partition.")] = 4,
    t: Annotated[int, typer.Option(min=1, help="Partitions.")] = 100,
    m: Annotated[int, typer.Option(min=1, help="Training pairs.")] = 1000,
    s: Annotated[int | None, typer.Option(min=20, help="Rows per pair; default by the size of the data.")] = None,
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units of the MLP.")] = 10,
    anchor_rows: Annotated[
        int | None, typer.Option(min=0, help="Anchor rows of the MLP (default: a fifth); 0: plain training.")
    ] = None,
    robust: Annotated[bool, typer.Option("--robust", help="Train for large and structured requests too.")] = False,
    network: Annotated[bool, typer.Option("--network", help="Try a correction network on top.")] = False,
    part: Annotated[Literal["train", "all"], typer.Option(help="Rows to train on.")] = "train",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    threads: Threads = None,
    scheduler: Annotated[str | None, typer.Option(help="Dask scheduler whose workers make the training pairs.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Or: processes to start for that on this machine.")] = None,
    as_json: Json = False,
) -> None:
    """Train a model on a dataset file, and what it takes to unlearn from it."""
    from l2ul_fast.unlearner import L2UL
    from l2ul_fast.unlearner.artifact import refuse_foreign

    with user_errors(), _budget(threads):
        refuse_foreign(out)
        unlearner = L2UL(
            model, head=head, prior=prior, lam=lam, psi=psi, t=t, m=m, s=s, hidden=hidden, robust=robust,
            network=network, anchor_rows=anchor_rows, random_state=seed,
        )  # fmt: skip
        with _client(scheduler, workers) as client, progress_bar() as bar:
            unlearner.fit(file, part=part, progress=shower(bar), client=client)
        unlearner.save(out)
        floor = unlearner.noise_floor()
        facts = _facts(unlearner) | {"out": str(out), "report": unlearner.report_, "noise_floor": floor}
        if as_json:
            print(json.dumps(facts))
            return
        seconds = unlearner.report_["fit_seconds"]
        typer.echo(f"{model} on {unlearner.n} rows ({unlearner.label}) x {unlearner.d}, fitted in {seconds:.1f} s")
        if floor > 0:
            typer.echo(
                f"noise floor: training from another start answers {floor:.1%} of the rows otherwise (no anchor)"
            )
        typer.echo(f"saved in {out}; take rows out with `l2ul unlearn {out} --rows ...`")


def _facts(unlearner: Any) -> dict[str, Any]:
    p = unlearner.params
    return {
        "model": p["model"], "head": p["head"], "prior": p["prior"], "label": unlearner.label, "n": unlearner.n,
        "d": unlearner.d, "classes": unlearner.classes_, "parameters": int(unlearner.theta.size),
        "psi": p["psi"], "t": p["t"], "lam": p["lam"],
    }  # fmt: skip


def read_rows(rows: str | None, rows_file: Path | None) -> list[int]:
    """Row numbers from the options: "17,42,100-200", or a file with numbers or ranges separated by commas or blanks."""
    if (rows is None) == (rows_file is None):
        raise UserError("name the rows with either --rows or --rows-file")
    text = rows
    if rows_file is not None:
        try:
            text = rows_file.read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {rows_file}: {error}") from error
    found: list[int] = []
    for word in (text or "").replace(",", " ").split():
        first, dash, last = word.partition("-")
        if not word.isascii() or not first.isdigit() or (dash and not last.isdigit()) or len(word) > 40:
            raise UserError(f"{word[:40]!r} is not a row number or a range like 100-200")
        low, high = int(first), int(last or first)
        if high < low or high - low > 10**7:
            raise UserError(f"the range {word} is empty or too long")
        found.extend(range(low, high + 1))
    if not found:
        raise UserError("no row was named")
    return found


def unlearn(
    directory: Dir,
    rows: Annotated[str | None, typer.Option(help="Row numbers of the dataset file: 17,42,100-200.")] = None,
    rows_file: Annotated[Path | None, typer.Option(help="A text file with row numbers.")] = None,
    refresh: Annotated[bool, typer.Option(help="Also remove the rows from pairs, seeds and learned heads.")] = True,
    check: Annotated[
        bool, typer.Option("--check", help="Measure the gradient on all rows that stay (one pass).")
    ] = False,
    data: Data = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Take rows out of a fitted model; the directory changes to the new state as a whole, or not at all."""
    import warnings

    from l2ul_fast.unlearner import L2UL
    from l2ul_fast.unlearner.artifact import locked

    with user_errors(), _budget(threads), locked(directory):
        wanted = read_rows(rows, rows_file)
        unlearner = L2UL.load(directory, data)
        _warm(unlearner)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            begin = time.perf_counter()
            result = unlearner.unlearn(wanted)
            latency = time.perf_counter() - begin
        trust = result.trust
        begin = time.perf_counter()
        refreshed = unlearner.refresh() if refresh else None
        refresh_seconds = time.perf_counter() - begin
        residual = unlearner.residual() if check else None
        begin = time.perf_counter()
        unlearner.save(directory)
        facts = {
            "r": result.rows.size, "n": unlearner.n, "latency_us": latency * 1e6, "refresh_seconds": refresh_seconds,
            "save_seconds": time.perf_counter() - begin, "refreshed": refreshed, "advice": trust.advice,
            "share": trust.share, "distance": trust.distance, "gradient_residual": residual,
            "warnings": [str(w.message) for w in caught],
        }  # fmt: skip
    if as_json:
        print(json.dumps(facts))
        return
    typer.echo(f"forgot {facts['r']} row(s) in {latency * 1e6:,.0f} us; {unlearner.n} rows remain")
    distance = "" if trust.distance is None else f", {trust.distance:.2f} of the distance the unlearner was trained for"
    typer.echo(f"trust: {trust.share:.3%} of the rows{distance}: {trust.advice}")
    if residual is not None:
        typer.echo(f"largest gradient entry on the rows that stay: {residual:.2e} (0 for a retrained model)")
    if refreshed is not None:
        typer.echo(
            f"refreshed in {refresh_seconds:.2f} s: {refreshed['pairs']} training pairs and {refreshed['partitions']} "
            f"partitions held the rows; head: {refreshed['head']}"
        )
    for warning in facts["warnings"]:
        typer.echo(f"warning: {warning}", err=True)


def _warm(unlearner: Any) -> None:
    """Load the compiled request path, so that the latency printed is that of a running service."""
    from l2ul_fast.unlearner.warm import warm_request

    warm_request(unlearner)


def show(directory: Dir, data: Data = None, as_json: Json = False) -> None:
    """What a directory holds: model, data, what was forgotten and when; checks the ledger's chain."""
    from l2ul_fast.unlearner.artifact import check_artifact, read_header

    with user_errors():
        ledger = check_artifact(directory)
        facts = read_header(directory).facts
        entries = ledger.entries
        params = facts["params"]
        short = {
            "model": params["model"], "head": params["head"], "prior": params["prior"], "label": facts["label"],
            "n": facts["n"], "d": facts["d"], "classes": facts["classes"], "data": facts["data"],
            "forgotten": int(ledger.forgotten().size), "requests": sum(e["action"] == "unlearn" for e in entries),
            "ledger": "intact",
        }  # fmt: skip
        if as_json:
            print(json.dumps(short | {"entries": entries}))
            return
        for key, value in short.items():
            typer.echo(f"{key:10} {value}")
        for e in entries[-10:]:
            what = f"{e.get('r', '')} row(s)" if e["action"] == "unlearn" else ""
            typer.echo(f"  {e['time']}  {e['action']:8} {what}  n = {e['n']}")
