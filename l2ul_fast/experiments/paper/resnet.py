"""Unlearning ResNet-18 on CIFAR-10: every method beside Retrain and doing nothing, for requests of several sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, register
from l2ul_fast.measure.records import Record, info, metric

#: (method, scope), in the order of the tables. Retrain and doing nothing always run.
METHODS = (
    ("retrain", "all"),
    ("nothing", "all"),
    ("finetune", "all"),
    ("neggrad", "all"),
    ("salun", "all"),
    ("advimp", "all"),
    ("rum", "all"),
    ("rum-published", "all"),
    ("l2ul-network", "head"),
    ("l2ul-expansion", "head"),
)


def _setup(context: Context) -> Any:
    """The sizes and settings of the profile; torch is loaded here and not before."""
    from l2ul_fast.resnet.bench import PROFILES

    setup, augment = PROFILES[context.numbers["setup"]], context.numbers["augment"]
    return setup if augment is None else replace(setup, recipe=replace(setup.recipe, augment=bool(augment)))


def jobs(context: Context) -> Iterator[Job]:
    """A job for each seed: its networks are trained once, and found again after a kill."""
    wanted = [(name, scope) for name, scope in METHODS if name in context.methods or name in ("retrain", "nothing")]
    setup = _setup(context)
    for seed in range(context.numbers["runs"]):
        key = {"dataset": "cifar10", "model": "resnet18", "width": setup.width, "epochs": setup.recipe.epochs}
        key["seed"] = seed
        cells = [{**key, "method": "origin", "scope": "all", "r": 0}]
        cells += [{**key, "method": name, "scope": scope, "r": r} for r in setup.sizes for name, scope in wanted]
        yield Job(f"seed {seed}", tuple(cells), partial(measure, context), seconds=1200.0)


def measure(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """The original network, then every method at each request size."""
    from l2ul_fast.resnet.bench import Bench, Judge, rows_to_forget
    from l2ul_fast.resnet.data import load
    from l2ul_fast.resnet.features import share_right

    setup, folder = _setup(context), context.folder
    assert folder is not None
    images = load(context.raw_dir, setup.rows, setup.test_rows, setup.tune_rows)
    bench = Bench(setup, images, cells[0]["seed"], folder, lambda what: None)
    facts = {"source": images.source, "n": images.n, "d": 3072, "augment": setup.recipe.augment}
    for r, some in groupby(cells, lambda cell: cell["r"]):
        if r == 0:
            right = [
                share_right(o.logits, y.numpy())
                for o, y in zip(bench.seen, (bench.images.y, bench.images.test_y), strict=True)
            ]
            parameters = sum(p.numel() for p in bench.original.network.parameters())
            found = {"retain_accuracy": right[0], "test_accuracy": right[1], "parameters": parameters}
            yield {**next(some), **facts, "answer_seconds": bench.original.seconds, **found}
            continue
        judge = Judge(bench, rows_to_forget(images.n, r, bench.seed))
        for cell in some:
            yield {**cell, **facts, **judge.record(cell["method"], cell["scope"])}


_ACCURACIES = {
    f"{prefix}{part}_accuracy": info(f"share of {rows} answered rightly, {whose}")
    for prefix, whose in (("", "by the answer"), ("retrain_", "by Retrain"))
    for part, rows in (("retain", "retained rows"), ("test", "test rows"))
}
register(
    Experiment(
        name="resnet",
        title="ResNet-18 (CIFAR-10)",
        help="ToW, MIA gap and time of L2UL, RUM, ADV+IMP and others beside Retrain and doing nothing.",
        profiles={
            "tiny": {"setup": "tiny", "runs": 1, "augment": None},
            "quick": {"setup": "local", "runs": 1, "augment": None},
            "paper": {"setup": "paper", "runs": 1, "augment": None},
        },
        jobs=jobs,
        figure="l2ul_fast.report.figures.resnet:FIGURE",
        fields={
            **_ACCURACIES,
            "tow": metric("tug of war: product of one minus the three accuracy gaps to Retrain", better="higher"),
            "mia": info("value of the membership attack on forgotten rows"),
            "retrain_mia": info("the same of Retrain, the target"),
            "mia_gap": metric("distance between them"),
            "mia_degenerate": info("why mia is no number", (str,)),
            "mia_variant": info("which attack", (str,)),
            "forget_disagreement": metric("share of forgotten rows that Retrain answers otherwise"),
            "test_disagreement": metric("share of test rows that Retrain answers otherwise"),
            "expected_forget_accuracy": info("what the unlearner expects Retrain to score on the rows"),
            "head_accuracy": info("share of test rows that the last layer's own model answers rightly"),
            "setup_seconds": metric("time of what requests need besides the network", "s"),
            "augment": info("whether images are flipped and shifted in training", (bool,)),
            "parameters": info("of the network", (int,)),
            "weight": info("strength of the update"),
            "fooled": info("share of adversarial images that fool the network"),
            "reached": info("whether the goal of the update was reached", (bool,)),
            "steps": info("gradient steps", (int,)),
        },
        methods=tuple(dict.fromkeys(name for name, _ in METHODS)),
        datasets=("cifar10",),
        in_all=False,
        order=160,
    )
)
