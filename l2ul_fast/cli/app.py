"""The root of the command line, and `l2ul env`."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from l2ul_fast.cli import bench, data, kme, ledger, reconstruct, report, unlearn

app = typer.Typer(
    help="Take someone's rows out of a trained model in microseconds, and measure what that is worth.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.command()(kme.kme)
app.command()(unlearn.fit)
app.command()(unlearn.unlearn)
app.command()(unlearn.show)
app.add_typer(ledger.app, name="ledger")
app.command()(ledger.replay)
app.command()(reconstruct.reconstruct)
app.add_typer(bench.app, name="bench")
app.command()(report.report)
app.command()(report.compare)
app.command()(bench.reproduce)


@app.command()
def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False) -> None:
    """Show what speed depends on here: cores by affinity, vector width, threading layer, versions, kernel cache."""
    from l2ul_fast.measure.environment import describe

    facts = describe()
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(show_header=False)
    for key, value in facts.items():
        if key == "versions":
            value = ", ".join(f"{name} {v or '(not installed)'}" for name, v in value.items())
        elif key == "threads":
            value = f"numba {value['numba_threads']} (layer: {value['numba_layer']}), pools: " + ", ".join(
                f"{p['internal_api']} {p['num_threads']}" for p in value["pools"]
            )
        table.add_row(key, str(value))
    Console().print(table)
