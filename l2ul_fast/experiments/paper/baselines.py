"""Every baseline on a few datasets with 10 or more requests each: what a speed-up is worth depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from l2ul_fast.experiments.arena import PROFILES, comparison
from l2ul_fast.experiments.registry import Context, Experiment, Job, register

REQUESTS = (("random", 1), ("random", 100), ("random", 1000))


def jobs(context: Context) -> Iterator[Job]:
    """A job for each dataset and model."""
    for dataset in context.datasets:
        for model in ("lr", "mlp"):
            job = comparison(context, dataset, model, REQUESTS, seconds=20.0)
            yield replace(job, name=f"{dataset} {model}")


register(
    Experiment(
        name="baselines",
        title="All baselines",
        help="Every baseline with 1, 100 and 1000 rows forgotten, LR and MLP.",
        profiles=PROFILES,
        jobs=jobs,
        figure="l2ul_fast.report.figures.methods:FIGURE",
        default_datasets=("magic", "adult"),
        in_all=False,
        order=35,
    )
)
