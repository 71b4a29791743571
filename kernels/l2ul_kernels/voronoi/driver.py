"""From checked arguments to the compiled workers: what cells.py and counts.py share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.codegen.jit import ensure_compiled
from l2ul_kernels.codegen.llvm import tile_rows
from l2ul_kernels.threads import parallel_entry
from l2ul_kernels.voronoi.partitions import LIMITS, Partitions, address, cell_dtype, group_columns, scratch_bytes
from l2ul_kernels.voronoi.workers import work, work_parallel

#: Rows of an array that must be copied (strides, byte order, integers) are copied this many at a time.
COPY_ROWS = 16384
#: Multiply-adds a worker takes at once: about 0.2 ms, long against taking, short against a straggler.
TAKE = 16_000_000
#: Fewer multiply-adds than this are done before other threads could help (measured: about 20 us of work).
SERIAL = 1_000_000


def check_rows(X: ArrayLike, partitions: Partitions) -> NDArray[Any]:
    """X as an array of shape (n, d); dtype and memory order are left for `blocks`."""
    if not isinstance(partitions, Partitions):
        raise TypeError(f"partitions must be Partitions, got {type(partitions).__name__}")
    X = np.asarray(X)
    if X.ndim != 2:
        raise ValueError(f"X must have shape (n, d), got {X.ndim} dimension(s)")
    if X.shape[1] != partitions.n_features:
        raise ValueError(f"X has {X.shape[1]} features but the seeds have {partitions.n_features}")
    if X.dtype.kind not in "fiub" or (X.dtype.kind == "f" and X.dtype.itemsize not in (4, 8)):
        raise TypeError(f"X must be float32, float64 or integers, got {X.dtype}")
    return X


def blocks(X: NDArray[Any], dtype: np.dtype[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """(first row, rows the kernel can read in place): all of X when it can, else copies of COPY_ROWS rows."""
    if X.dtype == dtype and X.flags.aligned and X.strides[1] == dtype.itemsize:
        yield 0, X
        return
    for lo in range(0, len(X), COPY_ROWS):
        yield lo, np.ascontiguousarray(X[lo : lo + COPY_ROWS], dtype)


def _aligned(size: int) -> tuple[NDArray[np.uint8], int]:
    """Bytes that start on a cache line: a vector load across two lines costs double."""
    memory = np.empty(size + 64, np.uint8)
    return memory, (address(memory) + 63) // 64 * 64


def run(
    X: NDArray[Any],
    partitions: Partitions,
    out: NDArray[Any] | None = None,
    labels: NDArray[np.uint16] | None = None,
    n_classes: int = 1,
    first_row: int = 0,
) -> NDArray[np.int64]:
    """Cells of the rows X into `out`, or counts (workers, C, t, psi) without cell 0 when `out` is None.

    X is a block of `blocks` that starts at `first_row`; out (n, t) has unit column stride. Raises ValueError that names
    the first unusable row.
    """
    n, d = X.shape
    t, psi, dtype = partitions.n_partitions, partitions.n_seeds, X.dtype
    cell = cell_dtype(psi)
    rows = tile_rows(dtype.itemsize)
    per_row = d * psi * t
    workers = 1 if n * per_row < SERIAL else min(numba.get_num_threads(), -(-n // rows))
    take = max(1, min(TAKE // per_row, -(-n // workers)) // rows) * rows
    packed = partitions.packed(dtype)
    step = scratch_bytes(t, d, dtype, cell, rows)
    memory, scratch = _aligned(step * workers)
    next_row = np.zeros(1, np.int64)
    counting = out is None
    counts = np.zeros((workers, n_classes * t * psi if counting else 0), np.int64)

    def what(n: int) -> tuple[Any, ...]:
        return (
            take,
            address(next_row),
            address(X),
            X.strides[0],
            n,
            d,
            t,
            psi,
            *group_columns(t if psi == 2 else psi - 1),
            packed.columns_at,
            packed.centre_at,
            scratch,
            LIMITS[dtype],
            cell.type(0),
            0 if out is None else address(out),
            0 if out is None else out.strides[0],
            0 if labels is None else address(labels),
            n_classes,
            address(counts),
        )

    if workers == 1:
        ensure_compiled((dtype, cell, "serial"), lambda: work(*what(0)))
        next_row[0] = 0
        first_bad = work(*what(n))
    else:
        bad = np.empty(workers, np.int64)
        with parallel_entry():
            each = (workers, step, counts.strides[0], bad)
            ensure_compiled((dtype, cell, "parallel"), lambda: work_parallel(*each, *what(0)))
            next_row[0] = 0
            work_parallel(*each, *what(n))
        first_bad = bad.min()
    if first_bad < n:
        raise ValueError(_unusable(X, int(first_bad), packed.centre[:d], first_row))
    del memory  # kept alive until here
    return counts.reshape(workers, n_classes, t, psi) if counting else counts


def _unusable(X: NDArray[Any], tile: int, centre: NDArray[Any], first_row: int) -> str:
    """What is wrong with the first row from `tile` on that the kernel could not use."""
    for row in range(tile, len(X)):
        if not np.all(np.isfinite(X[row])):
            return f"row {first_row + row} of X has NaN or an infinity"
        if not np.all(np.abs(X[row] - centre) <= LIMITS[X.dtype]):
            return f"row {first_row + row} of X has a value beyond {LIMITS[X.dtype]:g}, too large for {X.dtype}"
    raise AssertionError("the kernel reported a row that looks usable")
