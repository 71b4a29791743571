"""KLoM: KL divergence between the margins of unlearned models and of models that never had the rows, point by point."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from l2ul_fast.checks import (
    ClassIndices,
    Count,
    Features,
    ModelLike,
    Number0,
    Results2,
    RowNumbers,
    RowSet,
    Times,
    checked,
)
from l2ul_fast.errors import DataError
from l2ul_fast.metrics.population import fit_population, kept_rows, margins_of, unlearn_all
from l2ul_fast.metrics.value import Unlearn, Value, Vector, degenerate, measured

BINS, CLIP, EMPTY, MIN_MODELS = 20, 100.0, 1e-5, 20


class KLoM(NamedTuple):
    """Over the points of one part; targets are oracles against other oracles (the floor of so many models)."""

    mean: Value
    p95: Value
    p99: Value


@checked
def klom_points(unlearned: Results2, oracle: Results2) -> Vector:
    """(k,) KL(unlearned || oracle) in nats of margins (N, k) and (M, k): histograms of 20 bins on the joint range.

    Margins are clipped to +-100; an empty bin of the oracle counts 1e-5. A point where all margins are equal gives 0.
    """
    a, b = (np.clip(np.asarray(x, np.float64), -CLIP, CLIP) for x in (unlearned, oracle))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise DataError(f"margins must have shapes (N, k) and (M, k), got {a.shape} and {b.shape}")
    if np.isnan(a).any() or np.isnan(b).any():
        raise DataError("a margin is NaN")
    low, high = np.minimum(a.min(axis=0), b.min(axis=0)), np.maximum(a.max(axis=0), b.max(axis=0))
    width = np.where(high > low, high - low, 1.0)
    p, q = (_histogram((x - low) / width) for x in (a, b))
    q = np.where(q == 0, EMPTY, q)
    return np.asarray(np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0) / q), 0.0).sum(axis=0))


def _histogram(x: Vector) -> Vector:
    """(BINS, k) shares of the columns of x (N, k), which lies in [0, 1]."""
    place = np.minimum((x * BINS).astype(np.int64), BINS - 1)
    return np.stack([(place == b).mean(axis=0) for b in range(BINS)])


def summary(points: Vector, floor: Vector | None = None, nothing: Vector | None = None) -> KLoM:
    """Mean and percentiles of points (k,) with those of the floor as targets and of doing nothing beside."""
    found = []
    for statistic in (np.mean, lambda x: np.quantile(x, 0.95), lambda x: np.quantile(x, 0.99)):
        target, other = (None if x is None or len(x) == 0 else float(statistic(x)) for x in (floor, nothing))
        if len(points) == 0:
            found.append(degenerate("no rows", target, other))
        else:
            found.append(measured(float(statistic(points)), target, other))
    return KLoM(*found)


@checked
def klom(
    model: ModelLike,
    X: Features,
    y: ClassIndices,
    forget: RowNumbers,
    unlearn: Unlearn,
    test: RowSet,
    s: Count | None = None,
    n_models: Times = 100,
    seed: Number0 = 0,
    points: Count = 1000,
    **options: Any,
) -> dict[str, KLoM]:
    """KLoM of `unlearn` taking the rows `forget` (r,) out, on at most `points` forget, retain and test rows.

    Training is deterministic, so models differ by their rows: each original has the forgotten rows and s - r random
    others (s: 80 % of n when not given), each oracle s - r random others only; originals and two sets of oracles are
    n_models each, independent. Target: the floor, oracle against oracle; `nothing`: the originals themselves. Below
    20 models degenerate.
    """
    X, y, forget = np.asarray(X), np.asarray(y), np.asarray(forget, np.int64)
    r, rng = len(forget), np.random.default_rng([seed, 13])
    retained = np.setdiff1d(np.arange(len(X)), forget)
    X_test, y_test = np.asarray(test[0]), np.asarray(test[1])
    places = np.arange(len(y_test))
    chosen = {"forget": (X, y, forget), "retain": (X, y, retained), "test": (X_test, y_test, places)}
    if n_models < MIN_MODELS:
        reason = degenerate(f"{n_models} models: at least {MIN_MODELS} are needed")
        return {part: KLoM(reason, reason, reason) for part in chosen}
    s = max(r + 1, int(0.8 * len(X))) if s is None else s
    rest = kept_rows(len(X), 3 * n_models, s - r, rng, retained)
    population = fit_population(model, X, y, np.hstack([np.tile(forget, (len(rest), 1)), rest]), r, **options)
    fine = population.converged.copy()
    group = np.arange(3 * n_models) // n_models
    first = population._replace(
        ids=population.ids[group == 0], theta=population.theta[group == 0], theta_r=population.theta_r[group == 0]
    )
    unlearned = unlearn_all(first, unlearn)
    fine[group == 0] &= np.isfinite(unlearned).all(axis=1)
    if min(fine[group == g].sum() for g in range(3)) < MIN_MODELS:
        reason = degenerate(f"fewer than {MIN_MODELS} models of a kind are finite and converged")
        return {part: KLoM(reason, reason, reason) for part in chosen}
    sets = {
        "unlearned": unlearned[fine[group == 0]],
        "nothing": first.theta[fine[group == 0]],
        "oracle": population.theta_r[fine & (group == 1)],
        "other": population.theta_r[fine & (group == 2)],
    }
    out = {}
    for part, (Xp, yp, ids) in chosen.items():
        ids = rng.permutation(ids)[:points]
        phi = {name: margins_of(model, thetas, Xp[ids], yp[ids]) for name, thetas in sets.items()}
        kl = {
            name: klom_points(phi[name], phi["oracle"]) if len(ids) else np.zeros(0)
            for name in ("unlearned", "other", "nothing")
        }
        out[part] = summary(kl["unlearned"], kl["other"], kl["nothing"])
    return out
