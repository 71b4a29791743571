"""Measured results on disk: one JSON object per line, appended and flushed, so that a killed run loses nothing.

results/<run>/records.jsonl   one line per measured cell
results/<run>/run.json        the environment it was measured in

Files of older versions are never rewritten: whoever shows or compares records reads them through `upgrade`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from l2ul_fast.errors import UserError

Record = dict[str, Any]

#: Methods under the names they were recorded with -> the names they have now. What was called "l2ul" moved theta by one
#: Newton step: no head of today's L2UL does that, so it keeps a name of its own.
RENAMED = {"l2ul": "l2ul-newton", "l2ul-reanchored": "l2ul-newton-reanchored"}
#: The same in the experiment on networks, where "l2ul" meant other things.
RENAMED_NETWORKS = {"l2ul": "l2ul-network", "l2ul-influence": "l2ul-newton"}
#: Fields under the names they were recorded with -> the names they have now.
RENAMED_FIELDS = {"reanchored": "refreshes", "reanchor_seconds": "refresh_seconds"}


def upgrade(record: Record) -> Record:
    """A record of any older version as this version would have written it; a fresh one stays as it is.

    Methods and fields get the names they have now; `answer_seconds` is what was only called `unlearn_seconds`. What was
    not measured then (`erased_seconds`) stays missing.
    """
    renamed = RENAMED_NETWORKS if record.get("experiment") == "resnet" else RENAMED
    method = record.get("method")
    changed: Record = {}
    if isinstance(method, str) and method in renamed:
        changed["method"] = renamed[method]
    if "unlearn_seconds" in record and "answer_seconds" not in record:
        changed["answer_seconds"] = record["unlearn_seconds"]
    if any(name in record for name in RENAMED_FIELDS):
        record = {RENAMED_FIELDS.get(name, name): value for name, value in record.items()}
    return record | changed if changed else record


def write_atomic(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class Run:
    """One run's folder. Opening an existing one continues it."""

    def __init__(self, folder: Path | str, environment: Record | None = None) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "records.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if environment is not None:
                write_atomic(self.folder / "run.json", json.dumps(environment, indent=2) + "\n")
            self.records = list(self._read())
        except OSError as error:
            raise UserError(f"cannot use {self.folder} for results: {error.strerror}") from None

    def _read(self) -> Iterator[Record]:
        if not self.path.exists():
            return
        whole = b""
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):  # the run was killed while writing this line: it is measured again
                self.path.write_bytes(whole)
                return
            try:
                yield json.loads(line)
            except ValueError:
                raise UserError(f"line {number} of {self.path} is damaged; delete the file or the line") from None
            whole += line

    def append(self, record: Record) -> None:
        """Add one record, on disk before this returns."""
        line = json.dumps(record) + "\n"
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)

    def has(self, **key: Any) -> bool:
        """Whether a record with these values is already there."""
        return any(all(r.get(k) == v for k, v in key.items()) for r in self.records)


def read_records(folder: Path | str) -> list[Record]:
    """The records of a finished or unfinished run."""
    path = Path(folder)
    path = path / "records.jsonl" if path.is_dir() else path
    if not path.exists():
        raise UserError(f"no results at {path}")
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines) and not line.endswith(b"\n"):
                break  # the run is being written, or was killed while writing this line
            record = None
        if not isinstance(record, dict):
            raise UserError(f"line {number} of {path} is damaged: not a JSON object")
        records.append(record)
    return records
