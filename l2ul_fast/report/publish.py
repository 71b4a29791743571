"""`l2ul report RUN --publish DIR`: records, plots and the generated parts of README.md and docs/ from a run.

docs/<name>.jsonl holds the records that a page is generated from, for the main run one record of medians per cell; a
test compares page and records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from l2ul_fast.errors import UserError
from l2ul_fast.files import write_atomic
from l2ul_fast.measure.records import Record, read_records
from l2ul_fast.protocols import Styles
from l2ul_fast.report import markdown, style
from l2ul_fast.report.figure import Exhibit, Figure
from l2ul_fast.report.figures import distributed, headline, kernels, resnet, stream, unlearn
from l2ul_fast.report.page.sections import section_of
from l2ul_fast.report.runs import find_run, measured, ready
from l2ul_fast.report.values import Table, group_by, median, quartiles, select

#: What the medians of the main run are kept of, and which of them with their quartiles.
KEPT: tuple[str, ...] = (
    "accuracy",
    "retrain_accuracy",
    "rho",
    "disagreement",
    "answer_seconds",
    "erased_seconds",
    "overhead_seconds",
)
KEPT += ("prepare_seconds", "state_bytes", "noise_floor", "steal")
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
    """A generated part of a page: the page from the project's root, docs/<records>.jsonl, and its tables."""

    page: str
    records: str
    tables: Callable[[list[Record]], list[Table]]


def _all(*figures: Figure) -> Callable[[list[Record]], list[Table]]:
    return lambda records: [table for figure in figures for table in figure.all_tables(records)]


PARTS = {
    "main": Part("README.md", "main", headline.tables),
    "kernels": Part("docs/kernels.md", "kernels", _all(kernels.FIGURE)),
    "stream": Part("docs/stream.md", "stream", _all(stream.FIGURE)),
    "unlearn": Part("docs/unlearn.md", "unlearn", _all(unlearn.FIGURE, unlearn.PAIRS)),
    "reconstruction": Part("docs/artifact.md", "unlearn", _all(unlearn.RECONSTRUCTION)),
    "distributed": Part("docs/distributed.md", "distributed", _all(distributed.FIGURE)),
    "resnet": Part("docs/resnet.md", "resnet", _all(resnet.FIGURE)),
}
PLOTS: dict[str, Figure] = {
    "main": headline.FIGURE,
    "kernels": kernels.FIGURE,
    "stream": stream.FIGURE,
    "unlearn": unlearn.FIGURE,
    "distributed": distributed.FIGURE,
    "resnet": resnet.FIGURE,
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
    records = read_records(find_run(run))
    of = {r["experiment"]: section_of(str(r["experiment"]), exhibits) for r in measured(records)}
    pages: list[Path] = []
    for name, figure in PLOTS.items():
        wanted = ("lr", "mlp") if name == "main" else ("unlearn", "pairs") if name == "unlearn" else (name,)
        mine = [r for r in records if of.get(r.get("experiment")) in wanted]
        if not mine:
            continue
        mine = select(records, experiment="environment")[:1] + mine
        mine = condense(mine) if name == "main" else mine
        kept = root / "docs" / f"{name}.jsonl"
        write_atomic(kept, "".join(json.dumps(r) + "\n" for r in mine))
        pages += rewrite(root, name, figure, styles)
    if not pages:
        raise UserError(f"{run} has no records that a page of the documentation shows")
    return pages


def rewrite(root: Path, name: str, figure: Figure, styles: Styles) -> list[Path]:
    """Draw the plots of docs/<name>.jsonl and rewrite the parts that come from it."""
    records = ready(read_records(root / "docs" / f"{name}.jsonl"))
    with style.using(styles):
        for drawing in figure.plots(measured(records)):
            file = drawing.name.replace("headline", "main")
            with style.drawing_style():
                drawing.figure.savefig(root / "docs" / f"{file}.png", dpi=100, bbox_inches="tight")
    pages = []
    for part, where in PARTS.items():
        if where.records == name:
            page = root / where.page
            try:
                text = page.read_text(encoding="utf-8")
            except OSError as error:
                raise UserError(
                    f"cannot rewrite {page}: {error.strerror}: --publish takes the project's folder"
                ) from None
            write_atomic(page, markdown.replace_part(text, part, part_text(root, part, styles)))
            pages.append(page)
    return pages


def part_text(root: Path, name: str, styles: Styles) -> str:
    """The generated part called `name`, from its records below `root`."""
    part = PARTS[name]
    records = ready(read_records(root / "docs" / f"{part.records}.jsonl"))
    machine = next(iter(select(records, experiment="environment")), {})
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
        record: Record = dict(zip(CELL, key, strict=True)) | {
            "runs": len(found),
            "repeat": 0,
            "seed": found[0].get("seed"),
        }
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
