"""What all parts of the report share: how records are picked and averaged, how values are written, how methods look."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from l2ul_fast.measure.records import Record, upgrade
from l2ul_fast.report.figures.kernels import COLOURS

BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, _, GREY = COLOURS
#: Text and lines, background. The page replaces both by its own colours: plots follow the reader's light or dark mode.
INK, PAPER = "#1a1c1f", "#fefefe"


class Look(NamedTuple):
    """How a method is written and drawn; colour and marker together tell all methods apart, also without colours."""

    name: str
    colour: str
    marker: str


#: In the order of every table and legend: the two references first.
LOOKS = {
    "nothing": Look("Do nothing", GREY, "_"),
    "retrain": Look("Retrain", INK, "s"),
    "retrain-warm": Look("Retrain, warm start", INK, "D"),
    "sisa": Look("SISA", ORANGE, "^"),
    "deltagrad": Look("DeltaGrad", GREEN, "v"),
    "fyemu": Look("FYEMU", PINK, "<"),
    "newton": Look("Newton step", YELLOW, "p"),
    "certified": Look("Certified removal", YELLOW, "h"),
    "influence": Look("Influence", YELLOW, "d"),
    "finetune": Look("Fine-tune", GREEN, ">"),
    "d2d": Look("Descent-to-Delete", PINK, "P"),
    "neggrad": Look("NegGrad", ORANGE, "X"),
    "l2ul-expansion": Look("L2UL", BLUE, "*"),
    "l2ul-learned": Look("L2UL, learned", SKY, "*"),
    "l2ul-kme": Look("L2UL, embeddings by class", GREEN, "*"),
    "l2ul-paper": Look("L2UL as in the paper", BLUE, "o"),
    "l2ul-newton": Look("L2UL before: Newton's step", YELLOW, "*"),
}
#: L2UL's default head: as it is, and as records of before have it.
OURS = ("l2ul-expansion", "l2ul-newton")
MODELS = {"lr": "Logistic regression", "mlp": "MLP"}
#: What a reader wants to see first; all other datasets follow.
DATASET_ORDER = ("magic", "adult", "sepsis", "skin", "covtype", "susy", "higgs")


def look(method: str) -> Look:
    """The look of a method; an unknown one is grey and keeps its name."""
    return LOOKS.get(method) or Look(plain(method), GREY, "o")


def value(record: Record, name: str) -> float | None:
    """A finite number of a record, or None where it is missing, null, NaN or text."""
    found = record.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


def values(records: Iterable[Record], name: str) -> list[float]:
    """The finite numbers called `name`."""
    return [v for r in records if (v := value(r, name)) is not None]


def median(records: Iterable[Record], name: str) -> float | None:
    """Median of the finite numbers called `name`, or None."""
    found = values(records, name)
    return float(np.median(found)) if found else None


def pick(records: Iterable[Record], **key: Any) -> list[Record]:
    """Records that have all these values; a tuple means one of them."""
    return [r for r in records if all(r.get(k) in v if isinstance(v, tuple) else r.get(k) == v for k, v in key.items())]


def group(records: Iterable[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """{values of `names`: records}, in the order of first appearance."""
    out: dict[tuple[Any, ...], list[Record]] = {}
    for r in records:
        out.setdefault(tuple(r.get(name) for name in names), []).append(r)
    return out


def ordered(found: Iterable[Any], known: Iterable[str]) -> list[Any]:
    """Distinct values: those of `known` in its order, then the others by name."""
    distinct, order = set(found), list(known)
    return [k for k in order if k in distinct] + sorted(distinct - set(order), key=str)


def methods_of(records: Iterable[Record]) -> list[str]:
    return ordered((r["method"] for r in records if r.get("method")), LOOKS)


def settings_of(records: Iterable[Record]) -> list[tuple[Any, Any, Any]]:
    """(dataset, source, n) of the records, smallest dataset of the paper first."""
    found = group(records, "dataset", "source", "n")
    order = {name: i for i, name in enumerate(DATASET_ORDER)}
    return sorted(found, key=lambda k: (order.get(k[0], 99), str(k[0]), k[2] or 0, str(k[1])))


def dataset_label(dataset: Any, source: Any, n: Any, sep: str = ", ") -> str:
    """magic (real, n = 15,216): no number stands without saying what data it is from."""
    rows = f"n = {n:,}" if isinstance(n, int) else "n unknown"
    return f"{dataset} ({source or 'unknown source'}{sep}{rows})"


def ours_of(records: Iterable[Record]) -> str:
    """The default head that the records have."""
    found = {r.get("method") for r in records}
    return next((name for name in OURS if name in found), OURS[0])


def main_threads(records: Iterable[Record]) -> int | None:
    """The thread count most records were taken with (of equals the largest): figures never mix thread counts."""
    counts = {k[0]: len(v) for k, v in group(records, "threads").items() if isinstance(k[0], int)}
    return max(counts, key=lambda k: (counts[k], k)) if counts else None


#: Fields that tell the runs of one cell apart.
RUN = ("seed", "run", "draw")


def runs_of(records: Iterable[Record]) -> int:
    """How many runs (seeds, or requests drawn anew) the records are from."""
    return len(group(records, *RUN))


def tidy(records: Iterable[Record]) -> list[Record]:
    """Records as reports read them, whatever version wrote them: r is the size asked for (a small table gives fewer
    rows), and all methods of a cell have the noise floor that its Retrain measured."""
    out = [{**r, "r": r["r_asked"]} if isinstance(r.get("r_asked"), int) else r for r in map(upgrade, records)]
    cell_of = ("experiment", "dataset", "source", "n", "model", "r", "kind", "threads")
    floors: dict[tuple[Any, ...], float | None] = {}
    measured = [r for r in out if value(r, "noise_floor") is not None]
    for key, found in group(measured, *cell_of).items():
        floors[key] = median(found, "noise_floor")
    return [
        r
        if value(r, "noise_floor") is not None or (floor := floors.get(tuple(map(r.get, cell_of)))) is None
        else {**r, "noise_floor": floor}
        for r in out
    ]


def plain(text: Any) -> str:
    """Text for a plot: a dollar sign would start a formula."""
    return str(text).replace("$", r"\$")


# --- how values are written -----------------------------------------------------------------------------------------


def seconds_text(s: float | None) -> str:
    """4.8 µs, 1.2 ms, 3.4 s with three digits."""
    if s is None:
        return "–"
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (600.0, 1.0, "s")):
        if s < limit:
            return f"{s * scale:.3g} {unit}"
    return f"{s / 60:.3g} min" if s < 7200 else f"{s / 3600:.3g} h"


def bytes_text(b: float | None) -> str:
    if b is None:
        return "–"
    for limit, scale, unit in ((1e3, 1.0, "B"), (1e6, 1e-3, "kB"), (1e9, 1e-6, "MB")):
        if b < limit:
            return f"{b * scale:.3g} {unit}"
    return f"{b / 1e9:.3g} GB"


def ratio_text(x: float | None) -> str:
    """1,234x; three digits below 100."""
    if x is None:
        return "–"
    return f"{x:,.0f}×" if x >= 100 else f"{x:.3g}×"


def number_text(x: float | None, digits: int = 3) -> str:
    if x is None:
        return "–"
    return f"{x:,.0f}" if x == int(x) and abs(x) < 1e15 else f"{x:.{digits}g}"


# --- tables -----------------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """What a table shows, and what it is sorted by: a number, or text; None sorts last in both directions."""

    text: str
    sort: float | str | None


def cell(x: Any) -> Cell:
    """A plain value as a cell."""
    if isinstance(x, Cell):
        return x
    if x is None or (isinstance(x, float) and not math.isfinite(x)):
        return Cell("–", None)
    if isinstance(x, bool):
        return Cell("yes" if x else "no", float(x))
    if isinstance(x, int | float | np.integer | np.floating):
        return Cell(number_text(float(x), 4), float(x))
    return Cell(str(x), str(x))


def seconds(x: float | None) -> Cell:
    return Cell(seconds_text(x), x)


def seconds_of(records: Iterable[Record], erased: bool) -> float | None:
    """Median seconds of one request: until the answer, or until nothing that is kept gives the rows back."""
    return median(records, "erased_seconds" if erased else "answer_seconds")


def erased_cell(records: list[Record]) -> Cell:
    """The second of the two, "never" where a method forgets nothing, a dash where it was not measured or failed."""
    never = any("erased_seconds" in r and r["erased_seconds"] is None and not r.get("erased_status") for r in records)
    found = seconds_of(records, True)
    return Cell("never", None) if found is None and never else seconds(found)


def factor_cell(retrain: Iterable[Record], own: Iterable[Record], erased: bool) -> Cell:
    """How many times faster than Retrain, by either time."""
    theirs, ours = seconds_of(retrain, erased), seconds_of(own, erased)
    factor = theirs / ours if theirs and ours else None
    return Cell(ratio_text(factor), factor)


def method_cell(method: str) -> Cell:
    """Sorted in the order of the legend."""
    return Cell(look(method).name, float([*LOOKS, method].index(method)))


@dataclass
class Table:
    """One table: names of columns, rows of cells or plain values, a sentence below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    help: dict[str, str] = field(default_factory=dict)  #: {column: what it means}


@dataclass
class Drawing:
    """One plot: the name of its files, a matplotlib figure, what it shows in words."""

    name: str
    figure: Any
    alt: str
    caption: str = ""


# --- plots ------------------------------------------------------------------------------------------------------------


def style() -> AbstractContextManager[None]:
    """matplotlib settings in which every figure of the page is made."""
    import matplotlib

    matplotlib.use("Agg")
    return matplotlib.rc_context(
        {
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "axes.titlecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "lines.color": INK,
            "patch.edgecolor": INK,
            "hatch.color": INK,
            "figure.facecolor": PAPER,
            "axes.facecolor": PAPER,
            "savefig.facecolor": PAPER,
            "legend.facecolor": PAPER,
            "legend.edgecolor": "none",
            "legend.framealpha": 0.85,
            "grid.color": INK,
            "grid.alpha": 0.13,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "font.size": 11,
            "axes.titlesize": 12,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "svg.fonttype": "none",
            "svg.hashsalt": "l2ul",
        }
    )


def seconds_axis(axis: Any) -> None:
    """A log axis of seconds whose ticks read 1 µs, 1 ms, 1 s."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(10, numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda s, _: f"{s:,.0f} s" if s >= 1 else seconds_text(s) if s > 0 else ""))
    axis.set_minor_formatter(NullFormatter())
