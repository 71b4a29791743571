"""Counts per cell of chosen rows, straight from the store of packed cells.

Rows are gathered in blocks with their addresses asked for well ahead: random rows of a large store are all cache
misses, and it is the number of them in flight that decides the speed. With 2 bits per cell (psi 3 or 4) 32 cells are
then counted at once in the fields of a 64-bit word.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import prange
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.codegen.pointers import prefetch, read
from l2ul_kernels.threads import parallel_entry
from l2ul_kernels.voronoi.assign import bits_per_cell

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


def scratch(width: int) -> NDArray[np.uint64]:
    """What `count_range` works in, for rows of `width` bytes: BLOCK rows of words, then FIELDS rows of counters."""
    return np.empty((BLOCK + FIELDS, (width + 7) // 8), np.uint64)


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
        row = base + ids[i] * width
        if c < 0 or y[ids[i]] == c:
            for w in range(full):
                words[k, w] = read(row + 8 * w, U(0))
            if rest and full:  # the row's last 8 bytes, shifted: nothing beyond the store is read
                words[k, full] = read(row + width - 8, U(0)) >> U(8 * (8 - rest))
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
def _count_twos(words: Any, rows: int, t: int, psi: int, counts: Any, at: int) -> None:
    """Add the counts of `rows` rows of two-bit cells to counts[at ..]."""
    for w in range((t + 31) // 32):
        _add_fields(words, rows, w)
    for q in range(t):
        place = q % 4  # the four cells of a byte: sets a, b, a, b; the first two in low nibbles
        which = place % 2 * 2 + place // 2
        shift = U(8 * (q % 32 // 4))
        zeros: Any = rows
        for v in range(1, psi):
            k = np.int64((words[BLOCK + 4 * (v - 1) + which, q // 32] >> shift) & BYTE)
            counts[at + q * psi + v] += k
            zeros -= k
        counts[at + q * psi] += zeros


@kernel()
def _count_any(words: Any, rows: int, bits: int, t: int, psi: int, counts: Any, at: int) -> None:
    """The same for any number of bits per cell."""
    mask, b = U((1 << bits) - 1), U(bits)
    for i in range(rows):
        bit = U(0)
        for q in range(t):
            w, s = bit >> U(6), bit & U(63)
            cell = words[i, w] >> s
            if s + b > U(64):
                cell |= words[i, w + U(1)] << (U(64) - s)
            counts[U(at + q * psi) + (cell & mask)] += 1
            bit += b


@kernel()
def count_range(
    packed: Any,
    ids: Any,
    start: int,
    stop: int,
    y: Any,
    c: int,
    bits: int,
    t: int,
    psi: int,
    words: Any,
    counts: Any,
    at: int,
) -> None:
    """Add how many of the rows ids[start:stop] lie in each cell to counts[at : at + t * psi].

    packed (n, width) uint8 with `bits` per cell (8 for plain uint8 cells); ids 1-d int64, all of them rows of packed;
    only rows of class c, by labels y (n,), unless c < 0; counts 1-d int64; words from `scratch(width)`.
    """
    base, width = packed.ctypes.data, packed.shape[1]
    for k in range(start, min(start + AHEAD, stop)):
        prefetch(base + ids[k] * width)
    i = start
    while i < stop:
        i, rows = _gather_block(packed, ids, i, stop, y, c, words)
        if bits == 2:
            _count_twos(words, rows, t, psi, counts, at)
        else:
            _count_any(words, rows, bits, t, psi, counts, at)


@kernel()
def count_classes(
    packed: Any,
    ids: Any,
    start: int,
    stop: int,
    y: Any,
    n_classes: int,
    bits: int,
    t: int,
    psi: int,
    words: Any,
    counts: Any,
) -> None:
    """The same by class: counts 1-d int64 of (C, t, psi); y (n,) is not read when n_classes is 1."""
    for c in range(n_classes):
        only = c if n_classes > 1 else -1
        count_range(packed, ids, start, stop, y, only, bits, t, psi, words, counts, c * t * psi)


@kernel()
def _count_sets(
    packed: Any,
    ids: Any,
    bounds: Any,
    first: int,
    last: int,
    y: Any,
    n_classes: int,
    bits: int,
    t: int,
    psi: int,
    words: Any,
    out: Any,
) -> None:
    """out[k] += counts of the rows ids[bounds[k, 0] : bounds[k, 1]], for k from first to last - 1."""
    for k in range(first, last):
        count_classes(packed, ids, bounds[k, 0], bounds[k, 1], y, n_classes, bits, t, psi, words, out[k])


@kernel(parallel=True)
def _count_sets_parallel(
    packed: Any, ids: Any, bounds: Any, y: Any, n_classes: int, bits: int, t: int, psi: int, words: Any, out: Any
) -> None:
    sets, workers = len(bounds), len(words)
    for w in prange(workers):
        first, last = sets * w // workers, sets * (w + 1) // workers
        _count_sets(packed, ids, bounds, first, last, y, n_classes, bits, t, psi, words[w], out)


def check_store(packed: ArrayLike, t: int, psi: int, bits: int | None) -> tuple[NDArray[np.uint8], int]:
    """(the store as a C-contiguous (n, width) uint8 array, bits per cell)."""
    packed = np.asarray(packed)
    bits = bits_per_cell(psi) if bits is None else int(bits)
    if packed.dtype == np.uint16 and bits == 16:  # plain cells above 256 seeds
        packed = np.ascontiguousarray(packed, "<u2").view(np.uint8)
    if packed.dtype != np.uint8:
        raise TypeError(f"stored cells must be uint8, got {packed.dtype}")
    if not bits_per_cell(psi) <= bits <= 16:
        raise ValueError(f"{bits} bits cannot hold cells of psi={psi}")
    width = (t * bits + 7) // 8
    if packed.ndim != 2 or packed.shape[1] != width:
        raise ValueError(f"stored cells must have shape (n, {width}), got {packed.shape}")
    return np.ascontiguousarray(packed), bits


def check_ids(ids: ArrayLike, n: int) -> NDArray[np.int64]:
    """Row ids as a C-contiguous int64 array, each in 0 .. n - 1."""
    ids = np.asarray(ids)
    if ids.size and ids.dtype.kind not in "iu":
        raise TypeError(f"row ids must be integers, got {ids.dtype}")
    ids = np.ascontiguousarray(ids, np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= n):
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise ValueError(f"row {bad} is not among the {n} rows")
    return ids


def count_sets(
    packed: ArrayLike,
    ids: ArrayLike,
    bounds: ArrayLike,
    t: int,
    psi: int,
    y: ArrayLike | None = None,
    n_classes: int | None = None,
    bits: int | None = None,
) -> NDArray[np.int64]:
    """Counts per cell of many sets of stored rows: int64 (m, t, psi), or (m, C, t, psi) by class.

    packed (n, width) as `pack_cells` makes it, or plain cells (n, t) with bits=8; ids flat int64; set k has the rows
    ids[bounds[k, 0] : bounds[k, 1]], bounds (m, 2); y (n,) the class of every stored row.
    """
    packed, bits = check_store(packed, t, psi, bits)
    ids, bounds = check_ids(ids, len(packed)), np.ascontiguousarray(bounds, np.int64)
    if ids.ndim != 1 or bounds.ndim != 2 or bounds.shape[1] != 2:
        raise ValueError(f"ids must be flat and bounds of shape (m, 2), got {ids.shape} and {bounds.shape}")
    sizes = bounds[:, 1] - bounds[:, 0]
    if len(bounds) and (bounds.min() < 0 or bounds.max() > len(ids) or sizes.min() < 0):
        raise ValueError(f"bounds must be ranges within the {len(ids)} ids")
    if (y is None) != (n_classes is None):
        raise ValueError("labels y and n_classes go together")
    labels, classes = np.zeros(0, np.uint8) if y is None else np.ascontiguousarray(y), n_classes or 1
    if y is not None and labels.shape != (len(packed),):
        raise ValueError(f"y must have shape ({len(packed)},) to match the store, got {labels.shape}")
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels y must be integers, got {labels.dtype}")
    out = np.zeros((len(bounds), classes * t * psi), np.int64)
    _run_sets(packed, ids, bounds, (labels, classes, bits, t, psi), out)
    return out.reshape((-1, t, psi) if y is None else (-1, classes, t, psi))


def _run_sets(packed: Any, ids: Any, bounds: Any, what: tuple[Any, ...], out: NDArray[np.int64]) -> None:
    y, t = what[0], what[3]
    key = (packed.flags.writeable, ids.flags.writeable, y.dtype, y.flags.writeable)
    words = scratch(packed.shape[1])
    if len(ids) * t < SERIAL or len(bounds) == 1:
        run = lambda last: _count_sets(packed, ids, bounds, 0, last, *what, words, out)  # noqa: E731
        ensure_compiled(("count sets", *key), lambda: run(0))
        run(len(bounds))
        return
    with parallel_entry():
        many = np.empty((min(numba.get_num_threads(), len(bounds)), *words.shape), np.uint64)
        each = lambda some: _count_sets_parallel(packed, ids, some, *what, many, out)  # noqa: E731
        ensure_compiled(("count sets in parallel", *key), lambda: each(bounds[:0]))
        each(bounds)


def count_rows(
    packed: ArrayLike,
    ids: ArrayLike,
    t: int,
    psi: int,
    y: ArrayLike | None = None,
    n_classes: int | None = None,
    bits: int | None = None,
) -> NDArray[np.int64]:
    """Counts per cell of the stored rows `ids`: int64 (t, psi), or (C, t, psi) by class; see `count_sets`."""
    ids = np.asarray(ids)
    pieces = 1 if ids.size * t < SERIAL else numba.get_num_threads()  # sums of integers: the split does not show
    edges = np.linspace(0, ids.size, pieces + 1).astype(np.int64)
    return count_sets(packed, ids.ravel(), np.stack([edges[:-1], edges[1:]], axis=1), t, psi, y, n_classes, bits).sum(0)
