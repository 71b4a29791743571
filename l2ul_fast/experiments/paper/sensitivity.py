"""Figs. 7 and 8: how much psi (cells per partition), s (rows per pair) and m (pairs) matter, on susy and higgs.

One of the three is varied, the others stay at the paper's defaults (psi = 4, s = 1000 or 3000 for the MLP, m = 1000;
smaller in the quick profile). Theta and the retrains are computed once, pairs once per s and seed (fewer pairs are the
first of them), cells once per psi and seed; only what depends on a value is made anew. What does not depend on it gives
the same answer again: the learned head uses no cells, and pairs of the anchored MLP hold all rows, so s is not in them.

The MLP of l2ul-paper is trained without an anchor: its rho refers to the optimum reached from its own theta.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from l2ul_fast.baselines.base import Ids, Vector
from l2ul_fast.errors import UserError
from l2ul_fast.experiments import inputs
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, by_profile, register
from l2ul_fast.experiments.scoring import Numbers, score
from l2ul_fast.measure.records import Record, info
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import DASHES, INK, draw_line, drawing_style, legend, style_of, subplots
from l2ul_fast.report.values import (
    MODELS,
    Drawing,
    Table,
    group_by,
    methods_of,
    middle,
    one_thread_count,
    points,
    remarks,
    runs_of,
    select,
    sources,
    table_of,
    values,
)
from l2ul_fast.report.values import cells_of as shown_cells
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.heads.base import Rows
from l2ul_fast.unlearner.heads.kme import Kme
from l2ul_fast.unlearner.heads.learned import Learned
from l2ul_fast.unlearner.heads.paper import Paper
from l2ul_fast.unlearner.heads.sealed import make_pairs, train_first
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.pairs.make import Pairs
from l2ul_fast.unlearner.pairs.plan import request
from l2ul_fast.unlearner.state import CellState

DATASETS = ("susy", "higgs")
WIDE = (2, 4, 8, 16, 32, 64, 128, 256)
PARAMETERS = ("psi", "s", "m")
LEARNED, REPAIRED, PAPER = METHODS = ("l2ul-learned", "l2ul-kme", "l2ul-paper")


class Bench:
    """One dataset and model: theta, pairs, cells and heads, each made once when first asked for."""

    def __init__(self, model: str, table: ArrayTable, numbers: Numbers, seed: int) -> None:
        self.table, self.numbers, self.seed = table, numbers, seed
        self.largest = max((*numbers["m"][model], numbers["default"][model][2]))
        self.options = L2UL(model, t=numbers["t"], anchor_rows=numbers["anchor_rows"], random_state=seed).params
        own = train_first(table, self.options, _silent, anchored=True)
        plain = own if model == "lr" else train_first(table, self.options, _silent, anchored=False)
        self.trained = {name: plain if name == PAPER else own for name in METHODS}
        self._pairs: dict[Any, Pairs] = {}
        self._cells: dict[tuple[int, int], CellState] = {}
        self._heads: dict[Any, tuple[Any, int]] = {}

    def of(self, method: str) -> tuple[Any, Vector]:
        """(model, theta) that the method starts from."""
        trained = self.trained[method]
        return trained.model, trained.theta

    def target(self, method: str, ids: Ids) -> Vector:
        """The retrain that a method is compared with."""
        model, theta = self.of(method)
        return np.asarray(
            model.fit(self.table.without(ids), start=theta, tol=1e-11 if model.name == "lr" else 1e-9).theta
        )

    def pairs(self, method: str, s: int, m: int, seed: int) -> Pairs:
        """The first m of those that are drawn with this s and seed."""
        trained = self.trained[method]
        key = (seed, "full" if anchored(trained.model) else s)
        if key not in self._pairs:
            # of earlier seeds nothing is needed again
            self._pairs = {k: held for k, held in self._pairs.items() if k[0] == seed}
            drawn = int(np.random.SeedSequence([self.seed, 5, seed, s]).generate_state(1)[0])
            options = self.options | {"m": self.largest, "s": s, "random_state": drawn}
            self._pairs[key] = make_pairs(trained, self.table, options, _silent)
        pairs = self._pairs[key]
        return pairs.first(min(m, len(pairs)))

    def cells(self, psi: int, seed: int) -> CellState:
        if (seed, psi) not in self._cells:
            self._cells = {key: held for key, held in self._cells.items() if key[0] == seed}
            build = CellState.build(self.table, len(self.table.X), self.numbers["t"], psi, [self.seed, 6, seed])
            self._cells[seed, psi] = build
        return self._cells[seed, psi]

    def head(self, method: str, psi: int, s: int, m: int, seed: int) -> tuple[Any, int]:
        """(the head trained with these values, pairs used)."""
        trained = self.trained[method]
        key: tuple[Any, ...] = (seed, method, 0 if anchored(trained.model) else s, m, 0 if method == LEARNED else psi)
        if key not in self._heads:
            self._heads = {k: v for k, v in self._heads.items() if k[0] == seed}
            pairs = self.pairs(method, s, m, seed)
            options = self.options | {"psi": psi, "s": s, "m": m, "random_state": seed}
            kind: Any = Learned if method == LEARNED else Kme if method == REPAIRED else Paper
            cells = self.cells(psi, seed).copy() if kind.embeds else None
            made = kind.taught(trained, pairs, self.table, cells, options, _silent)[0]
            self._heads[key] = made, len(pairs)
        return self._heads[key]

    def answer(self, head: Any, ids: Ids) -> Vector:
        """theta of a request, without taking it out of the head."""
        tried = copy.deepcopy(head)
        tried.forget(Rows(*self.table.take(ids), None, ids))
        return np.asarray(tried.theta)


def _silent(what: str, done: int, total: int) -> None:
    """Progress of what takes seconds."""


def anchored(model: Any) -> bool:
    """Whether its pairs hold all rows: an MLP's with an anchor do."""
    return getattr(model, "anchor", None) is not None


def cells_of(numbers: Numbers, model: str, n: int) -> list[tuple[str, int, dict[str, int]]]:
    """(parameter, value, all three values) of the sweeps; s beyond half the rows is left out."""
    default = dict(zip(PARAMETERS, numbers["default"][model], strict=True))
    sweeps = {"psi": numbers["psi"], "s": numbers["s"][model], "m": numbers["m"][model]}
    out = [(name, value, default | {name: value}) for name, some in sweeps.items() for value in some]
    return [cell for cell in out if cell[2]["s"] <= n // 2]


def measure(context: Context, dataset: str, model: str, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Heads are trained once for all r."""
    label, train, test = inputs.tables(context, dataset, context.numbers["rows"][model])
    bench = Bench(model, train, context.numbers, context.seed)
    targets: dict[Any, tuple[Ids, Vector]] = {}
    for cell in cells:
        method, seed, r = cell["method"], cell["seed"], cell["r"]
        facts = {**cell, "source": label, "d": train.d}
        model_, theta = bench.of(method if method in METHODS else LEARNED)
        family = (method == PAPER and model == "mlp", seed, r)
        if family not in targets:
            ids = np.sort(request("random", r, None, train.y, np.random.default_rng([context.seed, 77, seed, r])))
            targets[family] = ids, bench.target(PAPER if family[0] else LEARNED, ids)
        ids, target = targets[family]
        extra: Record = {}
        if method not in METHODS:
            answered = theta if method == "nothing" else target
        else:
            try:
                head, extra["pairs"] = bench.head(method, cell["psi"], cell["s"], cell["m"], seed)
            except UserError as error:
                yield {**facts, "rho": None, "accuracy": None, "status": str(error)}
                continue
            answered = bench.answer(head, ids)
        yield {**facts, **extra, **score(model_, answered, theta, target, test)}


def jobs(context: Context) -> Iterator[Job]:
    """A job for each model and dataset."""
    numbers = context.numbers
    for model in numbers["rows"]:
        for dataset in context.among(numbers[model]):
            n = inputs.train_size(context, dataset, numbers["rows"][model])
            nobody = {"parameter": None, "value": None}
            swept: list[dict[str, Any]] = [{"method": name, **nobody} for name in ("nothing", "retrain")]
            swept += [
                {"method": method, "parameter": parameter, "value": value, **used}
                for method in METHODS
                for parameter, value, used in cells_of(numbers, model, n)
            ]
            cells = tuple(
                {"dataset": dataset, "model": model, "n": n, "seed": seed, "r": r, **one}
                for seed in range(numbers["seeds"][model])
                for one in swept
                for r in numbers["r"]
            )
            seconds = numbers["seeds"][model] * (4.0 if model == "lr" else 12.0)
            yield Job(f"{dataset} {model}", cells, partial(measure, context, dataset, model), seconds)


#: number: (tiny, quick, paper, full). rows None: all of them; exact fits of the MLP on millions of rows take hours.
#: default: (psi, s, m).
NUMBERS: dict[str, tuple[Any, ...]] = {
    "lr": (("magic", "adult"), DATASETS),
    "mlp": (("magic",), ("susy",), DATASETS),
    "rows": (
        {"lr": 1200, "mlp": 800},
        {"lr": 8000, "mlp": 5000},
        {"lr": None, "mlp": 200_000},
        {"lr": None, "mlp": 1_000_000},
    ),
    "psi": ((2, 8), (2, 4, 16), WIDE),
    "s": (
        {"lr": (100, 300), "mlp": (100, 200)},
        {"lr": (200, 1000), "mlp": (300, 1000)},
        {"lr": (100, 300, 1000, 3000, 10_000), "mlp": (300, 1000, 3000, 10_000)},
        {"lr": (100, 300, 1000, 3000, 10_000, 30_000), "mlp": (300, 1000, 3000, 10_000, 30_000)},
    ),
    "m": (
        {"lr": (30, 100), "mlp": (30, 60)},
        {"lr": (50, 200), "mlp": (100, 400)},
        {"lr": (100, 300, 1000, 2000), "mlp": (100, 300, 1000, 2000)},
        {"lr": (100, 300, 1000, 3000), "mlp": (100, 300, 1000, 3000)},
    ),
    "default": (
        {"lr": (2, 300, 100), "mlp": (2, 200, 60)},
        {"lr": (4, 1000, 200), "mlp": (4, 1000, 400)},
        {"lr": (4, 1000, 1000), "mlp": (4, 3000, 1000)},
    ),
    "r": ((1, 20), (1, 100), (1, 100, 1000), (1, 10, 100, 1000)),
    "seeds": ({"lr": 1, "mlp": 1}, {"lr": 3, "mlp": 1}, {"lr": 10, "mlp": 10}, {"lr": 20, "mlp": 10}),
    "anchor_rows": (200, 3000, 20_000),
    "t": (10, 50, 100),
}


# Report --------------------------------------------------------------------------------------------------------------


NAMES = {"psi": "psi (cells per partition)", "s": "s (rows per training pair)", "m": "m (training pairs)"}
COLUMNS = {
    "accuracy": middle("accuracy"),
    "− Retrain (points)": middle(points, "{:+.2f}"),
    "rho": middle("rho", "{:.3g}"),
    "disagree": middle("disagreement", "{:.2%}"),
    "runs": runs_of,
    "remark": remarks,
}


def shown_tables(records: list[Record]) -> list[Table]:
    by = {"data": "dataset", "model": "model", "parameter": "varied", "method": "method", "value": "value", "r": "r"}
    return [table_of("Accuracy and rho by psi, s and m", one_thread_count(records), by, COLUMNS, block=3)]


def shown_plots(records: list[Record]) -> list[Drawing]:
    """Two rows (accuracy, rho) per dataset and model, a column per parameter; line styles tell r."""
    from matplotlib.ticker import NullFormatter

    mine = one_thread_count(records)
    blocks = list(shown_cells(mine, "model", "data"))
    with drawing_style():
        figure, axes = subplots(2 * len(blocks), 3, figsize=(11.5, 3.9 * len(blocks) + 1.0))
        for i, (model, data, here) in enumerate(blocks):
            for j, (parameter, label) in enumerate(NAMES.items()):
                varied = select(here, parameter=parameter)
                for row, (name, floor) in enumerate((("accuracy", None), ("rho", 1e-6))):
                    axis = axes[2 * i + row, j]
                    for method in methods_of(varied):
                        for dash, r in zip(DASHES, sorted({q["r"] for q in mine}), strict=False):
                            own = group_by(select(varied, method=method, r=r), "value")
                            found = {v: values(cells, name) for (v,), cells in own.items()}
                            text = f"{style_of(method).label}, r = {r:,}"
                            draw_line(axis, found, method, floor, linestyle=dash, label=text)
                    _reference(axis, here, name)
                    axis.set_xscale("log", base=2 if parameter == "psi" else 10)
                    ticks = sorted({q["value"] for q in varied})
                    axis.set_xticks(ticks, [f"{t:,}" for t in ticks], fontsize=9)
                    axis.xaxis.set_minor_formatter(NullFormatter())
                    if row:
                        axis.set(yscale="log", xlabel=label)
            axes[2 * i, 0].set_ylabel("test accuracy")
            axes[2 * i + 1, 0].set_ylabel("rho (1 = did nothing)")
            axes[2 * i, 0].set_title(f"{MODELS.get(model, model)}: {data}", fontsize=11)
            for row in (2 * i, 2 * i + 1):
                ends = [axis.get_ylim() for axis in axes[row]]
                for axis in axes[row]:
                    axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
        legend(figure, axes.ravel(), 3)
    alt = "Lines of accuracy and rho against psi, s and m, two rows of panels per dataset and model."
    caption = f"Lines: medians over {runs_of(mine)} run(s), bands: quartiles. Data: {sources(mine)}."
    return [Drawing("sensitivity", figure, alt, caption)]


def _reference(axis: Any, records: list[Record], name: str) -> None:
    if name == "rho":
        axis.axhline(1, color=INK, linewidth=1, linestyle=":", label="did nothing")
    elif found := values(select(records, method="retrain"), name):
        axis.axhline(sum(found) / len(found), color=INK, linewidth=1, alpha=0.8, label="Retrain (mean over r and runs)")


FIGURE = Figure(shown_tables, shown_plots)


register(
    Experiment(
        name="sensitivity",
        title="Sensitivity to ψ, s and m (Figs. 7–8)",
        help="Figs. 7-8: psi, s and m.",
        profiles=by_profile(NUMBERS),
        jobs=jobs,
        figure=FIGURE,
        fields={"pairs": info("training pairs that converged, and were used", (int,))},
        order=50,
    )
)
