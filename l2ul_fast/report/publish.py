"""What README.md shows of the main run: every method on every dataset, and the headline plot.

The run's records are many; what is kept beside the README is the median of each cell over its runs.
"""

from __future__ import annotations

import json
from pathlib import Path

from l2ul_fast.measure.records import Record, upgrade, write_atomic
from l2ul_fast.report.common import (
    erased_cell,
    group,
    median,
    methods_of,
    number_text,
    ordered,
    pick,
    seconds_text,
    tidy,
)
from l2ul_fast.report.figures import headline

#: Tables of the README: title, model, r.
TABLES = (
    ("Logistic regression, one row forgotten", "lr", 1),
    ("MLP (10 units), one row forgotten", "mlp", 1),
    ("MLP (10 units), 1000 rows forgotten", "mlp", 1000),
)
DATASETS = ("magic", "adult", "sepsis", "skin", "covtype", "susy", "higgs")
_CELL = ("experiment", "dataset", "source", "n", "d", "model", "method", "r_asked", "kind", "threads", "profile")
_VALUES = (
    "r",
    "accuracy",
    "retrain_accuracy",
    "rho",
    "disagreement",
    "answer_seconds",
    "erased_seconds",
    "prepare_seconds",
    "state_bytes",
    "noise_floor",
)


def condense(records: list[Record]) -> list[Record]:
    """The environment, and one record per cell of `lr` and `mlp`: medians over its runs."""
    kept = [r for r in records if r.get("experiment") == "environment"][:1]
    main = [upgrade(r) for r in records if r.get("experiment") in ("lr", "mlp") and r.get("kind") == "random"]
    for key, found in group(main, *_CELL).items():
        record: Record = dict(zip(_CELL, key, strict=True)) | {"runs": len(found), "run": 0, "seed": found[0]["seed"]}
        for name in _VALUES:
            if name == "erased_seconds" and not any(name in r for r in found):
                continue  # not measured then; None says that it never ends
            value = median(found, name)
            record[name] = value if value is None else float(f"{value:.4g}")
        record["unlearn_seconds"], record["reference"] = record["answer_seconds"], found[0].get("reference")
        kept.append(record)
    return kept


def keep(records: list[Record], path: Path) -> None:
    """Write the condensed records and, beside them, the headline plots <name>-<model>.png and .svg."""
    condensed = condense(records)
    write_atomic(path, "".join(json.dumps(r) + "\n" for r in condensed))
    for drawing in headline.figures(tidy(condensed)):
        model = drawing.name.rsplit("-", 1)[1]
        for suffix in (".png", ".svg"):
            drawing.figure.savefig(path.with_name(f"{path.stem}-{model}{suffix}"), dpi=100, bbox_inches="tight")


def markdown(records: list[Record]) -> list[str]:
    """Paragraphs and tables: rows are methods, columns datasets, a cell holds time and rho."""
    records, parts = [upgrade(r) for r in records], []
    for title, model, r in TABLES:
        found = pick(records, experiment=model, model=model, r_asked=r)
        if not found:
            continue
        names = ordered({x["dataset"] for x in found}, DATASETS)
        heads = []
        for name in names:
            one = pick(found, dataset=name)[0]
            heads.append(f"{name} ({one['source']}, n = {one['n']:,})")
        lines = [["method", *heads], ["---"] * (1 + len(heads))]
        for method in methods_of(found):
            line = [method]
            for name in names:
                here = pick(found, dataset=name, method=method)
                line.append("-" if not here else _cell(here[0]))
            lines.append(line)
        runs = max(x["runs"] for x in found)
        second = ", time until nothing that is kept gives the rows back" if any(map(_erased, found)) else ""
        parts.append(f"**{title}**: time of a request{second}, then rho; medians of {runs} requests.")
        parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
    return parts


def _erased(record: Record) -> str:
    """The second time as a cell has it, empty where it was not measured."""
    return "" if "erased_seconds" not in record else f"; {erased_cell([record]).text}"


def _cell(record: Record) -> str:
    rho = record["rho"]
    own = "*" if record.get("reference") == "own" else ""
    shown = "-" if rho is None else number_text(rho, 2 if rho < 100 else 3)
    return f"{seconds_text(record['answer_seconds'])}{_erased(record)}; {shown}{own}"
