"""How fast training pairs are made, beside scikit-learn and torch.func.vmap, taking turns.

A pair is two fits: of s rows, and of the retained ones of them, from the first.

Logistic regression: batched Newton against scikit-learn's lbfgs through joblib. Ours ("newton") runs down to the median
gradient norm that lbfgs reached, and once more to 1e-10.

The MLP, d-10-1 with tanh: everybody runs Adam with batches of 128, down to the same loss. Ours and vmap run the same
schedule (a learning rate that falls as a cosine, the second fit warm-started); scikit-learn has no cosine, so it runs
its own constant rate for as many epochs as it needs. The peers make fewer pairs and are scaled up by their number: see
`pairs` in the records.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, by_profile, register
from l2ul_fast.measure.records import Record, info
from l2ul_fast.measure.timing import interleave, once
from l2ul_fast.models.mlp import MLPModel
from l2ul_kernels.linear.logistic import logistic_fit_pairs, logistic_gradient

LAM, D = 1e-3, 28
H, BATCH, EPOCHS, EPOCHS_RETAINED, RATE, RATE_RETAINED = 10, 128, 60, 20, 0.01, 0.002
#: lbfgs stops by its gradient tolerance or when the loss stands still at rounding level, whichever comes first. It gets
#: rows in double precision: on float32 rows scikit-learn computes in float32 and stalls near 1e-5.
SKLEARN_TOL = 1e-9
SKLEARN_EPOCHS = (50, 10)
#: Pairs that vmap makes: it needs large batches to be fast.
VMAP_PAIRS = 256
LR, MLP = ("newton", "newton-1e-10", "sklearn-lbfgs"), ("ours", "sklearn", "vmap")


def jobs(context: Context) -> Iterator[Job]:
    """Both models."""
    for model, methods, measure in (("lr", LR, measure_lr), ("mlp", MLP, measure_mlp)):
        s = context.numbers["s"][model]
        base = {"dataset": "synthetic", "d": D, "model": model, "m": context.numbers["m"], "s": s}
        cells = tuple({**base, "method": method} for method in methods)
        yield Job(model, cells, partial(measure, context), seconds=30.0 if model == "lr" else 120.0)


# Logistic regression --------------------------------------------------------------------------------------------------


def make_lr(m: int, s: int, d: int, seed: int = 0) -> tuple[Any, Any, NDArray[np.int64], NDArray[np.int64]]:
    """(X, y, ids, n_forget): m subsets of s rows out of 20 s, features correlated, n_forget log-uniform in 1..s/10."""
    rng = np.random.default_rng(seed)
    n = 20 * s
    X = rng.normal(size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d)) / np.sqrt(d))
    X = ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32)
    score = X @ rng.normal(size=d) * 1.5 / np.sqrt(d)
    y = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(np.uint8)
    ids = np.stack([rng.choice(n, s, replace=False) for _ in range(m)])
    n_forget = np.exp(rng.uniform(0, np.log(max(2, s // 10)), m)).astype(np.int64)
    return X, y, ids, n_forget


def _sklearn_some(X: Any, y: Any, ids: Any, n_forget: Any) -> NDArray[np.float64]:
    """(k, 2, p) parameters of k pairs; the second fit starts from the first, as ours does."""
    from sklearn.linear_model import LogisticRegression

    out = np.empty((len(ids), 2, X.shape[1] + 1))
    with threadpool_limits(1):
        for i, (rows, r) in enumerate(zip(ids, n_forget, strict=True)):
            model = LogisticRegression(solver="lbfgs", tol=SKLEARN_TOL, max_iter=10_000, warm_start=True)
            for part in range(2):
                use = rows[r:] if part else rows
                model.C = 1 / (LAM * len(use))
                model.fit(X[use], y[use])
                out[i, part, :-1], out[i, part, -1] = model.coef_[0], model.intercept_[0]
    return out


def _norms(X: Any, y: Any, ids: Any, n_forget: Any, thetas: NDArray[np.float64]) -> NDArray[np.float64]:
    """(m, 2) largest entry of the gradient with penalty at thetas (m, 2, p)."""
    out = np.empty(thetas.shape[:2])
    for i, (rows, r) in enumerate(zip(ids, n_forget, strict=True)):
        for part in range(2):
            use, theta = rows[r:] if part else rows, thetas[i, part]
            out[i, part] = np.abs(logistic_gradient(X[use], y[use], theta) + LAM * np.append(theta[:-1], 0)).max()
    return out


def measure_lr(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Fits of m pairs, with the gradient norms that were reached."""
    from joblib import Parallel, delayed

    m, s, k = cells[0]["m"], cells[0]["s"], context.threads
    X, y, ids, n_forget = make_lr(m, s, D)
    X64 = X.astype(np.float64)
    parts = np.array_split(np.arange(m), 4 * k)
    with Parallel(n_jobs=k) as pool:

        def peer() -> NDArray[np.float64]:
            return np.concatenate(pool(delayed(_sklearn_some)(X64, y, ids[j], n_forget[j]) for j in parts))

        reached = _norms(X, y, ids, n_forget, peer())
        match = float(np.median(reached))

        def ours(tol: float) -> Any:
            return logistic_fit_pairs(X, y, ids, n_forget, LAM, tol)

        norms = {"newton": ours(match)[2], "newton-1e-10": ours(1e-10)[2], "sklearn-lbfgs": reached}
        inner = max(1, int(0.2 / once(lambda: ours(match))))
        calls = {"newton": lambda: ours(match), "newton-1e-10": lambda: ours(1e-10), "sklearn-lbfgs": peer}
        times = interleave(calls, context.numbers["repeats"], {"newton": inner, "newton-1e-10": inner})
    for cell in cells:
        name = cell["method"]
        yield {
            **cell,
            "source": "synthetic",
            **times[name].facts,
            "ratio": times[name].median / times["newton"].median,
            "norm_median": float(np.median(norms[name])),
            "norm_max": float(norms[name].max()),
        }


# The MLP --------------------------------------------------------------------------------------------------------------


def make_mlp(m: int, s: int, d: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """X (n, d), y (n,), ids (m, s), n_forget (m,): a problem that is not linear and not separable."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(4 * s, d)).astype(np.float32)
    score = X @ rng.normal(size=d) / d**0.5 + 2 * np.tanh(X @ rng.normal(size=d)) * np.tanh(X[:, 0])
    y = (score + 0.5 * rng.normal(size=4 * s) > 0).astype(np.uint8)
    ids = np.stack([rng.permutation(4 * s)[:s] for _ in range(m)])
    return X, y, ids, np.exp(rng.uniform(0, np.log(s / 10), m)).astype(np.int64)


def flatten(W1: Any, b1: Any, W2: Any, b2: Any) -> NDArray[np.float64]:
    """Weights as scikit-learn and torch keep them, (d, h), (h,), (h, 1), (1,), as one theta."""
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in (np.asarray(W1).T, b1, W2, b2)])


def adam_classifier(epochs: int, rate: float) -> Any:
    """scikit-learn's MLP with the recipe of everybody else; fits go on from the one before."""
    from sklearn.neural_network import MLPClassifier

    adam = {"alpha": LAM * BATCH, "batch_size": BATCH, "learning_rate_init": rate, "max_iter": epochs, "tol": 0.0}
    return MLPClassifier((H,), activation="tanh", n_iter_no_change=10**6, warm_start=True, random_state=0, **adam)


def sklearn_pairs(X: Any, y: Any, ids: Any, n_forget: Any, epochs: tuple[int, int], jobs: int) -> NDArray[np.float64]:
    """theta (m, 2, p) of both fits by MLPClassifier through joblib; the second fit goes on from the first."""
    from joblib import Parallel, delayed

    def pair(rows: Any, r: int) -> list[NDArray[np.float64]]:
        peer, out = adam_classifier(epochs[0], RATE), []
        for chosen, count, rate in ((rows, epochs[0], RATE), (rows[r:], epochs[1], RATE_RETAINED)):
            peer.set_params(max_iter=count, learning_rate_init=rate)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                peer.fit(X[chosen], y[chosen])
            out.append(flatten(*[a for pair in zip(peer.coefs_, peer.intercepts_, strict=True) for a in pair]))
        return out

    return np.array(Parallel(n_jobs=jobs)(delayed(pair)(i, r) for i, r in zip(ids, n_forget, strict=True)))


def vmap_pairs(
    X: Any, y: Any, ids: Any, n_forget: Any, start: Any, epochs: tuple[int, int] = (EPOCHS, EPOCHS_RETAINED)
) -> NDArray[np.float64]:
    """theta (m, 2, p): all models as one batch, gradients by torch.func.vmap(grad), the same batches as ours."""
    import torch
    from torch.func import grad, vmap

    m, s = ids.shape
    d, batches = X.shape[1], -(-s // BATCH)
    W1, b1, w2, b2 = np.split(start, np.cumsum([H * d, H, H]))
    first = {"V": W1.reshape(H, d).T, "c": b1, "w": w2, "b": b2}
    theta = {k: torch.tensor(np.repeat(v[None], m, 0), dtype=torch.float32) for k, v in first.items()}

    def loss(t: Any, x: Any, label: Any, weight: Any) -> Any:
        z = torch.tanh(x @ t["V"] + t["c"]) @ t["w"] + t["b"]
        each = torch.nn.functional.softplus(z) - label * z
        return (weight * each).sum() / weight.sum() + 0.5 * LAM * sum((v * v).sum() for v in t.values())

    gradients: Any = vmap(grad(loss))
    rows = [
        (torch.from_numpy(X[ids[:, k::batches]]), torch.from_numpy(y[ids[:, k::batches]]).float())
        for k in range(batches)
    ]
    kept = [torch.from_numpy(np.arange(k, s, batches) >= n_forget[:, None]).float() for k in range(batches)]
    everything = [torch.ones_like(w) for w in kept]
    out = []
    rng = np.random.default_rng(0)
    for weights, count, rate in ((everything, epochs[0], RATE), (kept, epochs[1], RATE_RETAINED)):
        adam = torch.optim.Adam(list(theta.values()), lr=rate, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, count * batches)
        for _ in range(count):
            for k in rng.permutation(batches):
                for name, g in gradients(theta, *rows[k], weights[k]).items():
                    theta[name].grad = g
                adam.step()
                schedule.step()
        out.append([flatten(*(theta[k][i].numpy() for k in ("V", "c", "w", "b"))) for i in range(m)])
    return np.array(out).transpose(1, 0, 2)


def mean_losses(model: MLPModel, thetas: Any, X: Any, y: Any, ids: Any, n_forget: Any) -> tuple[float, float]:
    """Mean objective of the full and of the retained fits."""
    full = [model.loss(t[0], X[i], y[i]) for t, i in zip(thetas, ids, strict=True)]
    rest = [model.loss(t[1], X[i[r:]], y[i[r:]]) for t, i, r in zip(thetas, ids, n_forget, strict=True)]
    return float(np.mean(full)), float(np.mean(rest))


def measure_mlp(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Fits of m pairs (of the peers: of fewer), with the losses reached and ours on the same pairs beside."""
    m, s, k = cells[0]["m"], cells[0]["s"], context.threads
    counts = {"ours": m, "sklearn": min(2 * k, m), "vmap": min(VMAP_PAIRS, m)}
    X, y, ids, n_forget = make_mlp(m, s, D)
    model = MLPModel(D, h=H, lam=LAM)
    start = model.start(0)
    thetas: dict[str, Any] = {}

    def ours(pairs: int, epochs: int = EPOCHS) -> Any:
        rates: dict[str, Any] = {"rate": RATE, "rate_retained": RATE_RETAINED, "epochs_retained": EPOCHS_RETAINED}
        fits = model.fit_pairs(X, y, ids[:pairs], n_forget[:pairs], epochs=epochs, batch=BATCH, **rates)
        return np.stack([fits.theta, fits.theta_r], axis=1)

    makers: dict[str, Callable[[int], Any]] = {
        "ours": ours,
        "sklearn": lambda pairs: sklearn_pairs(X, y, ids[:pairs], n_forget[:pairs], SKLEARN_EPOCHS, k),
        "vmap": lambda pairs: vmap_pairs(X, y, ids[:pairs], n_forget[:pairs], start),
    }

    def run(name: str) -> None:
        thetas[name] = makers[name](counts[name])

    ours(1, 1)  # compiles
    sklearn_pairs(X, y, ids[:k, :200], n_forget[:k] * 0, (1, 1), k)  # starts the worker processes
    vmap_pairs(X, y, ids[:2], n_forget[:2], start, (1, 1))
    times = interleave({name: partial(run, name) for name in makers}, min(3, context.numbers["repeats"]))
    for cell in cells:
        name, made = cell["method"], counts[cell["method"]]
        full, rest = mean_losses(model, thetas[name], X, y, ids[:made], n_forget[:made])
        same = mean_losses(model, thetas["ours"][:made], X, y, ids[:made], n_forget[:made])
        seconds = times[name].median * m / made
        yield {
            **cell,
            "source": "synthetic",
            "pairs": made,
            **times[name].facts,
            "seconds": seconds,
            "loss": full,
            "loss_retained": rest,
            "loss_ours": same[0],
            "loss_ours_retained": same[1],
            "ratio": seconds / times["ours"].median,
        }


NUMBERS = {"m": (6, 200, 1000), "s": ({"lr": 100, "mlp": 200}, {"lr": 1000, "mlp": 3000}), "repeats": (1, 3, 5)}

register(
    Experiment(
        name="pairs",
        title="Training pairs of the learned heads",
        help="Training pairs of the learned heads beside scikit-learn and torch.",
        profiles=by_profile(NUMBERS),
        jobs=jobs,
        figure="l2ul_fast.report.figures.unlearn:PAIRS",
        fields={
            "ratio": info("seconds over those of ours"),
            "norm_median": info("median gradient norm reached"),
            "norm_max": info("largest gradient norm reached"),
            "pairs": info("pairs really made", (int,)),
            "loss": info("mean objective of the full fits"),
            "loss_retained": info("mean objective of the retained fits"),
            "loss_ours": info("the same of ours on these pairs"),
            "loss_ours_retained": info("the same of ours on these pairs"),
        },
        datasets=("synthetic",),
        in_all=False,
        order=140,
        needs=("bench",),
    )
)
