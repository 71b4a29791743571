"""The headline plot: how long a request takes against how near it comes to retraining, one mark per method."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import (
    INK,
    MODELS,
    PAPER,
    Drawing,
    group,
    look,
    median,
    methods_of,
    number_text,
    pick,
    plain,
    seconds_axis,
    seconds_of,
    settings_of,
    style,
)
from l2ul_fast.report.figures.methods import MAIN, main_records


class Mark(NamedTuple):
    """One method in one panel: geometric means over datasets of the medians over runs."""

    method: str
    seconds: float
    rho: float | None  #: None for an ensemble, which has no parameters to compare
    datasets: int
    dots: list[tuple[float, float | None]]  #: (seconds, rho) of each dataset
    own: bool  #: it trains otherwise, and its rho is measured against a retrain of its own
    erased: float | None = None  #: seconds until nothing that it keeps gives the rows back


def marks(records: list[Record]) -> list[Mark]:
    """Marks of the records of one panel (one experiment, model and r)."""
    out = []
    for method in methods_of(records):
        if method == "nothing":
            continue  # the line at 1
        own = pick(records, method=method)
        dots = []
        for setting in settings_of(own):
            here = pick(own, dataset=setting[0], source=setting[1], n=setting[2])
            time, rho = seconds_of(here, False), median(here, "rho")
            if time is not None and time > 0:
                dots.append((time, rho))
        if not dots:
            continue
        known = [rho for _, rho in dots if rho is not None]
        mean = None if not known else 0.0 if min(known) <= 0 else float(np.exp(np.mean(np.log(known))))
        time = float(np.exp(np.mean(np.log([t for t, _ in dots]))))
        until = [seconds_of(cells, True) for cells in group(own, "dataset", "source", "n").values()]
        erased = None if None in until else float(np.exp(np.mean(np.log([s for s in until if s]))))
        trains_otherwise = any(r.get("reference") == "own" for r in own)
        out.append(Mark(method, time, mean, len(dots), dots, trains_otherwise, erased))
    return out


def panels(records: list[Record]) -> dict[tuple[str, str], dict[int, list[Record]]]:
    """{(experiment, model): {r: records}} of random requests."""
    out: dict[tuple[str, str], dict[int, list[Record]]] = {}
    for experiment in MAIN:
        mine = pick(main_records(records, experiment), kind=("random", None))
        for (model, r), cells in sorted(group(mine, "model", "r").items(), key=lambda g: (str(g[0][0]), g[0][1] or 0)):
            if isinstance(r, int) and marks(cells):
                out.setdefault((experiment, str(model)), {})[r] = cells
    return out


def figures(records: list[Record]) -> list[Drawing]:
    """One figure per experiment and model, a panel per r."""
    out = []
    for (experiment, model), by_r in panels(records).items():
        cells = [r for part in by_r.values() for r in part]
        data = ", ".join(dict.fromkeys(f"{d} {s or 'unknown'}" for d, s, _ in settings_of(cells)))
        out.append(
            Drawing(
                f"headline-{experiment}-{model}",
                _draw(by_r, model),
                f"Scatter plot, {MODELS.get(model, model)}: time of one request on the horizontal, rho on the vertical "
                f"axis, both logarithmic, a panel per number of forgotten rows ({', '.join(map(str, by_r))}), a mark "
                "per method. The line at 1 is doing nothing; near the bottom left is best.",
                f"{MODELS.get(model, model)} (experiment {experiment}): left is fast, down is near to retraining. A "
                "mark is the geometric mean over datasets of the medians over runs, a dot one dataset. Above the line "
                "at 1 the model is further from the retrained one than before. A line to the right of a mark ends "
                "where nothing that the method keeps in memory gives the rows back. † trains otherwise: rho against "
                f"its own retrain. Data: {data}.",
            )
        )
    return out


def _draw(by_r: dict[int, list[Record]], model: str) -> Any:
    from matplotlib.figure import Figure

    wide = len(by_r)
    found = {r: marks(cells) for r, cells in by_r.items()}
    floors = {r: median(cells, "noise_floor") for r, cells in by_r.items()}
    noise = max((f for f in floors.values() if f), default=0.0)
    rhos = [d[1] for ms in found.values() for m in ms for d in m.dots if d[1] is not None and d[1] > noise]
    # what is below the solver's own noise is all one: it needs no decades of its own
    bottom = min(noise or 1.0, *rhos, 1e-3) / 30
    top = max([*rhos, 1.0]) * 8
    strip = top * 12  # above the strip's lower edge: methods without a rho
    times = [d[0] for ms in found.values() for m in ms for d in m.dots]
    times += [m.erased for ms in found.values() for m in ms if m.erased]
    with style():
        figure = Figure(figsize=(max(7.0, 4.6 * wide), 5.2), layout="constrained")
        axes = figure.subplots(1, wide, squeeze=False, sharey=True)[0]
        for axis, r in zip(axes, by_r, strict=True):
            axis.set(xscale="log", yscale="log", ylim=(bottom, strip), xlim=(min(times) / 4, max(times) * 6))
            axis.set_title(f"r = {number_text(r)}")
            axis.set_xlabel("time of one request")
            seconds_axis(axis.xaxis)
            axis.grid(which="major")
            axis.minorticks_off()
            axis.axhline(1, color=INK, linewidth=1.2, linestyle="--")
            notes = [_note(axis, 1, "do nothing: rho = 1", 8)]
            floor = floors[r]
            if floor:
                axis.axhspan(bottom, floor, color=INK, alpha=0.08, linewidth=0, zorder=0)
                notes.append(_note(axis, floor, "below the solver's own noise", -8))
            axis.axhspan(top, strip, color=INK, alpha=0.05, linewidth=0, zorder=0)
            if any(m.rho is None for m in found[r]):
                notes.append(_note(axis, float(np.sqrt(top * strip)), "ensemble: no rho", 0))
            most = max(m.datasets for m in found[r])
            middle = float(np.sqrt(top * strip))
            points = [_mark(axis, m, m.datasets < most, bottom, middle) for m in found[r]]
            names = [
                look(m.method).name
                + ("†" if m.own else "")
                + ("" if m.datasets == most else f" ({m.datasets} of {most})")
                for m in found[r]
            ]
            _labels(axis, points, names, notes)
        axes[0].set_ylabel("rho (0 = retrained, 1 = did nothing)")
        ticks = [t for t in axes[0].get_yticks() if bottom * 3 <= t <= top]
        axes[0].set_yticks(ticks)
        axes[0].set_ylim(bottom, strip)
        figure.suptitle(plain(MODELS.get(model, model)), x=0.01, ha="left", weight="bold")
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
    """Draw one method; returns where. An exact 0 sits at the bottom, a partial mean is hollow."""
    colour, marker = look(mark.method).colour, look(mark.method).marker

    def height(rho: float | None) -> float:
        return ensemble if rho is None else max(rho, bottom * 3)

    if len(mark.dots) > 1:
        axis.scatter(
            [t for t, _ in mark.dots], [height(rho) for _, rho in mark.dots], s=9, color=colour, alpha=0.35, linewidth=0
        )
    where = (mark.seconds, height(mark.rho))
    if mark.erased is not None and mark.erased > 1.02 * mark.seconds:
        axis.hlines(where[1], mark.seconds, mark.erased, color=colour, linewidth=1, alpha=0.7, zorder=3)
        axis.plot(mark.erased, where[1], marker="|", color=colour, markersize=7, zorder=3)
    size = 210 if marker == "*" else 75
    face = "none" if partial else colour
    axis.scatter(
        *where, s=size, marker=marker, facecolor=face, edgecolor=colour if partial else INK, linewidth=0.8, zorder=5
    )
    return where


def _labels(axis: Any, points: list[tuple[float, float]], names: list[str], notes: list[Any]) -> None:
    """A name beside each mark, at the first place around it where it covers no mark, note or other name."""
    to_pixels = axis.transData.transform
    figure = axis.figure
    figure.draw_without_rendering()  # the layout decides where marks are
    scale = figure.dpi / 72
    taken = [(x - 6 * scale, y - 6 * scale, x + 6 * scale, y + 6 * scale) for x, y in map(to_pixels, points)]
    taken += [tuple(note.get_window_extent().extents) for note in notes]
    box = axis.get_window_extent()
    tall = 9.5 * scale
    for point, name in zip(points, names, strict=True):
        x, y = to_pixels(point)
        long = 4.9 * scale * len(name)
        best = None
        for dx, dy in (
            (9, 0),
            (-9, 0),
            (0, 11),
            (0, -11),
            (8, 11),
            (8, -11),
            (-8, 11),
            (-8, -11),
            (0, 23),
            (0, -23),
            (8, 23),
            (8, -23),
            (-8, 23),
            (-8, -23),
            (0, 35),
            (0, -35),
        ):
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
