"""A stream of requests on one unlearner: does its error grow, how long is a request, what does refreshing give?

Requests follow each other; each takes r other rows out for good. At some points of the stream the model is compared
with a retrain without all rows that have left by then. The answers of l2ul-expansion depend on the set of rows that
have left, not on how they left: no error adds up, and `due` says when its point should be made anew. "l2ul-refreshed"
is the same with `refresh` after every `every` requests.

One record per (dataset, model, method, r, requests, seed):
  dataset, source, n (at the start), d, model, method, r, seed
  requests: how many were answered by then; forgotten: rows that have left
  unlearn_seconds, unlearn_seconds_max: median and longest request since the previous record
  rho: |theta - theta_r| / |theta before the first request - theta_r|; drift: |theta - theta_r|; change: the denominator
  residual: largest entry of the retained objective's gradient at theta
  accuracy, retrain_accuracy, disagreement, nothing_disagreement: on test rows, against that retrain
  error: what the unlearner itself estimates rho to be (None where it cannot); due: whether a refresh should follow
  refreshes: how many so far; refresh_seconds: median time of it (None before the first)
"nothing" keeps the first theta; "retrain" is a cold retrain at that point, and its unlearn_seconds the time it took.
For an anchored MLP the retrain belongs to the anchor that it has by then. Requests were warmed up on a copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from l2ul_fast.baselines import Retrain
from l2ul_fast.experiments.contenders import DEFAULT, HEADS, plain, quiet, request
from l2ul_fast.experiments.jobs import Done, Job, Setting
from l2ul_fast.experiments.scoring import Ids, Numbers, chosen, fitted, numbers_of, pinned, score
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import once
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.result import finite

POINTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
PROFILES: dict[str, Numbers] = {
    "quick": {
        "lr": ("magic",),
        "mlp": ("magic",),
        "rows": {"lr": 8000, "mlp": 5000},
        "m": 200,
        "s": 1000,
        "anchor_rows": 500,
        "requests": 50,
        "r": {"lr": (1, 10), "mlp": (1,)},
        "every": 20,
        "seeds": {"lr": 3, "mlp": 1},
    },
    "paper": {
        "lr": ("magic", "adult", "covtype", "higgs"),
        "mlp": ("magic", "adult"),
        "rows": {"lr": None, "mlp": 60_000},
        "m": 1000,
        "s": None,
        "anchor_rows": None,
        "requests": 100,
        "r": {"lr": (1, 10), "mlp": (1, 10)},
        "every": 50,
        "seeds": {"lr": 10, "mlp": 3},
    },
    "full": {
        "lr": ("magic", "adult", "covtype", "higgs"),
        "mlp": ("magic", "adult", "higgs"),
        "rows": {"lr": None, "mlp": 60_000},
        "m": 1000,
        "s": None,
        "anchor_rows": None,
        "requests": 1000,
        "r": {"lr": (1, 10), "mlp": (1, 10)},
        "every": 100,
        "seeds": {"lr": 10, "mlp": 10},
    },
}
REFRESHED = "l2ul-refreshed"
#: Method -> arguments of L2UL. The MLP's stream leaves the paper's heads out: their rho is in the hundreds at once.
STREAMS: dict[str, dict[str, Any]] = {DEFAULT: {}, REFRESHED: {}, **HEADS}
PAPERS = ("l2ul-kme", "l2ul-paper")
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
    warm = u.copy()
    for row in spare:
        request(warm, np.array([row]))
    start, seconds, again = u.theta.copy(), [], []
    for count, ids in enumerate(order, 1):
        with quiet():
            begin = time.perf_counter()
            found = u.unlearn(plain(ids))
            seconds.append(time.perf_counter() - begin)
        if method == REFRESHED and count % plan["every"] == 0:
            again.append(once(u.refresh))
        if count not in points_of(plan["requests"]):
            continue
        names = [method, "nothing", "retrain"] if method == DEFAULT else [method]
        names = [name for name in names if not done(name, count)]
        facts: Record = {
            "requests": count,
            "forgotten": count * plan["r"],
            "unlearn_seconds": float(np.median(seconds)),
            "unlearn_seconds_max": max(seconds),
            "refreshes": len(again),
            "refresh_seconds": float(np.median(again)) if again else None,
            **finite({"error": found.error, "due": found.due is not None}),
        }
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
                "method": name,
                **facts,
                "drift": float(np.linalg.norm(at - target)),
                "residual": u.residual(at),
                **score(u.model, at, start, target, test),
            }


def measure(setting: Setting, numbers: Numbers, dataset: str, model: str, done: Done) -> Iterator[Record]:
    label, train, test = setting.tables(dataset, numbers["rows"][model])
    methods = [m for m in STREAMS if model == "lr" or m not in PAPERS]
    for seed in range(numbers["seeds"][model]):
        made: dict[str, L2UL] = {}
        for r in numbers["r"][model]:
            for method in methods:
                key = {"dataset": dataset, "model": model, "r": r, "seed": seed}

                def known(name: str, count: int, key: dict[str, Any] = key) -> bool:
                    return done(method=name, requests=count, **key)

                extra = ("nothing", "retrain") if method == DEFAULT else ()
                if all(known(name, k) for name in (method, *extra) for k in points_of(numbers["requests"])):
                    continue
                own = DEFAULT if method == REFRESHED else method
                if own not in made:
                    made[own] = fitted(train, model, STREAMS[own], numbers, seed)
                plan = {"requests": numbers["requests"], "r": r, "every": numbers["every"], "seed": seed}
                for record in follow(made[own].copy(), train, test, method, plan, known):
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
