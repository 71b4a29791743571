"""`l2ul report`: one self-contained HTML page of a run, and its plots as files beside it."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import Record, write_atomic
from l2ul_fast.report.common import INK, PAPER, Cell, Drawing, Table, cell, style


@dataclass
class Section:
    """One box of the page. html: trusted markup made here, never text from records."""

    anchor: str
    title: str
    text: str = ""
    drawings: list[Drawing] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    html: str = ""
    kind: str = ""


def escape(text: Any) -> str:
    return html.escape(str(text), quote=True)


def write_page(title: str, lead: str, sections: list[Section], out: Path) -> Path:
    """Write out/index.html and out/<name>.png, .svg of every plot; returns the page's path."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        body = "\n".join(_section(section, out) for section in sections)
        script = _part("page.js").rstrip("\n")
        parts = {
            "title": escape(title),
            "lead": escape(lead),
            "nav": "\n".join(f'<li><a href="#{escape(s.anchor)}">{escape(s.title)}</a></li>' for s in sections),
            "css": _part("page.css"),
            "script": script,
            "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            "body": body,
        }
        # one pass: text that was put in is not looked at again
        text = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _part("page.html"))
        write_atomic(out / "index.html", text)
    except OSError as error:
        raise UserError(f"cannot write the report to {out}: {error.strerror}") from None
    return out / "index.html"


def _part(name: str) -> str:
    return files("l2ul_fast.report").joinpath(name).read_text(encoding="utf-8")


def _section(section: Section, out: Path) -> str:
    kind = f' class="{escape(section.kind)}"' if section.kind else ""
    parts = [f'<section id="{escape(section.anchor)}"{kind}>', f"<h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(text)}</p>" for text in section.text.split("\n") if text]
    parts.append(section.html)
    parts += [drawing_html(d, out) for d in section.drawings]
    parts += [table_html(t) for t in section.tables]
    return "\n".join([*parts, "</section>"])


# --- tables -----------------------------------------------------------------------------------------------------------


def table_html(table: Table) -> str:
    """A sortable table that scrolls inside itself; the first column names the row."""
    rows = [[cell(x) for x in row] for row in table.rows]
    # a column of numbers reads best right-aligned; method names carry a number only for their order
    numeric = [
        all(row[k].sort is None or _is_number(row[k]) for row in rows) and any(_is_number(row[k]) for row in rows)
        for k in range(len(table.columns))
    ]
    head = "".join(
        f'<th scope="col"><button type="button" class="{"num" if right else ""}"'
        f"{_title(table.help.get(name, ''))}>{escape(name)}</button></th>"
        for name, right in zip(table.columns, numeric, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(_cell(c, k == 0, right) for k, (c, right) in enumerate(zip(row, numeric, strict=True)))
        + "</tr>"
        for row in rows
    )
    return (
        f"<h3>{escape(table.title)}</h3>\n"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table class="sortable">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
        + (f'\n<p class="note">{escape(table.note)}</p>' if table.note else "")
    )


def _is_number(c: Cell) -> bool:
    return isinstance(c.sort, int | float) and bool(re.match(r"[-+−≤<>]?\s*[\d.]|never", c.text))


def _title(text: str) -> str:
    return f' title="{escape(text)}"' if text else ""


def _cell(c: Cell, first: bool, right: bool) -> str:
    tag = 'th scope="row"' if first else "td"
    kind = "num" if right else "long" if len(c.text) > 60 else ""
    sort = "" if c.sort is None else f' data-sort="{escape(c.sort)}"'
    look = f' class="{kind}"' if kind else ""
    text = escape(c.text)
    if "(stand-in" in c.text:
        text = f'<span class="is-standin" title="a stand-in, not the real data">{text}</span>'
    return f"<{tag}{look}{sort}>{text}</{tag.split()[0]}>"


# --- plots ------------------------------------------------------------------------------------------------------------


def drawing_html(drawing: Drawing, out: Path) -> str:
    """The plot inline, its colours those of the page, and links to its files."""
    name = re.sub(r"[^a-z0-9-]+", "-", drawing.name.lower())
    with style():  # how text is written to SVG is decided here, not when the figure is made
        drawing.figure.savefig(text := io.StringIO(), format="svg", metadata={"Date": None})
        drawing.figure.set_layout_engine("none")  # found once: it takes longer than drawing
        drawing.figure.savefig(out / f"{name}.png", dpi=140)
    svg = text.getvalue()
    (out / f"{name}.svg").write_text(svg, encoding="utf-8")
    caption = f"{escape(drawing.caption)} " if drawing.caption else ""
    return (
        f'<figure id="plot-{name}">\n'
        f'<div class="plot" tabindex="0" role="region" aria-label="Plot {escape(drawing.name)}">'
        f"{inline_svg(svg, drawing.alt, name)}</div>\n<figcaption>{caption}"
        f'<a href="{name}.png">PNG</a> <a href="{name}.svg">SVG</a></figcaption>\n</figure>'
    )


def inline_svg(svg: str, alt: str, name: str) -> str:
    """matplotlib's SVG as part of a page: ids made unique, ink and paper follow the page, the words for it added."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(INK, "currentColor").replace("#000000", "currentColor").replace(PAPER, "var(--card)")
    svg = svg.replace("'DejaVu Sans', 'Bitstream Vera Sans'", "'DejaVu Sans', Verdana")
    head, rest = svg.split(">", 1)
    # its own size in points: near it, text is as large as the page's; a phone scrolls instead of shrinking it
    found = re.search(r'\swidth="([\d.]+)', head)
    points = float(found[1]) if found else 700.0
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    head += f' style="min-width: {0.95 * points:.0f}px; max-width: {1.55 * points:.0f}px"'
    return f'{head} role="img" aria-label="{escape(alt)}"><title>{escape(alt)}</title>{rest}'


def records_table(name: str, records: list[Record]) -> Table:
    """Records as they are, for experiments without a figure of their own: only columns that say something."""
    drop = {"experiment", "at", "job"}
    columns = [k for k in dict.fromkeys(k for r in records for k in r) if k not in drop]
    columns = [k for k in columns if any(r.get(k) is not None and not isinstance(r[k], dict | list) for r in records)]
    rows = [[None if isinstance(r.get(k), dict | list) else r.get(k) for k in columns] for r in records]
    return Table(f"Records of {name}", columns, rows)
