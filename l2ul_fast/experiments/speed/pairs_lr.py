"""How fast pairs of logistic fits are made: batched Newton against scikit-learn's lbfgs through joblib."""

from __future__ import annotations

from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from l2ul_fast.measure.timing import interleave, once
from l2ul_kernels import threads as budget
from l2ul_kernels.linear.logistic import logistic_fit_pairs, logistic_gradient

LAM = 1e-3
#: lbfgs stops by its gradient tolerance or when the loss stands still at rounding level, whichever comes first. It gets
#: rows in double precision: on float32 rows scikit-learn computes in float32 and stalls near 1e-5.
SKLEARN_TOL = 1e-9


def make_pairs(m: int, s: int, d: int, seed: int = 0) -> tuple[Any, Any, NDArray[np.int64], NDArray[np.int64]]:
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


def _sklearn_some(X: Any, y: Any, ids: Any, n_forget: Any, tol: float) -> NDArray[np.float64]:
    """(k, 2, p) parameters of k pairs; the second fit starts from the first, as ours does."""
    out = np.empty((len(ids), 2, X.shape[1] + 1))
    with threadpool_limits(1):
        for i, (rows, r) in enumerate(zip(ids, n_forget, strict=True)):
            model = LogisticRegression(solver="lbfgs", tol=tol, max_iter=10_000, warm_start=True)
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


def measure(m: int = 1000, s: int = 1000, d: int = 28, threads: int = 2, repeats: int = 5) -> list[dict[str, Any]]:
    """Records (method, seconds per m pairs, spread, ratio to ours, gradient norms) of fits that take turns.

    Ours runs at the median gradient norm that lbfgs reached, and once more at 1e-10.
    """
    X, y, ids, n_forget = make_pairs(m, s, d)
    X64 = X.astype(np.float64)
    jobs = np.array_split(np.arange(m), 4 * threads)
    with Parallel(n_jobs=threads) as pool, budget(threads):

        def peer() -> NDArray[np.float64]:
            parts = pool(delayed(_sklearn_some)(X64, y, ids[j], n_forget[j], SKLEARN_TOL) for j in jobs)
            return np.concatenate(parts)

        reached = _norms(X, y, ids, n_forget, peer())
        match = float(np.median(reached))

        def ours(tol: float) -> Any:
            return logistic_fit_pairs(X, y, ids, n_forget, LAM, tol)

        norms = {"newton": ours(match)[2], "newton-1e-10": ours(1e-10)[2], "sklearn-lbfgs": reached}
        inner = max(1, int(0.2 / once(lambda: ours(match))))
        calls = {"newton": lambda: ours(match), "newton-1e-10": lambda: ours(1e-10), "sklearn-lbfgs": peer}
        times = interleave(calls, repeats, {"newton": inner, "newton-1e-10": inner})
    return [
        {
            "experiment": "pairs-lr",
            "method": name,
            "m": m,
            "s": s,
            "d": d,
            "threads": threads,
            "seconds": t.median,
            "spread": t.spread,
            "ratio": t.median / times["newton"].median,
            "norm_median": float(np.median(norms[name])),
            "norm_max": float(norms[name].max()),
        }
        for name, t in times.items()
    ]
