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
    for done, (kind, r, draw, ids) in enumerate(requests_of(train, draws, seed)):
        progress(f"{name}: {kind} {r}", done, total)
        found = model.fit(train.without(ids), start=theta, tol=1e-11)
        answers: dict[str, Vector] = {"nothing": theta, "retrain": found.theta, "newton": newton(first, train, ids)}
        answers |= {method: answer(u, ids) for method, u in fitted.items()}
        facts = {"kind": kind, "r": len(ids), "seed": seed, "draw": draw, "gradient_norm": found.gradient_norm}
        yield from _records(base | facts, model, answers, theta, found.theta, test)


def measure_mlp(
    name: str,
    source: str,
    train: ArrayTable,
    test: ArrayTable,
    *,
    draws: int = 10,
    cold_draws: int = 10,
    seed: int = 1,
    methods: tuple[str, ...] = ("l2ul", "l2ul-learned"),
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Iterator[Record]:
    """The same for the anchored MLP: requests outside the anchor rows, then requests that hold some, reported apart.

    The retrain is the stationary point reached from theta; `cold_draws` requests of each kind are also retrained from
    the anchor, to see that both meet.
    """
    fitted = {}
    for method in methods:
        progress(f"{name}: fit {method} (mlp)", 0, 1)
        fitted[method] = L2UL("mlp", random_state=seed, **HEADS[method]).fit(train.X, train.y)
    first = next(iter(fitted.values()))
    theta, model = first.theta, first.model
    anchor_rows = first.step.anchor_rows  # type: ignore[attr-defined]
    plain = {"nothing": theta}
    base: Record = {
        "experiment": "unlearn-quality", "dataset": name, "source": source, "n": train.n, "d": train.d, "model": "mlp",
        "mu": model.mu, "anchor_rows": int(anchor_rows.size),
        "sklearn_accuracy": sklearn_accuracy(train, test, seed),
    }  # fmt: skip
    outside = np.setdiff1d(np.arange(len(train.X)), anchor_rows)
    free = ArrayTable(train.X[outside], train.y[outside], train.classes)
    asked = [(k, r, draw, outside[ids]) for k, r, draw, ids in requests_of(free, draws, seed)]
    starts = np.concatenate([[0], np.cumsum([len(ids) for *_, ids in asked])])
    progress(f"{name}: retrain {len(asked)} requests", 0, 1)
    fit = model.fit((train.X, train.y), start=theta)
    warm = model.anchored_pairs(train.X, train.y, np.concatenate([ids for *_, ids in asked]), starts, fit, tol=1e-10)
    newton_W = np.linalg.inv(fit.hessian)
    for i, (kind, r, draw, ids) in enumerate(asked):
        progress(f"{name}: {kind} {r} (mlp)", i, len(asked))
        target = warm.theta_r[i]
        cold = None
        if draw < cold_draws:
            found = model.fit(train.without(ids), tol=1e-9)
            cold = float(np.linalg.norm(found.theta - target) / np.linalg.norm(theta - target))
        X, y = train.take(ids)
        step = len(ids) * (model.data_gradient(theta, X, y) + model.penalty_gradient(theta)) / (train.n - len(ids))
        answers = {**plain, "retrain": target, "newton": theta + newton_W @ step}
        answers |= {method: answer(u, ids) for method, u in fitted.items()}
        facts = {"kind": kind, "r": len(ids), "draw": draw, "cold_rho": cold, "gradient_norm": warm.gradient_norm[i]}
        yield from _records(base | facts | {"seed": seed}, model, answers, theta, target, test)
    yield from _anchor_requests(base | {"seed": seed}, fitted, train, test, anchor_rows, draws, seed)


def _anchor_requests(
    base: Record, fitted: dict[str, L2UL], train: ArrayTable, test: ArrayTable, anchor_rows: NDArray[np.int64],
    draws: int, seed: int,
) -> Iterator[Record]:  # fmt: skip
    """Requests for anchor rows only: the anchor itself moves first, then theta."""
    for r in (1, 100):
        for draw in range(min(draws, 5)):
            rng = np.random.default_rng([seed, 78, draw, r])
            ids = np.sort(rng.choice(anchor_rows, min(r, anchor_rows.size // 10), replace=False))
            for method, u in fitted.items():
                X, y = u.store.fetch(ids)
                step = u.step.copy()
                answered = step.move(X, y, ids, u.theta, u.n)
                target = step.model.fit(train.without(ids), start=u.theta, tol=1e-9)
                facts = {"kind": "anchor rows", "r": len(ids), "draw": draw, "gradient_norm": target.gradient_norm}
                answers = {"nothing": u.theta, method: answered}
                yield from _records(base | facts, step.model, answers, u.theta, target.theta, test)


def _records(
    base: Record, model: Any, answers: dict[str, Vector], theta: Vector, target: Vector, test: ArrayTable
) -> Iterator[Record]:
    truth, before = model.predict(target, test.X), model.predict(theta, test.X)
    change = float(np.linalg.norm(theta - target))
    for method, answered in answers.items():
        predicted = model.predict(answered, test.X)
        yield {
            **base, "method": method, "rho": float(np.linalg.norm(answered - target)) / change, "change": change,
            "accuracy": float((predicted == test.y).mean()), "retrain_accuracy": float((truth == test.y).mean()),
            "disagreement": float((predicted != truth).mean()),
            "nothing_disagreement": float((before != truth).mean()),
        }  # fmt: skip


def sklearn_accuracy(train: ArrayTable, test: ArrayTable, seed: int) -> float:
    """Test accuracy of scikit-learn's MLPClassifier of the same shape (on at most 50,000 rows, for time)."""
    import warnings

    from sklearn.neural_network import MLPClassifier

    few = np.random.default_rng(seed).permutation(len(train.X))[:50_000]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = MLPClassifier((10,), activation="tanh", max_iter=100, early_stopping=True, random_state=seed)
        peer.fit(train.X[few], train.y[few])
    return float(peer.score(test.X, test.y))


def measure_sequence(
    name: str, source: str, train: ArrayTable, model: str = "lr", requests: int = 100, r: int = 1, seed: int = 1
) -> Iterator[Record]:
    """Many requests one after the other on one unlearner; rho against a retrain without all of them."""
    import time

    u = L2UL(model, random_state=seed).fit(train.X, train.y)
    rng = np.random.default_rng([seed, 79])
    start = u.theta.copy()
    order = rng.permutation(len(train.X))[: requests * r].reshape(requests, r)
    seconds = []
    for done, ids in enumerate(order, 1):
        begin = time.perf_counter()
        u.unlearn(ids)
        seconds.append(time.perf_counter() - begin)
        if done in (1, 10, 30, requests):
            target = u.model.fit(u.retained(), start=u.theta, tol=1e-10 if model == "lr" else 1e-9).theta
            change = float(np.linalg.norm(start - target))
            yield {
                "experiment": "sequence", "dataset": name, "source": source, "n": train.n, "d": train.d,
                "model": model, "method": "l2ul", "r": r, "requests": done, "seed": seed, "reanchored": 0,
                "rho": float(np.linalg.norm(u.theta - target)) / change, "median_us": float(np.median(seconds)) * 1e6,
            }  # fmt: skip
