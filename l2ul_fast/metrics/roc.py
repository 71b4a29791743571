"""Threshold-free membership attack: AUC and true-positive rate at low false-positive rates, pooled over requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from l2ul_fast.checks import Each, Labels, ModelLike, Number0, Numbers, OneOf, RowSet, Times, Within, checked
from l2ul_fast.errors import DataError
from l2ul_fast.metrics.value import MIN_ROWS, Ids, Model, Value, Vector, degenerate, losses, margins, measured

#: With fewer requests than this, rows are resampled instead of whole requests (a handful gives no interval).
MIN_REQUESTS = 10
Score = Annotated[str, OneOf(("confidence", "loss"))]
Scores = Annotated[Sequence[ArrayLike], Each(Numbers(1, finite=False))]


class Attack(NamedTuple):
    """Success of an attacker with the best threshold; `tpr` by false-positive rate."""

    auc: Value
    tpr: dict[float, Value]


@checked
def attack_scores(model: Model, theta: ArrayLike, X: Any, y: ArrayLike, score: Score = "confidence") -> Vector:
    """(n,) higher = more like a member: log(p_y / (1 - p_y)) ("confidence") or minus the log-loss ("loss").

    Either is an increasing function of the other, so AUC and TPR agree up to rounding.
    """
    return margins(model, theta, X, y) if score == "confidence" else -losses(model, theta, X, y)


@checked
def request_scores(
    model: ModelLike,
    thetas: Annotated[Sequence[ArrayLike], Each(Numbers(1, finite=False))],
    forgets: Annotated[Sequence[Ids], Each(Labels(floats=False))],
    train: RowSet,
    test: RowSet,
    score: Score = "confidence",
    seed: Number0 = 0,
) -> tuple[list[Vector], list[Vector]]:
    """(scores of the forgotten rows, of as many test rows) for every request k with its thetas[k] (p,).

    The test rows of request k depend on the seed and k only, so that all methods are judged on the same ones.
    """
    members, outsiders = [], []
    for k, (theta, ids) in enumerate(zip(thetas, forgets, strict=True)):
        drawn = np.random.default_rng([seed, k]).permutation(len(test[0]))[: len(ids)]
        members.append(attack_scores(model, theta, train[0][ids], train[1][ids], score))
        outsiders.append(attack_scores(model, theta, test[0][drawn], test[1][drawn], score))
    return members, outsiders


@checked
def pooled_attack(
    members: Scores,
    outsiders: Scores,
    rates: Annotated[Sequence[float], Each(Within(0.0, 1.0, above=True))] = (0.01, 0.001),
    retrained: Attack | None = None,
    original: Attack | None = None,
    n_boot: Times = 1000,
    seed: Number0 = 0,
) -> Attack:
    """AUC and TPR at low FPR of scores of forgotten rows against rows never seen, pooled over requests.

    members[k], outsiders[k]: scores under the model after request k; the longer is cut at random to the shorter.
    Targets: Retrain's attack, else chance (0.5, and the FPR itself), which is right only for a random D_f. The 95 %
    intervals resample requests, or rows when there are fewer than 10. Degenerate: fewer than 10 rows a side, all
    scores equal, fewer than 1 / FPR rows never seen.
    """
    rng = np.random.default_rng([seed, 5])
    a, b, request = _balanced(members, outsiders, rng)
    goals = [retrained.auc if retrained else Value(0.5), *(retrained.tpr[q] if retrained else Value(q) for q in rates)]
    beside = [original.auc if original else None, *(original.tpr[q] if original else None for q in rates)]
    reason = None
    if len(a) < MIN_ROWS:
        reason = f"{len(a)} forgotten rows in all: at least {MIN_ROWS} are needed; pool more requests"
    elif min(a.min(), b.min()) == max(a.max(), b.max()):
        reason = "all scores are equal"
    if reason:
        found = [degenerate(reason, goal, o) for goal, o in zip(goals, beside, strict=True)]
        return Attack(found[0], dict(zip(rates, found[1:], strict=True)))
    curve = _Curve(a, b)
    ask = [_auc, *(_tpr(q) for q in rates)]
    point = [float(f(*curve.counts(np.ones(len(a)), np.ones(len(b))))) for f in ask]
    draws = _bootstrap(curve, ask, request, len(members), n_boot, rng)
    found = []
    for i, (goal, o) in enumerate(zip(goals, beside, strict=True)):
        if i > 0 and len(b) * rates[i - 1] < 1 - 1e-9:
            found.append(degenerate(f"{len(b)} rows never seen: too few for FPR {rates[i - 1]:g}", goal, o))
        else:
            low, high = np.quantile(draws[i], [0.025, 0.975])
            found.append(measured(point[i], goal, o, (low, high)))
    return Attack(found[0], dict(zip(rates, found[1:], strict=True)))


def _balanced(
    members: Sequence[ArrayLike], outsiders: Sequence[ArrayLike], rng: np.random.Generator
) -> tuple[Vector, Vector, Ids]:
    """(member scores, outsider scores, request) of equal length (N,)."""
    if len(members) != len(outsiders):
        raise DataError(f"there are members of {len(members)} requests but outsiders of {len(outsiders)}")
    a, b, request = [np.zeros(0)], [np.zeros(0)], [np.zeros(0, np.int64)]
    for k, (m, o) in enumerate(zip(members, outsiders, strict=True)):
        m, o = np.asarray(m, np.float64), np.asarray(o, np.float64)
        if np.isnan(m).any() or np.isnan(o).any():
            raise DataError(f"a score of request {k} is NaN")
        n = min(len(m), len(o))
        a.append(m if n == len(m) else rng.permutation(m)[:n])
        b.append(o if n == len(o) else rng.permutation(o)[:n])
        request.append(np.full(n, k))
    return np.concatenate(a), np.concatenate(b), np.concatenate(request)


class _Curve:
    """Scores sorted once, so that a resample costs one pass over weights."""

    def __init__(self, a: Vector, b: Vector) -> None:
        scores = np.concatenate([a, b])
        self.order = np.argsort(-scores, kind="stable")
        ranked = scores[self.order]
        self.starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])  # ties share a group
        self.n = len(a)

    def counts(self, wa: Vector, wb: Vector) -> tuple[Vector, Vector]:
        """Weight of members and of outsiders in every group of equal scores, highest score first; wa, wb (..., N)."""
        blank_a, blank_b = np.zeros_like(wb), np.zeros_like(wa)
        both = [np.concatenate(w, axis=-1)[..., self.order] for w in ((wa, blank_a), (blank_b, wb))]
        return np.add.reduceat(both[0], self.starts, axis=-1), np.add.reduceat(both[1], self.starts, axis=-1)


def _auc(tp: Vector, fp: Vector) -> Any:
    """Chance that a member scores higher than an outsider, ties counted half."""
    below = fp.sum(axis=-1, keepdims=True) - fp.cumsum(axis=-1)
    return (tp * (below + 0.5 * fp)).sum(axis=-1) / (tp.sum(axis=-1) * fp.sum(axis=-1))


def _tpr(rate: float) -> Callable[[Vector, Vector], Any]:
    def at_rate(tp: Vector, fp: Vector) -> Any:
        allowed = fp.cumsum(axis=-1) <= rate * fp.sum(axis=-1, keepdims=True) + 1e-9
        return (tp.cumsum(axis=-1) * allowed).max(axis=-1) / tp.sum(axis=-1)

    return at_rate


def _bootstrap(
    curve: _Curve,
    ask: Sequence[Callable[[Vector, Vector], Any]],
    request: Ids,
    requests: int,
    n_boot: int,
    rng: np.random.Generator,
) -> Vector:
    """(len(ask), n_boot) values of resamples: of requests, or of rows of either side when requests are few."""
    n, size = curve.n, len(np.unique(request))
    step, parts = max(1, 2_000_000 // (2 * n)), []
    _, place = np.unique(request, return_inverse=True)
    for start in range(0, n_boot, step):
        k = min(step, n_boot - start)
        if requests >= MIN_REQUESTS and size >= MIN_REQUESTS:
            wa = wb = rng.multinomial(size, np.full(size, 1 / size), k)[:, place].astype(np.float64)
        else:
            wa, wb = (rng.multinomial(n, np.full(n, 1 / n), k).astype(np.float64) for _ in range(2))
        counts = curve.counts(wa, wb)
        parts.append(np.stack([f(*counts) for f in ask]))
    return np.concatenate(parts, axis=1)
