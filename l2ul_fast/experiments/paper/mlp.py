"""Figures 3 to 5 of the paper: the MLP, 1, 100 and 1000 forgotten rows, seven datasets, every method."""

from __future__ import annotations

from collections.abc import Iterator

from l2ul_fast.experiments.arena import PROFILES, comparison
from l2ul_fast.experiments.registry import Context, Experiment, Job, register

REQUESTS = (("random", 1), ("random", 100), ("random", 1000))


def jobs(context: Context) -> Iterator[Job]:
    """A job for each dataset."""
    for dataset in context.datasets:
        yield comparison(context, dataset, "mlp", REQUESTS, seconds=20.0)


register(
    Experiment(
        name="mlp",
        title="MLP (Figs. 3–5)",
        help="Figs. 3-5: the MLP, 1, 100 and 1000 rows forgotten, every method.",
        profiles=PROFILES,
        jobs=jobs,
        figure="l2ul_fast.report.figures.methods:FIGURE",
        order=20,
    )
)
