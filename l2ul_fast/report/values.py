"""One Table and one Drawing, which page, terminal and Markdown render; and how records become their cells."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.style import method_order, style_of

MODELS = {"lr": "Logistic regression", "mlp": "MLP"}
MODELS_SHORT = {"lr": "LR", "mlp": "MLP"}
#: Share of CPU time taken by other guests above which a timing is marked as disturbed.
STEAL = 0.02
DISTURBED = " ‡"
DISTURBED_NOTE = (
    f"‡ other guests of the host took more than {100 * STEAL:g} % of the CPU time while this was measured; "
    "what else the machine itself was doing is not seen by this."
)


class Cell(NamedTuple):
    """What a table shows, and what it is sorted by: a number or text; None sorts last in both directions.

    mark: "missed" (a goal), "good", "bad" or ""; each renderer shows it in its own way.
    """

    text: str
    sort: float | str | None = None
    mark: str = ""


Value = str | Callable[[Record], float | None]
Column = Callable[[list[Record]], Any]
Rows = Callable[[list[Record]], Iterator[Mapping[str, Any]]]


@dataclass
class Table:
    """Named columns, rows of cells (plain values are turned into cells), a sentence below.

    The first `block` columns head a block of rows: a heading in the page and in the terminal, columns in Markdown.
    Columns without any value are left out.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    block: int = 0

    def __post_init__(self) -> None:
        rows = [[cell(x) for x in row] for row in self.rows]
        said = [any(row[k].text not in ("–", "") for row in rows) for k in range(len(self.columns))]
        kept = [k for k in range(len(said)) if k <= self.block or said[k]]
        self.columns, self.rows = [self.columns[k] for k in kept], [[row[k] for k in kept] for row in rows]

    def numeric(self) -> list[bool]:
        """Columns of numbers, which read best right-aligned; names of methods carry a number only for their order."""
        columns = [[row[k] for row in self.rows] for k in range(len(self.columns))]
        return [any(map(is_number, c)) and all(x.sort is None or is_number(x) for x in c) for c in columns]

    def blocks(self) -> Iterator[tuple[str, list[list[Cell]]]]:
        """(heading, the rows' other cells) of every run of rows with the same heading; "" without blocks."""
        heading: str | None = None
        found: list[list[Cell]] = []
        for row in self.rows:
            own = ", ".join(c.text for c in row[: self.block] if c.text)
            if found and own != heading:
                yield str(heading), found
                found = []
            heading = own
            found.append(list(row[self.block :]))
        if found:
            yield str(heading), found


def is_number(c: Cell) -> bool:
    return isinstance(c.sort, int | float) and bool(re.match(r"[-+−≤<>]?\s*[\d.]|never", c.text))


@dataclass
class Drawing:
    """One plot: the name of its files, a matplotlib figure, what it shows in words."""

    name: str
    figure: Any
    alt: str
    caption: str = ""


# --- records ----------------------------------------------------------------------------------------------------------


def value(record: Record, name: Value) -> float | None:
    """A finite number of a record, or None where it is missing, null, NaN or text."""
    found = name(record) if callable(name) else record.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float | np.number):
        return None
    return finite(found)


def finite(x: Any) -> float | None:
    """The number, unless it is NaN, infinite or larger than any float."""
    try:
        return float(x) if math.isfinite(x) else None
    except OverflowError:
        return None


def values(records: Iterable[Record], name: Value) -> list[float]:
    """The finite numbers called `name`, or that a function gives."""
    return [v for r in records if (v := value(r, name)) is not None]


def median(records: Iterable[Record], name: Value) -> float | None:
    found = values(records, name)
    return float(np.median(found)) if found else None


def quartiles(records: list[Record], name: str) -> tuple[float, float] | None:
    """Over repeats, or as a record of medians has them (`<name>_low`, `<name>_high`); None for one value alone."""
    if len(records) == 1 and (low := value(records[0], f"{name}_low")) is not None:
        high = value(records[0], f"{name}_high")
        return (low, high) if high is not None else None
    found = values(records, name)
    if len(found) < 2:
        return None
    low, high = np.quantile(found, (0.25, 0.75)).tolist()
    return low, high


def select(records: Iterable[Record], **key: Any) -> list[Record]:
    """Records that have all these values; a tuple means one of them."""
    return [r for r in records if all(r.get(k) in v if isinstance(v, tuple) else r.get(k) == v for k, v in key.items())]


def group_by(records: Iterable[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """{values of `names`: records}, in the order of first appearance."""
    out: dict[tuple[Any, ...], list[Record]] = {}
    for r in records:
        out.setdefault(tuple(r.get(name) for name in names), []).append(r)
    return out


def methods_of(records: Iterable[Record]) -> list[str]:
    """Methods of the records in the order of tables and legends."""
    return sorted({r["method"] for r in records if r.get("method")}, key=method_order)


def settings_of(records: Iterable[Record]) -> list[tuple[Any, Any, Any]]:
    """(dataset, source, n) of the records: datasets in the order of the run, smallest n first."""
    found = list(group_by(records, "dataset", "source", "n"))
    order = {name: i for i, name in enumerate(dict.fromkeys(k[0] for k in found))}
    return sorted(found, key=lambda k: (order[k[0]], k[2] or 0, str(k[1])))


def main_threads(records: Iterable[Record]) -> int | None:
    """The thread count most records were taken with (of equals the largest): figures never mix thread counts."""
    counts = {k[0]: len(v) for k, v in group_by(records, "threads").items() if isinstance(k[0], int)}
    return max(counts, key=lambda k: (counts[k], k)) if counts else None


def one_thread_count(records: list[Record]) -> list[Record]:
    """The records of the main thread count; all of them where none has one."""
    k = main_threads(records)
    return records if k is None else select(records, threads=k)


def runs_of(records: Iterable[Record]) -> int:
    """How many repeats (seeds, or requests drawn anew) the records are from; medians say how many they stand for."""
    records = list(records)
    repeats = len(group_by(records, "seed", "base_seed", "repeat"))
    return max([repeats, *(int(k) for k in values(records, "runs"))], default=0)


def r_text(records: Iterable[Record]) -> str:
    """Rows really forgotten, as a range where datasets or repeats differ, and what was asked for where that differs."""
    records = list(records)
    found = sorted({int(v) for v in values(records, "r")})
    asked = sorted({int(v) for v in values(records, "r_asked")})
    if not found:
        return "–"
    text = f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"
    return text if not asked or asked == found else f"{text} (asked {asked[0]:,})"


def source_name(source: Any) -> str:
    """real, subset, stand-in or own data: the digest of a user's own file says nothing to a reader."""
    kind, comma, settings = str(source or "unknown source").partition(", ")
    return ("own data" if kind.startswith("own:") else kind) + comma + settings


def dataset_label(dataset: Any, source: Any, n: Any) -> str:
    """magic (real, n = 15,216): no number stands without saying what data it is from."""
    rows = f"n = {n:,}" if isinstance(n, int) else "n unknown"
    return f"{dataset} ({source_name(source)}, {rows})"


def models_text(records: Iterable[Record]) -> str:
    """Logistic regression, MLP: what the records are of."""
    return ", ".join(dict.fromkeys(MODELS.get(m, str(m)) for (m,) in group_by(records, "model") if m))


def sources(records: Iterable[Record]) -> str:
    """higgs: stand-in; magic: real."""
    return "; ".join(dict.fromkeys(f"{d}: {source_name(s)}" for d, s, _ in settings_of(records) if d))


# --- how values are written -------------------------------------------------------------------------------------------


def seconds_text(s: float | None) -> str:
    """4.8 µs, 1.2 ms, 3.4 s with three digits."""
    if s is None:
        return "–"
    scale, unit = _unit(s)
    return f"{s * scale:.3g} {unit}"


def spread_text(s: float, low: float, high: float) -> str:
    """4.8 µs (3.1–9.2), in the unit of the middle."""
    scale = _unit(s)[0]
    return (
        f"{seconds_text(s)} ({number_text(low * scale)}–{number_text(high * scale)})" if low < high else seconds_text(s)
    )


def _unit(s: float) -> tuple[float, str]:
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (600.0, 1.0, "s")):
        if s < limit:
            return scale, unit
    return (1 / 60, "min") if s < 7200 else (1 / 3600, "h")


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
    if (x == int(x) and abs(x) < 1e15) or abs(x) >= 10**digits:
        return f"{x:,.0f}"
    return f"{x:.{digits}g}"


def plural(k: int, noun: str) -> str:
    return f"{k:,} {noun}{'' if k == 1 else 's'}"


# --- cells ------------------------------------------------------------------------------------------------------------


NONE = Cell("–", None)


def cell(x: Any) -> Cell:
    """A plain value as a cell."""
    if isinstance(x, Cell):
        return x
    if isinstance(x, bool):
        return Cell("yes" if x else "no", float(x))
    if isinstance(x, int | float | np.integer | np.floating):
        found = finite(x)
        return NONE if found is None else Cell(number_text(found, 4), found)
    return NONE if x is None else Cell(str(x), str(x))


def seconds(x: float | None) -> Cell:
    return Cell(seconds_text(x), x)


def method_cell(method: str) -> Cell:
    """Sorted in the order of the legend."""
    return Cell(style_of(method).label, method_order(method)[0])


def model_text(model: Any) -> str:
    return MODELS_SHORT.get(model, str(model or ""))


def middle(name: Value, form: str = "{:.4g}") -> Column:
    """A column: the median of a field or function."""

    def column(records: list[Record]) -> Cell:
        found = median(records, name)
        return NONE if found is None else Cell(form.format(found), found)

    return column


def timed(name: str) -> Column:
    """A column: median seconds with their quartiles, marked where other work disturbed the timing."""

    def column(records: list[Record]) -> Cell:
        found = median(records, name)
        if found is None:
            return NONE
        text = spread_text(found, *(quartiles(records, name) or (found, found)))
        return Cell(text + (DISTURBED if disturbed(records) else ""), found)

    return column


def disturbed(records: Iterable[Record]) -> bool:
    """Whether other work took CPU time of any of these measurements."""
    return any(v > STEAL for v in values(records, "steal"))


def remarks(records: list[Record]) -> Cell:
    """Why cells failed or were left out."""
    why = sorted({str(r.get("status")) for r in records if r.get("status", "ok") != "ok"})
    return Cell("; ".join(why), None)


def erased_cell(records: list[Record]) -> Cell:
    """Time until nothing kept gives the rows back: "never" where a method forgets nothing, a dash if not measured."""
    never = any("erased_seconds" in r and r["erased_seconds"] is None and not r.get("erased_status") for r in records)
    found = timed("erased_seconds")(records)
    return Cell("never", None) if found.sort is None and never else found


def factor(theirs: list[Record], own: list[Record], name: str = "answer_seconds") -> Cell:
    """How many times faster `own` is; below 1 it says slower."""
    a, b = median(theirs, name), median(own, name)
    return faster(a / b if a and b else None)


def faster(ratio: float | None) -> Cell:
    """630x; 1.13x slower for a ratio below 1."""
    if ratio is None or ratio >= 1:
        return Cell(ratio_text(ratio), ratio)
    return Cell(f"{ratio_text(1 / ratio)} slower", ratio, "bad")


def points(record: Record) -> float | None:
    """Accuracy minus Retrain's of the same repeat, in points."""
    a, b = value(record, "accuracy"), value(record, "retrain_accuracy")
    return None if a is None or b is None else 100 * (a - b)


def marked(text: str, found: float | None, goal: float | None, goal_text: str = "", at_least: bool = False) -> Cell:
    """The figure, and its goal where it misses it."""
    if found is None or goal is None or (found >= goal if at_least else found <= goal):
        return Cell(text, found)
    return Cell(f"{text} (miss: {'>=' if at_least else '<='} {goal_text or f'{goal:g}'})", found, "missed")


# --- tables -----------------------------------------------------------------------------------------------------------


#: How values of a field are written where rows are named by it.
WRITTEN: dict[str, Callable[[Any], Any]] = {"model": model_text, "method": method_cell}


def cells_of(records: list[Record], *by: str) -> Iterator[tuple[Any, ...]]:
    """(*values of `by`, records) of every cell, nested in that order: datasets in the run's order, methods in the
    legend's. "data" stands for dataset, source and n together."""
    if not by:
        yield (records,)
        return
    name, rest = by[0], by[1:]
    if name == "data":
        for setting in settings_of(records):
            own = select(records, dataset=setting[0], source=setting[1], n=setting[2])
            for found in cells_of(own, *rest):
                yield (dataset_label(*setting), *found)
        return
    keys = methods_of(records) if name == "method" else [k for (k,) in group_by(records, name)]
    for key in keys:
        for found in cells_of(select(records, **{name: key}), *rest):
            yield (key, *found)


def listing(title: str, rows: Sequence[Mapping[str, Any]], note: str = "", block: int = 0) -> Table:
    """Rows as {heading: value}: the columns are those of all rows, in the order of first appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Table(title, columns, [[row.get(name) for name in columns] for row in rows], note, block)


def rows_of(title: str, note: str = "", block: int = 1) -> Callable[[Rows], Callable[[list[Record]], Table]]:
    """Decorator: a generator of rows {heading: value} becomes a function from records to a Table."""

    def decorate(make: Rows) -> Callable[[list[Record]], Table]:
        return lambda records: listing(title, list(make(records)), note, block)

    return decorate


def table_of(
    title: str,
    records: list[Record],
    by: Mapping[str, str],
    columns: Mapping[str, Column],
    note: str = "",
    block: int = 0,
) -> Table:
    """A row per cell: the fields `by` ({field: heading}) name it, `columns` ({heading: of its records}) fill it."""
    rows = []
    for *names, own in cells_of(records, *by):
        head = [WRITTEN.get(field, lambda x: x)(x) for field, x in zip(by, names, strict=True)]
        rows.append([*head, *(make(own) for make in columns.values())])
    if disturbed(records):
        note = f"{note} {DISTURBED_NOTE}".strip()
    return Table(title, [*by.values(), *columns], rows, note, block)


def records_table(title: str, records: list[Record]) -> Table:
    """Records as they are, for experiments without a figure of their own: only columns that say something."""
    drop = {"experiment", "at", "job", "schema"}
    plain = [
        {k: None if isinstance(v, dict | list) else v for k, v in r.items() if k not in drop and v != ""}
        for r in records
    ]
    return listing(title, plain)
