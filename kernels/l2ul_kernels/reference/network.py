"""Slow NumPy version of the network's forward, in float64: what request/network must agree with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from l2ul_kernels.arrays import Array, Float
from l2ul_kernels.reference import cell_counts


def layers(blocks: Mapping[str, Array], weights: Mapping[str, Array]) -> Float:
    """Output (p,) for the inputs `blocks` (name: (size,)), with weights "W1.<name>", "b1", "W2", "b2", "W3", "b3"."""
    hidden = weights["b1"].astype(np.float64)
    for name, values in blocks.items():
        hidden = hidden + values.astype(np.float64) @ weights[f"W1.{name}"].astype(np.float64)
    hidden = np.maximum(hidden, 0) @ weights["W2"].astype(np.float64) + weights["b2"]
    return np.maximum(hidden, 0) @ weights["W3"].astype(np.float64) + weights["b3"]


def direct(cells: Array, mu_D: Array, theta: Array, weights: Mapping[str, Array], psi: int) -> Float:
    """theta' of the direct head for the forgotten rows' cells (r, t); mu_D (t * psi,)."""
    mu_f = cell_counts(cells, psi).ravel() / len(cells)
    return layers({"mu_D": mu_D, "mu_f": mu_f, "theta": theta}, weights)
