"""Figure 2 of the paper: logistic regression, one forgotten row, seven datasets, every method."""

from __future__ import annotations

from collections.abc import Iterator

from l2ul_fast.experiments.arena import PROFILES, comparison
from l2ul_fast.experiments.registry import Context, Experiment, Job, register

REQUESTS = (("random", 1),)


def jobs(context: Context) -> Iterator[Job]:
    """A job for each dataset."""
    for dataset in context.datasets:
        yield comparison(context, dataset, "lr", REQUESTS)


register(
    Experiment(
        name="lr",
        title="Logistic regression (Fig. 2)",
        help="Fig. 2: logistic regression, one row forgotten, every method.",
        profiles=PROFILES,
        jobs=jobs,
        figure="l2ul_fast.report.figures.methods:FIGURE",
        order=10,
    )
)
