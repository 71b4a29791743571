"""`fit` and `refresh` of the MLP: anchored (retraining is then a function of the data), or plain training."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.models import MLPModel
from l2ul_fast.tables import Table, in_memory
from l2ul_fast.unlearner.cellstate import CellState
from l2ul_fast.unlearner.fitting import Fitted, Report, direct_step, labels_of, refuse_nothing, subset_size
from l2ul_fast.unlearner.learned import Learned
from l2ul_fast.unlearner.pairs import Pairs, full_pairs, subset_pairs
from l2ul_fast.unlearner.ridge import RidgeHead
from l2ul_fast.unlearner.steps import AnchoredStep, LinearStep, Step

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

#: Rows per subset pair, as in the paper.
SUBSET_MLP = 3000
#: Anchor rows unless said otherwise: a fifth of D within these bounds.
ANCHOR_ROWS = (4000, 20_000)
#: Full pairs are trained on at most this many rows.
PAIR_ROWS = 100_000
#: Rows that the noise floor of plain training is measured on.
FLOOR_ROWS = 20_000
#: W is kept in float32 from this size on: a request then reads half the bytes.
SINGLE = 100


def fit(params: dict[str, Any], table: Table, size: int, report: Report, client: Any = None) -> Fitted:
    """Train the MLP and its unlearner; `size` is the largest row number + 1. Workers of `client` make the pairs."""
    times: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        times[name], clock = now - clock, now

    seeds = np.random.SeedSequence(params["random_state"]).spawn(4)
    plain = MLPModel(table.d, len(table.classes), params["hidden"], params["activation"], params["lam"])
    anchored = params["head"] == "influence" and params["anchor_rows"] != 0 and plain.n_classes == 2
    facts: dict[str, Any] = {"seconds": times, "anchored": anchored}
    report("train the model", 0, 1)
    rows = None
    if anchored:
        rows = draw_anchor(params, table, np.random.default_rng(seeds[0]))
        anchor = plain.train_anchor(*table.take(rows), seed=params["random_state"])
        model, found = plain.fit_anchored(table, anchor)
        facts |= {"anchor_rows": int(rows.size), "mu": model.mu}
        if found.hessian is not None:  # below .7 retraining is a little less well defined (see MLPModel.choose_mu)
            facts["lowest_curvature_over_mu"] = float(np.linalg.eigvalsh(found.hessian)[0] / model.mu)
        if not found.converged:
            raise UserError("no anchor strength makes retraining well defined here: raise lam, or use anchor_rows=0")
    else:
        model, found = plain, plain.fit(table, seed=params["random_state"], tol=1e-6)
    facts |= {"gradient_norm": found.gradient_norm, "steps": found.steps}
    lap("train")
    report("embed the rows", 0, 1)
    cells = CellState.build(table, size, params["t"], params["psi"], params["random_state"])
    lap("embed")
    if anchored:
        pairs, base = anchored_pairs(params, model, table, found, seeds[1], report, client)
    else:
        s = params["s"] if params["s"] is not None else min(SUBSET_MLP, table.n // 2)
        s = subset_size({**params, "s": s}, table.n)
        rng = np.random.default_rng(seeds[1])
        pairs = subset_pairs(model, table, labels_of(table), params["m"], s, rng, client=client)
        base = found
    lap("pairs")
    facts |= {"m": len(pairs), "rejected": pairs.rejected, "pair_rows": int(pairs.n[0])}
    newton = params["head"] == "influence" and params["prior"] == "newton" and found.hessian is not None
    learned = Learned.of(pairs, _inverse(base.hessian) if newton else None)
    if params["head"] == "direct":
        step: Step = direct_step(params, model, pairs, cells, found.theta, table.n, learned, facts, report)
    else:
        W = influence_matrix(newton, pairs, found, base, learned, facts)
        step = linear(model, W, rows, size, table)
    lap("head")
    report("done", 1, 1)
    return Fitted(found.theta, model, cells, step, learned, facts)


def draw_anchor(params: dict[str, Any], table: Table, rng: np.random.Generator) -> NDArray[np.int64]:
    """Row numbers of the anchor rows, ascending, with every class among them."""
    low, high = ANCHOR_ROWS
    k = params["anchor_rows"] if params["anchor_rows"] is not None else max(low, min(high, table.n // 5))
    if params["anchor_rows"] is not None and not 20 <= k <= table.n:
        raise UserError(f"anchor_rows must be 0 or from 20 to {table.n}, got {k}")
    ids = table.ids()
    return np.sort(rng.choice(ids, min(k, ids.size), replace=False))


def _inverse(hessian: NDArray[np.float64]) -> NDArray[np.float64]:
    inverse = np.linalg.inv(hessian)
    return 0.5 * (inverse + inverse.T)


def anchored_pairs(
    params: dict[str, Any], model: Any, table: Table, found: Any, seed: Any, report: Report, client: Any = None
) -> tuple[Pairs, Any]:
    """Full pairs on D, or on a fixed sample of it with its own optimum when D is large; also that optimum's fit."""
    ids = table.ids()
    rng = np.random.default_rng(seed)
    base = found
    if table.n > PAIR_ROWS:
        ids = np.sort(rng.choice(ids, PAIR_ROWS, replace=False))
        X, y = table.take(ids)
        base = model.fit((X, y), start=found.theta)
    else:
        rows = in_memory(table)
        X, y = rows.X, rows.y
    m = params["m"] if params["prior"] == "newton" else max(params["m"], int(2.5 * model.size) + 1)
    pairs = full_pairs(model, X, y, ids, base, m, rng, lambda done, total: report("train pairs", done, total), client)
    return pairs, base


def influence_matrix(
    newton: bool, pairs: Pairs, found: Any, base: Any, learned: Learned, facts: dict[str, Any]
) -> NDArray[np.float64]:
    """W of the influence head; the correction is measured at `base` and added to the inverse Hessian at `found`."""
    prior = _inverse(base.hessian) if newton else None
    head = RidgeHead.fit(pairs.Z, pairs.T, prior)
    facts["head"] = dict(head.loo)
    if prior is None:
        refuse_nothing(head)
        learned.pairs, learned.head = pairs, head
        return head.W
    inverse = _inverse(found.hessian)
    if np.isinf(head.strength):
        return inverse
    learned.pairs, learned.head = pairs, head
    return inverse + (head.W - prior)


def linear(
    model: Any, W: NDArray[np.float64], anchor_rows: NDArray[np.int64] | None, size: int, table: Table
) -> LinearStep:
    """The step for a matrix W."""
    kept = np.ascontiguousarray(W, np.float32 if len(W) > SINGLE else np.float64)
    if anchor_rows is None:
        return LinearStep(model, kept)
    return AnchoredStep(model, kept, anchor_rows, size, table.take)


def refresh(u: L2UL, done: dict[str, Any], reanchor: bool, report: Report) -> None:
    """Take the Hessian (and pairs, where a learned part is in use) from the rows that stay."""
    table = u.retained()
    if reanchor:
        report("train on the rows that stay", 0, 1)
        u.theta = u.model.fit(table, start=u.theta).theta
        done["reanchored"] = True
    if not isinstance(u.step, LinearStep):
        return
    report("curvature of the rows that stay", 0, 1)
    step = u.step
    model = step.model
    hessian = model.hessian_of(u.theta, table)
    found = _At(u.theta, hessian)
    W = _inverse(hessian)
    done["head"] = "curvature of the rows that stay"
    if u.learned.pairs is not None:
        seed = np.random.SeedSequence([u.params["random_state"], int((u.gone == 1).sum())])
        facts: dict[str, Any] = {}
        newton = u.params["prior"] == "newton"
        if isinstance(step, AnchoredStep):
            pairs, base = anchored_pairs(u.params, model, table, found, seed, report)
        else:
            s = int(u.learned.pairs.n[0])
            rng = np.random.default_rng(seed)
            pairs, base = subset_pairs(model, table, labels_of(table), u.params["m"], s, rng), found
        done["pairs"] = len(u.learned.pairs)
        fresh = Learned.of(pairs, _inverse(base.hessian) if newton else None)
        W = influence_matrix(newton, pairs, found, base, fresh, facts)
        u.learned = fresh
        done["head"] = "new pairs on the rows that stay"
    step.W = np.ascontiguousarray(W, step.W.dtype)


def noise_floor(u: L2UL) -> float:
    """Share of the rows (FLOOR_ROWS at most) that the same training from another start answers otherwise."""
    table = u.retained()
    other = u.model.fit(table, seed=u.params["random_state"] + 1, tol=1e-6, curvature=False).theta
    ids = table.ids()
    if ids.size > FLOOR_ROWS:
        ids = np.sort(np.random.default_rng(u.params["random_state"]).choice(ids, FLOOR_ROWS, replace=False))
    X = table.take(ids)[0]
    return float((u.model.predict(u.theta, X) != u.model.predict(other, X)).mean())


class _At:
    """A point and its Hessian, in the form of a fit."""

    def __init__(self, theta: NDArray[np.float64], hessian: NDArray[np.float64]) -> None:
        self.theta, self.hessian = theta, hessian
