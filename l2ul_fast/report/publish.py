"""`l2ul report RUN --publish DIR`: records, plots and the generated parts of README.md and docs/ from a run.

docs/<name>.jsonl holds the records that a page is generated from, for the main run one record of medians per cell; a
test compares page and records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from l2ul_fast.errors import UserError
from l2ul_fast.files import write_atomic
from l2ul_fast.measure.records import Record, read_records
from l2ul_fast.protocols import Styles
from l2ul_fast.report import markdown, style
from l2ul_fast.report.figure import Exhibit, Figure
from l2ul_fast.report.figures import distributed, headline, kernels, resnet, robustness, stream, unlearn
from l2ul_fast.report.page.sections import section_of
from l2ul_fast.report.runs import find_run, measured, ready
from l2ul_fast.report.values import Table, group_by, median, quartiles, select

#: What the medians of the main run are kept of, and which of them with their quartiles.
KEPT: tuple[str, ...] = ("accuracy", "retrain_accuracy", "rho", "disagreement", "state_bytes", "noise_floor", "steal")
KEPT += ("answer_seconds", "erased_seconds", "overhead_seconds", "prepare_seconds")
SPREAD = ("answer_seconds", "erased_seconds", "rho")
CELL: tuple[str, ...] = (
    "schema",
    "experiment",
    "dataset",
    "source",
    "n",
    "d",
    "model",
    "method",
    "r",
    "r_asked",
    "request",
    "threads",
)
CELL += ("profile", "rho_target")


class Part(NamedTuple):
    """A generated part of a page: the page from the project's root, docs/<records>.jsonl, and what is shown of them."""

    page: str
    records: str
    figures: tuple[Figure, ...]

    def tables(self, records: list[Record]) -> list[Table]:
        return [table for figure in self.figures for table in figure.all_tables(records)]


PARTS = {
    "main": Part("README.md", "main", (headline.FIGURE,)),
    "kernels": Part("docs/kernels.md", "kernels", (kernels.FIGURE,)),
    "stream": Part("docs/stream.md", "stream", (stream.FIGURE,)),
    "unlearn": Part("docs/unlearn.md", "unlearn", (unlearn.FIGURE, unlearn.PAIRS)),
    "reconstruction": Part("docs/artifact.md", "unlearn", (unlearn.RECONSTRUCTION,)),
    "threats": Part("docs/threat-model.md", "unlearn", (unlearn.THREATS,)),
    "robustness": Part("docs/threat-model.md", "robustness", (robustness.FIGURE,)),
    "distributed": Part("docs/distributed.md", "distributed", (distributed.FIGURE,)),
    "resnet": Part("docs/resnet.md", "resnet", (resnet.FIGURE,)),
}


def publish(run: Path | str, root: Path, exhibits: Mapping[str, Exhibit], styles: Styles) -> list[Path]:
    """Keep a run's records and plots in root/docs and rewrite the parts of pages that come from them.

    Returns
    -------
    The pages that were rewritten.

    Raises
    ------
    UserError
        If the run has nothing that a page shows, or a page lacks its part.
    """
    file = find_run(run)
    if file.resolve().parent == (root / "docs").resolve():  # what is kept already: the pages anew, in today's form
        return rewrite(root, file.stem, styles)
    records = read_records(file)
    of = {r["experiment"]: section_of(str(r["experiment"]), exhibits) for r in measured(records)}
    pages: list[Path] = []
    for name in dict.fromkeys(part.records for part in PARTS.values()):
        wanted = {"main": ("lr", "mlp"), "unlearn": ("unlearn", "pairs")}.get(name, (name,))
        mine = [r for r in records if of.get(r.get("experiment")) in wanted]
        if not mine:
            continue
        mine = select(records, experiment="environment")[:1] + mine
        mine = condense(mine) if name == "main" else mine
        write_atomic(root / "docs" / f"{name}.jsonl", "".join(json.dumps(r) + "\n" for r in mine))
        pages += rewrite(root, name, styles)
    if not pages:
        raise UserError(f"{run} has no records that a page of the documentation shows")
    return pages


def rewrite(root: Path, name: str, styles: Styles) -> list[Path]:
    """Draw the plots of docs/<name>.jsonl and rewrite the parts that come from it."""
    records = measured(ready(read_records(root / "docs" / f"{name}.jsonl")))
    pages = []
    for part, where in PARTS.items():
        if where.records != name:
            continue
        with style.using(styles), style.drawing_style():
            for drawing in (drawing for figure in where.figures for drawing in figure.plots(records)):
                file = drawing.name.replace("headline", "main")
                drawing.figure.savefig(root / "docs" / f"{file}.png", dpi=100, bbox_inches="tight")
        page = root / where.page
        text = page.read_text(encoding="utf-8")
        write_atomic(page, markdown.replace_part(text, part, part_text(root, part, styles)))
        pages.append(page)
    return pages


def part_text(root: Path, name: str, styles: Styles) -> str:
    """The generated part called `name`, from its records below `root`."""
    part = PARTS[name]
    records = ready(read_records(root / "docs" / f"{part.records}.jsonl"))
    machine = next(iter(select(records, experiment="environment")), None)
    head = ""
    if machine is not None:
        bits = f", {8 * machine['vector_bytes']}-bit vectors" if machine.get("vector_bytes") else ""
        head = f"Measured on: {machine.get('cpu') or 'unknown CPU'}, {machine.get('cores', '?')} cores{bits}"
        head += f", commit {str(machine['git'])[:12]}." if machine.get("git") else "."
    with style.using(styles):
        found = measured(records)
        shown, folded = part.tables(found), []
        if name == "main":
            shown, folded = shown[:1], [*shown[1:], *headline.by_dataset(found)]
        text = [headline.verdict(found), head, markdown.render(shown)]
    if folded:
        every = markdown.render(folded, fold=False)
        text.append(f"<details><summary>Larger requests, every dataset</summary>\n\n{every}\n\n</details>")
    return "\n\n".join(part for part in text if part)


def condense(records: list[Record]) -> list[Record]:
    """The environment, and one record per cell of random requests: medians over its repeats, with quartiles."""
    kept = select(records, experiment="environment")
    main = [r for r in measured(ready(records)) if r.get("request") == "random"]
    for key, found in group_by(main, *CELL).items():
        record: Record = dict(zip(CELL, key, strict=True))
        record |= {"runs": len(found), "repeat": 0, "seed": found[0].get("seed")}
        for name in KEPT:
            if not any(name in r for r in found):
                continue  # not measured then; None says that it never ends
            record[name] = _short(median(found, name))
            if name in SPREAD and (ends := quartiles(found, name)):
                record |= {f"{name}_low": _short(ends[0]), f"{name}_high": _short(ends[1])}
        kept.append(record)
    return kept


def _short(x: float | None) -> float | None:
    return None if x is None else float(f"{x:.4g}")
