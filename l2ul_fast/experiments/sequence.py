"""A stream of requests on one unlearner: does its error grow, how long is a request, what does re-anchoring give?

Requests follow each other; each takes r other rows out for good. At some points of the stream the model is compared
with a retrain without all rows that have left by then. "l2ul-reanchored" is l2ul that trains theta to the optimum of
the rows that stay after every `every` requests (L2UL.refresh(reanchor=True)).

One record per (dataset, model, method, r, requests, seed):
  dataset, source, n (at the start), d, model, method, r, seed
  requests: how many were answered by then; forgotten: rows that have left
  unlearn_seconds, unlearn_seconds_max: median and longest request since the previous record
  rho: |theta - theta_r| / |theta before the first request - theta_r|; drift: |theta - theta_r|; change: the denominator
  residual: largest entry of the retained objective's gradient at theta
  accuracy, retrain_accuracy, disagreement, nothing_disagreement: on test rows, against that retrain
  reanchored: how often so far; reanchor_seconds: median time of it (None before the first)
"nothing" keeps the first theta; "retrain" is a cold retrain at that point, and its unlearn_seconds the time it took.
For the anchored MLP the retrain belongs to the anchor as it is by then. Requests were warmed up on a copy.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from l2ul_fast.baselines import Retrain
from l2ul_fast.experiments.jobs import Done, Job, Setting
from l2ul_fast.experiments.parts import Ids, Numbers, chosen, fitted, numbers_of, pinned, score
from l2ul_fast.experiments.unlearn_quality import HEADS
from l2ul_fast.results import Record
from l2ul_fast.tables import ArrayTable
from l2ul_fast.timing import once
from l2ul_fast.unlearner.l2ul import L2UL

POINTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
PROFILES: dict[str, Numbers] = {
    "quick": {"lr": ("magic",), "mlp": ("magic",), "rows": {"lr": 8000, "mlp": 5000}, "m": 200, "s": 1000,
              "anchor_rows": 500, "requests": 50, "r": {"lr": (1, 10), "mlp": (1,)}, "every": 20,
              "seeds": {"lr": 3, "mlp": 1}},
    "paper": {"lr": ("magic", "adult", "covtype", "higgs"), "mlp": ("magic", "adult"),
              "rows": {"lr": None, "mlp": 60_000}, "m": 1000, "s": None, "anchor_rows": None, "requests": 100,
              "r": {"lr": (1, 10), "mlp": (1, 10)}, "every": 50, "seeds": {"lr": 10, "mlp": 3}},
    "full": {"lr": ("magic", "adult", "covtype", "higgs"), "mlp": ("magic", "adult", "higgs"),
             "rows": {"lr": None, "mlp": 60_000}, "m": 1000, "s": None, "anchor_rows": None, "requests": 1000,
             "r": {"lr": (1, 10), "mlp": (1, 10)}, "every": 100, "seeds": {"lr": 10, "mlp": 10}},
}  # fmt: skip
REANCHORED = "l2ul-reanchored"
#: Method -> arguments of L2UL. The MLP's stream leaves the paper's head out: its rho is in the hundreds at once.
STREAMS: dict[str, dict[str, Any]] = {"l2ul": {}, REANCHORED: {}, **{k: v for k, v in HEADS.items() if k != "l2ul"}}
WARM = 20


def points_of(requests: int) -> list[int]:
    """After which requests the model is looked at."""
    return sorted({k for k in POINTS if k < requests} | {requests})


def stream(n: int, requests: int, r: int, seed: int) -> tuple[Ids, Ids]:
    """(requests, r) row numbers, all different, and some others to warm up with."""
    order = np.random.default_rng([seed, 79]).permutation(n)
    if requests * r + WARM > n // 2:
        raise ValueError(f"{requests} requests of {r} rows are too many for {n} rows")
    return order[: requests * r].reshape(requests, r), order[-WARM:]


def follow(u: L2UL, train: ArrayTable, test: ArrayTable, method: str, plan: Numbers, done: Any) -> Iterator[Record]:
    """Records of one stream; done(method, requests) says which are there already."""
    order, spare = stream(len(train.X), plan["requests"], plan["r"], plan["seed"])
    warm = copy.deepcopy(u)
    for row in spare:
        warm.unlearn([row])
    start, seconds, again = u.theta.copy(), [], []
    for count, ids in enumerate(order, 1):
        begin = time.perf_counter()
        u.unlearn(ids)
        seconds.append(time.perf_counter() - begin)
        if method == REANCHORED and count % plan["every"] == 0:
            again.append(once(lambda: u.refresh(reanchor=True)))
        if count not in points_of(plan["requests"]):
            continue
        names = [method, "nothing", "retrain"] if method == "l2ul" else [method]
        names = [name for name in names if not done(name, count)]
        facts: Record = {
            "requests": count, "forgotten": count * plan["r"], "unlearn_seconds": float(np.median(seconds)),
            "unlearn_seconds_max": max(seconds), "reanchored": len(again),
            "reanchor_seconds": float(np.median(again)) if again else None,
        }  # fmt: skip
        seconds = []
        if not names:
            continue
        left = u.retained()
        target = u.model.fit(left, start=u.theta, tol=1e-11 if u.model.name == "lr" else 1e-9).theta
        for name in names:
            at = {"nothing": start, "retrain": target}.get(name, u.theta)
            if name == "nothing":
                facts |= {"unlearn_seconds": 0.0, "unlearn_seconds_max": 0.0}
            if name == "retrain":
                taken = once(lambda left=left: Retrain().prepare(left, u.model, plan["seed"]))  # type: ignore[misc]
                facts |= {"unlearn_seconds": taken, "unlearn_seconds_max": taken}
            yield {
                "method": name, **facts, "drift": float(np.linalg.norm(at - target)), "residual": u.residual(at),
                **score(u.model, at, start, target, test),
            }  # fmt: skip


def measure(setting: Setting, numbers: Numbers, dataset: str, model: str, done: Done) -> Iterator[Record]:
    label, train, test = setting.tables(dataset, numbers["rows"][model])
    methods = [m for m in STREAMS if model == "lr" or m != "l2ul-paper"]
    for seed in range(numbers["seeds"][model]):
        made: dict[str, L2UL] = {}
        for r in numbers["r"][model]:
            for method in methods:
                key = {"dataset": dataset, "model": model, "r": r, "seed": seed}

                def known(name: str, count: int, key: dict[str, Any] = key) -> bool:
                    return done(method=name, requests=count, **key)

                extra = ("nothing", "retrain") if method == "l2ul" else ()
                if all(known(name, k) for name in (method, *extra) for k in points_of(numbers["requests"])):
                    continue
                own = "l2ul" if method == REANCHORED else method
                if own not in made:
                    made[own] = fitted(train, model, STREAMS[own], numbers, seed)
                plan = {"requests": numbers["requests"], "r": r, "every": numbers["every"], "seed": seed}
                for record in follow(copy.deepcopy(made[own]), train, test, method, plan, known):
                    yield {**key, "source": label, "n": train.n, "d": train.d, **record}


def jobs(setting: Setting) -> list[Job]:
    numbers = numbers_of(setting, "sequence", PROFILES)
    made = []
    for model in ("lr", "mlp"):
        for dataset in chosen(setting, numbers[model]):

            def run(done: Done, dataset: str = dataset, model: str = model) -> Iterator[Record]:
                return measure(setting, numbers, dataset, model, done)

            weight = numbers["seeds"][model] * (4.0 if model == "lr" else 15.0)
            made.append(Job("sequence", f"{dataset} {model}", pinned(setting, run), weight))
    return made
