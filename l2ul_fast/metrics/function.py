"""Distances between the outputs of models: they do not care how parameters are named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from l2ul_fast.checks import Features, ModelLike, Number0, checked
from l2ul_fast.errors import DataError
from l2ul_fast.metrics.value import Number, Value, Vector, check_proba, degenerate, measured


def _pair(p: ArrayLike, q: ArrayLike) -> tuple[Vector, Vector]:
    p, q = check_proba(p), check_proba(q)
    if p.shape != q.shape:
        raise DataError(f"probabilities must have the same shape, got {p.shape} and {q.shape}")
    return p, q


def activation_distance(proba: ArrayLike, retrained: ArrayLike, original: ArrayLike | None = None) -> Value:
    """Mean over rows of ||p' - p_r||_2, probabilities (n, C). Target 0; at most sqrt(2)."""
    return _mean(lambda p, q: np.linalg.norm(p - q, axis=1), proba, retrained, original)


def _mean(
    rows: Callable[[Vector, Vector], Vector], proba: ArrayLike, q: ArrayLike, original: ArrayLike | None
) -> Value:
    """Mean of rows(p, q) (n,), and that of the original beside."""
    p, q = _pair(proba, q)
    if len(p) == 0:
        return degenerate("no rows", 0.0)
    nothing = None if original is None else _mean(rows, original, q, None)
    return measured(float(rows(p, q).mean()), 0.0, nothing)


def js_rows(p: ArrayLike, q: ArrayLike) -> Vector:
    """(n,) Jensen-Shannon divergence of each row of p and q (n, C), in nats: 0 to log 2."""
    from scipy.special import rel_entr

    p, q = _pair(p, q)
    m = 0.5 * (p + q)
    return np.asarray(np.clip(0.5 * (rel_entr(p, m) + rel_entr(q, m)).sum(axis=1), 0.0, np.log(2)))


def js_divergence(proba: ArrayLike, retrained: ArrayLike, original: ArrayLike | None = None) -> Value:
    """Mean over rows of the Jensen-Shannon divergence between p' and p_r (n, C), in nats. Target 0; at most log 2."""
    return _mean(js_rows, proba, retrained, original)


def zrf(proba: ArrayLike, random_proba: ArrayLike, target: Number = None, nothing: Number = None) -> Value:
    """1 - mean Jensen-Shannon divergence of p' (r, C) on D_f from a randomly initialised model's. Target: Retrain's.

    Near 1 means random answers on D_f, which is NOT what Retrain gives on rows it can generalise to: the target is
    Retrain's value, never 1. For log 2 nats at most, the value is at least 1 - log 2.
    """
    rows = js_rows(proba, random_proba)
    if len(rows) == 0:
        return degenerate("no rows", target, nothing)
    return measured(1.0 - float(rows.mean()), target, nothing)


@checked
def random_proba(model: ModelLike, X: Features, seed: Number0 = 0) -> Vector:
    """(n, C) answers of a model that has learned nothing: coefficients ~ N(0, 1/d), or the MLP's random start."""
    rng = np.random.default_rng(seed)
    if hasattr(model, "h"):
        theta = model.start(seed)
    else:
        theta = rng.normal(size=model.size) / model.d**0.5
    return np.asarray(model.predict_proba(theta, X))
