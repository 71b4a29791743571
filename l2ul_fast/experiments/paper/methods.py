"""Figures 2 to 5 of the paper, and every method on a few datasets: a request of each size, answered by every method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from l2ul_fast.experiments.arena import PROFILES, Requests, comparison
from l2ul_fast.experiments.registry import Context, Experiment, Job, register

ONE: Requests = (("random", 1),)
THREE: Requests = (*ONE, ("random", 100), ("random", 1000))


def declare(
    name: str,
    title: str,
    help: str,
    order: int,
    models: tuple[str, ...],
    requests: Requests,
    seconds: float = 20.0,
    default_datasets: tuple[str, ...] = (),
) -> None:
    """Register the comparison of all methods for these models and requests: a job for each dataset and model."""

    def jobs(context: Context) -> Iterator[Job]:
        for dataset in context.datasets:
            for model in models:
                job = comparison(context, dataset, model, requests, seconds=seconds)
                yield job if len(models) == 1 else replace(job, name=f"{dataset} {model}")

    figure = "l2ul_fast.report.figures.methods:FIGURE"
    some = {"default_datasets": default_datasets, "in_all": not default_datasets, "order": order}
    register(Experiment(name, title, help, PROFILES, jobs, figure, **some))  # type: ignore[arg-type]


text = "Fig. 2: logistic regression, one row forgotten, every method."
declare("lr", "Logistic regression (Fig. 2)", text, 10, ("lr",), ONE, seconds=8.0)
text = "Figs. 3-5: the MLP, 1, 100 and 1000 rows forgotten, every method."
declare("mlp", "MLP (Figs. 3–5)", text, 20, ("mlp",), THREE)
text = "Every baseline with 1, 100 and 1000 rows forgotten, LR and MLP."
declare("baselines", "All baselines", text, 35, ("lr", "mlp"), THREE, default_datasets=("magic", "adult"))
