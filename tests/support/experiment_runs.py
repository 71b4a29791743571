"""Tiny settings for the tests of experiments, and runs of them."""

import io
import json

from l2ul_fast.experiments.jobs import DATASETS, Setting, run_jobs
from l2ul_fast.measure.records import Run
from l2ul_fast.report.exhibits import EXHIBITS
from l2ul_fast.report.figure import resolve
from l2ul_fast.report.runs import ready


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
    """(drawings, tables) of its figure: plots draw, and every table has a cell for every column."""
    figure, mine = resolve(EXHIBITS[name].figure), ready(records)
    drawings, tables = figure.plots(mine), figure.all_tables(mine)
    for drawing in drawings:
        drawing.figure.savefig(io.BytesIO(), format="png", dpi=30)
    assert tables
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    return drawings, tables
