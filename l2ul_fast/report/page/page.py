"""Sections, tables and plots as one HTML page, and the plots as files beside it."""

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
from l2ul_fast.files import write_atomic
from l2ul_fast.report.style import INK, PAPER, drawing_style
from l2ul_fast.report.values import Cell, Drawing, Table

#: Rows above which a table is folded away; printing unfolds it.
LONG = 40


@dataclass
class Section:
    """One box of the page: text, tables, plots, more tables. html: trusted markup made here, never text of records."""

    anchor: str
    title: str
    text: str = ""
    tables: list[Table] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    more: list[Table] = field(default_factory=list)
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
    return files("l2ul_fast.report.page").joinpath(name).read_text(encoding="utf-8")


def _section(section: Section, out: Path) -> str:
    kind = f' class="{escape(section.kind)}"' if section.kind else ""
    parts = [f'<section id="{escape(section.anchor)}"{kind}>', f"<h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(text)}</p>" for text in section.text.split("\n") if text]
    parts.append(section.html)
    parts += [table_html(t) for t in section.tables]
    parts += [drawing_html(d, out) for d in section.drawings]
    parts += [table_html(t) for t in section.more]
    return "\n".join([*parts, "</section>"])


# --- tables -----------------------------------------------------------------------------------------------------------


def table_html(table: Table) -> str:
    """A sortable table, folded away when it is long; its first column stays in sight, its blocks have headings."""
    columns = list(table.columns[table.block :])
    numeric = table.numeric()[table.block :]
    head = "".join(
        f'<th scope="col"><button type="button"{_kind("num" if right else "")}>{escape(name)}</button></th>'
        for name, right in zip(columns, numeric, strict=True)
    )
    body = "\n".join(_block(heading, found, numeric) for heading, found in table.blocks())
    title = escape(table.title)
    text = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table class="sortable">\n'
        f"<caption>{title}</caption>\n<thead><tr>{head}</tr></thead>\n{body}\n</table></div>"
    ) + (f'\n<p class="note">{escape(table.note)}</p>' if table.note else "")
    if len(table.rows) <= LONG:
        return text
    return f"<details><summary>{title} ({len(table.rows):,} rows)</summary>\n{text}\n</details>"


def _block(heading: str, rows: list[list[Cell]], numeric: list[bool]) -> str:
    lines = [
        "<tr>"
        + "".join(_cell(c, k == 0, right) for k, (c, right) in enumerate(zip(row, numeric, strict=True)))
        + "</tr>"
        for row in rows
    ]
    if heading:
        wide = f'<th scope="rowgroup" colspan="{len(numeric)}"><span>{_text(heading)}</span></th>'
        lines.insert(0, f'<tr class="block">{wide}</tr>')
    return "<tbody>\n" + "\n".join(lines) + "\n</tbody>"


def _kind(*names: str) -> str:
    found = " ".join(name for name in names if name)
    return f' class="{found}"' if found else ""


def _text(text: str) -> str:
    """Escaped; stand-ins stand out, and a narrow screen shows the spread of a number below it."""
    if "(stand-in" in text:
        return f'<span class="is-standin" title="a stand-in, not the real data">{escape(text)}</span>'
    return re.sub(r" (\([^()–]+–[^()]+\))", r' <span class="spread">\1</span>', escape(text))


def _cell(c: Cell, first: bool, right: bool) -> str:
    tag = 'th scope="row"' if first else "td"
    kind = _kind("num" if right else "wide" if len(c.text) > 60 else "", c.mark)
    sort = "" if c.sort is None else f' data-sort="{escape(c.sort)}"'
    return f"<{tag}{kind}{sort}>{_text(c.text)}</{tag.split()[0]}>"


# --- plots ------------------------------------------------------------------------------------------------------------


def drawing_html(drawing: Drawing, out: Path) -> str:
    """The plot inline, its colours those of the page, and links to its files."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    name = re.sub(r"[^a-z0-9-]+", "-", drawing.name.lower())[:100]
    figure = drawing.figure
    with drawing_style():  # how text is written to SVG is decided here, not when the figure is made
        # by the canvases: savefig draws everything twice
        FigureCanvasSVG(figure).print_svg(text := io.StringIO(), metadata={"Date": None})
        figure.set_layout_engine("none")  # found once: it takes longer than drawing
        figure.set_dpi(140)
        FigureCanvasAgg(figure).print_png(out / f"{name}.png")
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
