"""Fit the parameters of the stand-ins to the real data: python -m l2ul_fast.datasets.standin.fit --raw-dir DIR.

Needed only once; the results are the files in parameters/. The steps for one dataset:

1. Columns with few distinct values become categorical, the one-hot groups of covtype too; the rest is continuous.
2. Continuous columns are turned into normal scores. Tied values (atoms) span an interval of scores; a few Gibbs sweeps
   draw each tied score given the other columns, because independent jitter would hide the correlation.
3. EM fits a mixture of K components (Gaussian x categorical) to both classes together; each class then gets its own
   moments of every component, shrunk towards the shared ones. Sharing keeps the classes overlapping as in reality;
   mixtures fitted per class made an MLP 4 points too good on covtype.
4. For each class and column the map takes the mixture's own distribution to the real one, on KNOTS points.
5. A fixed point iteration changes the latent correlations until the generated columns correlate as the real ones do.
6. For datasets full of duplicates (skin), the law of the shared keys is chosen to repeat as many rows.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from scipy.special import ndtr, ndtri

from l2ul_fast.datasets.registry import REGISTRY, StandIn, get_info
from l2ul_fast.datasets.standin.kernel import KNOTS, Z_MAX
from l2ul_fast.datasets.standin.rows import PARAMS_DIR, build_model, fill, stand_in_of
from l2ul_fast.datasets.text.rawfiles import find_raw, read_rows

SAMPLE = 60_000  # rows the mixture is fitted to
_KNOT_P = ndtr(np.linspace(-Z_MAX, Z_MAX, KNOTS))

Arrays = dict[str, np.ndarray]


def fit_params(name: str, X: np.ndarray, y: np.ndarray, seed: int = 0) -> Arrays:
    """Parameters of the stand-in for X (n, d) and y (n,) in {0, 1}; small arrays, ready for np.savez."""
    how = stand_in_of(name)
    rng = np.random.default_rng(seed)
    groups = _categorical(how, X)
    used = {j for a, b, _ in groups for j in range(a, b)}
    columns = np.array([j for j in range(X.shape[1]) if j not in used])
    width = max((levels.size for _, _, levels in groups), default=0)
    pick = rng.permutation(len(y))[:SAMPLE]
    codes = _codes(X[pick], groups)
    Z = normal_scores(X[pick][:, columns], rng)
    one_hots = [np.eye(levels.size)[codes[:, s]] for s, (_, _, levels) in enumerate(groups)]
    weight, mean, cov, probs = fit_mixture(Z, one_hots, y[pick], how.components, rng)
    cat_prob = np.zeros((2, how.components, len(groups), width), np.float32)
    cat_levels = np.zeros((len(groups), width), np.float32)
    for s, (_, _, levels) in enumerate(groups):
        cat_prob[:, :, s, : levels.size] = probs[s]
        cat_levels[s, : levels.size] = levels
    params: Arrays = {
        "d": np.asarray(X.shape[1]),
        "balance": np.asarray(y.mean() if how.balance is None else how.balance),
        "columns": columns.astype(np.int16),
        "integer": np.all(X[:, columns] == np.rint(X[:, columns]), axis=0),
        "weight": weight.astype(np.float32),
        "mean": mean.astype(np.float16),
        "cat_column": np.array([a for a, _, _ in groups], np.int16),
        "cat_size": np.array([levels.size for _, _, levels in groups], np.int16),
        "cat_onehot": np.array([b - a > 1 for a, b, _ in groups], np.bool_),
        "cat_levels": cat_levels,
        "cat_prob": cat_prob,
        "pool": np.zeros((2, 2)),
    }
    part = 4 * len(y) < get_info(name).n
    quantiles = np.stack([_quantiles(X[y == c][:, columns], part) for c in (0, 1)])
    calibrate(params, cov, quantiles, X[pick], y[pick])
    distinct = len(np.unique(np.column_stack((X, y)), axis=0))
    if distinct < 0.5 * len(y):
        params["pool"] = fit_pool(params, X, y)
    return params


def _categorical(how: StandIn, X: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
    """(first column, end, level values) of every categorical column and one-hot group."""
    groups = [(a, b, np.ones(b - a)) for a, b in how.one_hot]
    taken = {j for a, b, _ in groups for j in range(a, b)}
    for j in set(range(X.shape[1])) - taken:
        levels = np.unique(X[:, j])
        if levels.size <= how.max_levels:
            groups.append((j, j + 1, levels))
    return sorted(groups, key=lambda group: group[0])


def _codes(X: np.ndarray, groups: list[tuple[int, int, np.ndarray]]) -> np.ndarray:
    """Level number of every row in every group, (n, s)."""
    codes = np.zeros((len(X), len(groups)), np.int64)
    for s, (a, b, levels) in enumerate(groups):
        codes[:, s] = X[:, a:b].argmax(axis=1) if b - a > 1 else np.searchsorted(levels, X[:, a])
    return codes


def normal_scores(X: np.ndarray, rng: np.random.Generator, sweeps: int = 25) -> np.ndarray:
    """Standard normal scores of X (n, g) by rank; ties are drawn within their interval given the other columns."""
    n, g = X.shape
    Z = np.empty((n, g))
    tied = []
    for j in range(g):
        _, inverse, count = np.unique(X[:, j], return_inverse=True, return_counts=True)
        high = np.cumsum(count)
        low = high - count
        Z[:, j] = ndtri(np.clip((low[inverse] + rng.uniform(0.01, 0.99, n) * count[inverse]) / n, 0.5 / n, 1 - 0.5 / n))
        rows = np.flatnonzero(count[inverse] > max(2, 2e-4 * n))
        if rows.size > 0.02 * n:
            low_z, high_z = ndtri(np.maximum(low / n, 1e-6)), ndtri(np.minimum(high / n, 1 - 1e-6))
            tied.append((j, rows, low_z[inverse[rows]], high_z[inverse[rows]]))
    for _ in range(sweeps if tied else 0):
        precision = np.linalg.inv(np.cov(Z.T) + 1e-3 * np.eye(g))
        for j, rows, low_z, high_z in tied:
            sd = precision[j, j] ** -0.5
            effect = -precision[j] / precision[j, j]
            effect[j] = 0
            centre = Z[rows] @ effect
            a, b = ndtr((low_z - centre) / sd), ndtr((high_z - centre) / sd)
            draw = centre + sd * ndtri(np.clip(a + (b - a) * rng.random(rows.size), 1e-12, 1 - 1e-12))
            Z[rows, j] = np.clip(draw, low_z, high_z)
    return Z


def fit_mixture(
    Z: np.ndarray, one_hots: list[np.ndarray], y: np.ndarray, k: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
    """Mixture of k components for Z (n, g) and the one-hot arrays, shared by the classes, then moments per class.

    Returns weight (2, k), mean (2, k, g), cov (2, k, g, g) and per group the probabilities (2, k, levels).
    """
    everything = np.cov(Z.T).reshape(Z.shape[1], -1)
    base = [o.mean(axis=0) for o in one_hots]
    responsibility = _first_guess(np.hstack([Z, *one_hots]), k, rng)
    last = -np.inf
    for step in range(60):
        shared = _moments(Z, one_hots, responsibility, Z.mean(axis=0), everything, base, 30.0)
        responsibility, score = _expect(Z, one_hots, *shared)
        if step > 10 and score - last < 1e-4 * abs(score):
            break
        last = score
    classes = []
    for c in (0, 1):
        rows = y == c
        _, mean0, cov0, probs0 = shared
        classes.append(_moments(Z[rows], [o[rows] for o in one_hots], responsibility[rows], mean0, cov0, probs0, 100.0))
    weight, mean, cov = (np.stack([m[i] for m in classes]) for i in range(3))
    return weight, mean, cov, [np.stack([m[3][s] for m in classes]) for s in range(len(one_hots))]


def _first_guess(F: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Soft responsibilities (n, k) from k-means with k-means++ seeds."""
    from scipy.cluster.vq import kmeans2

    _, label = kmeans2(F, k, iter=15, minit="++", rng=rng)
    return 0.95 * np.eye(k)[label] + 0.05 / k


def _moments(Z, one_hots, responsibility, mean0, cov0, probs0, prior):  # type: ignore[no-untyped-def]
    """Weight, mean, covariance, probabilities of the components, shrunk by `prior` rows to mean0, cov0, probs0."""
    mass = responsibility.sum(axis=0)
    k, g = mass.size, Z.shape[1]
    few = 0.1 * prior
    mean = (responsibility.T @ Z + few * mean0) / (mass[:, None] + few)
    cov = np.empty((k, g, g))
    for i in range(k):
        D = Z - mean[i]
        target = cov0 if cov0.ndim == 2 else cov0[i]
        cov[i] = ((D * responsibility[:, i : i + 1]).T @ D + prior * target) / (mass[i] + prior) + 1e-4 * np.eye(g)
    probs = [(responsibility.T @ o + few * p) / (mass[:, None] + few) for o, p in zip(one_hots, probs0, strict=True)]
    return mass / mass.sum(), mean, cov, probs


def _expect(Z, one_hots, weight, mean, cov, probs):  # type: ignore[no-untyped-def]
    """Responsibilities (n, k) and the mean log-likelihood."""
    log_p = np.empty((len(Z), weight.size))
    for i in range(weight.size):
        L = np.linalg.cholesky(cov[i])
        white = np.linalg.solve(L, (Z - mean[i]).T)
        log_p[:, i] = np.log(weight[i] + 1e-12) - 0.5 * (white**2).sum(axis=0) - np.log(np.diag(L)).sum()
    for o, p in zip(one_hots, probs, strict=True):
        log_p += o @ np.log(p.T + 1e-12)
    top = log_p.max(axis=1, keepdims=True)
    responsibility = np.exp(log_p - top)
    total = responsibility.sum(axis=1, keepdims=True)
    return responsibility / total, float((top + np.log(total)).mean())


def _quantiles(X: np.ndarray, part: bool) -> np.ndarray:
    """Quantiles (g, KNOTS) of the columns of X (n, g) at the knots' probabilities.

    If X comes from a small part of the real set, its largest values are not the real set's: there the outer knots,
    with fewer than 10 rows beyond them, continue on a straight line (in log x where all x > 0: they stay positive).
    """
    q = np.quantile(X.astype(np.float64), _KNOT_P, axis=0).T
    if part:
        positive = X.min(axis=0) > 0
        q[positive] = np.log(q[positive])
        inner = np.flatnonzero((_KNOT_P * len(X) >= 10) & ((1 - _KNOT_P) * len(X) >= 10))
        for a, b, outer in ((inner[0], inner[2], range(inner[0])), (inner[-1], inner[-3], range(inner[-1] + 1, KNOTS))):
            for i in outer:
                q[:, i] = q[:, a] + (q[:, b] - q[:, a]) * (i - a) / (b - a)
        q[positive] = np.exp(q[positive])
    return q


def _set_gaussians(params: Arrays, cov: np.ndarray, quantiles: np.ndarray) -> None:
    """Store the Cholesky factors of cov (2, k, g, g) and the maps that go with them."""
    g = cov.shape[-1]
    rows, cols = np.tril_indices(g)
    L = np.linalg.cholesky(cov)[:, :, rows, cols].astype(np.float16)
    full = np.zeros(cov.shape)
    full[:, :, rows, cols] = L
    sd = np.sqrt((full**2).sum(axis=-1))  # of the rounded factors: (2, k, g)
    z = np.linspace(-Z_MAX, Z_MAX, KNOTS)
    mean = params["mean"].astype(np.float64)
    cdf = np.einsum("ck,ckgz->cgz", params["weight"], ndtr((z - mean[..., None]) / sd[..., None]))
    score = np.clip(ndtri(np.clip(cdf, 1e-12, 1 - 1e-12)), -Z_MAX, Z_MAX)
    params["factor"] = L
    params["map"] = np.array(
        [[np.interp(score[c, j], z, quantiles[c, j]) for j in range(g)] for c in (0, 1)], dtype=np.float32
    )


def calibrate(
    params: Arrays, cov: np.ndarray, quantiles: np.ndarray, X: np.ndarray, y: np.ndarray, steps: int = 12
) -> None:
    """Set params' factors and maps so that within each class the continuous columns correlate as in X (n, d)."""
    columns = params["columns"].astype(np.int64)
    real = [_correlation(X[y == c][:, columns]) for c in (0, 1)]
    G, gy = np.empty((SAMPLE, X.shape[1]), np.float32), np.empty(SAMPLE, np.uint8)
    best = np.inf
    keep = {}
    for step in range(13):
        _set_gaussians(params, cov, quantiles)
        fill(build_model(params), 0, 12345, G, gy)
        error = [real[c] - _correlation(G[gy == c][:, columns]) for c in (0, 1)]
        size = float(np.sqrt(np.mean(np.square(error))))
        print(f"  calibration {step}: correlation error rms {size:.4f}, max {np.abs(error).max():.3f}", file=sys.stderr)
        if size < best:
            best, keep = size, {key: params[key] for key in ("factor", "map")}
        for c in (0, 1):
            cov[c] = [_nudge(matrix, 0.7 * error[c]) for matrix in cov[c]]
    params.update(keep)


def _correlation(X: np.ndarray) -> np.ndarray:
    sd = X.std(axis=0, dtype=np.float64)
    D = (X - X.mean(axis=0, dtype=np.float64)) / np.where(sd > 0, sd, 1)
    return D.T @ D / len(X)


def _nudge(cov: np.ndarray, change: np.ndarray) -> np.ndarray:
    """cov (g, g) with its correlations moved by `change`, its variances as before, still positive definite."""
    sd = np.sqrt(np.diag(cov))
    R = np.clip(cov / np.outer(sd, sd) + change, -0.999, 0.999)
    np.fill_diagonal(R, 1)
    value, vector = np.linalg.eigh(R)
    R = (vector * np.maximum(value, 2e-3)) @ vector.T
    unit = np.sqrt(np.diag(R))
    return R / np.outer(unit, unit) * np.outer(sd, sd)


def fit_pool(params: Arrays, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Scale and power (2, 2) of the shared keys: as many distinct rows per class as in X, at n and at n / 8 rows."""
    n = len(y)
    order = np.random.default_rng(0).permutation(n)
    real = [_distinct(X, y), _distinct(X[order[: n // 8]], y[order[: n // 8]])]
    best = np.full(2, np.inf)
    pool = np.zeros((2, 2))
    G, gy = np.empty((n, X.shape[1]), np.float32), np.empty(n, np.uint8)
    for power in (1, 2, 3):
        for scale in np.geomspace(10, 1e6, 41):
            fill(build_model({**params, "pool": np.array([[scale, power]] * 2)}), 0, 0, G, gy)
            found = [_distinct(G, gy), _distinct(G[: n // 8], gy[: n // 8])]
            error = np.abs(np.log(found[0] / real[0])) + 0.5 * np.abs(np.log(found[1] / real[1]))
            for c in np.flatnonzero(error < best):
                best[c], pool[c] = error[c], (scale, power)
    print(f"  shared keys {pool.tolist()}, error of log(distinct rows) {best}", file=sys.stderr)
    return pool


def _distinct(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Distinct rows in class 0 and in class 1."""
    return np.array([len(np.unique(X[y == c], axis=0)) for c in (0, 1)])


def load_real(name: str, raw_dir: str | os.PathLike[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """All rows of the original file in raw_dir: X (n, d) float32 and y (n,) uint8."""
    pieces = [(X.copy(), y.copy()) for X, y in read_rows(find_raw(name, raw_dir))]
    return np.concatenate([X for X, _ in pieces]), np.concatenate([y for _, y in pieces])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m l2ul_fast.datasets.standin.fit", description="Fit the stand-ins to the real data."
    )
    parser.add_argument("names", nargs="*", help=f"datasets (default: all): {', '.join(REGISTRY)}")
    parser.add_argument("--raw-dir", help="folder of the original files (default: L2UL_RAW_DIR)")
    parser.add_argument("--out-dir", type=Path, default=PARAMS_DIR, help="where the parameters go")
    args = parser.parse_args()
    args.out_dir.mkdir(parents=True, exist_ok=True)
    for name in args.names or (name for name, info in REGISTRY.items() if info.stand_in is not None):
        print(f"{name}: reading", file=sys.stderr)
        params = fit_params(name, *load_real(name, args.raw_dir))
        path = args.out_dir / stand_in_of(name).parameters
        np.savez_compressed(path, allow_pickle=False, **params)
        print(f"{name}: {path.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
