"""The MLP's part of a request: the gradient of the rows that leave, times a matrix.

total (p,) = r * (mean gradient of the rows + penalty gradient); the penalty is strength / 2 |theta - centre|^2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_kernels._jit import FAST, ensure_compiled, kernel
from l2ul_kernels.mlp import BLOCK, CHUNK, _sums, layout, rows_of, scratch
from l2ul_kernels.mlp_far import far_blocks
from l2ul_kernels.mlp_few import few_gradient
from l2ul_kernels.request import linear_move_single
from l2ul_kernels.request_symmetric import symmetric_move

Vector = NDArray[np.float64]


@kernel()
def mlp_total(X, y, ids, theta, centre, strength, h, o, relu, memory, out):  # type: ignore[no-untyped-def]
    """out (p,) = total of a few rows X[ids] (r, d), y[ids]; h hidden units, o logits; memory (2 (h + o),): scratch."""
    for j in range(theta.size):
        out[j] = ids.size * strength * (theta[j] - centre[j])
    few_gradient(X, y, ids, theta, h, o, relu, memory, out)


@kernel(fastmath=FAST)
def mlp_move(X, y, ids, theta, centre, strength, h, o, relu, left, W, memory, total, single, sums, out):  # type: ignore[no-untyped-def]
    """mlp_total, then theta + W total / left into out (p,), as one call.

    W is (p, wide) float32 (linear_move_single) or the panels of a symmetric matrix (symmetric_move).
    """
    mlp_total(X, y, ids, theta, centre, strength, h, o, relu, memory, total)
    if W.ndim == 1:
        symmetric_move(W, total, theta, left, single, sums, out)
    else:
        linear_move_single(W, total, theta, left, single, out)


class RequestSums:
    """Gradient sums of up to MOST rows on the calling thread, with scratch that is made once."""

    MOST = CHUNK

    def __init__(self, d: int, h: int, n_classes: int, activation: str) -> None:
        self._lay = lay = layout(d, h, n_classes, activation)
        memory, self._step = scratch(lay, BLOCK)
        self._memory = memory[: self._step].copy()  # of one thread
        self._total, self._padded = np.zeros(lay.padded + 1), np.zeros(lay.padded)
        self._items, self._none = np.array([[0, 0, 0, 1, 0]]), np.empty(0)
        self._blocks, self._shape = far_blocks(np.float64), lay.shape(BLOCK)

    def __call__(self, X: NDArray[Any], y: NDArray[np.uint8], ids: NDArray[np.int64], theta: Vector) -> Vector:
        """(p,) over the rows ids (r,), r >= 1, of X (N, d), y (N,); nothing is checked here."""
        lay, items = self._lay, self._items
        self._padded[lay.where] = theta
        self._total[:] = 0
        items[0, 1] = len(ids)
        what = (
            self._blocks, rows_of(X, y, self._none, ids), items, self._padded, lay.padded, self._total, self._memory,
            self._step, self._shape, 0,
        )  # fmt: skip
        ensure_compiled("mlp sums", _sums, lambda: _sums(0, 0, 0, *what))
        _sums(0, 1, 0, *what)
        return self._total[lay.where]

    def wipe(self) -> None:
        """Overwrite what the latest rows left."""
        self._memory[:], self._total[:], self._padded[:] = 0, 0, 0
