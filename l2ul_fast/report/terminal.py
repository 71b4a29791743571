"""Tables in the terminal, never cut: a block per dataset, and columns that do not fit go on below."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from l2ul_fast.measure.records import Record
from l2ul_fast.protocols import Styles
from l2ul_fast.report import style
from l2ul_fast.report.figure import Exhibit, resolve
from l2ul_fast.report.figures import headline, methods
from l2ul_fast.report.page.sections import INCOMPLETE, ordered, section_of
from l2ul_fast.report.runs import measured, ready
from l2ul_fast.report.values import Cell, Table, group_by, number_text, plural, select

COLOURS = {"missed": "red", "bad": "red", "good": "green"}


def console() -> Console:
    """stdout as wide as the terminal; piped, as wide as COLUMNS says, or 100."""
    found = Console()
    return found if found.is_terminal else Console(width=int(os.environ.get("COLUMNS") or 100))


def width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def render(tables: Iterable[Table], columns: int | None = None) -> Group:
    """All tables for a terminal of so many columns."""
    parts: list[RenderableType] = []
    for table in tables:
        parts.append(Text(table.title, style="bold"))
        for heading, rows in table.blocks():
            parts += [Text(heading, style="italic")] if heading else []
            names, right = [str(c) for c in table.columns[table.block :]], table.numeric()[table.block :]
            parts += _block(names, right, rows, columns or width())
        parts += [Text(table.note, style="dim")] if table.note else []
        parts.append(Text(""))
    return Group(*parts)


def _block(names: list[str], right: list[bool], rows: list[list[Cell]], columns: int) -> list[RenderableType]:
    """As many tables as it takes; each begins with the column that names the rows."""
    least = [max(len(x) for x in (*name.split(), *(row[k].text for row in rows))) for k, name in enumerate(names)]
    first = min(least[0], columns // 2)
    least = [first, *(min(w, columns - first - 4) for w in least[1:])]
    parts: list[list[int]] = [[0]]
    for k in range(1, len(names)):
        if len(parts[-1]) > 1 and sum(least[j] + 2 for j in (*parts[-1], k)) > columns:
            parts.append([0])
        parts[-1].append(k)
    tables: list[RenderableType] = []
    for some in parts:
        table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        whole = {k: max(least[k], len(names[k]) if k else 0) for k in some}
        fits = sum(whole[k] + 2 for k in some) <= columns  # else headings break, and numbers do not
        for k in some:
            justify: Any = "right" if right[k] else "left"
            table.add_column(Text(names[k]), justify=justify, overflow="fold", width=whole[k] if fits else least[k])
        for row in rows:
            table.add_row(*(Text(row[k].text, style=COLOURS.get(row[k].mark, "")) for k in some))
        tables.append(table)
    return tables


def closing(
    records: list[Record],
    exhibits: Mapping[str, Exhibit] | None = None,
    styles: Styles | None = None,
    columns: int | None = None,
) -> Group:
    """What `l2ul bench` ends with: the verdict, one block per dataset, the tables of experiments that ran alone."""
    exhibits = exhibits or {}
    records = measured(ready(records))
    with style.using(styles):
        main = [r for r in records if r.get("experiment") in methods.MAIN]
        brief = [methods.brief(select(main, experiment=name)) for name in methods.MAIN]
        tables = [*(table for table in brief if table.rows), *headline.tables(main)]
        names = [name for name in ordered(records, exhibits) if name not in (*methods.MAIN, "gate")]
        if not main and len(names) <= 2:
            for name in names:
                own = [r for r in records if section_of(str(r["experiment"]), exhibits) == name and not r.get("failed")]
                tables += _tables(exhibits.get(name, Exhibit(name)), own)
        parts: list[RenderableType] = [render(tables, columns)]
        if said := headline.verdict(main):
            parts.append(Text(said, style="bold"))
        failed = select(records, failed=True)
        if failed:
            parts.append(Text(f"{plural(len(failed), 'cell')} failed: {failed[0].get('status')}", style="red"))
        counted = group_by(records, "experiment").items()
        parts.append(Text("records: " + ", ".join(f"{key[0]} {len(found)}" for key, found in counted)))
        return Group(*parts)


def _tables(exhibit: Exhibit, records: list[Record]) -> list[Table]:
    figure = resolve(exhibit.figure)
    try:
        return figure.all_tables(records) if figure and records else []
    except INCOMPLETE:  # an unfinished experiment: the counts below say how far it got
        return []


def both(before: list[Record], after: list[Record]) -> Table:
    """Old and new values of reproduced cells side by side."""
    rows: list[list[Any]] = []
    for old, new in zip(before, after, strict=False):
        cell = "/".join(str(old[k]) for k in ("experiment", "dataset", "model", "method", "r", "repeat") if k in old)
        for key, value in old.items():
            if isinstance(value, float) and isinstance(new.get(key), float) and key not in ("at", "steal"):
                rows.append([cell, key, number_text(value, 4), number_text(new[key], 4)])
    return Table("Recorded and measured again", ["cell", "value", "recorded", "again"], rows, block=1)
