"""Tiles of rows through all partitions: their cells, or how many rows fall in each.

A worker takes batches of rows from a shared counter, a tile at a time, and keeps tile and cells in scratch of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import prange
from numpy.typing import NDArray

from l2ul_kernels.arrays import Array, Ints
from l2ul_kernels.codegen.alignment import aligned_parts
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
from l2ul_kernels.codegen.llvm import VECTOR_BYTES, tile_rows
from l2ul_kernels.codegen.pointers import address, call_at, count_bits, entry_point, fetch_add, prefetch
from l2ul_kernels.threads import parallel_entry
from l2ul_kernels.validate import cell_dtype
from l2ul_kernels.voronoi.partitions import LIMITS, Partitions, SeedTable
from l2ul_kernels.voronoi.tile import load_tile, nearest, nearest2, nearest4, rows_in_cell, transpose16

#: Rows of an array that must be copied (strides, byte order, integers) are copied this many at a time.
COPY_ROWS = 16384
#: Multiply-adds a worker takes at once: about 0.2 ms, long against taking, short against a straggler.
TAKE = 16_000_000
#: Fewer multiply-adds than this are done before other threads could help (measured: about 20 us of work).
SERIAL = 1_000_000
#: Up to this psi a tile is counted by comparing all its rows with each cell at once, above it row by row
#: (chosen with `l2ul bench kernels`, d = 3, where counting weighs most).
COUNT_BY_CELL = 8
#: Up to this many classes those comparisons are also masked by class.
COUNT_BY_CLASS = 4


class RowView(NamedTuple):
    """The caller's rows, by address: read-only, mapped and strided arrays then share one compiled kernel."""

    address: int
    stride: int  # bytes from one row to the next
    n: int
    lines: int  # cache lines of the next tile that are asked for with each partition


class Scratch(NamedTuple):
    """What workers work in, an entry each, and how they call `cells_of_tile`."""

    features: Array  # (workers, d or a vector's width if that is more, TILE): a transposed tile
    cells: Array  # (workers, t, TILE) uint8 or uint16
    masks: NDArray[np.uint64]  # (workers, 8): rows of a tile by class
    tile: int  # entry point of `cells_of_tile`: four kernels call it, it is compiled once


@kernel(inline=True)
def count_four(cells: Any, p: int, features: Any, valid: Any, counts: Any) -> None:
    """counts[4 p + j] += how many of the rows in the mask `valid` lie in cell j of partition p, for j from 1 to 3."""
    for j in range(1, 4):
        counts[np.uint64(4 * p + j)] += count_bits(rows_in_cell(cells, p, j, features) & valid)


@kernel()
def cells_of_tile(rows: RowView, first: int, seeds: SeedTable, features: Any, cells: Any, counts: Any) -> int:
    """cells (t, TILE) of the rows from `first` on, as many as there are; 1 if one has an unusable value, else 0.

    Where psi is 4 and counts (4 t,) is not empty, the rows are also added to it: among the multiplications that costs
    little, on its own up to 27 % (d = 3). Cell 0 is left out.
    """
    d, t, psi, tile = seeds.d, seeds.t, seeds.psi, features.shape[1]
    columns, size, counting = seeds.columns, min(tile, rows.n - first), counts.size > 0
    valid = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - size)
    at = rows.address + first * rows.stride
    bad = load_tile(features, at, rows.stride, size - 1, d, seeds.centre, seeds.limit)
    if psi == 2:
        nearest2(features, columns, d, seeds.threes, seeds.twos, seeds.ones, cells)
    # the next tile's rows are asked for a little at a time, so that memory works while the multipliers do
    at += tile * rows.stride
    end = at + tile * rows.stride if first + tile < rows.n else at
    width = (d + 1) * (psi - 1)
    for p in range(t):
        if psi == 4:
            nearest4(features, columns, p * width, d, cells, p)
        elif psi != 2:
            nearest(features, columns, p * width, d, seeds.threes, seeds.twos, cells, p)
        if counting and p > 0:  # the partition before: whose cells have left the registers
            count_four(cells, p - 1, features, valid, counts)
        if at < end:
            for _ in range(rows.lines):
                prefetch(at)
                at += 64
    if counting:
        count_four(cells, t - 1, features, valid, counts)
    return bad


@kernel()
def write_rows(cells: Any, size: int, features: Any, out: Any, first: int) -> None:
    """out[first + i] = row i of a tile, for i < size: out (n, t), cells (t, TILE)."""
    t, tile = cells.shape
    if cells.itemsize == 1 and size == tile and t >= 16 and tile >= 16:
        p = 0
        while p < t:
            p = min(p, t - 16)  # the last block overlaps the one before
            i = 0
            while i < tile:
                i += transpose16(cells, p, i, out, first + i, features)
            p += 16
    else:
        for i in range(size):
            for p in range(t):
                out[first + i, p] = cells[p, i]


@kernel()
def mark_classes(size: int, labels: Any, first: int, masks: Any, n_classes: int) -> None:
    """masks[c] = bit i set where row first + i is of class c, for i < size (one class: all these rows)."""
    for c in range(n_classes):
        masks[c] = np.uint64(0)
    if n_classes == 1:
        masks[0] = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - size)
    else:
        for i in range(size):
            masks[labels[first + i]] |= np.uint64(1) << np.uint64(i)


@kernel()
def count_tile(cells: Any, size: int, features: Any, labels: Any, first: int, masks: Any, counts: Any) -> None:
    """Add the first `size` rows of a tile's cells (t, TILE) to counts (C, t, psi), by labels[first:] if C > 1.

    Cell 0 may be left out: it holds what the others do not.
    """
    n_classes, t, psi = counts.shape
    if psi <= COUNT_BY_CELL and n_classes <= COUNT_BY_CLASS:
        mark_classes(size, labels, first, masks, n_classes)
        for p in range(t):
            for c in range(n_classes):
                for j in range(1, psi):
                    counts[c, p, j] += count_bits(rows_in_cell(cells, p, j, features) & masks[c])
    else:
        for p in range(t):
            for i in range(size):
                if n_classes > 1:
                    counts[labels[first + i], p, cells[p, i]] += 1
                else:
                    counts[0, p, cells[p, i]] += 1


@kernel()
def assign_worker(rows: RowView, seeds: SeedTable, scratch: Scratch, w: int, batches: Any, out: Any) -> int:
    """Cells of rows into out (n, t), by worker w: a batch at a time until none is left.

    batches = [next row, rows of a batch], shared by all workers. Returns the first row of a tile that holds an unusable
    value, or n.
    """
    features, cells, no_counts = scratch.features[w], scratch.cells[w], np.empty(0, np.int64)
    n, tile, size = rows.n, features.shape[1], batches[1]
    bad, start = n, fetch_add(batches, size)
    while start < n:
        end = min(start + size, n)
        for first in range(start, end, tile):
            if call_at(scratch.tile, 0, (rows, first, seeds, features, cells, no_counts)):
                bad = min(bad, first)
            write_rows(cells, min(tile, end - first), features, out, first)
        start = fetch_add(batches, size)
    return bad


@kernel()
def count_worker(
    rows: RowView, seeds: SeedTable, scratch: Scratch, w: int, batches: Any, labels: Any, counts: Any
) -> int:
    """The same for counts (workers, C, t, psi), to whose entry w rows are added; labels (n,) are not read if C is 1."""
    features, cells, masks, own = scratch.features[w], scratch.cells[w], scratch.masks[w], counts[w]
    flat = own.reshape(-1)
    hidden = flat if seeds.psi == 4 and len(own) == 1 else flat[:0]
    n, tile, size = rows.n, features.shape[1], batches[1]
    bad, start = n, fetch_add(batches, size)
    while start < n:
        end = min(start + size, n)
        for first in range(start, end, tile):
            if call_at(scratch.tile, 0, (rows, first, seeds, features, cells, hidden)):
                bad = min(bad, first)
            if hidden.size == 0:
                count_tile(cells, min(tile, end - first), features, labels, first, masks, own)
        start = fetch_add(batches, size)
    return bad


@kernel(parallel=True)
def assign_workers(rows: RowView, seeds: SeedTable, scratch: Scratch, batches: Any, out: Any, bad: Any) -> None:
    """All workers at once; bad[w] is what each returns. (w is unsigned: uncast, workers would compile once more.)"""
    for w in prange(bad.size):
        bad[w] = assign_worker(rows, seeds, scratch, np.int64(w), batches, out)


@kernel(parallel=True)
def count_workers(
    rows: RowView, seeds: SeedTable, scratch: Scratch, batches: Any, labels: Any, counts: Any, bad: Any
) -> None:
    """The same for counts."""
    for w in prange(bad.size):
        bad[w] = count_worker(rows, seeds, scratch, np.int64(w), batches, labels, counts)


def blocks(X: Array, dtype: np.dtype[Any]) -> Iterator[tuple[int, Array]]:
    """(first row, rows the kernel can read in place): all of X when it can, else copies of COPY_ROWS rows."""
    if X.dtype == dtype and X.flags.aligned and X.strides[1] == dtype.itemsize:
        yield 0, X
        return
    for lo in range(0, len(X), COPY_ROWS):
        yield lo, np.ascontiguousarray(X[lo : lo + COPY_ROWS], dtype)


def assign_block(X: Array, partitions: Partitions, out: Array, first_row: int) -> None:
    """Cells of a block of `blocks` into out (n, t), C-contiguous; ValueError names the first unusable row."""
    _run(assign_worker, assign_workers, X, partitions, _workers(X, partitions), (out,), first_row)


def count_block(X: Array, partitions: Partitions, labels: NDArray[np.uint16], n_classes: int, first_row: int) -> Ints:
    """Counts (C, t, psi) of a block without those of cell 0; labels (n,) of its rows, or empty for one class."""
    workers = _workers(X, partitions)
    counts = np.zeros((workers, n_classes, partitions.n_partitions, partitions.n_seeds), np.int64)
    _run(count_worker, count_workers, X, partitions, workers, (labels, counts), first_row)
    return counts[0] if workers == 1 else counts.sum(axis=0)


#: Entry points of `cells_of_tile` by (element type, type of a cell).
tile_entries: dict[tuple[Any, Any], int] = {}


def _entry(rows: RowView, seeds: SeedTable, features: Array, cells: Array) -> int:
    """The entry point of `cells_of_tile` for scratch of these types."""
    key = features.dtype, cells.dtype
    if key not in tile_entries:
        kinds = tuple(map(numba.typeof, (rows, 0, seeds, features[0], cells[0], np.empty(0, np.int64))))
        ensure_compiled(("tile", *key), lambda: entry_point(cells_of_tile, kinds))
        tile_entries[key] = entry_point(cells_of_tile, kinds)
    return tile_entries[key]


def _workers(X: Array, partitions: Partitions) -> int:
    n = len(X)
    if n * partitions.seeds.size < SERIAL:
        return 1
    return min(numba.get_num_threads(), -(-n // tile_rows(X.dtype.itemsize)))


def _run(
    one: Any, many: Any, X: Array, partitions: Partitions, workers: int, what: tuple[Any, ...], first_row: int
) -> None:
    """The kernel `one` by the calling thread, or `many` by all, on the rows of X."""
    n, d = X.shape
    tile, cell = tile_rows(X.dtype.itemsize), cell_dtype(partitions.n_seeds)
    seeds, stride = partitions.packed(X.dtype), X.strides[0]
    rows = RowView(address(X), stride, n, -(-tile * stride // (64 * partitions.n_partitions)))
    batch = max(1, min(TAKE // partitions.seeds.size, -(-n // workers)) // tile) * tile
    wide = (workers, max(d, VECTOR_BYTES // X.dtype.itemsize), tile)
    features, cells = aligned_parts((wide, X.dtype), ((workers, seeds.t, tile), cell))
    scratch = Scratch(features, cells, np.empty((workers, 8), np.uint64), _entry(rows, seeds, features, cells))
    key, batches = (one, X.dtype, cell, workers > 1), np.array([0, batch])
    if workers == 1:
        ensure_compiled(key, lambda: one(rows._replace(n=0), seeds, scratch, 0, batches.copy(), *what))
        first_bad = one(rows, seeds, scratch, 0, batches, *what)
    else:
        bad = np.empty(workers, np.int64)
        with parallel_entry():
            ensure_compiled(key, lambda: many(rows._replace(n=0), seeds, scratch, batches.copy(), *what, bad))
            many(rows, seeds, scratch, batches, *what, bad)
        first_bad = bad.min()
    if first_bad < n:
        raise ValueError(_unusable(X, int(first_bad), seeds.centre[:d], first_row))


def _unusable(X: Array, tile: int, centre: Array, first_row: int) -> str:
    """What is wrong with the first row from `tile` on that the kernel could not use."""
    for row in range(tile, len(X)):
        if not np.all(np.isfinite(X[row])):
            return f"row {first_row + row} of X has NaN or an infinity"
        if not np.all(np.abs(X[row] - centre) <= LIMITS[X.dtype]):
            return f"row {first_row + row} of X has a value beyond {LIMITS[X.dtype]:g}, too large for {X.dtype}"
    raise AssertionError("the kernel reported a row that looks usable")
