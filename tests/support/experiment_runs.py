"""Tiny settings for the tests of experiments, and runs of them."""

import io
import json

from l2ul_fast.experiments.jobs import DATASETS, Setting, run_jobs
from l2ul_fast.measure.records import Run
from l2ul_fast.report.exhibits import FIGURES


def tiny(tmp_path, name, threads=1, **numbers):
    """A quick setting with stand-ins and other numbers for the experiment `name`."""
    nothing = tmp_path / "no original files"  # None would be those of the user's environment
    nothing.mkdir(exist_ok=True)
    return Setting("quick", {name: numbers}, DATASETS, tmp_path / "data", nothing, threads)


def run(module, setting, folder):
    """(new records, all records) of a run of the module's jobs into `folder`."""
    kept = Run(folder)
    return run_jobs(kept, module.jobs(setting), setting), kept.records


def check_resume(module, setting, folder, lose=1):
    """Nothing is measured twice; records that are lost come back, and only those."""
    new, records = run(module, setting, folder)
    assert new == 0
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-lose]))
    new, again = run(module, setting, folder)
    assert new == lose

    def cells(some):
        names = ("dataset", "model", "method", "r", "seed", "kind", "dirty", "k", "part", "task", "n", "requests")
        return sorted(json.dumps([r.get(k) for k in (*names, "parameter", "value")]) for r in some)

    assert cells(again) == cells(records)
    assert len(set(cells(again))) == len(again)  # no cell twice


def check_figure(name, records):
    """Its plot draws and its table has a cell for every column."""
    plot, table = FIGURES[name]
    drawn = plot(records)
    drawn.savefig(io.BytesIO(), format="png", dpi=30)
    columns, rows = table(records)
    assert rows
    assert all(len(row) == len(columns) for row in rows)
    return drawn, columns, [[getattr(cell, "text", cell) for cell in row] for row in rows]
