"""Parameter distance of MLPs that forgets the names of hidden units: permutations, and signs where tanh allows them."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from l2ul_fast.checks import Having, Numbers1, Results1, checked
from l2ul_fast.errors import DataError
from l2ul_fast.metrics.distance import rho
from l2ul_fast.metrics.value import Number, Value, Vector
from l2ul_fast.models.mlp import MLPModel

Mlp = Annotated[MLPModel, Having(("h", "activation", "anchor"), "an MLPModel")]


@checked
def align_units(model: Mlp, theta: Results1, reference: Numbers1) -> Vector:
    """theta (p,) with hidden units renamed so that it lies as near `reference` (p,) as it can; the same function.

    tanh: units may swap places and flip sign; relu: swap only (its positive rescalings are not searched, the L2 penalty
    settles them). The squared distance is a sum over units, so the Hungarian method finds the exact minimum.
    """
    from scipy.optimize import linear_sum_assignment

    a, b = _units(model, theta), _units(model, reference)
    plain = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    flipped = ((a[:, None] + b[None]) ** 2).sum(axis=2) if model.activation == "tanh" else np.full_like(plain, np.inf)
    rows, places = linear_sum_assignment(np.minimum(plain, flipped))
    sign = np.where(flipped[rows, places] < plain[rows, places], -1.0, 1.0)
    units = np.empty_like(a)
    units[places] = sign[:, None] * a[rows]
    d = model.d
    bias = np.asarray(theta, np.float64)[units.size :]
    return np.concatenate([units[:, :d].ravel(), units[:, d], units[:, d + 1 :].T.ravel(), bias])


def _units(model: MLPModel, theta: ArrayLike) -> Vector:
    """(h, d + 1 + o): weights in, bias, weights out of every hidden unit."""
    theta = np.asarray(theta, np.float64)
    if theta.shape != (model.size,):
        raise DataError(f"theta must have shape ({model.size},), got {theta.shape}")
    h, d = model.h, model.d
    o = 1 if model.n_classes == 2 else model.n_classes
    W2 = theta[h * d + h : h * d + h + o * h].reshape(o, h)
    return np.hstack([theta[: h * d].reshape(h, d), theta[h * d : h * d + h, None], W2.T])


@checked
def aligned_rho(model: Mlp, theta_new: Results1, theta_r: Numbers1, theta: Numbers1, error: Number = None) -> Value:
    """rho after theta' and theta have each been aligned with theta_r. Target 0; doing nothing scores 1.

    Not for an anchored MLP: its penalty names the units, and renaming them is a real change.
    """
    if model.anchor is not None:
        raise DataError("an anchored MLP is not to be aligned: its anchor names the hidden units")
    return rho(align_units(model, theta_new, theta_r), theta_r, align_units(model, theta, theta_r), error)
