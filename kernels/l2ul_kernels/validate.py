"""Checks of what public functions are called with: one sentence for each refusal, the same everywhere.

Each check returns what compiled code may read: contiguous arrays of the dtypes that kernels are compiled for, with
every value that serves as an index in its range. Compiled code trusts them; it never raises.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from l2ul_kernels.arrays import Array, Bytes, Float, Ints
from l2ul_kernels.codegen.pointers import address

MAX_CLASSES = 65535
MAX_SEEDS = 4096
#: Far more partitions than help: what they take grows with them, and a request for 10^9 would not return.
MAX_PARTITIONS = 1 << 16


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


# One number ----------------------------------------------------------------------------------------------------------


def check_count(value: int, least: int, most: int, name: str) -> int:
    """A whole number from `least` to `most`."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if not least <= count <= most:
        raise ValueError(f"{name} must be from {least} to {most}, got {count}")
    return count


def check_class_count(n_classes: int, least: int = 1, most: int = MAX_CLASSES) -> int:
    """A number of classes from `least` to `most`."""
    return check_count(n_classes, least, most, "n_classes")


def check_psi(psi: int, name: str = "psi") -> int:
    """A number of seeds of a partition."""
    return check_count(psi, 2, MAX_SEEDS, name)


def check_t(t: int, name: str = "t") -> int:
    """A number of partitions."""
    return check_count(t, 1, MAX_PARTITIONS, name)


def check_steps(steps: int, name: str = "max_steps", least: int = 0) -> int:
    """A number of rounds of some loop: what a kernel's counter holds."""
    return check_count(steps, least, 2**62, name)


def check_number(value: float, name: str, least: float = 0.0, open: bool = False) -> float:
    """A finite number, at least `least` (above it if open)."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not (least < number if open else least <= number) or not number < np.inf:
        raise ValueError(f"{name} must be {'above' if open else 'at least'} {least:g} and finite, got {number}")
    return number


def check_lam(lam: float) -> float:
    """A positive, finite penalty: without one the optimum need not exist."""
    return check_number(lam, "lam", open=True)


# Arrays --------------------------------------------------------------------------------------------------------------


def check_array(values: ArrayLike, name: str, kinds: str = "fiub", what: str = "numbers") -> Array:
    """A plain array, of a dtype whose kind is one of `kinds` unless empty: what a mask hides would be seen."""
    if type(values) is not np.ndarray and isinstance(values, np.ma.MaskedArray):
        raise ValueError(f"{name} must not be a masked array: leave masked entries out or fill them first")
    array = np.asarray(values)
    if array.dtype.kind not in kinds and (array.size or array.dtype.kind != "f"):  # np.asarray([]) is of floats
        raise TypeError(f"{name} must be {what}, got {array.dtype}")
    return array


def check_integers(values: ArrayLike, bound: int, name: str, kinds: str = "iu") -> Array:
    """Integers from 0 to bound - 1, in an array of any shape and integer type (whose kind is one of `kinds`)."""
    values = check_array(values, name, kinds, "integers")
    if not values.size:
        return values
    unsigned = values if values.dtype.kind != "i" else values.view(values.dtype.str.replace("i", "u"))
    if unsigned.max() >= bound:  # a negative one is huge as unsigned: one pass finds both
        raise ValueError(f"{name} must lie in 0..{bound - 1}, found {values.min()}..{values.max()}")
    return values


def check_int64(values: ArrayLike, bound: int, name: str) -> Ints:
    """The same as contiguous int64."""
    return readable(check_integers(values, bound, name), np.int64)


def check_floats(values: ArrayLike, name: str) -> Float:
    """Real numbers as a contiguous float64 array of any shape."""
    return readable(check_array(values, name), np.float64)


def check_vector(values: ArrayLike, size: int, name: str, why: str = "") -> Float:
    """A vector (size,) as contiguous float64."""
    values = check_floats(values, name)
    if values.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},){why}, got {values.shape}")
    return values


def check_weights(weights: ArrayLike | None, n: int) -> Float:
    """weights (n,) as contiguous float64; empty for None."""
    return np.empty(0) if weights is None else check_vector(weights, n, "weights", " to match X")


# Rows, labels, row numbers -------------------------------------------------------------------------------------------


def check_matrix(X: ArrayLike, d: int | None = None, of: str = "the parameters", name: str = "X") -> Array:
    """X (n, d) of numbers that kernels compute with, in any memory order; d features, if given."""
    X = check_array(X, name, what="float32, float64 or integers")
    if X.ndim != 2 or X.shape[1] == 0:
        raise ValueError(f"{name} must have shape (n, d) with d > 0, got {X.shape}")
    if X.dtype.kind == "f" and X.dtype.itemsize not in (4, 8):
        raise TypeError(f"{name} must be float32, float64 or integers, got {X.dtype}")
    if d is not None and X.shape[1] != d:
        raise ValueError(f"{name} has {X.shape[1]} features but {of} have {d}")
    return X


def check_xy(X: ArrayLike, y: ArrayLike | None, n_classes: int = 2, most: int = MAX_CLASSES) -> tuple[Array, Array]:
    """X (n, d) as a contiguous float32 or float64 array, y (n,) as contiguous uint8 (uint16 above 256 classes).

    n_classes from 2 to `most`. Without y, for what does not depend on labels, all are 0.
    """
    check_class_count(n_classes, 2, most)
    X = check_matrix(X)
    X = readable(X, np.float32 if X.dtype.kind == "f" and X.dtype.itemsize == 4 else np.float64)
    return X, check_labels(np.zeros(len(X), np.uint8) if y is None else y, len(X), n_classes)


def check_labels(y: ArrayLike, n: int, n_classes: int, dtype: DTypeLike | None = None, of: str = "X") -> Array:
    """Labels (n,) from 0 to n_classes - 1 as contiguous uint8 (uint16 above 256 classes), or of `dtype`."""
    y = check_integers(y, n_classes, "labels", "iub")
    if y.shape != (n,):
        raise ValueError(f"labels must have shape ({n},) to match {of}, got {y.shape}")
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
    sizes = np.zeros(len(ids), np.int64) if n_forget is None else n_forget
    sizes = check_int64(sizes, ids.shape[1], "n_forget")
    if sizes.shape != (len(ids),):
        raise ValueError(f"n_forget must have shape ({len(ids)},) to match ids, got {sizes.shape}")
    return ids, sizes


def check_starts(starts: ArrayLike, size: int | None, name: str, most: int = 0) -> Ints:
    """Where parts (m,) of `size` things begin, and the last one ends: (m + 1,) ascending from 0 to size, as int64.

    Without a size the parts end anywhere up to `most`.
    """
    top = most if size is None else size
    starts = check_int64(starts, top + 1, name)
    if starts.ndim != 1 or not starts.size or starts[0] != 0 or (np.diff(starts) < 0).any():
        raise ValueError(f"{name} must ascend from 0 to {top}, in one dimension")
    if size is not None and starts[-1] != size:
        raise ValueError(f"{name} must ascend from 0 to {size}, the number of ids or rows, but end at {starts[-1]}")
    return starts


def check_bounds(bounds: ArrayLike, size: int) -> Ints:
    """Ranges (m, 2) within 0 .. size as contiguous int64."""
    bounds = check_integers(bounds, size + 1, f"bounds within the {size} ids")
    if bounds.ndim != 2 or bounds.shape[1] != 2:
        raise ValueError(f"bounds must have shape (m, 2), got {bounds.shape}")
    if (bounds[:, 1] < bounds[:, 0]).any():
        raise ValueError(f"bounds must be ranges within the {size} ids: none may end before it begins")
    return readable(bounds, np.int64)


# Results -------------------------------------------------------------------------------------------------------------


def check_out(out: Array, shape: tuple[int, ...], dtype: DTypeLike, *read: Any, name: str = "out") -> Array:
    """An array of this shape and dtype that can be written to, every element its own, in no part the memory of `read`.

    Otherwise a kernel would overwrite what it has yet to read, or count twice what it adds to.
    """
    dtype = np.dtype(dtype)
    if type(out) is not np.ndarray and (not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray)):
        raise TypeError(f"{name} must be a plain {dtype} array, got {type(out).__name__}")
    if out.dtype != dtype:
        raise TypeError(f"{name} must be a {dtype} array, got {out.dtype}")
    if out.shape != shape or not out.flags.writeable:
        raise ValueError(f"{name} must be a writeable array of shape {shape}, got {out.shape}")
    reach = out.itemsize
    if not out.flags.c_contiguous and out.size > 1:
        for stride, size in sorted((abs(s), n) for s, n in zip(out.strides, out.shape, strict=True) if n > 1):
            if stride < reach:
                raise ValueError(f"{name} must not overlap itself: some of its elements share memory")
            reach += stride * (size - 1)
    for other in read:
        if isinstance(other, np.ndarray) and np.may_share_memory(out, other) and _shared(out, other):
            raise ValueError(f"{name} must not share memory with what is read")
    return out


def _shared(a: Array, b: Array) -> bool:
    """Whether an element of either lies in one of the other; yes where that is too hard to tell."""
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def check_sum(out: Array | None, shape: tuple[int, ...], *read: Any, name: str) -> None:
    """A float64 array that sums can be added to, or None."""
    if out is not None:
        check_out(out, shape, np.float64, *read, name=name)


# Cells ---------------------------------------------------------------------------------------------------------------


def cell_dtype(n_seeds: int) -> np.dtype[Any]:
    """Smallest unsigned integer type that holds a cell: uint8 up to 256 seeds, else uint16."""
    return np.dtype(np.uint8 if n_seeds <= 256 else np.uint16)


def bits_per_cell(psi: int) -> int:
    """Bits that a stored cell takes: ceil(log2 psi)."""
    return (check_psi(psi) - 1).bit_length()


def packed_width(t: int, psi: int) -> int:
    """Bytes that a row's t cells take when packed."""
    return (check_t(t) * bits_per_cell(psi) + 7) // 8


def check_cells(cells: ArrayLike, psi: int) -> Array:
    """cells as a contiguous (n, t) array of the dtype for psi, every value below psi."""
    dtype, cells = cell_dtype(check_psi(psi)), check_integers(cells, psi, "cells")
    if cells.ndim != 2:
        raise ValueError(f"cells must have shape (n, t), got {cells.ndim} dimension(s)")
    check_t(cells.shape[1])
    return readable(cells, dtype)


def check_packed(packed: ArrayLike, t: int, psi: int, bits: int | None = None) -> tuple[Bytes, int]:
    """(rows of t stored cells as contiguous (n, width) uint8, bits of a cell).

    `bits` is bits_per_cell(psi) unless given; 8, or 16 with uint16, for plain cells. Values are not looked at: only
    what reads them sees whether they are below psi.
    """
    packed, least = check_array(packed, "packed cells"), bits_per_cell(psi)
    bits = least if bits is None else check_count(bits, least, 16, f"bits of cells of psi={psi}")
    if packed.dtype == np.uint16 and bits == 16:  # plain cells above 256 seeds
        packed = np.ascontiguousarray(packed, "<u2").view(np.uint8)
    if packed.dtype != np.uint8:
        raise TypeError(f"packed cells must be uint8, got {packed.dtype}")
    width = (check_t(t) * bits + 7) // 8
    if packed.ndim != 2 or packed.shape[1] != width:
        raise ValueError(f"packed cells must have shape (n, {width}), got {packed.shape}")
    return readable(packed, np.uint8), bits


# Values --------------------------------------------------------------------------------------------------------------


def mirror(lower: Float) -> Float:
    """The symmetric matrix (..., k, k) that has this lower triangle."""
    return np.tril(lower) + np.swapaxes(np.tril(lower, -1), -1, -2)


def refuse_unusable(X: Array, ids: Ints | None, dtype: DTypeLike = np.float64) -> None:
    """Raise ValueError that names the first of the rows ids (all for None) with a value that is none in `dtype`."""
    rows = np.arange(len(X)) if ids is None else ids
    for lo in range(0, len(rows), 65536):
        part = X[rows[lo : lo + 65536]]
        bad = ~(np.abs(part) <= np.finfo(dtype).max).all(axis=1)
        if bad.any():
            row = rows[lo + int(bad.argmax())]
            what = f"a value too large for {np.dtype(dtype)}" if np.isfinite(X[row]).all() else "NaN or an infinity"
            raise ValueError(f"row {row} of X has {what}")
