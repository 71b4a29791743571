"""Figures of tests that try to break the program, written down by hand with the commands that make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.values import rows_of, select


@rows_of("Tried to break", "A figure that nobody has written down yet says so.", block=0)
def tried(records: list[Record]) -> Iterator[dict[str, Any]]:
    for r in select(records, experiment="robustness"):
        found = str(r["figure"]) if r.get("figure") else "not recorded yet"
        yield {"what": str(r["check"]), "command": f"`{r['command']}`", "found": found}


FIGURE = Figure(lambda records: [tried(records)])
