"""What requests for one row work on, as one table of addresses.

An array argument of a compiled function costs a tenth of a microsecond, and a request has a dozen. They stay where they
are from one request to the next, so compiled code gets their places instead, in one array:

    of the rows      gone (N,) uint8, left (C,) int64, X (N, d) float32 or float64, y (N,) uint8,
                     packed (N, width) uint8, counts (C, t, psi) int64
    of the requests  thetas (size + 1, p), totals (size, p), times (size,) float64, rows (size,) int64
    of the step      flat arrays, of types that the step knows

Request k reads thetas[k] and writes thetas[k + 1], totals[k], times[k], rows[k].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray
from numpy.typing import NDArray

from l2ul_kernels._jit import kernel
from l2ul_kernels._memory import pointer
from l2ul_kernels.partitions import address

NAMES = ("gone", "left", "X", "y", "packed", "counts", "thetas", "totals", "rows", "times")
#: Places in the table: sizes, then addresses, then address and size of each of the step's arrays.
ITEM, BITS, N, D, C, WIDTH, T, PSI, SIZE, P = range(10)
GONE_AT, LEFT_AT, X_AT, Y_AT, PACKED_AT, COUNTS_AT, THETAS_AT, TOTALS_AT, ROWS_AT, TIMES_AT, OWN = range(10, 21)


class Held:
    """The arrays, which are kept alive here, and their `table` (int64). All are C-contiguous and can be written to.

    A copy of it is None: addresses are not to be copied.
    """

    gone: NDArray[np.uint8]
    left: NDArray[np.int64]
    X: NDArray[Any]
    y: NDArray[np.uint8]
    packed: NDArray[np.uint8]
    counts: NDArray[np.int64]
    thetas: NDArray[np.float64]
    totals: NDArray[np.float64]
    rows: NDArray[np.int64]
    times: NDArray[np.float64]

    __slots__ = (*NAMES, "own", "table")

    def __init__(self, bits: int, own: tuple[NDArray[Any], ...], **arrays: NDArray[Any]) -> None:
        if set(arrays) != set(NAMES):
            raise ValueError(f"a request works on {', '.join(NAMES)}, got {', '.join(arrays)}")
        n, d = arrays["X"].shape
        classes, t, psi = arrays["counts"].shape
        size, p = arrays["totals"].shape
        width = -(-t * bits // 8)
        wanted: dict[str, tuple[tuple[int, ...], str]] = {
            "gone": ((n,), "u1"), "left": ((classes,), "i8"), "X": ((n, d), "f4 f8"), "y": ((n,), "u1"),
            "packed": ((n, width), "u1"), "counts": ((classes, t, psi), "i8"), "thetas": ((size + 1, p), "f8"),
            "totals": ((size, p), "f8"), "rows": ((size,), "i8"), "times": ((size,), "f8"),
        }  # fmt: skip
        for name, (shape, kinds) in wanted.items():
            array = arrays[name]
            if array.shape != shape or array.dtype.str[1:] not in kinds.split() or not array.dtype.isnative:
                raise ValueError(f"{name} must have shape {shape}, got {array.shape} of {array.dtype}")
            setattr(self, name, array)
        for array in (*arrays.values(), *own):
            if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
                raise ValueError("a request works on whole arrays that can be written to")
        self.own = own
        table = [arrays["X"].itemsize, bits, n, d, classes, width, t, psi, size, p]
        table += [address(arrays[name]) for name in NAMES]
        self.table = np.array(table + [v for array in own for v in (address(array), array.size)], np.int64)

    def __reduce__(self) -> Any:
        return type(None), ()


@kernel()
def row_marks(table: Any) -> Any:
    """gone and y, each (N,)."""
    n = table[N]
    return carray(pointer(table[GONE_AT]), (n,), np.uint8), carray(pointer(table[Y_AT]), (n,), np.uint8)


@kernel()
def row_cells(table: Any) -> Any:
    """packed (N, width)."""
    return carray(pointer(table[PACKED_AT]), (table[N], table[WIDTH]), np.uint8)


@kernel()
def rows_single(table: Any) -> Any:
    """X (N, d) of float32."""
    return carray(pointer(table[X_AT]), (table[N], table[D]), np.float32)


@kernel()
def rows_double(table: Any) -> Any:
    """X (N, d) of float64."""
    return carray(pointer(table[X_AT]), (table[N], table[D]), np.float64)


@kernel()
def cell_counts(table: Any) -> Any:
    """left (C,) and counts (C, t, psi)."""
    classes = table[C]
    left = carray(pointer(table[LEFT_AT]), (classes,), np.int64)
    return left, carray(pointer(table[COUNTS_AT]), (classes, table[T], table[PSI]), np.int64)


@kernel()
def asked_for(table: Any, k: int, row: int) -> Any:
    """(1,): the row of request k, which is noted by this."""
    rows = carray(pointer(table[ROWS_AT]), (table[SIZE],), np.int64)
    rows[k] = row
    return rows[k : k + 1]


@kernel()
def parameters(table: Any) -> Any:
    """thetas (size + 1, p)."""
    return carray(pointer(table[THETAS_AT]), (table[SIZE] + 1, table[P]), np.float64)


@kernel()
def totals_and_times(table: Any) -> Any:
    """totals (size, p) and times (size,)."""
    totals = carray(pointer(table[TOTALS_AT]), (table[SIZE], table[P]), np.float64)
    return totals, carray(pointer(table[TIMES_AT]), (table[SIZE],), np.float64)


@kernel()
def own_double(table: Any, k: int) -> Any:
    """Array k of the step, of float64."""
    return carray(pointer(table[OWN + 2 * k]), (table[OWN + 2 * k + 1],), np.float64)


@kernel()
def own_single(table: Any, k: int) -> Any:
    """Array k of the step, of float32."""
    return carray(pointer(table[OWN + 2 * k]), (table[OWN + 2 * k + 1],), np.float32)


@kernel()
def own_integers(table: Any, k: int) -> Any:
    """Array k of the step, of int64."""
    return carray(pointer(table[OWN + 2 * k]), (table[OWN + 2 * k + 1],), np.int64)
