"""What the plots of the small experiments share: looks of their own methods, lines with quartiles, sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import (
    GREEN,
    ORANGE,
    PINK,
    Cell,
    Look,
    group,
    look,
    main_threads,
    pick,
    settings_of,
    values,
)

#: Methods that only these experiments have.
OWN = {
    "l2ul-robust": Look("L2UL, learned, robust", PINK, "P"),
    "l2ul-refreshed": Look("L2UL, refreshed", GREEN, "P"),
    "l2ul-newton-reanchored": Look("L2UL before, re-anchored", ORANGE, "P"),
}
Value = str | Callable[[Record], float | None]


def look_of(method: str) -> Look:
    return OWN.get(method) or look(method)


def method_name(method: str) -> Cell:
    """The name, sorted in the order of the legend."""
    from l2ul_fast.report.common import LOOKS

    return Cell(look_of(method).name, float([*LOOKS, *OWN, method].index(method)))


def methods_in(records: Iterable[Record]) -> list[str]:
    """Methods of the records in the order of the legend."""
    found = {r["method"] for r in records if r.get("method")}
    return sorted(found, key=lambda m: (method_name(m).sort, m))


def of_experiment(records: Iterable[Record], name: str, one_thread_count: bool = True) -> list[Record]:
    """Its records; figures never mix thread counts unless they compare them."""
    mine = pick(records, experiment=(name, None))
    return pick(mine, threads=main_threads(mine)) if one_thread_count and main_threads(mine) is not None else mine


def sources(records: Iterable[Record]) -> str:
    """higgs: stand-in; magic: real."""
    return "; ".join(sorted({f"{d}: {s}" for d, s, _ in settings_of(records) if d}))


def middle(records: Iterable[Record], name: Value) -> list[float]:
    """Finite values of a field or function."""
    if isinstance(name, str):
        return values(records, name)
    return [float(v) for r in records if (v := name(r)) is not None and np.isfinite(v)]


def draw_line(
    axis: Any, records: list[Record], x: str, y: Value, method: str, floor: float | None = None, **paint: Any
) -> None:
    """Median of y at each x with quartiles as a band; `floor` is where smaller values are drawn on a log axis."""
    places, low, mid, high = [], [], [], []
    for (place,), here in sorted(group(records, x).items(), key=lambda item: item[0]):
        found = middle(here, y)
        if found:
            a, b, c = np.quantile(found, (0.25, 0.5, 0.75))
            if floor is not None:
                a, b, c = (max(v, floor) for v in (a, b, c))
            places.append(place)
            low.append(a)
            mid.append(b)
            high.append(c)
    if not places:
        return
    shape = look_of(method)
    looks = {"color": shape.colour, "marker": shape.marker if shape.marker != "_" else ".", "label": shape.name}
    line = {"linestyle": "--" if method == "l2ul-paper" else "-", "linewidth": 1.4, "markersize": 6}
    axis.plot(places, mid, **(looks | line | paint))
    axis.fill_between(places, low, high, color=shape.colour, alpha=0.15, linewidth=0)


def legend(figure: Any, axes: Iterable[Any], columns: int = 4) -> None:
    """One legend below the figure for all that its axes name."""
    known: dict[str, Any] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            known.setdefault(name, handle)
    if known:
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=columns, frameon=False)


def middle_cell(records: Iterable[Record], name: Value, form: str = "{:.4g}") -> Cell:
    """The median as a table's cell."""
    found = middle(records, name)
    if not found:
        return Cell("–", None)
    median = float(np.median(found))
    return Cell(form.format(median), median)
