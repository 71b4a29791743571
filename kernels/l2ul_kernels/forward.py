"""The networks' forward for one request, compiled: no torch at request time.

One object per network holds its weights in the flat buffer that the kernels of _forward.py read. Widths are padded with
zeros to whole cache lines. The kernels take stored packed cells and row ids; plain uint8 cells are a store with bits=8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_kernels._forward import (
    HEADER,
    correction_forward,
    counts_forward,
    direct_base,
    direct_forget,
    direct_forward,
)
from l2ul_kernels._jit import ensure_compiled
from l2ul_kernels.cells import bits_per_cell
from l2ul_kernels.partitions import address

#: float32 values per cache line.
ALIGN = 16


def _padded(matrix: NDArray[Any], columns: int, rows: int | None = None) -> NDArray[np.float32]:
    out = np.zeros((matrix.shape[0] if rows is None else rows, columns), np.float32)
    out[: matrix.shape[0], : matrix.shape[1]] = matrix
    return out


def _aligned(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The parts one behind the other, from a cache line on."""
    size = sum(part.size for part in parts)
    room = np.empty(size + ALIGN, np.float32)
    skip = -address(room) % 64 // 4
    flat = room[skip : skip + size]
    np.concatenate([part.ravel() for part in parts], out=flat)
    return flat


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

    def set_base(self, counts: NDArray[np.int64], n: int, theta: NDArray[np.float64]) -> None:
        """The state that requests share: counts (t, psi) of the n rows of D, and theta (p,)."""
        weights = self._memory[: self.t * self.psi * self.h1].reshape(-1, self.h1)
        self._total[:] = np.asarray(counts, np.float64).ravel() @ weights.astype(np.float64)
        what = (self._memory, self._total, n, np.ascontiguousarray(theta, np.float64), self.net)
        ensure_compiled("direct base", direct_base, lambda: direct_base(*what))
        direct_base(*what)

    def forget(
        self, packed: NDArray[np.uint8], ids: NDArray[np.int64], n_left: int, theta: NDArray[np.float64],
        bits: int | None = None,
    ) -> None:  # fmt: skip
        """After a request: the stored rows `ids` leave mu_D, theta (p,) is the new one. Sums are kept in float64."""
        direct_forget(packed, ids, bits or self.bits, self._memory, self._total, n_left, theta, self.net)

    def __call__(
        self, packed: NDArray[np.uint8], ids: NDArray[np.int64], out: NDArray[np.float64], bits: int | None = None
    ) -> NDArray[np.float64]:
        """theta' into out (p,) for the stored rows ids (r,), r >= 1; bits=8 when the store has plain uint8 cells."""
        direct_forward(packed, ids, bits or self.bits, self.net, out)
        return out

    def from_counts(self, counts: NDArray[np.int64], r: int, out: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same for rows whose counts (t, psi) are known."""
        counts_forward(np.ascontiguousarray(counts, np.int64).ravel(), r, np.empty(0, np.float32), self.net, out)
        return out

    def compile(self, packed: NDArray[np.uint8]) -> None:
        """Compile (or load) all of it for such a store, so that no request waits."""
        one, out, theta = np.zeros(1, np.int64), np.empty(self.p), np.zeros(self.p)
        store, bits = packed[:1] if len(packed) else np.zeros((1, packed.shape[1]), np.uint8), self.bits
        total, net = self._total.copy(), self.net.copy()
        key = ("direct", store.flags.writeable)
        ensure_compiled(key, direct_forward, lambda: direct_forward(store, one, bits, net, out))
        ensure_compiled(
            (*key, "forget"), direct_forget,
            lambda: direct_forget(store, one, bits, self._memory, total, 1, theta, net),
        )  # fmt: skip
        none = np.zeros(self.t * self.psi, np.int64)
        nothing = np.empty(0, np.float32)
        ensure_compiled("counts forward", counts_forward, lambda: counts_forward(none, 1, nothing, net, out))


class CorrectionForward(_Network):
    """The network on [z, mu_f per class, log(r/n)] whose output is added to W z.

    weights: W1.z (p, h1), W1.mu_f_class (C t psi, h1), W1.log_ratio (1, h1), b1, ..., log_range (2,): log(r/n) is kept
    within what the training pairs had. mu_f of class c is its counts divided by r, so the classes' sum is mu_f.
    """

    def __init__(self, weights: Mapping[str, NDArray[Any]], t: int, psi: int) -> None:
        super().__init__(weights, "mu_f_class", ["z", "log_ratio"], t, psi)
        if len(weights["W1.z"]) != self.p or len(weights["W1.log_ratio"]) != 1 or "log_range" not in weights:
            raise ValueError(f"weights W1.z and W1.log_ratio must have {self.p} rows and 1, with log_range beside them")

    def __call__(
        self, packed: NDArray[np.uint8], ids: NDArray[np.int64], y: NDArray[Any], z: NDArray[np.float64],
        log_ratio: float, out: NDArray[np.float64], bits: int | None = None,
    ) -> NDArray[np.float64]:  # fmt: skip
        """The correction into out (p,) for the stored rows ids (r,), r >= 1; y (n,) the store's labels; z (p,)."""
        correction_forward(packed, ids, y, bits or self.bits, z, log_ratio, self.net, out)
        return out

    def compile(self, packed: NDArray[np.uint8], y: NDArray[Any]) -> None:
        """Compile (or load) it for such a store and labels."""
        one, out, z = np.zeros(1, np.int64), np.empty(self.p), np.zeros(self.p)
        key = ("correction", packed.flags.writeable, y.dtype, y.flags.writeable)
        store, labels = packed[:1], y[:1]
        ensure_compiled(
            key, correction_forward, lambda: correction_forward(store, one, labels, self.bits, z, 0.0, self.net, out)
        )
