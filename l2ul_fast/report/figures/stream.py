"""Streaming a large file beside its limits: reading alone, the kernel alone; rows by number, text, writing."""

from __future__ import annotations

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import BLUE, GREEN, INK, ORANGE, drawing_style, subplots
from l2ul_fast.report.values import Drawing, Table, faster, median, plural, seconds_text, select

#: (experiment, ours, what it stands beside)
BESIDE = (
    ("write", "stand-in", "random bytes"),
    ("write", "stand-in", "random rows, same HDF5 file"),
    ("write", "stand-in", "generate alone"),
    ("csv", "l2ul data convert", "pandas read_csv + to_hdf"),
)
METHODS = (("stream_counts", BLUE), ("kernel alone", ORANGE), ("read alone", GREEN))


def tables(records: list[Record]) -> list[Table]:
    rows: list[list[object]] = []
    for r in select(records, experiment="stream", method="stream_counts"):
        beside = {q["method"]: q for q in select(records, experiment="stream", n=r["n"], threads=r["threads"])}
        parts = [f"{name} {beside[name]['seconds']:.2f} s" for name in ("read alone", "kernel alone") if name in beside]
        what = f"stream_counts, {r['n']:,} × {r['d']}, {plural(r['threads'], 'thread')}"
        ratio = median([r], "fraction_of_limit")
        text = "" if ratio is None else f"{ratio:.2f}× the larger"
        rows.append([what, seconds_text(r["seconds"]), ", ".join(parts), text])
    memory = select(records, experiment="memory")
    rows += [[f"peak memory growth, {r['n']:,} rows", f"{r['mib']:.0f} MiB", "the idle process", ""] for r in memory]
    rows += _rows_by_number(select(records, experiment="rows"))
    for experiment, ours, other in BESIDE:
        found = {r["method"]: r for r in select(records, experiment=experiment)}
        if ours in found and other in found:
            mine, base = found[ours]["seconds"], found[other]["seconds"]
            text = f"{base / mine:.0%} of its speed" if experiment == "write" else f"{faster(base / mine).text} faster"
            rows.append([f"{ours}, {found[ours]['n']:,} rows", seconds_text(mine), f"{other} {base:.2f} s", text])
    for r in select(records, experiment="codec"):
        if r["method"] != "none":
            times = ", ".join(f"{name} {r[f'{name}_ratio']:.1f}×" for name in ("write", "read", "stream"))
            share = f"{r['bytes_share']:.0%} of the bytes"
            rows.append([f"codec {r['method']}, {r['n']:,} rows", share, "codec none", f"{times} its time"])
    note = "HIGGS stand-in rows, not real data; page cache warm. Medians of interleaved repeats."
    return [Table("Streaming a file", ["what", "measured", "beside", "ratio"], rows, note)]


def _rows_by_number(records: list[Record]) -> list[list[object]]:
    by_rows = {r["method"]: r for r in records}
    memory, h5 = by_rows.get("packed cells in memory"), by_rows.get("X by h5py indexing")
    out: list[list[object]] = []
    for name, r in by_rows.items():
        base = memory if "cells" in name else h5
        if base is not None and r is not base:
            ratio = r["seconds"] / base["seconds"]
            text = f"{ratio:.1f}× its time" if base is memory else f"{1 / ratio:.0f}× faster"
            out.append([f"{r['r']:,} rows: {name}", seconds_text(r["seconds"]), base["method"], text])
    return out


def plots(records: list[Record]) -> list[Drawing]:
    """Time and memory against n; time against threads where there were several."""
    stream = select(records, experiment="stream")
    memory = sorted(select(records, experiment="memory"), key=lambda r: r["n"])
    if not stream:
        return []
    counts, n = sorted({r["threads"] for r in stream}), max(r["n"] for r in stream)
    with drawing_style():
        wide = 3 if len(counts) > 1 else 2
        figure, grid = subplots(1, wide, figsize=(4.8 * wide, 4.2))
        axes = grid[0]
        lines = [(axes[0], "n", select(stream, threads=counts[-1]))]
        lines += [(axes[2], "threads", select(stream, n=n))] if wide == 3 else []
        for axis, key, found in lines:
            for method, colour in METHODS:
                points = sorted((r[key], r["seconds"]) for r in select(found, method=method))
                if points:
                    axis.plot(*zip(*points, strict=True), "o-", color=colour, label=method)
            axis.set(xlabel="rows" if key == "n" else key, ylabel="wall time, s")
            axis.legend()
        axes[0].set(xscale="log", yscale="log", title=f"time, {plural(counts[-1], 'thread')}")
        axes[1].plot([r["n"] for r in memory], [r["mib"] for r in memory], "o-", color=BLUE)
        axes[1].axhline(256, color=INK, linestyle="--", linewidth=1, label="256 MiB")
        axes[1].set(xscale="log", ylim=(0, None), xlabel="rows", ylabel="peak memory growth, MiB", title="memory")
        axes[1].legend()
        if wide == 3:
            axes[2].set_xticks(counts, [str(c) for c in counts])
            axes[2].set(ylim=(0, None), title=f"{n:,} rows")
    alt = "Lines: time of streaming against the number of rows, peak memory against it, time against threads."
    return [Drawing("stream", figure, alt, "HIGGS stand-in (psi = 4, t = 100, page cache warm).")]


FIGURE = Figure(tables, plots)
