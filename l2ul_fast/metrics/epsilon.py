"""The NeurIPS-2023 forgetting score: how well can unlearned and retrained models be told apart, example by example?"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.checks import OneOf, Results2, Within, checked
from l2ul_fast.errors import DataError
from l2ul_fast.metrics.value import Ids, Number, Value, Vector, degenerate, first_degenerate, measured, number

Attacks = Annotated[str, OneOf(("published", "all"))]
Delta = Annotated[float, Within(0.0, 1.0, below=True)]
DELTA, MOST, BIN, BUFFER = 1e-5, 50.0, 0.5, 2.0
#: Fewer models than this leave no threshold with both error rates above zero but the crudest.
MIN_MODELS = 20


def _epsilon_table(n_pos: int, n_neg: int, delta: float) -> Vector:
    """(n_pos + 1, n_neg + 1): epsilon of calling a region positive that holds u positive and v negative models.

    Attacks with exactly one error rate of zero do not count (-inf); with both zero: inf.
    """
    fnr, fpr = np.broadcast_arrays(1 - np.arange(n_pos + 1)[:, None] / n_pos, np.arange(n_neg + 1)[None] / n_neg)
    with np.errstate(divide="ignore", invalid="ignore"):
        eps = np.fmax(np.log(1 - delta - fpr) - np.log(fnr), np.log(1 - delta - fnr) - np.log(fpr))
    eps = np.where((fnr <= 0) | (fpr <= 0), -np.inf, np.where(np.isnan(eps), -np.inf, eps))
    return np.where((fnr <= 0) & (fpr <= 0), np.inf, eps)


@checked
def epsilons(unlearned: Results2, retrained: Results2, delta: Delta = DELTA, attacks: Attacks = "published") -> Vector:
    """(k,) epsilon of each example from outputs (margins) of N unlearned (N, k) and M retrained models (M, k).

    The largest over attacks of max(ln(1 - delta - FPR) - ln FNR, the same swapped), clipped to [0, 50]; 50 where one
    side's range is below 1 % of the other's. "published": above a threshold lies the side with the larger median;
    between two thresholds, each within 2 of an end of its range, the side with the smaller range. "all": any interval,
    for either side: stronger, but with few models it mostly finds noise. Target: the value of two sets of retrained
    models.
    """
    a, b = np.asarray(unlearned, np.float64), np.asarray(retrained, np.float64)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or not (len(a) and len(b)):
        raise DataError(f"outputs must have shapes (N, k) and (M, k), got {a.shape} and {b.shape}")
    if np.isnan(a).any() or np.isnan(b).any():
        raise DataError("an output is NaN")
    tables = _epsilon_table(len(a), len(b), delta), _epsilon_table(len(b), len(a), delta)
    return np.array([_epsilon(a[:, i], b[:, i], tables, attacks == "all") for i in range(a.shape[1])])


def _epsilon(a: Vector, b: Vector, tables: tuple[Vector, Vector], everything: bool) -> float:
    spans = float(np.ptp(a)), float(np.ptp(b))
    if min(spans) < 0.01 * max(spans):
        return MOST
    values = np.unique(np.concatenate([a, b]))
    below = [np.r_[0, np.searchsorted(np.sort(x), values, side="right")] for x in (a, b)]
    i, j = np.triu_indices(len(values) + 1, 1)  # the region of values[i] .. values[j - 1]
    inside = [n[j] - n[i] for n in below]
    by_a, by_b = tables[0][inside[0], inside[1]], tables[1][inside[1], inside[0]]
    if everything:  # calling the complement one side is calling the region the other: the same pair of error rates
        best = max(float(by_a.max()), float(by_b.max()))
    else:
        above = j == len(values)
        single = (by_b if np.median(b) > np.median(a) else by_a)[above]
        narrow, between = (b, by_b) if spans[0] >= spans[1] else (a, by_a)
        double = between[_reachable(values, i, j, float(narrow.max()), min(spans))]
        best = max(float(single.max()), float(double.max(initial=-np.inf)))
    return float(np.clip(best, 0.0, MOST))


def _reachable(values: Vector, i: Ids, j: Ids, top: float, width: float) -> NDArray[np.bool_]:
    """Whether values[i] .. values[j - 1] lie between thresholds l <= r, |r - top| <= 2 and |r - l - width| <= 2."""
    edges = np.r_[-np.inf, values, np.inf]  # r in [values[j - 1], values[j]), l in (values[i - 1], values[i]]
    low, high = np.maximum(edges[j], top - BUFFER), np.minimum(edges[j + 1], top + BUFFER)
    some = (low < edges[j + 1]) & (low <= top + BUFFER)
    return np.asarray(some & (low - edges[i + 1] <= width + BUFFER) & (high - edges[i] > width - BUFFER))


@checked
def forgetting(
    unlearned: Results2, retrained: Results2, other_retrained: Results2 | None = None, delta: Delta = DELTA
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
    return measured(float(_points(epsilons(a, b, delta), len(a)).mean()), target)


def _points(eps: Vector, models: int) -> Vector:
    """1, 1/2, 1/4, ... by bins of 0.5; none above the epsilon that so many models could show at all."""
    return np.where(eps < np.ceil(np.log(models - 1)), 0.5 ** np.floor(eps / BIN), 0.0)


def forgetting_score(quality: Number, retain_u: Number, retain_r: Number, test_u: Number, test_r: Number) -> Value:
    """forgetting * (retain accuracy / Retrain's) * (test accuracy / Retrain's). Target: the forgetting's target."""
    target = getattr(quality, "target", None)
    if reason := first_degenerate(quality, retain_u, retain_r, test_u, test_r):
        return degenerate(reason, target)
    q, ru, rr, tu, tr = (number(x) for x in (quality, retain_u, retain_r, test_u, test_r))
    if q is None or ru is None or rr is None or tu is None or tr is None:
        raise DataError("the score needs all five numbers")
    if rr == 0 or tr == 0:
        return degenerate("Retrain's accuracy is 0", target)
    return measured(q * (ru / rr) * (tu / tr), target)
