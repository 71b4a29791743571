"""Erase again, in a state that was restored from a backup, what a newer ledger says was forgotten since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.artifact.journal import Ids
from l2ul_fast.unlearner.artifact.ledger import Entry, Ledger, expand, forgotten_rows, ranges_of

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL


def replay(u: L2UL, newer: Ledger) -> list[Ids]:
    """Make the requests of `newer` that the restored `u` lacks, each under its name; the rows of each. Saves nothing.

    A newer state may have learned rows after the backup: those are left out, since `u` never had them.
    """
    made = []
    for rows, given in missing(newer, u.history, u.status.size):
        u.unlearn(rows)
        u._flush_log()
        if "request_id" in given:
            u.entries[-1]["request_id"] = given["request_id"]
        made.append(rows)
    return made


def missing(newer: Ledger, history: list[Entry], size: int) -> list[tuple[Ids, Entry]]:
    """(rows, entry) of the requests in a newer ledger that `history`, of a state with `size` row numbers, lacks."""
    later = list(newer.entries)
    pairs = enumerate(zip(later, history, strict=False))
    shared = next((i for i, (a, b) in pairs if a != b), min(len(later), len(history)))
    if not shared:
        raise DataError(f"{newer.name} is not of the model that was restored: their ledgers have no line in common")
    for e in [*later[shared:], *history[shared:]]:
        if e["action"] == "fit":
            raise DataError(
                f"since the backup the model was fitted again ({e['time']}), which gives rows other numbers: "
                "fit again without the rows that were forgotten"
            )
    known = forgotten_rows(history)
    end = min([size, *(ranges_of(e["rows"])[0][0] for e in later[shared:] if e["action"] == "learn")])
    found = []
    for e in later[shared:]:
        if e["action"] == "unlearn":
            first, last = ranges_of(e["rows"])
            old = first < end
            rows = np.setdiff1d(expand(first[old], np.minimum(last[old], end - 1)), known)
            if rows.size:
                found.append((rows, e))
    return found
