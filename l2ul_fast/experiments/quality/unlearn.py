"""`l2ul bench unlearn`: what the unlearning core promises, measured.

    identity        are the sums after requests, bit for bit, those of somebody who never had the rows?
    rho-lr, rho-mlp how far is the answer from a true retrain, by kind of request, and does its estimate of that hold?
    grid            what the widths of the grid trade: rho of one row for requests that leave a pass due
    latency         one row beside an expert's Newton step and torch; a long stream; a durable request
    times           until the answer is usable, and until the rows are erased, of every head beside Retrain
    slow-down       requests chosen to make the server work
    reconstruction  what every known attack gets out of a saved directory
    fit             what third derivatives cost at the fit

Real datasets are used where their files are found, stand-ins otherwise. `--select` takes parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from l2ul_fast.baselines.l2ul import DEFAULT, HEADS
from l2ul_fast.datasets.registry import REGISTRY
from l2ul_fast.experiments.quality import heads, identity
from l2ul_fast.experiments.registry import Context, Experiment, Job, by_profile, register
from l2ul_fast.experiments.speed import requests
from l2ul_fast.measure.records import Number, Text, Truth, Whole, info, metric
from l2ul_fast.measure.records import identity as identity_field

PARTS: dict[str, Callable[[Context], Iterator[Job]]] = {
    "identity": identity.identity_jobs,
    "rho-lr": partial(heads.rho_jobs, model="lr"),
    "rho-mlp": partial(heads.rho_jobs, model="mlp"),
    "grid": heads.grid_jobs,
    "latency": requests.latency_jobs,
    "times": requests.times_jobs,
    "slow-down": requests.slow_jobs,
    "reconstruction": identity.reconstruction_jobs,
    "fit": requests.fit_jobs,
}
#: number: (tiny, quick, paper and full). datasets: those that are measured when none are named. rows: of a dataset in
#: all at most. mlp: (dataset, rows in all); its goals are for higgs with 20,000. cases: of identity; draws:
#: of every kind of request. latency: {shape: rows}, rounds of 100 calls each. attacked: rows of a reconstructed model.
NUMBERS: dict[str, tuple[Any, Any, Any]] = {
    "datasets": (("magic",), ("magic", "adult"), tuple(REGISTRY)),
    "rows": (2500, 40_000, 600_000),
    "cases": (3, 5, 20),
    "draws": (2, 3, 10),
    "mlp": (
        (("magic", 600),),
        (("magic", 20_000),),
        (("magic", 600_000), ("adult", 600_000), ("higgs", 600_000), ("higgs", 20_000), ("covtype", 25_000)),
    ),
    "mlp_draws": (1, 1, 10),
    "latency": (
        {"higgs": 1500},
        {"magic": 19_000, "higgs": 40_000},
        {"magic": 19_000, "higgs": 1_000_000, "covtype": 200_000, "sepsis": 40_000},
    ),
    "rounds": (2, 20, 100),
    "stream": (200, 20_000, 100_000),
    "stream_rows": (1500, 60_000, 1_000_000),
    "durable": ((500,), (10_000, 100_000), (10_000, 100_000, 1_000_000)),
    "durable_draws": (2, 20, 100),
    "times": ({"lr": ("magic",)}, {"lr": ("magic",), "mlp": ("magic",)}, {"lr": ("magic", "higgs"), "mlp": ("magic",)}),
    "heads": ((DEFAULT,), (DEFAULT,), tuple(HEADS)),
    "sizes": ((1,), (1, 100), (1, 100, 1000)),
    "times_draws": (2, 2, 5),
    "m": (60, 200, 1000),
    "slow": (("magic",), ("magic",), ("magic", "adult", "skin", "susy", "higgs")),
    "requests": (60, 1000, 1000),
    "attacked": (400, 1500, 3000),
    "attacks": (1, 1, 3),
    "attacked_models": (("lr",), ("lr",), ("lr", "mlp")),
    "scenes": ((identity.SAVED,), (identity.SAVED,), identity.SCENES),
    "fit_rows": (3000, 200_000, 11_000_000),
    "sums_rows": (2000, 100_000, 1_000_000),
    "repeats": (2, 3, 5),
}
PROFILES = by_profile(NUMBERS)


def jobs(context: Context) -> Iterator[Job]:
    """Those of every part, named after it; the profile's datasets where none are named."""
    if set(context.datasets) >= set(REGISTRY):
        context = replace(context, datasets=context.numbers["datasets"])
    for part, jobs_of in PARTS.items():
        for job in jobs_of(context):
            yield replace(job, name=f"{part} {job.name}")


register(
    Experiment(
        name="unlearn",
        title="What the unlearning core promises",
        help="What the unlearning core promises: identity, rho, error estimates, latency, two times, reconstruction.",
        profiles=PROFILES,
        jobs=jobs,
        figure="l2ul_fast.report.figures.unlearn:FIGURE",
        fields={
            "factor": identity_field(Number, "widths of the grid as a multiple of the rule's"),
            "how": identity_field(Text, "how the attacked unlearner was made"),
            # identity
            "same_point": info("whether both sides have the same anchor and scales", Truth),
            "sums_equal": info("whether the sums in memory are equal, bit for bit; None elsewhere", Truth),
            "file_equal": info("whether the saved files of sums are equal", Truth),
            "theta_equal": info("whether the loaded thetas are equal", Truth),
            "sha256": info("of the saved file of sums", Text),
            "other_sha256": info("of the other side's", Text),
            # rho and grid
            "rho_anew": metric("rho against the fit around an anchor that was trained without the rows"),
            "own_rho": metric("distance to A'(rest) in units of what that moves"),
            "own_equal": info("whether the canonical theta equals that of A'(rest), bit for bit", Truth),
            "refreshed_rho": metric("rho after the pass that was due, or after the seal"),
            "crossing": info("expected share of single rows whose request leaves the cell, to first order"),
            "narrowest": info("width of the grid"),
            "widest": info("width of the grid"),
            # times
            "p50_seconds": metric("median of single calls", "s"),
            "p99_seconds": metric("99th percentile of single calls", "s"),
            "max_seconds": metric("longest single call", "s"),
            "calls": info("timed calls", Whole),
            "threads_used": info("threads of what is timed, where they are fewer than the budget", Whole),
            "ratio": info("p50 over the expert's; of a fit, over order 2 or tabmat; of an attack, error over chance"),
            "first": info("request that a block begins with", Whole),
            "plain_seconds": info("a plain write of 4 KB and fsync", unit="s"),
            "tiers": info("how often answers were found how", (dict,)),
            "largest_error": info("the largest estimate of rho"),
            "refresh_p50_seconds": metric("median of the passes that were due", "s"),
            "parts": info("seconds of the parts of a fit", (dict,)),
            # reconstruction
            "attacks": info("attacks that were tried", Whole),
            "chance": info("relative error of the best guess"),
        },
        in_all=False,
        order=130,
    )
)
