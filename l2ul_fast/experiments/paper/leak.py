"""Theorem 7.1: how likely a row was among those that U was trained on, and what it costs to take it out of U again.

Predicted: the binomial tail P(k >= k0), as m subsets of s out of n rows each hold a row with probability s / n.
Counted: subsets are drawn by the unlearner's own sampler at the dataset's full size (no rows are needed for that), and
the rows that are in at least k0 of them are counted. The paper quotes k0 = 2; one subset is enough to leak.

Records with part = "probability", one per (dataset, model, method, k, seed):
  dataset, source "sizes only", n, model, method (whose s it is), m, s, k (k0), seed
  predicted, counted: shares of the rows; expected: mean number of subsets that hold a row, m s / n
Records with part = "refresh", one per (dataset, model, method, seed):
  dataset, source, n, d, model, method, r = 1, seed, m, repeats
  unlearn_seconds: one request; refresh_seconds: the `refresh` after it, which leaves nothing of the row in U
  with_refresh: refresh_seconds / unlearn_seconds; pairs_dropped, partitions: medians over requests (of heads that have
    pairs and partitions); head: what the last refresh did; due: share of the requests after which it had to
  status: why there are no times (they are None then)
  pairs_in_use: whether U is trained on pairs at all (the expansion is not)
"retrain" has no U: its refresh takes no time. "nothing" takes no time and removes nothing.
The request path and refresh were called once before they are timed; seconds are medians over `repeats` requests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from scipy.stats import binom

from l2ul_fast.baselines import Retrain
from l2ul_fast.datasets.registry import get_info
from l2ul_fast.errors import UserError
from l2ul_fast.experiments.contenders import HEADS, request
from l2ul_fast.experiments.jobs import DATASETS, Done, Job, Setting
from l2ul_fast.experiments.scoring import Numbers, chosen, fitted, numbers_of, pinned
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import once
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.pairs.plan import draw_pairs

#: Rows per pair of the learned head.
LEARNED_S = 10_000
#: (model, method, s): the paper's two settings and our learned head's. Anchored MLP pairs hold all rows: no lottery.
SUBSETS = (("lr", "l2ul-paper", 1000), ("mlp", "l2ul-paper", 3000), ("lr", "l2ul-learned", LEARNED_S))
PROFILES: dict[str, Numbers] = {
    "quick": {
        "sizes": ("magic", "covtype", "higgs"),
        "m": 1000,
        "k": (1, 2),
        "draws": 1,
        "subsets": SUBSETS,
        "lr": ("magic", "higgs"),
        "mlp": (),
        "rows": 8000,
        "fit_m": 200,
        "s": 1000,
        "anchor_rows": 500,
        "repeats": 5,
        "seeds": 1,
    },
    "paper": {
        "sizes": DATASETS,
        "m": 1000,
        "k": (1, 2),
        "draws": 10,
        "subsets": SUBSETS,
        "lr": DATASETS,
        "mlp": ("magic", "adult"),
        "rows": None,
        "fit_m": 1000,
        "s": None,
        "anchor_rows": None,
        "repeats": 5,
        "seeds": 3,
    },
    "full": {
        "sizes": DATASETS,
        "m": 1000,
        "k": (1, 2, 3, 5),
        "draws": 20,
        "subsets": SUBSETS,
        "lr": DATASETS,
        "mlp": ("magic", "adult", "skin"),
        "rows": None,
        "fit_m": 1000,
        "s": None,
        "anchor_rows": None,
        "repeats": 11,
        "seeds": 5,
    },
}


def predicted(n: int, m: int, s: int, k: int) -> float:
    """P(a row is in at least k of m subsets of s out of n rows)."""
    return float(binom.sf(k - 1, m, s / n))


def times_drawn(n: int, m: int, s: int, seed: int) -> np.ndarray:
    """(n,) in how many of the m subsets each row is, as the unlearner draws them."""
    y = (np.arange(n) % 2).astype(np.uint8)
    ids, _, _ = draw_pairs(n, y, m, s, random_state=[seed, 91])
    return np.bincount(ids.ravel(), minlength=n)


def probabilities(numbers: Numbers, dataset: str, done: Done) -> Iterator[Record]:
    n, m = get_info(dataset).n, numbers["m"]
    for model, method, wanted in numbers["subsets"]:
        s = min(wanted, n // 2)
        for seed in range(numbers["draws"]):
            key = {"dataset": dataset, "part": "probability", "model": model, "method": method, "seed": seed}
            missing = [k for k in numbers["k"] if not done(k=k, **key)]
            counts = times_drawn(n, m, s, seed) if missing else None
            for k in missing:
                yield {
                    **key,
                    "source": "sizes only",
                    "n": n,
                    "m": m,
                    "s": s,
                    "k": k,
                    "predicted": predicted(n, m, s, k),
                    "counted": float((counts >= k).mean()),
                    "expected": m * s / n,
                }


def refreshes(setting: Setting, numbers: Numbers, dataset: str, model: str, done: Done) -> Iterator[Record]:
    key = {"dataset": dataset, "part": "refresh", "model": model}
    methods = ("nothing", "retrain", *HEADS)
    todo = [(seed, m) for seed in range(numbers["seeds"]) for m in methods if not done(method=m, seed=seed, **key)]
    if not todo:
        return
    label, train, _ = setting.tables(dataset, numbers["rows"])
    facts: Record = {**key, "source": label, "n": train.n, "d": train.d, "r": 1, "repeats": numbers["repeats"]}
    for seed, method in todo:
        if method == "nothing":
            found: Record = {"unlearn_seconds": 0.0, "refresh_seconds": 0.0}
        elif method == "retrain":
            found = {"unlearn_seconds": _retrain_seconds(train, model, numbers, seed), "refresh_seconds": 0.0}
        else:
            try:
                found = _refresh_seconds(train, model, method, numbers, seed)
            except UserError as error:
                found = {"unlearn_seconds": None, "refresh_seconds": None, "status": str(error)}
        yield {**facts, "method": method, "seed": seed, **found}


def _retrain_seconds(train: ArrayTable, model: str, numbers: Numbers, seed: int) -> float:
    u = fitted(train, model, {}, numbers | {"m": 20}, seed)
    method, taken = Retrain(), []
    for row in np.random.default_rng([seed, 92]).choice(train.n, numbers["repeats"] + 1, replace=False):
        left = train.without(np.array([row]))
        taken.append(once(lambda left=left: method.prepare(left, u.model, seed)))  # type: ignore[misc]
    return float(np.median(taken[1:]))


def _refresh_seconds(train: ArrayTable, model: str, method: str, numbers: Numbers, seed: int) -> Record:
    u = fitted(train, model, HEADS[method], numbers | {"m": numbers["fit_m"]}, seed)
    taken = []
    for row in np.random.default_rng([seed, 92]).choice(train.n, numbers["repeats"] + 1, replace=False):
        begin = time.perf_counter()
        request(u, np.array([row]))
        middle = time.perf_counter()
        due = u.due is not None
        facts = u.refresh()
        end = time.perf_counter()
        taken.append((middle - begin, end - middle, facts.get("pairs", 0), facts.get("partitions", 0), due))
    answer, refresh, dropped, partitions, _ = (float(v) for v in np.median(taken[1:], axis=0))
    return {
        "m": u.params["m"],
        "unlearn_seconds": answer,
        "refresh_seconds": refresh,
        "with_refresh": refresh / answer,
        "pairs_dropped": dropped,
        "partitions": partitions,
        "head": _done(facts),
        "due": float(np.mean([one[-1] for one in taken[1:]])),
        "pairs_in_use": "pairs" in facts,
    }


def _done(facts: Record) -> str:
    """What a refresh says that it did, in words."""
    return ", ".join(name.replace("_", " ") for name, value in facts.items() if value is True) or "nothing was due"


def jobs(setting: Setting) -> list[Job]:
    numbers = numbers_of(setting, "leak", PROFILES)
    made = []
    for dataset in chosen(setting, numbers["sizes"]):

        def count(done: Done, dataset: str = dataset) -> Iterator[Record]:
            return probabilities(numbers, dataset, done)

        made.append(Job("leak", f"{dataset} probability", pinned(setting, count), float(numbers["draws"])))
    for model in ("lr", "mlp"):
        for dataset in chosen(setting, numbers[model]):

            def run(done: Done, dataset: str = dataset, model: str = model) -> Iterator[Record]:
                return refreshes(setting, numbers, dataset, model, done)

            weight = numbers["seeds"] * (4.0 if model == "lr" else 30.0)
            made.append(Job("leak", f"{dataset} {model} refresh", pinned(setting, run), weight))
    return made
