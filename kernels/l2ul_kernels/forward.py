"""The networks' forward for one request, compiled: no torch at request time.

One object per network holds its weights in the flat buffer that the kernels of _forward.py read. Widths are padded with
zeros to whole cache lines. The kernels take stored packed cells and row ids; plain uint8 cells are a store with bits=8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_kernels._aligned import aligned_zeros
from l2ul_kernels._forward import (
    HEADER,
    correction_forward,
    counts_forward,
    direct_base,
    direct_forget,
    direct_forward,
    direct_move,
    direct_total,
)
from l2ul_kernels._jit import ensure_compiled
from l2ul_kernels.cells import bits_per_cell
from l2ul_kernels.rowcounts import count_classes, count_rows, scratch

#: float32 values per cache line.
ALIGN = 16
#: Up to this many rows their cells' weights are added one by one; of more, cells are counted first
#: (l2ul_fast.experiments.forward: 1.5 us for each row; 7 us for counting some and adding all cells).
FEW = 4
#: Up to this many rows are counted by the calling thread: about 1 ms.
ALONE = 20_000


def _padded(matrix: NDArray[Any], columns: int, rows: int | None = None) -> NDArray[np.float32]:
    out = np.zeros((matrix.shape[0] if rows is None else rows, columns), np.float32)
    out[: matrix.shape[0], : matrix.shape[1]] = matrix
    return out


def _aligned(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The parts one behind the other, from a cache line on."""
    flat = aligned_zeros(sum(part.size for part in parts), np.float32)
    np.concatenate([part.ravel() for part in parts], out=flat)
    return flat


def _sums_of_two(W: NDArray[Any], t: int, psi: int) -> NDArray[Any]:
    """(8 (t + t % 2), h1): row 16 g + a + 4 b has cell a of partition 2 g and cell b of partition 2 g + 1, of W
    (t psi, h1). Cells that do not exist count as zeros.
    """
    cells = np.zeros((t + t % 2, 4, W.shape[1]), W.dtype)
    cells[:t, :psi] = W.reshape(t, psi, -1)
    return (cells[::2, None] + cells[1::2, :, None]).reshape(-1, W.shape[1])


def _up(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


class _Network:
    """The flat buffer and what both networks share. One object serves one thread at a time while its base changes."""

    def __init__(self, weights: Mapping[str, NDArray[Any]], cells: str, dense: list[str], t: int, psi: int) -> None:
        for name, array in weights.items():
            if not np.all(np.isfinite(array)):
                raise ValueError(f"weights {name} have NaN or infinities")
        self.t, self.psi, self.bits = t, psi, bits_per_cell(psi)
        h1, h2, self.p = weights["b1"].size, weights["b2"].size, weights["b3"].size
        self.h1 = _up(h1)
        wide = [_up(h2), _up(self.p)]
        first = weights[f"W1.{cells}"]
        if first.shape[0] % (t * psi) or first.shape[1] != h1:
            raise ValueError(f"weights W1.{cells} have shape {first.shape}, not (classes * {t * psi}, {h1})")
        inputs = np.concatenate([weights[f"W1.{name}"] for name in dense] or [np.zeros((0, h1), np.float32)])
        for name, shape in (("W2", (h1, h2)), ("W3", (h2, self.p))):
            if weights[name].shape != shape:
                raise ValueError(f"weights {name} have shape {weights[name].shape}, not {shape}")
        low, high = weights.get("log_range", (0.0, 0.0))
        sizes = [t, psi, self.h1, *wide, first.shape[0], len(inputs), low, high]
        header = np.zeros(HEADER, np.float32)
        header[: len(sizes)] = sizes
        self.net = _aligned([
            header, _padded(weights["b1"][None], self.h1), _padded(first, self.h1), _padded(inputs, self.h1),
            _padded(weights["W2"], wide[0], self.h1), _padded(weights["b2"][None], wide[0]),
            _padded(weights["W3"], wide[1], wide[0]), _padded(weights["b3"][None], wide[1]),
        ])  # fmt: skip

    def _count(
        self, packed: NDArray[np.uint8], ids: NDArray[np.int64], y: NDArray[Any], n_classes: int, bits: int
    ) -> NDArray[np.int64]:
        """Counts (C t psi,) of stored rows; on all threads where they are worth starting."""
        t, psi = self.t, self.psi
        if len(ids) > ALONE:
            labels = {} if n_classes == 1 else {"y": y, "n_classes": n_classes}
            return _flat(count_rows(packed, ids, t, psi, bits=bits, **labels))  # type: ignore[arg-type]
        counts, words = np.zeros(n_classes * t * psi, np.int64), scratch(packed.shape[1])
        what = (ids, 0, len(ids), y, n_classes, bits, t, psi, words, counts)
        key = ("count classes", packed.flags.writeable, ids.flags.writeable, y.dtype, y.flags.writeable)
        ensure_compiled(key, count_classes, lambda: count_classes(packed, ids[:0], 0, 0, *what[3:]))
        count_classes(packed, *what)
        return counts


class DirectForward(_Network):
    """The direct head [mu_D, mu_f, theta] -> theta'. weights: W1.mu_D, W1.mu_f (t psi, h1), W1.theta (p, h1), b1, ...

    Row ids are not checked here: whoever takes the request does that once.
    """

    def __init__(self, weights: Mapping[str, NDArray[Any]], t: int, psi: int) -> None:
        super().__init__(weights, "mu_f", [], t, psi)
        parts = [weights["W1.mu_D"], weights["W1.theta"], weights["b1"][None]]
        if [len(part) for part in parts] != [t * psi, self.p, 1]:
            raise ValueError(f"weights W1.mu_D and W1.theta must have {t * psi} and {self.p} rows")
        self._memory = _aligned([_padded(part, self.h1) for part in parts])
        self._total = np.zeros(self.h1)
        self._twos = np.zeros(0, np.float32)
        if self.bits == 2:
            tables = (weights["W1.mu_f"], weights["W1.mu_D"])
            self._twos = _aligned([np.hstack([_padded(_sums_of_two(W, t, psi), self.h1) for W in tables])])
        self._places = np.zeros(_up(max(FEW * t, self.h1, self.p)), np.int64)
        size = self._places.size + 2 * self.h1 + _up(weights["b2"].size) + _up(self.p)
        self._room = _aligned([np.zeros(size, np.float32)])
        #: What direct_request works on, for a Held.
        self.own = self._memory, self._total, self.net, self._twos, self._room, self._places

    def set_base(self, counts: NDArray[np.int64], n: int, theta: NDArray[np.float64]) -> None:
        """The state that requests share: counts (t, psi) of the n rows of D, and theta (p,)."""
        self._total[:] = 0
        self._update(_flat(counts), 1, n, np.ascontiguousarray(theta, np.float64))

    def _update(self, counts: NDArray[np.int64], sign: int, n: int, theta: NDArray[np.float64]) -> None:
        total = (counts, sign, self._memory, self._total, self.net)
        ensure_compiled("direct total", direct_total, lambda: direct_total(counts[:0], *total[1:]))
        direct_total(*total)
        base = (self._memory, self._total, n, theta, self.net)
        ensure_compiled("direct base", direct_base, lambda: direct_base(*base))
        direct_base(*base)

    def forget(
        self, packed: NDArray[np.uint8], ids: NDArray[np.int64], n_left: int, theta: NDArray[np.float64],
        bits: int | None = None,
    ) -> None:  # fmt: skip
        """After a request: the stored rows `ids` leave mu_D, theta (p,) is the new one. Sums are kept in float64."""
        if len(ids) <= FEW:
            direct_forget(packed, ids, bits or self.bits, self._memory, self._total, n_left, theta, self.net)
        else:
            counts = self._count(packed, ids, ids, 1, bits or self.bits)
            self._update(counts, -1, n_left, np.ascontiguousarray(theta, np.float64))

    def __call__(
        self, packed: NDArray[np.uint8], ids: NDArray[np.int64], out: NDArray[np.float64], bits: int | None = None
    ) -> NDArray[np.float64]:
        """theta' into out (p,) for the stored rows ids (r,), r >= 1; bits=8 when the store has plain uint8 cells."""
        if len(ids) <= FEW:
            direct_forward(packed, ids, bits or self.bits, self.net, self._twos, out)
            return out
        return self.from_counts(self._count(packed, ids, ids, 1, bits or self.bits), len(ids), out)

    def move(
        self, packed: NDArray[np.uint8], ids: NDArray[np.int64], n_left: int, out: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """theta' into out (p,), and `forget` with it."""
        if len(ids) <= FEW:
            direct_move(
                packed, ids, self.bits, self._memory, self._total, n_left, self.net, self._twos, self._places,
                self._room, out,
            )  # fmt: skip
        else:
            self(packed, ids, out)
            self.forget(packed, ids, n_left, out)
        return out

    def wipe(self) -> None:
        """Overwrite what the latest request left in scratch memory."""
        self._room[:], self._places[:] = 0, 0

    def from_counts(self, counts: NDArray[np.int64], r: int, out: NDArray[np.float64]) -> NDArray[np.float64]:
        """theta' into out (p,) for r rows whose counts (t, psi) are known."""
        _run_counts(_flat(counts), r, NOTHING, 0.0, self.net, out)
        return out

    def compile(self, packed: NDArray[np.uint8]) -> None:
        """Compile (or load) all of it for such a store, so that no request waits."""
        one, out, theta = np.zeros(1, np.int64), np.empty(self.p), np.zeros(self.p)
        store, bits = _first_row(packed), self.bits
        total, net = self._total.copy(), self.net.copy()
        key = ("direct", store.flags.writeable)
        ensure_compiled(key, direct_forward, lambda: direct_forward(store, one, bits, net, self._twos, out))
        ensure_compiled(
            (*key, "forget"), direct_forget,
            lambda: direct_forget(store, one, bits, self._memory, total, 1, theta, net),
        )  # fmt: skip
        ensure_compiled(
            (*key, "move"), direct_move,
            lambda: direct_move(
                store, one, bits, self._memory, total, 1, net, self._twos, self._places, self._room, out
            ),
        )  # fmt: skip
        self.from_counts(self._count(store, one, one, 1, bits), 1, out)


class CorrectionForward(_Network):
    """The network on [z, mu_f per class, log(r/n)] whose output is added to W z.

    weights: W1.z (p, h1), W1.mu_f_class (C t psi, h1), W1.log_ratio (1, h1), b1, ..., log_range (2,): log(r/n) is kept
    within what the training pairs had. mu_f of class c is its counts divided by r, so the classes' sum is mu_f.
    """

    def __init__(self, weights: Mapping[str, NDArray[Any]], t: int, psi: int) -> None:
        super().__init__(weights, "mu_f_class", ["z", "log_ratio"], t, psi)
        if len(weights["W1.z"]) != self.p or len(weights["W1.log_ratio"]) != 1 or "log_range" not in weights:
            raise ValueError(f"weights W1.z and W1.log_ratio must have {self.p} rows and 1, with log_range beside them")
        self.n_classes = len(weights["W1.mu_f_class"]) // (t * psi)

    def __call__(
        self, packed: NDArray[np.uint8], ids: NDArray[np.int64], y: NDArray[Any], z: NDArray[np.float64],
        log_ratio: float, out: NDArray[np.float64], bits: int | None = None,
    ) -> NDArray[np.float64]:  # fmt: skip
        """The correction into out (p,) for the stored rows ids (r,), r >= 1; y (n,) the store's labels; z (p,)."""
        if len(ids) <= FEW:
            correction_forward(packed, ids, y, bits or self.bits, z, log_ratio, self.net, out)
            return out
        counts = self._count(packed, ids, y, self.n_classes, bits or self.bits)
        return self.from_counts(counts, len(ids), z, log_ratio, out)

    def from_counts(
        self, counts: NDArray[np.int64], r: int, z: NDArray[np.float64], log_ratio: float, out: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The same for rows whose counts (C, t, psi) are known."""
        _run_counts(_flat(counts), r, z, log_ratio, self.net, out)
        return out

    def compile(self, packed: NDArray[np.uint8], y: NDArray[Any]) -> None:
        """Compile (or load) it for such a store and labels."""
        one, out, z = np.zeros(1, np.int64), np.empty(self.p), np.zeros(self.p)
        store = _first_row(packed)
        labels = y[:1] if len(y) else np.zeros(1, y.dtype)
        key = ("correction", store.flags.writeable, y.dtype, labels.flags.writeable)
        ensure_compiled(
            key, correction_forward, lambda: correction_forward(store, one, labels, self.bits, z, 0.0, self.net, out)
        )
        self.from_counts(self._count(store, one, labels, self.n_classes, self.bits), 1, z, 0.0, out)


NOTHING = np.empty(0)


def _flat(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(counts, np.int64).reshape(-1)


def _first_row(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A store of one row with the same type as `packed`."""
    return packed[:1] if len(packed) else np.zeros((1, packed.shape[1]), np.uint8)


def _run_counts(*what: Any) -> None:
    ensure_compiled("counts forward", counts_forward, lambda: counts_forward(*what))
    counts_forward(*what)
