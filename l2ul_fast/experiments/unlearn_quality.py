"""Does it really unlearn? rho of every head beside doing nothing and one Newton step, against a true retrain.

Every request starts from the same fitted unlearner and is compared with a retrain without its rows, converged far below
the change it measures. rho = |theta' - theta_r| / |theta - theta_r|: 1 is what doing nothing scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.results import Record
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.draw import request
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.steps import DirectStep

#: (kind, r) of the requests in the table.
REQUESTS = (("random", 1), ("random", 100), ("random", 1000), ("one class", 1000), ("one cluster", 1000))
#: Method name -> arguments of L2UL.
HEADS: dict[str, dict[str, Any]] = {
    "l2ul": {},
    "l2ul-learned": {"prior": "none"},
    "l2ul-paper": {"head": "direct", "s": 1000},
}

Vector = NDArray[np.float64]


def answer(u: L2UL, ids: NDArray[np.int64]) -> Vector:
    """theta' of a request, without taking it out of u."""
    if isinstance(u.step, DirectStep):
        return u.step.peek(np.sort(ids))
    X, y = u.store.fetch(np.sort(ids))
    return u.step.copy().move(X, y, ids, u.theta, u.n)


def newton(u: L2UL, table: ArrayTable, ids: NDArray[np.int64]) -> Vector:
    """One Newton step on the rows that stay, from first principles (one pass over the data)."""
    r = len(ids)
    X, y = table.take(ids)
    total = r * (u.model.data_gradient(u.theta, X, y) + u.model.penalty_gradient(u.theta))
    left = table.without(ids)
    keep = left.ids()
    hessian = u.model.hessian(u.theta, left.X[keep], left.y[keep])
    return np.asarray(u.theta + np.linalg.solve(hessian, total) / (table.n - r))


def requests_of(table: ArrayTable, draws: int, seed: int) -> Iterator[tuple[str, int, int, NDArray[np.int64]]]:
    """(kind, r, draw, row numbers) of all requests on a table."""
    for kind, r in REQUESTS:
        for draw in range(draws):
            # seeds of their own: never those that pairs were drawn with
            rng = np.random.default_rng([seed, 77, draw, r, REQUESTS.index((kind, r))])
            yield kind, r, draw, request(kind, min(r, table.n // 10), table.X, table.y, rng)


def measure_lr(
    name: str,
    source: str,
    train: ArrayTable,
    test: ArrayTable,
    *,
    draws: int = 10,
    seed: int = 1,
    methods: tuple[str, ...] = tuple(HEADS),
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Iterator[Record]:
    """Records of every method and request on one dataset, logistic regression."""
    fitted = {}
    for method in methods:
        progress(f"{name}: fit {method}", 0, 1)
        fitted[method] = L2UL("lr", random_state=seed, **HEADS[method]).fit(train.X, train.y)
    first = next(iter(fitted.values()))
    theta, model = first.theta, first.model
    base: Record = {
        "experiment": "unlearn-quality", "dataset": name, "source": source, "n": train.n, "d": train.d, "model": "lr",
    }  # fmt: skip
    total = draws * len(REQUESTS)
    before = model.predict(theta, test.X)
    for done, (kind, r, draw, ids) in enumerate(requests_of(train, draws, seed)):
        progress(f"{name}: {kind} {r}", done, total)
        found = model.fit(train.without(ids), start=theta, tol=1e-11)
        truth = model.predict(found.theta, test.X)
        answers: dict[str, Vector] = {"nothing": theta, "retrain": found.theta, "newton": newton(first, train, ids)}
        answers |= {method: answer(u, ids) for method, u in fitted.items()}
        change = float(np.linalg.norm(theta - found.theta))
        for method, answered in answers.items():
            predicted = model.predict(answered, test.X)
            yield {
                **base, "method": method, "kind": kind, "r": len(ids), "seed": seed, "draw": draw,
                "rho": float(np.linalg.norm(answered - found.theta)) / change,
                "accuracy": float((predicted == test.y).mean()), "retrain_accuracy": float((truth == test.y).mean()),
                "disagreement": float((predicted != truth).mean()),
                "nothing_disagreement": float((before != truth).mean()),
                "gradient_norm": found.gradient_norm, "change": change,
            }  # fmt: skip
