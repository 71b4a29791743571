"""What preparing costs and when it has paid, and what more threads give."""

from __future__ import annotations

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.values import (
    Cell,
    Table,
    cells_of,
    faster,
    group_by,
    median,
    method_cell,
    model_text,
    models_text,
    plural,
    r_text,
    seconds,
    select,
)


def break_even_table(records: list[Record]) -> Table:
    """Requests after which a method's preparation has paid, against retraining for every request."""
    rows = []
    for data, model, _, found in cells_of(select(records, request=("random", None)), "data", "model", "r_asked"):
        retrain = select(found, method="retrain")
        again, fit = median(retrain, "answer_seconds"), median(retrain, "prepare_seconds")
        for method, own in cells_of(found, "method"):
            prepare, request = median(own, "prepare_seconds"), median(own, "answer_seconds")
            if method in ("nothing", "retrain") or prepare is None or request is None or again is None:
                continue
            extra = max(0.0, prepare - (fit or 0.0))
            count = float(np.ceil(extra / (again - request))) if request < again else None
            head = [data, model_text(model), f"r = {r_text(found)}", method_cell(method)]
            paid = Cell("never" if count is None else f"{count:,.0f}", count)
            rows.append([*head, paid, seconds(extra), seconds(again), seconds(request)])
    columns = [
        "dataset",
        "model",
        "r",
        "method",
        "break-even requests",
        "extra preparation",
        "one retrain",
        "one request",
    ]
    return Table(
        f"When preparing has paid ({models_text(records)}): requests until it is cheaper than retraining each time",
        columns,
        rows,
        "Extra preparation is what a method does beyond the plain fit before the first request. Never: a request takes "
        "at least as long as retraining. The table of all cells says whether its answer is any good.",
        block=3,
    )


def thread_table(records: list[Record]) -> Table:
    """Time of one request by thread count; no rows where a run measured one only."""
    mine = select(records, request=("random", None))
    counts = sorted({k for (k,) in group_by(mine, "threads") if isinstance(k, int)})
    rows = []
    for data, model, _, found in cells_of(mine, "data", "model", "r_asked"):
        for method, own in cells_of(found, "method"):
            times = [median(select(own, threads=k), "answer_seconds") for k in counts]
            gain = times[0] / times[-1] if len(counts) > 1 and times[0] and times[-1] else None
            head = [data, model_text(model), f"r = {r_text(found)}", method_cell(method)]
            rows.append([*head, *map(seconds, times), faster(gain)])
    columns = ["dataset", "model", "r", "method", *(plural(k, "thread") for k in counts)]
    note = "Medians over runs. The last column is how many times faster the largest thread count is."
    return Table(
        f"Time of one request by thread count ({models_text(records)})",
        [*columns, "gain"],
        rows if len(counts) > 1 else [],
        note,
        3,
    )


def tables(records: list[Record]) -> list[Table]:
    return [break_even_table(records), thread_table(records)]


FIGURE = Figure(tables)
