"""Dask workers beside one process, as a table and a plot; and the cost model of docs/distributed.md.

The model has six figures, all measured apart from what it is checked on: rows per second of a thread while all cores
count (one process), seconds of a call for next to no rows, seconds of a leaf without rows and CPU seconds of it in all
processes, of which the scheduler's own, and bytes the scheduler gets per task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2ul_fast.distributed.sums import FAN_IN, LEAF_BYTES, LEAVES
from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import Record, read_records
from l2ul_fast.report.figures.kernels import COLOURS

#: Goals: wall time of k one-thread workers over that of one process with k threads; bytes to the scheduler per shard;
#: parallel efficiency of making pairs.
WALL, BYTES, EFFICIENCY = 1.2, 64 * 1024, 0.9
#: What the model is extrapolated to: rows, one-thread workers.
FAR = (10**12, 1000)
COLUMNS = ("what", "measured", "beside", "ratio", "goal", "")
COMMAND = "l2ul bench distributed --fresh --page docs/distributed.md"

Row = tuple[str, ...]


def _find(records: list[Record], **key: Any) -> list[Record]:
    return [r for r in records if all(r.get(k) == v for k, v in key.items())]


def _size(count: float) -> str:
    """'12.3 KB'."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"
        count /= 1000
    raise AssertionError


def rows(records: list[Record]) -> list[Row]:
    """(what, measured, beside what, ratio, goal, verdict) lines of the table."""
    lines: list[Row] = []
    kme = _find(records, experiment="distributed-kme")
    for r in _find(kme, method="workers"):
        alone = _find(kme, method="one process", threads=r["workers"])[0]
        ratio = r["wall_seconds"] / alone["wall_seconds"]
        k = r["workers"]
        what = f"count {r['n']:,} x {r['d']} in {r['shards']} shards, {k} one-thread worker(s)"
        beside = f"one process, {k} thread(s): {alone['wall_seconds']:.2f} s"
        verdict = _verdict(ratio <= WALL) if k > 1 else ""
        goal = f"<= {WALL}x" if k > 1 else ""
        lines.append((what, f"{r['wall_seconds']:.2f} s", beside, f"{ratio:.2f}x its time", goal, verdict))
        if k > 1:
            moved = r["scheduler_bytes_per_shard"]
            goal, verdict = f"< {BYTES // 1024} KiB", _verdict(moved < BYTES)
            lines.append(("bytes to the scheduler per shard", f"{moved / 1024:.1f} KiB", "", "", goal, verdict))
    for r in _find(records, experiment="distributed-pairs"):
        if not r["workers"]:
            continue
        judged = r["workers"] > 1 and r.get("method") != "apart"
        who = f"{r['workers']} workers, one task each, nothing fetched" if r.get("method") == "apart" else ""
        what = f"{r['m']:,} {r['model']} pairs, s = {r['s']:,}, {who or str(r['workers']) + ' one-thread worker(s)'}"
        beside = f"one process, 1 thread: {r['beside_seconds']:.2f} s"
        goal = f">= {EFFICIENCY:.0%}" if judged else ""
        verdict = _verdict(r["efficiency"] >= EFFICIENCY) if judged else ""
        ratio = f"{r['efficiency']:.0%} parallel efficiency"
        if judged:
            low, high = r["half_of_rounds"]
            ratio += (
                f" (half of {r['rounds']} rounds: {low:.0%} to {high:.0%}), {r['of_one_worker']:.0%} beside one worker"
            )
        lines.append((what, f"{r['wall_seconds']:.2f} s", beside, ratio, goal, verdict))
    for r in _find(records, experiment="distributed-limit"):
        if r["workers"] > 1:
            alone = _find(records, experiment="distributed-limit", model=r["model"], m=r["m"], workers=1)[0]
            what = f"{r['workers']} workers that only multiply, between the {r['m']:,} {r['model']} pairs"
            beside = f"one of them: {alone['wall_seconds']:.2f} s"
            ratio = f"{r['efficiency']:.0%} parallel efficiency; the host took {r['stolen']:.1%} of the cores' time"
            lines.append((what, f"{r['wall_seconds']:.2f} s", beside, ratio, "", ""))
    for r in _find(records, experiment="distributed-tasks"):
        seconds, moved = r["seconds_per_task"], r["scheduler_bytes_per_task"]
        what, beside = f"an empty task, {r['workers']} workers", f"{moved:,.0f} bytes to the scheduler"
        lines.append((what, f"{seconds * 1e3:.2f} ms", beside, "", "", ""))
    return lines


def _verdict(reached: bool) -> str:
    return "ok" if reached else "missed"


@dataclass(frozen=True)
class CostModel:
    """seconds(n, workers, leaves) of counting; see docs/distributed.md."""

    rates: dict[int, float]  #: rows per second of one thread, by the number of threads that count at that time
    task: float  #: seconds of a task of leaves without rows
    cpu: float  #: CPU seconds of it in all processes
    busy: float  #: those of the scheduler
    call: float  #: seconds of counting next to no rows in one leaf
    task_bytes: float  #: bytes the scheduler receives per task
    workers: int  #: that these were measured with
    d: int
    held_bytes: int  #: what every worker gets once: the seeds
    result_bytes: int  #: what a leaf returns, and passes to its sum

    @classmethod
    def of(cls, records: list[Record]) -> CostModel:
        """From a run's records; UserError if it is not finished."""
        kme = _find(records, experiment="distributed-kme")
        alone, few = _find(kme, method="one process"), _find(kme, method="workers, few rows")
        few.sort(key=lambda r: r["leaves"])
        if not alone or len(few) < 2 or "cpu_seconds" not in few[0]:  # earlier versions did not record these
            raise UserError(f"these records do not hold a finished run: {COMMAND}")
        r, one, many = alone[0], few[0], few[-1]
        more = cls.tasks(many["leaves"]) - cls.tasks(one["leaves"])
        names = ("wall_seconds", "cpu_seconds", "scheduler_seconds", "scheduler_bytes")
        task, cpu, busy, moved = ((many[name] - one[name]) / more for name in names)
        return cls(
            {r["threads"]: r["n"] / r["wall_seconds"] / r["threads"] for r in alone},
            task,
            cpu,
            busy,
            one["wall_seconds"],
            moved,
            one["workers"],
            r["d"],
            4 * r["t"] * r["psi"] * r["d"],
            8 * r["t"] * r["psi"],
        )

    @staticmethod
    def tasks(leaves: int) -> int:
        """Leaves and the sums above them."""
        total, level = leaves, leaves
        while level > 1:
            level = math.ceil(level / FAN_IN)
            total += level
        return max(total, leaves + 1)

    @property
    def rate(self) -> float:
        """Rows per second of one thread while all cores count."""
        return self.rates[max(self.rates)]

    def seconds(self, n: int, workers: int, leaves: int) -> float:
        """Where scheduler, client and workers share the cores: what a task takes of them adds to the work.

        Leaves can be so small that workers wait for tasks instead, which come one after the other.
        """
        busiest = math.ceil(leaves / workers) / leaves  # share of the rows that the last one to finish counts
        tasks = self.tasks(leaves) - self.tasks(1)
        return self.call + max(busiest * n / self.rates[workers] + tasks * self.cpu / self.workers, tasks * self.task)


def check(records: list[Record]) -> list[Row]:
    """(workers, leaves, rows per leaf, measured, model, difference) of every count by workers."""
    model = CostModel.of(records)
    lines: list[Row] = []
    kme = [
        r for r in _find(records, experiment="distributed-kme") if r["method"] in ("workers", "workers, other leaves")
    ]
    for r in sorted(kme, key=lambda r: (r["workers"], r["leaves"])):
        found = model.seconds(r["n"], r["workers"], r["leaves"])
        default = " (default)" if r["method"] == "workers" else ""
        lines.append(
            (
                str(r["workers"]),
                f"{r['leaves']}{default}",
                f"{r['n'] // r['leaves']:,}",
                f"{r['wall_seconds']:.2f} s",
                f"{found:.2f} s",
                f"{found / r['wall_seconds'] - 1:+.0%}",
            )
        )
    return lines


def far(records: list[Record]) -> list[Row]:
    """(what, figure) lines of the extrapolation."""
    model = CostModel.of(records)
    n, workers = FAR
    leaves = LEAVES * workers
    tasks, leaf = model.tasks(leaves), n / leaves
    work, busy, gap = n / workers / model.rate, tasks * model.busy, model.workers * model.task
    read = 4 * model.d * model.rate
    total = max(work + LEAVES * gap, busy) + leaf / model.rate + model.call
    return [
        ("rows, columns, one-thread workers", f"{n:.0e} x {model.d}, {workers:,}"),
        ("leaves per worker, rows per leaf", f"{LEAVES}, {leaf:,.0f} ({_size(4 * model.d * leaf)})"),
        ("tasks, sums included", f"{tasks:,}"),
        ("counting, every worker", f"{work:,.0f} s"),
        ("waiting for tasks, every worker", f"{LEAVES * gap:,.1f} s: {LEAVES} times {gap * 1e3:.1f} ms"),
        ("scheduler busy meanwhile", f"{busy:,.0f} s, {busy / work:.0%} of that"),
        ("waiting for the last leaf, at worst", f"{leaf / model.rate:,.1f} s"),
        ("a call without rows", f"{model.call:.2f} s"),
        ("**in all, the scheduler on a machine of its own**", f"**{total:,.0f} s**"),
        ("read per worker, at most", f"{_size(4 * model.d * n / workers)}, {_size(read)}/s"),
        ("read by all: what the storage must give", f"{_size(read * workers)}/s"),
        ("to each worker once: seeds", _size(model.held_bytes)),
        ("between workers, each: what its leaves return", _size(LEAVES * model.result_bytes)),
        ("to the scheduler in all", _size(tasks * model.task_bytes)),
        ("to the client: the counts", _size(model.result_bytes)),
        ("work lost with a killed worker", f"a leaf of {leaf / model.rate:,.1f} s, and its leaves not yet summed"),
    ]


def page_part(records_file: Path) -> str:
    """What docs/distributed.md says of measurements, from a file of records; a request to measure if there is none."""
    from l2ul_fast.report.readme import _machine, _table

    if not records_file.exists():
        return f"Not measured yet: `{COMMAND}`."
    records = read_records(records_file)
    model = CostModel.of(records)
    rates = ", ".join(f"{rate:,.0f} rows/s ({k} at a time)" for k, rate in sorted(model.rates.items()))
    figures = (
        f"v = {rates}, f = {model.call * 1e3:.0f} ms (counting a thousand rows), c = {model.task * 1e3:.2f} ms "
        f"(a leaf without rows), u = {model.cpu * 1e3:.2f} ms of CPU time in all processes, of which "
        f"{model.busy * 1e3:.2f} ms in the scheduler and the client's messages, "
        f"b = {model.task_bytes:,.0f} bytes per task"
    )
    return "\n\n".join(
        [
            "HIGGS stand-in rows, not real data; page cache warm; client, scheduler and workers share the cores. "
            + _machine(records),
            _table(COLUMNS, rows(records)),
            f"The model's figures from these records: {figures}. Its predictions beside what was measured:",
            _table(("workers", "leaves", "rows per leaf", "measured", "model", "difference"), check(records)),
            f"Extrapolated to {FAR[0]:.0e} rows on {FAR[1]:,} workers:",
            _table(("what", "figure"), far(records)),
        ]
    )


def terminal(records: list[Record]) -> Any:
    from rich.table import Table

    table = Table(
        title="Dask workers beside one process, HIGGS stand-in (page cache warm)",
        caption="Stand-in rows, not real data. Medians of interleaved repeats; all results equal those of one process.",
    )
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("what", "beside") else "right")
    for line in rows(records):
        table.add_row(*line)
    return table


def plot(records: list[Record], path: Path) -> list[Path]:
    """Wall time against the number of leaves, measured and by the model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    model = CostModel.of(records)
    kme = _find(records, experiment="distributed-kme")
    k = max(r["workers"] for r in kme if "workers" in r)
    mine = [r for r in kme if r.get("workers") == k and r["method"] != "workers, few rows"]
    mine.sort(key=lambda r: r["leaves"])
    alone = _find(kme, method="one process", threads=k)[0]["wall_seconds"]
    figure, axis = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    leaves = [r["leaves"] for r in mine]
    axis.plot(leaves, [r["wall_seconds"] for r in mine], "o-", color=COLOURS[0], label=f"{k} one-thread workers")
    by_model = [model.seconds(r["n"], k, r["leaves"]) for r in mine]
    axis.plot(leaves, by_model, "x--", color=COLOURS[1], label="cost model")
    axis.axhline(alone, color=COLOURS[2], label=f"one process, {k} threads")
    axis.axhline(WALL * alone, color="black", linestyle=":", linewidth=1, label=f"goal, {WALL}x")
    axis.set(xscale="log", ylim=(0, None), xlabel="leaves (tasks that count)", ylabel="wall time, s")
    axis.set_title(f"HIGGS stand-in, {mine[0]['n']:,} rows, leaves of at least {LEAF_BYTES >> 20} MiB by default")
    axis.legend()
    axis.grid(alpha=0.3)
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for target in written:
        figure.savefig(target, dpi=110)
    plt.close(figure)
    return written
