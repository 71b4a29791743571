"""The NeurIPS-2023 forgetting score: how well can unlearned and retrained models be told apart, example by example?"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from l2ul_fast.errors import DataError
from l2ul_fast.metrics.value import Number, Value, Vector, degenerate, first_degenerate, measured, number

DELTA, MOST, BIN = 1e-5, 50.0, 0.5
#: Fewer models than this leave no threshold with both error rates above zero but the crudest.
MIN_MODELS = 20


def _epsilon_table(n_u: int, n_r: int, delta: float) -> Vector:
    """(n_u + 1, n_r + 1): epsilon of the attack "unlearned" on a region that holds u unlearned and v retrained models.

    The larger of the region and its complement; attacks with exactly one error rate of zero do not count.
    """
    u, v = np.arange(n_u + 1)[:, None] / n_u, np.arange(n_r + 1)[None] / n_r
    best = np.full((n_u + 1, n_r + 1), -np.inf)
    for fnr, fpr in ((1 - u, v), (u, 1 - v)):
        fnr, fpr = np.broadcast_arrays(fnr, fpr)
        with np.errstate(divide="ignore", invalid="ignore"):
            a, b = np.log(1 - delta - fpr) - np.log(fnr), np.log(1 - delta - fnr) - np.log(fpr)
        eps = np.fmax(a, b)
        eps = np.where((fnr <= 0) & (fpr <= 0), np.inf, np.where((fnr <= 0) | (fpr <= 0), -np.inf, eps))
        best = np.maximum(best, np.where(np.isnan(eps), -np.inf, eps))
    return best


def epsilons(unlearned: ArrayLike, retrained: ArrayLike, delta: float = DELTA) -> Vector:
    """(k,) epsilon of each example from outputs (margins) of N unlearned (N, k) and M retrained models (M, k).

    The largest over all attacks with one or two thresholds of max(ln(1 - delta - FPR) - ln FNR, the same swapped);
    clipped to [0, 50]; 50 where one side's range is below 1 % of the other's. Target: that of two sets of retrained
    models.
    """
    a, b = np.asarray(unlearned, np.float64), np.asarray(retrained, np.float64)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or not (len(a) and len(b)):
        raise DataError(f"outputs must have shapes (N, k) and (M, k), got {a.shape} and {b.shape}")
    if np.isnan(a).any() or np.isnan(b).any():
        raise DataError("an output is NaN")
    table = _epsilon_table(len(a), len(b), delta)
    return np.array([_epsilon(a[:, i], b[:, i], table) for i in range(a.shape[1])])


def _epsilon(a: Vector, b: Vector, table: Vector) -> float:
    spans = np.ptp(a), np.ptp(b)
    if min(spans) < 0.01 * max(spans):
        return MOST
    values = np.unique(np.concatenate([a, b]))
    # every region between two thresholds, the outermost included: single thresholds are among them
    u = np.r_[0, np.searchsorted(np.sort(a), values, side="right")]
    v = np.r_[0, np.searchsorted(np.sort(b), values, side="right")]
    i, j = np.triu_indices(len(u), 1)
    return float(np.clip(table[u[j] - u[i], v[j] - v[i]].max(), 0.0, MOST))


def forgetting(
    unlearned: ArrayLike, retrained: ArrayLike, other_retrained: ArrayLike | None = None, delta: float = DELTA
) -> Value:
    """Mean points of the examples: 1 for an epsilon below 0.5, halved for each further 0.5. Target: other_retrained's.

    Outputs (margins) as in `epsilons`; 512 models a side in the original. The two sets must vary for the same reasons:
    a deterministic unlearner started from ONE original has no spread, gets epsilon 50 everywhere and is called
    degenerate here. Give it originals of different seeds or row samples (as `klom` does), and say so.
    """
    a, b = np.asarray(unlearned, np.float64), np.asarray(retrained, np.float64)
    target = None if other_retrained is None else forgetting(other_retrained, retrained, delta=delta).value
    if min(len(a), len(b)) < MIN_MODELS:
        return degenerate(f"{min(len(a), len(b))} models a side: at least {MIN_MODELS} are needed", target)
    if a.shape[1:] == (0,):
        return degenerate("no examples", target)
    for side, name in ((a, "unlearned"), (b, "retrained")):
        if (np.ptp(side, axis=0) == 0).all():
            return degenerate(f"the {name} models all answer the same: vary the seed or rows of the originals", target)
    return measured(float(_points(epsilons(a, b, delta)).mean()), target)


def _points(eps: Vector) -> Vector:
    return 0.5 ** np.floor(eps / BIN)


def forgetting_score(
    quality: Number, retain_u: Number, retain_r: Number, test_u: Number, test_r: Number
) -> Value:  # fmt: skip
    """forgetting * (retain accuracy / Retrain's) * (test accuracy / Retrain's). Target: the forgetting's target."""
    target = quality.target if isinstance(quality, Value) else None
    if reason := first_degenerate(quality, retain_u, retain_r, test_u, test_r):
        return degenerate(reason, target)
    q, ru, rr, tu, tr = (number(x) for x in (quality, retain_u, retain_r, test_u, test_r))
    if q is None or ru is None or rr is None or tu is None or tr is None:
        raise DataError("the score needs all five numbers")
    if rr == 0 or tr == 0:
        return degenerate("Retrain's accuracy is 0", target)
    return measured(q * (ru / rr) * (tu / tr), target)
