"""What N_U learned from its training pairs, and how far a request lies from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.unlearner.pairs import Pairs
from l2ul_fast.unlearner.ridge import RidgeHead

Matrix = NDArray[np.float64]


@dataclass
class Learned:
    """pairs, head, weights are None when they are not in use: then nothing has to be removed from them later.

    largest : largest share r / n among the pairs. reach : the length of z that 99 % of the pairs stay below, in the
    metric of the model's inverse Hessian, or of `metric` (p, p) when there is one.
    """

    largest: float
    reach: float
    metric: Matrix | None = None
    pairs: Pairs | None = None
    head: RidgeHead | None = None
    weights: dict[str, NDArray[np.float32]] | None = None
    curves: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Pairs, inverse: Matrix | None = None) -> Learned:
        """Judge by `inverse`, the model's inverse Hessian (near the inverse covariance of z), or else by the pairs."""
        metric = inverse
        if metric is None:
            covariance = pairs.Z.T @ pairs.Z / len(pairs.Z)
            # rare features may not appear in any pair: a floor keeps their distance finite
            covariance[np.diag_indices(len(covariance))] += 1e-6 * np.trace(covariance) / len(covariance)
            metric = np.linalg.inv(covariance)
        lengths = np.sqrt(np.einsum("ij,jk,ik->i", pairs.Z, metric, pairs.Z, optimize=True))
        largest, reach = float((pairs.n_forget / pairs.n).max()), float(np.quantile(lengths, 0.99))
        return cls(largest, reach, metric if inverse is None else None)

    def distance(self, z: NDArray[np.float64], inverse: Matrix | None) -> float:
        """1 at the edge of what 99 % of the training pairs looked like; `inverse` is the model's inverse Hessian now."""
        metric = self.metric if self.metric is not None else inverse
        assert metric is not None
        return float(np.sqrt(max(0.0, z @ metric @ z)) / self.reach)
