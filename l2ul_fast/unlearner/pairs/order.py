"""Rows of many pairs in about the order of their file, in which they are read sooner."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_kernels.codegen.jit import ensure_compiled

Ids = NDArray[np.int64]

#: Parts of the table whose rows are read together: more take longer to sort, fewer longer to read.
PARTS = 1024


def in_order(places: Ids, visible: Ids, out: NDArray[Any] | None = None) -> tuple[Ids, Ids, NDArray[Any]]:
    """(rows (k,), local, ids): the row numbers visible[places] part by part of the table, where each is among them,
    rows[local] = ids = visible[places]; places have any shape, visible ascends, ids are in `out` (contiguous) if given.
    """
    flat, ids = np.ascontiguousarray(places).reshape(-1), np.empty(places.shape, np.int64) if out is None else out
    rows, local = np.empty_like(flat), np.empty_like(flat)
    shift = max(0, (len(visible) - 1).bit_length() - (PARTS - 1).bit_length())
    starts = np.zeros(PARTS + 1, np.int64)
    key = ("in order", ids.dtype)
    ensure_compiled(key, lambda: _in_order(flat[:0], visible, shift, starts, rows, local, ids.ravel()))
    _in_order(flat, visible, shift, starts, rows, local, ids.reshape(-1))
    return rows, local.reshape(places.shape), ids


@numba.njit(nogil=True, cache=True)
def _in_order(places, visible, shift, starts, rows, local, ids):  # type: ignore[no-untyped-def]
    """See in_order. starts (parts + 1,) are zeros; part b has the places p with p >> shift == b."""
    for p in places:
        starts[(p >> shift) + 1] += 1
    for b in range(1, len(starts)):
        starts[b] += starts[b - 1]
    for k in range(len(places)):
        b = places[k] >> shift
        rows[starts[b]] = places[k]
        local[k] = starts[b]
        starts[b] += 1
    for k in range(len(places)):
        rows[k] = visible[rows[k]]
    for k in range(len(places)):
        ids[k] = rows[local[k]]
