"""One cell of a recorded run, measured again."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from l2ul_fast.errors import UserError
from l2ul_fast.experiments import runner
from l2ul_fast.measure.records import IDENTITY, REPEAT, Record, read_records, upgrade
from l2ul_kernels import threads as budget


def find(records: list[Record], cell: str) -> list[Record]:
    """The records that `cell` means: a line number from 1, or words and name=value parts joined by "/".

    Raises
    ------
    UserError
        If there are none.
    """
    if cell.isdigit():
        if not 1 <= int(cell) <= len(records):
            raise UserError(f"the run has {len(records)} records, there is no record {cell}")
        return [records[int(cell) - 1]]
    parts = [part.strip() for part in cell.split("/") if part.strip()]
    named = dict(part.split("=", 1) for part in parts if "=" in part)
    words = [part for part in parts if "=" not in part]
    known = {name for record in records for name in record}
    for name in named:
        if name not in known:
            raise UserError(f"no record of the run has a field {name!r}")
    found = [
        r
        for r in records
        if all(str(r.get(k)) == v for k, v in named.items())
        and all(any(str(r.get(k)) == word for k in (*IDENTITY, "job")) for word in words)
    ]
    if words and any(word in {r["experiment"] for r in found} for word in words):
        found = [r for r in found if r["experiment"] in words]  # "lr" is a model too
    if not found:
        raise UserError(f"no record of the run matches {cell!r}")
    return found


def reproduce_cell(folder: Path, cell: str, out: Path | None = None) -> tuple[list[Record], list[Record]]:
    """(the old records, the new ones) of a cell; the new ones are also kept in `out` if given.

    Raises
    ------
    UserError
        If there is no such cell, or the run does not say how it was made.
    """
    wanted = find([upgrade(record) for record in read_records(folder)], cell)
    commands = runner.Options.read_all(folder / "options.json")
    names = tuple(dict.fromkeys(record["experiment"] for record in wanted))
    pairs: dict[int, Record] = {}  # place in `wanted` -> its new record
    counts = dict.fromkeys(int(record["threads"]) for record in wanted if "threads" in record)
    # the last command whose cells they are; first those that asked for the experiment
    for options in sorted(commands, key=lambda options: not set(names) <= set(options.experiments)):
        for threads in counts:
            missing = {i: r for i, r in enumerate(wanted) if i not in pairs and r.get("threads") == threads}
            if missing:
                with budget(threads):
                    pairs |= _measured(replace(options, experiments=names), threads, folder, missing)
    if not pairs:
        raise UserError(f"the experiment of {cell!r} has changed: nothing was measured")
    if out is not None:
        kept = runner.open_run(commands[0], out)
        for record in pairs.values():
            kept.append(record)
    return [wanted[i] for i in sorted(pairs)], [pairs[i] for i in sorted(pairs)]


def _measured(options: runner.Options, threads: int, folder: Path, missing: dict[int, Record]) -> dict[int, Record]:
    """New records in place of those that are cells of these options."""
    pairs: dict[int, Record] = {}
    for task in runner.tasks_of(options, threads, folder):
        found = [(i, cell) for cell in task.job.cells for i, old in missing.items() if _same(task.key(cell), old)]
        cells = tuple(cell for _, cell in found)
        for record in task.job.measure(cells) if cells else ():
            done, whole = runner.complete(record, task, cells, time.time())
            pairs |= {i: whole for i, cell in found if cell == done}
    return pairs


def _same(key: Record, record: Record) -> bool:
    """Whether the record is of this cell, as far as both say."""
    return all(record.get(name) == value for name, value in key.items() if name in (*IDENTITY, *REPEAT))
