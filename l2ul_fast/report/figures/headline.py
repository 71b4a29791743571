"""What a run comes to: one sentence, a ranking of the methods, and time against distance to retraining.

Over datasets the middle is the median. A rho at or below the solver's own noise (an exact 0 among them) is put at that
noise: one of them moves neither the middle of the others nor the ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.figures.methods import CALL, MAIN, RHO_NOTE
from l2ul_fast.report.style import INK, PAPER, drawing_style, ours_of, plain, seconds_axis, style_of, subplots
from l2ul_fast.report.values import (
    DISTURBED,
    DISTURBED_NOTE,
    MODELS,
    NONE,
    Cell,
    Drawing,
    Table,
    cells_of,
    disturbed,
    erased_cell,
    faster,
    group_by,
    listing,
    median,
    method_cell,
    methods_of,
    number_text,
    one_thread_count,
    plural,
    quartiles,
    r_text,
    runs_of,
    seconds,
    seconds_text,
    select,
    settings_of,
    sources,
    spread_text,
)

#: Where an exact 0 is put if nobody measured the solver's noise.
TINY = 1e-12


class Dot(NamedTuple):
    """One method on one dataset: medians over repeats."""

    setting: tuple[object, ...]  #: dataset, source, n
    seconds: float | None
    rho: float | None  #: at least the solver's noise; None for an ensemble, which has no parameters to compare
    erased: float | None
    disagreement: float | None
    records: list[Record]


class Mark(NamedTuple):
    """One method over all datasets."""

    method: str
    dots: list[Dot]
    own: bool  #: it trains otherwise, and its rho is measured against a retrain of its own

    def found(self, name: str) -> list[float]:
        return sorted(v for dot in self.dots if (v := getattr(dot, name)) is not None)

    @property
    def seconds(self) -> float | None:
        return middle_of(self.found("seconds"))

    @property
    def rho(self) -> float | None:
        return upper_median(self.found("rho"))

    @property
    def erased(self) -> float | None:
        """None where it is unknown, or never comes, for any dataset."""
        return middle_of(self.found("erased")) if len(self.found("erased")) == len(self.dots) else None

    def name(self, most: int) -> str:
        """Its label; one that was measured on some of the datasets only says so."""
        partial = "" if len(self.dots) == most else f" ({len(self.dots)} of {most})"
        return style_of(self.method).label + ("†" if self.own else "") + partial


def middle_of(found: Sequence[float]) -> float | None:
    """Median of positive values; of an even number the geometric mean of the two in the middle."""
    return float(np.exp(np.median(np.log(found)))) if found and min(found) > 0 else None


def upper_median(found: Sequence[float]) -> float | None:
    """The larger one of two in the middle: half of the datasets at the noise do not make a method exact."""
    return float(np.quantile(found, 0.5, method="higher")) if found else None


def panels(records: list[Record]) -> dict[tuple[str, int], list[Record]]:
    """{(model, r asked): records} of random requests with one thread count; of `baselines` where a model has no run."""
    out: dict[tuple[str, int], list[Record]] = {}
    for model in MODELS:
        found = select(records, model=model, request=("random", None))
        mine = next((own for name in (model, *MAIN) if (own := select(found, experiment=name))), [])
        mine = one_thread_count(mine)
        for (asked,), cells in sorted(group_by(mine, "r_asked").items(), key=lambda item: item[0][0] or 0):
            if isinstance(asked, int) and marks(cells):
                out[model, asked] = cells
    return out


def marks(records: list[Record]) -> list[Mark]:
    """All methods of one panel in the order of the legend."""
    out = []
    for method in methods_of(records):
        mine = select(records, method=method)
        dots = [_dot(found) for _, found in cells_of(mine, "data")]
        out.append(Mark(method, dots, any(r.get("rho_target") == "method" for r in mine)))
    return out


def _dot(records: list[Record]) -> Dot:
    rho = median(records, "rho")
    if rho is not None:
        rho = max(rho, median(records, "noise_floor") or TINY)
    answer, erased, unlike = (median(records, name) for name in ("answer_seconds", "erased_seconds", "disagreement"))
    return Dot(settings_of(records)[0], answer, rho, erased, unlike, records)


# --- one sentence -----------------------------------------------------------------------------------------------------


def verdict(records: list[Record]) -> str:
    """What the run says of the default unlearner, in one sentence; "" without records of it."""
    parts: list[str] = []
    where = ""
    for model, what in (("lr", "a logistic regression"), ("mlp", "an MLP")):
        cells = next((c for (m, _), c in panels(records).items() if m == model), [])
        found = {m.method: m for m in marks(cells)}
        ours = found.get(ours_of(cells))
        if ours is None or ours.seconds is None:
            continue
        r, ratio = r_text(select(cells, method=ours.method)), _times(found.get("retrain"), ours, "seconds")
        text = f"{'one row' if r == '1' else f'{r} rows'} out of {what} in {seconds_text(ours.seconds)}"
        if ratio.sort is not None:
            text += f", {ratio.text if ratio.mark else f'{ratio.text} faster'} than Retrain"
        if ours.rho is not None:
            text += f", at rho {number_text(ours.rho, 2)}" + ("" if parts else " (0: retrained, 1: did nothing)")
        if (here := _datasets(cells)) != where:
            text = f"{'on' if parts else 'On'} {here} {style_of(ours.method).label} takes {text}"
        parts, where = [*parts, text], here
    return "; ".join(parts) + "." if parts else ""


def _datasets(cells: list[Record]) -> str:
    """7 datasets (stand-ins: sepsis, higgs)."""
    settings = settings_of(cells)
    standins = [str(d) for d, source, _ in settings if str(source).startswith("stand-in")]
    text = plural(len({d for d, _, _ in settings}), "dataset")
    if not standins:
        return text
    every = "a stand-in, not the real data" if len(settings) == 1 else "all of them stand-ins, not the real data"
    return f"{text} ({every if len(standins) == len(settings) else 'stand-ins: ' + ', '.join(standins)})"


# --- ranking ----------------------------------------------------------------------------------------------------------


def ranking(found: dict[tuple[str, int], list[Record]], title: str) -> Table:
    """All methods of some panels, nearest to Retrain first: times, rho and disagreement with their spread."""
    rows: list[dict[str, Any]] = []
    for (model, _), cells in found.items():
        every = marks(cells)
        head = f"{MODELS[model]}, r = {r_text(cells)}, {_datasets(cells)}, {plural(runs_of(cells), 'run')}"
        for mark in sorted(every, key=lambda m: (np.inf if m.rho is None else m.rho, m.seconds or np.inf)):
            rows.append({"model": head, **_line(mark, every)})
            extra = [r for dot in mark.dots for r in dot.records if r.get("overhead_seconds") is not None]
            if mark.method == "nothing" and extra:
                rows.append({"model": head, "method": CALL, "answer": seconds(median(extra, "overhead_seconds"))})
    note = (
        f"{RHO_NOTE} Medians over datasets of the medians over runs; in brackets the smallest and the largest dataset, "
        "of a single dataset the quartiles over runs. rank: the order of the rho shown; what is not above the solver's "
        "own noise counts as that noise, equal ones share a rank. Below Do nothing things got worse. "
        "◆ no other method is both faster and nearer. Call overhead: what a call that does nothing takes here."
    )
    measured = [r for cells in found.values() for r in cells]
    if any(r.get("rho_target") == "method" for r in measured):
        note += " † trains otherwise: its rho is against a retrain of its own."
    if disturbed(measured):
        note += f" {DISTURBED_NOTE}"
    return listing(title, rows, f"{note} Data: {sources(measured)}.", block=1)


def _line(mark: Mark, every: list[Mark]) -> dict[str, Any]:
    again = next((m for m in every if m.method == "retrain"), None)
    rank = None if mark.rho is None else 1 + sum(m.rho < mark.rho for m in every if m.rho is not None)
    name = mark.name(max(len(m.dots) for m in every))
    return {
        "method": Cell(name + (" ◆" if _on_front(mark, every) else ""), method_cell(mark.method).sort),
        "rank": rank,
        "rho": _rho(mark),
        "answer": _spread(mark, "seconds", "answer_seconds"),
        "× Retrain": _times(again, mark, "seconds"),
        "erased": _erased(mark),
        "× erased": NONE if mark.erased is None else _times(again, mark, "erased"),
        "disagree": _shares(mark),
    }


def _on_front(mark: Mark, every: list[Mark]) -> bool:
    """Better than doing nothing, and no other method is as near and as fast."""
    if mark.rho is None or mark.seconds is None or mark.rho >= 1:
        return False
    own = (mark.rho, mark.seconds)
    others = [(m.rho, m.seconds) for m in every if m.rho is not None and m.seconds is not None]
    return not any(a <= own[0] and b <= own[1] and (a, b) != own for a, b in others)


def _spread(mark: Mark, name: str, of: str) -> Cell:
    found, middle = mark.found(name), middle_of(mark.found(name))
    if middle is None:
        return NONE
    low, high = found[0], found[-1]
    if len(found) == 1:
        low, high = quartiles(mark.dots[0].records, of) or (low, high)
    noisy = DISTURBED if any(disturbed(dot.records) for dot in mark.dots) else ""
    return Cell(spread_text(middle, low, high) + noisy, middle)


def _erased(mark: Mark) -> Cell:
    if mark.erased is None:
        return erased_cell([r for dot in mark.dots for r in dot.records if r.get("erased_seconds") is None])
    return _spread(mark, "erased", "erased_seconds")


def _times(again: Mark | None, mark: Mark, name: str) -> Cell:
    """Times faster than Retrain: the median over datasets."""
    theirs = {dot.setting: getattr(dot, name) for dot in again.dots} if again else {}
    pairs = [(theirs.get(dot.setting), getattr(dot, name)) for dot in mark.dots]
    return faster(middle_of([a / b for a, b in pairs if a and b]))


def _rho(mark: Mark) -> Cell:
    rho, found = mark.rho, mark.found("rho")
    if rho is None:
        return Cell("– (ensemble)")
    low, high = found[0], found[-1]
    if len(found) == 1:
        low, high = quartiles(mark.dots[0].records, "rho") or (low, high)
    # at the solver's noise the runs themselves may lie below it
    spread = f" ({number_text(low, 2)}–{number_text(high, 2)})" if low < high and low <= rho <= high else ""
    return Cell(number_text(rho, 2) + spread, rho, "bad" if rho > 1 else "")


def _shares(mark: Mark) -> Cell:
    found = mark.found("disagreement")
    if not found:
        return NONE
    middle = float(np.median(found))
    spread = f" ({100 * found[0]:.2g}–{100 * found[-1]:.2g})" if found[0] < found[-1] else ""
    return Cell(f"{100 * middle:.2g} %{spread}", middle)


def tables(records: list[Record]) -> list[Table]:
    """The smallest requests of each model first; the larger ones in a table of their own."""
    found = panels(records)
    first = {key: cells for key, cells in found.items() if key[1] == min(r for m, r in found if m == key[0])}
    rest = {key: cells for key, cells in found.items() if key not in first}
    out = [ranking(first, "Methods, nearest to Retrain first")] if first else []
    return [*out, ranking(rest, "Methods, nearest to Retrain first: larger requests")] if rest else out


def by_dataset(records: list[Record]) -> list[Table]:
    """A table per panel: methods by datasets, a cell holds answer, erased and rho."""
    out = []
    for (model, _), cells in panels(records).items():
        settings = [select(cells, dataset=d, source=s, n=n) for d, s, n in settings_of(cells)]
        rows = []
        for method in methods_of(cells):
            row = {"method": style_of(method).label}
            for here in settings:
                r = here[0]
                name = f"{r['dataset']} ({r['source']}, n = {r['n']:,}, r = {r_text(here)})"
                row[name] = _three(select(here, method=method))
            rows.append(row)
        title = f"{MODELS[model]}, r = {r_text(cells)}: answer; erased; rho"
        out.append(listing(title, rows, f"Medians of {plural(runs_of(cells), 'run')}."))
    return out


def _three(own: list[Record]) -> str:
    if not own:
        return "–"
    rho, star = median(own, "rho"), "†" if any(r.get("rho_target") == "method" for r in own) else ""
    return f"{seconds_text(median(own, 'answer_seconds'))}; {erased_cell(own).text}; {number_text(rho, 2)}{star}"


# --- plot -------------------------------------------------------------------------------------------------------------


def plots(records: list[Record]) -> list[Drawing]:
    """One plot per model, a panel per r."""
    out = []
    for model in MODELS:
        by_r = {r: cells for (m, r), cells in panels(records).items() if m == model}
        if not by_r:
            continue
        cells = [r for part in by_r.values() for r in part]
        noisy = f" {DISTURBED_NOTE.replace('‡ o', 'O')}" if disturbed(cells) else ""
        alt = (
            f"Scatter plot, {MODELS[model]}: time of one request on the horizontal, rho on the vertical "
            f"axis, both logarithmic, a panel per number of forgotten rows ({', '.join(map(str, by_r))}), a mark "
            "per method. The line at 1 is doing nothing; near the bottom left is best."
        )
        caption = (
            f"{MODELS[model]}: left is fast, down is near to retraining. A mark is the median over datasets, a dot "
            f"one dataset with quartiles over {plural(runs_of(cells), 'run')}. Above the line at 1 the model is "
            "further from the retrained one than before. What is not above the solver's own noise, an exact 0 too, "
            "is drawn at that noise. A line to the right of a mark ends where nothing that the method keeps in "
            f"memory gives the rows back. † trains otherwise: rho against its own retrain.{noisy} "
            f"Data: {sources(cells)}."
        )
        out.append(Drawing(f"headline-{model}", _draw(by_r, model), alt, caption))
    return out


def _draw(by_r: dict[int, list[Record]], model: str) -> Any:
    found = {r: [m for m in marks(cells) if m.method != "nothing" and m.seconds] for r, cells in by_r.items()}
    every = [m for ms in found.values() for m in ms]
    floors = {r: median(cells, "noise_floor") for r, cells in by_r.items()}
    noise = min((f for f in floors.values() if f), default=None)
    rhos = [v for m in every for v in m.found("rho")]
    bottom = min([noise or 1.0, *(v for v in rhos if v > TINY), 1e-3]) / 30
    top = max([*rhos, 1.0]) * 8
    strip = top * 12  # above the strip's lower edge: methods without a rho
    ensemble = float(np.sqrt(top * strip))
    times = [t for m in every for t in (*m.found("seconds"), *([m.erased] if m.erased else []))]
    with drawing_style():
        size = (max(7.0, 5.2 * len(by_r)), 5.4 if len(by_r) == 1 else 7.0)
        figure, grid = subplots(1, len(by_r), figsize=size, sharey=True)
        for axis, r in zip(grid[0], by_r, strict=True):
            axis.set(xscale="log", yscale="log", title=f"r = {r_text(by_r[r])}", xlabel="time of one request")
            axis.set(ylim=(bottom, strip), xlim=(min(times, default=1e-6) / 4, max(times, default=1.0) * 6))
            seconds_axis(axis.xaxis)
            axis.minorticks_off()
            axis.axhline(1, color=INK, linewidth=1.2, linestyle="--")
            notes = [_note(axis, 1, "do nothing: rho = 1", 8)]
            floor = floors[r]
            if floor and floor > bottom:
                axis.axhspan(bottom, floor, color=INK, alpha=0.08, linewidth=0, zorder=0)
                notes.append(_note(axis, float(np.sqrt(bottom * floor)), "the solver's own noise", 0))
            axis.axhspan(top, strip, color=INK, alpha=0.05, linewidth=0, zorder=0)
            if any(m.rho is None for m in found[r]):
                notes.append(_note(axis, ensemble, "ensemble: no rho", 0))
            most = max((len(m.dots) for m in found[r]), default=0)
            points = [_mark(axis, m, len(m.dots) < most, bottom, ensemble) for m in found[r]]
            _labels(axis, points, [m.name(most) for m in found[r]], notes)
        grid[0][0].set_ylabel("rho (0 = retrained, 1 = did nothing)")
        grid[0][0].set_yticks([t for t in grid[0][0].get_yticks() if bottom * 3 <= t <= top])
        grid[0][0].set_ylim(bottom, strip)
        figure.suptitle(plain(MODELS[model]), x=0.01, ha="left", weight="bold")
    return figure


def _note(axis: Any, y: float, text: str, up: float) -> Any:
    """Small text at the left edge, `up` points above the height y."""
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (0, up), "textcoords": "offset points"}
    return axis.annotate(text, (0.015, y), va="center", fontsize=8.5, alpha=0.75, **where)


def _mark(axis: Any, mark: Mark, partial: bool, bottom: float, ensemble: float) -> tuple[float, float]:
    """Draw one method; returns where. A median over some of the datasets only is hollow."""
    colour, marker = style_of(mark.method).colour, style_of(mark.method).marker

    def height(rho: float | None) -> float:
        return ensemble if rho is None else max(rho, bottom * 3)

    for dot in mark.dots:
        if dot.seconds is None:
            continue
        y = height(dot.rho)
        if len(mark.dots) > 1:
            axis.scatter(dot.seconds, y, s=9, color=colour, alpha=0.35, linewidth=0)
        if spread := quartiles(dot.records, "answer_seconds"):
            axis.hlines(y, *spread, color=colour, linewidth=0.8, alpha=0.35)
        if dot.rho is not None and (spread := quartiles(dot.records, "rho")):
            axis.vlines(dot.seconds, *map(height, spread), color=colour, linewidth=0.8, alpha=0.35)
    assert mark.seconds is not None
    where = (mark.seconds, height(mark.rho))
    if mark.erased is not None and mark.erased > 1.02 * mark.seconds:
        axis.hlines(where[1], mark.seconds, mark.erased, color=colour, linewidth=1, alpha=0.7, zorder=3)
        axis.plot(mark.erased, where[1], marker="|", color=colour, markersize=7, zorder=3)
    paint = {"facecolor": "none" if partial else colour, "edgecolor": colour if partial else INK, "linewidth": 0.8}
    axis.scatter(*where, s=210 if marker == "*" else 75, marker=marker, zorder=5, **paint)
    return where


#: Places of a name around its mark, in points.
PLACES = [(9, 0), (-9, 0)] + [(dx, dy) for far in (10, 19, 28) for dx in (0, 7, -7, 18, -18) for dy in (far, -far)]
Box = tuple[float, float, float, float]


def _labels(axis: Any, points: list[tuple[float, float]], names: list[str], notes: list[Any]) -> None:
    """A name near each mark, where it covers least of marks, notes and other names; far ones get a line."""
    axis.figure.draw_without_rendering()  # the layout decides where marks are
    scale = axis.figure.dpi / 72
    pixels = axis.transData.transform(points) if points else []
    fixed = [(x - 7 * scale, y - 6 * scale, x + 7 * scale, y + 6 * scale) for x, y in pixels]
    fixed += [tuple(note.get_window_extent().extents) for note in notes]
    view = axis.get_window_extent()

    def box(i: int, place: tuple[int, int]) -> Box:
        (dx, dy), long = place, 5.1 * scale * len(names[i])
        left = pixels[i][0] + dx * scale - (long if dx < 0 else long / 2 if dx == 0 else 0)
        low = pixels[i][1] + (dy - 4.75) * scale
        return left, low, left + long, low + 9.5 * scale

    def cost(i: int, place: tuple[int, int]) -> float:
        own = box(i, place)
        others = [box(j, chosen[j]) for j in range(len(names)) if j != i]
        inside = view.x0 <= own[0] and own[2] <= view.x1 and view.y0 <= own[1] and own[3] <= view.y1
        far = float(np.hypot(*place))
        return sum(_overlap(own, other) for other in fixed + others) + 3 * far * scale + (0 if inside else 1e6)

    chosen = [PLACES[0]] * len(names)
    for _ in range(3):  # each moves while the others stay
        for i in range(len(names)):
            chosen[i] = min(PLACES, key=lambda place: cost(i, place))
    for point, name, (dx, dy) in zip(points, names, chosen, strict=True):
        line = {"arrowstyle": "-", "color": INK, "alpha": 0.4, "linewidth": 0.6} if np.hypot(dx, dy) > 13 else None
        axis.annotate(
            plain(name),
            point,
            xytext=(dx, dy),
            textcoords="offset points",
            fontsize=8.5,
            va="center",
            ha="right" if dx < 0 else "center" if dx == 0 else "left",
            zorder=6,
            bbox={"facecolor": PAPER, "alpha": 0.6, "pad": 0.3, "edgecolor": "none"},
            arrowprops=line,
        )


def _overlap(a: Box, b: Box) -> float:
    """Shared area of two boxes (left, low, right, high)."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


FIGURE = Figure(tables, plots)
