"""journal.jsonl: small changes of a saved state, so that one durable request need not write the whole state anew.

artifact.json is the state as it was last saved as a whole. Each line of the journal continues it by one deferred save:
which files of arrays took the place of others (the sums without the forgotten rows), which facts changed, and what the
ledger will say. Appending the line, synced, is the commit. A line holds row numbers, never a row:

1. the sums without the rows go to a new file, synced
2. a line with the numbers of the rows and the name of that file is appended to the journal, synced: this is the commit
3. the rows are overwritten with zeros in the file of rows, synced
4. the files that still knew them (the sums and theta of before) are deleted

A process killed before 2 leaves the old state, and a file that nobody names, which the next open deletes. After 2 it
leaves the new state: step 3 and 4 need nothing but the line, and doing them again does no harm, so the next open
repeats them.

Each line names the SHA-256 of the line before it, the first one that of artifact.json, and ends with its own: a line
that is not whole was never committed; one that was made for another artifact.json is what a save left there before it
could delete it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.artifact.format import FileRecord, Header, canonical
from l2ul_fast.unlearner.artifact.ledger import Entry, decode_rows
from l2ul_fast.unlearner.artifact.schema import LINE, MOST, check, parse

Ids = NDArray[np.int64]

JOURNAL = "journal.jsonl"
#: What closes a line: its own digest, made of everything before it.
_END = re.compile(rb',"sha256":"([0-9a-f]{64})"\}\n')
_END_BYTES = 78


@dataclass
class Record:
    """One deferred save.

    facts: those that changed. files: groups of arrays with a new file. dropped: groups that are no more. digests: of
    blocks of the files whose rows are overwritten, by group. entries: lines of the ledger to be. erased: numbers of the
    rows that they take out, ascending; ValueError for more than `most`.
    """

    generation: int
    facts: dict[str, Any]
    files: dict[str, FileRecord]
    dropped: list[str] = field(default_factory=list)
    digests: dict[str, dict[int, str]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    most: InitVar[int] = MOST

    def __post_init__(self, most: int) -> None:
        self.erased = erased_rows(self.entries, most)

    def line(self, previous: str) -> bytes:
        """As it stands in the journal, behind a line (or artifact.json) of digest `previous`."""
        content = {
            "generation": self.generation,
            "entries": self.entries,
            "facts": self.facts,
            "files": {group: record.plain() for group, record in self.files.items()},
            "dropped": self.dropped,
            "digests": {group: {str(k): v for k, v in own.items()} for group, own in self.digests.items()},
            "previous": previous,
        }
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)[:-1].encode()
        return text + b',"sha256":"' + hashlib.sha256(text).hexdigest().encode() + b'"}\n'


def erased_rows(entries: Iterable[Entry], most: int = MOST) -> Ids:
    """The rows that entries of a ledger forget, ascending; ValueError for an entry with more than `most`."""
    found = [decode_rows(e["rows"], min(e["r"], most)) for e in entries if e["action"] == "unlearn"]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


@dataclass
class View:
    """The present state of a directory: artifact.json, continued by the journal. `end`: bytes of the journal's whole
    lines; `head`: digest of the last of them, or of artifact.json; `base_files`: what artifact.json names."""

    header: Header
    generation: int
    facts: dict[str, Any]
    files: dict[str, FileRecord]
    head: str
    end: int = 0
    entries: list[Entry] = field(default_factory=list)
    digests: dict[str, dict[int, str]] = field(default_factory=dict)
    _erased: list[Ids] = field(default_factory=list)

    @property
    def erased(self) -> Ids:
        """Numbers of the rows that the journal takes out, ascending."""
        return np.unique(np.concatenate(self._erased)) if self._erased else np.empty(0, np.int64)

    @classmethod
    def of(cls, header: Header) -> View:
        """That of artifact.json alone."""
        return cls(header, header.generation, dict(header.facts), dict(header.files), header.digest)

    @property
    def identity(self) -> tuple[str, int]:
        """Differs between any two states of a directory."""
        return self.head, self.generation

    def apply(self, record: Record, line: bytes) -> None:
        """Take one more line of the journal into account."""
        self.generation, self.head, self.end = record.generation, _digest_in(line), self.end + len(line)
        self.facts |= record.facts
        self.files = {g: r for g, r in (self.files | record.files).items() if g not in record.dropped}
        for group, own in record.digests.items():
            self.digests.setdefault(group, {}).update(own)
        self.entries += record.entries
        self._erased.append(record.erased)


def changed_facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `new` that `old` has not, or has otherwise."""
    return {key: value for key, value in new.items() if key not in old or old[key] != value}


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as they come back from JSON, without the generation, which is not theirs."""
    found: dict[str, Any] = json.loads(canonical({k: v for k, v in facts.items() if k != "generation"}))
    return found


def read_journal(header: Header, data: bytes, name: str, most: int = MOST) -> View:
    """The state that artifact.json and the bytes of a journal make together; no line names more than `most` rows.

    A last line that is not whole does not count, nor does a journal of an earlier artifact.json; DataError for a line
    that was changed.
    """
    view = View.of(header)
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        found = _parse(line, most)
        if found is None:
            if number < len(lines):
                raise DataError(f"line {number} of {name} is damaged: restore it from a copy or fit again")
            break
        record, previous = found
        if number == 1 and record.generation <= header.generation:
            break  # a save of the whole state made artifact.json since then
        if previous != view.head or record.generation != view.generation + 1:
            raise DataError(f"line {number} of {name} does not continue what is before it: restore it from a copy")
        view.apply(record, line)
    return view


def _digest_in(line: bytes) -> str:
    return line[-_END_BYTES:][11:75].decode("ascii")


def _parse(line: bytes, most: int) -> tuple[Record, str] | None:
    """(record, digest of what is before it), or None for a line that is not whole or names too many rows."""
    body, end = line[:-_END_BYTES], _END.fullmatch(line[-_END_BYTES:])
    if end is None or hashlib.sha256(body).hexdigest().encode() != end[1]:
        return None
    try:
        content = parse(body + b"}")
        check("it", content, LINE)
        files = {group: FileRecord.of(group, facts) for group, facts in content["files"].items()}
        digests = {group: {int(k): v for k, v in own.items()} for group, own in content["digests"].items()}
        facts = content["generation"], content["facts"], files, content["dropped"], digests, content["entries"]
        return Record(*facts, most), content["previous"]
    except ValueError:
        return None
