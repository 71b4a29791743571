"""What `L2UL.fit` and `refresh` do: train A, embed D, make pairs, learn the head, keep what held-out pairs favour."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import Table
from l2ul_fast.unlearner.cellstate import CellState
from l2ul_fast.unlearner.learned import Learned
from l2ul_fast.unlearner.newton_step import NewtonStep
from l2ul_fast.unlearner.pairs import Pairs, joined, subset_pairs
from l2ul_fast.unlearner.ridge import RidgeHead
from l2ul_fast.unlearner.steps import DirectStep, LinearStep, Step, wipe
from l2ul_fast.unlearner.store import NoStore

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

Report = Callable[[str, int, int], None]

#: Rows per pair of logistic regression unless said otherwise: rho falls like 1/s, the cost grows like s.
SUBSET_LR = 10_000
#: A learned correction must lower the error of pairs this many times larger than those it was learned on.
TRANSFER = 16
TRANSFER_PAIRS = 24
#: Share of the pairs that may be dropped without new ones in their place.
FEW = 0.2


@dataclass
class Fitted:
    theta: NDArray[np.float64]
    model: Any
    cells: CellState
    step: Step
    learned: Learned
    report: dict[str, Any]


def labels_of(table: Table) -> NDArray[np.uint8]:
    """Class indices of the visible rows in order."""
    return np.asarray(table.y)[table.ids()]


def subset_size(params: dict[str, Any], n: int) -> int:
    """Rows per pair: as asked, or a default that leaves half of D out of each pair."""
    s = params["s"] if params["s"] is not None else min(SUBSET_LR, n // 2)
    if s > n:
        raise UserError(f"pairs of s={s} rows cannot be drawn from {n} rows")
    if s < 20:
        raise UserError(f"{n} rows are too few to learn from: 40 are the least")
    return int(s)


def inverse_of(model: Any, hessian: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inverse of a Hessian. One number added to all intercepts of a multinomial model changes nothing, so there the
    Hessian is zero; no gradient has a part in that direction, and any curvature may stand for it."""
    if model.name == "lr" and model.n_classes > 2:
        intercepts = np.arange(model.size) >= model.n_classes * model.d
        hessian = hessian + np.outer(intercepts, intercepts)
    return np.asarray(np.linalg.inv(hessian), np.float64)


def fit(params: dict[str, Any], table: Table, size: int, report: Report, client: Any = None) -> Fitted:
    """Train the model and its unlearner; `size` is the largest row number + 1. Workers of `client` make the pairs."""
    if params["model"] == "mlp":
        from l2ul_fast.unlearner import fitting_mlp

        return fitting_mlp.fit(params, table, size, report, client)
    times: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        times[name], clock = now - clock, now

    model = LogisticModel(table.d, len(table.classes), params["lam"])
    report("train the model", 0, 1)
    found = model.fit(table)
    lap("train")
    report("embed the rows", 0, 1)
    cells = CellState.build(table, size, params["t"], params["psi"], params["random_state"])
    lap("embed")
    s = subset_size(params, table.n)
    seed = np.random.SeedSequence(params["random_state"]).spawn(4)
    pairs = subset_pairs(
        model, table, labels_of(table), params["m"], s, np.random.default_rng(seed[0]), robust=params["robust"],
        progress=lambda done, total: report("train pairs", done, total), client=client,
    )  # fmt: skip
    lap("pairs")
    newton = params["head"] == "influence" and params["prior"] == "newton"
    learned = Learned.of(pairs, inverse_of(model, found.hessian) if newton else None)  # type: ignore[arg-type]
    facts: dict[str, Any] = {"m": len(pairs), "rejected": pairs.rejected, "s": s, "seconds": times}
    facts["gradient_norm"], facts["steps"] = found.gradient_norm, found.steps
    if params["head"] == "direct":
        step: Step = direct_step(params, model, pairs, cells, found.theta, table.n, learned, facts, report)
    else:
        step = influence_step(params, model, table, pairs, found, learned, facts, seed)
    lap("head")
    report("done", 1, 1)
    return Fitted(found.theta, model, cells, step, learned, facts)


def direct_step(
    params: dict[str, Any], model: Any, pairs: Pairs, cells: CellState, theta: NDArray[np.float64], n: int,
    learned: Learned, facts: dict[str, Any], report: Report,
) -> DirectStep:  # fmt: skip
    """The paper's network, trained on the pairs' embeddings."""
    from l2ul_fast.unlearner.network import train_direct  # torch is imported only when a network is trained

    trained = train_direct(
        pairs, cells, seed=params["random_state"], progress=lambda done, total: report("train N_U", done, total)
    )
    learned.pairs, learned.weights = pairs, trained.weights()
    learned.curves = trained.curves
    facts["network"] = trained.facts
    return DirectStep(model, learned.weights, cells, theta, n)


def influence_step(
    params: dict[str, Any], model: Any, table: Table, pairs: Pairs, found: Any, learned: Learned,
    facts: dict[str, Any], seed: Any,
) -> Step:  # fmt: skip
    """The linear head: prior plus correction, or purely learned."""
    inverse = inverse_of(model, found.hessian)
    prior = inverse if params["prior"] == "newton" else None
    head = RidgeHead.fit(pairs.Z, pairs.T, prior)
    facts["head"] = dict(head.loo)
    if prior is None:
        refuse_nothing(head)
        learned.pairs, learned.head = pairs, head
        return LinearStep(model, np.ascontiguousarray(head.W))
    correction = None
    if np.isfinite(head.strength):
        gain = transfer(params, model, table, head.W - inverse, pairs, seed[1])
        facts["head"] |= gain
        if gain["with_correction"] < 0.98 * gain["prior_alone"]:
            correction = np.ascontiguousarray(head.W - inverse)
            learned.pairs, learned.head = pairs, head
    facts["head"]["kept"] = "prior" if correction is None else "correction"
    return newton_step(model, found.theta, found.hessian, table.n, correction)


def refuse_nothing(head: RidgeHead) -> None:
    """Without a prior a head that learned nothing would leave theta as it is at every request."""
    if np.isinf(head.strength):
        raise UserError('the training pairs taught nothing: raise m or s, or use prior="newton"')


def newton_step(
    model: Any, theta: NDArray[np.float64], hessian: NDArray[np.float64], n: int,
    correction: NDArray[np.float64] | None,
) -> Step:  # fmt: skip
    """One Newton step: with the retained Hessian for binary logistic regression, else with H_D."""
    if model.name == "lr" and model.n_classes == 2:
        curvature = n * hessian
        inner = np.arange(theta.size - 1)
        curvature[inner, inner] -= n * model.lam
        return NewtonStep(model, theta.copy(), np.ascontiguousarray(curvature), n, correction)
    W = inverse_of(model, hessian)
    return LinearStep(model, np.ascontiguousarray(W if correction is None else W + correction))


def transfer(
    params: dict[str, Any], model: Any, table: Table, correction: NDArray[np.float64], pairs: Pairs, seed: Any
) -> dict[str, float]:
    """Median relative error of the Newton step with and without the correction on fresh pairs of many more rows.

    What helps on s rows may be a bias of small samples (the mean inverse Hessian of s rows is not that of n), so a
    correction is judged where that bias would be smaller.
    """
    s = min(table.n, TRANSFER * int(pairs.n[0]))
    fresh = subset_pairs(model, table, labels_of(table), TRANSFER_PAIRS, s, np.random.default_rng(seed))
    errors: dict[str, list[float]] = {"prior_alone": [], "with_correction": []}
    for i in range(len(fresh)):
        members, r = fresh.members(i), int(fresh.n_forget[i])
        X, y = table.take(members)
        theta = fresh.theta[i]
        retained = model.hessian(theta, X[r:], y[r:])
        target, z = fresh.T[i], fresh.Z[i]
        plain = inverse_of(model, retained) @ z
        for name, move in (("prior_alone", plain), ("with_correction", plain + correction @ z)):
            errors[name].append(float(np.linalg.norm(move - target) / np.linalg.norm(target)))
    return {name: float(np.median(values)) for name, values in errors.items()}


def refresh(unlearner: L2UL, reanchor: bool, report: Report) -> dict[str, Any]:
    """Take forgotten rows out of the pairs, the head and the partitions of an unlearner; returns what was done."""
    learned = unlearner.learned
    forgotten = np.flatnonzero(unlearner.gone == 1)
    done: dict[str, Any] = {"pairs": 0, "partitions": 0, "head": "unchanged", "reanchored": False}
    changed = unlearner.cells.seeds_among(forgotten)
    if changed.size:
        report("replace seeds", 0, 1)
        rng = np.random.default_rng([unlearner.params["random_state"], forgotten.size])
        done["partitions"] = unlearner.cells.replace_seeds(forgotten, unlearner.retained(), rng)
    if unlearner.params["model"] == "mlp" and not isinstance(unlearner.step, DirectStep):
        from l2ul_fast.unlearner import fitting_mlp

        fitting_mlp.refresh(unlearner, done, reanchor, report)
    else:
        if reanchor:
            report("train on the rows that stay", 0, 1)
            unlearner.theta = unlearner.model.fit(unlearner.retained(), start=unlearner.theta).theta
            done["reanchored"] = True
        _refresh_head(unlearner, forgotten, done, report)
    if isinstance(unlearner.step, DirectStep):
        unlearner.step = DirectStep(
            unlearner.model, learned.weights or {}, unlearner.cells, unlearner.theta, unlearner.n
        )
    wipe(unlearner.step)
    return done


def _refresh_head(u: L2UL, forgotten: NDArray[np.int64], done: dict[str, Any], report: Report) -> None:
    learned, direct = u.learned, isinstance(u.step, DirectStep)
    prior = _refresh_curvature(u, done, report) if forgotten.size else None
    if learned.pairs is None:
        return
    gone = learned.pairs.holding(forgotten)
    if not gone.size and prior is None and not (direct and done["partitions"]):
        return
    done["pairs"] = int(gone.size)
    head, left = learned.head, learned.pairs.without(gone)
    lacking = u.report_["m"] - len(left)
    if lacking <= FEW * u.report_["m"]:
        pairs = left
        if head is not None:
            head, done["head"] = head.without(gone, prior), "exact downdate"
    else:  # too few would be left: draw others from the rows that stay
        rng = np.random.default_rng([u.params["random_state"], 1, forgotten.size])
        table, s = u.retained(), int(learned.pairs.n[0])
        fresh = subset_pairs(
            u.model, table, labels_of(table), lacking, min(s, table.n // 2), rng, robust=u.params["robust"],
            progress=lambda done, total: report("train pairs", done, total),
        )  # fmt: skip
        pairs = joined([left, fresh])
        if head is not None:
            head, done["head"] = RidgeHead.fit(pairs.Z, pairs.T, prior), "new pairs"
            if head.prior is None:
                refuse_nothing(head)
    judged = Learned.of(pairs, prior)
    learned.pairs, learned.largest, learned.metric, learned.reach = pairs, judged.largest, judged.metric, judged.reach
    if head is not None:
        learned.head = head
        if isinstance(u.step, LinearStep):
            u.step.W = np.ascontiguousarray(head.W)
        elif isinstance(u.step, NewtonStep) and head.prior is not None:
            u.step.correction = np.ascontiguousarray(head.W - head.prior)
    if direct:
        direct_step(u.params, u.model, learned.pairs, u.cells, u.theta, u.n, learned, {}, report)
        done["head"] = "network refitted"


def _refresh_curvature(u: L2UL, done: dict[str, Any], report: Report) -> NDArray[np.float64] | None:
    """Take the Hessian of a Newton prior at today's theta, from the rows that stay; the inverse, or None if unchanged.

    What is replaced knows the theta from before the requests: its distance to today's would give the rows away.
    """
    if u.params["head"] != "influence" or u.params["prior"] != "newton":
        return None
    if isinstance(u.step, NewtonStep) and np.array_equal(u.step.anchor, u.theta):
        return None
    if isinstance(u.store, NoStore):
        done["head"] = "curvature kept: no rows are stored"
        return None
    report("curvature of the rows that stay", 0, 1)
    done["head"] = "curvature of the rows that stay"
    hessian = np.zeros((u.theta.size, u.theta.size))
    for X, y in u.retained().blocks():
        hessian += len(X) / u.n * u.model.hessian(u.theta, X, y)
    u.step = newton_step(u.model, u.theta, hessian, u.n, None)
    return u.step.inverse_hessian(u.n)
