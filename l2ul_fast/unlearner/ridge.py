"""The linear influence head: W = prior + a correction by ridge, its strength chosen by exact leave-one-out.

Pairs come as features Z (m, p) and targets T (m, p); the head predicts T from W Z. The correction C minimises

    ||T - Z (W0 + C)^T||^2 + strength * ||C diag(scale)||^2,    scale = root mean square of Z's columns,

so that a rarely active feature is shrunk no more than a common one. Strengths are multiples of the mean eigenvalue of
the scaled Z^T Z; an infinite one (C = 0) is always among the candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve, eigh

from l2ul_fast.errors import DataError

Matrix = NDArray[np.float64]
#: Strengths tried, relative to the mean eigenvalue of the scaled Z^T Z.
GRID = 10.0 ** np.arange(-9.0, 3.5, 0.5)
#: Multiply-adds that trying the whole grid may take (about 0.3 s); above, only the neighbourhood of the best guess is.
WHOLE_GRID = 4e9
#: Standard errors by which a correction must beat a prior to be kept: held-out gains below that are noise.
MARGIN = 1.0
#: Below this relative strength rounding in a downdate could show, so statistics are summed anew.
FRAGILE = 1e-6


class RidgeHead:
    """A fitted head. `predict(z)` is W z.

    Attributes
    ----------
    W : (p, p) float64, prior + correction.
    strength : of the penalty, absolute; inf when the correction is zero.
    loo : root mean square leave-one-out errors "prior" and "correction" (the best one), medians over pairs of the
        relative errors "rho_prior" and "rho_correction", "strength_relative", "kept" ("prior" or "correction"), "m".
    Z, T : (m, p) the pairs, kept so that a pair can be taken out again.
    prior : (p, p) or None.
    scale : (p,) column scales of the penalty.
    gram, cross : Z^T Z and Z^T T (p, p).
    """

    def __init__(
        self, Z: Matrix, T: Matrix, prior: Matrix | None, scale: Matrix, strength: float, loo: dict[str, Any],
        gram: Matrix | None = None, cross: Matrix | None = None,
    ) -> None:  # fmt: skip
        self.Z, self.T, self.prior, self.scale = Z, T, prior, scale
        self.strength, self.loo = strength, loo
        self.gram = Z.T @ Z if gram is None else gram
        self.cross = Z.T @ T if cross is None else cross
        self.W = self._solve()

    @classmethod
    def fit(
        cls, Z: ArrayLike, T: ArrayLike, prior: ArrayLike | None = None, strength: float | None = None,
        scale: ArrayLike | None = None,
    ) -> RidgeHead:  # fmt: skip
        """Fit on the pairs; `strength` (absolute) and `scale` are chosen here unless given."""
        Z, T = _matrix(Z, "Z"), _matrix(T, "T")
        if Z.shape != T.shape or not len(Z):
            raise DataError(f"Z and T must have the same shape (m, p) with m >= 1, got {Z.shape} and {T.shape}")
        p = Z.shape[1]
        W0 = None if prior is None else _matrix(prior, "prior")
        if W0 is not None and W0.shape != (p, p):
            raise DataError(f"the prior must have shape ({p}, {p}), got {W0.shape}")
        if scale is None:
            rms = np.sqrt(np.mean(Z**2, axis=0))
            scale = np.where(rms > 0, rms, 1.0)
        scale = np.ascontiguousarray(scale, np.float64)
        if scale.shape != (p,) or not (scale > 0).all():
            raise DataError(f"scale must be {p} positive numbers")
        if strength is not None:
            if not strength > 0:
                raise DataError(f"the strength must be positive, got {strength}")
            return cls(Z, T, W0, scale, float(strength), {})
        gram, cross = Z.T @ Z, Z.T @ T
        left = cross if W0 is None else cross - gram @ W0.T
        R = T if W0 is None else T - Z @ W0.T
        scaled = gram / np.outer(scale, scale), left / scale[:, None]
        strength, loo = _choose(Z / scale, R, T, *scaled, has_prior=W0 is not None)
        return cls(Z, T, W0, scale, strength, loo, gram, cross)

    def _solve(self) -> Matrix:
        p = self.Z.shape[1]
        W0 = np.zeros((p, p)) if self.prior is None else self.prior
        if np.isinf(self.strength):
            return W0.copy()
        # in scaled units the penalty is strength * identity
        system = self.gram / np.outer(self.scale, self.scale)
        system[np.diag_indices(p)] += self.strength
        right = (self.cross - self.gram @ W0.T) / self.scale[:, None]
        return W0 + (cho_solve(cho_factor(system, overwrite_a=True), right) / self.scale[:, None]).T

    def predict(self, z: Matrix) -> Matrix:
        """W z for one z (p,), or for the rows of z (m, p)."""
        return z @ self.W.T

    def loo_residuals(self) -> Matrix:
        """(m, p) target minus the prediction of the head fitted without that pair, at this strength and scale."""
        residual = self.T - self.Z @ self.W.T
        if np.isinf(self.strength):
            return residual
        values, vectors = eigh(self.gram / np.outer(self.scale, self.scale), driver="evd")
        rotated = (self.Z / self.scale) @ vectors
        leverage = (rotated**2) @ (1 / (np.maximum(values, 0) + self.strength))
        return residual / (1 - leverage)[:, None]

    def without(self, pairs: ArrayLike, prior: ArrayLike | None = None) -> RidgeHead:
        """The head without these pairs, at the same strength and scale: a downdate of rank len(pairs).

        Equal to `fit` on the others with this strength. `prior` replaces the prior, which knows all of D, if given.
        """
        pairs = np.unique(np.asarray(pairs, np.int64))
        if pairs.size and not (pairs[0] >= 0 and pairs[-1] < len(self.Z)):
            raise DataError(f"there are pairs 0..{len(self.Z) - 1}, not {pairs[0] if pairs[0] < 0 else pairs[-1]}")
        if len(pairs) >= len(self.Z):
            raise DataError("no pair would be left: draw new pairs and fit again")
        W0 = self.prior if prior is None else _matrix(prior, "prior")
        Z, T = np.delete(self.Z, pairs, axis=0), np.delete(self.T, pairs, axis=0)
        mean = np.mean(np.diag(self.gram) / self.scale**2)
        if 4 * len(pairs) > len(self.Z) or self.strength < FRAGILE * mean:
            return RidgeHead(Z, T, W0, self.scale, self.strength, self.loo)
        gone, targets = self.Z[pairs], self.T[pairs]
        gram, cross = self.gram - gone.T @ gone, self.cross - gone.T @ targets
        return RidgeHead(Z, T, W0, self.scale, self.strength, self.loo, gram, cross)

    def chosen_again(self) -> RidgeHead:
        """The head on the pairs it still has, with strength and scale chosen afresh."""
        return RidgeHead.fit(self.Z, self.T, self.prior)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that `from_arrays` needs, for the artifact."""
        out: dict[str, NDArray[Any]] = {
            "Z": self.Z, "T": self.T, "scale": self.scale, "strength": np.array([self.strength]), "W": self.W,
            "gram": self.gram, "cross": self.cross,
        }  # fmt: skip
        if self.prior is not None:
            out["prior"] = self.prior
        for name, value in self.loo.items():
            out[f"loo.{name}"] = np.array([float(value == "correction") if name == "kept" else value], np.float64)
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> RidgeHead:
        """The head that `arrays` described, bit for bit."""
        head = cls.__new__(cls)
        try:
            head.Z, head.T, head.scale, head.W = (arrays[name] for name in ("Z", "T", "scale", "W"))
            head.gram, head.cross, head.strength = arrays["gram"], arrays["cross"], float(arrays["strength"][0])
        except KeyError as error:
            raise DataError(f"the stored head has no {error.args[0]}") from None
        head.prior = arrays.get("prior")
        head.loo = {name[4:]: float(value[0]) for name, value in arrays.items() if name.startswith("loo.")}
        if "kept" in head.loo:
            head.loo["kept"] = "correction" if head.loo["kept"] else "prior"
            head.loo["m"] = int(head.loo["m"])
        m, p = head.Z.shape
        square = [head.W, head.gram, head.cross] + ([] if head.prior is None else [head.prior])
        if head.T.shape != (m, p) or head.scale.shape != (p,) or any(a.shape != (p, p) for a in square):
            raise DataError("the stored head's arrays do not fit each other")
        return head


def _matrix(values: ArrayLike, name: str) -> Matrix:
    out = np.ascontiguousarray(values, np.float64)
    if out.ndim != 2:
        raise DataError(f"{name} must be a matrix, got {out.ndim} dimension(s)")
    if not np.isfinite(out).all():
        raise DataError(f"{name} has NaN or infinities: reject those pairs first")
    return out


def _choose(
    Z: Matrix, R: Matrix, T: Matrix, gram: Matrix, cross: Matrix, has_prior: bool
) -> tuple[float, dict[str, Any]]:
    """(strength, leave-one-out report) for the scaled features Z and what the prior leaves of the targets, R.

    gram and cross (p, p) are Z^T Z and Z^T R.
    """
    m, p = Z.shape
    before = np.einsum("ij,ij->i", R, R)
    size = np.einsum("ij,ij->i", T, T)
    size = np.where(size > 0, size, size.max() or 1.0)  # a pair that did not move has no relative error of its own
    values, vectors = eigh(gram, driver="evd")
    values = np.maximum(values, 0)
    mean = values.mean()
    report: dict[str, Any] = {
        "prior": float(np.sqrt(before.mean())), "correction": float(np.sqrt(before.mean())),
        "rho_prior": float(np.median(np.sqrt(before / size))), "rho_correction": np.inf, "strength_relative": np.inf,
        "kept": "prior", "m": m,
    }  # fmt: skip
    if m < 2 or mean == 0:
        return np.inf, report
    A = Z @ vectors
    B = vectors.T @ cross
    squares, left = A**2, np.empty_like(R)
    errors: dict[int, Matrix] = {}

    def error(k: int) -> float:
        """Mean squared leave-one-out error at GRID[k]; a pair that alone supports a direction counts in full."""
        if k not in errors:
            shrink = 1 / (values + GRID[k] * mean)
            np.matmul(A, shrink[:, None] * B, out=left)
            np.subtract(R, left, out=left)
            errors[k] = np.einsum("ij,ij->i", left, left) / np.maximum(1 - squares @ shrink, 1e-12) ** 2
        return float(errors[k].mean())

    if m * p * p * len(GRID) <= WHOLE_GRID:
        best = min(range(len(GRID)), key=error)
    else:
        best = _walk(error, _cross_validated(values, B, before.sum(), m, mean))
    gain = before - errors[best]
    after = float(np.median(np.sqrt(errors[best] / size)))
    report.update(
        correction=float(np.sqrt(errors[best].mean())), rho_correction=after, strength_relative=float(GRID[best])
    )
    sure = gain.mean() > (MARGIN * gain.std(ddof=1) / np.sqrt(m) if has_prior else 0.0)
    if sure and (not has_prior or after <= report["rho_prior"]):
        report["kept"] = "correction"
        return float(GRID[best] * mean), report
    return np.inf, report


def _cross_validated(values: Matrix, B: Matrix, total: float, m: int, mean: float) -> int:
    """Best grid index by generalised cross-validation, which needs no pass over the pairs: where to start looking."""
    energy = np.einsum("ij,ij->i", B, B)
    shrink = 1 / (values[:, None] + GRID * mean)
    left = total + (energy[:, None] * shrink * (values[:, None] * shrink - 2)).sum(axis=0)
    freedom = m - (values[:, None] * shrink).sum(axis=0)
    return int(np.argmin(left / np.maximum(freedom, 1e-3 * m) ** 2))


def _walk(error: Any, start: int) -> int:
    """Downhill from `start` to a point that is better than its neighbours."""
    best = start
    while True:
        near = [k for k in (best - 1, best, best + 1) if 0 <= k < len(GRID)]
        lowest = min(near, key=error)
        if lowest == best:
            return best
        best = lowest
