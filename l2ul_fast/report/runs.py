"""Runs on disk as reports and comparisons read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import FIELDS, Record, read_records, upgrade
from l2ul_fast.protocols import Style, Styles
from l2ul_fast.report.values import finite, group_by, median, select, value

#: Records of a run that measure nothing.
NOT_MEASURED = ("environment", None)


def find_run(name: Path | str) -> Path:
    """The run's folder (or its file of records): as given, or of that name under results/.

    Raises
    ------
    UserError
        If there is no such folder, or it holds no records.
    """
    given = Path(name)
    for folder in (given, Path("results") / given):
        if (folder / "records.jsonl").is_file():
            return folder
    if given.is_file() and given.suffix == ".jsonl":
        return given
    if given.is_dir():
        raise UserError(f"{given} holds no records.jsonl: it is not the folder of a run")
    raise UserError(f"there is no run {given}; give the folder that `l2ul bench` wrote, such as results/quick")


def load(run: Path) -> list[Record]:
    """All records of a run under the names of today, ready for tables."""
    return ready(read_records(run))


def ready(records: list[Record]) -> list[Record]:
    """Records of any version under the names of today.

    Each has `r_asked`, the size its cell is grouped by (`r` stays what was really forgotten), and all methods of a cell
    have the noise floor that its Retrain measured.
    """
    out = []
    for record in records:
        old = {name: _clean(name, v) for name, v in record.items()}
        r = {name: v for name, v in upgrade(old).items() if _fits(name, v)}
        if not isinstance(r.get("r_asked"), int):
            r = {**r, "r_asked": r.get("r")}
        if isinstance(r.get("settings"), str):  # --set: other numbers are other data, never one median with these
            r = {**r, "source": f"{r.get('source')}, {_numbers(r['settings'])}"}
        if "kind" in old and "request" in old:  # "random 1000": what was asked for, in words
            r = {**r, "asked": old["request"]}
        out.append(r)
    cell = ("experiment", "dataset", "source", "n", "model", "r_asked", "request", "threads")
    floors: dict[tuple[Any, ...], float | None] = {}
    for key, found in group_by([r for r in out if value(r, "noise_floor") is not None], *cell).items():
        floors[key] = median(found, "noise_floor")
    return [
        r
        if value(r, "noise_floor") is not None or (floor := floors.get(tuple(map(r.get, cell)))) is None
        else {**r, "noise_floor": floor}
        for r in out
    ]


#: Fields that hold text, those of older versions among them.
TEXT = {name for name, field in FIELDS.items() if field.types == (str,)} | {"kind", "part", "reference"}
NUMBERS = {name for name, field in FIELDS.items() if set(field.types) <= {int, float}}


def _clean(name: str, v: Any) -> Any:
    """Names as text, no number that is not finite: files are damaged, edited, and written by other programs."""
    if name in TEXT:
        return None if v is None else str(v)
    return None if isinstance(v, int | float) and finite(v) is None else v


def _fits(name: str, v: Any) -> bool:
    """Whether what should be a number is one, or missing."""
    return name not in NUMBERS or v is None or (isinstance(v, int | float) and not isinstance(v, bool))


def _numbers(settings: str) -> str:
    """m = 77, psi = 4: what --set replaced."""
    try:
        return ", ".join(f"{name} = {value}" for name, value in json.loads(settings).items())
    except (ValueError, AttributeError, RecursionError):
        return settings


def measured(records: list[Record]) -> list[Record]:
    return [r for r in records if r.get("experiment") not in NOT_MEASURED]


def environment_of(run: Path, records: list[Record]) -> Record:
    """What run.json says of the machine, or the run's first record where that file is missing or damaged."""
    facts: Record = dict(next(iter(select(records, experiment="environment")), {}))
    for name in ("experiment", "method", "r_asked"):
        facts.pop(name, None)
    folder = run if run.is_dir() else run.parent
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8")) if run.is_dir() else {}
        facts = {**facts, **found} if isinstance(found, dict) else facts
    except (OSError, ValueError, RecursionError):
        pass
    return facts


def styles_of(environment: Record) -> dict[str, Style]:
    """Styles of the methods as the run wrote them: a foreign run needs none of its plug-ins."""
    methods = environment.get("methods")
    if not isinstance(methods, dict):
        return {}
    return {
        str(name): Style(
            *(str(look.get(part, default)) for part, default in (("label", name), ("colour", ""), ("marker", "o")))
        )
        for name, look in methods.items()
        if isinstance(look, dict)
    }


def merged(styles: Styles | None, environment: Record) -> Styles:
    """Styles handed in, and the run's own for methods that they lack."""
    return {**(styles or {}), **{k: v for k, v in styles_of(environment).items() if k not in (styles or {})}}
