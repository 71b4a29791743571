"""How many times faster L2UL answers than each baseline, beside the ratios the paper printed; both times are shown.

And how many times faster it is until nothing that either side keeps gives the row back.
"""

from __future__ import annotations

from l2ul_fast.measure.records import Record
from l2ul_fast.report.common import (
    Cell,
    Table,
    cell,
    dataset_label,
    factor_cell,
    method_cell,
    methods_of,
    ours_of,
    pick,
    ratio_text,
    seconds,
    seconds_of,
    settings_of,
)
from l2ul_fast.report.figures.methods import MODELS_SHORT, main_records

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


def rows(records: list[Record], model: str, r: int = 1, published_only: bool = False) -> list[list[Cell]]:
    """(dataset, against, its time, L2UL's, ratio, paper's ratio, verdict, time and ratio of L2UL as in the paper, ratio
    of the times until the row is erased)."""
    out = []
    mine = pick(main_records(records, model), model=model, r=r, kind=("random", None))
    for setting in settings_of(mine):
        here = pick(mine, dataset=setting[0], source=setting[1], n=setting[2])
        own = pick(here, method=ours_of(here))
        ours, faithful = seconds_of(own, False), seconds_of(pick(here, method="l2ul-paper"), False)
        for method in methods_of(here):
            if method == "nothing" or method.startswith("l2ul"):
                continue
            them = pick(here, method=method)
            theirs = seconds_of(them, False)
            paper = PAPER.get((model, str(setting[0])), {}).get(method)
            if theirs is None or (published_only and paper is None):
                continue
            ratio, ratio2 = (theirs / t if t else None for t in (ours, faithful))
            out.append(
                [
                    cell(dataset_label(*setting)),
                    method_cell(method),
                    seconds(theirs),
                    seconds(ours),
                    Cell(ratio_text(ratio), ratio),
                    Cell(ratio_text(paper), paper),
                    _verdict(setting, ratio, paper),
                    seconds(faithful),
                    Cell(ratio_text(ratio2), ratio2),
                    factor_cell(them, own, True),
                ]
            )
    return out


def _verdict(setting: tuple[str, str, int], ratio: float | None, paper: float | None) -> Cell:
    """reached, not reached; and whether the run is small enough for that to say little."""
    if paper is None or ratio is None:
        return Cell("", None)
    full = PAPER_N.get(setting[0], 0)
    reduced = isinstance(setting[2], int) and setting[2] < WHOLE * full
    text = "reached" if ratio >= paper else "not reached"
    if reduced:
        text += f" ({setting[2] / full:.0%} of the paper's n)"
    return Cell(text, ratio / paper)


COLUMNS = (
    "dataset",
    "against",
    "its time",
    "L2UL",
    "faster by",
    "paper says",
    "verdict",
    "L2UL as in the paper",
    "faster by (as in the paper)",
    "faster by, until erased",
)
NOTE = (
    "Medians of one request, r = 1, same run, same machine, same threads. The paper prints ratios only, taken on a "
    "128-core machine against its own baselines; a faster baseline lowers the ratio, so both times stand beside it. "
    "Until erased: until nothing that either side keeps in memory gives the row back. "
    "How good the answers are is not in this table: see rho and accuracy."
)


def tables(records: list[Record]) -> list[Table]:
    """One table per model, all datasets and baselines; rows with a ratio of the paper first."""
    out = []
    for model in ("lr", "mlp"):
        found = rows(records, model)
        if found:
            found.sort(key=lambda line: line[5].sort is None)
            out.append(Table(f"{MODELS_SHORT[model]}: times faster than each baseline", COLUMNS, found, NOTE))
    return out


def span(records: list[Record], model: str, against: str = "retrain", erased: bool = False) -> list[tuple[str, float]]:
    """(dataset label, L2UL's speed-up at r = 1), slowest first; erased: until nothing kept gives the row back."""
    mine = pick(main_records(records, model), model=model, r=1, kind=("random", None))
    out = []
    for setting in settings_of(mine):
        here = pick(mine, dataset=setting[0], source=setting[1], n=setting[2])
        factor = factor_cell(pick(here, method=against), pick(here, method=ours_of(here)), erased).sort
        if isinstance(factor, float):
            out.append((dataset_label(*setting), factor))
    return sorted(out, key=lambda pair: pair[1])
