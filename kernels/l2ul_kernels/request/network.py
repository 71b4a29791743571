"""The forward of the paper's network for one request, compiled: no torch at request time.

The weights lie in the flat buffer that network_kernels.py describes, their widths padded with zeros to whole cache
lines. The kernels take stored packed cells and row ids; plain uint8 cells are a store with bits=8.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from l2ul_kernels.arrays import Array, Bytes, Float, Ints
from l2ul_kernels.codegen.alignment import aligned_zeros
from l2ul_kernels.codegen.jit import ensure_compiled
from l2ul_kernels.request.network_kernels import (
    HEADER,
    counts_forward,
    direct_base,
    direct_forget,
    direct_forward,
    direct_move,
    direct_total,
)
from l2ul_kernels.voronoi.partitions import bits_per_cell
from l2ul_kernels.voronoi.subsets import count_few, count_rows

#: float32 values per cache line.
ALIGN = 16
#: Up to this many rows their cells' weights are added one by one; of more, cells are counted first
#: (as measured when it was chosen: 1.5 us for each row; 7 us for counting some and adding all cells).
FEW = 4
#: Up to this many rows are counted by the calling thread: about 1 ms.
ALONE = 20_000


def _padded(matrix: Array, columns: int, rows: int | None = None) -> NDArray[np.float32]:
    out = np.zeros((matrix.shape[0] if rows is None else rows, columns), np.float32)
    out[: matrix.shape[0], : matrix.shape[1]] = matrix
    return out


def _aligned(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The parts one behind the other, from a cache line on."""
    flat = aligned_zeros(sum(part.size for part in parts), np.float32)
    np.concatenate([part.ravel() for part in parts], out=flat)
    return flat


def _sums_of_two(W: Array, t: int, psi: int) -> Array:
    """(8 (t + t % 2), h1): row 16 g + a + 4 b has cell a of partition 2 g and cell b of partition 2 g + 1, of W
    (t psi, h1). Cells that do not exist count as zeros.
    """
    cells = np.zeros((t + t % 2, 4, W.shape[1]), W.dtype)
    cells[:t, :psi] = W.reshape(t, psi, -1)
    return (cells[::2, None] + cells[1::2, :, None]).reshape(-1, W.shape[1])


def _up(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


class DirectForward:
    """[mu_D, mu_f, theta] -> theta'. weights: W1.mu_D, W1.mu_f (t psi, h1), W1.theta (p, h1), b1, W2, b2, W3, b3.

    Row ids are not checked here: whoever takes the request does that once. One object serves one thread at a time.
    """

    def __init__(self, weights: Mapping[str, Array], t: int, psi: int) -> None:
        for name, array in weights.items():
            if not np.all(np.isfinite(array)):
                raise ValueError(f"weights {name} have NaN or infinities")
        self.t, self.psi, self.bits = t, psi, bits_per_cell(psi)
        h1, h2, self.p = weights["b1"].size, weights["b2"].size, weights["b3"].size
        wanted = {"W1.mu_D": (t * psi, h1), "W1.mu_f": (t * psi, h1), "W1.theta": (self.p, h1)}
        wanted |= {"W2": (h1, h2), "W3": (h2, self.p)}
        for name, shape in wanted.items():
            if weights[name].shape != shape:
                raise ValueError(f"weights {name} have shape {weights[name].shape}, not {shape}")
        self.h1 = _up(h1)
        wide = [_up(h2), _up(self.p)]
        header = np.zeros(HEADER, np.float32)
        header[:7] = t, psi, self.h1, *wide, t * psi, self.bits
        self.net = _aligned(
            [
                header,
                _padded(weights["b1"][None], self.h1),
                _padded(weights["W1.mu_f"], self.h1),
                _padded(weights["W2"], wide[0], self.h1),
                _padded(weights["b2"][None], wide[0]),
                _padded(weights["W3"], wide[1], wide[0]),
                _padded(weights["b3"][None], wide[1]),
            ]
        )
        parts = [weights["W1.mu_D"], weights["W1.theta"], weights["b1"][None]]
        self._memory = _aligned([_padded(part, self.h1) for part in parts])
        self._total = np.zeros(self.h1)
        self._twos = np.zeros(0, np.float32)
        if self.bits == 2:
            tables = (weights["W1.mu_f"], weights["W1.mu_D"])
            self._twos = _aligned([np.hstack([_padded(_sums_of_two(W, t, psi), self.h1) for W in tables])])

    def _count(self, packed: Bytes, ids: Ints, bits: int) -> Ints:
        """Counts (t psi,) of stored rows; on all threads where they are worth starting."""
        if len(ids) > ALONE:
            return _flat(count_rows(packed, ids, self.t, self.psi, bits=bits))
        return _flat(count_few(packed, ids, self.t, self.psi, bits))

    def set_base(self, counts: Ints, n: int, theta: Float) -> None:
        """The state that requests share: counts (t, psi) of the n rows of D, and theta (p,)."""
        self._total[:] = 0
        self._update(_flat(counts), 1, n, np.ascontiguousarray(theta, np.float64))

    def _update(self, counts: Ints, sign: int, n: int, theta: Float) -> None:
        total = (counts, sign, self._memory, self._total, self.net)
        ensure_compiled("direct total", lambda: direct_total(counts[:0], *total[1:]))
        direct_total(*total)
        base = (self._memory, self._total, n, theta, self.net)
        ensure_compiled("direct base", lambda: direct_base(*base))
        direct_base(*base)

    def forget(self, packed: Bytes, ids: Ints, n_left: int, theta: Float, bits: int | None = None) -> None:
        """After a request: the stored rows `ids` leave mu_D, theta (p,) is the new one. Sums are kept in float64."""
        if len(ids) <= FEW:
            direct_forget(packed, ids, bits or self.bits, self._memory, self._total, n_left, theta, self.net)
        else:
            counts = self._count(packed, ids, bits or self.bits)
            self._update(counts, -1, n_left, np.ascontiguousarray(theta, np.float64))

    def __call__(self, packed: Bytes, ids: Ints, out: Float, bits: int | None = None) -> Float:
        """theta' into out (p,) for the stored rows ids (r,), r >= 1; bits=8 when the store has plain uint8 cells."""
        if len(ids) <= FEW:
            direct_forward(packed, ids, bits or self.bits, self.net, self._twos, out)
            return out
        return self.from_counts(self._count(packed, ids, bits or self.bits), len(ids), out)

    def move(self, packed: Bytes, ids: Ints, n_left: int, out: Float) -> Float:
        """theta' into out (p,), and `forget` with it."""
        if len(ids) <= FEW:
            direct_move(packed, ids, self._memory, self._total, n_left, self.net, self._twos, out)
        else:
            self(packed, ids, out)
            self.forget(packed, ids, n_left, out)
        return out

    def from_counts(self, counts: Ints, r: int, out: Float) -> Float:
        """theta' into out (p,) for r rows whose counts (t, psi) are known."""
        what = (_flat(counts), r, self.net, out)
        ensure_compiled("counts forward", lambda: counts_forward(*what))
        counts_forward(*what)
        return out

    def compile(self, packed: Bytes) -> None:
        """Compile (or load) all of it for such a store, so that no request waits."""
        one, out, theta = np.zeros(1, np.int64), np.empty(self.p), np.zeros(self.p)
        store, bits = _first_row(packed), self.bits
        total, net = self._total.copy(), self.net.copy()
        key = ("direct", store.flags.writeable)
        ensure_compiled(key, lambda: direct_forward(store, one, bits, net, self._twos, out))
        ensure_compiled((*key, "forget"), lambda: direct_forget(store, one, bits, self._memory, total, 1, theta, net))
        move = (store, one, self._memory, total, 1, net, self._twos, out)
        ensure_compiled((*key, "move"), lambda: direct_move(*move))
        self.from_counts(self._count(store, one, bits), 1, out)


def _flat(counts: Ints) -> Ints:
    return np.ascontiguousarray(counts, np.int64).reshape(-1)


def _first_row(packed: Bytes) -> Bytes:
    """A store of one row with the same type as `packed`."""
    return packed[:1] if len(packed) else np.zeros((1, packed.shape[1]), np.uint8)
