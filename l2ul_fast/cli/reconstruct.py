"""`l2ul reconstruct`: attack a saved directory for the rows that were forgotten."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer

from l2ul_fast.cli.unlearn import Dir, Json
from l2ul_fast.errors import UserError

RowsFile = Annotated[
    Path | None,
    typer.Option(help="The forgotten row(s), to measure errors: an npz file with X and y, or text: d numbers, label."),
]


def reconstruct(
    directory: Dir,
    before: Annotated[Path | None, typer.Option(help="An earlier copy of the directory.")] = None,
    truth_file: RowsFile = None,
    candidates_file: Annotated[
        Path | None, typer.Option(help="Rows among which the forgotten one may be, in the same form.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The dataset file, if it has moved; where no rows are kept: an npz file of all rows, X, y and weights."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Try to compute the forgotten rows from a directory; prints how near each attack comes, and a guess."""
    from l2ul_fast.unlearner.reconstruct import reconstruct as attack
    from l2ul_fast.unlearner.reconstruct import verdict

    truth = None if truth_file is None else read_labelled(truth_file)
    candidates = None if candidates_file is None else read_labelled(candidates_file)
    given: Any = data
    if data is not None and data.suffix == ".npz":
        given = _arrays(data, ("X", "y"), ("weights",))
    attacks = attack(directory, before, truth, given, candidates)
    found = verdict(attacks)
    due = next((a.used for a in attacks if a.name == "due"), None)
    if as_json:
        rows = [a._asdict() | {"row": None if a.row is None else a.row.tolist()} for a in attacks]
        best = None if found.best is None else {"name": found.best.name, "error": found.best.error}
        facts = {"directory": str(directory), "chance": found.chance, "best": best, "leaks": found.leaks, "due": due}
        print(json.dumps(facts | {"attacks": rows}))
        return
    width = max(len(a.name) for a in attacks)
    for a in attacks:
        error = "-" if a.row is None else "claims" if a.error is None else f"{a.error:.1e}"
        typer.echo(f"{a.kind:9} {a.name:{width}}  {error:8} {a.used}")
        if a.row is not None and a.error is None:
            shown = ", ".join(f"{x:.4g}" for x in a.row[:6])
            typer.echo(f"{'':9} {'':{width}}  [{shown}{', ...' if a.row.size > 6 else ''}]")
    if any(a.kind == "inherent" for a in attacks):
        typer.echo("inherent: with the states before and after in one hand, nothing deterministic can hide the row")
    if due is not None:
        typer.echo(f"due: what forgotten rows left here goes with `l2ul unlearn {directory} --finish`")
    typer.echo(_conclusion(found))


def _conclusion(found: Any) -> str:
    if found.chance is None:
        return "errors are not measured: give the forgotten row with --truth-file"
    if found.best is None:
        return f"no attack found a trace; chance is {found.chance:.2g}"
    beside = f"best attack: {found.best.name}, relative error {found.best.error:.2g}; chance is {found.chance:.2g}"
    return beside + (": THE ROW LEAKS" if found.leaks else ": no attack is nearer than half of chance")


def read_labelled(path: Path) -> tuple[Any, Any]:
    """(X, y) of an npz file, or of lines of numbers separated by commas or blanks, the label last."""
    import numpy as np

    if path.suffix == ".npz":
        X, y = _arrays(path, ("X", "y"))
        return X, y
    try:
        lines = [line.replace(",", " ").split() for line in path.read_text("ascii").splitlines() if line.strip()]
        X = np.array([[float(word) for word in line[:-1]] for line in lines])
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(
            f"{path} must hold a row a line, numbers separated by commas, the label last: {error}"
        ) from None
    return X, [_label(line[-1]) for line in lines]


def _label(word: str) -> Any:
    """A whole number, a number, or a word."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _arrays(path: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """Arrays of an npz file by name, no pickles; the optional ones if they are there."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as held:
            return tuple(held[name] for name in (*names, *(name for name in optional if name in held)))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} must be an npz file with arrays {', '.join(names)}: {error}") from None
