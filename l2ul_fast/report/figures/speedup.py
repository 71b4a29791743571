"""How many times faster L2UL answers than each baseline, beside the ratios the paper printed; both times are shown."""

from __future__ import annotations

from l2ul_fast.measure.records import Record
from l2ul_fast.report.style import ours_of
from l2ul_fast.report.values import (
    MODELS_SHORT,
    Cell,
    Table,
    cells_of,
    factor,
    listing,
    median,
    method_cell,
    ratio_text,
    seconds,
    select,
)

#: The paper's text beside its figures 2 and 3, r = 1: {(model, dataset): {baseline: times faster}}.
PAPER = {
    ("lr", "magic"): {"retrain": 630, "sisa": 149, "deltagrad": 282},
    ("lr", "higgs"): {"retrain": 422_500, "sisa": 49_715, "deltagrad": 51_500},
    ("mlp", "magic"): {"retrain": 15_087, "sisa": 1_203, "deltagrad": 730, "fyemu": 43},
    ("mlp", "higgs"): {"retrain": 398_000, "sisa": 105_250, "deltagrad": 294_750, "fyemu": 32_750},
}
#: Rows of the paper's datasets: a ratio measured on fewer rows is no repetition of the paper's.
PAPER_N = {"magic": 19_020, "higgs": 11_000_000}
#: Training rows are four fifths of a dataset; anything below this share is a reduced run.
WHOLE = 0.75
NOTE = (
    "Medians of one request, r = 1, same run, same machine, same threads. The paper prints ratios only, taken on a "
    "128-core machine against its own baselines; a faster baseline lowers the ratio, so both times stand beside it. "
    "Until erased: until nothing that either side keeps in memory gives the row back. "
    "How good the answers are is not in this table: see rho and accuracy."
)


def tables(records: list[Record]) -> list[Table]:
    """One table per model, all datasets and baselines."""
    out = []
    for model in ("lr", "mlp"):
        title = f"Speed-ups beside the paper's, {MODELS_SHORT[model]}: times faster than each baseline"
        if found := rows(select(records, model=model, r_asked=1, request=("random", None)), model):
            out.append(listing(title, found, NOTE, block=1))
    return out


def rows(records: list[Record], model: str) -> list[dict[str, Cell]]:
    out = []
    for data, found in cells_of(records, "data"):
        own, faithful = select(found, method=ours_of(found)), select(found, method="l2ul-paper")
        for method, them in cells_of(found, "method"):
            if method == "nothing" or method.startswith("l2ul") or median(them, "answer_seconds") is None:
                continue
            paper = PAPER.get((model, str(them[0]["dataset"])), {}).get(method)
            ratio = factor(them, own)
            row = {
                "dataset": Cell(data, data),
                "against": method_cell(method),
                "its time": seconds(median(them, "answer_seconds")),
                "L2UL": seconds(median(own, "answer_seconds")),
                "faster by": ratio,
                "paper says": Cell(ratio_text(paper), paper),
                "verdict": _verdict(them[0], ratio, paper),
                "L2UL as in the paper": seconds(median(faithful, "answer_seconds")),
                "faster by (as in the paper)": factor(them, faithful),
                "faster by, until erased": factor(them, own, "erased_seconds"),
            }
            out.append(row)
    return out


def _verdict(record: Record, ratio: Cell, paper: float | None) -> Cell:
    """reached, not reached; and whether the run is small enough for that to say little."""
    if paper is None or not isinstance(ratio.sort, float):
        return Cell("")
    full, n = PAPER_N.get(record["dataset"], 0), record.get("n")
    text = "reached" if ratio.sort >= paper else "not reached"
    if isinstance(n, int) and n < WHOLE * full:
        text += f" ({100 * n / full:.2g} % of the paper's n)"
    return Cell(text, ratio.sort / paper)
