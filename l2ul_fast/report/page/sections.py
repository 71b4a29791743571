"""Which parts a run's report has: what was measured on what, the figures, the tables, and what is missing."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import Record, read_records
from l2ul_fast.report.common import (
    Drawing,
    Table,
    dataset_label,
    group,
    median,
    ours_of,
    pick,
    ratio_text,
    runs_of,
    seconds_text,
    settings_of,
    style,
    tidy,
    values,
)
from l2ul_fast.report.figures import costs, headline, methods, speedup
from l2ul_fast.report.page import Section, escape, records_table, write_page

#: Experiments a whole run has, and what each is on the page, in the paper's order.
EXPERIMENTS = {
    "lr": "Logistic regression (Fig. 2)",
    "mlp": "MLP (Figs. 3–5)",
    "baselines": "All baselines",
    "efficacy": "Efficacy (Table 3)",
    "contamination": "Contaminated data (Fig. 6)",
    "sensitivity": "Sensitivity to ψ, s and m (Figs. 7–8)",
    "bounds": "Bounds (Theorems 4.5 and 4.6)",
    "leak": "Rows in the unlearner's own training (Theorem 7.1)",
    "sequence": "A sequence of requests",
    "cores": "Scaling by cores",
    "scale": "Time and memory by n",
}
#: Shown where a run has them, not missed where it has not.
FURTHER = {
    "baseline-speed": "How fast our baselines are",
    "resnet": "ResNet-18 (CIFAR-10)",
    "kernels": "Kernels",
    "stream": "Streaming from disk",
    "gate": "Correctness checks before any timing",
}


def find_run(name: Path | str) -> Path:
    """The run's folder: as given, or of that name under results/."""
    given = Path(name)
    for folder in (given, Path("results") / given):
        if (folder / "records.jsonl").is_file():
            return folder
    if given.is_file() and given.suffix == ".jsonl":
        return given
    if given.is_dir():
        raise UserError(f"{given} holds no records.jsonl: it is not the folder of a run")
    raise UserError(f"there is no run {given}; give the folder that `l2ul bench` wrote, such as results/quick")


def environment_of(folder: Path, records: list[Record]) -> Record:
    """What run.json says of the machine, or the run's first record where that file is missing or damaged."""
    facts: Record = dict(next(iter(pick(records, experiment="environment")), {}))
    facts.pop("experiment", None)
    facts.pop("method", None)
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        facts = {**facts, **found} if isinstance(found, dict) else facts
    except (OSError, ValueError):
        pass
    return facts


def write_report(name: Path | str, out: Path | None = None) -> tuple[Path, list[str]]:
    """Write the page of a run, finished or not; returns its path and sentences on what is missing."""
    folder = find_run(name)
    records = tidy(read_records(folder))
    measured = [r for r in records if r.get("experiment") != "environment"]
    if not measured:
        raise UserError(f"{folder} holds no measured records yet; run `l2ul bench` first")
    home = folder if folder.is_dir() else folder.parent
    missing = missing_parts(measured)
    title = f"l2ul-fast: run {home.resolve().name}"
    lead = (
        "What it takes to remove rows from a trained model, and how near each method comes to a true retrain. "
        f"{len(measured):,} records."
    )
    page = write_page(title, lead, sections(measured, environment_of(home, records), missing), out or home / "report")
    return page, missing


def sections(records: list[Record], environment: Record, missing: list[str]) -> list[Section]:
    """All boxes of the page."""
    out = [Section("glance", "At a glance", html=_tiles(records)), _about(records, environment)]
    if missing:
        items = "".join(f"<li>{escape(text)}</li>" for text in missing)
        out.append(Section("missing", "Missing from this run", html=f"<ul>{items}</ul>", kind="missing"))
    if marks := headline.figures(records):
        out.append(Section("headline", "Time against distance to retraining", drawings=marks))
    if ratios := speedup.tables(records):
        out.append(Section("speedup", "Speed-ups beside the paper's", tables=ratios))
    drawn = methods.figures(records)
    for name in methods.MAIN:
        if methods.main_records(records, name):
            mine = [d for d in drawn if d.name.startswith(f"{name}-")]
            out.append(Section(name, EXPERIMENTS[name], drawings=mine, tables=[methods.table(records, name)]))
    if pick(records, experiment="efficacy"):
        out.append(Section("efficacy", EXPERIMENTS["efficacy"], tables=[methods.efficacy(records)]))
    paid = costs.break_even_table(records)
    if paid.rows:
        out.append(Section("break-even", "When preparing has paid", tables=[paid]))
    by_threads = costs.thread_table(records)
    others = [name for (name,) in group(records, "experiment") if name not in (*methods.MAIN, "efficacy")]
    titles = EXPERIMENTS | FURTHER
    for name in sorted(others, key=lambda n: [*titles, n].index(n)):
        section = _further(str(name), titles.get(name, str(name)), pick(records, experiment=name))
        if name == "cores" and by_threads:
            section.tables.append(by_threads)
        out.append(section)
    if by_threads and "cores" not in others:
        out.append(Section("cores", EXPERIMENTS["cores"], tables=[by_threads]))
    return out


def _further(name: str, title: str, records: list[Record]) -> Section:
    """An experiment with its own figure and table, or its records in a plain table."""
    try:
        own = import_module("l2ul_fast.report.exhibits").FIGURES.get(name)
    except ModuleNotFoundError:
        own = None
    anchor = "x-" + "".join(c if c.isalnum() else "-" for c in name)
    if own is None:
        return Section(anchor, title, tables=[records_table(name, records)])
    plot, table = own
    try:
        with style():
            figure = plot(records)
        columns, rows = table(records)
        if not rows:
            raise ValueError("its table is empty")
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        # an unfinished experiment may lack what its figure needs: its records are shown rather than nothing
        text = f"Not enough records for its figure yet ({type(error).__name__}: {error})."
        return Section(anchor, title, text, tables=[records_table(name, records)])
    alt = f"Plot of the experiment {name}: {title}. The table below holds its numbers."
    data = sorted({f"{d}: {s}" for d, s, _ in settings_of(records) if d})
    drawings = [] if figure is None else [Drawing(name, figure, alt, f"Data: {', '.join(data)}." if data else "")]
    return Section(anchor, title, drawings=drawings, tables=[Table(f"Numbers of {name}", columns, rows)])


def _tiles(records: list[Record]) -> str:
    """The few numbers that sum up the default unlearner, each with the data it is from."""
    tiles: list[tuple[str, str, str]] = []
    for model in ("lr", "mlp"):
        found = pick(methods.main_records(records, model), model=model)
        ours = ours_of(found)
        mine = pick(found, method=ours, r=1, kind=("random", None))
        time, rho = median(mine, "unlearn_seconds"), median(mine, "rho")
        if time is None:
            continue
        name = model.upper()
        where = f"median over {len(settings_of(mine))} dataset(s), {_runs_each(mine)} run(s) each"
        tiles.append((f"{name}: one row forgotten in", seconds_text(time), where))
        if rho is not None:
            tiles.append((f"{name}: distance to a true retrain (rho)", f"{rho:.2g}", f"1 = did nothing; {where}"))
        ratios = speedup.span(records, model)
        if ratios:
            text = ratio_text(ratios[0][1])
            if len(ratios) > 1:
                text += f" – {ratios[-1][1]:,.0f}×"
            tiles.append((f"{name}: times faster than Retrain", text, f"{ratios[0][0]} to {ratios[-1][0]}"))
        erased = speedup.span(records, model, erased=True)
        if erased:
            text = ratio_text(erased[0][1])
            if len(erased) > 1:
                text += f" – {erased[-1][1]:,.0f}×"
            where = f"until nothing kept gives the row back; {erased[0][0]} to {erased[-1][0]}"
            tiles.append((f"{name}: times faster than Retrain, erased", text, where))
        worst = _worst_gap(pick(found, method=ours))
        if worst:
            tiles.append((f"{name}: largest accuracy difference to Retrain", f"{worst[1]:+.2f} points", worst[0]))
    if not tiles:
        return "<p>This run has no records of L2UL in lr or mlp; its other parts follow.</p>"
    items = (
        f"<div><dt>{escape(what)}</dt><dd>{escape(number)}</dd><dd>{escape(where)}</dd></div>"
        for what, number, where in tiles
    )
    return f'<dl class="tiles">{"".join(items)}</dl>'


def _runs_each(records: list[Record]) -> int:
    """Most runs of any one cell."""
    cells = group(records, "experiment", "dataset", "source", "n", "model", "method", "r", "kind", "threads")
    return max(map(runs_of, cells.values()), default=0)


def _worst_gap(records: list[Record]) -> tuple[str, float] | None:
    """(dataset and r, mean accuracy minus Retrain's in points) of the cell furthest from Retrain."""
    gaps = []
    for (dataset, source, n, r, kind), cells in group(records, "dataset", "source", "n", "r", "kind").items():
        both = [
            (q["accuracy"] - q["retrain_accuracy"])
            for q in cells
            if values([q], "accuracy") and values([q], "retrain_accuracy")
        ]
        if both:
            gaps.append(
                (f"{dataset_label(dataset, source, n)}, r = {r}, {kind or 'random'}", 100 * sum(both) / len(both))
            )
    return max(gaps, key=lambda g: abs(g[1]), default=None)


def _about(records: list[Record], environment: Record) -> Section:
    """What is real data, subset or stand-in; on which machine; with which versions; how many runs."""
    rows = []
    for setting in settings_of([r for r in records if r.get("dataset")]):
        mine = pick(records, dataset=setting[0], source=setting[1], n=setting[2])
        used = ", ".join(dict.fromkeys(str(r["experiment"]) for r in mine))
        d = next((r["d"] for r in mine if isinstance(r.get("d"), int)), None)
        rows.append([str(setting[0]), setting[1] or "unknown", setting[2], d, _runs_each(mine), used])
    kinds = {
        kind: sorted({str(row[0]) for row in rows if str(row[1]).startswith(kind)}) for kind in ("stand-in", "subset")
    }
    text = "No stand-ins were used.\n"
    if kinds["stand-in"]:
        names = ", ".join(kinds["stand-in"])
        text = f"Not the real data, but stand-ins of the same shape: {names}. "
        text += "No number of theirs is one of the real dataset.\n"
    if kinds["subset"]:
        text += f"Some rows of the real data only: {', '.join(kinds['subset'])}."
    versions = environment.get("versions")
    if not isinstance(versions, dict):
        known = {"cpu", "cores", "git", "vector_bytes", "memory_gib", "system"}
        versions = {k: v for k, v in environment.items() if k not in known and isinstance(v, str)}
    threads = sorted({r["threads"] for r in records if isinstance(r.get("threads"), int)})
    facts: dict[str, Any] = {
        "CPU": environment.get("cpu"),
        "cores": environment.get("cores"),
        "memory": environment.get("memory_gib"),
        "system": environment.get("system"),
        "threads used": ", ".join(map(str, threads)),
        "profile": ", ".join(sorted({str(r["profile"]) for r in records if r.get("profile")})),
        "commit": str(environment.get("git") or "")[:12] + ("+" if str(environment.get("git")).endswith("+") else ""),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items() if number),
    }
    if facts["memory"]:
        facts["memory"] = f"{facts['memory']} GiB"
    lines = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v or 'not recorded')}</dd>" for k, v in facts.items())
    meaning = {"subset": "subset: some rows of the real data", "stand-in": "stand-in: generated, not the real data"}
    shown = [[*row[:1], meaning.get(str(row[1]), row[1]), *row[2:]] for row in rows]
    note = "n: training rows as measured. runs: requests measured per cell, each with other rows to forget."
    table = Table("Data", ["dataset", "what it is", "n", "d", "runs", "experiments"], shown, note)
    return Section("about", "Data, machine, versions", text, html=f'<dl class="facts">{lines}</dl>', tables=[table])


def missing_parts(records: list[Record]) -> list[str]:
    """Sentences on what a whole run would have and this one has not (yet)."""
    out = []
    absent = [name for name in EXPERIMENTS if name != "baselines" and not pick(records, experiment=name)]
    if absent:
        out.append(f"No records of: {', '.join(absent)}.")
    for experiment in (*methods.MAIN, "efficacy"):
        mine = pick(records, experiment=experiment)
        cells = group(mine, "dataset", "source", "n", "model", "r", "kind", "threads", "method")
        wanted = {key[3:] for key in cells}
        lost = [
            f"{key[-1]} on {d[0]} ({key[0]}, r = {key[1]}, {key[2] or 'random'})"
            for d in settings_of(mine)
            for key in sorted(wanted, key=str)
            if (*d, *key) not in cells
        ]
        if lost:
            more = f" and {len(lost) - 6} more" if len(lost) > 6 else ""
            out.append(f"{experiment}: no records of {', '.join(lost[:6])}{more}.")
        runs = {key: runs_of(found) for key, found in cells.items()}
        # Retrain may be run less often on purpose: it is the slowest by far
        short = [key for key, k in runs.items() if k < max(runs.values()) and key[-1] != "retrain"]
        if short:
            out.append(f"{experiment}: {len(short)} of {len(runs)} cells have fewer than {max(runs.values())} runs.")
        lost = [name for name in ("nothing", "retrain") if mine and not pick(mine, method=name)]
        out += [f"{experiment}: no row of {name}, without which its other rows say little." for name in lost]
    return out
