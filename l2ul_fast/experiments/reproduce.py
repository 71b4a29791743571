"""One cell of a recorded run, measured again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from l2ul_fast.errors import UserError
from l2ul_fast.experiments.jobs import Setting
from l2ul_fast.experiments.plan import jobs_of
from l2ul_fast.measure.records import Record, Run, read_records
from l2ul_kernels import threads as budget

#: Fields that say which cell a record is; everything else was measured.
KEYS = (
    "experiment",
    "dataset",
    "model",
    "method",
    "kind",
    "r",
    "r_asked",
    "seed",
    "run",
    "threads",
    "profile",
    "job",
    "parameter",
    "value",
    "dirty",
    "request",
    "requests",
    "draw",
    "k",
    "what",
    "n",
)


def find(records: list[Record], cell: str) -> list[Record]:
    """The records that `cell` means: a line number from 1, or words and name=value parts joined by "/"."""
    if cell.isdigit():
        if not 1 <= int(cell) <= len(records):
            raise UserError(f"the run has {len(records)} records, there is no record {cell}")
        return [records[int(cell) - 1]]
    parts = [part.strip() for part in cell.split("/") if part.strip()]
    named = dict(part.split("=", 1) for part in parts if "=" in part)
    plain = [part for part in parts if "=" not in part]
    found = [
        r
        for r in records
        if all(str(r.get(k)) == v for k, v in named.items())
        and all(any(str(r.get(k)) == word for k in KEYS) for word in plain)
    ]
    if not found:
        raise UserError(f"no record of the run matches {cell!r}")
    return found


def reproduce_cell(
    folder: Path, cell: str, setting_from: Callable[[dict[str, Any], int], Setting], out: Path | None = None
) -> tuple[list[Record], list[Record]]:
    """(the old records, the new ones) of a cell; the new ones are also kept in `out` if given."""
    wanted = find(read_records(folder), cell)
    first = wanted[0]
    try:
        options = json.loads((folder / "options.json").read_text(encoding="utf-8"))
        setting = setting_from(options, int(first["threads"]))
    except (OSError, ValueError, KeyError):
        raise UserError(f"{folder} does not say how it was made (options.json): its cells cannot be repeated") from None
    ids = {(r.get("experiment"), r.get("job")) for r in wanted}
    keys = [{k: r[k] for k in KEYS if k in r and k != "n"} for r in wanted]

    def done(**key: Any) -> bool:
        """True for every cell but the wanted ones."""
        return not any(all(k not in want or want[k] == v for k, v in key.items()) for want in keys)

    again: list[Record] = []
    with budget(setting.threads):
        for job in jobs_of(setting, tuple(options["experiments"])):
            if (job.experiment, job.name) not in ids:
                continue
            common = {"experiment": job.experiment, **job.cells, "profile": setting.profile, "threads": setting.threads}
            for record in job.measure(lambda common=common, **key: done(**(common | key))):
                whole = {**common, "job": job.name, **record}
                if any(all(whole.get(k) == v for k, v in want.items()) for want in keys):
                    again.append(whole)
    if not again:
        raise UserError(f"the experiment of {cell!r} has changed: nothing was measured")
    if out is not None:
        kept = Run(out, {})
        for record in again:
            kept.append(record)
    return wanted, again
