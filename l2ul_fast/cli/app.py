"""The root of the command line, and `l2ul env`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from l2ul_fast.cli import bench, data, kme, ledger, reconstruct, report, unlearn
from l2ul_fast.cli.options import stdout
from l2ul_fast.cli.process import one_sentence


class Root(TyperGroup):
    """Ends every command that fails with one sentence on standard error."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override] # its base is another in each version
        with one_sentence():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Root,
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
    stdout().print(table)
