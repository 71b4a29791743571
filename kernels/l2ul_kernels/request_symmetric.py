"""theta + W total / left for a symmetric W (an inverse Hessian), of which half is stored and read.

The time of such a product is that of reading W: 400 KB for an MLP of 301 parameters, here 200.

Panels: PANEL lines of W one after the other, each up to its own end, padded with zeros to whole cache lines. Every
element counts for its line and, mirrored, for its column; the diagonal's blocks would count twice and are halved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_kernels._aligned import aligned_zeros
from l2ul_kernels._jit import FAST, kernel

U = np.uint64
PANEL = 4
#: float32 values per cache line.
LINE = 16


@kernel()
def panel_width(j: int) -> int:
    """Of the panel from line j on."""
    return -(-(j + PANEL) // LINE) * LINE


def pack_symmetric(W: NDArray[Any]) -> NDArray[np.float32]:
    """The panels, flat, of W (p, p); what is right of the diagonal is not looked at."""
    p = len(W)
    starts = range(0, p, PANEL)
    flat, at = aligned_zeros(PANEL * sum(panel_width(j) for j in starts), np.float32), 0
    for j in starts:
        wide, end = panel_width(j), min(j + PANEL, p)
        panel = flat[at : at + PANEL * wide].reshape(PANEL, wide)[: end - j]
        panel[:, :j] = W[j:end, :j]
        own = W[j:end, j:end]
        panel[:, j:end] = (np.tril(own) + np.tril(own, -1).T) / 2
        at += PANEL * wide
    return flat


def unpack_symmetric(panels: NDArray[np.float32], p: int) -> NDArray[np.float32]:
    """W (p, p) again."""
    W, at = np.zeros((p, p), np.float32), 0
    for j in range(0, p, PANEL):
        wide, end = panel_width(j), min(j + PANEL, p)
        W[j:end, :end] += panels[at : at + PANEL * wide].reshape(PANEL, wide)[: end - j, :end]
        at += PANEL * wide
    return W + W.T


@kernel(fastmath=FAST)
def symmetric_move(panels: Any, total: Any, theta: Any, left: int, single: Any, sums: Any, out: Any) -> None:
    """out (p,) = theta + W total / left, in float32. single, sums (wide,) float32: scratch, wide >= panel_width(p)."""
    p = theta.size
    for k in range(U(p)):
        single[k] = total[k]
    for k in range(U(p), U(single.size)):
        single[k] = 0
    for k in range(U(sums.size)):
        sums[k] = 0
    at = U(0)
    for first in range(0, p, PANEL):
        j, wide = U(first), U(panel_width(first))
        second = at + wide
        third = second + wide
        fourth = third + wide
        e, f, g, h = single[j], single[j + U(1)], single[j + U(2)], single[j + U(3)]
        a = b = c = d = np.float32(0)
        for k in range(wide):
            s, t, u, v, x = panels[at + k], panels[second + k], panels[third + k], panels[fourth + k], single[k]
            a += s * x
            b += t * x
            c += u * x
            d += v * x
            sums[k] += (s * e + t * f) + (u * g + v * h)
        sums[j] += a
        sums[j + U(1)] += b
        sums[j + U(2)] += c
        sums[j + U(3)] += d
        at = fourth + wide
    for k in range(U(p)):
        out[k] = theta[k] + sums[k] / left
