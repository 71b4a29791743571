"""ResNet-18 on CIFAR-10 as tables beside the paper's, the goals, and one plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from l2ul_fast.measure.records import Record, read_records, upgrade
from l2ul_fast.report.common import BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY, YELLOW, group, median, pick, seconds_text

Row = tuple[str, ...]
SIZES = (10, 100, 1000, 3000)
#: Table 5 of the paper: ToW, MIA gap, seconds for r = 10, 100, 1000, 3000.
PAPER = {
    "retrain": ((1.00, 1.00, 1.00, 1.00), (0.0, 0.0, 0.0, 0.0), (1020.5, 874.4, 783.2, 702.7)),
    "advimp": ((0.32, 0.13, 0.01, 0.01), (0.30, 0.13, 0.17, 0.14), (28.4, 78.7, 1665.5, 12088.2)),
    "rum": ((0.60, 0.80, 0.83, 0.83), (0.30, 0.13, 0.15, 0.12), (13.6, 13.6, 13.2, 12.8)),
    "l2ul-network": ((0.80, 1.00, 0.88, 0.99), (0.30, 0.13, 0.17, 0.14), (0.5, 0.5, 0.5, 0.6)),
}
NAMES = {
    ("retrain", "all"): "Retrain",
    ("nothing", "all"): "Do nothing",
    ("finetune", "all"): "Fine-tune",
    ("neggrad", "all"): "NegGrad+",
    ("salun", "all"): "SalUn",
    ("advimp", "all"): "ADV+IMP",
    ("rum", "all"): "RUM",
    ("rum-published", "all"): "RUM, mask as published",
    ("l2ul-network", "head"): "L2UL, head",
    ("l2ul-network", "subspace"): "L2UL, subspace",  # removed; in older records
    ("l2ul-expansion", "head"): "L2UL on the last layer's features",
    ("l2ul-newton", "head"): "L2UL, head, Newton step",
}
LOOKS = (INK, GREY, GREEN, ORANGE, PINK, YELLOW, SKY, SKY, BLUE, BLUE, BLUE, BLUE)
MARKS = "s_>X<vp*oPDd"
ATTACK = ("r", "ADV+IMP's attacks that worked", "all forgotten rows wrong", "steps")
FASTER = {"rum": 20.0, "retrain": 1000.0}


def settings(records: list[Record]) -> list[list[Record]]:
    """The records of each setting, whatever version wrote them: profile, data and training are the same within one."""
    mine = [upgrade(r) for r in pick(records, experiment="resnet")]
    return list(group(mine, "profile", "source", "n", "width", "augment", "epochs").values())


def title(records: list[Record]) -> str:
    """What the figures are of; never without the source of the data."""
    r = records[0]
    source = {"subset": "subset of the real data", "real": "real data"}.get(r["source"], "STAND-IN, not CIFAR-10")
    images = "with flips and shifts" if r["augment"] else "without augmentation"
    seeds = len({q["seed"] for q in records})
    return (
        f"CIFAR-10 ({source}), {r['n']:,} training images, ResNet-18 of width {r['width']}, {r['epochs']} epochs "
        f"{images}, {seeds} seed{'s' if seeds > 1 else ''}, {r['threads']} thread(s), profile {r['profile']}"
    )


def _value(x: float | None, digits: int = 3) -> str:
    return "–" if x is None else f"{x:.{digits}f}"


def _beside(paper: tuple[float, ...] | None, r: int, seconds: bool = False) -> str:
    if paper is None or r not in SIZES:
        return ""
    found = paper[SIZES.index(r)]
    return f" ({seconds_text(found)})" if seconds else f" ({found:.2f})"


def quality(records: list[Record]) -> tuple[Row, list[Row]]:
    """(head, lines) of one setting: ToW, MIA gap and seconds of every method, the paper's in brackets."""
    sizes = sorted({r["r"] for r in records if r["r"]})
    head = ("method", *(f"{what}, r = {r:,}" for what in ("ToW", "MIA gap", "time") for r in sizes), "set-up")
    lines = []
    for (method, scope), name in NAMES.items():
        own = pick(records, method=method, scope=scope)
        if not own:
            continue
        paper = PAPER.get(method) if scope != "subspace" else None
        tows, gaps, times = [], [], []
        for r in sizes:
            cell = pick(own, r=r)
            tows.append(_value(median(cell, "tow")) + _beside(paper and paper[0], r))
            flagged = any(q.get("mia_degenerate") for q in cell)
            gaps.append("degenerate" if flagged else _value(median(cell, "mia_gap")) + _beside(paper and paper[1], r))
            times.append(seconds_text(median(cell, "unlearn_seconds") or None) + _beside(paper and paper[2], r, True))
        lines.append((name, *tows, *gaps, *times, seconds_text(median(own, "setup_seconds") or None)))
    return head, lines


def raw(records: list[Record]) -> tuple[Row, list[Row]]:
    """(head, lines): accuracies and attack values behind the table, medians over seeds."""
    head = (
        "r",
        "method",
        "accuracy on forgotten",
        "on retained",
        "on test",
        "attack (liu2024 confidence)",
        "answers unlike Retrain's on forgotten rows",
        "on test rows",
    )
    fields = ("forget_accuracy", "retain_accuracy", "test_accuracy", "mia", "forget_disagreement", "test_disagreement")
    lines = []
    for r in sorted({q["r"] for q in records if q["r"]}):
        for (method, scope), name in NAMES.items():
            cell = pick(records, method=method, scope=scope, r=r)
            if cell:
                lines.append((f"{r:,}", name, *(_value(median(cell, field)) for field in fields)))
    return head, lines


def attacks(records: list[Record]) -> list[Row]:
    """(r, attacks that worked, all forgotten rows wrong, steps) of ADV+IMP. Below 90 % its attack was too weak to judge
    the method by."""
    lines: list[Row] = []
    for q in pick(records, method="advimp"):
        worked = f"{q['fooled']:.0%}" + ("" if q["fooled"] >= 0.9 else " (too weak)")
        lines.append((f"{q['r']:,}", worked, "yes" if q["reached"] else "no, stopped", f"{q['steps']}"))
    return lines


def goals(records: list[Record]) -> list[Row]:
    """(what, measured, goal, verdict): speed against RUM and Retrain, ToW against the paper's and other methods'."""
    lines: list[Row] = []
    for r in sorted({q["r"] for q in pick(records, method="l2ul-network", scope="head")}):
        own = pick(records, method="l2ul-network", scope="head", r=r)
        seconds, reached = median(own, "unlearn_seconds"), median(own, "tow")
        for other, goal in FASTER.items():
            theirs = median(pick(records, method=other, r=r), "unlearn_seconds")
            if seconds and theirs:
                ratio = theirs / seconds
                what = f"head, r = {r:,}: times faster than {NAMES[other, 'all']}"
                lines.append((what, f"{ratio:,.0f}x", f">= {goal:g}x", _verdict(ratio >= goal)))
        if reached is None:
            continue
        if r in SIZES:
            goal = PAPER["l2ul-network"][0][SIZES.index(r)]
            lines.append(
                (f"head, r = {r:,}: ToW", f"{reached:.3f}", f">= {goal:.2f}", _verdict(round(reached, 2) >= goal))
            )
        for other in ("nothing", "rum", "advimp"):
            theirs = median(pick(records, method=other, r=r), "tow")
            if theirs is not None:
                what = f"head, r = {r:,}: ToW beside {NAMES[other, 'all']}"
                lines.append((what, f"{reached:.3f}", f"> {theirs:.3f}", _verdict(reached > theirs)))
    return lines


def _verdict(good: bool) -> str:
    return "ok" if good else "MISS"


def terminal(records: list[Record]) -> Any:
    from rich.console import Group
    from rich.table import Table

    tables = []
    for own in settings(records):
        head, lines = quality(own)
        facts, details = raw(own)
        for name, columns, rows in (
            (title(own) + "\nthe paper's figures in brackets", head, lines),
            ("Behind it: targets are Retrain's values", facts, details),
            ("ADV+IMP", ATTACK, attacks(own)),
            ("Goals", ("what", "measured", "goal", ""), goals(own)),
        ):
            table = Table(title=name)
            for column in columns:
                table.add_column(column, justify="left" if column in ("method", "what") else "right")
            for row in rows:
                table.add_row(*row)
            tables.append(table)
    return Group(*tables)


def plot(records: list[Record], path: Path) -> list[Path]:
    """ToW against the time of a request, a panel per r; doing nothing is the line to beat."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = settings(records)
    if not found:
        return []
    own = found[-1]
    sizes = sorted({r["r"] for r in own if r["r"]})
    figure, axes = plt.subplots(1, len(sizes), figsize=(4 * len(sizes), 4.6), layout="constrained", squeeze=False)
    for axis, r in zip(axes[0], sizes, strict=True):
        for colour, mark, ((method, scope), name) in zip(LOOKS, MARKS, NAMES.items(), strict=True):
            cell = pick(own, method=method, scope=scope, r=r)
            height, seconds = median(cell, "tow"), median(cell, "unlearn_seconds")
            if height is None or seconds is None:
                continue
            if method == "nothing":
                axis.axhline(height, color=colour, linestyle="--", label=name)
            else:
                axis.plot(seconds, height, mark, color=colour, markersize=9, label=name)
        axis.set(xscale="log", xlabel="seconds of a request", title=f"r = {r:,}")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("ToW (1 = as Retrain)")
    figure.suptitle(title(own), fontsize=10)
    figure.legend(*axes[0][-1].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for target in written:
        figure.savefig(target, dpi=110)
    plt.close(figure)
    return written


def page_part(records_file: Path) -> str:
    """The tables of docs/resnet.md, from a file of records."""
    records = read_records(records_file)
    machine = next((r for r in records if r["experiment"] == "environment"), {})
    parts = [f"Measured on: {machine.get('cpu', 'unknown CPU')}, {machine.get('cores', '?')} cores."]
    for own in settings(records):
        parts += [f"**{title(own)}.** The paper's figures, on all of CIFAR-10 and its own machine, in brackets."]
        parts += [_markdown(*quality(own)), _markdown(*raw(own))]
        parts += [_markdown(ATTACK, attacks(own)), _markdown(("what", "measured", "goal", ""), goals(own))]
    return "\n\n".join(parts)


def _markdown(head: Row, rows: list[Row]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *rows))
