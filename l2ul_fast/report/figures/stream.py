"""The streaming benchmark as a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figures.kernels import COLOURS


def _find(records: list[Record], **key: Any) -> list[Record]:
    return [r for r in records if all(r.get(k) == v for k, v in key.items())]


def rows(records: list[Record]) -> list[tuple[str, str, str, str]]:
    """(what, measured, beside what, ratio) lines of the table."""
    lines = []
    for r in _find(records, experiment="stream", method="stream_counts"):
        parts = {q["method"]: q for q in _find(records, experiment="stream", n=r["n"], threads=r["threads"])}
        beside = (
            f"read {parts['read alone']['wall_seconds']:.2f} s, kernel {parts['kernel alone']['wall_seconds']:.2f} s"
        )
        what = f"stream_counts, {r['n']:,} x {r['d']}, {r['threads']} thread(s)"
        lines.append((what, f"{r['wall_seconds']:.2f} s", beside, f"{r['of_limit']:.2f}x the larger"))
    lines += [
        (f"peak memory growth, {r['n']:,} rows", f"{r['mib']:.0f} MiB", "the idle process", "")
        for r in _find(records, experiment="memory")
    ]
    by_rows = {r["method"]: r for r in _find(records, experiment="rows")}
    if by_rows:
        memory, h5 = by_rows["packed cells in memory"], by_rows["X by h5py indexing"]
        for name, r in by_rows.items():
            base = memory if "cells" in name else h5
            ratio = r["wall_seconds"] / base["wall_seconds"]
            if r is not base:
                text = f"{ratio:.1f}x its time" if base is memory else f"{1 / ratio:.0f}x faster"
                lines.append((f"{r['r']} rows: {name}", f"{r['wall_seconds'] * 1e6:,.0f} us", base["method"], text))
    pairs = (
        ("write", "stand-in", "random bytes"),
        ("write", "stand-in", "random rows, same HDF5 file"),
        ("write", "stand-in", "generate alone"),
        ("csv", "l2ul data convert", "pandas read_csv + to_hdf"),
    )
    for experiment, ours, other in pairs:
        found = {r["method"]: r for r in _find(records, experiment=experiment)}
        if ours in found and other in found:
            mine, base = found[ours]["wall_seconds"], found[other]["wall_seconds"]
            ratio = f"{base / mine:.0%} of its speed" if experiment == "write" else f"{base / mine:.1f}x faster"
            lines.append((f"{ours}, {found[ours]['n']:,} rows", f"{mine:.2f} s", f"{other} {base:.2f} s", ratio))
    lines += [
        (
            f"codec {r['method']}, {r['n']:,} rows",
            f"{r['bytes_share']:.0%} of the bytes",
            "codec none",
            f"write {r['write_ratio']:.1f}x, read {r['read_ratio']:.1f}x, stream {r['stream_ratio']:.1f}x its time",
        )
        for r in _find(records, experiment="codec")
        if r["method"] != "none"
    ]
    return lines


def terminal(records: list[Record]) -> Any:
    from rich.table import Table

    table = Table(
        title="Streaming the HIGGS stand-in (page cache warm)",
        caption="Stand-in rows, not real data. Medians of interleaved repeats.",
    )
    for name in ("what", "measured", "beside", "ratio"):
        table.add_column(name, justify="left" if name in ("what", "beside") else "right")
    for line in rows(records):
        table.add_row(*line)
    return table


def plot(records: list[Record], path: Path) -> list[Path]:
    """Wall time and memory against n, wall time against threads."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    stream = _find(records, experiment="stream")
    k, n = max(r["threads"] for r in stream), max(r["n"] for r in stream)
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    for colour, method in zip(COLOURS, ("stream_counts", "kernel alone", "read alone"), strict=False):
        for axis, key, chosen in (
            (axes[0], "n", _find(stream, method=method, threads=k)),
            (axes[2], "threads", _find(stream, method=method, n=n)),
        ):
            chosen.sort(key=lambda r: r[key])
            axis.plot([r[key] for r in chosen], [r["wall_seconds"] for r in chosen], "o-", color=colour, label=method)
    axes[0].set(
        xscale="log", yscale="log", xlabel="rows", ylabel="wall time, s", title=f"time is linear, {k} thread(s)"
    )
    memory = sorted(_find(records, experiment="memory"), key=lambda r: r["n"])
    axes[1].plot([r["n"] for r in memory], [r["mib"] for r in memory], "o-", color=COLOURS[0])
    axes[1].axhline(256, color="black", linestyle="--", linewidth=1, label="256 MiB")
    axes[1].set(xscale="log", ylim=(0, None), xlabel="rows", ylabel="peak memory growth, MiB", title="memory is flat")
    counts = sorted({r["threads"] for r in stream})
    axes[2].set_xticks(counts, [str(c) for c in counts])
    axes[2].set(ylim=(0, None), xlabel="threads", ylabel="wall time, s", title=f"{n:,} rows")
    for axis in axes:
        axis.legend()
        axis.grid(alpha=0.3)
    figure.suptitle("Streaming counts, HIGGS stand-in (psi = 4, t = 100, page cache warm)")
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for target in written:
        figure.savefig(target, dpi=110)
    plt.close(figure)
    return written
