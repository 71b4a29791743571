"""Every baseline on a few datasets with 10 or more requests each: what a speed-up is worth depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from l2ul_fast.experiments.arena import Arena, chosen, compare
from l2ul_fast.experiments.jobs import Done, Job, Setting
from l2ul_fast.experiments.paper.mlp import arena_of
from l2ul_fast.experiments.speed import baselines as retrain_speed
from l2ul_fast.measure.records import Record

REQUESTS = (("random", 1), ("random", 100), ("random", 1000))


#: Rows of the table on which speed is compared with scikit-learn and torch, by profile.
SPEED_ROWS = {"tiny": 2_000, "quick": 1_000_000}


def jobs(setting: Setting) -> list[Job]:
    """A job for each dataset and model, and those that compare our training with scikit-learn's and torch's."""
    found = [
        Job("baselines", f"{name} {model}", partial(measure, setting, name, model), weight=20.0)
        for name in setting.datasets
        for model in ("lr", "mlp")
    ]
    return found + [
        Job("baseline-speed", part, partial(measure_speed, setting, part), weight=20.0)
        for part in ("speed lr", "speed mlp", "speed overhead")
    ]


def measure_speed(setting: Setting, part: str, done: Done) -> Iterator[Record]:
    """How fast Retrain is beside others, and what SISA, DeltaGrad and FYEMU add to their arithmetic."""
    if done(job=part):
        return
    n, k = SPEED_ROWS.get(setting.profile, 1_000_000), setting.threads
    if part == "speed lr":
        found = retrain_speed.measure_lr(n=n, threads=k, repeats=5)
    elif part == "speed mlp":
        found = retrain_speed.measure_mlp(n=min(n, 200_000), threads=k, repeats=5)
    else:
        found = [r for model in ("lr", "mlp") for r in retrain_speed.measure_overhead(model, n=n, threads=k)]
    for record in found:
        yield {**record, "experiment": "baseline-speed", "part": part, "dataset": "synthetic", "source": "synthetic"}


def measure(setting: Setting, name: str, model: str, done: Done) -> Iterator[Record]:
    facts = setting.facts
    if model == "mlp":
        arena = arena_of(setting, name)
    else:
        label, train, test = setting.tables(name, facts["rows"])
        arena = Arena(name, label, train, test, "lr", setting.seed, facts["m"])
    methods = chosen(arena, facts if model == "mlp" else facts | {"wide_skips": ()})
    yield from compare(arena, REQUESTS, facts["runs"], done, methods, None if model == "lr" else facts["cold"])
