"""Many small models at once, for metrics that compare distributions of models: draws, batched fits, unlearning."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.checks import ClassIndices, Count, Features, Having, Labels, ModelLike, checked
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.metrics.value import Ids, Unlearn, Vector, margins


class Population(NamedTuple):
    """m models: rows ids (m, s) of which the first r are forgotten, theta (m, p) of all and theta_r (m, p) without."""

    ids: Ids
    r: int
    theta: Vector
    theta_r: Vector
    converged: NDArray[np.bool_]  #: (m,)


Models = Annotated[Population, Having(("ids", "r", "theta"), "a Population")]

Matrix = Annotated[Any, Labels(floats=False, ndim=2)]


@checked
def fit_population(model: ModelLike, X: Features, y: ClassIndices, ids: Matrix, r: Count, **options: Any) -> Population:
    """Fit the models of rows ids (m, s), with and without the first r of each, in one compiled parallel call.

    model: a LogisticModel, or an unanchored MLPModel, whose options (tol, epochs, ...) are passed on. A fit whose
    gradient norm stays above tol (logistic regression: 1e-10) is marked; without tol an MLP's fits all count.
    """
    ids = np.ascontiguousarray(ids, np.int64)
    if ids.ndim != 2 or not 0 < r < ids.shape[1]:
        raise DataError(f"ids must have shape (m, s) with s above r = {r}, got {ids.shape}")
    fits = model.fit_pairs(X, y, ids, np.full(len(ids), r), **options)
    tol = options.get("tol", 1e-10 if model.name == "lr" else None)
    fine = np.isfinite(fits[0]).all(axis=1) & np.isfinite(fits[1]).all(axis=1)
    converged = fine if tol is None else fine & (np.asarray(fits[2]) <= tol).all(axis=1)
    return Population(ids, r, fits[0], fits[1], converged)


@checked
def unlearn_all(population: Models, unlearn: Unlearn) -> Vector:
    """(m, p) unlearn(theta, forget ids, all ids) of every model; each gets its own copy of theta."""
    out = np.empty_like(population.theta)
    for i, (theta, ids) in enumerate(zip(population.theta, population.ids, strict=True)):
        answer = np.asarray(unlearn(theta.copy(), ids[: population.r].copy(), ids.copy()), np.float64)
        if answer.shape != theta.shape:
            raise UserError(f"unlearn must return parameters of shape {theta.shape}, got {answer.shape}")
        out[i] = answer
    return out


def margins_of(model: Any, thetas: ArrayLike, X: NDArray[Any], y: NDArray[Any]) -> Vector:
    """(m, k) log(p_y / (1 - p_y)) of k rows under m models."""
    return np.stack([margins(model, theta, X, y) for theta in np.asarray(thetas, np.float64)])


def kept_rows(n: int, m: int, k: int, rng: np.random.Generator, pool: Ids | None = None) -> Ids:
    """(m, k) row numbers, different within each model, drawn from `pool` or from 0 .. n - 1."""
    pool = np.arange(n) if pool is None else pool
    if k > len(pool):
        raise UserError(f"{k} rows are to be drawn from {len(pool)}: give more rows or a smaller s")
    return pool[np.stack([rng.choice(len(pool), k, replace=False) for _ in range(m)])]
