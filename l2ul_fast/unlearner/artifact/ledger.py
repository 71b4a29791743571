"""What was forgotten, and when: one JSON object per line, each naming the SHA-256 of the line before it.

A line holds row numbers, counts and digests, never a feature or a label, so the ledger can be kept after the rows are
gone. The line of a request has no digest of the parameters; the last line of a save has that of those that it saved. An
edited, dropped or moved line breaks the chain; artifact.json keeps the hash of the last line (the head), so
lines cut off the end are noticed too. The file itself is written by artifact.py, in the same commit as the model.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.unlearner.artifact import schema

Entry = dict[str, Any]

ACTIONS = ("fit", "unlearn", "refresh", "learn")
WITH_ROWS = ("unlearn", "learn")
START = "0" * 64  # the `previous` of the first line
_SCALARS = (str, bool, int, float, type(None))
_ROWS = re.compile(r"(?:\d{1,18}(?:-\d{1,18})?(?:,(?!$)|$))*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def theta_digest(theta: ArrayLike) -> str:
    """SHA-256 (hex) of theta's values as little-endian float64."""
    return hashlib.sha256(np.ascontiguousarray(theta, dtype="<f8").tobytes()).hexdigest()


def encode_rows(rows: ArrayLike) -> str:
    """Row numbers as sorted text with ranges: [3, 1, 2, 9] -> "1-3,9"."""
    given = np.asarray(rows)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"row numbers must be a list of integers, got {given.dtype} of shape {given.shape}")
    ids = np.sort(given.astype(np.int64))
    if not ids.size:
        return ""
    if ids[0] < 0 or ids[-1] >= 10**18 or (np.diff(ids) == 0).any():
        raise ValueError("row numbers must be at least 0 and each be given once")
    jumps = np.flatnonzero(np.diff(ids) != 1)
    first, last = ids[np.r_[0, jumps + 1]].tolist(), ids[np.r_[jumps, ids.size - 1]].tolist()
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(first, last, strict=True))


def ranges_of(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last row of each range that `encode_rows` wrote, ascending; ValueError for other text."""
    if not _ROWS.fullmatch(text):
        raise ValueError("not a list of row numbers")
    ends = [part.partition("-")[::2] for part in text.split(",")] if text else []
    first = np.array([int(a) for a, _ in ends], dtype=np.int64)
    last = np.array([int(b or a) for a, b in ends], dtype=np.int64)
    if (last < first).any() or (first[1:] <= last[:-1]).any():
        raise ValueError("row numbers out of order")
    return first, last


def expand(first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of ranges."""
    sizes = last - first + 1
    offsets = np.cumsum(sizes) - sizes
    return np.repeat(first - offsets, sizes) + np.arange(int(sizes.sum()), dtype=np.int64)


def decode_rows(text: str, limit: int) -> NDArray[np.int64]:
    """The row numbers that `encode_rows` wrote, sorted; ValueError for other text or for more than `limit` rows."""
    first, last = ranges_of(text)
    if sum((last - first + 1).tolist()) > limit:
        raise ValueError("row numbers that are more than there are rows")
    return expand(first, last)


def entry(
    action: str,
    *,
    n: int,
    theta: ArrayLike | None = None,
    theta_before: ArrayLike | None = None,
    rows: ArrayLike | None = None,
    refreshed: Mapping[str, Any] | None = None,
    time: float | None = None,
    request_id: str | None = None,
) -> Entry:
    """One line to be, for `save_artifact(ledger_entry=...)`.

    n: rows the model stands for after the action. theta, theta_before: parameters (or their digests) after and before.
    rows: the forgotten (or learned) row numbers. request_id: the user's name of the request. refreshed: single
    values by name (no lists: no row can slip in); NaN and infinities become null. time: seconds since 1970, now when
    left out.
    """
    if action not in ACTIONS:
        raise ValueError(f"action must be one of {', '.join(ACTIONS)}, got {action!r}")
    if (action in WITH_ROWS) != (rows is not None):
        raise ValueError("rows belong to an entry that unlearns or learns, and only there")
    moment = datetime.now(UTC) if time is None else datetime.fromtimestamp(time, UTC)
    made: Entry = {"time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "action": action}
    if rows is not None:
        made |= {"r": int(np.size(rows)), "rows": encode_rows(rows)}
    made["n"] = int(n)
    if request_id is not None:
        made["request_id"] = check_request_id(request_id)
    if theta_before is not None:
        made["theta_before"] = _digest(theta_before)
    if theta is not None:
        made["theta_after"] = _digest(theta)
    if refreshed is not None:
        made["refreshed"] = {str(key): _scalar(f"refreshed.{key}", value) for key, value in refreshed.items()}
    return made


def check_request_id(given: Any) -> str:
    """A user's name of a request: 1 to 100 printable characters; UserError otherwise."""
    if not isinstance(given, str) or not 1 <= len(given) <= 100 or not given.isprintable():
        raise UserError("a request id must be 1 to 100 printable characters")
    return given


def check_head(given: str) -> str:
    """A hash that was noted elsewhere; UserError for what is none."""
    found = given.strip().lower()
    if not _DIGEST.fullmatch(found):
        raise UserError("the noted hash must be 64 hexadecimal digits, as `l2ul ledger head` prints them")
    return found


def _digest(theta: Any) -> str:
    if isinstance(theta, str):
        if not _DIGEST.fullmatch(theta):
            raise ValueError(f"not a digest: {theta!r}")
        return theta
    return theta_digest(theta)


def _scalar(name: str, value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, _SCALARS):
        raise TypeError(f"{name} must be one number, text or truth value, got {type(value).__name__}")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def line_digest(line: bytes) -> str:
    """SHA-256 (hex) of one line with its newline: what `sed -n 3p ledger.jsonl | sha256sum` prints."""
    return hashlib.sha256(line).hexdigest()


def chain(entries: Iterable[Entry], seq: int = 0, previous: str = START) -> tuple[list[bytes], str]:
    """The lines of new entries, numbered from `seq` and chained to `previous`, and the new head.

    An entry read from a ledger may be given again: its old seq and previous are left out. Equal entries from the same
    start give equal lines, so a copied history keeps its hashes.
    """
    lines = []
    for number, given in enumerate(entries, seq):
        own = {key: value for key, value in given.items() if key not in ("seq", "previous")}
        text = json.dumps({"seq": number, **own, "previous": previous}, separators=(",", ":"), allow_nan=False)
        lines.append(text.encode() + b"\n")
        previous = line_digest(lines[-1])
    return lines, previous


class Ledger:
    """The committed lines of a ledger (`data`); `head` is the recorded hash of the last one, None when unknown."""

    def __init__(self, data: bytes, head: str | None = None, name: str = "the ledger") -> None:
        self.lines = io.BytesIO(data).readlines()
        self.head = head
        self.name = name
        self._entries: list[Entry] | None = None

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def entries(self) -> list[Entry]:
        """Every line as a dict; DataError when the chain is broken."""
        if self._entries is None:
            self._entries = self._read_chain()
        return self._entries

    def forgotten(self) -> NDArray[np.int64]:
        """Sorted numbers of all rows forgotten since the last fit."""
        return forgotten_rows(self.entries)

    def position(self, noted: str) -> int:
        """Index of the line with this hash; DataError where there is none."""
        for number, line in enumerate(self.lines):
            if line_digest(line) == noted:
                return number
        raise DataError(f"{self.name} was rewritten or cut off: the noted hash {noted[:12]}... is not in it")

    def verify(self, noted: str | None = None) -> None:
        """DataError unless the chain is whole, ends at the recorded head and makes sense.

        noted: a head written down elsewhere at some earlier time; it must be one of the hashes of this ledger. Only
        this protects against somebody who rewrites the ledger and artifact.json together.
        """
        self._check_story(self.entries)
        if noted is not None:
            self.position(noted)

    def _read_chain(self) -> list[Entry]:
        previous, entries = START, []
        for number, line in enumerate(self.lines, 1):
            try:
                found = schema.parse(line) if line.endswith(b"\n") else None
            except ValueError:
                found = None
            if not isinstance(found, dict) or found.get("seq") != number - 1 or found.get("previous") != previous:
                which = f"line {number} or the one before" if number > 1 else "line 1"
                raise DataError(f"{self.name} is not as it was written: {which} was changed or is missing")
            previous = line_digest(line)
            entries.append(found)
        if self.head is not None and previous != self.head:
            raise DataError(f"{self.name} is not as it was written: its last line was changed or lines are missing")
        for number, found in enumerate(entries, 1):
            try:
                schema.check("it", found, schema.ENTRY)
                if ("rows" in found) != (found["action"] in WITH_ROWS) or ("r" in found) != ("rows" in found):
                    raise ValueError("rows and their number belong to the actions unlearn and learn")
            except ValueError as error:
                raise DataError(f"line {number} of {self.name} makes no sense: {error}") from None
        return entries

    def _check_story(self, entries: list[Entry]) -> None:
        """The row counts add up; between two fits a row is forgotten once, and learned rows have new numbers."""
        n: int | None = None
        newest = -1
        seen: list[tuple[int, int]] = []
        for number, found in enumerate(entries, 1):
            try:
                if found["action"] == "fit":
                    self._check_once(seen)
                    n, seen, newest = found["n"], [], -1
                change = 0
                if "rows" in found:
                    first, last = (ends.tolist() for ends in ranges_of(found["rows"]))
                    change = sum(last) - sum(first) + len(first)
                if found["action"] == "unlearn":
                    change = -change
                    seen += zip(first, last, strict=True)
                elif found["action"] == "learn":
                    if len(first) != 1 or first[0] <= newest:
                        raise ValueError("learned rows that are no neighbours with new numbers")
                    newest = last[0]
                if abs(change) != found.get("r", 0) or (n is not None and found["n"] != n + change):
                    raise ValueError("the row counts do not add up")
                n = found["n"]
            except DataError:
                raise
            except ValueError as error:
                raise DataError(f"line {number} of {self.name} makes no sense: {error}") from None
        self._check_once(seen)

    def _check_once(self, seen: list[tuple[int, int]]) -> None:
        seen = sorted(seen)
        for (_, last), (first, _) in pairwise(seen):
            if first <= last:
                raise DataError(f"{self.name} makes no sense: row {first} is forgotten twice")


def forgotten_rows(entries: list[Entry]) -> NDArray[np.int64]:
    """Sorted numbers of all rows that these entries of a checked ledger forget since the last fit."""
    start = max((i for i, e in enumerate(entries) if e["action"] == "fit"), default=0)
    parts = [decode_rows(e["rows"], e["r"]) for e in entries[start:] if e["action"] == "unlearn"]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)
