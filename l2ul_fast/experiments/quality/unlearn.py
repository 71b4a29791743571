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
from l2ul_fast.experiments.registry import Context, Experiment, Job, register
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
#: datasets: those that are measured when none are named. rows: of a dataset in all at most; the real ones have fewer.
#: mlp: (dataset, rows in all); higgs with 20,000 is the size the goals of its times are for. cases: of identity; draws:
#: of every kind of request. latency: {shape: rows}, rounds of 100 calls each. attacked: rows of a reconstructed model.
PROFILES: dict[str, dict[str, Any]] = {
    "tiny": {
        "datasets": ("magic",),
        "rows": 2500,
        "cases": 3,
        "draws": 2,
        "mlp": (("magic", 600),),
        "mlp_draws": 1,
        "latency": {"higgs": 1500},
        "rounds": 2,
        "stream": 200,
        "stream_rows": 1500,
        "durable": (500,),
        "durable_draws": 2,
        "times": {"lr": ("magic",)},
        "heads": (DEFAULT,),
        "sizes": (1,),
        "times_draws": 2,
        "m": 60,
        "slow": ("magic",),
        "requests": 60,
        "attacked": 400,
        "attacks": 1,
        "attacked_models": ("lr",),
        "scenes": (identity.SAVED,),
        "fit_rows": 3000,
        "sums_rows": 2000,
        "repeats": 2,
    },
    "quick": {
        "datasets": ("magic", "adult"),
        "rows": 40_000,
        "cases": 5,
        "draws": 3,
        "mlp": (("magic", 20_000),),
        "mlp_draws": 1,
        "latency": {"magic": 19_000, "higgs": 40_000},
        "rounds": 20,
        "stream": 20_000,
        "stream_rows": 60_000,
        "durable": (10_000, 100_000),
        "durable_draws": 20,
        "times": {"lr": ("magic",), "mlp": ("magic",)},
        "heads": (DEFAULT,),
        "sizes": (1, 100),
        "times_draws": 2,
        "m": 200,
        "slow": ("magic",),
        "requests": 1000,
        "attacked": 1_500,
        "attacks": 1,
        "attacked_models": ("lr",),
        "scenes": (identity.SAVED,),
        "fit_rows": 200_000,
        "sums_rows": 100_000,
        "repeats": 3,
    },
    "full": {
        "datasets": tuple(REGISTRY),
        "rows": 600_000,
        "cases": 20,
        "draws": 10,
        "mlp_draws": 10,
        "mlp": (("magic", 600_000), ("adult", 600_000), ("higgs", 600_000), ("higgs", 20_000), ("covtype", 25_000)),
        "latency": {"magic": 19_000, "higgs": 1_000_000, "covtype": 200_000, "sepsis": 40_000},
        "rounds": 100,
        "stream": 100_000,
        "stream_rows": 1_000_000,
        "durable": (10_000, 100_000, 1_000_000),
        "durable_draws": 100,
        "times": {"lr": ("magic", "higgs"), "mlp": ("magic",)},
        "heads": tuple(HEADS),
        "sizes": (1, 100, 1000),
        "times_draws": 5,
        "m": 1000,
        "slow": ("magic", "adult", "skin", "susy", "higgs"),
        "requests": 1000,
        "attacked": 3_000,
        "attacks": 3,
        "attacked_models": ("lr", "mlp"),
        "scenes": identity.SCENES,
        "fit_rows": 11_000_000,
        "sums_rows": 1_000_000,
        "repeats": 5,
    },
}
PROFILES["paper"] = PROFILES["full"]


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
            "due": info("whether a pass is due; of slow-down: how many requests left one", (bool, int)),
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
