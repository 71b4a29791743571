"""The page of a run: verdict, ranking and headline plot, the experiments, then data, machine and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import Record
from l2ul_fast.protocols import Styles
from l2ul_fast.report import style
from l2ul_fast.report.figure import Exhibit, Figure, resolve
from l2ul_fast.report.figures import headline
from l2ul_fast.report.figures.methods import MAIN
from l2ul_fast.report.page.page import Section, escape, write_page
from l2ul_fast.report.runs import environment_of, find_run, load, measured, merged
from l2ul_fast.report.values import (
    Drawing,
    Table,
    group_by,
    listing,
    plural,
    records_table,
    runs_of,
    select,
    settings_of,
)

#: Data that are not what their name says.
KINDS = {"stand-in": "generated, not the real data", "subset": "some rows of the real data"}
#: What records that lack what their figure needs raise.
INCOMPLETE = (KeyError, TypeError, ValueError, IndexError, ArithmeticError, AttributeError)


def write_report(
    name: Path | str,
    out: Path | None = None,
    exhibits: Mapping[str, Exhibit] | None = None,
    styles: Styles | None = None,
    missing: Iterable[str] = (),
) -> tuple[Path, list[str]]:
    """Write the page of a run, finished or not.

    Parameters
    ----------
    name : folder of the run, or its name under results/.
    out : folder of the page and its plots; default: `report` in the run's folder.
    exhibits : {experiment: title, figure, order}; records of any other experiment are shown in a plain table.
    styles : {method: label, colour, marker} in the order of tables; the run's own for methods that it lacks.
    missing : sentences on what else was asked for and is not there.

    Returns
    -------
    The page's path, and sentences on what is missing from the run.

    Raises
    ------
    UserError
        If there is no such run, it holds no measured records, or the page cannot be written.
    """
    exhibits = exhibits or {}
    run = find_run(name)
    records = load(run)
    environment, found = environment_of(run, records), measured(records)
    if not found:
        raise UserError(f"{run} holds no measured records yet; run `l2ul bench` first")
    home = run if run.is_dir() else run.parent
    missing = [*missing, *missing_parts(found, exhibits)]
    with style.using(merged(styles, environment)):
        lead = headline.verdict(found) or f"{plural(len(found), 'record')} of {_titles(found, exhibits)}."
        parts = sections(found, environment, missing, exhibits)
        page = write_page(f"l2ul-fast: run {home.resolve().name}", lead, parts, out or home / "report")
    return page, missing


def _titles(records: list[Record], exhibits: Mapping[str, Exhibit]) -> str:
    return ", ".join(exhibits[name].title if name in exhibits else name for name in ordered(records, exhibits))


def ordered(records: list[Record], exhibits: Mapping[str, Exhibit]) -> list[str]:
    """The run's sections in the order of the page; experiments of one family ("stream", "unlearn-rho") share one."""
    found = dict.fromkeys(section_of(str(name), exhibits) for (name,) in group_by(records, "experiment"))
    return sorted(found, key=lambda name: exhibits[name].order if name in exhibits else 1000)


def section_of(experiment: str, exhibits: Mapping[str, Exhibit]) -> str:
    """The exhibit that shows an experiment's records: its own, one that names it, or that of its first word."""
    if experiment in exhibits:
        return experiment
    first = experiment.split("-")[0]
    found = next((name for name, exhibit in exhibits.items() if experiment in exhibit.records), first)
    return found if found in exhibits else experiment


def sections(
    records: list[Record], environment: Record, missing: list[str], exhibits: Mapping[str, Exhibit]
) -> list[Section]:
    """All boxes of the page."""
    out = []
    ranked, marks = headline.tables(records), headline.plots(records)
    if ranked:
        out.append(Section("ranking", "Methods at a glance", tables=ranked[:1]))
    if marks:
        out.append(Section("headline", "Time against distance to retraining", drawings=marks, more=ranked[1:]))
    for name in ordered(records, exhibits):
        mine = [r for r in records if section_of(str(r.get("experiment")), exhibits) == name]
        out.append(_section(name, exhibits.get(name, Exhibit(name)), mine))
    out.append(_about(records, environment))
    if missing:
        items = "".join(f"<li>{escape(text)}</li>" for text in missing)
        out.append(Section("missing", "Missing from this run", html=f"<ul>{items}</ul>", kind="missing"))
    return out


def _section(name: str, exhibit: Exhibit, records: list[Record]) -> Section:
    """An experiment with its own figure, or its records in a plain table."""
    anchor = "x-" + "".join(c if c.isalnum() else "-" for c in name)
    out = Section(anchor, exhibit.title)
    failed, good = select(records, failed=True), [r for r in records if not r.get("failed")]
    if failed:
        why = sorted({str(r.get("status")) for r in failed})
        out.text = f"{plural(len(failed), 'cell')} failed: {'; '.join(why)}."
    figure = resolve(exhibit.figure)
    if figure is not None and good:
        try:
            out.drawings, out.more = _drawn(figure, good)
        except INCOMPLETE as error:
            # an unfinished experiment may lack what its figure needs: its records are shown rather than nothing
            out.text += f"\nNot enough records for its figure yet ({type(error).__name__}: {error})."
    if not out.more:
        out.more = [records_table(f"{exhibit.title}: records", records)]
    return out


def _drawn(figure: Figure, records: list[Record]) -> tuple[list[Drawing], list[Table]]:
    tables = figure.all_tables(records)
    if not tables:
        raise ValueError("it has no table")
    return figure.plots(records), tables


def _about(records: list[Record], environment: Record) -> Section:
    """What is real data, subset or stand-in; on which machine; with which versions; how many runs."""
    rows = []
    for dataset, source, n in settings_of([r for r in records if r.get("dataset")]):
        mine = select(records, dataset=dataset, source=source, n=n)
        cells = group_by(mine, "experiment", "model", "method", "r_asked", "request", "threads")
        row = {
            "dataset": str(dataset),
            "what it is": {kind: f"{kind}: {what}" for kind, what in KINDS.items()}.get(source, source or "unknown"),
            "n": n,
            "d": next((r["d"] for r in mine if isinstance(r.get("d"), int)), None),
            "runs": max(map(runs_of, cells.values()), default=0),
            "experiments": ", ".join(dict.fromkeys(str(r["experiment"]) for r in mine)),
        }
        rows.append(row)
    standins, subsets = (sorted({r["dataset"] for r in rows if r["what it is"].startswith(k)}) for k in KINDS)
    text = "No stand-ins were used.\n"
    if standins:
        text = f"Not the real data, but stand-ins of the same shape: {', '.join(standins)}. "
        text += "No number measured on a stand-in is one of the real dataset.\n"
    if subsets:
        text += f"Some rows of the real data only: {', '.join(subsets)}."
    facts = _machine(records, environment).items()
    lines = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v or 'not recorded')}</dd>" for k, v in facts)
    note = "n: training rows as measured. runs: requests measured per cell, each with other rows to forget."
    table = listing("Data", rows, note)
    return Section("about", "Data, machine, versions", text, html=f'<dl class="facts">{lines}</dl>', more=[table])


def _machine(records: list[Record], environment: Record) -> dict[str, Any]:
    versions = environment.get("versions")
    if not isinstance(versions, dict):
        known = {"cpu", "cores", "git", "vector_bytes", "memory_gib", "system", "schema", "methods"}
        versions = {k: v for k, v in environment.items() if k not in known and isinstance(v, str)}
    git = str(environment.get("git") or "")
    threads = sorted({r["threads"] for r in records if isinstance(r.get("threads"), int)})
    return {
        "CPU": environment.get("cpu"),
        "cores": environment.get("cores"),
        "memory": f"{environment['memory_gib']} GiB" if environment.get("memory_gib") else None,
        "system": environment.get("system"),
        "threads used": ", ".join(map(str, threads)),
        "profile": ", ".join(sorted({r["profile"] for r in records if r.get("profile")})),
        "commit": git[:12] + ("+" if git.endswith("+") else ""),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items() if number),
        "records": f"{len(records):,}",
    }


def missing_parts(records: list[Record], exhibits: Mapping[str, Exhibit]) -> list[str]:
    """Sentences on what the records show to be missing: other cells of the same kind are there, or why they failed."""
    out = []
    for (experiment,), every in group_by(records, "experiment").items():
        title = exhibits[experiment].title if experiment in exhibits else experiment
        mine = [r for r in every if not r.get("failed")] if experiment in (*MAIN, "efficacy") else []
        by = ("dataset", "source", "n", "model", "r_asked", "request", "threads")
        cells = group_by(mine, *by, "method")
        rounds = group_by(mine, *by)
        everywhere = {m for (m,) in group_by(mine, "method") if all((*key, m) in cells for key in rounds)}
        # what some settings leave out for good (ensembles, wide rows) says nothing; Retrain and nothing must be there
        lost = sorted({"nothing", "retrain"} - everywhere) if mine else []
        out += [f"{title}: no row of {name} in some cells, without which the others say little." for name in lost]
        runs = {key: runs_of(found) for key, found in cells.items()}
        # Retrain may be run less often on purpose: it is the slowest by far
        short = [key for key, k in runs.items() if k < max(runs.values()) and key[-1] != "retrain"]
        if short:
            most = max(runs.values())
            out.append(f"{title}: {len(short)} of {plural(len(runs), 'cell')} have fewer than {most} runs.")
        if failed := select(every, failed=True):
            out.append(f"{title}: {plural(len(failed), 'cell')} failed.")
    return out
