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
from l2ul_fast.report.figures import speedup
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
    disturbed,
    erased_cell,
    faster,
    group_by,
    median,
    method_cell,
    methods_of,
    number_text,
    one_thread_count,
    plural,
    quartiles,
    r_text,
    ratio_text,
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
    ranks: list[int]  #: among the methods with a rho, one per dataset
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
    """All methods of one panel in the order of the legend; the ranks of a dataset are by rho, equal ones share one."""
    settings = settings_of(records)
    by = group_by(records, "method", "dataset", "source", "n")
    dots = {(m, s): _dot(by[m, *s]) for m in methods_of(records) for s in settings if (m, *s) in by}
    out = []
    for method in methods_of(records):
        own = {s: dots[method, s] for s in settings if (method, s) in dots}
        ranks = []
        for s, dot in own.items():
            others = [d.rho for (_, t), d in dots.items() if t == s and d.rho is not None]
            if dot.rho is not None:
                ranks.append(1 + sum(rho < dot.rho for rho in others))
        trains_otherwise = any(r.get("rho_target") == "method" for r in select(records, method=method))
        out.append(Mark(method, list(own.values()), ranks, trains_otherwise))
    return out


def _dot(records: list[Record]) -> Dot:
    rho = median(records, "rho")
    if rho is not None:
        rho = max(rho, median(records, "noise_floor") or TINY)
    times = (median(records, name) for name in ("answer_seconds", "erased_seconds", "disagreement"))
    answer, erased, disagreement = times
    return Dot(settings_of(records)[0], answer, rho, erased, disagreement, records)


# --- one sentence -----------------------------------------------------------------------------------------------------


def verdict(records: list[Record]) -> str:
    """What the run says of the default unlearner, in one sentence; "" without records of it."""
    parts: list[str] = []
    seen: set[str] = set()
    for model in MODELS:
        cells = next((c for (m, _), c in panels(records).items() if m == model), [])
        found = {m.method: m for m in marks(cells)}
        ours = found.get(ours_of(cells))
        if ours is None or ours.seconds is None:
            continue
        r = r_text(select(cells, method=ours.method))
        taken = f"{'one row' if r == '1' else f'{r} rows'} out of {_model(model)} in {_range(ours)}"
        where = f"On {_datasets(cells)} "
        parts.append(f"{where}{style_of(ours.method).label} takes {taken}" if where not in seen else taken)
        seen.add(where)
        ratios = speedup.span(cells)
        if ratios:
            parts[-1] += f", {_ratios(ratios)} Retrain"
        if ours.rho is not None:
            what = "at rho" if parts[1:] else "at a distance to the retrained model (rho) of"
            parts[-1] += f", {what} {number_text(ours.rho, 2)}"
        parts[-1] += _beside(found)
    return "; ".join([p[:1].lower() + p[1:] if i else p for i, p in enumerate(parts)]) + "." if parts else ""


def _datasets(cells: list[Record]) -> str:
    """7 datasets (stand-ins: sepsis, higgs)."""
    settings = settings_of(cells)
    standins = [str(d) for d, source, _ in settings if str(source).startswith("stand-in")]
    text = plural(len({d for d, _, _ in settings}), "dataset")
    if not standins:
        return text
    every = "a stand-in, not the real data" if len(settings) == 1 else "all of them stand-ins, not the real data"
    return f"{text} ({every if len(standins) == len(settings) else 'stand-ins: ' + ', '.join(standins)})"


def _model(model: str) -> str:
    return "a logistic regression" if model == "lr" else f"an {MODELS[model]}"


def _range(mark: Mark) -> str:
    found, middle = mark.found("seconds"), mark.seconds
    assert middle is not None
    text = seconds_text(middle)
    return text if len(found) == 1 else f"{text} (median; {seconds_text(found[0])} to {seconds_text(found[-1])})"


def _ratios(found: list[float]) -> str:
    middle = middle_of(found)
    assert middle is not None
    text = f"{ratio_text(middle if middle >= 1 else 1 / middle)} {'faster' if middle >= 1 else 'slower'} than"
    if len(found) > 1:
        text = f"{text.removesuffix(' than')} ({ratio_text(found[0])} to {ratio_text(found[-1])}) than"
    return text


def _beside(found: dict[str, Mark]) -> str:
    """Newton's step and the paper's network, where they were measured."""
    newton, paper = found.get("newton"), found.get("l2ul-paper")
    text = ""
    if newton and newton.rho is not None and newton.seconds is not None:
        text += f" (Newton's step: {number_text(newton.rho, 2)} in {seconds_text(newton.seconds)}"
    if paper and paper.rho is not None:
        worse = "further away than doing nothing, which is 1" if paper.rho > 1 else "doing nothing is 1"
        text += f"{'; ' if text else ' ('}the paper's network: {number_text(paper.rho, 2)}, {worse}"
    return text + ")" if text else " (doing nothing is 1)"


# --- ranking ----------------------------------------------------------------------------------------------------------


def ranking(found: dict[tuple[str, int], list[Record]], title: str) -> Table:
    """All methods of some panels, nearest to Retrain first: times, rho and disagreement with their spread."""
    rows = []
    for (model, _), cells in found.items():
        every = marks(cells)
        again = next((m for m in every if m.method == "retrain"), None)
        most = max(len(m.dots) for m in every)
        head = f"{MODELS[model]}, r = {r_text(cells)}, {_datasets(cells)}, {plural(runs_of(cells), 'run')}"
        for mark in sorted(every, key=_place):
            rows.append([head, *_line(mark, every, again, most)])
            extra = [r for dot in mark.dots for r in dot.records if r.get("overhead_seconds") is not None]
            if mark.method == "nothing" and extra:
                rows.append([head, CALL, NONE, seconds(median(extra, "overhead_seconds")), *[NONE] * 5])
    note = (
        f"{RHO_NOTE} Medians over datasets of the medians over runs; in brackets the smallest and the largest dataset, "
        "of a single dataset the quartiles over runs. rank: by rho, 1 is nearest to Retrain; what is not above the "
        "solver's own noise counts as that noise and shares a rank. Below Do nothing things got worse. "
        "◆ no other method is both faster and nearer. Call overhead: what a call that does nothing takes here."
    )
    measured = [r for cells in found.values() for r in cells]
    if any(r.get("rho_target") == "method" for r in measured):
        note += " † trains otherwise: its rho is against a retrain of its own."
    if disturbed(measured):
        note += f" {DISTURBED_NOTE}"
    columns = ["model", "method", "rank", "answer", "× Retrain", "erased", "× erased", "rho", "disagree"]
    return Table(title, columns, rows, f"{note} Data: {sources(measured)}.", block=1)


def _place(mark: Mark) -> tuple[float, float, float]:
    rank = float(np.median(mark.ranks)) if mark.ranks else np.inf
    return rank, mark.rho if mark.rho is not None else np.inf, mark.seconds or np.inf


def _line(mark: Mark, every: list[Mark], again: Mark | None, most: int) -> list[Any]:
    ranks = sorted(mark.ranks)
    rank = NONE
    if ranks:
        middle = float(np.median(ranks))
        spread = f" ({ranks[0]}–{ranks[-1]})" if ranks[0] < ranks[-1] else ""
        rank = Cell(f"{middle:g}{spread}", middle)
    front = any(_beats(other, mark) for other in every)
    name = style_of(mark.method).label + ("†" if mark.own else "") + (" ◆" if _on_front(mark, front) else "")
    name += "" if len(mark.dots) == most else f" ({len(mark.dots)} of {most})"
    return [
        Cell(name, method_cell(mark.method).sort),
        rank,
        _spread(mark, "seconds", "answer_seconds"),
        _times(again, mark, "seconds"),
        _erased(mark),
        _times(again, mark, "erased") if mark.erased is not None else NONE,
        _rho(mark),
        _shares(mark),
    ]


def _on_front(mark: Mark, beaten: bool) -> bool:
    return not beaten and mark.rho is not None and mark.rho < 1 and mark.seconds is not None


def _beats(a: Mark, b: Mark) -> bool:
    if a.rho is None or b.rho is None or a.seconds is None or b.seconds is None:
        return False
    return a.rho <= b.rho and a.seconds <= b.seconds and (a.rho, a.seconds) != (b.rho, b.seconds)


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
        return Cell("– (ensemble)", None)
    low, high = found[0], found[-1]
    if len(found) == 1:
        low, high = quartiles(mark.dots[0].records, "rho") or (low, high)
    spread = f" ({number_text(low, 2)}–{number_text(high, 2)})" if low < high else ""
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
        settings = settings_of(cells)
        by = group_by(cells, "method", "dataset", "source", "n")
        columns = ["method"]
        for d, s, n in settings:
            columns.append(f"{d} ({s}, n = {n:,}, r = {r_text(select(cells, dataset=d, source=s, n=n))})")
        rows = [[style_of(m).label, *(_three(by.get((m, *s), [])) for s in settings)] for m in methods_of(cells)]
        title = f"{MODELS[model]}, r = {r_text(cells)}: answer; erased; rho"
        out.append(Table(title, columns, rows, f"Medians of {plural(runs_of(cells), 'run')}."))
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
        out.append(
            Drawing(
                f"headline-{model}",
                _draw(by_r, model),
                f"Scatter plot, {MODELS[model]}: time of one request on the horizontal, rho on the vertical "
                f"axis, both logarithmic, a panel per number of forgotten rows ({', '.join(map(str, by_r))}), a mark "
                "per method. The line at 1 is doing nothing; near the bottom left is best.",
                f"{MODELS[model]}: left is fast, down is near to retraining. A mark is the median over datasets, a dot "
                f"one dataset with quartiles over {plural(runs_of(cells), 'run')}. Above the line at 1 the model is "
                "further from the retrained one than before. What is not above the solver's own noise, an exact 0 too, "
                "is drawn at that noise. A line to the right of a mark ends where nothing that the method keeps in "
                f"memory gives the rows back. † trains otherwise: rho against its own retrain.{noisy} "
                f"Data: {sources(cells)}.",
            )
        )
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
    times = [t for m in every for t in (*m.found("seconds"), *([m.erased] if m.erased else []))]
    with drawing_style():
        figure, grid = subplots(1, len(by_r), figsize=(max(7.0, 4.6 * len(by_r)), 5.4), sharey=True)
        for axis, r in zip(grid[0], by_r, strict=True):
            axis.set(
                xscale="log",
                yscale="log",
                ylim=(bottom, strip),
                xlim=(min(times, default=1e-6) / 4, max(times, default=1.0) * 6),
            )
            axis.set_title(f"r = {r_text(by_r[r])}")
            axis.set_xlabel("time of one request")
            seconds_axis(axis.xaxis)
            axis.minorticks_off()
            axis.axhline(1, color=INK, linewidth=1.2, linestyle="--")
            notes = [_note(axis, 1, "do nothing: rho = 1", 8)]
            floor = floors[r]
            if floor and floor > bottom:
                axis.axhspan(bottom, floor, color=INK, alpha=0.08, linewidth=0, zorder=0)
                notes.append(_note(axis, float(np.sqrt(bottom * floor)), "the solver's own noise", 0))
            axis.axhspan(top, strip, color=INK, alpha=0.05, linewidth=0, zorder=0)
            ensemble = float(np.sqrt(top * strip))
            if any(m.rho is None for m in found[r]):
                notes.append(_note(axis, ensemble, "ensemble: no rho", 0))
            most = max((len(m.dots) for m in found[r]), default=0)
            points = [_mark(axis, m, len(m.dots) < most, bottom, ensemble) for m in found[r]]
            names = [
                style_of(m.method).label
                + ("†" if m.own else "")
                + ("" if len(m.dots) == most else f" ({len(m.dots)} of {most})")
                for m in found[r]
            ]
            _labels(axis, points, names, notes)
        grid[0][0].set_ylabel("rho (0 = retrained, 1 = did nothing)")
        ticks = [t for t in grid[0][0].get_yticks() if bottom * 3 <= t <= top]
        grid[0][0].set_yticks(ticks)
        grid[0][0].set_ylim(bottom, strip)
        figure.suptitle(plain(MODELS[model]), x=0.01, ha="left", weight="bold")
    return figure


def _note(axis: Any, y: float, text: str, up: float) -> Any:
    """Small text at the left edge, `up` points above the height y."""
    return axis.annotate(
        text,
        (0.015, y),
        xycoords=("axes fraction", "data"),
        xytext=(0, up),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        alpha=0.75,
    )


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


#: Places of a name around its mark, in points: nearest first.
PLACES = [(9, 0), (-9, 0)] + [(dx, dy) for far in (11, 23, 35, 47) for dx in (0, 8, -8) for dy in (far, -far)]


def _labels(axis: Any, points: list[tuple[float, float]], names: list[str], notes: list[Any]) -> None:
    """A name beside each mark, at the first place around it where it covers no mark, note or other name."""
    to_pixels = axis.transData.transform
    figure = axis.figure
    figure.draw_without_rendering()  # the layout decides where marks are
    scale = figure.dpi / 72
    taken = [(x - 8 * scale, y - 7 * scale, x + 8 * scale, y + 7 * scale) for x, y in map(to_pixels, points)]
    taken += [tuple(note.get_window_extent().extents) for note in notes]
    box = axis.get_window_extent()
    tall = 9.5 * scale
    for point, name in zip(points, names, strict=True):
        x, y = to_pixels(point)
        long = 5.1 * scale * len(name)
        best = None
        for dx, dy in PLACES:
            left = x + dx * scale - (long if dx < 0 else long / 2 if dx == 0 else 0)
            low = y + dy * scale - tall / 2
            place = (left, low, left + long, low + tall)
            inside = box.x0 <= left and left + long <= box.x1 and box.y0 <= low and low + tall <= box.y1
            covered = sum(_overlap(place, other) for other in taken) + (0 if inside else 1e6)
            if best is None or covered < best[0] - 1e-9:
                best = (covered, dx, dy, place)
            if covered == 0:
                break
        assert best is not None
        _, dx, dy, place = best
        taken.append(place)
        far: dict[str, Any] = (
            {"arrowprops": {"arrowstyle": "-", "color": INK, "alpha": 0.4, "linewidth": 0.6}} if abs(dy) > 11 else {}
        )
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
            **far,
        )


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Shared area of two boxes (left, low, right, high)."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


FIGURE = Figure(tables, plots)
