"""Cells in few bits, and the 0/1 feature map they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import prange
from numpy.typing import ArrayLike, DTypeLike

from l2ul_kernels.arrays import Array, Bytes
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.codegen.pointers import load_word
from l2ul_kernels.threads import parallel_entry
from l2ul_kernels.validate import bits_per_cell, cell_dtype, check_cells, check_integers, check_packed, packed_width

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@kernel()
def cell_at(rows: Any, i: int, p: int, bits: int) -> Any:
    """Cell p of row i of packed rows (n, width) uint8, width >= 8, each cell of `bits` <= 16 bits, lowest first.

    Read from the 8 bytes at the cell, or before it where the row ends sooner.
    """
    byte = min(p * bits >> 3, rows.shape[1] - 8)
    return (load_word(rows, i, byte) >> np.uint64(p * bits - 8 * byte)) & np.uint64((1 << bits) - 1)


@kernel()
def unpack_row(packed: Any, row: int, bits: int, cells: Any) -> None:
    """cells (t,) = the cells of one row of packed (n, width) uint8, as `cell_at` reads them; of any width."""
    width, mask, word = packed.shape[1], np.uint64((1 << bits) - 1), np.uint64(0)
    if width >= 8:
        for p in range(cells.size):
            cells[p] = cell_at(packed, row, p, bits)
    else:
        for byte in range(width):
            word |= np.uint64(packed[row, byte]) << np.uint64(8 * byte)
        for p in range(cells.size):
            cells[p] = (word >> np.uint64(p * bits)) & mask


@kernel(parallel=True)
def _unpack(packed: Any, bits: int, out: Any) -> None:
    for i in prange(len(out)):
        unpack_row(packed, i, bits, out[i])


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


def pack_cells(cells: ArrayLike, psi: int) -> Bytes:
    """Cells in ceil(log2 psi) bits each.

    Parameters
    ----------
    cells : (n, t) integers from 0 to psi - 1
    psi : int, number of seeds of a partition

    Returns
    -------
    (n, packed_width(t, psi)) uint8, lowest bit first

    Raises
    ------
    TypeError, ValueError
        If the cells are no integers or not below psi.
    """
    cells = check_cells(cells, psi)
    out = np.empty((len(cells), packed_width(cells.shape[1], psi)), np.uint8)
    with parallel_entry():
        ensure_compiled(("pack", cells.dtype), lambda: _pack(cells[:0], 1, out[:0]))
        _pack(cells, bits_per_cell(psi), out)
    return out


def unpack_cells(packed: ArrayLike, t: int, psi: int) -> Array:
    """The (n, t) cells that `pack_cells` packed, uint8 (uint16 above 256 seeds); refused where one is not below psi."""
    packed, bits = check_packed(packed, t, psi)
    out = np.empty((len(packed), t), cell_dtype(psi))
    with parallel_entry():
        ensure_compiled(("unpack", out.dtype), lambda: _unpack(packed[:0], 1, out[:0]))
        _unpack(packed, bits, out)
    if psi < 1 << bits:  # else no cell can be beyond
        check_integers(out, psi, "stored cells")
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
