"""A stream of requests on one unlearner: does its error grow, how long is a request, what does refreshing give?

Requests follow each other; each takes r other rows out for good. At some points of the stream the model is compared
with a retrain without all rows that have left by then. The answers of l2ul-expansion depend on the set of rows that
have left, not on how they left: no error adds up, and `due` says when its point should be made anew. "l2ul-refreshed"
is the same with `refresh` after every `every` requests.

"nothing" keeps the first theta; "retrain" is a cold retrain at that point, and its answer_seconds the time it took.
For an anchored MLP the retrain belongs to the anchor that it has by then. Requests were warmed up on a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from l2ul_fast.baselines import Retrain
from l2ul_fast.baselines.base import Ids
from l2ul_fast.baselines.l2ul import DEFAULT, HEADS, plain, quiet, request
from l2ul_fast.experiments.inputs import tables, train_size
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, by_profile, register
from l2ul_fast.experiments.scoring import fitted, score
from l2ul_fast.measure.records import Record, info, metric
from l2ul_fast.measure.timing import clocked, once
from l2ul_fast.metrics import parameter_distance
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import INK, draw_line, drawing_style, legend, seconds_axis, subplots
from l2ul_fast.report.values import (
    MODELS,
    Drawing,
    Table,
    cells_of,
    group_by,
    methods_of,
    middle,
    one_thread_count,
    runs_of,
    select,
    sources,
    table_of,
    timed,
    values,
)
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.result import finite

POINTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
REFRESHED = "l2ul-refreshed"
#: The MLP's stream leaves the paper's heads out: their rho is in the hundreds at once.
STREAMS = {
    "lr": (DEFAULT, REFRESHED, "l2ul-learned", "l2ul-kme", "l2ul-paper"),
    "mlp": (DEFAULT, REFRESHED, "l2ul-learned"),
}
#: What else is looked at along the stream of the default head.
REFERENCES = ("nothing", "retrain")
WARM = 20
#: Gradient down to which the retrain is trained.
TOL = {"lr": 1e-11, "mlp": 1e-9}


def points_of(requests: int) -> list[int]:
    """After which requests the model is looked at."""
    return sorted({k for k in POINTS if k < requests} | {requests})


def stream(n: int, requests: int, r: int, seed: int) -> tuple[Ids, Ids]:
    """(requests, r) row numbers, all different, and some others to warm up with.

    Raises
    ------
    ValueError
        If they are more than half of the rows.
    """
    order = np.random.default_rng([seed, 79]).permutation(n)
    if requests * r + WARM > n // 2:
        raise ValueError(f"{requests} requests of {r} rows are too many for {n} rows")
    return order[: requests * r].reshape(requests, r), order[-WARM:]


def jobs(context: Context) -> Iterator[Job]:
    """One for each dataset and model."""
    numbers = context.numbers
    for model in ("lr", "mlp"):
        for dataset in (name for name in numbers[model] if name in context.datasets):
            n = train_size(context, dataset, numbers["rows"][model])
            cells = tuple(
                {"dataset": dataset, "n": n, "model": model, "method": m, "r": r, "requests": k, "seed": seed}
                for seed in range(numbers["seeds"][model])
                for r in numbers["r"][model]
                for m in (*STREAMS[model], *REFERENCES)
                for k in points_of(numbers["requests"])
            )
            seconds = numbers["seeds"][model] * (4.0 if model == "lr" else 15.0)
            yield Job(f"{dataset} {model}", cells, partial(measure, context, dataset, model), seconds)


def measure(context: Context, dataset: str, model: str, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """One stream after the other; a head is fitted once for each seed."""
    numbers = context.numbers
    label, train, test = tables(context, dataset, numbers["rows"][model])
    base = {"source": label, "d": train.d}
    for seed in dict.fromkeys(cell["seed"] for cell in cells):
        made: dict[str, L2UL] = {}
        for r in numbers["r"][model]:
            for method in STREAMS[model]:
                names = (method, *REFERENCES) if method == DEFAULT else (method,)
                mine = [c for c in cells if c["seed"] == seed and c["r"] == r and c["method"] in names]
                if not mine:
                    continue
                head = DEFAULT if method == REFRESHED else method
                if head not in made:
                    made[head] = fitted(train, model, HEADS[head], numbers, seed)
                every = numbers["every"] if method == REFRESHED else None
                for record in follow(made[head].copy(), train, test, mine, numbers["requests"], every):
                    yield record | base


def follow(
    u: Any, train: ArrayTable, test: ArrayTable, cells: list[Cell], requests: int, every: int | None
) -> Iterator[Record]:
    """Records of the cells of one stream on u, refreshed after every `every` requests."""
    r, seed = cells[0]["r"], cells[0]["seed"]
    order, spare = stream(train.n, requests, r, seed)
    warm = u.copy()
    for row in spare:
        request(warm, np.array([row]))
    start, again = u.theta.copy(), []
    seconds: list[float] = []
    for count, ids in enumerate(order, 1):
        with quiet():
            taken, found = clocked(partial(u.unlearn, plain(ids)))
        seconds.append(taken)
        if every is not None and count % every == 0:
            again.append(once(u.refresh))
        if count not in points_of(requests):
            continue
        facts: Record = {
            "forgotten": count * r,
            "refreshes": len(again),
            "refresh_seconds": float(np.median(again)) if again else None,
            **finite({"error": found.error, "due": found.due is not None}),
        }
        spent, seconds = seconds, []
        here = [cell for cell in cells if cell["requests"] == count]
        if not here:
            continue
        rest, model = u.retained(), u.model  # an MLP's refresh changes its anchor
        target = model.fit(rest, start=u.theta, tol=TOL[model.name]).theta
        for cell in here:
            at, took = u.theta, spent
            if cell["method"] == "nothing":
                at, took = start, [0.0]
            elif cell["method"] == "retrain":
                at, took = target, [once(partial(Retrain().prepare, rest, model, seed))]
            yield {
                **cell,
                **facts,
                "answer_seconds": float(np.median(took)),
                "max_seconds": max(took),
                "drift": parameter_distance(at, target).value,
                "residual": u.residual(at),
                **score(model, at, start, target, test),
            }


DATASETS = ("magic", "adult", "covtype", "higgs")
#: number: (tiny, quick, paper, full); s and anchor_rows None: the paper's, and the unlearner's choice.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "lr": (("magic", "adult"), ("magic",), DATASETS),
    "mlp": (("magic",), ("magic",), ("magic", "adult"), ("magic", "adult", "higgs")),
    "rows": ({"lr": 1000, "mlp": 800}, {"lr": 8000, "mlp": 5000}, {"lr": None, "mlp": 60_000}),
    "m": (60, 200, 1000),
    "s": (200, 1000, None),
    "anchor_rows": (200, 500, None),
    "requests": (6, 50, 100, 1000),
    "r": ({"lr": (1, 3), "mlp": (1,)}, {"lr": (1, 10), "mlp": (1,)}, {"lr": (1, 10), "mlp": (1, 10)}),
    "every": (3, 20, 50, 100),
    "seeds": ({"lr": 1, "mlp": 1}, {"lr": 3, "mlp": 1}, {"lr": 10, "mlp": 3}, {"lr": 10, "mlp": 10}),
}


# Report --------------------------------------------------------------------------------------------------------------


#: (field, label, where smaller values are drawn: a refresh leaves only the solver's noise)
ROWS = (
    ("rho", "rho (1 = did nothing)", 1e-5),
    ("drift", "|theta − retrained|", 1e-8),
    ("answer_seconds", "time of one request", 1e-7),
)
#: What a reference has to show; all others show everything.
ONLY = {"nothing": "drift", "retrain": "answer_seconds"}
COLUMNS = {
    "rho": middle("rho", "{:.3g}"),
    "drift": middle("drift", "{:.2e}"),
    "disagree": middle("disagreement", "{:.3%}"),
    "gradient left": middle("residual", "{:.1e}"),
    "one request": timed("answer_seconds"),
    "refreshes": middle("refreshes", "{:.0f}"),
    "one refresh": timed("refresh_seconds"),
    "runs": runs_of,
}


def shown_tables(records: list[Record]) -> list[Table]:
    """The first, the tenth and the last request of every stream."""
    mine = one_thread_count(records)
    last = max((r["requests"] for r in mine), default=0)
    by = {"data": "dataset", "model": "model", "r": "r", "method": "method", "requests": "requests so far"}
    title = "Distance, drift and latency after the first, the tenth and the last request"
    return [table_of(title, select(mine, requests=(1, 10, last)), by, COLUMNS, block=2)]


def shown_plots(records: list[Record]) -> list[Drawing]:
    """A column per dataset, model and r; rows: rho, drift, latency."""
    mine = one_thread_count(records)
    columns = list(cells_of(mine, "model", "data", "r"))
    with drawing_style():
        figure, axes = subplots(
            len(ROWS), max(1, len(columns)), figsize=(max(6.0, 3.9 * len(columns)), 9.5), sharex="col", sharey="row"
        )
        for j, (model, data, r, here) in enumerate(columns):
            for axis, (name, label, floor) in zip(axes[:, j], ROWS, strict=True):
                for method in methods_of(here):
                    if ONLY.get(method, name) == name:
                        own = group_by(select(here, method=method), "requests")
                        draw_line(axis, {k: values(found, name) for (k,), found in own.items()}, method, floor)
                if name == "rho":
                    axis.axhline(1, color=INK, linestyle=":", linewidth=1)
                axis.set(xscale="log", yscale="log")
                if j == 0:
                    axis.set_ylabel(label)
                if name == "answer_seconds":
                    seconds_axis(axis.yaxis)
            axes[0, j].set_title(f"{MODELS.get(model, model)}, r = {r:,} per request\n{data}", fontsize=10)
            axes[-1, j].set_xlabel("requests answered")
        legend(figure, axes.ravel())
    alt = "Lines over the number of answered requests, a column per dataset and model: rho, drift, time of one request."
    caption = f"Lines: medians over {runs_of(mine)} run(s), bands: quartiles. Data: {sources(mine)}."
    return [Drawing("sequence", figure, alt, caption)]


FIGURE = Figure(shown_tables, shown_plots)


register(
    Experiment(
        name="sequence",
        title="A sequence of requests",
        help="A stream of requests: latency, rho and drift.",
        profiles=by_profile(NUMBERS),
        jobs=jobs,
        figure=FIGURE,
        fields={
            "forgotten": info("rows that have left", (int,), "rows"),
            "max_seconds": metric("longest request since the record before", "s"),
            "drift": metric("distance of the model to the retrained one"),
            "residual": metric("largest entry of the retained objective's gradient"),
            "refreshes": info("how many so far", (int,)),
        },
        datasets=DATASETS,
        order=80,
    )
)
