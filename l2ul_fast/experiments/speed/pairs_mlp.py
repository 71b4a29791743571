"""How fast MLP pairs are made, beside scikit-learn and torch.func.vmap, all to the same final loss, taking turns.

A pair is two fits of a d-10-1 tanh MLP: s rows, then the retained ones of them. Everybody runs Adam with batches of
128. Ours and vmap run the same schedule (learning rate falling as a cosine, the second fit warm-started);
scikit-learn has no cosine, so it runs its own constant rate for as many epochs as it needs. The peers make fewer pairs
and are scaled up by their number: see `pairs` in the records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.measure.timing import interleave
from l2ul_fast.models.mlp import MLPModel
from l2ul_kernels import threads as thread_budget

H, LAM, BATCH, EPOCHS, EPOCHS_RETAINED, RATE, RATE_RETAINED = 10, 1e-3, 128, 60, 20, 0.01, 0.002


def make_problem(
    m: int, s: int, d: int, seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
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


def sklearn_pairs(X: Any, y: Any, ids: Any, n_forget: Any, epochs: tuple[int, int], jobs: int) -> NDArray[np.float64]:
    """theta (m, 2, p) of both fits by MLPClassifier through joblib; the second fit goes on from the first."""
    import warnings

    from joblib import Parallel, delayed
    from sklearn.neural_network import MLPClassifier

    def pair(rows: Any, r: int) -> list[NDArray[np.float64]]:
        peer = MLPClassifier(
            (H,),
            activation="tanh",
            alpha=LAM * BATCH,
            batch_size=BATCH,
            learning_rate_init=RATE,
            max_iter=epochs[0],
            n_iter_no_change=10**6,
            tol=0.0,
            warm_start=True,
            random_state=0,
        )
        out = []
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


def measure(
    m: int = 1000,
    s: int = 3000,
    d: int = 28,
    threads: int = 2,
    repeats: int = 3,
    peers: dict[str, int] | None = None,
    sklearn_epochs: tuple[int, int] = (50, 10),
) -> list[dict[str, Any]]:
    """Records (method, seconds for m pairs, spread, pairs really made, loss, loss_retained, ratio to ours), with
    our losses on the same pairs beside.

    peers: how many pairs each peer makes; its time is scaled to m pairs.
    """
    wanted = {"sklearn": 2 * threads, "vmap": 256} if peers is None else peers  # vmap needs large batches to be fast
    counts = {"ours": m, **{name: min(k, m) for name, k in wanted.items()}}
    X, y, ids, n_forget = make_problem(m, s, d)
    model = MLPModel(d, h=H, lam=LAM)
    start = model.start(0)
    thetas: dict[str, Any] = {}

    def ours() -> None:
        fits = model.fit_pairs(
            X,
            y,
            ids,
            n_forget,
            epochs=EPOCHS,
            epochs_retained=EPOCHS_RETAINED,
            batch=BATCH,
            rate=RATE,
            rate_retained=RATE_RETAINED,
        )
        thetas["ours"] = np.stack([fits.theta, fits.theta_r], axis=1)

    def sklearn() -> None:
        k = counts["sklearn"]
        thetas["sklearn"] = sklearn_pairs(X, y, ids[:k], n_forget[:k], sklearn_epochs, threads)

    def vmap() -> None:
        k = counts["vmap"]
        thetas["vmap"] = vmap_pairs(X, y, ids[:k], n_forget[:k], start)

    if "vmap" in counts:
        import torch  # noqa: F401 - before the budget, which sets the threads of what is imported

    known: dict[str, Callable[[], None]] = {"ours": ours, "sklearn": sklearn, "vmap": vmap}
    with thread_budget(threads):
        model.fit_pairs(X, y, ids[:1], n_forget[:1], epochs=1)  # compiles
        if "sklearn" in counts:  # starts the worker processes
            sklearn_pairs(X, y, ids[:threads, :200], n_forget[:threads] * 0, (1, 1), threads)
        if "vmap" in counts:
            vmap_pairs(X, y, ids[:2], n_forget[:2], start, (1, 1))
        times = interleave({name: known[name] for name in counts}, repeats)
        records = []
        for name, k in counts.items():
            full, rest = mean_losses(model, thetas[name], X, y, ids[:k], n_forget[:k])
            same = mean_losses(model, thetas["ours"][:k], X, y, ids[:k], n_forget[:k])
            seconds = times[name].median * m / k
            records.append(
                {
                    "experiment": "pairs_mlp",
                    "method": name,
                    "m": m,
                    "s": s,
                    "d": d,
                    "threads": threads,
                    "pairs": k,
                    "seconds": seconds,
                    "spread": times[name].spread,
                    "loss": full,
                    "loss_retained": rest,
                    "loss_ours": same[0],
                    "loss_ours_retained": same[1],
                    "ratio": seconds / (times["ours"].median),
                }
            )
    return records
