"""Counts per cell of chosen rows, straight from the store of packed cells.

Rows are gathered in blocks with their addresses asked for well ahead: random rows of a large store are all cache
misses, and it is the number of them in flight that decides the speed. With 2 bits per cell (psi 3 or 4) 32 cells are
then counted at once in the fields of a 64-bit word.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import prange
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.arrays import Bytes, Ints
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.codegen.pointers import load_word, prefetch
from l2ul_kernels.threads import parallel_entry
from l2ul_kernels.validate import (
    check_array,
    check_bounds,
    check_class_count,
    check_labels,
    check_packed,
    check_row_ids,
    check_t,
)
from l2ul_kernels.voronoi.pack import cell_at

#: Rows per block: as many as an 8-bit field can count.
BLOCK = 255
#: Rows asked for ahead of the one being read.
AHEAD = 16
U = np.uint64
ODD = U(0x5555555555555555)
PAIRS = U(0x3333333333333333)
NIBBLES = U(0x0F0F0F0F0F0F0F0F)
BYTE = U(255)
#: Words of counters per word of cells: three values of a cell, four interleaved sets of byte fields.
FIELDS = 12
#: Cells counted by one thread before others could help (about 20 us of work).
SERIAL = 200_000


class Store(NamedTuple):
    """Packed cells of many rows."""

    packed: Bytes  # (n, width), C-contiguous
    bits: int  # of a cell; 8 for plain uint8 cells
    t: int
    psi: int


def _words(store: Store, *workers: int) -> NDArray[np.uint64]:
    """What counting works in: BLOCK rows of words, then FIELDS rows of counters."""
    return np.empty((*workers, BLOCK + FIELDS, (store.packed.shape[1] + 7) // 8), np.uint64)


@kernel()
def _gather_block(packed: Any, ids: Any, i: int, stop: int, y: Any, c: int, words: Any) -> tuple[int, int]:
    """Up to BLOCK of the rows ids[i:stop] (of class c, if c >= 0) as words; returns (the next i, rows gathered).

    words[k, w] = bytes 8 w .. 8 w + 7 of the row, zeros beyond its end.
    """
    width = packed.shape[1]
    base, full, rest, k = packed.ctypes.data, width // 8, width % 8, 0
    while i < stop and k < BLOCK:
        if i + AHEAD < stop:
            ahead = base + ids[i + AHEAD] * width
            prefetch(ahead)
            prefetch(ahead + width - 1)
        if c < 0 or y[ids[i]] == c:
            for w in range(full):
                words[k, w] = load_word(packed, ids[i], 8 * w)
            if rest and full:  # the row's last 8 bytes, shifted: nothing beyond the store is read
                words[k, full] = load_word(packed, ids[i], width - 8) >> U(8 * (8 - rest))
            elif rest:
                words[k, 0] = U(0)
                for j in range(rest):
                    words[k, 0] |= U(packed[ids[i], j]) << U(8 * j)
            k += 1
        i += 1
    return i, k


@kernel()
def _spill(words: Any, w: int, k: int, fours: Any) -> None:
    """Add sums in four-bit fields to the byte fields k and k + 1."""
    words[BLOCK + k, w] += fours & NIBBLES
    words[BLOCK + k + 1, w] += (fours >> U(4)) & NIBBLES


@kernel()
def _add_fields(words: Any, rows: int, w: int) -> None:
    """Counts of the values 1, 2, 3 of the 32 two-bit cells in column w, as byte fields into words[BLOCK:, w].

    One-bit marks are summed in twos (up to 3 rows), these in fours (up to 15), these in bytes (up to 255).
    """
    for k in range(FIELDS):
        words[BLOCK + k, w] = U(0)
    i = 0
    while i < rows:
        one_a, one_b, two_a, two_b, three_a, three_b = U(0), U(0), U(0), U(0), U(0), U(0)
        most = min(i + 15, rows)
        while i < most:
            one, two, three = U(0), U(0), U(0)
            end = min(i + 3, most)
            while i < end:
                low, high = words[i, w] & ODD, (words[i, w] >> U(1)) & ODD
                both = low & high
                one += low ^ both
                two += high ^ both
                three += both
                i += 1
            one_a, one_b = one_a + (one & PAIRS), one_b + ((one >> U(2)) & PAIRS)
            two_a, two_b = two_a + (two & PAIRS), two_b + ((two >> U(2)) & PAIRS)
            three_a, three_b = three_a + (three & PAIRS), three_b + ((three >> U(2)) & PAIRS)
        _spill(words, w, 0, one_a)
        _spill(words, w, 2, one_b)
        _spill(words, w, 4, two_a)
        _spill(words, w, 6, two_b)
        _spill(words, w, 8, three_a)
        _spill(words, w, 10, three_b)


@kernel()
def _count_twos(words: Any, rows: int, counts: Any) -> bool:
    """Add `rows` rows of two-bit cells to counts (t, psi); whether a cell is not below psi."""
    t, psi = counts.shape
    beyond = False
    for w in range((t + 31) // 32):
        _add_fields(words, rows, w)
    for q in range(t):
        place = q % 4  # the four cells of a byte: sets a, b, a, b; the first two in low nibbles
        which = place % 2 * 2 + place // 2
        shift = U(8 * (q % 32 // 4))
        zeros: Any = rows
        for v in range(1, 4):
            k = np.int64((words[BLOCK + 4 * (v - 1) + which, q // 32] >> shift) & BYTE)
            if v < psi:
                counts[q, v] += k
                zeros -= k
            elif k > 0:
                beyond = True
        counts[q, 0] += zeros
    return beyond


@kernel()
def _count_any(words: Any, rows: int, bits: int, counts: Any) -> bool:
    """The same for any number of bits per cell."""
    t, psi = counts.shape
    packed, beyond = words.view(np.uint8), False
    if psi == 1 << bits:  # no cell can be beyond, and looking costs half as much again
        for i in range(rows):
            for q in range(t):
                counts[q, cell_at(packed, i, q, bits)] += 1
        return beyond
    for i in range(rows):
        for q in range(t):
            cell = cell_at(packed, i, q, bits)
            if cell < U(psi):
                counts[q, cell] += 1
            else:
                beyond = True
    return beyond


@kernel()
def count_range(store: Store, ids: Any, first: int, last: int, y: Any, c: int, words: Any, counts: Any) -> bool:
    """Add how many of the rows ids[first:last] lie in each cell to counts (t, psi); whether a cell is not below psi.

    ids 1-d int64, all of them rows of the store; only rows of class c, by labels y (n,), unless c < 0.
    """
    packed = store.packed
    base, width = packed.ctypes.data, packed.shape[1]
    for k in range(first, min(first + AHEAD, last)):
        prefetch(base + ids[k] * width)
    i, beyond = first, False
    while i < last:
        i, rows = _gather_block(packed, ids, i, last, y, c, words)
        if store.bits == 2:
            beyond |= _count_twos(words, rows, counts)
        else:
            beyond |= _count_any(words, rows, store.bits, counts)
    return beyond


@kernel()
def _count_sets(store: Store, ids: Any, bounds: Any, first: int, last: int, y: Any, words: Any, out: Any) -> int:
    """out[k] (C, t, psi) += counts of the rows ids[bounds[k, 0] : bounds[k, 1]], for k from first to last - 1.

    y (n,) is not read if C is 1. Returns how many of the sets have a cell that is not below psi.
    """
    beyond, n_classes = 0, out.shape[1]
    for k in range(first, last):
        for c in range(n_classes):
            only = c if n_classes > 1 else -1
            beyond += count_range(store, ids, bounds[k, 0], bounds[k, 1], y, only, words, out[k, c])
    return beyond


@kernel(parallel=True)
def _count_sets_parallel(store: Store, ids: Any, bounds: Any, y: Any, words: Any, out: Any) -> int:
    sets, workers, beyond = len(bounds), len(words), 0
    for w in prange(workers):
        beyond += _count_sets(store, ids, bounds, sets * w // workers, sets * (w + 1) // workers, y, words[w], out)
    return beyond


def _beyond(psi: int) -> ValueError:
    return ValueError(f"stored cells must lie in 0..{psi - 1}: there are others among the rows")


def count_few(packed: Bytes, ids: Ints, t: int, psi: int, bits: int) -> Ints:
    """`count_rows` by the calling thread alone: packed and ids as `check_packed`, `check_row_ids` make them."""
    store, counts = Store(packed, bits, t, psi), np.zeros((t, psi), np.int64)
    what = ids, -1, _words(store), counts
    key = ("count few", packed.flags.writeable, ids.flags.writeable)
    ensure_compiled(key, lambda: count_range(store, ids, 0, 0, *what))
    if count_range(store, ids, 0, len(ids), *what):
        raise _beyond(psi)
    return counts


def count_sets(
    packed: ArrayLike,
    ids: ArrayLike,
    bounds: ArrayLike,
    t: int,
    psi: int,
    y: ArrayLike | None = None,
    n_classes: int | None = None,
    bits: int | None = None,
) -> Ints:
    """Counts per cell of many sets of stored rows.

    Parameters
    ----------
    packed : (n, width) uint8 as `pack_cells` makes it; or plain cells (n, t) uint8 with bits=8, uint16 with bits=16
    ids : flat integers, numbers of stored rows
    bounds : (m, 2) integers: set k has the rows ids[bounds[k, 0] : bounds[k, 1]]
    t, psi : int, partitions and their seeds
    y, n_classes : (n,) integers, the class of every stored row, and their number: to count by class
    bits : int, bits of a stored cell, ceil(log2 psi) unless given

    Returns
    -------
    (m, t, psi) int64, or (m, C, t, psi) with labels

    Raises
    ------
    ValueError, TypeError
        For rows, labels or cells that do not exist, and for arrays of another shape or type.
    """
    packed, bits = check_packed(packed, t, psi, bits)
    ids = check_row_ids(ids, len(packed))
    bounds = check_bounds(bounds, len(ids))
    if (y is None) != (n_classes is None):
        raise ValueError("labels y and n_classes go together")
    classes = 1 if n_classes is None else check_class_count(n_classes)
    labels = np.zeros(0, np.uint8) if y is None else check_labels(y, len(packed), classes, of="the store")
    out = np.zeros((len(bounds), classes, t, psi), np.int64)
    if _run_sets(Store(packed, bits, t, psi), ids, bounds, labels, out):
        raise _beyond(psi)
    return out[:, 0] if y is None else out


def _run_sets(store: Store, ids: Any, bounds: Any, labels: Any, out: Ints) -> int:
    if len(ids) * store.t < SERIAL or len(bounds) == 1:
        words = _words(store)
        run = lambda last: _count_sets(store, ids, bounds, 0, last, labels, words, out)  # noqa: E731
        ensure_compiled(("count sets", labels.dtype), lambda: run(0))
        return run(len(bounds))
    with parallel_entry():
        many = _words(store, min(numba.get_num_threads(), len(bounds)))
        each = lambda some: _count_sets_parallel(store, ids, some, labels, many, out)  # noqa: E731
        ensure_compiled(("count sets in parallel", labels.dtype), lambda: each(bounds[:0]))
        return each(bounds)


def count_rows(
    packed: ArrayLike,
    ids: ArrayLike,
    t: int,
    psi: int,
    y: ArrayLike | None = None,
    n_classes: int | None = None,
    bits: int | None = None,
) -> Ints:
    """Counts per cell of stored rows `ids`: (t, psi) int64, or (C, t, psi) by class; see `count_sets`."""
    ids, t = check_array(ids, "row ids", "iu", "integers"), check_t(t)
    pieces = 1 if ids.size * t < SERIAL else numba.get_num_threads()  # sums of integers: the split does not show
    edges = np.linspace(0, ids.size, pieces + 1).astype(np.int64)
    return count_sets(packed, ids, np.stack([edges[:-1], edges[1:]], axis=1), t, psi, y, n_classes, bits).sum(0)
