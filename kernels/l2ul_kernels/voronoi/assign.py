"""Cells of rows: assigning, storing them in few bits, and the 0/1 feature map they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import prange
from numpy.typing import ArrayLike, DTypeLike, NDArray

from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.threads import parallel_entry
from l2ul_kernels.voronoi.driver import blocks, check_rows, run
from l2ul_kernels.voronoi.partitions import MAX_SEEDS, Partitions, cell_dtype

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def assign_cells(X: ArrayLike, partitions: Partitions, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Index of the nearest seed of every row in every partition.

    X (n, d) float32 or float64, any strides, read-only or memory-mapped; integers are read as float64. Returns (n, t)
    uint8 (uint16 above 256 seeds), in `out` when given. The lowest seed index wins a tie. Rows with NaN, infinities or
    absurd magnitudes raise ValueError; `out` may then be partly written.
    """
    X = check_rows(X, partitions)
    shape, dtype = (len(X), partitions.n_partitions), cell_dtype(partitions.n_seeds)
    if out is None:
        out = np.empty(shape, dtype)
    elif not isinstance(out, np.ndarray) or out.dtype != dtype:
        raise TypeError(f"out must be a {dtype} array for {partitions.n_seeds} seeds")
    elif out.shape != shape or not out.flags.writeable:
        raise ValueError(f"out must be a writeable array of shape {shape}, got {out.shape}")
    direct = out.size == 0 or out.strides[1] == dtype.itemsize or shape[1] == 1
    target = out if direct else np.empty(shape, dtype)
    for lo, rows in blocks(X, partitions.compute_dtype(X.dtype)):
        run(rows, partitions, target[lo : lo + len(rows)], first_row=lo)
    if not direct:
        out[...] = target
    return out


def check_cells(cells: ArrayLike, psi: int) -> NDArray[Any]:
    """cells as a contiguous (n, t) array of the dtype for psi, every value below psi."""
    if not 2 <= psi <= MAX_SEEDS:
        raise ValueError(f"psi must be from 2 to {MAX_SEEDS}, got {psi}")
    cells = np.asarray(cells)
    if cells.ndim != 2:
        raise ValueError(f"cells must have shape (n, t), got {cells.ndim} dimension(s)")
    if cells.dtype.kind not in "iu":
        raise TypeError(f"cells must be integers, got {cells.dtype}")
    if cells.size and (cells.min() < 0 or cells.max() >= psi):
        raise ValueError(f"cells must lie in 0..{psi - 1}, found {cells.min()}..{cells.max()}")
    return np.ascontiguousarray(cells, cell_dtype(psi))


def bits_per_cell(psi: int) -> int:
    """Bits that a stored cell takes: ceil(log2 psi)."""
    return int(psi - 1).bit_length()


def packed_width(t: int, psi: int) -> int:
    """Bytes that a row's t cells take when packed."""
    return (t * bits_per_cell(psi) + 7) // 8


@kernel(parallel=True)
def _pack(cells: Any, bits: int, out: Any) -> None:
    n, t = cells.shape
    for i in prange(n):
        word, filled, at = np.uint64(0), 0, 0
        for p in range(t):
            word |= np.uint64(cells[i, p]) << np.uint64(filled)
            filled += bits
            while filled >= 8:
                out[i, at] = np.uint8(word & np.uint64(255))
                word >>= np.uint64(8)
                filled -= 8
                at += 1
        if filled:
            out[i, at] = np.uint8(word)


@kernel(parallel=True)
def _unpack(packed: Any, bits: int, out: Any) -> None:
    n, t = out.shape
    mask = np.uint64((1 << bits) - 1)
    for i in prange(n):
        word, filled, at = np.uint64(0), 0, 0
        for p in range(t):
            while filled < bits:
                word |= np.uint64(packed[i, at]) << np.uint64(filled)
                filled += 8
                at += 1
            out[i, p] = word & mask
            word >>= np.uint64(bits)
            filled -= bits


def pack_cells(cells: ArrayLike, psi: int) -> NDArray[np.uint8]:
    """Cells (n, t) in ceil(log2 psi) bits each: (n, packed_width(t, psi)) bytes, lowest bit first."""
    cells = check_cells(cells, psi)
    out = np.empty((len(cells), packed_width(cells.shape[1], psi)), np.uint8)
    with parallel_entry():
        ensure_compiled(("pack", cells.dtype), lambda: _pack(cells[:0], 1, out[:0]))
        _pack(cells, bits_per_cell(psi), out)
    return out


def unpack_cells(packed: ArrayLike, t: int, psi: int) -> NDArray[Any]:
    """The (n, t) cells that `pack_cells` packed."""
    packed = np.asarray(packed)
    if packed.dtype != np.uint8:
        raise TypeError(f"packed cells must be uint8, got {packed.dtype}")
    if packed.ndim != 2 or packed.shape[1] != packed_width(t, psi):
        raise ValueError(f"packed cells must have shape (n, {packed_width(t, psi)}), got {packed.shape}")
    packed = np.array(packed, order="C", copy=None if packed.flags.writeable else True)
    out = np.empty((len(packed), t), cell_dtype(psi))
    with parallel_entry():
        ensure_compiled(("unpack", out.dtype), lambda: _unpack(packed[:0], 1, out[:0]))
        _unpack(packed, bits_per_cell(psi), out)
    return out


def one_hot(cells: ArrayLike, psi: int, dtype: DTypeLike = np.float32) -> csr_array:
    """Feature map (n, t * psi) as a scipy CSR array: row i has a 1 in column p * psi + cells[i, p] for every p."""
    from scipy.sparse import csr_array

    cells = check_cells(cells, psi)
    n, t = cells.shape
    index = np.dtype(np.int32 if max(n * t, t * psi) < 2**31 else np.int64)
    indices = np.add(cells, np.arange(0, t * psi, psi, dtype=index), dtype=index)
    indptr = np.arange(0, n * t + 1, t, dtype=index)
    result = csr_array((np.ones(n * t, dtype), indices.ravel(), indptr), shape=(n, t * psi))
    result.has_sorted_indices = True
    return result
