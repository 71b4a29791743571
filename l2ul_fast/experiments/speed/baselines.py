"""How fast retraining is, beside scikit-learn and torch, and what the baselines add to their own arithmetic.

Logistic regression: everybody goes on until the gradient norm is below the same tolerance, and the norm reached is
recorded. The MLP: everybody runs Adam for the same epochs with the same batch size, and the loss reached is recorded.
Candidates take turns, with the same number of threads. A model this small can be slower in torch with more threads than
with one: torch therefore also runs with one thread, as a candidate of its own; compare with the faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.baselines import DeltaGrad, Fyemu, Recipe, Retrain, Sisa
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import interleave
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import ArrayTable
from l2ul_kernels import threads as thread_budget

LAM = 1e-3


def make_rows(n: int, d: int, seed: int = 0) -> ArrayTable:
    """A table of HIGGS's shape: standardised features, a curved border, noisy labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    score = X @ rng.normal(size=d) / d**0.5 + np.tanh(X[:, 0] * X[:, 1])
    return ArrayTable(X, (score + rng.normal(size=n) > 0).astype(np.uint8), [0, 1])


def measure_lr(
    n: int = 1_000_000,
    d: int = 28,
    threads: int = 2,
    repeats: int = 3,
    tol: float = 1e-8,
    solvers: tuple[str, ...] = ("newton-cholesky", "lbfgs"),
) -> list[Record]:
    """Records of a cold fit of all rows: method, seconds, gradient_norm reached, ratio to ours."""
    from sklearn.linear_model import LogisticRegression

    table, model = make_rows(n, d), LogisticModel(d, lam=LAM)
    X64, found = table.X.astype(np.float64), {}

    def ours() -> None:
        method = Retrain(tol=tol)
        method.prepare(table, model, 0)
        found["ours"] = method.theta

    def peer(solver: str, rows: NDArray[Any]) -> None:
        # scikit-learn minimises C * sum + |w|^2 / 2; its tolerance is on the mean gradient
        fitted = LogisticRegression(C=1 / (LAM * n), solver=solver, tol=tol, max_iter=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted.fit(rows, table.y)
        found[solver] = np.append(fitted.coef_[0], fitted.intercept_).astype(np.float64)

    calls: dict[str, Callable[[], object]] = {"ours": ours}
    for solver in solvers:
        calls[solver] = lambda solver=solver: peer(solver, X64)  # type: ignore[misc]
    with thread_budget(threads):
        model.fit((table.X[:1000], table.y[:1000]))
        times = interleave(calls, repeats)
    base = {"experiment": "retrain-speed", "model": "lr", "n": n, "d": d, "threads": threads, "tol": tol}
    return [
        {
            **base,
            "method": name,
            "seconds": times[name].median,
            "spread": times[name].spread,
            "gradient_norm": float(np.abs(model.gradient(np.asarray(found[name]), table.X, table.y)).max()),
            "ratio": times[name].median / times["ours"].median,
        }
        for name in calls
    ]


def torch_mlp(table: ArrayTable, start: NDArray[np.float64], h: int, recipe: Recipe) -> NDArray[np.float64]:
    """theta after Adam in torch: one module, rows in memory, batches by slicing a permutation."""
    import torch

    d = table.d
    X, y = torch.from_numpy(table.X), torch.from_numpy(table.y.astype(np.float32))
    net = torch.nn.Sequential(torch.nn.Linear(d, h), torch.nn.Tanh(), torch.nn.Linear(h, 1))
    W1, b1, w2, b2 = np.split(start.astype(np.float32), np.cumsum([h * d, h, h]))
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), (W1.reshape(h, d), b1, w2.reshape(1, h), b2), strict=True):
            parameter.copy_(torch.from_numpy(value))
    adam = torch.optim.Adam(net.parameters(), lr=recipe.rate, weight_decay=LAM, fused=True)
    loss_of, n = torch.nn.BCEWithLogitsLoss(), len(X)
    generator = torch.Generator().manual_seed(0)
    for _ in range(recipe.epochs):
        order = torch.randperm(n, generator=generator)
        Xs, ys = X[order], y[order]  # one gather an epoch: faster than one a batch
        for lo in range(0, n, recipe.batch):
            adam.zero_grad(set_to_none=True)
            loss_of(net(Xs[lo : lo + recipe.batch])[:, 0], ys[lo : lo + recipe.batch]).backward()
            adam.step()
    return np.concatenate([p.detach().numpy().astype(np.float64).ravel() for p in net.parameters()])


def sklearn_mlp(table: ArrayTable, start: NDArray[np.float64], h: int, recipe: Recipe) -> NDArray[np.float64]:
    """theta after MLPClassifier with the same start, epochs, batch size and rate."""
    from sklearn.neural_network import MLPClassifier

    d = table.d
    peer = MLPClassifier(
        (h,),
        activation="tanh",
        alpha=LAM * recipe.batch,
        batch_size=recipe.batch,
        learning_rate_init=recipe.rate,
        max_iter=1,
        n_iter_no_change=10**6,
        tol=0.0,
        random_state=0,
        warm_start=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer.fit(table.X[: recipe.batch], table.y[: recipe.batch])  # makes the arrays; then our start goes in
        W1, b1, w2, b2 = np.split(start.astype(np.float32), np.cumsum([h * d, h, h]))
        peer.coefs_, peer.intercepts_ = [W1.reshape(h, d).T.copy(), w2.reshape(h, 1).copy()], [b1.copy(), b2.copy()]
        peer.max_iter = recipe.epochs
        peer.fit(table.X, table.y)
    W1, w2 = peer.coefs_
    b1, b2 = peer.intercepts_
    return np.concatenate([W1.T.ravel(), b1, w2.ravel(), b2]).astype(np.float64)


def measure_mlp(
    n: int = 200_000,
    d: int = 28,
    h: int = 10,
    epochs: int = 2,
    batch: int = 128,
    threads: int = 2,
    repeats: int = 3,
    peers: tuple[str, ...] = ("torch", "torch, 1 thread", "sklearn"),
) -> list[Record]:
    """Records of an Adam run: method, seconds, loss reached (objective over all rows), ratio to ours."""
    if "torch" in peers:
        import torch  # noqa: F401 - before the budget, which sets the threads of what is imported
    table, model = make_rows(n, d), MLPModel(d, h=h, lam=LAM)
    recipe = Recipe(epochs, batch, 1e-3, adam=True, decay=False)
    method, found = Retrain(solver="minibatch", recipe=recipe), {}

    def ours() -> None:
        method.prepare(table, model, 0)
        found["ours"] = method.theta

    def torch_run() -> None:
        found["torch"] = torch_mlp(table, model.start(0), h, recipe)

    def sklearn_run() -> None:
        found["sklearn"] = sklearn_mlp(table, model.start(0), h, recipe)

    def torch_alone() -> None:
        with thread_budget(1):
            torch_run()
            found["torch, 1 thread"] = found["torch"]

    known: dict[str, Callable[[], object]] = {
        "ours": ours,
        "torch": torch_run,
        "torch, 1 thread": torch_alone,
        "sklearn": sklearn_run,
    }
    with thread_budget(threads):
        small = make_rows(500, d)
        Retrain(solver="minibatch", recipe=recipe).prepare(small, model, 0)
        if "torch" in peers:
            torch_mlp(small, model.start(0), h, recipe)
        times = interleave({name: known[name] for name in ("ours", *peers)}, repeats)
    base = {
        "experiment": "retrain-speed",
        "model": "mlp",
        "n": n,
        "d": d,
        "h": h,
        "epochs": epochs,
        "batch": batch,
        "threads": threads,
    }
    return [
        {
            **base,
            "method": name,
            "seconds": times[name].median,
            "spread": times[name].spread,
            "loss": model.loss(np.asarray(found[name]), table.X, table.y),
            "ratio": times[name].median / times["ours"].median,
        }
        for name in ("ours", *peers)
    ]


#: Calls of a request timed together: a turn should last about as long as the gradients it is compared with, so that
#: waking threads and filling caches weigh the same.
CALLS = {"sisa": 3, "deltagrad": 5, "fyemu": 20}


def measure_overhead(
    model_name: str = "lr", n: int = 1_000_000, d: int = 28, threads: int = 2, repeats: int = 5
) -> list[Record]:
    """Records of SISA, DeltaGrad and FYEMU: seconds of a request, of its own arithmetic, and the overhead of one over
    the other. Its arithmetic: as many row gradients as it takes, through the same gradient kernel, nothing around them;
    with all threads where its batches can use them, with one for FYEMU, whose steps of 64 rows follow each other. For
    FYEMU the compiled loop that makes its noise is added: those are Adam steps on rows, not on the model."""
    table = make_rows(n, d)
    model: Any = LogisticModel(d, lam=LAM) if model_name == "lr" else MLPModel(d, lam=LAM)
    methods: list[tuple[Any, int]] = [
        (Sisa(recipe=Recipe(epochs=5, batch=1024)), 100),
        (DeltaGrad(epochs=3 if model_name == "mlp" else 10), 100),
        (Fyemu(), 100),
        (Fyemu(), 1000),
    ]
    records: list[Record] = []
    theta, few = 0.1 * np.ones(model.size), slice(0, 2000)
    with thread_budget(threads):
        model.fit = lambda rows, start=None, tol=0.0: type("Fit", (), {"theta": theta})  # training is not measured
        for method, r in methods:
            name, forget = method.name, np.arange(0, n, n // min(r, n))
            method.prepare(table, model, 0)
            visits = _visits(name, method, method.unlearn(forget).facts, n)
            rows = (table.X[few], table.y[few]) if name == "fyemu" else (table.X, table.y)
            calls: dict[str, Callable[[], object]] = {
                "request": partial(method.unlearn, forget),
                "gradients": partial(model.data_gradient, theta, *rows),
            }
            if name == "fyemu":
                calls["noise"] = partial(method.make_noise, table.y[forget].astype(np.int64))
            turns = repeats * (5 if name == "fyemu" else 1)  # short ones: more turns for the same time
            times = interleave(calls, turns, {"request": CALLS[name], "gradients": 20, "noise": 20})
            arithmetic = visits * times["gradients"].median / len(rows[0])
            if name == "fyemu":
                arithmetic += times["noise"].median
            records.append(
                {
                    "experiment": "baseline-overhead",
                    "model": model_name,
                    "method": name,
                    "n": n,
                    "d": d,
                    "r": len(forget),
                    "threads": threads,
                    "seconds": times["request"].median,
                    "spread": times["request"].spread,
                    "visits": visits,
                    "arithmetic_seconds": arithmetic,
                    "overhead": times["request"].median / arithmetic - 1,
                }
            )
    return records


def _visits(name: str, method: Any, facts: Record, n: int) -> int:
    """Row gradients that the request needs."""
    if name == "sisa":
        return int(facts["sample_visits"])
    if name == "deltagrad":
        return int(facts["exact_steps"]) * min(method.recipe.batch, n)
    return int(2 * facts["retain_rows"] + method.copies * facts["noise_rows"])
