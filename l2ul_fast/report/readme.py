"""Generated parts of Markdown files: text between `<!-- name:begin -->` and `<!-- name:end -->` is replaced."""

from __future__ import annotations

from pathlib import Path

from l2ul_fast.errors import UserError
from l2ul_fast.report import kernels
from l2ul_fast.results import read_records, write_atomic


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


def update_readme(readme: Path, records_file: Path) -> None:
    """Rewrite the kernel part of `readme`."""
    text = readme.read_text(encoding="utf-8")
    write_atomic(readme, replace_part(text, "kernels", kernel_part(records_file)))
