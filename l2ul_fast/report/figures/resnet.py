"""ResNet-18 on CIFAR-10: ToW, MIA gap and time beside the paper's figures, and the goals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY, YELLOW, drawing_style, legend, subplots
from l2ul_fast.report.values import (
    Cell,
    Drawing,
    Table,
    group_by,
    listing,
    marked,
    median,
    plural,
    seconds_text,
    select,
)

SIZES = (10, 100, 1000, 3000)
#: Table 5 of the paper: ToW, MIA gap, seconds for r = 10, 100, 1000, 3000.
PAPER = {
    "retrain": ((1.00, 1.00, 1.00, 1.00), (0.0, 0.0, 0.0, 0.0), (1020.5, 874.4, 783.2, 702.7)),
    "advimp": ((0.32, 0.13, 0.01, 0.01), (0.30, 0.13, 0.17, 0.14), (28.4, 78.7, 1665.5, 12088.2)),
    "rum": ((0.60, 0.80, 0.83, 0.83), (0.30, 0.13, 0.15, 0.12), (13.6, 13.6, 13.2, 12.8)),
    "l2ul-network": ((0.80, 1.00, 0.88, 0.99), (0.30, 0.13, 0.17, 0.14), (0.5, 0.5, 0.5, 0.6)),
}
#: (method, scope) -> name, colour, marker.
LOOKS = {
    ("retrain", "all"): ("Retrain", INK, "s"),
    ("nothing", "all"): ("Do nothing", GREY, "_"),
    ("finetune", "all"): ("Fine-tune", GREEN, ">"),
    ("neggrad", "all"): ("NegGrad+", ORANGE, "X"),
    ("salun", "all"): ("SalUn", PINK, "<"),
    ("advimp", "all"): ("ADV+IMP", YELLOW, "v"),
    ("rum", "all"): ("RUM", SKY, "p"),
    ("rum-published", "all"): ("RUM, mask as published", SKY, "*"),
    ("l2ul-network", "head"): ("L2UL, head", BLUE, "o"),
    ("l2ul-expansion", "head"): ("L2UL on the last layer's features", BLUE, "D"),
    ("l2ul-newton", "head"): ("L2UL, head, Newton step", BLUE, "d"),
}
RAW = {
    "forget_accuracy": "accuracy on forgotten",
    "retain_accuracy": "on retained",
    "test_accuracy": "on test",
    "mia": "attack (liu2024 confidence)",
    "forget_disagreement": "answers unlike Retrain's on forgotten rows",
    "test_disagreement": "on test rows",
}
FASTER = {"rum": 20.0, "retrain": 1000.0}


def settings(records: list[Record]) -> list[list[Record]]:
    """The records of each setting: profile, data and training are the same within one."""
    mine = select(records, experiment="resnet", failed=None)
    return list(group_by(mine, "profile", "source", "n", "width", "augment", "epochs").values())


def title(records: list[Record]) -> str:
    """What the figures are of; never without the source of the data."""
    r = records[0]
    source = {"subset": "subset of the real data", "real": "real data"}.get(r["source"], "STAND-IN, not CIFAR-10")
    images = "with flips and shifts" if r["augment"] else "without augmentation"
    return (
        f"CIFAR-10 ({source}), {r['n']:,} training images, ResNet-18 of width {r['width']}, {r['epochs']} epochs "
        f"{images}, {plural(len({q['seed'] for q in records}), 'seed')}, {plural(r['threads'], 'thread')}, "
        f"profile {r['profile']}"
    )


def _cells(records: list[Record]) -> Iterator[tuple[int, str, tuple[str, str], list[Record]]]:
    """(r, name, (method, scope), records) of every request."""
    for r in sorted({q["r"] for q in records if q.get("r")}):
        for key, (name, *_) in LOOKS.items():
            if own := select(records, method=key[0], scope=key[1], r=r):
                yield r, name, key, own


def tables(records: list[Record]) -> list[Table]:
    return [table for own in settings(records) for table in (quality(own), raw(own), attacks(own), goals(own))]


def quality(records: list[Record]) -> Table:
    """ToW, MIA gap and seconds of every method, the paper's in brackets."""
    rows = []
    for r, name, (method, _), own in _cells(records):
        paper = PAPER.get(method) if r in SIZES else None
        beside = [f" ({p[SIZES.index(r)]:.2f})" for p in paper[:2]] if paper else ["", ""]
        published = f" ({seconds_text(paper[2][SIZES.index(r)])})" if paper else ""
        tow, gap = median(own, "tow"), median(own, "mia_gap")
        flagged = any(q.get("mia_degenerate") for q in own)
        row = {
            "r": f"r = {r:,}",
            "method": name,
            "ToW": Cell("–" if tow is None else f"{tow:.3f}{beside[0]}", tow),
            "MIA gap": Cell("degenerate" if flagged else "–" if gap is None else f"{gap:.3f}{beside[1]}", gap),
            "time": Cell(seconds_text(s := median(own, "unlearn_seconds") or None) + published, s),
            "set-up": seconds_text(median(own, "setup_seconds") or None),
        }
        rows.append(row)
    note = "In brackets the paper's figures, on all of CIFAR-10 and its own machine. ToW: 1 is as Retrain."
    return listing(title(records), rows, note, block=1)


def raw(records: list[Record]) -> Table:
    """Accuracies and attack values behind the table, medians over seeds."""
    rows = []
    for r, name, _, own in _cells(records):
        found = [median(own, field) for field in RAW]
        rows.append([f"r = {r:,}", name, *(Cell("–" if x is None else f"{x:.3f}", x) for x in found)])
    return Table("Behind it: the targets are Retrain's values", ["r", "method", *RAW.values()], rows, block=1)


def attacks(records: list[Record]) -> Table:
    """ADV+IMP: below 90 % its attack was too weak to judge the method by."""
    rows = []
    for q in select(records, method="advimp"):
        worked = Cell(f"{q['fooled']:.0%}" + ("" if q["fooled"] >= 0.9 else " (too weak)"), q["fooled"])
        rows.append([q["r"], worked, "yes" if q["reached"] else "no, stopped", q["steps"]])
    return Table("ADV+IMP", ["r", "attacks that worked", "all forgotten rows wrong", "steps"], rows)


def goals(records: list[Record]) -> Table:
    """Speed against RUM and Retrain, ToW against the paper's and other methods'."""
    rows: list[list[Any]] = []
    for r, name, (method, _), own in _cells(records):
        if method != "l2ul-network":
            continue
        seconds, reached = median(own, "unlearn_seconds"), median(own, "tow")
        others = {m: select(records, method=m, scope="all", r=r) for m in ("nothing", "rum", "advimp", "retrain")}
        for other, goal in FASTER.items():
            theirs = median(others[other], "unlearn_seconds")
            if seconds and theirs:
                cell = marked(f"{theirs / seconds:,.0f}×", theirs / seconds, goal, at_least=True)
                rows.append([name, r, f"times faster than {LOOKS[other, 'all'][0]}", cell])
        if reached is None:
            continue
        text = f"{reached:.3f}"
        if r in SIZES:
            cell = marked(text, round(reached, 2), PAPER["l2ul-network"][0][SIZES.index(r)], at_least=True)
            rows.append([name, r, "ToW beside the paper's", cell])
        for other in ("nothing", "rum", "advimp"):
            theirs = median(others[other], "tow")
            if theirs is not None:
                missed = Cell(f"{text} (miss: > {theirs:.3f})", reached, "missed")
                cell = Cell(text, reached) if reached > theirs else missed
                rows.append([name, r, f"ToW beside {LOOKS[other, 'all'][0]}", cell])
    return Table("Goals", ["method", "r", "what", "measured"], rows, block=1)


def plots(records: list[Record]) -> list[Drawing]:
    """ToW against the time of a request, a panel per r; doing nothing is the line to beat."""
    found = settings(records)
    if not found:
        return []
    own = found[-1]
    sizes = sorted({r["r"] for r in own if r.get("r")})
    with drawing_style():
        figure, grid = subplots(1, len(sizes), figsize=(4 * len(sizes), 4.6))
        for axis, r in zip(grid[0], sizes, strict=True):
            for _, name, key, cell in _cells(select(own, r=r)):
                height, seconds, (_, colour, mark) = median(cell, "tow"), median(cell, "unlearn_seconds"), LOOKS[key]
                if height is not None and key[0] == "nothing":
                    axis.axhline(height, color=colour, linestyle="--", label=name)
                elif height is not None and seconds:
                    axis.plot(seconds, height, mark, color=colour, markersize=9, label=name)
            axis.set(xscale="log", xlabel="seconds of a request", title=f"r = {r:,}")
        grid[0][0].set_ylabel("ToW (1 = as Retrain)")
        legend(figure, grid[0], 6)
    alt = "Marks: ToW against the time of a request, a panel per number of forgotten images; a dashed line for nothing."
    return [Drawing("resnet", figure, alt, f"{title(own)}.")]


FIGURE = Figure(tables, plots)
