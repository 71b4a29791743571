"""The head for models whose sums are not kept, the MLP and multinomial logistic regression: secant steps. Logistic
regression of two classes and so many features that third derivatives would take more memory than the rows has it too.

It keeps a base point b, the exact sum S of the gradients there of the rows that stay, and an inverse Hessian W of the
latest seal. A request takes the rows' gradients at b out of S, and the model is

    theta' = b - W (S / n + gradient of the penalty at b)

so the instant answer needs no pass over the data and depends, up to rounding, on the set of rows that left, not on how
they were cut into requests. A pass with the rows that stay moves b to theta' and makes S exact there; what is left of
the gradient is both the error estimate and a secant pair, from which W learns (good Broyden). The seal goes on until
rounding stops it, at the optimum of the rows that stay, and makes W anew; theta is rounded, because its last bits would
tell the way.

Before any pass the estimate is what W does not know yet. For the MLP: how the gradients of the rows that left change
along the step. Multinomial logistic regression is convex, so its Hessian can lose the rows too (W is then what
conjugate gradients start from); what is left is the bend of the gradient, W T[step, step] / 2 with T the third
derivatives. Its length is that of random projections: for a few fixed normal vectors z the matrix T[W z] is kept, from
a sample of rows. The MLP's Hessian would not stay positive, and keeps W.

The MLP of two classes is anchored: its penalty mu / 2 |theta - g|^2 pulls to a point g trained on some of the rows, the
anchor rows, and rounded to a coarse grid. g and mu are numbers chosen on D, like lam. Retraining is the fit of the rows
that stay from g. A request leaves g alone, whichever rows it holds; the seal continues the anchor's training from g on
the anchor rows that stay and rounds again. So what is sealed is a function of the rows that stay (and of their numbers,
which say whether a row is an anchor row), but for mu and for the local optimum that g is in: a fit without the rows
gives the same bytes if its training finds the same. An anchor that the user gives is never moved.

Without an anchor (anchor_rows=0, or more classes) training is a function of the data and the seed, not of the data
alone: there is no optimum that an answer could be near to, `error` is None, `rtol` always trains, from where theta is,
and the seal trains from the start again.

All heads with an MLP share one anchor: `anchored_model` makes it, `moved_anchor` is its part of a seal, `anchor_rows`
says which rows it is trained on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.models.fit import Fit, weighted
from l2ul_fast.tables import BLOCK_ROWS, Block, Table
from l2ul_fast.unlearner.heads import base
from l2ul_fast.unlearner.heads.base import Arrays, Head, Ids, Report, Rows, Vector
from l2ul_fast.unlearner.passes import LocalPasses
from l2ul_fast.workers import Workers
from l2ul_kernels.codegen.jit import ensure_compiled
from l2ul_kernels.mlp.model import few_gradient, layout, padded_sums
from l2ul_kernels.simd.rows import rows_of
from l2ul_kernels.splitmix import GOLDEN, mix_all

Matrix = NDArray[np.float64]

#: Anchor rows unless said otherwise: a fifth of D within these bounds.
ANCHOR_ROWS = (4000, 20_000)
#: Parameters up to which W is kept.
MOST_PARAMETERS = 4096
#: Largest magnitude of a feature that an MLP is trained on.
LARGEST_VALUE = 1e30
#: Rows up to which a plain loop over them is fastest.
FEW = 32
#: Forgotten rows at most that the error estimate of an instant answer looks at again.
SAMPLE = 512
#: The step after a step that was off by q is off by at most CAUTION q.
CAUTION = 2.0
#: Secant pairs kept; passes after which the model is trained anew instead.
PAIRS, PASSES = 40, 8
#: An anchored optimum is only taken where the curvature is at least this share of mu.
LEAST_CURVATURE = 0.3
#: Eigenvalues of a plain MLP's Hessian count as this share of lam at least.
DAMPING = 0.1
#: Relative residual and iterations of conjugate gradients, after which W is made anew.
CG_TOL, CG_STEPS = 1e-9, 30
#: Rows up to which their Hessians are added by factors.
FEW_HESSIANS = 16

#: Projections of the third derivatives, and rows at most that they are taken from. The length of three projections is
#: less than a fifth of the expected one in 1 % of all cases.
PROJECTIONS, BEND_ROWS = 3, 4096
#: Largest mean gradient at which a seal with an older inverse is done, and with a new one.
SEALED, CONVERGED = 1e-12, 1e-9

NO_THIRDS = np.empty((0, 0, 0), np.float32)
PLAIN_TOL = 1e-6


# The anchor ----------------------------------------------------------------------------------------------------------


def anchor_rows(params: dict[str, Any], table: Table, again: bool = False) -> Ids:
    """Numbers of the anchor rows, ascending: those k whose numbers have the smallest hash under the seed. Without a row
    they are the same but for that row. again: rows may have left since k was asked for."""
    asked, ids = params["anchor_rows"], table.ids()
    if asked is not None and not again and not 20 <= asked <= ids.size:
        raise UserError(f"anchor_rows must be 0 or from 20 to {ids.size}, got {asked}")
    low, high = ANCHOR_ROWS
    k = min(ids.size, max(low, min(high, ids.size // 5)) if asked is None else asked)
    if k == ids.size:
        return np.asarray(ids, np.int64)
    z = mix_all(ids.astype(np.uint64) * GOLDEN + np.uint64(params["random_state"] % 2**64))
    return np.sort(ids[np.argsort(z, kind="stable")[:k]])


def is_anchored(params: dict[str, Any], classes: int) -> bool:
    """Whether the MLP that params ask for has an anchor."""
    return bool(classes == 2 and (params["anchor_rows"] != 0 or not isinstance(params.get("anchor", "grid"), str)))


def anchored_model(params: dict[str, Any], table: Table, report: Report) -> tuple[MLPModel, Fit, Ids]:
    """(MLP with anchor and mu, its fit on the rows of table, numbers of the anchor rows, none if params give one)."""
    plain = _plain(params, table)
    given = params.get("anchor", "grid")
    rows = np.empty(0, np.int64)
    if isinstance(given, str):
        report("train the anchor", 0, 2)
        rows = anchor_rows(params, table)
        anchor = plain.train_anchor(*table.take(rows), seed=params["random_state"])
    else:
        anchor = np.array(given, np.float64)
        if anchor.shape != (plain.size,) or not np.isfinite(anchor).all():
            raise UserError(f"the anchor must have {plain.size} finite numbers, got shape {anchor.shape}")
    report("train the model", 1, 2)
    model, found = plain.fit_anchored(table, anchor)
    if not found.converged:
        raise UserError(
            "no anchor strength makes retraining well defined here: raise lam, standardise the columns, or use "
            "anchor_rows=0"
        )
    return model, found, rows


def moved_anchor(params: dict[str, Any], model: MLPModel, table: Table) -> tuple[MLPModel, int]:
    """(model with the anchor that its training reaches on the anchor rows of table, coordinates that moved)."""
    rows = table.take(anchor_rows(params, table, again=True))
    anchor = model.train_anchor(*rows, seed=params["random_state"], near=model.anchor)
    moved = int((anchor != model.anchor).sum())
    return (model.with_anchor(anchor, model.mu) if moved else model), moved


def _plain(params: dict[str, Any], table: Table) -> MLPModel:
    return MLPModel(table.d, len(table.classes), params["hidden"], params["activation"], params["lam"])


# Fit -----------------------------------------------------------------------------------------------------------------


def fit(params: dict[str, Any], table: Table, size: int, report: Report) -> Any:
    """Train the model and build its head; `size`, the largest row number + 1, does not matter here."""
    from l2ul_fast.unlearner.fit import Fitted, Laps

    _check(params, table)
    lap = Laps()
    facts: dict[str, Any] = {"seconds": lap.seconds}
    model, found, rows = _train(params, table, report)
    facts |= {"gradient_norm": found.gradient_norm, "steps": found.steps}
    if getattr(model, "mu", None) is not None:
        facts |= {"anchored": True, "anchor_rows": int(rows.size), "mu": model.mu}
    elif model.name == "mlp":
        facts["anchored"] = False
    lap("train")
    report("curvature", 1, 2)
    options = {name: params[name] for name in ("anchor_rows", "random_state")}
    options["given"] = not isinstance(params["anchor"], str)
    head = Secant.sealed(model, table, found.theta, options)
    # below .7 retraining is a little less well defined (see MLPModel.choose_mu)
    if found.hessian is not None and facts.get("anchored"):
        facts["lowest_curvature_over_mu"] = float(np.linalg.eigvalsh(found.hessian)[0] / model.mu)
    lap("curvature")
    report("done", 2, 2)
    return Fitted(head, facts)


def _check(params: dict[str, Any], table: Table) -> None:
    """UserError for what this head has not."""
    what = "the MLP" if params["model"] == "mlp" else "logistic regression of more than two classes"
    if getattr(table, "weights", None) is not None:
        raise UserError(f"rows of {what} cannot have weights: leave sample_weight out")
    if params["penalty"] != "mean":
        raise UserError(f'{what} has penalty="mean" only, got {params["penalty"]!r}')
    if params["anchor"] != "grid" and (params["model"] != "mlp" or isinstance(params["anchor"], str)):
        raise UserError(f"{what} has no sums to expand at an anchor: leave `anchor` out")
    if params["anchor"] != "grid" and len(table.classes) > 2:
        raise UserError("the MLP has an anchor for two classes only: leave `anchor` out")
    p = _plain(params, table).size if params["model"] == "mlp" else LogisticModel(table.d, len(table.classes)).size
    if p > MOST_PARAMETERS:
        raise UserError(f"{p} parameters: the inverse Hessian is kept for up to {MOST_PARAMETERS}")
    if params["model"] == "mlp" and LocalPasses(table).columns().largest.max() > LARGEST_VALUE:
        raise UserError(
            f"a value of the data is beyond {LARGEST_VALUE:g}, too large for an MLP: standardise the columns"
        )


def _train(params: dict[str, Any], table: Table, report: Report) -> tuple[Any, Fit, Ids]:
    """(model, fit, anchor rows), from where every training starts."""
    none = np.empty(0, np.int64)
    if params["model"] == "mlp" and is_anchored(params, len(table.classes)):
        return anchored_model(params, table, report)
    report("train the model", 0, 2)
    if params["model"] == "mlp":
        model: Any = _plain(params, table)
        return model, _train_plain(model, table, params["random_state"]), none
    model = LogisticModel(table.d, len(table.classes), params["lam"])
    return model, model.fit(table), none


def _train_plain(model: MLPModel, table: Table, seed: int) -> Fit:
    return model.fit(table, seed=seed, tol=PLAIN_TOL)


# Sums over rows ------------------------------------------------------------------------------------------------------


def gradient_sum(model: Any, X: NDArray[Any], y: NDArray[Any], theta: Vector, weights: Vector | None = None) -> Vector:
    """(p,) gradients, without penalty, summed over rows X (r, d), y (r,) times weights (r,) of 0 and 1."""
    out = np.zeros(theta.size)
    if model.name != "mlp":
        model._add_sums(theta, X, y, out, None, weights)
        return out
    lay = layout(model.d, model.h, model.n_classes, model.activation)
    if len(X) <= FEW and weights is None:
        what = (theta, lay.h, lay.o, lay.relu, np.empty(lay.h + lay.o), out)
        ensure_compiled(("mlp few", X.dtype), lambda: few_gradient(X[:0], y[:0], *what))
        few_gradient(X, y, *what)
        return out
    rows = rows_of(X, y, weights)
    return np.asarray(padded_sums(rows, len(X), lay.pad(theta[None]), lay, False)[0, lay.where])


def table_sum(model: Any, table: Any, theta: Vector) -> Vector:
    """The same over all rows of table: one pass."""
    total = np.zeros(theta.size)
    for X, y, weights in weighted(table):
        total += gradient_sum(model, X, y, theta, weights)
    return total


class EvenBlocks:
    """The visible rows of a table in blocks of equal size, so that sums have the bits they have where there never were
    other rows."""

    def __init__(self, table: Table) -> None:
        self.table, self.n, self.d = table, table.n, table.d

    def blocks(self) -> Iterator[Block]:
        parts: list[Block] = []
        held = 0
        for X, y in self.table.blocks():
            at = 0
            while at < len(X):
                end = min(len(X), at + BLOCK_ROWS - held)
                if end - at == BLOCK_ROWS:
                    yield X[at:end], y[at:end]
                else:
                    parts.append((X[at:end].copy(), y[at:end].copy()))
                    held += end - at
                if held == BLOCK_ROWS:
                    yield _joined(parts)
                    parts, held = [], 0
                at = end
        if held:
            yield _joined(parts)


def _joined(parts: list[Block]) -> Block:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])


def hessian_sum(model: LogisticModel, blocks: Iterable[Block], theta: Vector) -> Matrix:
    """(p, p), without penalty, summed over blocks of rows."""
    total = np.zeros((theta.size, theta.size))
    for X, y in blocks:
        model._add_sums(theta, X, y, np.zeros(theta.size), total)
    return total


def hessian_of_rows(model: LogisticModel, X: NDArray[Any], y: NDArray[Any], theta: Vector) -> Matrix:
    """The same of rows X (r, d), y (r,): for a few of them their factors are faster than blocks of rows."""
    if model.n_classes == 2 or len(X) > FEW_HESSIANS:
        return hessian_sum(model, [(X, y)], theta)
    P = model.predict_proba(theta, X)
    roots = np.sqrt(P)
    factors = roots[:, :, None] * np.eye(P.shape[1]) - P[:, :, None] * roots[:, None, :]  # F F' = diag(P) - P P'
    swapped = factors.swapaxes(1, 2)
    each = np.concatenate([(swapped[..., None] * X[:, None, None, :]).reshape(*P.shape, -1), swapped], axis=2)
    each = each.reshape(-1, theta.size)
    return np.asarray(each.T @ each)


def third_along(model: LogisticModel, X: NDArray[Any], theta: Vector, q: Vector) -> Matrix:
    """(p, p) third derivatives at theta (p,) summed over rows X (r, d), times q (p,): the slope of their Hessian."""
    C, d = model.n_classes, model.d
    if C == 2:
        s, wide = model.predict_proba(theta, X)[:, 1], np.hstack([X, np.ones((len(X), 1))])
        return np.asarray((wide.T * (s * (1 - s) * (1 - 2 * s) * model.logits(q, X))) @ wide)
    order = np.append(np.arange(C * d).reshape(C, d), np.arange(C * d, C * (d + 1))[:, None], axis=1).ravel()
    P, wide = model.predict_proba(theta, X), np.hstack([X, np.ones((len(X), 1))])
    along = model.logits(q, X)
    change = P * (along - (P * along).sum(axis=1, keepdims=True))  # of P
    cross = _each(P, wide).T @ _each(change, wide)  # the Hessian is diag(P) - P P' in the classes
    total = -(cross + cross.T)
    for c in range(C):
        own = slice(c * (d + 1), (c + 1) * (d + 1))
        total[own, own] += (wide * change[:, c, None]).T @ wide
    out = np.empty_like(total)
    out[np.ix_(order, order)] = total
    return out


def _each(values: Matrix, wide: Matrix) -> Matrix:
    """(r, C (d + 1)) values (r, C) times rows (r, d + 1)."""
    return (values[:, :, None] * wide[:, None, :]).reshape(len(wide), -1)


def projected_thirds(model: LogisticModel, rows: Any, theta: Vector, W: NDArray[np.float32]) -> NDArray[np.float32]:
    """(PROJECTIONS, p, p) mean third derivatives times W z, z fixed normal vectors, of BEND_ROWS rows at most."""
    Q = np.random.default_rng(0).normal(size=(PROJECTIONS, theta.size)) @ W
    every, seen, used = -(-rows.n // BEND_ROWS), 0, 0
    total = np.zeros((PROJECTIONS, theta.size, theta.size))
    for X, _ in rows.blocks():
        some = np.asarray(X[-seen % every :: every], np.float64)
        for start in range(0, len(some), 512):
            part = some[start : start + 512]
            total += np.stack([third_along(model, part, theta, q) for q in Q])
        seen, used = seen + len(X), used + len(some)
    return np.asarray((total + total.swapaxes(1, 2)) / (2 * used), np.float32)


def fixed_curvature(model: LogisticModel) -> Matrix:
    """What the penalty adds to the mean Hessian, and the gauge: one number added to all intercepts of a softmax changes
    nothing, so any curvature may stand for that direction."""
    free = ~model._penalised & (model.n_classes > 2)
    return np.asarray(model.lam * np.diag(model._penalised) + np.outer(free, free), np.float64)


def inverted(matrix: Matrix, floor: float) -> NDArray[np.float32]:
    """Symmetric inverse; eigenvalues below `floor` (or so) count as positive and as `floor` at least."""
    if _above(matrix, floor):
        W = np.linalg.inv(matrix)
    else:
        values, vectors = np.linalg.eigh(matrix)
        W = (vectors / np.maximum(np.abs(values), floor)) @ vectors.T
    return np.asarray(0.5 * (W + W.T), np.float32)


class Inverse:
    """An inverse Hessian W (p, p) in float32, plus rank-one terms a b' learned from secant pairs."""

    def __init__(self, W: NDArray[np.float32]) -> None:
        self.W = W
        self.a = self.b = np.empty((0, len(W)))

    def __matmul__(self, v: Vector) -> Vector:
        return self._times(v, self.a, self.b)

    def _times(self, v: Vector, a: Matrix, b: Matrix) -> Vector:
        out = self._without_pairs(v)
        return out + (b @ v) @ a if len(a) else out

    def _without_pairs(self, v: Vector) -> Vector:
        size = float(np.abs(v).max())
        if not 0 < size < np.inf:
            return np.full(v.size, size * 0.0)
        return np.asarray(self.W @ (v / size).astype(np.float32), np.float64) * size  # else float32 might underflow

    def change(self, model: Any, X: NDArray[Any], y: NDArray[Any], theta: Vector, sign: int, n: int) -> None:
        """Add (sign 1) or remove (-1) rows X (r, d), y (r,), after which there are n: W stays as it is."""

    def arrays(self) -> Arrays:
        """What is saved, but for the pairs."""
        return {"secant.inverse": self.W[np.tril_indices(len(self.W))]}

    def learn(self, step: Vector, change: Vector) -> None:
        """Good Broyden: afterwards self @ change = step."""
        moved, back = self @ change, self._times(step, self.b, self.a)
        along = float(step @ moved)
        if abs(along) > 0.05 * float(step @ step):  # else the update would be singular
            keep = 0 if len(self.a) == PAIRS else len(self.a)
            self.a = np.vstack([self.a[:keep], step - moved])
            self.b = np.vstack([self.b[:keep], back / along])


class InverseOfSum(Inverse):
    """The same of total / n + fixed, total (p, p) a sum over n rows that can change; W is only what conjugate gradients
    take for the inverse."""

    def __init__(self, total: Matrix, fixed: Matrix, n: int) -> None:
        self.total, self.fixed, self.n = total, fixed, n
        super().__init__(inverted(total / n + fixed, 0.0))

    def change(self, model: Any, X: NDArray[Any], y: NDArray[Any], theta: Vector, sign: int, n: int) -> None:
        self.total, self.n = self.total + sign * hessian_of_rows(model, X, y, theta), n

    def arrays(self) -> Arrays:
        return {"secant.hessian": self.total[np.tril_indices(len(self.W))]}

    def _without_pairs(self, v: Vector) -> Vector:
        x, found = self._conjugate_gradients(v)
        if not found:
            self.W = inverted(self.total / self.n + self.fixed, 0.0)
            x, _ = self._conjugate_gradients(v)
        return x

    def _conjugate_gradients(self, v: Vector) -> tuple[Vector, bool]:
        x, rest = np.zeros(v.size), v.copy()
        goal = CG_TOL * float(np.linalg.norm(v))
        z = super()._without_pairs(rest)
        along, size = z, float(rest @ z)
        for _ in range(CG_STEPS):
            if not float(np.linalg.norm(rest)) > goal:
                return x, True
            ahead = self.total @ along / self.n + self.fixed @ along
            step = size / float(along @ ahead)
            x, rest = x + step * along, rest - step * ahead
            z = super()._without_pairs(rest)
            size, before = float(rest @ z), size
            along = z + size / before * along
        return x, False


# The head ------------------------------------------------------------------------------------------------------------


class Secant(Head):
    """See the module. `sealed` makes one; in between, `due` says that a seal should follow."""

    kind: ClassVar[str] = "secant"

    def __init__(
        self,
        model: Any,
        options: dict[str, Any],
        counts: Ids,
        theta: Vector,
        total: Vector,
        inverse: Inverse,
        thirds: Any,
    ) -> None:
        """theta (p,) is where total (p,), the sum of the rows' gradients, was taken. thirds: see projected_thirds, none
        for an MLP."""
        self.model, self.options, self.inverse, self.thirds = model, options, inverse, thirds
        self._counts, self._n = counts, int(counts.sum())
        self.tier = "sealed"
        self._theta = self._base = self._first = theta
        self._total, self._penalty = total, model.penalty_gradient(theta)
        self._touched = False
        self.well_defined = True
        self._unseen = np.zeros(theta.size)  # what rows that left do to the gradient per unit of step, still in W
        self._rows_of_inverse = self._n
        self._behind = 0.0  # estimated distance of the base's own step to its target
        self._off = 0.0  # how far off, as a share, steps of the inverse were when last looked at
        self._error = 0.0

    @classmethod
    def sealed(
        cls, model: Any, table: Table, start: Vector, options: dict[str, Any], inverse: Inverse | None = None
    ) -> Secant:
        """At the optimum of the rows of table near `start`, down to rounding; inverse: of the Hessian near there."""
        rows = EvenBlocks(table)
        theta, norm = _polished(model, rows, start, inverse or _inverse_at(model, rows, start)[0])
        if not norm < SEALED and inverse is not None:  # it was of other rows, or of a point too far away
            theta, norm = _polished(model, rows, theta, _inverse_at(model, rows, theta)[0])
        if not norm < CONVERGED and not _is_plain(model):
            found = model.fit(table, start=theta)
            if not found.converged:
                raise UserError("training does not converge on the rows that stay: fit again, with a larger lam")
            theta, _ = _polished(model, rows, found.theta, _inverse_at(model, rows, found.theta)[0])
        theta = base.on_grid(theta)
        counts = np.bincount(np.asarray(table.y)[table.ids()], minlength=len(table.classes)).astype(np.int64)
        made_of, well_defined = _inverse_at(model, rows, theta)
        thirds = NO_THIRDS if model.name == "mlp" else projected_thirds(model, rows, theta, made_of.W)
        made = cls(model, options, counts, theta, table_sum(model, rows, theta), made_of, thirds)
        made.well_defined = well_defined
        return made

    # Look ------------------------------------------------------------------------------------------------------------

    @property
    def error(self) -> float | None:
        """Estimated rho of everything that changed since the latest seal; None where retraining is not well defined."""
        return None if self._plain else self._error

    @property
    def due(self) -> str | None:
        return base.NOT_AT_OPTIMUM if self._touched else None

    @property
    def _plain(self) -> bool:
        return _is_plain(self.model)

    # Request ---------------------------------------------------------------------------------------------------------

    def forget(self, rows: Rows) -> None:
        """Take rows out: their gradients at one or two points, no pass over the others."""
        self._change(rows, -1)

    def learn(self, rows: Rows) -> None:
        """Add rows: the same with the other sign."""
        self._change(rows, 1)

    def _change(self, rows: Rows, sign: int) -> None:
        r = len(rows.y)
        if not r:
            return
        if self._n + sign * r < 1:
            raise UserError("the request takes out all rows: delete the model instead")
        before = self.__dict__ | {"inverse": copy.copy(self.inverse)}  # none of its arrays is changed in place
        try:
            self._change_all(rows, sign)
            if not np.isfinite(self._theta).all():
                raise UserError("the answer would not be finite: the rows hold values too large for this model")
        except BaseException:
            self.__dict__ = before
            raise

    def _change_all(self, rows: Rows, sign: int) -> None:
        X, y, model, inverse = rows.X, rows.y, self.model, self.inverse
        r, n = len(y), self._n + sign * len(y)
        at_base = gradient_sum(model, X, y, self._base)
        inverse.change(model, X, y, self._first, sign, n)
        self._total = self._total + sign * at_base
        self._counts = self._counts + sign * np.bincount(y, minlength=self._counts.size)
        self._n = n
        self._touched, self.tier = True, "instant"
        step = self._step_from_base()
        size = float(np.linalg.norm(step))
        off = self._off + self._bend(step)
        if model.name == "mlp" and size > 0:  # what these rows do along the step is still in W, or not yet
            every = -(-r // SAMPLE)
            some, marks = X[::every], y[::every]
            if every > 1:
                at_base = gradient_sum(model, some, marks, self._base)
            change = gradient_sum(model, some, marks, self._theta) - at_base
            self._unseen = self._unseen - sign * change * (r / (len(marks) * size))
            off += self._outdated(step / size)
        self._error = self._share(self._behind + off * size)

    def _outdated(self, unit: Vector) -> float:
        """How far W is off along a direction (p,) because rows have left: they are still in the mean Hessian that it is
        the inverse of, so it lacks their part and the greater share of the others."""
        grown = self._rows_of_inverse / self._n - 1.0
        data = unit - self.inverse @ (self.model.strength * unit)
        return float(np.linalg.norm(grown * data - self.inverse @ (self._unseen / self._n)))

    def _step_from_base(self) -> Vector:
        """Set theta by one step from the base; (p,) the step."""
        step = -(self.inverse @ self._residual())
        self._theta = self._base + step
        return step

    def _residual(self) -> Vector:
        """(p,) gradient of the objective of the rows that stay, at the base."""
        return np.asarray(self._total / self._n + self._penalty)

    def _bend(self, step: Vector) -> float:
        """Estimated length of W T[step, step] / 2, as a share of the step's."""
        size = float(np.linalg.norm(step))
        if not len(self.thirds) or not size > 0:
            return 0.0
        along = (step / size).astype(np.float32)
        return 0.5 * size * float(np.sqrt(np.mean(((self.thirds @ along) @ along).astype(np.float64) ** 2)))

    def _share(self, distance: float) -> float:
        """A distance in units of what changed since the latest seal."""
        moved = float(np.linalg.norm(self._theta - self._first))
        if moved <= 1e-14 * float(np.linalg.norm(self._theta)):
            return 0.0
        return distance / moved

    # Passes ----------------------------------------------------------------------------------------------------------

    def refine(self, table: Table, rtol: float) -> None:
        """Secant steps, a pass over the rows that stay each, until the error is at most rtol."""
        passes = 0
        while self._plain or not self._error <= rtol:
            passes += 1
            if self._plain or passes > PASSES:
                self._train_on(table)
                return
            self._pass(table)
            self.tier = "secant steps"

    def _pass(self, table: Table) -> None:
        """Move the base to theta, learn from what the gradient does on the way, step."""
        before, last = self._residual(), self._theta - self._base
        self._move_base(table)
        after = self._residual()
        self.inverse.learn(last, after - before)
        step = self._step_from_base()
        size, size_before = float(np.linalg.norm(step)), float(np.linalg.norm(last))
        self._off = size / size_before if size_before > 0 else 0.0
        self._behind = size * min(CAUTION * self._off, 1.0)
        self._error = self._share(self._behind)
        if not np.isfinite(self._error) or self._off > 1:
            self._error = np.inf

    def _move_base(self, table: Table) -> None:
        self._base, self._penalty = self._theta, self.model.penalty_gradient(self._theta)
        self._total = table_sum(self.model, table, self._theta)
        self._unseen, self._rows_of_inverse = np.zeros(self._theta.size), self._n

    def _train_on(self, table: Table) -> None:
        """Secant steps do not get there: train from the latest seal."""
        if self._plain:
            found = self.model.fit(table, start=self._theta, tol=PLAIN_TOL)
        else:
            found = self.model.fit(table, start=self._first)
        self._theta = found.theta
        self._move_base(table)
        self._off = 0.0
        self._behind = float(np.linalg.norm(self.inverse @ self._residual()))
        self._error = self._share(self._behind)
        self.tier = "trained again"

    # Seal ------------------------------------------------------------------------------------------------------------

    def refresh(
        self, table: Table | None, forgotten: Ids, report: Report, workers: Workers | None = None
    ) -> dict[str, Any]:
        """Seal: everything that is kept becomes a function of the rows that stay (see the module)."""
        why = self.due
        if why is None:
            return {"sealed": False, "why": None}
        if table is None:
            raise UserError(f"{why}, and the rows are not kept (store_rows=False): fit again")
        done: dict[str, Any] = {"sealed": True, "why": why}
        model, start = self.model, self._theta
        inverse: Inverse | None = self.inverse
        if self._plain:
            report("train on the rows that stay", 0, 2)
            start, inverse = _train_plain(model, table, self.options["random_state"]).theta, None
        elif model.name == "mlp" and not self.options["given"]:
            report("train the anchor", 0, 2)
            model, done["anchor_moved"] = moved_anchor(self.options, model, table)
            if done["anchor_moved"]:
                start, inverse = model.fit(table).theta, None
        report("the optimum of the rows that stay", 1, 2)
        made = Secant.sealed(model, table, start, self.options, inverse)
        if model.name == "mlp" and not self._plain and not made.well_defined:
            model, found = model.fit_anchored(table, model.anchor)
            if not found.converged:
                raise UserError("no anchor strength makes retraining well defined on the rows that stay: fit again")
            made, done["mu"] = Secant.sealed(model, table, found.theta, self.options), model.mu
        self.__dict__ = made.__dict__
        report("done", 2, 2)
        return done

    # Keep ------------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        found = {"options": self.options, "mu": getattr(self.model, "mu", None), "tier": self.tier}
        if not self._touched:
            return found
        error = self._error if np.isfinite(self._error) else None
        known = {"behind": self._behind, "off": self._off, "error": error, "rows": self._rows_of_inverse}
        return found | {"open": known}

    def arrays(self) -> Arrays:
        found: Arrays = {"secant.theta": self._theta, "secant.total": self._total, "secant.counts": self._counts}
        found |= self.inverse.arrays()
        if len(self.thirds):
            found["secant.thirds"] = self.thirds[:, *np.tril_indices(self._theta.size)]
        if getattr(self.model, "anchor", None) is not None:
            found["secant.anchor"] = self.model.anchor
        if self._touched:
            found |= {"secant.base": self._base, "secant.first": self._first, "secant.unseen": self._unseen}
            found |= {"secant.steps": self.inverse.a, "secant.changes": self.inverse.b}
        return found

    @classmethod
    def from_arrays(cls, model: Any, facts: dict[str, Any], arrays: Arrays) -> Secant:
        """What `arrays` and `facts` gave; ValueError if they do not fit each other."""
        p, options, opened = model.size, dict(facts["options"]), facts.get("open")
        triangle = p * (p + 1) // 2
        shapes: dict[str, Any] = {"theta": (p,), "total": (p,)}
        if model.name == "mlp" and facts["mu"] is not None:
            shapes["anchor"] = (p,)
        if model.name == "mlp":
            shapes["inverse"] = (triangle,)
        else:
            shapes |= {"hessian": (triangle,), "thirds": (PROJECTIONS, triangle)}
        if opened is not None:
            k = len(arrays["secant.steps"])
            shapes |= {"base": (p,), "first": (p,), "unseen": (p,), "steps": (k, p), "changes": (k, p)}
        found = {}
        for name, shape in shapes.items():
            kind = np.float32 if name in ("inverse", "thirds") else np.float64
            found[name] = base.checked(f"secant.{name}", arrays, shape, kind)
        counts = base.checked_counts("secant.counts", arrays, model.n_classes)
        if "anchor" in found:
            model = model.with_anchor(found["anchor"], float(facts["mu"]))
        if model.name == "mlp":
            inverse, thirds = Inverse(_whole(found["inverse"], p)), NO_THIRDS
        else:
            inverse = InverseOfSum(_whole(found["hessian"], p), fixed_curvature(model), int(counts.sum()))
            thirds = _whole(found["thirds"], p)
        made = cls(model, options, counts, found["theta"], found["total"], inverse, thirds)
        made.tier = str(facts["tier"])
        if opened is not None:
            made._touched, made._base, made._first = True, found["base"], found["first"]
            made._penalty, made._unseen = model.penalty_gradient(found["base"]), found["unseen"]
            inverse.a, inverse.b = found["steps"], found["changes"]
            made._behind, made._off = float(opened["behind"]), float(opened["off"])
            made._error = np.inf if opened["error"] is None else float(opened["error"])
            made._rows_of_inverse = int(opened["rows"])
        return made


def _is_plain(model: Any) -> bool:
    """Whether training is not a function of the data alone."""
    return model.name == "mlp" and model.anchor is None


def _polished(model: Any, rows: EvenBlocks, start: Vector, inverse: Inverse) -> tuple[Vector, float]:
    """(theta, norm of the gradient there) by steps from `start`, as long as each halves the gradient."""
    best = theta = start
    norm = np.inf
    while True:
        residual = table_sum(model, rows, theta) / rows.n + model.penalty_gradient(theta)
        now = float(np.linalg.norm(residual))
        if not now < 0.5 * norm:
            return best, norm
        best, norm = theta, now
        theta = theta - inverse @ residual


def _inverse_at(model: Any, rows: EvenBlocks, theta: Vector) -> tuple[Inverse, bool]:
    """Of the Hessian of the objective at theta; whether an optimum there is the only one around."""
    if model.name != "mlp":
        return InverseOfSum(hessian_sum(model, rows.blocks(), theta), fixed_curvature(model), rows.n), True
    matrix = model.hessian_of(theta, rows)
    return Inverse(inverted(matrix, DAMPING * model.strength)), _above(matrix, LEAST_CURVATURE * model.strength)


def _whole(lower: NDArray[Any], p: int) -> NDArray[Any]:
    """(..., p, p) symmetric matrices by their lower triangles (..., p (p + 1) / 2)."""
    whole = np.zeros((*lower.shape[:-1], p, p), lower.dtype)
    j, k = np.tril_indices(p)
    whole[..., j, k] = whole[..., k, j] = lower
    return whole


def _above(matrix: Matrix, floor: float) -> bool:
    """Whether all eigenvalues are above floor."""
    try:
        np.linalg.cholesky(matrix - floor * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        return False
    return True
