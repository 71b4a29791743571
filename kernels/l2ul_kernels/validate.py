"""Checks of what public functions are called with: one sentence for each refusal, the same everywhere.

Each check returns what compiled code may read: contiguous arrays of the dtypes that kernels are compiled for. Compiled
code trusts them; it never raises.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from l2ul_kernels.arrays import Array, Bytes, Float, Ints
from l2ul_kernels.codegen.pointers import address
from l2ul_kernels.voronoi.partitions import MAX_SEEDS, bits_per_cell, cell_dtype

MAX_CLASSES = 65535


class _Memory:
    """Another array's memory, for numpy to look at."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (address(array), False)}


def readable(array: ArrayLike, dtype: DTypeLike) -> Array:
    """The array as a contiguous, aligned one of this dtype, not copied if it is one.

    Never marked read-only: numba would compile every kernel once more for that. The kernels do not write to it.
    """
    if isinstance(array, np.ndarray) and array.dtype == dtype and array.flags.carray:
        return np.asarray(array)  # all that `require` would find out, in a tenth of its time
    array = np.require(array, dtype, ["C", "A"])
    return array if array.flags.writeable or array.size == 0 else np.asarray(_Memory(array))


# Rows, labels, row numbers -------------------------------------------------------------------------------------------


def check_matrix(X: ArrayLike, d: int | None = None, of: str = "the parameters") -> Array:
    """X (n, d) of numbers that kernels compute with, in any memory order; d features, if given."""
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] == 0:
        raise ValueError(f"X must have shape (n, d) with d > 0, got {X.shape}")
    if X.dtype.kind not in "fiub" or (X.dtype.kind == "f" and X.dtype.itemsize not in (4, 8)):
        raise TypeError(f"X must be float32, float64 or integers, got {X.dtype}")
    if d is not None and X.shape[1] != d:
        raise ValueError(f"X has {X.shape[1]} features but {of} have {d}")
    return X


def check_xy(X: ArrayLike, y: ArrayLike | None, n_classes: int = 2, most: int = MAX_CLASSES) -> tuple[Array, Array]:
    """X (n, d) as a contiguous float32 or float64 array, y (n,) as contiguous uint8 (uint16 above 256 classes).

    n_classes from 2 to `most`. Without y, for what does not depend on labels, all are 0.
    """
    check_class_count(n_classes, 2, most)
    X = check_matrix(X)
    X = readable(X, np.float32 if X.dtype.kind == "f" and X.dtype.itemsize == 4 else np.float64)
    return X, check_labels(np.zeros(len(X), np.uint8) if y is None else y, len(X), n_classes)


def check_class_count(n_classes: int, least: int = 1, most: int = MAX_CLASSES) -> int:
    """A number of classes from `least` to `most`."""
    if not least <= n_classes <= most:
        raise ValueError(f"n_classes must be from {least} to {most}, got {n_classes}")
    return int(n_classes)


def check_integers(values: ArrayLike, bound: int, name: str, kinds: str = "iu") -> Array:
    """Integers from 0 to bound - 1, in an array of any shape and integer type (whose kind is one of `kinds`)."""
    values = np.asarray(values)
    if not values.size:
        return values
    if values.dtype.kind not in kinds:
        raise TypeError(f"{name} must be integers, got {values.dtype}")
    unsigned = values if values.dtype.kind != "i" else values.view(values.dtype.str.replace("i", "u"))
    if unsigned.max() >= bound:  # a negative one is huge as unsigned: one pass finds both
        raise ValueError(f"{name} must lie in 0..{bound - 1}, found {values.min()}..{values.max()}")
    return values


def check_labels(y: ArrayLike, n: int, n_classes: int, dtype: DTypeLike | None = None, of: str = "X") -> Array:
    """Labels (n,) from 0 to n_classes - 1 as contiguous uint8 (uint16 above 256 classes), or of `dtype`."""
    y = np.asarray(y)
    if y.shape != (n,):
        raise ValueError(f"y must have shape ({n},) to match {of}, got {y.shape}")
    y = check_integers(y, n_classes, "labels", "iub")
    return readable(y, dtype or (np.uint8 if n_classes <= 256 else np.uint16))


def check_row_ids(ids: ArrayLike | None, n: int, ndim: int = 1) -> Ints:
    """Numbers of rows 0 .. n - 1 as contiguous int64; empty for None, which kernels read as all rows."""
    ids = check_integers(np.empty(0, np.int64) if ids is None else ids, n, "row ids")
    if ids.ndim != ndim:
        raise ValueError(f"row ids must have {ndim} dimension(s), got shape {ids.shape}")
    return readable(ids, np.int64)


def check_ids(ids: ArrayLike, n_forget: ArrayLike | None, n: int) -> tuple[Ints, Ints]:
    """ids (m, s) of rows 0 .. n - 1 and n_forget (m,) from 0 to s - 1 (None: zeros), both int64."""
    ids = check_row_ids(ids, n, 2)
    if ids.shape[1] == 0:
        raise ValueError(f"ids must have shape (m, s) with s > 0, got {ids.shape}")
    sizes = np.zeros(len(ids), np.int64) if n_forget is None else np.asarray(n_forget)
    if sizes.shape != (len(ids),):
        raise ValueError(f"n_forget must have shape ({len(ids)},) to match ids, got {sizes.shape}")
    return ids, readable(check_integers(sizes, ids.shape[1], "n_forget"), np.int64)


def check_weights(weights: ArrayLike | None, n: int) -> Float:
    """weights (n,) as contiguous float64; empty for None."""
    return np.empty(0) if weights is None else check_vector(weights, n, "weights", " to match X")


# Parameters and results ----------------------------------------------------------------------------------------------


def check_vector(values: ArrayLike, size: int, name: str, why: str = "") -> Float:
    """A vector (size,) as contiguous float64."""
    values = readable(values, np.float64)
    if values.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},){why}, got {values.shape}")
    return values


def check_lam(lam: float) -> float:
    """A positive, finite penalty: without one the optimum need not exist."""
    if not 0 < float(lam) < np.inf:
        raise ValueError(f"lam must be positive and finite, got {lam}")
    return float(lam)


def check_out(out: Array, shape: tuple[int, ...], dtype: DTypeLike, name: str = "out") -> Array:
    """An array of this shape and dtype that can be written to."""
    dtype = np.dtype(dtype)
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        raise TypeError(f"{name} must be a {dtype} array, got {getattr(out, 'dtype', type(out).__name__)}")
    if out.shape != shape or not out.flags.writeable:
        raise ValueError(f"{name} must be a writeable array of shape {shape}, got {out.shape}")
    return out


def check_sum(out: Array | None, shape: tuple[int, ...], name: str) -> None:
    """A float64 array that sums can be added to, or None."""
    if out is not None:
        check_out(out, shape, np.float64, name)


# Cells ---------------------------------------------------------------------------------------------------------------


def check_psi(psi: int) -> int:
    """A number of seeds of a partition."""
    if not 2 <= psi <= MAX_SEEDS:
        raise ValueError(f"psi must be from 2 to {MAX_SEEDS}, got {psi}")
    return int(psi)


def check_cells(cells: ArrayLike, psi: int) -> Array:
    """cells as a contiguous (n, t) array of the dtype for psi, every value below psi."""
    dtype, cells = cell_dtype(check_psi(psi)), np.asarray(cells)
    if cells.ndim != 2:
        raise ValueError(f"cells must have shape (n, t), got {cells.ndim} dimension(s)")
    return readable(check_integers(cells, psi, "cells"), dtype)


def check_packed(packed: ArrayLike, t: int, psi: int, bits: int | None = None) -> tuple[Bytes, int]:
    """(rows of t stored cells as contiguous (n, width) uint8, bits of a cell).

    `bits` is bits_per_cell(psi) unless given; 8, or 16 with uint16, for plain cells. Values are not looked at: only
    what reads them sees whether they are below psi.
    """
    packed, least = np.asarray(packed), bits_per_cell(check_psi(psi))
    bits = least if bits is None else int(bits)
    if t < 1:
        raise ValueError(f"t must be at least 1, got {t}")
    if not least <= bits <= 16:
        raise ValueError(f"{bits} bits cannot hold cells of psi={psi}")
    if packed.dtype == np.uint16 and bits == 16:  # plain cells above 256 seeds
        packed = np.ascontiguousarray(packed, "<u2").view(np.uint8)
    if packed.dtype != np.uint8:
        raise TypeError(f"packed cells must be uint8, got {packed.dtype}")
    width = (t * bits + 7) // 8
    if packed.ndim != 2 or packed.shape[1] != width:
        raise ValueError(f"packed cells must have shape (n, {width}), got {packed.shape}")
    return readable(packed, np.uint8), bits


def check_bounds(bounds: ArrayLike, size: int) -> Ints:
    """Ranges (m, 2) within 0 .. size as contiguous int64."""
    bounds = np.asarray(bounds)
    if bounds.ndim != 2 or bounds.shape[1] != 2:
        raise ValueError(f"bounds must have shape (m, 2), got {bounds.shape}")
    bounds = check_integers(bounds, size + 1, f"bounds within the {size} ids")
    if (bounds[:, 1] < bounds[:, 0]).any():
        raise ValueError(f"bounds must be ranges within the {size} ids: none may end before it begins")
    return readable(bounds, np.int64)


# Values --------------------------------------------------------------------------------------------------------------


def mirror(lower: Float) -> Float:
    """The symmetric matrix (..., k, k) that has this lower triangle."""
    return np.tril(lower) + np.swapaxes(np.tril(lower, -1), -1, -2)


def refuse_unusable(X: Array, ids: Ints | None) -> None:
    """Raise ValueError that names the first of the rows ids (all for None) with NaN or an infinity, if there is one."""
    rows = np.arange(len(X)) if ids is None else ids
    for lo in range(0, len(rows), 65536):
        bad = ~np.isfinite(X[rows[lo : lo + 65536]]).all(axis=1)
        if bad.any():
            raise ValueError(f"row {rows[lo + int(bad.argmax())]} of X has NaN or an infinity")
