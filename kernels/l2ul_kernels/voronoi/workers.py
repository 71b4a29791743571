"""Compiled drivers: rows -> tiles -> cells, and what is made of the cells. No validation, no allocation, no exceptions.

Arguments that describe a run travel together: `x` address of the first row, `stride` bytes between rows, `n` rows, `d`
features, `t` partitions, `psi` seeds, `threes`/`twos`/`ones` how a partition's columns are grouped, `columns` and
`centre` addresses made by Partitions, `scratch` address of one worker's memory, `limit` the largest usable magnitude
(its type is the element type), `cell` a zero of the cell's type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.llvm import VECTOR_BYTES, R
from l2ul_kernels.codegen.pointers import add, count_bits, fetch_add, prefetch, read, size_of, write
from l2ul_kernels.voronoi.tile import load_tile, nearest, nearest2, nearest4, rows_in_cell, transpose16

#: Up to this psi a tile is counted by comparing all its rows with each cell at once, above it row by row
#: (chosen with `l2ul bench kernels`, d = 3, where counting weighs most).
COUNT_BY_CELL = 8
#: Up to this many classes those comparisons are also masked by class.
COUNT_BY_CLASS = 4


@kernel()
def _count(
    cells: int, rows: int, t: int, psi: int, labels: int, n_classes: int, masks: int, counts: int, limit: Any, cell: Any
) -> None:
    """Add a tile's cells (t, TILE) to counts (C, t, psi).

    Cell 0 may be left out: it holds what the others do not. masks[c] has bit i set where row i is valid and of class c.
    """
    tile_rows = R * VECTOR_BYTES // size_of(limit)
    by_cell = psi <= COUNT_BY_CELL and n_classes <= COUNT_BY_CLASS
    for p in range(t):
        here = cells + p * tile_rows * size_of(cell)
        for c in range(n_classes if by_cell else 0):
            mask = read(masks + 8 * c, np.uint64(0))
            for j in range(1, psi):
                add(counts + 8 * ((c * t + p) * psi + j), count_bits(rows_in_cell(here, j, limit) & mask))
        for row in range(0 if by_cell else rows):
            at = counts + 8 * (p * psi + np.int64(read(here + row * size_of(cell), cell)))
            if n_classes > 1:
                at += 8 * t * psi * np.int64(read(labels + 2 * row, np.uint16(0)))
            add(at, 1)


@kernel()
def _mask_rows(rows: int, labels: int, n_classes: int, masks: int) -> None:
    """masks[c] = bit i set where row i of this tile is of class c (one class: where it is a row at all)."""
    if n_classes == 1:
        write(masks, np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - rows))
    elif n_classes <= COUNT_BY_CLASS:
        for c in range(n_classes):
            write(masks + 8 * c, np.uint64(0))
        for row in range(rows):
            at = masks + 8 * np.int64(read(labels + 2 * row, np.uint16(0)))
            write(at, read(at, np.uint64(0)) | np.uint64(1) << np.uint64(row))


@kernel()
def _write(cells: int, rows: int, t: int, out: int, out_stride: int, limit: Any, cell: Any) -> None:
    """(t, TILE) cells of one tile -> `rows` rows of the result."""
    tile = R * VECTOR_BYTES // size_of(limit)
    size = size_of(cell)
    if size == 1 and rows == tile and t >= 16 and tile >= 16:
        p = 0
        while p < t:
            p = min(p, t - 16)  # the last block overlaps the one before
            row = 0
            while row < tile:
                row += transpose16(cells + p * tile + row, out + row * out_stride + p, out_stride, limit)
            p += 16
    else:
        for row in range(rows):
            for p in range(t):
                write(out + row * out_stride + p * size, read(cells + (p * tile + row) * size, cell))


@kernel()
def _tile(
    x: int,
    stride: int,
    rows: int,
    more: bool,
    d: int,
    t: int,
    psi: int,
    threes: int,
    twos: int,
    ones: int,
    columns: int,
    centre: int,
    scratch: int,
    limit: Any,
    cell: Any,
    out: int,
    out_stride: int,
    labels: int,
    n_classes: int,
    counts: int,
) -> int:
    """One tile of `rows` rows through all partitions. Scratch: class masks, cells (t, TILE), the transposed rows."""
    tile_rows = R * VECTOR_BYTES // size_of(limit)
    size = size_of(cell) * tile_rows
    masks, cells = scratch, scratch + 64
    tile = cells + (t * size + 63) // 64 * 64
    bad = load_tile(tile, x, stride, rows - 1, d, centre, limit)
    if not out:
        _mask_rows(rows, labels, n_classes, masks)
    count_here = not out and psi == 4 and n_classes == 1  # the common case hides among the multiplications
    valid = read(masks, np.uint64(0))
    if psi == 2:
        nearest2(tile, columns, d, threes, twos, ones, cells, limit)
    # the next tile's rows are asked for a little at a time, so that memory works while the multipliers do
    at = x + tile_rows * stride
    end = at + tile_rows * stride if more else at
    lines = (end - at + 64 * t - 1) // (64 * t)
    for p in range(t):
        here = cells + p * size
        if psi == 4:
            nearest4(tile, columns, d, here, limit)
        elif psi != 2:
            nearest(tile, columns, d, threes, twos, here, limit, cell)
        columns += (d + 1) * (psi - 1) * size_of(limit)
        if count_here:
            at_cell = counts + 32 * p
            add(at_cell + 8, count_bits(rows_in_cell(here, 1, limit) & valid))
            add(at_cell + 16, count_bits(rows_in_cell(here, 2, limit) & valid))
            add(at_cell + 24, count_bits(rows_in_cell(here, 3, limit) & valid))
        if at < end:
            for _ in range(lines):
                prefetch(at)
                at += 64
    if out:
        _write(cells, rows, t, out, out_stride, limit, cell)
    elif not count_here:
        _count(cells, rows, t, psi, labels, n_classes, masks, counts, limit, cell)
    return bad


@kernel()
def work(
    take: int,
    next_row: int,
    x: int,
    stride: int,
    n: int,
    d: int,
    t: int,
    psi: int,
    threes: int,
    twos: int,
    ones: int,
    columns: int,
    centre: int,
    scratch: int,
    limit: Any,
    cell: Any,
    out: int,
    out_stride: int,
    labels: int,
    n_classes: int,
    counts: int,
) -> int:
    """One worker: take `take` rows at a time until none are left. Writes cells where `out` is an address, else counts.

    Returns the first row of a tile that holds an unusable value, or n. Workers share only the counter at `next_row`.
    """
    tile_rows = R * VECTOR_BYTES // size_of(limit)
    bad = n
    while True:
        lo = fetch_add(next_row, take)
        if lo >= n:
            return bad
        hi = min(lo + take, n)
        for row in range(lo, hi, tile_rows):
            to = out + row * out_stride if out else 0
            if _tile(
                x + row * stride,
                stride,
                min(tile_rows, hi - row),
                row + tile_rows < n,
                d,
                t,
                psi,
                threes,
                twos,
                ones,
                columns,
                centre,
                scratch,
                limit,
                cell,
                to,
                out_stride,
                labels + 2 * row,
                n_classes,
                counts,
            ):
                bad = min(bad, row)


@kernel(parallel=True)
def work_parallel(
    workers: int,
    scratch_step: int,
    counts_step: int,
    bad: Any,
    take: int,
    next_row: int,
    x: int,
    stride: int,
    n: int,
    d: int,
    t: int,
    psi: int,
    threes: int,
    twos: int,
    ones: int,
    columns: int,
    centre: int,
    scratch: int,
    limit: Any,
    cell: Any,
    out: int,
    out_stride: int,
    labels: int,
    n_classes: int,
    counts: int,
) -> None:
    """`work` by several workers, each with its own scratch and counts; bad[w] is what each returns."""
    for w in prange(workers):
        bad[w] = work(
            take,
            next_row,
            x,
            stride,
            n,
            d,
            t,
            psi,
            threes,
            twos,
            ones,
            columns,
            centre,
            scratch + w * scratch_step,
            limit,
            cell,
            out,
            out_stride,
            labels,
            n_classes,
            counts + w * counts_step,
        )
