"""U-LiRA: can the best attacker, who knows how x moves the model, tell "x was unlearned" from "x was never there"?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.checks import Between, ClassIndices, Count, Features, ModelLike, Number0, Times, checked
from l2ul_fast.errors import UserError
from l2ul_fast.metrics.population import fit_population, kept_rows, margins_of, unlearn_all
from l2ul_fast.metrics.roc import Attack, pooled_attack
from l2ul_fast.metrics.value import Unlearn, Value, Vector, degenerate, measured

#: Fewer models give Gaussians of a dozen points and an attack too weak to prove anything.
MIN_MODELS = 64


class Lira(NamedTuple):
    """The attack on unlearned models; targets are the same attack on Retrain, `nothing` the one on the originals."""

    auc: Value
    accuracy: Value
    tpr: Value
    models: int  #: models that were scored, over all groups
    rejected: int  #: models left out because a fit did not converge


class _Scores(NamedTuple):
    inside: list[Vector]  # one array per scored model: log-likelihood ratios of its unlearned targets
    outside: list[Vector]  # and of the targets it never had


@checked
def u_lira(
    model: ModelLike,
    X: Features,
    y: ClassIndices,
    unlearn: Unlearn,
    s: Count,
    r: Count = 10,
    n_models: Times = 256,
    n_groups: Times = 4,
    rate: Between = 0.01,
    seed: Number0 = 0,
    n_boot: Times = 1000,
    **options: Any,
) -> Lira:
    """Attack `unlearn` on many models of s rows of X (n, d), y (n,); n_groups times n_models fits in compiled code.

    In each group 2 r target rows are drawn; every model trains on r of them (D_f, forgotten afterwards) and s - r other
    rows, and never sees the other r targets; models come in pairs that swap the two. The attacker fits a Gaussian to
    each target's log(p / (1 - p)) in either world on half the models and scores the other half by the likelihood
    ratio. Target: Retrain's value, about 0.5. Intervals resample models (the targets are held fixed). `unlearn`
    gets theta, the row numbers to forget and all row numbers of the model. Options go to the model's fits.
    """
    X, y = np.asarray(X), np.asarray(y)
    if r < 1 or n_groups < 1 or not 2 * r + s - r <= len(X):
        raise UserError(f"U-LiRA needs r and n_groups of at least 1 and s + r = {s + r} rows, there are {len(X)}")
    n_models -= n_models % 4
    if n_models < MIN_MODELS:
        reason = f"{n_models} models: at least {MIN_MODELS} are needed"
        return _refuse(reason, rate, 0, 0)
    worlds: dict[str, _Scores] = {name: _Scores([], []) for name in ("unlearned", "retrain", "nothing")}
    models, rejected = 0, 0
    for group in range(n_groups):
        rng = np.random.default_rng([seed, group, 11])
        targets, ids, had = draw_worlds(len(X), s, r, n_models, rng)
        population = fit_population(model, X, y, ids, r, **options)
        thetas = {
            "unlearned": unlearn_all(population, unlearn),
            "retrain": population.theta_r,
            "nothing": population.theta,
        }
        fine = population.converged & np.isfinite(thetas["unlearned"]).all(axis=1)
        rejected += int((~fine).sum())
        models += int(fine[_second_half(n_models)].sum())
        for name, theta in thetas.items():
            phi = margins_of(model, np.where(fine[:, None], theta, 0.0), X[targets], y[targets])
            if why := _score(phi, had, fine, worlds[name]):
                return _refuse(why, rate, models, rejected)
    found: dict[str, list[Value]] = {}
    for name in ("retrain", "nothing", "unlearned"):
        final = name == "unlearned"
        beside = [(found["retrain"][i], found["nothing"][i]) if final else (None, None) for i in range(3)]
        attack = pooled_attack(*worlds[name], rates=(rate,), n_boot=n_boot if final else 1, seed=seed)
        found[name] = _with(attack, _accuracy(worlds[name], n_boot if final else 1, seed), rate, beside)
    auc, accuracy, tpr = found["unlearned"]
    return Lira(auc, accuracy, tpr, models, rejected)


def _refuse(reason: str, rate: float, models: int, rejected: int) -> Lira:
    auc, accuracy, tpr = (degenerate(reason, goal) for goal in (0.5, 0.5, rate))
    return Lira(auc, accuracy, tpr, models, rejected)


def draw_worlds(n: int, s: int, r: int, m: int, rng: np.random.Generator) -> tuple[Any, Any, NDArray[np.bool_]]:
    """(targets (2r,), ids (m, s) whose first r are the model's targets, had (m, 2r)): models 2k and 2k + 1 swap."""
    targets = rng.choice(n, 2 * r, replace=False)
    first = np.argsort(rng.random((m // 2, 2 * r)), axis=1)
    order = np.stack([first, np.roll(first, r, axis=1)], axis=1).reshape(m, 2 * r)
    had = np.zeros((m, 2 * r), bool)
    np.put_along_axis(had, order[:, :r], True, axis=1)
    rest = kept_rows(n, m, s - r, rng, np.setdiff1d(np.arange(n), targets))
    return targets, np.hstack([targets[order[:, :r]], rest]), had


def _second_half(m: int) -> NDArray[np.bool_]:
    """Models that are scored: every second pair, so that both halves are balanced for every target."""
    return np.asarray(np.arange(m) // 2 % 2 == 1)


def _score(phi: Vector, had: NDArray[np.bool_], fine: NDArray[np.bool_], out: _Scores) -> str | None:
    """Add likelihood ratios of the scored half of phi (m, 2r) to `out`; a reason when there is nothing to score."""
    scored = _second_half(len(phi))
    ratio = np.zeros_like(phi)
    for t in range(phi.shape[1]):
        known = fine & ~scored
        a, b = phi[known & had[:, t], t], phi[known & ~had[:, t], t]
        if min(len(a), len(b)) < 8:
            return "too many models are not finite or did not converge"
        spread = float(phi[known, t].std())
        if spread == 0:
            return "all models answer the same: the data leaves them no spread"
        ratio[:, t] = _log_density(phi[:, t], a, 1e-6 * spread) - _log_density(phi[:, t], b, 1e-6 * spread)
    for i in np.flatnonzero(fine & scored):
        out.inside.append(ratio[i, had[i]])
        out.outside.append(ratio[i, ~had[i]])
    return None


def _log_density(x: Vector, sample: Vector, least: float) -> Vector:
    """log N(x; mean and deviation of the sample), without the constant."""
    deviation = max(float(sample.std(ddof=1)), least)
    return np.asarray(-0.5 * ((x - sample.mean()) / deviation) ** 2 - np.log(deviation))


def _accuracy(scores: _Scores, n_boot: int, seed: int) -> Value:
    """Share of right verdicts at ratio 1 (ties half), models resampled."""
    inside, outside = np.stack(scores.inside), np.stack(scores.outside)
    right = 0.5 * (0.5 * (1 + np.sign(inside)).mean(axis=1) + 0.5 * (1 - np.sign(outside)).mean(axis=1))
    rng = np.random.default_rng([seed, 6])
    draws = rng.multinomial(len(right), np.full(len(right), 1 / len(right)), n_boot) @ right / len(right)
    low, high = np.quantile(draws, [0.025, 0.975])
    return measured(float(right.mean()), 0.5, None, (low, high))


def _with(attack: Attack, accuracy: Value, rate: float, beside: list[tuple[Any, Any]]) -> list[Value]:
    """AUC, accuracy, TPR with Retrain's values as targets and the originals' beside."""
    out = []
    for v, (target, nothing) in zip((attack.auc, accuracy, attack.tpr[rate]), beside, strict=True):
        goal, other = target.value if target else v.target, nothing.value if nothing else None
        out.append(Value(v.value, goal, v.degenerate, v.interval, other))
    return out
