"""`l2ul ledger`: the hash to note elsewhere, and whether it still holds; `l2ul replay`: erase again after a restore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from l2ul_fast.cli.unlearn import Data, Dir, Json, Threads, budget, finish_due, noted, told, warn

if TYPE_CHECKING:
    from l2ul_fast.unlearner.artifact.ledger import Ledger

app = typer.Typer(no_args_is_help=True, help="The ledger of a fitted unlearner: what was forgotten, and when.")


@app.command("head")
def print_head(directory: Dir, as_json: Json = False) -> None:
    """Print the hash of the ledger's last line: note it elsewhere, to notice later that the ledger was rewritten."""
    from l2ul_fast.unlearner.artifact import read_ledger

    ledger = read_ledger(directory)
    ledger.verify()
    print(json.dumps({"head": ledger.head, "entries": len(ledger)}) if as_json else ledger.head)


@app.command()
def verify(
    directory: Dir,
    head: Annotated[str | None, typer.Option(help="A hash that `l2ul ledger head` printed earlier.")] = None,
    as_json: Json = False,
) -> None:
    """Check all files, the chain and the story of the ledger; with --head, that nothing before that line was rewritten.

    A ledger that was rewritten together with artifact.json can be told only by a hash that was noted elsewhere.
    """
    from l2ul_fast.unlearner.artifact import check_artifact
    from l2ul_fast.unlearner.artifact.ledger import check_head

    known = None if head is None else check_head(head)
    ledger = check_artifact(directory)
    since = None if known is None else len(ledger) - 1 - ledger.position(known)
    if as_json:
        print(json.dumps({"head": ledger.head, "entries": len(ledger), "entries_since": since}))
        return
    typer.echo(f"intact: {len(ledger)} lines, head {ledger.head}")
    if since is not None:
        typer.echo(f"the noted line is there; {since} line(s) were added since")


def replay(
    directory: Annotated[Path, typer.Argument(help="The newer directory, or its ledger.jsonl alone.")],
    onto: Annotated[Path, typer.Option(help="Directory that was restored from a backup; it is changed.")],
    data: Data = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Forget in a restored directory what a newer ledger says was forgotten since the backup.

    Requests keep their names. Run twice, the second run changes nothing.
    """
    from l2ul_fast.unlearner import L2UL
    from l2ul_fast.unlearner.artifact import locked, read_header
    from l2ul_fast.unlearner.artifact.replay import replay as erase_again

    with budget(threads), noted() as caught:
        newer = _ledger(directory)
        read_header(onto)  # before the lock: a directory of something else stays as it is
        with locked(onto):
            u = L2UL.load(onto, data)
            made = erase_again(u, newer)
            if made and u.due is not None:
                finish_due(u, onto, False)
            if made:
                u.save(onto)
    rows, warnings = sum(ids.size for ids in made), [str(w.message) for w in caught]
    with told(f"{rows} row(s) are forgotten and {onto} is saved"):
        warn(warnings)
        if as_json:
            print(json.dumps({"requests": len(made), "r": rows, "n": u.n, "due": u.due, "warnings": warnings}))
        elif made:
            typer.echo(f"forgot {rows} row(s) of {len(made)} request(s) in {onto}; {u.n} rows remain")
        else:
            typer.echo(f"{onto} lacks no request: nothing to forget; {u.n} rows remain")


def _ledger(place: Path) -> Ledger:
    """That of a directory, or a file; checked."""
    from l2ul_fast.unlearner.artifact import read_ledger
    from l2ul_fast.unlearner.artifact.durable import explain, read_file
    from l2ul_fast.unlearner.artifact.ledger import Ledger

    try:
        found = Ledger(read_file(place), name=str(place)) if place.is_file() else read_ledger(place)
    except OSError as error:
        raise explain(place, error) from error
    found.verify()
    return found
