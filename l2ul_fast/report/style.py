"""How methods look in every table and plot, and matplotlib's settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.protocols import Style, Styles

#: Text and lines, background. The page replaces both by its own colours: plots follow the reader's light or dark mode.
INK, PAPER = "#1a1c1f", "#fefefe"
#: Okabe and Ito's colours, told apart by colour-blind readers, with ink for black; and by the names a Style may give.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK, "#999999")
NAMED = dict(zip(("blue", "orange", "green", "pink", "yellow", "sky", "ink", "grey"), COLOURS, strict=True))
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, _, GREY = COLOURS
DASHES = ("-", "--", ":", "-.")

#: Methods that only records of older versions have.
RETIRED = {
    "l2ul-newton": Style("L2UL before: Newton's step", "yellow", "*"),
    "l2ul-newton-reanchored": Style("L2UL before, re-anchored", "orange", "P"),
    "l2ul-network": Style("L2UL's network", "sky", "p"),
}
#: Rows of tables and lines of plots that are no methods.
REFERENCES = {
    "l2ul-robust": Style("L2UL, learned, robust", "pink", "P"),
    "l2ul-refreshed": Style("L2UL, refreshed", "green", "P"),
}
#: What matplotlib can draw as a mark; any other becomes a circle.
MARKERS = frozenset(".,ov^<>12348spP*hH+xXDd|_")
#: L2UL's default head: as it is, and as records of before have it.
OURS = ("l2ul-expansion", "l2ul-newton")
_styles: ContextVar[Styles | None] = ContextVar("styles", default=None)


@contextmanager
def using(styles: Styles | None) -> Iterator[None]:
    """Names, marks and order of methods for everything drawn inside."""
    token = _styles.set(styles or {})
    try:
        yield
    finally:
        _styles.reset(token)


def style_of(method: str) -> Style:
    """The style of a method; without a colour it takes the next free one; an unknown method is grey."""
    known = {**RETIRED, **REFERENCES, **(_styles.get() or {})}
    found = known.get(method) or Style(method, GREY, "o")
    colour = NAMED.get(found.colour, found.colour)
    marker = found.marker if found.marker in MARKERS else "o"
    if re.fullmatch("#[0-9a-fA-F]{6}", colour):
        return Style(found.label, colour, marker)
    taken = {NAMED.get(s.colour, s.colour) for s in known.values()}
    palette = [c for c in COLOURS if c not in (INK, GREY)]
    free = [c for c in palette if c not in taken] or palette
    blank = [name for name, s in known.items() if not s.colour]
    return Style(found.label, free[(blank.index(method) if method in blank else 0) % len(free)], marker)


def method_order(method: str) -> tuple[float, str]:
    """What methods are sorted by: the order of the styles, then by name."""
    order = list({**(_styles.get() or {}), **REFERENCES, **RETIRED})
    return (float(order.index(method)) if method in order else float(len(order)), method)


def ours_of(records: Iterable[Record]) -> str:
    """The default head that the records have."""
    found = {r.get("method") for r in records}
    return next((name for name in OURS if name in found), OURS[0])


def plain(text: Any) -> str:
    """Text for a plot: a dollar sign would start a formula."""
    return str(text).replace("$", r"\$")


def drawing_style() -> AbstractContextManager[None]:
    """matplotlib settings in which every figure is made."""
    import matplotlib

    matplotlib.use("Agg")
    inked = "text.color axes.labelcolor axes.edgecolor axes.titlecolor xtick.color ytick.color lines.color"
    inked += " patch.edgecolor hatch.color grid.color"
    papered = "figure.facecolor axes.facecolor savefig.facecolor legend.facecolor"
    looks: dict[Any, Any] = dict.fromkeys(inked.split(), INK) | dict.fromkeys(papered.split(), PAPER)
    looks |= {"legend.edgecolor": "none", "legend.framealpha": 0.85, "axes.axisbelow": True}
    looks |= {"axes.grid": True, "grid.alpha": 0.13, "axes.spines.top": False, "axes.spines.right": False}
    looks |= {"axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left", "font.size": 11}
    return matplotlib.rc_context(looks | {"svg.fonttype": "none", "svg.hashsalt": "l2ul"})


def subplots(*args: Any, **options: Any) -> tuple[Any, Any]:
    """(figure, 2-d array of axes), laid out so that nothing overlaps."""
    from matplotlib.figure import Figure

    size = options.pop("figsize")
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(*args, squeeze=False, **options)


def seconds_axis(axis: Any) -> None:
    """A log axis of seconds whose ticks read 1 µs, 1 ms, 1 s."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def text(s: float, _: int) -> str:
        for limit, scale, unit in ((0.9e-6, 1e9, "ns"), (0.9e-3, 1e6, "µs"), (0.9, 1e3, "ms")):
            if 0 < s < limit:
                return f"{s * scale:.3g} {unit}"
        return f"{s:,.0f} s" if s > 0 else ""

    axis.set_major_locator(LogLocator(10, numticks=8))
    axis.set_major_formatter(FuncFormatter(text))
    axis.set_minor_formatter(NullFormatter())


def draw_line(axis: Any, points: dict[Any, list[float]], method: str, floor: float | None = None, **paint: Any) -> None:
    """Medians of `points` ({x: values}) with quartiles as a band; smaller values than `floor` are drawn there."""
    known = [(x, np.quantile(found, (0.25, 0.5, 0.75))) for x, found in sorted(points.items()) if found]
    if not known:
        return
    low, mid, high = np.array([q if floor is None else np.maximum(q, floor) for _, q in known]).T
    x, shape = [place for place, _ in known], style_of(method)
    looks = {"color": shape.colour, "marker": shape.marker if shape.marker != "_" else ".", "label": shape.label}
    line = {"linestyle": "--" if method == "l2ul-paper" else "-", "linewidth": 1.4, "markersize": 6}
    axis.plot(x, mid, **(looks | line | paint))
    axis.fill_between(x, low, high, color=shape.colour, alpha=0.15, linewidth=0)


def legend(figure: Any, axes: Iterable[Any], columns: int = 4) -> None:
    """One legend below the figure for all that its axes name."""
    known: dict[str, Any] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            known.setdefault(name, handle)
    if known:
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=columns, frameon=False)
