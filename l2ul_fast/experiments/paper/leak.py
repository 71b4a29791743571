"""Theorem 7.1: how likely a row was among those that U was trained on, and what it costs to take it out of U again.

Predicted: the binomial tail P(k >= k0), as m subsets of s out of n rows each hold a row with probability s / n.
Counted: subsets are drawn by the unlearner's own sampler at the dataset's full size (no rows are needed for that), and
the rows that are in at least k0 of them are counted. The paper quotes k0 = 2; one subset is enough to leak.

"retrain" has no U: its refresh takes no time. "nothing" takes no time and removes nothing. The request path and refresh
were called once before they are timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from l2ul_fast.baselines import Retrain
from l2ul_fast.baselines.l2ul import HEADS, request
from l2ul_fast.datasets.registry import get_info
from l2ul_fast.errors import UserError
from l2ul_fast.experiments import inputs
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, by_profile, register
from l2ul_fast.experiments.scoring import Numbers, fitted
from l2ul_fast.measure.records import Record, info
from l2ul_fast.measure.timing import once
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import (
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    drawing_style,
    method_order,
    seconds_axis,
    style_of,
    subplots,
)
from l2ul_fast.report.values import Cell as TableCell
from l2ul_fast.report.values import (
    Drawing,
    Table,
    group_by,
    median,
    middle,
    one_thread_count,
    select,
    sources,
    table_of,
    timed,
)
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.pairs.plan import draw_pairs

#: Rows per pair of the learned head.
LEARNED_S = 10_000
#: (model, method, s): the paper's two settings and our learned head's. Anchored MLP pairs hold all rows: no lottery.
SUBSETS = (("lr", "l2ul-paper", 1000), ("mlp", "l2ul-paper", 3000), ("lr", "l2ul-learned", LEARNED_S))


def predicted(n: int, m: int, s: int, k: int) -> float:
    """P(a row is in at least k of m subsets of s out of n rows)."""
    from scipy.stats import binom  # half a second to load

    return float(binom.sf(k - 1, m, s / n))


def times_drawn(n: int, m: int, s: int, seed: int) -> np.ndarray:
    """(n,) in how many of the m subsets each row is, as the unlearner draws them."""
    y = (np.arange(n) % 2).astype(np.uint8)
    ids, _, _ = draw_pairs(n, y, m, s, random_state=[seed, 91])
    return np.bincount(ids.ravel(), minlength=n)


def probabilities(cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Shares of rows in at least k subsets, drawn at the dataset's full size."""
    for (n, m, s, seed), some in groupby(cells, lambda cell: (cell["n"], cell["m"], cell["s"], cell["seed"])):
        counts = times_drawn(n, m, s, seed)
        for cell in some:
            k = cell["k"]
            yield {
                **cell,
                "predicted": predicted(n, m, s, k),
                "counted": float((counts >= k).mean()),
                "expected": m * s / n,
            }


def refreshes(context: Context, dataset: str, model: str, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """What a request costs, and the refresh after it."""
    numbers = context.numbers
    label, train, _ = inputs.tables(context, dataset, numbers["rows"])
    for cell in cells:
        method, seed = cell["method"], cell["seed"]
        found: Record = {"answer_seconds": None if method == "nothing" else 0.0, "refresh_seconds": 0.0}
        try:
            if method == "retrain":
                found["answer_seconds"] = _retrain_seconds(train, model, numbers, seed)
            elif method != "nothing":
                found = _refresh_seconds(train, model, method, numbers, seed)
        except UserError as error:
            found = {"answer_seconds": None, "refresh_seconds": None, "status": str(error)}
        yield {**cell, "source": label, "d": train.d, "repeats": numbers["repeats"], **found}


def _retrain_seconds(train: ArrayTable, model: str, numbers: Numbers, seed: int) -> float:
    u = fitted(train, model, {}, {**numbers, "m": 20}, seed)
    method, taken = Retrain(), []
    for row in np.random.default_rng([seed, 92]).choice(train.n, numbers["repeats"] + 1, replace=False):
        left = train.without(np.array([row]))
        taken.append(once(lambda left=left: method.prepare(left, u.model, seed)))  # type: ignore[misc]
    return float(np.median(taken[1:]))


def _refresh_seconds(train: ArrayTable, model: str, method: str, numbers: Numbers, seed: int) -> Record:
    u = fitted(train, model, HEADS[method], {**numbers, "m": numbers["fit_m"]}, seed)
    taken = []
    for row in np.random.default_rng([seed, 92]).choice(train.n, numbers["repeats"] + 1, replace=False):
        begin = time.perf_counter()
        request(u, np.array([row]))
        middle = time.perf_counter()
        due = u.due is not None
        facts = u.refresh()
        end = time.perf_counter()
        taken.append((middle - begin, end - middle, facts.get("pairs", 0), facts.get("partitions", 0), due))
    answer, refresh, dropped, partitions, _ = (float(v) for v in np.median(taken[1:], axis=0))
    return {
        "answer_seconds": answer,
        "refresh_seconds": refresh,
        "with_refresh": refresh / answer,
        "pairs_dropped": dropped,
        "partitions": partitions,
        "head": _done(facts),
        "due_share": float(np.mean([one[-1] for one in taken[1:]])),
        "pairs_in_use": "pairs" in facts,
    }


def _done(facts: Record) -> str:
    """What a refresh says that it did, in words."""
    return ", ".join(name.replace("_", " ") for name, value in facts.items() if value is True) or "nothing was due"


def jobs(context: Context) -> Iterator[Job]:
    """The lottery of every dataset, then refreshes by dataset and model."""
    numbers = context.numbers
    for dataset in context.among(numbers["sizes"]):
        n = get_info(dataset).n
        cells = tuple(
            {"dataset": dataset, "source": "sizes only", "task": "probability", "model": model, "method": method}
            | {"n": n, "m": numbers["m"], "s": min(s, n // 2), "seed": seed, "k": k}
            for model, method, s in numbers["subsets"]
            for seed in range(numbers["draws"])
            for k in numbers["k"]
        )
        yield Job(f"{dataset} probability", cells, probabilities, float(numbers["draws"]))
    for model in ("lr", "mlp"):
        for dataset in context.among(numbers[model]):
            key = {"dataset": dataset, "task": "refresh", "model": model, "r": 1}
            key["n"] = inputs.train_size(context, dataset, numbers["rows"])
            cells = tuple(
                {**key, "method": method, "seed": seed, "m": numbers["fit_m"] if method in HEADS else None}
                for seed in range(numbers["seeds"])
                for method in ("nothing", "retrain", *HEADS)
            )
            seconds = numbers["seeds"] * (4.0 if model == "lr" else 30.0)
            yield Job(f"{dataset} {model} refresh", cells, partial(refreshes, context, dataset, model), seconds)


#: number: (tiny, quick, paper, full); s and anchor_rows None: the paper's, and the unlearner's choice.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "sizes": (("magic", "adult"), ("magic", "covtype", "higgs"), "all"),
    "m": (20, 1000),
    "k": ((1, 2), (1, 2), (1, 2), (1, 2, 3, 5)),
    "draws": (2, 1, 10, 20),
    "subsets": ((("lr", "l2ul-paper", 500),), SUBSETS),
    "lr": (("magic",), ("magic", "higgs"), "all"),
    "mlp": ((), (), ("magic", "adult"), ("magic", "adult", "skin")),
    "rows": (600, 8000, None),
    "fit_m": (40, 200, 1000),
    "s": (100, 1000, None),
    "anchor_rows": (500, 500, None),
    "repeats": (2, 5, 5, 11),
    "seeds": (1, 1, 3, 5),
}


# Report --------------------------------------------------------------------------------------------------------------


CELL = {"data": "dataset", "model": "model", "method": "method"}


def shown_tables(records: list[Record]) -> list[Table]:
    mine = one_thread_count(records)
    return [
        table_of(
            "Share of rows that trained U",
            select(mine, task="probability"),
            {"data": "dataset", "model": "model", "method": "method", "s": "s", "k": "in at least k subsets"},
            {"predicted": middle("predicted", "{:.3%}"), "counted": middle("counted", "{:.3%}")},
            block=1,
        ),
        table_of(
            "Cost of taking one row out of U",
            select(mine, task="refresh"),
            CELL,
            {
                "one request": timed("answer_seconds"),
                "refresh of U": timed("refresh_seconds"),
                "pairs dropped": middle("pairs_dropped"),
                "what refresh did": lambda own: TableCell(str(own[0].get("head") or own[0].get("status") or "")),
            },
            block=1,
        ),
    ]


def shown_plots(records: list[Record]) -> list[Drawing]:
    mine = one_thread_count(records)
    with drawing_style():
        figure, grid = subplots(1, 2, figsize=(12, 5.6))
        _shares(grid[0][0], select(mine, task="probability"))
        _costs(grid[0][1], select(mine, task="refresh"))
    alt = "Left: share of rows in at least k training subsets against n, by the theorem and counted. Right: time of a "
    alt += "request beside the time to take the row out of U."
    return [Drawing("leak", figure, alt, f"Data: {sources(mine)}.")]


def _shares(axis: Any, records: list[Record]) -> None:
    keys = sorted({(r["model"], r["method"]) for r in records}, key=lambda key: (key[0], method_order(key[1])))
    for colour, (model, method) in zip((BLUE, ORANGE, GREEN, PINK), keys, strict=False):
        own = select(records, model=model, method=method)
        for k, dash, marker in ((1, "-", "o"), (2, "--", "s")):
            points = sorted({(r["n"], r["predicted"]) for r in select(own, k=k)})
            if points:
                name = f"{model.upper()}, {style_of(method).label}, s ≤ {max(r['s'] for r in own):,}, k ≥ {k}"
                axis.plot(*zip(*points, strict=True), color=colour, linestyle=dash, label=name)
                counted = [(n, np.mean([r["counted"] for r in select(own, k=k, n=n)])) for n, _ in points]
                axis.plot(*zip(*counted, strict=True), color=colour, marker=marker, linestyle="", markersize=7)
    axis.set(xscale="log", yscale="log", xlabel="n, rows of the dataset", ylabel="share of rows that trained U")
    for n, dataset in sorted({(r["n"], r["dataset"]) for r in records}):
        axis.annotate(dataset, (n, 1.0), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=9)
    axis.set_title("Rows that U was trained on\nlines: Theorem 7.1, marks: counted (sizes only)", fontsize=11, pad=16)
    if records:
        axis.legend(fontsize=9, loc="lower left")


def _costs(axis: Any, records: list[Record]) -> None:
    labels: list[str] = []
    for (dataset, model, method), own in group_by(records, "dataset", "model", "method").items():
        request, refresh = (median(own, name) for name in ("answer_seconds", "refresh_seconds"))
        if request is None or refresh is None or method == "nothing":
            continue
        place = len(labels)
        axis.barh(place + 0.19, request, 0.36, color=BLUE, label="request")
        axis.barh(place - 0.19, refresh, 0.36, color=ORANGE, hatch="//", label="refresh of U")
        labels.append(f"{dataset}, {str(model).upper()}, {style_of(method).label}")
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="time")
    seconds_axis(axis.xaxis)
    axis.grid(visible=False, axis="y")
    axis.set_title(f"One row: request, and taking it out of U\n{sources(records)}", fontsize=11)
    known = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    if known:
        axis.legend(known.values(), known.keys(), fontsize=9)


FIGURE = Figure(shown_tables, shown_plots)


register(
    Experiment(
        name="leak",
        title="Rows in the unlearner's own training (Theorem 7.1)",
        help="Theorem 7.1: rows that trained the unlearner; cost of refreshing it.",
        profiles=by_profile(NUMBERS),
        jobs=jobs,
        figure=FIGURE,
        fields={
            "predicted": info("share of rows in at least k subsets, by the binomial tail"),
            "counted": info("share counted"),
            "expected": info("mean number of subsets that hold a row, m s / n"),
            "with_refresh": info("refresh_seconds / answer_seconds"),
            "pairs_dropped": info("training pairs made anew by a refresh, median"),
            "partitions": info("partitions drawn anew by a refresh, median"),
            "pairs_in_use": info("whether the head is trained on pairs at all", (bool,)),
            "head": info("what the last refresh did", (str,)),
            "due_share": info("share of the requests after which a refresh was due"),
        },
        order=70,
    )
)
