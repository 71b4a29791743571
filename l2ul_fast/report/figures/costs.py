"""What preparing costs and when it has paid, and what more threads give."""

from __future__ import annotations

import numpy as np

from l2ul_fast.measure.records import Record
from l2ul_fast.metrics.cost import break_even
from l2ul_fast.report.common import (
    Cell,
    Table,
    dataset_label,
    group,
    median,
    method_cell,
    methods_of,
    pick,
    seconds,
    settings_of,
)
from l2ul_fast.report.figures.methods import MAIN, MODELS_SHORT, main_records


def break_even_table(records: list[Record]) -> Table:
    """Requests after which a method's preparation has paid, against retraining for every request."""
    rows = []
    mine = pick(main_records(records), kind=("random", None))
    for (experiment, model, r), cells in group(mine, "experiment", "model", "r").items():
        for setting in settings_of(cells):
            here = pick(cells, dataset=setting[0], source=setting[1], n=setting[2])
            retrain = pick(here, method="retrain")
            again, fit = median(retrain, "unlearn_seconds"), median(retrain, "prepare_seconds")
            if again is None:
                continue
            for method in methods_of(here):
                own = pick(here, method=method)
                prepare, request = median(own, "prepare_seconds"), median(own, "unlearn_seconds")
                if method in ("nothing", "retrain") or prepare is None or request is None:
                    continue
                extra = max(0.0, prepare - (fit or 0.0))
                paid = break_even(extra, again, request)
                count = None if paid.value is None else float(np.ceil(paid.value))
                rows.append(
                    [
                        dataset_label(*setting),
                        MODELS_SHORT.get(model, model),
                        r,
                        method_cell(method),
                        Cell("never" if count is None else f"{count:,.0f}", count),
                        seconds(extra),
                        seconds(again),
                        seconds(request),
                        experiment,
                    ]
                )
    return Table(
        "Requests after which preparing has paid",
        [
            "dataset",
            "model",
            "r",
            "method",
            "break-even requests",
            "extra preparation",
            "one retrain",
            "one request",
            "experiment",
        ],
        rows,
        "Extra preparation is what a method does beyond the plain fit before the first request. Never: a request of it "
        "takes at least as long as retraining. Whether its answer is any good stands in the tables above.",
    )


def thread_table(records: list[Record]) -> Table | None:
    """Time of one request by thread count, where a run measured several."""
    mine = pick(records, experiment=MAIN, kind=("random", None))
    counts = sorted({k for (k,) in group(mine, "threads") if isinstance(k, int)})
    if len(counts) < 2:
        return None
    rows = []
    for setting in settings_of(mine):
        here = pick(mine, dataset=setting[0], source=setting[1], n=setting[2])
        for (experiment, model, r), cells in group(here, "experiment", "model", "r").items():
            for method in methods_of(cells):
                times = [median(pick(cells, method=method, threads=k), "unlearn_seconds") for k in counts]
                first, last = times[0], times[-1]
                gain = first / last if first and last else None
                rows.append(
                    [
                        dataset_label(*setting),
                        MODELS_SHORT.get(model, model),
                        r,
                        method_cell(method),
                        *(seconds(t) for t in times),
                        Cell("–" if gain is None else f"{gain:.2f}×", gain),
                        experiment,
                    ]
                )
    head = ["dataset", "model", "r", "method", *(f"{k} thread{'s' if k > 1 else ''}" for k in counts)]
    return Table(
        "Time of one request by thread count",
        [*head, f"{counts[0]} → {counts[-1]}", "experiment"],
        rows,
        "Medians over runs. The last ratio is how many times faster the largest thread count is.",
    )
