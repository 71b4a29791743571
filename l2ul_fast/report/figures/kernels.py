"""The nearest-seed kernels beside their peers and the machine's matrix product."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import COLOURS, INK, drawing_style, subplots
from l2ul_fast.report.values import NONE, Cell, Drawing, Table, faster, listing, median, plural, select

#: Rows of the records that are not peers: our two kernels, the product at its best and of the same shape.
COUNTS, ASSIGN, PEAK, SHAPE = "l2ul cell_counts", "l2ul assign_cells", "sgemm peak", "sgemm of this shape"
#: psi that every peer is measured at.
PSI = (4, 64)

Grid = dict[tuple[int, int, int], dict[str, Record]]


def grid_of(records: list[Record]) -> Grid:
    """Records of the grid as {(threads, d, psi): {method: record}}."""
    found: Grid = {}
    for r in select(records, experiment="kernels"):
        if "d" in r and "psi" in r:
            found.setdefault((r["threads"], r["d"], r["psi"]), {})[r["method"]] = r
    return {key: found[key] for key in sorted(found) if ASSIGN in found[key]}


def peers_of(grid: Grid) -> list[str]:
    """Peers in the order of the records."""
    names = dict.fromkeys(name for cell in grid.values() for name in cell)
    return [name for name in names if name not in (COUNTS, ASSIGN, PEAK, SHAPE)]


def measured(cell: dict[str, Record], name: str) -> bool:
    return cell.get(name, {}).get("status") == "ok"


def tables(records: list[Record]) -> list[Table]:
    grid = grid_of(records)
    return [speedups(grid, notes(records)), whole(grid)]


def notes(records: list[Record]) -> str:
    """What the reader must know: how rates count, who is missing, cold start."""
    parts = ["Rows are synthetic (standard normal), float32."]
    missing = sorted({r["method"] for r in records if str(r.get("status", "")).startswith("not installed")})
    if missing:
        parts.append(f"Not installed, so not measured: {', '.join(missing)}.")
    for state in ("cold", "cached"):
        found = select(records, experiment="cold-start", method=state)
        if found:
            first, whole, one = (median(found, k) or 0.0 for k in ("first_call", "import_all", "one_row_call"))
            parts.append(f"{state.capitalize()} start: import {whole:.2f} s, first call {first:.2f} s.")
            if state == "cached":
                parts.append(f"Steady: one row in {one * 1e6:.1f} µs.")
    return " ".join(parts)


def speedups(grid: Grid, note: str) -> Table:
    """How many times faster assign_cells is than each peer, lowest to highest over all d."""
    rows = []
    for threads in sorted({k for k, _, _ in grid}):
        for name in peers_of(grid):
            row: dict[str, Any] = {"threads": plural(threads, "thread"), "peer": name}
            for psi in PSI:
                mine = [cell for (k, _, p), cell in grid.items() if (k, p) == (threads, psi) and measured(cell, name)]
                ratios = [cell[ASSIGN]["gflops"] / cell[name]["gflops"] for cell in mine]
                text = f"{min(ratios):.1f}× to {max(ratios):.0f}×" if ratios else "not measured"
                row[f"psi = {psi}"] = Cell(text, min(ratios, default=None))
            rows.append(row)
    return listing("How many times faster assign_cells is than each peer, over all d", rows, note, block=1)


def whole(grid: Grid) -> Table:
    rows = []
    shown = {"cell_counts, % of sgemm peak": COUNTS, "assign_cells, %": ASSIGN, "sgemm of this shape, %": SHAPE}
    for (k, d, psi), cell in grid.items():
        peers = [cell[name] for name in peers_of(grid) if measured(cell, name)]
        peer = max(peers, key=lambda r: r["gflops"], default=None)
        spread = 100 * max(cell[m]["spread"] for m in (PEAK, COUNTS, ASSIGN) if m in cell)
        shares = {name: 100 * cell[m]["fraction_of_peak"] for name, m in shown.items() if m in cell}
        row: dict[str, Any] = {"threads": plural(k, "thread"), "d": d, "psi": psi}
        row |= {name: Cell(f"{shares[name]:.0f}", shares[name]) if name in shares else NONE for name in shown}
        row |= {"fastest peer": peer["method"] if peer else "none installed"}
        row |= {"assign_cells against it": faster(cell[ASSIGN]["gflops"] / peer["gflops"] if peer else None)}
        rows.append(row | {"spread, %": Cell(f"{spread:.0f}", spread)})
    note = (
        "Rates count 2·d·psi·t operations per row for everyone; ours needs (psi-1)/psi of them, so it can pass 100 %. "
        "t = 100; medians of interleaved repeats."
    )
    return listing("The whole grid", rows, note, block=1)


def plots(records: list[Record]) -> list[Drawing]:
    """Fraction of the sgemm peak by d and psi, and the speed-up over each peer: a row per thread count."""
    grid = grid_of(records)
    counts = sorted({k for k, _, _ in grid})
    if not counts:
        return []
    with drawing_style():
        figure, axes = subplots(len(counts), 3, figsize=(15, 4.6 * len(counts)))
        for row, k in zip(axes, counts, strict=True):
            mine = {(d, psi): cell for (threads, d, psi), cell in grid.items() if threads == k}
            _row(row, mine, plural(k, "thread"), peers_of(grid))
        handles, labels = axes[0][1].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=4, title="peers")
    alt = "Lines over the features d, a row per thread count: share of the sgemm peak, and times faster than each peer."
    caption = "Nearest-seed kernels on synthetic rows (t = 100, float32; medians of interleaved repeats)."
    return [Drawing("kernels", figure, alt, caption)]


def _row(axes: Any, mine: dict[tuple[int, int], dict[str, Record]], threads: str, peers: list[str]) -> None:
    dims = sorted({d for d, _ in mine})
    for colour, psi in zip(COLOURS, sorted({p for _, p in mine}), strict=False):
        have = [i for i, d in enumerate(dims) if COUNTS in mine.get((d, psi), {})]
        rate = [100 * mine[dims[i], psi][COUNTS]["fraction_of_peak"] for i in have]
        axes[0].plot(have, rate, "o-", color=colour, label=f"psi = {psi}")
    axes[0].axhline(100, color=INK, linewidth=1, linestyle="--")
    axes[0].set(ylim=(0, None), ylabel="% of the sgemm peak", title=f"cell_counts, {threads}")
    axes[0].legend(title="2·d·psi·t operations per row")
    for axis, psi in zip(axes[1:], PSI, strict=True):
        for colour, name in zip(COLOURS, peers, strict=False):
            have = [i for i, d in enumerate(dims) if measured(mine.get((d, psi), {}), name)]
            ratio = [mine[dims[i], psi][ASSIGN]["gflops"] / mine[dims[i], psi][name]["gflops"] for i in have]
            if have:
                axis.plot(have, ratio, "o-", color=colour, label=name)
        axis.axhline(1, color=INK, linewidth=1, linestyle="--")
        axis.set(yscale="log", ylabel="times faster than the peer", title=f"assign_cells, psi = {psi}, {threads}")
    for axis in axes:
        axis.set_xticks(np.arange(len(dims)), [str(d) for d in dims])
        axis.set_xlabel("features d")


FIGURE = Figure(tables, plots)
