"""What N_U learned from its training pairs, and how far a request lies from them."""

from __future__ import annotations

import math
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
        if inverse is not None:
            metric = inverse
        else:
            covariance = pairs.Z.T @ pairs.Z / len(pairs.Z)
            # rare features may not appear in any pair: a floor keeps their distance finite
            covariance[np.diag_indices(len(covariance))] += 1e-6 * np.trace(covariance) / len(covariance)
            metric = np.asarray(np.linalg.inv(covariance), np.float64)
        lengths = np.sqrt(np.maximum(0.0, np.sum((pairs.Z @ metric) * pairs.Z, axis=1)))
        largest, reach = float((pairs.n_forget / pairs.n).max()), float(np.quantile(lengths, 0.99))
        return cls(largest, reach, metric if inverse is None else None)

    def distance(self, z: NDArray[np.float64], inverse: Matrix | None) -> float:
        """1 at the edge of what 99 % of the training pairs looked like; `inverse`: of the model's Hessian now."""
        metric = self.metric if self.metric is not None else inverse
        assert metric is not None
        return math.sqrt(max(0.0, float(z @ metric @ z))) / self.reach
