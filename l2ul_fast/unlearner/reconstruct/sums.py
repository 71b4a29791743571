"""Attacks on sums over rows: what was saved, minus what the rows that stay give by themselves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner.heads.expansion import Expansion
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.reconstruct.evidence import INHERENT, OUTSIDE, ROW, UNKNOWN_ROWS, Attack, Evidence, Vector
from l2ul_kernels.linear import integer_sums as ints
from l2ul_kernels.linear.losses import LOGISTIC, NAMES, SQUARED
from l2ul_kernels.request.claims import PRESENT

#: Parameters up to which all third derivatives are made at once.
MOST_PARAMETERS = 150
#: Rows whose gradients say which of them can have moved a grid point.
TRIED = 1000
#: Training pairs that are looked at; Hessians that differ by more than this share are not near.
PAIRS, NEAR = 5000, 0.1


# Objectives ----------------------------------------------------------------------------------------------------------


class Objective(NamedTuple):
    """The sum of losses that theta should minimise, over the rows that stay: derivatives at theta (p,).

    third(theta) is (p, p, p). `penalty` is what the gradient of the penalty gains with each unit of weight.
    """

    gradient: Callable[[Vector], Vector]
    hessian: Callable[[Vector], Vector]
    third: Callable[[Vector], Vector]
    penalty: Callable[[Vector], Vector]


def objective_of(e: Evidence) -> Objective | None:
    """Of the rows that stay, computed here and not by the code under attack where the model is linear."""
    if e.X is None or e.y is None:
        return None
    if is_linear(e.u):
        return _linear(e, e.X, e.y)
    model, X, y, n, gauge = e.u.model, e.X, e.y, float(len(e.X)), _gauge(e.u.model)

    def hessian(theta: Vector) -> Vector:
        return n * (np.asarray(model.hessian(theta, X, y)) + gauge)

    def third(theta: Vector) -> Vector:
        h = 1e-4
        return np.stack([(hessian(theta + s) - hessian(theta - s)) / (2 * h) for s in h * np.eye(theta.size)])

    return Objective(
        lambda theta: n * (model.data_gradient(theta, X, y) + model.penalty_gradient(theta)),
        hessian,
        third,
        model.penalty_gradient,
    )


def _linear(e: Evidence, X: Vector, y: NDArray[Any]) -> Objective:
    constant, per_weight = penalty_of(e.u)
    weights = np.ones(len(X)) if e.weights is None else e.weights
    strength, loss = constant + per_weight * float(weights.sum()), NAMES.index(e.u.model.loss_name)
    wide, penalised = np.hstack([X, np.ones((len(X), 1))]), np.arange(e.d + 1) < e.d

    def derivative(theta: Vector, order: int) -> Vector:
        return weights * _derivatives(loss, wide @ theta, y)[order]

    return Objective(
        lambda theta: wide.T @ derivative(theta, 0) + strength * penalised * theta,
        lambda theta: (wide.T * derivative(theta, 1)) @ wide + strength * np.diag(penalised.astype(float)),
        lambda theta: np.stack([(wide.T * (derivative(theta, 2) * column)) @ wide for column in wide.T]),
        lambda theta: per_weight * penalised * theta,
    )


def _derivatives(loss: int, z: Vector, y: NDArray[Any]) -> tuple[Vector, Vector, Vector]:
    """First to third derivatives of the rows' losses by their predictors z (n,)."""
    if loss == SQUARED:
        return z - y, np.ones_like(z), np.zeros_like(z)
    if loss == LOGISTIC:
        s = _sigmoid(z)
        return s - y, s * (1 - s), s * (1 - s) * (1 - 2 * s)
    mean = np.exp(z)
    return mean - y, mean, mean


def _sigmoid(z: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.clip(z, -500, 500)))


def polynomial_of(head: Any) -> Objective | None:
    """The system that the integers of an expansion stand for; its root is what should have been saved."""
    if head.p > MOST_PARAMETERS:
        return None
    G, H, T = _unpacked(head)
    strength = head.penalty[0] + head.penalty[1] * head.weight
    penalised, g = np.arange(head.p) < head.p - 1, head.anchor
    return Objective(
        lambda theta: G + (H + 0.5 * (T @ (theta - g))) @ (theta - g) + strength * penalised * theta,
        lambda theta: H + T @ (theta - g) + strength * np.diag(penalised.astype(float)),
        lambda theta: T,
        lambda theta: head.penalty[1] * penalised * theta,
    )


def _unpacked(head: Any) -> tuple[Vector, Vector, Vector]:
    """G (p,), H (p, p), T (p, p, p) of integer sums; T is zero for order 2."""
    p, sums, scales, size = head.p, head.sums, head.terms.scales, 1.0 / head.terms.inverse_scale
    at = ints.moments_at(p, head.classes) + p
    G = sums[at : at + p] / scales[ints.FIRST] * size
    j, k = np.triu_indices(p)
    H, T = np.zeros((p, p)), np.zeros((p, p, p))
    H[j, k] = H[k, j] = sums[at + p : at + p + j.size] / scales[ints.SECOND] * size[j] * size[k]
    if head.order == 3:
        a, b, c = np.array([(a, b, c) for a in range(p) for b in range(a, p) for c in range(b, p)]).T
        found = sums[at + p + j.size :] / (scales[ints.THIRD] * scales[ints.COLUMN]) * size[a] * size[b] * size[c]
        for x, y, z in ((a, b, c), (a, c, b), (b, a, c), (b, c, a), (c, a, b), (c, b, a)):
            T[x, y, z] = found
    return G, H, T


def penalty_of(u: L2UL) -> tuple[float, float]:
    """The penalty's strength: a constant, and what each unit of weight adds."""
    if u.head.penalty is not None:
        return float(u.head.penalty[0]), float(u.head.penalty[1])
    return 0.0, float(getattr(u.model, "strength", getattr(u.model, "lam", 0.0)))


def is_linear(u: L2UL) -> bool:
    return u.model.name != "mlp" and u.model.size == u.d + 1


def row_in(u: L2UL, v: Vector) -> Vector | None:
    """The row x (d,) of a gradient v (p,): every weight's entry is that of its intercept times x_j."""
    outputs = u.model.h if u.model.name == "mlp" else u.model.size // (u.d + 1)
    coefficients, intercepts = v[: outputs * u.d].reshape(outputs, u.d), v[outputs * u.d : outputs * (u.d + 1)]
    size = float(intercepts @ intercepts)
    return None if size == 0.0 else intercepts @ coefficients / size


def gradients_of(e: Evidence, theta: Vector, x: Vector) -> list[Vector]:
    """The gradient of the row x with each label at theta; for models of numbers that of residual 1 and -1."""
    wide = np.append(x, 1.0)
    if not e.u.classes_:
        return [wide, -wide]
    if is_linear(e.u):
        s = _sigmoid(wide @ theta)
        return [s * wide, (s - 1.0) * wide]
    return [e.u.model.data_gradient(theta, x[None], np.array([c], np.uint8)) for c in range(len(e.u.classes_))]


def implausible(e: Evidence, theta: Vector, v: Vector, x: Vector) -> float:
    """How far v is from the gradient of the row x with some label, relative to its length; more for x far out."""
    miss = 0.0
    if e.u.classes_:
        miss = min(float(np.linalg.norm(v - g)) for g in gradients_of(e, theta, x)) / float(np.linalg.norm(v))
    return miss + e.beyond(x)


def _gauge(model: Any) -> Vector:
    """(p, p) curvature 1 along the directions that change nothing: one number added to all intercepts of a softmax."""
    free = np.zeros(model.size)
    if model.name == "lr" and model.size > model.d + 1:
        free[model.size // (model.d + 1) * model.d :] = 1.0
    return np.outer(free, free)


# Integer sums --------------------------------------------------------------------------------------------------------


def integer_sums(e: Evidence) -> Iterator[Attack]:
    """Saved integer sums minus those of the rows that stay, at the saved anchor with the saved scales."""
    if e.sums is not None and e.X is None:
        yield Attack("sums", UNKNOWN_ROWS)
    elif e.sums is not None:
        yield from _differences(e, e.sums, "sums", ROW)


def _differences(e: Evidence, saved: Any, name: str, kind: str) -> Iterator[Attack]:
    left = copy.deepcopy(saved)
    left.revert(e.stored, e.y, e.weights)
    p, d, sums = left.p, e.d, left.sums
    if not sums.any():
        yield Attack(name, "equal those of the rows that stay in every bit", kind=kind)
        return
    at = ints.moments_at(p, left.classes)
    parts: dict[str, Vector] = {"moments": sums[at : at + p].astype(np.float64)}
    if p <= MOST_PARAMETERS:
        G, H, T = _unpacked(left)
        parts |= {"G": G, "H": H, "T": T.reshape(p, -1)}
    label = np.flatnonzero(sums[2 : 2 + left.classes])
    told = "differ from those of the rows that stay"
    told += f" (and the class {e.u.classes_[label[0]]})" if label.size else ""
    parts = {part: difference for part, difference in parts.items() if difference.any()}
    for part, v in parts.items():
        if part == "moments":
            v = np.sqrt(np.abs(v)) / left.terms.inverse_scale
            v[:d] *= np.where(np.mean(e.stored, axis=0) < 0, -1.0, 1.0)
        elif part != "G":  # c x x' and c x x x: the leading singular vector
            v = np.linalg.svd(v)[0][:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            yield Attack(f"{name}: {part}", told, v[:d] / v[d], kind)
    if not parts:
        yield Attack(name, told.replace("differ", "the counts differ"), kind=kind)


def cell(e: Evidence) -> Iterator[Attack]:
    """The saved grid point and scales against those of the rows that stay: which rows would have caused the others?"""
    head, objective = e.sums, objective_of(e)
    if head is None or objective is None or e.X is None or e.y is None:
        return
    table = ArrayTable(e.stored, e.y, e.u.classes_, None, e.weights)
    optimum, own = _minimum(objective, e.theta), "are those of the rows that stay"
    where: Any = "grid" if head.where == "grid" else head.anchor
    fresh = Expansion.build(head.model, table, optimum, order=head.order, anchor=where, penalty=head.penalty)
    wider = np.flatnonzero(fresh.exponents[: head.p - 1] != head.exponents[: head.p - 1])
    if wider.size:
        x = e.X.mean(axis=0)
        x[wider] = np.where(x[wider] < 0, -0.75, 0.75) * np.exp2(head.exponents[wider].astype(float))
        yield Attack("scales", f"{wider.size} column(s) have a scale that only the row can have set", x)
        return
    if np.any(fresh.exponents[head.p :] != head.exponents[head.p :]):
        own = "of the derivatives or weights are not those of the rows that stay: only the row can have set them"
    yield Attack("scales", own)
    if head.where != "grid":
        return
    moved = np.flatnonzero(fresh.anchor != head.anchor)
    if not moved.size:
        yield Attack("grid point", "is that of the rows that stay")
        return
    gradients = [gradients_of(e, optimum, x) for x in e.X[:TRIED]]
    each = len(gradients[0])
    ends = optimum - np.concatenate(gradients) @ np.linalg.inv(objective.hessian(optimum))
    fits = (np.abs(ends - head.anchor) <= np.abs(ends - fresh.anchor))[:, moved].sum(axis=1)
    likely = np.flatnonzero(fits == fits.max()) // each
    used = f"differs in {moved.size} coordinate(s) from that of the rows that stay; mean of rows that could do this"
    yield Attack("grid point", used, e.X[likely].mean(axis=0))


def _minimum(objective: Objective, start: Vector) -> Vector:
    """Newton's method from nearby, until the gradient stops falling."""
    theta, left = start, objective.gradient(start)
    for _ in range(30):
        trial = theta - np.linalg.solve(objective.hessian(theta), left)
        after = objective.gradient(trial)
        if not np.abs(after).max() < np.abs(left).max():
            break
        theta, left = trial, after
    return theta


# Floating point sums -------------------------------------------------------------------------------------------------


def gradients(e: Evidence) -> Iterator[Attack]:
    """The gradient of the rows that stay at every saved point: at the optimum with the row, it is minus the row's."""
    objective = objective_of(e)
    if objective is None:
        yield Attack("gradient", UNKNOWN_ROWS)
        return
    for name, point in e.points.items():
        left = objective.gradient(point)
        size = float(np.abs(left).max()) / max(e.u.n, 1)
        used = f"the gradient of the rows that stay there, at most {size:.1e} a row"
        yield Attack(f"gradient at {name}", used, row_in(e.u, -left - e.lost * objective.penalty(point)))


def float_sums(e: Evidence) -> Iterator[Attack]:
    """Sums of gradients and Hessians (or their inverse), minus those of the rows that stay, at each saved point."""
    objective, X, y, p = objective_of(e), e.X, e.y, e.theta.size
    if objective is None or X is None or y is None or e.sums is not None:
        return
    n, points, model = float(len(X)), e.points, e.u.model
    given = () if e.weights is None else (e.weights,)
    gradients = {where: n * model.data_gradient(q, X, y, *given) for where, q in points.items()}
    largest = 2 * e.forgotten.size * (1 + np.abs(X).max())  # that rows could have added
    for name, found in points.items():
        for where, own in gradients.items():
            away = found - own
            if where != name and np.abs(away).max() < largest:
                yield Attack(f"{name} - gradients at {where}", _differ(away, own), row_in(e.u, away))
    if p > MOST_PARAMETERS:
        return
    zero = model.penalty_gradient(np.zeros(p))  # what the penalty, and the gauge, add to the mean Hessian
    fixed = n * (np.stack([model.penalty_gradient(one) - zero for one in np.eye(p)]) + _gauge(model))
    hessians = {where: objective.hessian(q) for where, q in points.items()}
    squares = {name: _square(np.asarray(array), p) for name, array in e.arrays.items()}
    for name, matrix in squares.items():
        if matrix is None:
            continue
        inverse = inverse_of(matrix)
        for where, own in hessians.items():
            likely = [(matrix, own - fixed), (matrix, own)]
            likely += [] if inverse is None else [((n + k) * inverse, own) for k in (0, e.forgotten.size)]
            for found, expected in likely:
                away = found - expected
                if np.abs(away).max() < NEAR * np.abs(expected).max():
                    values, vectors = np.linalg.eigh(away)
                    row = row_in(e.u, vectors[:, np.abs(values).argmax()]) if values.any() else None
                    yield Attack(f"{name.rsplit('.', 1)[-1]} - Hessians at {where}", _differ(away, expected), row)


def _differ(away: Vector, own: Vector) -> str:
    return f"differ by {np.abs(away).max() / np.abs(own).max():.1e} from those of the rows that stay"


def _square(array: NDArray[Any], p: int) -> Vector | None:
    """A symmetric (p, p) matrix, saved whole or as its lower triangle."""
    if array.dtype.kind != "f":
        return None
    if array.shape == (p * (p + 1) // 2,):
        whole = np.zeros((p, p))
        lower = np.tril_indices(p)
        whole[lower] = array
        whole.T[lower] = array
        return whole
    return np.asarray(0.5 * (array + array.T), np.float64) if array.shape == (p, p) else None


def inverse_of(matrix: Vector) -> Vector | None:
    try:
        return np.asarray(np.linalg.inv(matrix), np.float64)
    except np.linalg.LinAlgError:
        return None


def pairs(e: Evidence) -> Iterator[Attack]:
    """Inputs and targets of training pairs: those of a pair that forgot the row alone are its gradient, scaled."""
    p = e.theta.size
    if e.X is None:
        return
    shaped = {name: a for name, a in e.arrays.items() if a.ndim == 2 and a.shape[1] == p and a.dtype.kind == "f"}
    shaped = {name: a for name, a in shaped.items() if len(a) not in (0, p)}
    penalty = e.u.model.penalty_gradient(e.theta)
    for name, array in shaped.items():
        best: tuple[float, Vector | None] = (np.inf, None)
        for z in np.asarray(array[:PAIRS], np.float64):
            for v in (z - penalty, z):
                row = row_in(e.u, v)
                if row is not None and np.isfinite(row).all() and not _stays(e.X, row):
                    best = min(best, (implausible(e, e.theta, v, row), row), key=lambda found: found[0])
        yield Attack(f"pairs: {name}", f"the row found misses its own gradient by {best[0]:.1e}", best[1])
    if not shaped:
        yield Attack("pairs", "there are none")


def _stays(X: Vector, row: Vector) -> bool:
    return bool((np.abs(X - row).max(axis=1) < 1e-3 * (np.abs(row).max() + 1e-300)).any())


def anchor(e: Evidence) -> Iterator[Attack]:
    """The anchor of an MLP is trained on some of the rows: the gradient of those of them that stay, there."""
    model, table = e.u.model, e.u.retained()
    if model.name != "mlp" or getattr(model, "anchor", None) is None or table is None:
        return
    from l2ul_fast.unlearner.heads.secant import anchor_rows

    if not isinstance(e.u.params["anchor"], str):
        return
    X, y = table.take(anchor_rows(e.u.params, table, again=True))
    left = model.with_anchor(None, None).gradient(model.anchor, X, y)
    used = f"gradient of the anchor rows that stay at the anchor, at most {np.abs(left).max():.1e}"
    yield Attack("anchor", used, row_in(e.u, -left))


# Mean and scale of a file --------------------------------------------------------------------------------------------


def standardisation(e: Evidence) -> Iterator[Attack]:
    """Mean and scale of a data file are those of all its rows, forgotten ones too: from the file, and from the sums."""
    file, store, k = e.all_rows(), e.u.store, e.forgotten.size
    if file is None:
        return
    raw = file.shards.take_X(np.arange(file.shards.n)).astype(np.float64)
    raw[e.forgotten] = 0.0  # not known
    known, n = raw.sum(axis=0), file.shards.n
    row = store.standardise((n * file.shards.mean - known) / k)
    used = "the mean in the data file, minus its other rows"
    yield Attack("data file: mean", used, row.astype(np.float64), OUTSIDE)
    if e.sums is None:
        return
    mean = _solved_mean(e, raw)
    used = "mean and scale of the columns, solved from the saved sums: they are those of all rows of the data file"
    if mean is None:
        yield Attack("standardisation", "the sums do not give the mean and scale they were made with")
    else:
        yield Attack("standardisation", used, store.standardise((n * mean - known) / k).astype(np.float64))


def _solved_mean(e: Evidence, raw: Vector) -> Vector | None:
    """Mean (d,) that the rows that stay must be standardised with, beside some scale, to give the saved sums."""
    head, d, p = e.sums, e.d, e.sums.p
    rows, others = raw[e.u.status == PRESENT], np.setdiff1d(np.arange(len(raw)), e.forgotten)
    at, last = ints.moments_at(p, head.classes), np.array([j * p - j * (j - 1) // 2 + p - 1 - j for j in range(d)])
    scale = raw[others].std(axis=0)
    found = np.stack([raw[others].mean(axis=0), np.where(scale == 0, 1.0, scale)])  # mean and scale

    def miss(found: Vector) -> Vector:
        left = copy.deepcopy(head)
        left.revert(((rows - found[0]) * (1.0 / found[1])).astype(np.float32), e.y, None)
        return np.concatenate([left.sums[at : at + d], left.sums[at + 2 * p + last]]).astype(np.float64)

    value = miss(found)
    for _ in range(12):
        slope = np.empty((2 * d, 2 * d))
        for column in range(2 * d):
            k, j = divmod(column, d)
            near = found.copy()
            near[k, j] += 1e-4 * found[1, j]
            slope[:, column] = (miss(near) - value) / (near[k, j] - found[k, j])
        try:
            trial = found - np.linalg.solve(slope, value).reshape(2, d)
        except np.linalg.LinAlgError:
            return None
        after = miss(trial)
        if not np.abs(after).max() < np.abs(value).max():
            break
        found, value = trial, after
        if not value.any():
            break
    return np.asarray(found[0])


# Before and after ----------------------------------------------------------------------------------------------------


def snapshots(e: Evidence) -> Iterator[Attack]:
    """The states before and after: the parameters before have no gradient left but that of the rows that left since."""
    if e.before is None:
        return
    objective, head, point = objective_of(e), e.before.sums, e.before.theta
    if objective is None:
        yield Attack("two snapshots", UNKNOWN_ROWS, kind=INHERENT)
        return

    def since(system: Objective) -> Vector | None:
        return row_in(e.u, -system.gradient(point) - e.lost * system.penalty(point))

    v = objective.hessian(point) @ (e.theta - point)
    yield Attack("two snapshots: difference", "(theta after - theta before) H", row_in(e.u, v), INHERENT)
    used = "gradient of the rows that stay, before"
    yield Attack("two snapshots: gradient", used, since(objective), INHERENT)
    if head is None or head.p > MOST_PARAMETERS:
        return
    stay = copy.deepcopy(head)
    stay.sums[:] = 0
    stay.add(e.stored, e.y, e.weights)
    system = polynomial_of(stay)
    assert system is not None
    used = "polynomial of the rows that stay, expanded where the one before was"
    yield Attack("two snapshots: expansion", used, since(system), INHERENT)
    yield from _differences(e, head, "two snapshots: sums", INHERENT)
