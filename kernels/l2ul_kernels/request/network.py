"""The forward of the paper's network for one request, compiled: no torch at request time.

The weights lie in the flat buffer that network_kernels.py describes, their widths padded with zeros to whole cache
lines. The kernels take stored packed cells and row ids; plain uint8 cells are a store with bits=8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numba.core.errors import NumbaError
from numpy.typing import NDArray

from l2ul_kernels import validate
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
from l2ul_kernels.voronoi.subsets import count_few, count_rows

#: float32 values per cache line.
ALIGN = 16
BYTE, INTEGER, REAL = np.dtype(np.uint8), np.dtype(np.int64), np.dtype(np.float64)
#: The arrays of weights.
NAMES = ("W1.mu_D", "W1.mu_f", "W1.theta", "b1", "W2", "b2", "W3", "b3")
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

    Rows that are not in the store are refused, like cells that no network is for. One object serves one thread at a
    time.
    """

    def __init__(self, weights: Mapping[str, Array], t: int, psi: int) -> None:
        missing = set(NAMES) - set(weights)
        if missing:
            raise ValueError(f"weights lack {', '.join(sorted(missing))}")
        weights = {name: validate.check_array(weights[name], f"weights {name}") for name in NAMES}
        for name, array in weights.items():
            if not np.all(np.abs(array) <= np.finfo(np.float32).max):
                raise ValueError(f"weights {name} have NaN, infinities or values too large for float32")
        self.t, self.psi, self.bits = validate.check_t(t), validate.check_psi(psi), validate.bits_per_cell(psi)
        h1, h2, self.p = weights["b1"].size, weights["b2"].size, weights["b3"].size
        sizes = ((t * psi, h1), (t * psi, h1), (self.p, h1), (h1,), (h1, h2), (h2,), (h2, self.p), (self.p,))
        for name, shape in zip(NAMES, sizes, strict=True):
            if weights[name].shape != shape:
                raise ValueError(f"weights {name} have shape {weights[name].shape}, not {shape}")
        self.h1 = _up(h1)
        wide = [_up(h2), _up(self.p)]
        header = np.zeros(HEADER, np.float32)
        header[:8] = t, psi, self.h1, *wide, t * psi, self.bits, self.p
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
        if max(t * psi, *self.net[2:5]) >= 1 << 24:
            raise ValueError("the network is too large: the kernels' sizes are exact up to 2^24")
        if self.bits == 2:
            tables = (weights["W1.mu_f"], weights["W1.mu_D"])
            self._twos = _aligned([np.hstack([_padded(_sums_of_two(W, t, psi), self.h1) for W in tables])])

    def _width(self, bits: int | None) -> int:
        return self.bits if bits is None else validate.check_count(bits, self.bits, 16, "bits")

    def _checked(self, packed: Bytes, ids: Ints, bits: int, theta: Float) -> tuple[Bytes, Ints, int]:
        """packed, ids and bits as the kernels take them; theta is an array (p,) of float64."""
        store, width = validate.check_packed(packed, self.t, self.psi, bits)
        rows = validate.check_row_ids(ids, len(store))
        validate.check_count(len(rows), 1, 2**62, "the number of rows")
        validate.check_out(theta, (self.p,), np.float64, packed, ids, name="theta")
        return store, rows, width

    def _few(self, kernel: Any, packed: Bytes, ids: Ints, theta: Float, *what: Any) -> bool:
        """Whether kernel(packed, ids, *what) has answered: rows are few, and it takes these arrays and their values."""
        plain = type(packed) is type(ids) is type(theta) is np.ndarray
        if not (plain and packed.dtype is BYTE and ids.dtype is INTEGER and theta.dtype is REAL):
            return False
        try:
            return len(ids) <= FEW and bool(kernel(packed, ids, *what))
        except (TypeError, NumbaError):  # read-only, or of other dimensions: there is no kernel for these
            return False

    def _count(self, packed: Bytes, ids: Ints, bits: int) -> Ints:
        """Counts (t psi,) of stored rows; on all threads where they are worth starting."""
        if len(ids) > ALONE:
            return count_rows(packed, ids, self.t, self.psi, bits=bits).reshape(-1)
        return count_few(packed, ids, self.t, self.psi, bits).reshape(-1)

    def _counts(self, counts: Ints) -> Ints:
        """Counts (t, psi) or (t psi,) as (t psi,) int64."""
        counts = validate.check_int64(counts, 2**62, "counts")
        if counts.shape not in ((self.t, self.psi), (self.t * self.psi,)):
            raise ValueError(f"counts must have shape ({self.t}, {self.psi}), got {counts.shape}")
        return counts.reshape(-1)

    def set_base(self, counts: Ints, n: int, theta: Float) -> None:
        """The state that requests share: counts (t, psi) of the n rows of D, and theta (p,)."""
        flat, theta = self._counts(counts), validate.check_vector(theta, self.p, "theta")
        self._total[:] = 0
        self._update(flat, 1, n, theta)

    def _update(self, counts: Ints, sign: int, n: int, theta: Float) -> None:
        total = (counts, sign, self._memory, self._total, self.net)
        ensure_compiled("direct total", lambda: direct_total(counts[:0], *total[1:]))
        direct_total(*total)
        base = (self._memory, self._total, n, theta, self.net)
        ensure_compiled("direct base", lambda: direct_base(*base))
        direct_base(*base)

    def forget(self, packed: Bytes, ids: Ints, n_left: int, theta: Float, bits: int | None = None) -> None:
        """After a request: the stored rows `ids` leave mu_D, theta (p,) is the new one. Sums are kept in float64."""
        width = self._width(bits)
        what = (width, self._memory, self._total, n_left, theta, self.net)
        if self._few(direct_forget, packed, ids, theta, *what):
            return
        theta = validate.check_vector(theta, self.p, "theta")
        counts = self._count(*self._checked(packed, ids, width, theta))
        self._update(counts, -1, n_left, theta)

    def __call__(self, packed: Bytes, ids: Ints, out: Float, bits: int | None = None) -> Float:
        """theta' into out (p,) for the stored rows ids (r,), r >= 1; bits=8 when the store has plain uint8 cells."""
        width = self._width(bits)
        if self._few(direct_forward, packed, ids, out, width, self.net, self._twos, out):
            return out
        packed, ids, width = self._checked(packed, ids, width, out)
        return self.from_counts(self._count(packed, ids, width), len(ids), out)

    def move(self, packed: Bytes, ids: Ints, n_left: int, out: Float) -> Float:
        """theta' into out (p,), and `forget` with it."""
        what = (self._memory, self._total, n_left, self.net, self._twos, out)
        if self._few(direct_move, packed, ids, out, *what):
            return out
        self(packed, ids, out)
        self.forget(packed, ids, n_left, out)
        return out

    def from_counts(self, counts: Ints, r: int, out: Float) -> Float:
        """theta' into out (p,) for r rows whose counts (t, psi) are known."""
        validate.check_out(out, (self.p,), np.float64, counts)
        what = (self._counts(counts), validate.check_count(r, 1, 2**62, "r"), self.net, out)
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


def _first_row(packed: Bytes) -> Bytes:
    """A store of one row with the same type as `packed`."""
    return packed[:1] if len(packed) else np.zeros((1, packed.shape[1]), np.uint8)
