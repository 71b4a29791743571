"""Dask workers beside one process, as a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from l2ul_fast.measure.records import Record, read_records
from l2ul_fast.report.figures.kernels import COLOURS

COLUMNS = ("what", "workers", "measured", "one process", "ratio")
COMMAND = "l2ul bench distributed --fresh --page docs/distributed.md"
#: What the records of an experiment are about.
WHAT = {
    "distributed-kme": "count {n:,} x {d} in {shards} shards",
    "distributed-sums": "fit {n:,} x {d} by sums",
    "distributed-pairs": "{m:,} {model} pairs, s = {s:,}",
}

Row = tuple[str, ...]


def _pairs_of_records(records: list[Record]) -> list[tuple[str, Record, Record]]:
    """(what, record of workers, that of one process with as many threads, or with one where there is no such)."""
    found = []
    for r in records:
        if r["experiment"] in WHAT and r["method"] == "workers":
            same = [a for a in records if all(a.get(k) == r.get(k) for k in ("experiment", "model", "m"))]
            alone = [a for a in same if a["method"] == "one process" and a["threads"] in (1, r["workers"])]
            if alone:
                found.append((WHAT[r["experiment"]].format(**r), r, max(alone, key=lambda a: int(a["threads"]))))
    return found


def rows(records: list[Record]) -> list[Row]:
    """Lines of the table."""
    return [
        (
            what,
            str(r["workers"]),
            f"{r['wall_seconds']:.2f} s",
            f"{alone['threads']} thread(s): {alone['wall_seconds']:.2f} s",
            f"{r['wall_seconds'] / alone['wall_seconds']:.2f}x its time",
        )
        for what, r, alone in _pairs_of_records(records)
    ]


def page_part(records_file: Path) -> str:
    """What docs/distributed.md says of measurements, from a file of records; a request to measure if there is none."""
    from l2ul_fast.report.readme import _machine, _table

    if not records_file.exists():
        return f"Not measured yet: `{COMMAND}`."
    records = read_records(records_file)
    first = "HIGGS stand-in rows, not real data; page cache warm; client, scheduler and workers share the cores. "
    return "\n\n".join([first + _machine(records), _table(COLUMNS, rows(records))])


def terminal(records: list[Record]) -> Any:
    from rich.table import Table

    table = Table(
        title="One-thread Dask workers beside one process, HIGGS stand-in (page cache warm)",
        caption="Stand-in rows, not real data. Medians of interleaved repeats; all results equal those of one process.",
    )
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "what" else "right")
    for line in rows(records):
        table.add_row(*line)
    return table


def plot(records: list[Record], path: Path) -> list[Path]:
    """Wall times of workers as shares of those of one process."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = _pairs_of_records(records)
    figure, axis = plt.subplots(figsize=(6.5, 0.5 + 0.4 * len(found)), layout="constrained")
    shares = [r["wall_seconds"] / alone["wall_seconds"] for _, r, alone in found]
    axis.barh([f"{what}, {r['workers']} worker(s)" for what, r, _ in found], shares, color=COLOURS[0])
    axis.axvline(1, color="black", linewidth=1)
    axis.invert_yaxis()
    axis.set(xlabel="wall time, one process = 1")
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for target in written:
        figure.savefig(target, dpi=110)
    plt.close(figure)
    return written
