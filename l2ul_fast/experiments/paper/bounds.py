"""Theorems 4.5 and 4.6 put to the test: their bounds with the measured error of U, beside the measured excess loss.

The paper bounds L(theta') - L(theta_r) by 2 R sqrt(epsilon) (logistic regression) and by C sqrt(epsilon) (MLP), where
epsilon is U's mean squared error over the p parameters. As |theta' - theta_r| = sqrt(p epsilon), a factor sqrt(p) is
missing there. The corrected bound is K |theta' - theta_r| with K a Lipschitz constant of the log-loss:
  logistic regression: K = sqrt(R^2 + 1), as |sigma - y| <= 1 and the intercept sees the constant 1;
  MLP with h tanh units and one logit: K = sqrt(h + 1 + v^2 (R^2 + 1)), v the larger of both output layers' norms.
R is the largest |x| over training and test rows. Doing nothing has a bound too, and usually a smaller one: the theorems
bound how good a model is, not whether it forgot.

The MLP of a head that trains it without an anchor is compared with the optimum reached from its own theta.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from l2ul_fast.baselines.base import Ids, Vector
from l2ul_fast.baselines.l2ul import DEFAULT, HEADS, Scratch, request
from l2ul_fast.experiments import inputs
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, by_profile, register
from l2ul_fast.experiments.scoring import fitted, nearest_retrain, score, stable_newton, unanchored
from l2ul_fast.measure.records import Record, info, metric
from l2ul_fast.report.figure import Figure
from l2ul_fast.report.style import INK, drawing_style, legend, style_of, subplots
from l2ul_fast.report.values import (
    MODELS,
    NONE,
    Column,
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
from l2ul_fast.unlearner.pairs import plan as draw

METHODS = ("nothing", "retrain", "newton", *HEADS)
#: Solver error of a retrain and rounding of a mean: bounds are compared with this much slack.
SLACK = 1e-9


def paper_constant(model: Any, radius: float, weight: float) -> float:
    """2 R, or for the MLP sqrt(A_W^2 + A_B^2) as printed, with N = 1, n = (d, h, 2), `weight` the largest |weight|."""
    if model.name == "lr":
        return 2 * radius
    d, h, out = model.d, model.h, 2
    share = weight**2 / 16
    a_w = 4 * h * out + share * d**2 * h * out
    a_b = 4 * out + share * h * out**2
    return float(np.hypot(a_w, a_b))


def lipschitz(model: Any, radius: float, *thetas: Vector) -> float:
    """The most by which the log-loss of a row within the radius changes per unit of theta, between these thetas."""
    if model.name == "lr":
        return float(np.sqrt(radius**2 + 1))
    outer = max(float(np.linalg.norm(theta[-model.h - 1 : -1])) for theta in thetas)  # norms are convex: ends suffice
    return float(np.sqrt(model.h + 1 + outer**2 * (radius**2 + 1)))


def log_loss(model: Any, theta: Vector, X: Any, y: Any) -> float:
    """Mean log-loss without penalty, of two classes."""
    z = np.asarray(model.logits(theta, X), np.float64)
    return float(np.mean(np.logaddexp(0, z) - z * np.asarray(y, np.float64)))


def compare(model: Any, answered: Vector, target: Vector, radius: float, test: Any, retained: Any) -> Record:
    """Epsilon, excess losses and both bounds of one answer; test and retained are (X, y)."""
    distance = float(np.linalg.norm(answered - target))
    epsilon = distance**2 / target.size
    excess = [log_loss(model, answered, *rows) - log_loss(model, target, *rows) for rows in (test, retained)]
    constant = paper_constant(model, radius, float(np.abs(answered).max()))
    steepest = lipschitz(model, radius, answered, target)
    bound, corrected = constant * float(np.sqrt(epsilon)), steepest * distance
    return {
        "p": target.size,
        "radius": radius,
        "epsilon": epsilon,
        "excess_loss": excess[0],
        "excess_retained": excess[1],
        "constant": constant,
        "bound": bound,
        "holds": max(excess) <= bound + SLACK,
        "lipschitz": steepest,
        "corrected_bound": corrected,
        "corrected_holds": max(excess) <= corrected + SLACK,
    }


def radius_of(*tables: ArrayTable) -> float:
    return max(float(np.sqrt((X.astype(np.float64) ** 2).sum(axis=1).max())) for t in tables for X, _ in t.blocks())


def measure(context: Context, dataset: str, model: str, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Each request is drawn once for all methods."""
    numbers = context.numbers
    label, train, test = inputs.tables(context, dataset, numbers["rows"][model])
    radius = radius_of(train, test)
    made = {method: Scratch(fitted(train, model, options, numbers, context.seed)) for method, options in HEADS.items()}
    targets: dict[Any, tuple[Ids, Vector]] = {}
    for cell in cells:
        seed, r, method = cell["seed"], cell["r"], cell["method"]
        scratch = made[method if method in made else DEFAULT]
        u = scratch.first
        alone = method if unanchored(u) else None
        if (seed, r, alone) not in targets:
            rng = np.random.default_rng([context.seed, 81, seed, r])
            ids = np.sort(draw.request("random", r, None, train.y, rng))
            targets[seed, r, alone] = ids, nearest_retrain(u, train, ids, 1e-11 if model == "lr" else 1e-9)
        ids, target = targets[seed, r, alone]
        if method == "nothing":
            answered = u.theta
        elif method == "retrain":
            answered = target
        else:
            newton = method == "newton"
            answered = stable_newton(u, train, ids) if newton else np.asarray(request(scratch.renew(), ids).theta)
        stay = train.without(ids).ids()
        found = compare(u.model, answered, target, radius, (test.X, test.y), (train.X[stay], train.y[stay]))
        if method in made and "network" in u.report_:
            found["epsilon_training"] = float(u.report_["network"]["heldout_loss"])
        scores = score(u.model, answered, u.theta, target, test)
        yield {**cell, "source": label, "d": train.d, **found, **scores}


def jobs(context: Context) -> Iterator[Job]:
    """A job for each model and dataset."""
    numbers = context.numbers
    for model in ("lr", "mlp"):
        for dataset in context.among(numbers[model]):
            n = inputs.train_size(context, dataset, numbers["rows"][model])
            cells = tuple(
                {"dataset": dataset, "model": model, "method": method, "n": n, "r": r, "seed": seed}
                for seed in range(numbers["seeds"][model])
                for r in dict.fromkeys(min(r, n // 10) for r in numbers["r"])
                for method in METHODS
            )
            run = partial(measure, context, dataset, model)
            yield Job(f"{dataset} {model}", cells, run, 3.0 if model == "lr" else 12.0)


#: number: (tiny, quick, paper, full); s and anchor_rows None: the paper's, and the unlearner's choice.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "lr": (("magic", "adult"), ("magic", "higgs"), "all"),
    "mlp": (("magic",), ("magic",), ("magic", "adult", "skin", "higgs"), "all"),
    "rows": (
        {"lr": 800, "mlp": 800},
        {"lr": 8000, "mlp": 5000},
        {"lr": None, "mlp": 60_000},
        {"lr": None, "mlp": 200_000},
    ),
    "m": (60, 200, 1000),
    "s": (200, 1000, None),
    "anchor_rows": (200, 2000, None),
    "r": ((1, 20), (1, 100), (1, 100, 1000), (1, 10, 100, 1000)),
    "seeds": ({"lr": 2, "mlp": 1}, {"lr": 10, "mlp": 3}, {"lr": 10, "mlp": 10}, {"lr": 30, "mlp": 10}),
}


# Report --------------------------------------------------------------------------------------------------------------


#: Excess losses below this (also negative ones) are drawn here.
FLOOR = 1e-12


def excess(record: Record) -> float | None:
    """The larger of both excess losses."""
    return max((v for k in ("excess_loss", "excess_retained") for v in values([record], k)), default=None)


def _mean(name: str) -> Column:
    def column(own: list[Record]) -> TableCell:
        found = values(own, name)
        return TableCell(f"{np.mean(found):.2e}", float(np.mean(found))) if found else NONE

    return column


def _held(name: str) -> Column:
    def column(own: list[Record]) -> TableCell:
        found = [bool(r[name]) for r in own if r.get(name) is not None]
        if not found:
            return NONE
        return TableCell(f"{sum(found)} of {len(found)}", sum(found) / len(found), "" if all(found) else "bad")

    return column


COLUMNS = {
    "epsilon": _mean("epsilon"),
    "epsilon on pairs": middle("epsilon_training", "{:.2e}"),
    "excess log-loss": _mean("excess_loss"),
    "paper's bound": _mean("bound"),
    "holds": _held("holds"),
    "corrected bound": _mean("corrected_bound"),
    "corrected holds": _held("corrected_holds"),
    "rho": middle("rho", "{:.3g}"),
    "runs": runs_of,
}


def shown_tables(records: list[Record]) -> list[Table]:
    by = {"data": "dataset", "model": "model", "r": "r", "method": "method"}
    note = "Bounds come from the mean epsilon of the runs; excess losses are means."
    title = "Bounds beside the measured excess loss"
    return [table_of(title, one_thread_count(records), by, COLUMNS, note, block=2)]


def shown_plots(records: list[Record]) -> list[Drawing]:
    """A panel per model: a point is a request; below the diagonal a bound holds."""
    mine = [r for r in one_thread_count(records) if r.get("epsilon")]
    models = [m for m in MODELS if select(mine, model=m)]
    if not models:
        return []
    with drawing_style():
        figure, grid = subplots(1, len(models), figsize=(6.2 * len(models), 6.4))
        for axis, model in zip(grid[0], models, strict=True):
            here = select(mine, model=model)
            for method in methods_of(here):
                own, shape = select(here, method=method), style_of(method)
                y = [max(excess(r) or FLOOR, FLOOR) for r in own]
                paint = {
                    "marker": "." if shape.marker == "_" else shape.marker,
                    "s": 36,
                    "alpha": 0.75,
                    "linewidths": 1.0,
                }
                axis.scatter([r["corrected_bound"] for r in own], y, color=shape.colour, label=shape.label, **paint)
                axis.scatter([r["bound"] for r in own], y, facecolors="none", edgecolors=shape.colour, **paint)
            ends = [v for r in here for v in (r["bound"], r["corrected_bound"])]
            line = [min(ends), max(ends)]
            axis.plot(line, line, color=INK, linewidth=1)
            axis.text(line[1], line[1], "excess = bound ", ha="right", va="bottom", fontsize=9)
            axis.set_title(f"{MODELS[model]} (Theorem {4.5 if model == 'lr' else 4.6})\n{sources(here)}", fontsize=11)
            axis.set(
                xscale="log", yscale="log", xlabel="bound on the excess log-loss", ylabel="measured excess log-loss"
            )
        legend(figure, grid[0], 3)
    alt = (
        "Scatter plot, a panel per model: measured excess log-loss against its bound; below the diagonal a bound holds."
    )
    caption = f"Filled: corrected bound. Hollow: the paper's. Excess below {FLOOR:g} is drawn at the bottom. "
    return [Drawing("bounds", figure, alt, f"{caption}Data: {sources(mine)}.")]


FIGURE = Figure(shown_tables, shown_plots)


register(
    Experiment(
        name="bounds",
        title="Bounds (Theorems 4.5 and 4.6)",
        help="Theorems 4.5 and 4.6 beside the measured excess loss.",
        profiles=by_profile(NUMBERS),
        jobs=jobs,
        figure=FIGURE,
        fields={
            "p": info("parameters", (int,)),
            "radius": info("largest norm of a row"),
            "epsilon": info("|theta' - theta_r|^2 / p of this request"),
            "epsilon_training": info("the same on held-out training pairs, of heads with a network"),
            "excess_loss": metric("mean log-loss of theta' less that of theta_r, on test rows"),
            "excess_retained": metric("the same on the rows that stay"),
            "constant": info("the paper's constant"),
            "bound": info("the paper's bound"),
            "holds": info("whether the larger excess stays below it", (bool,)),
            "lipschitz": info("our constant"),
            "corrected_bound": info("our bound"),
            "corrected_holds": info("whether the larger excess stays below it", (bool,)),
        },
        order=60,
    )
)
