"""Attacks on parameters that were brought to the optimum of the rows that stay by too few steps: undo the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.optimize import least_squares

from l2ul_fast.unlearner.heads.expansion import Expansion
from l2ul_fast.unlearner.reconstruct.evidence import Attack, Evidence, Vector
from l2ul_fast.unlearner.reconstruct.sums import (
    MOST_PARAMETERS,
    Objective,
    gradients_of,
    implausible,
    inverse_of,
    objective_of,
    polynomial_of,
    row_in,
)

#: Rows that starting points are taken from, points that are followed, evaluations of each, and solutions to refine.
STARTS, FOLLOWED, STEPS, REFINED = 400, 40, 40, 6


def last_bits(e: Evidence) -> Iterator[Attack]:
    """The saved theta against the one that the saved integers give by themselves."""
    name, head = "last bits of theta", e.sums
    if head is None:
        return
    if "theta" not in e.arrays:
        yield Attack(name, "theta is not saved")
        return
    away = e.theta - Expansion.from_arrays(head.model, e.facts["head_facts"], e.arrays).canonical()
    if not away.any():
        yield Attack(name, "theta is what the saved integers give, in every bit")
        return
    system = polynomial_of(head)
    if system is None:
        yield Attack(name, "theta is not what the saved integers give")
        return
    v = -system.gradient(e.theta) - e.lost * system.penalty(e.theta)
    yield Attack(name, f"theta is {np.linalg.norm(away):.1e} off its integers", row_in(e.u, v))
    yield from _inverted(e, system, "Newton inverted (integers)")


def inverted_steps(e: Evidence) -> Iterator[Attack]:
    """theta as the last of one or two Newton steps from the optimum with the row, inverted."""
    objective = objective_of(e)
    if objective is not None and e.theta.size <= MOST_PARAMETERS:
        yield from _inverted(e, objective, "Newton inverted")


def _inverted(e: Evidence, objective: Objective, name: str) -> Iterator[Attack]:
    """Undo Newton's last steps on `objective`.

    A step e onto theta leaves the gradient T[e, e] / 2 there, so the next one would be B(e) = -J^-1 T[e, e] / 2. Of the
    solutions e of B(e) = that step, or B(B(e)), the one counts that some row can have caused.
    """
    theta = e.theta
    J, T = objective.hessian(theta), objective.third(theta)
    inverse = inverse_of(J)
    if inverse is None:
        return
    gradient = objective.gradient(theta)
    after = -inverse @ gradient
    if not after.any() or not T.any():
        yield Attack(name, "the steps end exactly" if T.any() else "Newton's step is exact for this loss")
        return
    bend = np.tensordot(inverse, T, 1)  # J^-1 T

    def follow(v: Vector, times: int) -> Vector:
        for _ in range(times):
            v = -0.5 * (bend @ v) @ v
        return v

    for depth in (1, 2):
        found: list[tuple[float, Vector, Vector]] = []
        for start in _starts(e, inverse, follow, after, depth):
            step = _solve(bend, follow, after, start, depth)
            if step is None or any(np.linalg.norm(step - other) < 1e-3 * np.linalg.norm(step) for _, other, _ in found):
                continue
            away = step + follow(step, depth - 1) if depth == 2 else step
            v = J @ away - gradient - 0.5 * (T @ away) @ away - e.lost * objective.penalty(theta - away)
            row = row_in(e.u, v)
            if row is not None and np.isfinite(row).all():
                found.append((implausible(e, theta - away, v, row), step, row))
        found.sort(key=lambda candidate: candidate[0])
        if depth == 1:
            found = [
                _refined(e, objective, step, T, inverse) or (miss, step, row) for miss, step, row in found[:REFINED]
            ]
            found.sort(key=lambda candidate: candidate[0])
        used = f"the next step would be {np.linalg.norm(after):.1e}; "
        used += f"the row found misses its own gradient by {found[0][0]:.1e}" if found else "no row explains it"
        yield Attack(f"{name}, {'one step' if depth == 1 else 'two steps'}", used, found[0][2] if found else None)


def _starts(
    e: Evidence, inverse: Vector, follow: Callable[[Vector, int], Vector], after: Vector, depth: int
) -> list[Vector]:
    """Steps that rows like those that stay would have caused, scaled to fit `after`; the best ones."""
    assert e.X is not None
    scored: list[tuple[float, int, Vector]] = []
    for i in np.random.default_rng(0).permutation(len(e.X))[:STARTS]:
        for v in gradients_of(e, e.theta, e.X[i]):
            step = inverse @ v
            end = follow(step, depth)
            size = float(end @ end)
            share = float(end @ after) / size if size > 0 else 0.0
            if share > 0.0:
                miss = float(np.linalg.norm(share * end - after))
                scored.append((miss, len(scored), share ** (0.5**depth) * step))
    scored.sort(key=lambda s: s[:2])
    near = [step for _, _, step in scored[: FOLLOWED // 2]]
    return near + ([-step for step in near] if depth == 1 else [])


def _solve(
    bend: Vector, follow: Callable[[Vector, int], Vector], after: Vector, start: Vector, depth: int
) -> Vector | None:
    """B(step) = after (depth 1) or B(B(step)) = after near `start`."""
    goal = float(np.linalg.norm(after))

    def slope(v: Vector) -> Vector:
        total = np.eye(v.size) / goal
        for _ in range(depth):
            total, v = -(bend @ v) @ total, follow(v, 1)
        return total

    found = least_squares(lambda v: (follow(v, depth) - after) / goal, start, slope, xtol=1e-12, max_nfev=STEPS)
    return found.x if float(np.linalg.norm(found.fun)) <= 1e-3 else None


def _refined(
    e: Evidence, objective: Objective, step: Vector, T: Vector, inverse: Vector
) -> tuple[float, Vector, Vector] | None:
    """(misfit, step, row) of the Newton step that ends at theta exactly and comes from a row's gradient, with its best
    label. Where the map of steps folds, only the second condition tells them apart."""
    goal = float(np.linalg.norm(inverse @ objective.gradient(e.theta)))

    def cause(at: Vector) -> tuple[Vector, Vector, Vector]:
        """(point before the step, Hessian there, gradient of the row that the step would take out)."""
        back = e.theta - at
        return back, objective.hessian(back), -objective.gradient(back) - e.lost * objective.penalty(back)

    def own(back: Vector, v: Vector, label: int) -> Vector:
        """What v has that is not of its row's gradient."""
        row = row_in(e.u, v)
        if not e.u.classes_ or row is None:
            return np.zeros(v.size)
        return np.asarray((v - gradients_of(e, back, row)[label]) / float(np.linalg.norm(v)))

    def miss(at: Vector, label: int) -> Vector:
        back, hessian, v = cause(at)
        return np.concatenate([inverse @ (objective.gradient(back) + hessian @ at) / goal, own(back, v, label)])

    def slope(at: Vector, label: int) -> Vector:
        back, hessian, v = cause(at)
        h = 1e-6 * float(np.linalg.norm(at))
        second = np.stack([own(back, v + h * column, label) for column in hessian], axis=1)
        return np.vstack([-inverse @ (T @ at) / goal, (second - own(back, v, label)[:, None]) / h])

    best: tuple[float, Vector, Vector] | None = None
    for label in range(max(len(e.u.classes_), 1)):
        try:
            found = least_squares(miss, step, slope, ftol=1e-6, max_nfev=STEPS, args=(label,))
        except ValueError:  # values that are not finite on the way
            continue
        row, size = row_in(e.u, cause(found.x)[2]), float(np.linalg.norm(found.fun))
        if row is not None and np.isfinite(row).all() and (best is None or size < best[0]):
            best = size, found.x, row
    return None if best is None else (best[0] + e.beyond(best[2]), best[1], best[2])
