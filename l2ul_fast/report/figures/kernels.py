"""The kernel comparison as a terminal table, a Markdown table and a plot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from l2ul_fast.experiments.speed.kernels import ASSIGN, COUNTS, PEAK, SHAPE
from l2ul_fast.experiments.speed.peers import PEERS
from l2ul_fast.measure.records import Record

#: Okabe and Ito's colours, told apart by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")

Cell = dict[str, Record]


def cells(records: Iterable[Record]) -> dict[tuple[int, int, int], Cell]:
    """Records of the grid as {(threads, d, psi): {method: record}}."""
    grid: dict[tuple[int, int, int], Cell] = {}
    for r in records:
        if r["experiment"] == "kernels":
            grid.setdefault((r["threads"], r["d"], r["psi"]), {})[r["method"]] = r
    return {key: grid[key] for key in sorted(grid) if ASSIGN in grid[key]}


def fastest_peer(cell: Cell) -> Record | None:
    """The installed peer with the highest rate."""
    measured = [cell[name] for name in PEERS if cell.get(name, {}).get("status") == "ok"]
    return max(measured, key=lambda r: r["gflops"], default=None)


def rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One line of the table per cell of the grid."""
    lines = []
    for (k, d, psi), cell in cells(records).items():
        peer = fastest_peer(cell)
        ours = cell[ASSIGN]["gflops"]
        lines.append(
            {
                "threads": k,
                "d": d,
                "psi": psi,
                "counts": cell[COUNTS]["of_peak"],
                "assign": cell[ASSIGN]["of_peak"],
                "sgemm": cell[SHAPE]["of_peak"],
                "peak": cell[PEAK]["gflops"],
                "peer": peer["method"] if peer else "none installed",
                "speedup": ours / peer["gflops"] if peer else float("nan"),
                "spread": max(cell[m]["spread"] for m in (PEAK, COUNTS, ASSIGN)),
            }
        )
    return lines


HEADER = (
    "threads",
    "d",
    "psi",
    "cell_counts, % of sgemm peak",
    "assign_cells, %",
    "sgemm of this shape, %",
    "fastest peer",
    "assign_cells against it",
    "spread, %",
)


def _texts(line: dict[str, Any]) -> list[str]:
    return [
        str(line["threads"]),
        str(line["d"]),
        str(line["psi"]),
        f"{line['counts']:.0%}".rstrip("%"),
        f"{line['assign']:.0%}".rstrip("%"),
        f"{line['sgemm']:.0%}".rstrip("%"),
        line["peer"],
        f"{line['speedup']:.1f}x",
        f"{line['spread']:.0%}".rstrip("%"),
    ]


def markdown(records: Iterable[Record]) -> str:
    """The table for README files."""
    lines = [f"| {' | '.join(HEADER)} |", f"|{'---:|' * 6}:---|---:|---:|"]
    lines += [f"| {' | '.join(_texts(line))} |" for line in rows(records)]
    return "\n".join(lines)


def terminal(records: list[Record]) -> Any:
    """The same as a rich table."""
    from rich.table import Table

    table = Table(title="Nearest-seed kernels, synthetic rows, float32, t=100", caption=notes(records))
    for name in HEADER:
        table.add_column(name, justify="left" if "peer" in name else "right")
    before = None
    for line in rows(records):
        if before not in (None, (line["threads"], line["d"])):
            table.add_section()
        before = (line["threads"], line["d"])
        table.add_row(*_texts(line))
    return table


def notes(records: list[Record]) -> str:
    """What the reader must know: how rates count, who is missing, cold start, cost of the NaN check."""
    parts = [
        "Rates count 2·d·psi·t operations per row for everyone; ours needs (psi-1)/psi of them, so it can pass 100 %."
    ]
    missing = sorted({r["method"] for r in records if str(r.get("status", "")).startswith("not installed")})
    if missing:
        parts.append(f"Not installed, so not measured: {', '.join(missing)}.")
    cold = [r for r in records if r["experiment"] == "cold-start"]
    for state in ("cold", "cached"):
        found = [r for r in cold if r["method"] == state]
        if found:
            first, whole, one = (np.median([r[k] for r in found]) for k in ("first_call", "import_all", "one_row_call"))
            parts.append(f"{state.capitalize()} start: import {whole:.2f} s, first call {first:.2f} s.")
            if state == "cached":
                parts.append(f"Steady: one row in {one * 1e6:.1f} us.")
    parts += [f"Checking for NaN costs {r['cost']:.1%}." for r in records if r["experiment"] == "nan-check"]
    return " ".join(parts)


def speedups(records: Iterable[Record], threads: int) -> str:
    """Markdown: how many times faster assign_cells is than each peer, lowest to highest over all d."""
    grid = cells(records)
    lines = ["| peer | psi=4 | psi=64 |", "|---|---:|---:|"]
    for name in PEERS:
        entry = []
        for psi in (4, 64):
            ratios = [
                cell[ASSIGN]["gflops"] / cell[name]["gflops"]
                for (k, _, p), cell in grid.items()
                if k == threads and p == psi and cell.get(name, {}).get("status") == "ok"
            ]
            entry.append(f"{min(ratios):.1f}x .. {max(ratios):.0f}x" if ratios else "not installed")
        lines.append(f"| {name} | {' | '.join(entry)} |")
    return "\n".join(lines)


def plot(records: list[Record], path: Path) -> list[Path]:
    """Fraction of the sgemm peak by d and psi, and the speed-up over each peer: one figure as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grid = cells(records)
    counts = sorted({k for k, _, _ in grid})
    figure, axes = plt.subplots(len(counts), 3, figsize=(15, 4.6 * len(counts)), squeeze=False, layout="constrained")
    for row, k in zip(axes, counts, strict=True):
        mine = {(d, psi): cell for (threads, d, psi), cell in grid.items() if threads == k}
        dims = sorted({d for d, _ in mine})
        place = np.arange(len(dims))
        for colour, psi in zip(COLOURS, sorted({p for _, p in mine}), strict=False):
            have = [i for i, d in enumerate(dims) if (d, psi) in mine]
            rate = [100 * mine[dims[i], psi][COUNTS]["of_peak"] for i in have]
            row[0].plot(place[have], rate, "o-", color=colour, label=f"psi = {psi}")
        row[0].axhline(100, color="black", linewidth=1, linestyle="--")
        row[0].set(ylim=(0, None), ylabel="% of the sgemm peak", title=f"cell_counts, {k} thread{'s' if k > 1 else ''}")
        row[0].legend(title="2·d·psi·t operations per row")
        for axis, psi in zip(row[1:], (4, 64), strict=True):
            for colour, name in zip(COLOURS, PEERS, strict=False):
                have = [i for i, d in enumerate(dims) if mine.get((d, psi), {}).get(name, {}).get("status") == "ok"]
                ratio = [mine[dims[i], psi][ASSIGN]["gflops"] / mine[dims[i], psi][name]["gflops"] for i in have]
                if have:
                    axis.plot(place[have], ratio, "o-", color=colour, label=name)
            axis.axhline(1, color="black", linewidth=1, linestyle="--")
            title = f"assign_cells, psi = {psi}, {k} thread{'s' if k > 1 else ''}"
            axis.set(yscale="log", ylabel="times faster than the peer", title=title)
        for axis in row:
            axis.set_xticks(place, [str(d) for d in dims])
            axis.set_xlabel("features d")
            axis.grid(alpha=0.3)
    handles, labels = axes[0][1].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, title="peers")
    figure.suptitle("Nearest-seed kernels on synthetic rows (t = 100, float32; medians of interleaved repeats)")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for target in written:
        figure.savefig(target, dpi=110, metadata={"Date": None} if target.suffix == ".svg" else None)
    plt.close(figure)
    return written
