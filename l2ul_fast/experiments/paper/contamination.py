"""Fig. 6: dirty points go into a two-class, two-dimensional training set and are then unlearned; do the models recover?

Two kinds of dirt. "far": k more points beyond class 1, labelled 0 (high leverage). "flipped": k rows of class 1 are
labelled 0. Every unlearner is asked for the dirty points, and, as the null control, for as many clean points drawn at
random: a method whose accuracy comes back in the control too has not unlearned, it has forgotten its input model.

Methods: nothing, retrain, newton, L2UL's heads, and l2ul-robust (l2ul-learned with robust=True, logistic regression
only: it changes the pairs drawn there). A head that trains the MLP without an anchor has an original and a retrain of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines.base import Ids, Vector
from l2ul_fast.baselines.l2ul import DEFAULT, HEADS
from l2ul_fast.errors import UserError
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, by_profile, register
from l2ul_fast.experiments.scoring import Numbers, answer, nearest_retrain, stable_newton, unanchored
from l2ul_fast.measure.records import Record, info, metric
from l2ul_fast.metrics import accuracy_on, rho
from l2ul_fast.metrics.poison import poison_labels, recovery
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import INK, drawing_style, legend, style_of, subplots
from l2ul_fast.report.values import (
    MODELS,
    Drawing,
    Table,
    methods_of,
    middle,
    one_thread_count,
    runs_of,
    select,
    sources,
    table_of,
    values,
)
from l2ul_fast.report.values import Cell as TableCell
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL

PAPER_AMOUNTS = {"far": (10, 20, 30, 40, 50, 100, 200), "flipped": (50, 200, 300, 400, 600)}
FULL_AMOUNTS = {"far": (10, 20, 30, 40, 50, 75, 100, 150, 200, 400), "flipped": (50, 100, 200, 300, 400, 500, 600)}
#: Method -> arguments of L2UL.
UNLEARNERS: dict[str, dict[str, Any]] = HEADS | {"l2ul-robust": {"head": "learned", "robust": True}}
METHODS = ("nothing", "retrain", "newton", *UNLEARNERS)
#: Centres of the two classes are +-CENTRE, points spread by 1; far dirt lies around FAR.
CENTRE, FAR = np.array([2.0, 2.0]), np.array([14.0, 14.0])


def clean_points(n: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """n points, half of each class, in random order."""
    y = rng.permutation(np.arange(n) % 2).astype(np.uint8)
    return rng.normal(size=(n, 2)) * 0.7 + np.where(y[:, None] == 1, CENTRE, -CENTRE), y


def contaminated(kind: str, dirty: int, clean: int, seed: int) -> tuple[ArrayTable, Ids]:
    """(training rows with wrong labels among them, numbers of the dirty rows)."""
    rng = np.random.default_rng([seed, 41])
    X, y = clean_points(clean, rng)
    if kind == "far":
        X = np.concatenate([X, FAR + rng.normal(size=(dirty, 2))])
        y = np.concatenate([y, np.ones(dirty, np.uint8)])
        ids = np.arange(clean, clean + dirty)
    elif kind == "flipped":
        of_one = np.flatnonzero(y == 1)
        if dirty > of_one.size:
            raise UserError(f"{dirty} labels cannot be flipped: class 1 has {of_one.size} rows")
        ids = np.sort(rng.permutation(of_one)[:dirty])
    else:
        raise UserError(f'dirt is "far" or "flipped", not {kind!r}')
    return ArrayTable(X, poison_labels(y, ids, 2), [0, 1]), ids


def control_rows(table: ArrayTable, dirty: Ids, seed: int) -> Ids:
    """As many clean rows, drawn at random."""
    clean = np.setdiff1d(np.arange(len(table.X)), dirty)
    if clean.size <= dirty.size:
        raise UserError(f"{dirty.size} of {len(table.X)} rows are dirty: the control needs more clean rows than that")
    return np.sort(np.random.default_rng([seed, 17]).choice(clean, dirty.size, replace=False))


def from_scratch(u: L2UL, table: ArrayTable, ids: Ids) -> Vector:
    """Retrain without these rows as if they had never been there: an anchor too is trained anew."""
    rest, model, params = table.without(ids), u.model, u.params
    if model.name == "lr":
        return np.asarray(model.fit(rest).theta)
    if unanchored(u):
        return np.asarray(model.fit(rest, seed=int(params["random_state"]), tol=1e-6).theta)
    same = {name: params[name] for name in ("lam", "hidden", "activation", "anchor_rows", "random_state")}
    return np.array(L2UL("mlp", **same).fit(*rest.take(rest.ids())).theta)


def fails_null_control(control: float | None, target: float | None) -> bool | None:
    """Whether a control recovers more than half of the way from its target to 1.

    Clean rows that leave make the dirt weigh more, so the target may be far below 0; what is above it but does not
    recover anything (doing nothing) is no sign of forgetting.
    """
    return None if control is None or target is None else control > 0.5 * (1 + max(target, 0.0))


class _Base:
    """One way to train the model: what Retrain and doing nothing score with it."""

    def __init__(self, u: L2UL, table: ArrayTable, dirty: Ids, control: Ids, test: ArrayTable) -> None:
        self.u, self.table, self.test = u, table, test
        self.original = self.of(u.theta)
        self.targets = {"dirty": from_scratch(u, table, dirty), "control": from_scratch(u, table, control)}
        self.retrained, self.null_retrained = (self.of(t) for t in self.targets.values())
        self.near = nearest_retrain(u, table, dirty, 1e-8)

    def of(self, theta: Vector) -> float:
        return float(accuracy_on(self.u.model, theta, self.test).value or 0.0)

    def record(self, answered: Vector, null: Vector, exact: bool) -> Record:
        """exact: the answer is Retrain's own, so that another optimum is no error of it."""
        gained = recovery(self.original, self.of(answered), self.retrained)
        control = recovery(self.original, self.of(null), self.retrained)
        goal = recovery(self.original, self.null_retrained, self.retrained).value
        away = rho(answered, self.near, self.u.theta).value
        return {
            "accuracy": self.of(answered),
            "original_accuracy": self.original,
            "retrain_accuracy": self.retrained,
            "recovery": gained.value,
            "recovery_degenerate": gained.degenerate,
            "null_accuracy": self.of(null),
            "null_recovery": control.value,
            "null_target": goal,
            "fails_null_control": fails_null_control(control.value, goal),
            "rho": None if exact and self.u.model.name == "mlp" else away,
        }


def measure(numbers: Numbers, model: str, kind: str, amount: int, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Records of all methods and seeds for one amount of one kind of contamination."""
    for seed, some in groupby(cells, lambda cell: cell["seed"]):
        table, ids = contaminated(kind, amount, numbers["clean"], seed)
        control = control_rows(table, ids, seed)
        test = ArrayTable(*clean_points(numbers["test"], np.random.default_rng([seed, 43])), [0, 1])
        fitted: dict[str, L2UL] = {}
        bases: dict[str | None, _Base] = {}
        for cell in some:
            method, facts = cell["method"], {**cell, "source": "synthetic", "d": 2}
            own = method if method in UNLEARNERS else DEFAULT
            try:
                u = fitted[own] = fitted.get(own) or _fitted(model, own, table, numbers, seed)
                alone = own if unanchored(u) else None  # all others share one way to train the model
                base = bases[alone] = bases.get(alone) or _Base(u, table, ids, control, test)
                asked = [_answer(method, base, u, rows, name) for name, rows in (("dirty", ids), ("control", control))]
                yield {**facts, **base.record(asked[0], asked[1], method == "retrain")}
            except UserError as error:
                yield {**facts, "accuracy": None, "rho": None, "recovery": None, "status": str(error)}


def _fitted(model: str, method: str, table: ArrayTable, numbers: Numbers, seed: int) -> L2UL:
    options: dict[str, Any] = {"m": numbers["m"], "s": numbers["s"], "random_state": seed, "t": 50}
    if model == "mlp":
        options["anchor_rows"] = numbers["anchor_rows"]
    return L2UL(model, **options, **UNLEARNERS[method]).fit(table.X, table.y)


def _answer(method: str, base: _Base, u: L2UL, ids: Ids, name: str) -> Vector:
    if method == "nothing":
        return u.theta
    if method == "retrain":
        return base.targets[name]
    if method == "newton":
        return stable_newton(u, base.table, ids)
    return answer(u, ids)


def jobs(context: Context) -> Iterator[Job]:
    """A job for each model, kind and amount."""
    numbers = context.numbers
    for model, kinds in numbers["contaminated"].items():
        methods = [m for m in METHODS if model == "lr" or m != "l2ul-robust"]
        for kind, amounts in kinds.items():
            for amount in amounts:
                n = numbers["clean"] + (amount if kind == "far" else 0)
                key = {"dataset": "blobs", "model": model, "request": kind, "contaminated": amount, "r": amount, "n": n}
                cells = tuple(
                    {**key, "seed": seed, "method": method} for seed in range(numbers["seeds"]) for method in methods
                )
                seconds = numbers["seeds"] * (0.5 if model == "lr" else 1.5)
                yield Job(f"{model} {kind} {amount}", cells, partial(measure, numbers, model, kind, amount), seconds)


QUICK_AMOUNTS = {"far": (50, 100, 200), "flipped": (200, 400, 600)}
#: number: (tiny, quick, paper, full).
NUMBERS: dict[str, tuple[Any, ...]] = {
    "clean": (300, 1600),
    "test": (500, 2000, 10_000),
    "seeds": (1, 2, 10, 20),
    "m": (60, 100, 1000),
    "s": (120, 400, 800),
    "anchor_rows": (80, 200, 400),
    "contaminated": (
        {"lr": {"far": (60,), "flipped": (75,)}, "mlp": {"flipped": (75,)}},
        {"lr": QUICK_AMOUNTS, "mlp": {"far": (200,), "flipped": (400, 600)}},
        {"lr": PAPER_AMOUNTS, "mlp": PAPER_AMOUNTS},
        {"lr": FULL_AMOUNTS, "mlp": FULL_AMOUNTS},
    ),
}


# Report --------------------------------------------------------------------------------------------------------------


REQUESTS = {"far": "far points labelled wrong", "flipped": "labels of class 1 flipped"}
SHOWN = (("accuracy", "asked for the contaminated points"), ("null_accuracy", "null control: asked for clean points"))


def _null(own: list[Record]) -> TableCell:
    """How often a method recovers although it was asked for clean points: it forgot its model."""
    votes = [bool(r["fails_null_control"]) for r in own if r.get("fails_null_control") is not None]
    why = sorted({str(r["status"]) for r in own if r.get("status", "ok") != "ok"})
    text = "; ".join(why) or (f"{sum(votes)} of {len(votes)} runs" if votes else "contamination did no harm")
    return TableCell(text, float(sum(votes)), "bad" if any(votes) else "")


COLUMNS = {
    "accuracy before": middle("original_accuracy"),
    "accuracy": middle("accuracy"),
    "Retrain's": middle("retrain_accuracy"),
    "recovered": middle("recovery"),
    "control: accuracy": middle("null_accuracy"),
    "control: recovered": middle("null_recovery"),
    "recovers in the control too": _null,
    "rho": middle("rho", "{:.3g}"),
    "runs": runs_of,
}


def shown_tables(records: list[Record]) -> list[Table]:
    by = {"model": "model", "request": "points", "contaminated": "contaminated", "method": "method", "source": "data"}
    title = "Accuracy after contaminated points are unlearned"
    note = "Synthetic two-dimensional blobs. The control asks for as many clean points: what recovers there too forgot "
    return [table_of(title, one_thread_count(records), by, COLUMNS, f"{note}its model, not the points.", block=3)]


def shown_plots(records: list[Record]) -> list[Drawing]:
    """Rows: model and request; columns: kind of contamination. Methods stand side by side at each amount."""
    mine = one_thread_count(records)
    models = [m for m in MODELS if select(mine, model=m)]
    kinds = [k for k in REQUESTS if select(mine, request=k)]
    if not models or not kinds:
        return []
    with drawing_style():
        figure, axes = subplots(2 * len(models), len(kinds), figsize=(11, 5.8 * len(models) + 0.8), sharey=True)
        for i, model in enumerate(models):
            for j, (name, what) in enumerate(SHOWN):
                for axis, kind in zip(axes[2 * i + j], kinds, strict=True):
                    _panel(axis, select(mine, model=model, request=kind), name, methods_of(mine))
                    axis.set_title(f"{MODELS[model]}, {REQUESTS[kind]}\n{what}", fontsize=10)
                axes[2 * i + j, 0].set_ylabel("accuracy on clean\ntest points")
        for axis in axes[-1]:
            axis.set_xlabel("contaminated points among the training rows")
        legend(figure, axes.ravel())
    alt = "Accuracy on clean test points by number of contaminated points, a panel per model, kind and request."
    caption = "Marks: medians over runs; lines: smallest to largest. Synthetic two-dimensional blobs."
    return [Drawing("contamination", figure, alt, f"{caption} Data: {sources(mine)}.")]


def _panel(axis: Any, records: list[Record], name: str, methods: list[str]) -> None:
    amounts = sorted({r["contaminated"] for r in records})
    width = 0.8 / max(1, len(methods))
    for i, method in enumerate(methods):
        found = [(k, values(select(records, method=method, contaminated=d), name)) for k, d in enumerate(amounts)]
        found = [(k, v) for k, v in found if v]
        x = [k + width * (i - (len(methods) - 1) / 2) for k, _ in found]
        shape = style_of(method)
        axis.vlines(x, [min(v) for _, v in found], [max(v) for _, v in found], color=shape.colour, linewidth=1.5)
        paint = {"marker": shape.marker if shape.marker != "_" else ".", "markersize": 8, "color": shape.colour}
        paint["markerfacecolor"] = "none" if method == "l2ul-paper" else shape.colour
        axis.plot(x, [np.median(v) for _, v in found], linestyle="", label=shape.label, **paint)
    axis.set_xticks(range(len(amounts)), [f"{a:,}" for a in amounts])
    axis.set_ylim(0, 1.06)
    for edge in range(len(amounts) - 1):
        axis.axvline(edge + 0.5, color=INK, alpha=0.13, linewidth=0.8)
    axis.grid(visible=False, axis="x")


FIGURE = Figure(shown_tables, shown_plots)


register(
    Experiment(
        name="contamination",
        title="Contaminated data (Fig. 6)",
        help="Fig. 6: contaminated points in two-dimensional data, with the null control.",
        profiles=by_profile(NUMBERS),
        jobs=jobs,
        figure=FIGURE,
        fields={
            "original_accuracy": info("accuracy of the contaminated model on clean test points"),
            "recovery": metric(
                "accuracy regained, as a share of what Retrain regains; doing nothing 0", better="higher"
            ),
            "recovery_degenerate": info("why recovery is no number: less than a point was lost", (str,)),
            "null_accuracy": info("accuracy after the null control"),
            "null_recovery": info("recovery in the null control"),
            "null_target": info("what Retrain without the control rows recovers, about 0"),
            "fails_null_control": info("whether the control recovers at least half of what Retrain does not", (bool,)),
        },
        order=40,
    )
)
