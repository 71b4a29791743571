"""Generated parts of Markdown files: text between `<!-- name:begin -->` and `<!-- name:end -->` is replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import Record, read_records, write_atomic
from l2ul_fast.report import main
from l2ul_fast.report.figures import kernels, stream, unlearn


def replace_part(text: str, name: str, content: str) -> str:
    """`text` with the part called `name` replaced by `content`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise UserError(f"the file needs exactly one pair of {begin} and {end}")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def kernel_part(records_file: Path) -> str:
    """What README.md says about the kernels, from a file of records."""
    records = read_records(records_file)
    machine = next((r for r in records if r["experiment"] == "environment"), {})
    counts = sorted({r["threads"] for r in records if r["experiment"] == "kernels"})
    parts = [
        f"Measured on: {machine.get('cpu', 'unknown CPU')}, {machine.get('cores', '?')} cores, "
        f"{8 * machine.get('vector_bytes', 0)}-bit vectors, numba {machine.get('numba', '?')}. "
        "Rows are synthetic (standard normal).",
        kernels.notes(records),
    ]
    for k in counts:
        parts.append(
            f"How many times faster `assign_cells` is than each peer, {k} thread(s), lowest to highest over d:"
        )
        parts.append(kernels.speedups(records, k))
    parts.append("<details><summary>The whole grid</summary>\n\n" + kernels.markdown(records) + "\n\n</details>")
    return "\n\n".join(parts)


def stream_part(records_file: Path) -> str:
    """What README.md says about streaming."""
    records = read_records(records_file)
    head = "HIGGS stand-in rows, not real data; page cache warm. " + _machine(records)
    return head + "\n\n" + _table(("what", "measured", "beside", "ratio"), stream.rows(records))


def unlearn_part(records_file: Path) -> str:
    """What docs/unlearn.md says about unlearning."""
    records = read_records(records_file)
    return _machine(records) + "\n\n" + unlearn.markdown(records)


def reconstruction_part(records_file: Path) -> str:
    """What docs/artifact.md says about attacks on a directory."""
    records = read_records(records_file)
    found = unlearn.markdown(records, (unlearn.reconstruction,))
    return found or "Not measured yet: `l2ul bench unlearn --profile full --docs .` writes this table."


def main_part(records_file: Path) -> str:
    """What README.md shows of the main run."""
    records = read_records(records_file)
    note = (
        "rho: distance to the retrained parameters in units of what retraining changes; nothing = 1, lower is better, "
        "`-` for ensembles, which have no such parameters; `*` against a retrain of its own training pipeline. "
        "Retrain's own rho is the noise of the solver."
    )
    return "\n\n".join([_machine(records), *main.markdown(records), note])


def _machine(records: list[Record]) -> str:
    facts = next((r for r in records if r["experiment"] == "environment"), {})
    return f"Measured on: {facts.get('cpu', 'unknown CPU')}, {facts.get('cores', '?')} cores."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


class Part(NamedTuple):
    """A generated part of a page: the page from the project's root, docs/<records>.jsonl, and how it is written."""

    page: str
    records: str
    text: Callable[[Path], str]


PARTS = {
    "kernels": Part("docs/kernels.md", "kernels", kernel_part),
    "main": Part("README.md", "main", main_part),
    "stream": Part("docs/stream.md", "stream", stream_part),
    "unlearn": Part("docs/unlearn.md", "unlearn", unlearn_part),
    "reconstruction": Part("docs/artifact.md", "unlearn", reconstruction_part),
}


def publish(root: Path, records: str) -> list[Path]:
    """Rewrite all parts below `root` that come from docs/<records>.jsonl; returns the pages."""
    found = {name: part for name, part in PARTS.items() if part.records == records}
    for name, part in found.items():
        update_readme(root / part.page, name, root / "docs" / f"{records}.jsonl")
    return [root / part.page for part in found.values()]


def update_readme(readme: Path, name: str, records_file: Path) -> None:
    """Rewrite the part called `name` of `readme` from a file of records."""
    text = readme.read_text(encoding="utf-8")
    write_atomic(readme, replace_part(text, name, PARTS[name].text(records_file)))
