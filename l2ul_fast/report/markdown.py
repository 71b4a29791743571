"""Tables as Markdown, and generated parts of pages: text between `<!-- name:begin -->` and `<!-- name:end -->`."""

from __future__ import annotations

from collections.abc import Iterable

from l2ul_fast.errors import UserError
from l2ul_fast.report.values import Table

#: Rows above which a table is folded away.
LONG = 40


def render(tables: Iterable[Table], fold: bool = True) -> str:
    """Titles, tables and notes, one after the other; long tables inside <details>."""
    return "\n\n".join(_table(table, fold and len(table.rows) > LONG) for table in tables)


def _table(table: Table, folded: bool) -> str:
    """Blocks of rows begin with a row in bold."""
    title = f"<details><summary>{table.title}</summary>" if folded else f"**{table.title}**"
    columns, right = table.columns[table.block :], table.numeric()[table.block :]
    lines = [list(columns), ["---:" if r else "---" for r in right]]
    for heading, rows in table.blocks():
        lines += [[f"**{heading}**", *[""] * (len(columns) - 1)]] if heading else []
        lines += [[c.text for c in row] for row in rows]
    body = "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
    parts = [title, body, table.note, "</details>" if folded else ""]
    return "\n\n".join(part for part in parts if part)


def replace_part(text: str, name: str, content: str) -> str:
    """`text` with the part called `name` replaced by `content`.

    Raises
    ------
    UserError
        If the text has not exactly one such part.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise UserError(f"the file needs exactly one pair of {begin} and {end}")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
