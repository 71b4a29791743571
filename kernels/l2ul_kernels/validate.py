"""Checks that the linear models share: rows, labels, parameters, ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.voronoi.partitions import address


class _Memory:
    """Another array's memory, for numpy to look at."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (address(array), False)}


def readable(array: ArrayLike, dtype: Any) -> NDArray[Any]:
    """The array as a contiguous, aligned one of this dtype, not copied if it is one.

    Never marked read-only: numba would compile every kernel once more for that. The kernels do not write to it.
    """
    array = np.require(array, dtype, ["C", "A"])
    return array if array.flags.writeable or array.size == 0 else np.asarray(_Memory(array))


def check_xy(X: ArrayLike, y: ArrayLike, n_classes: int = 2) -> tuple[NDArray[Any], NDArray[Any]]:
    """X (n, d) as a contiguous float32 or float64 array, y (n,) as contiguous uint8 (uint16 above 256 classes)."""
    X, y = np.asarray(X), np.asarray(y)
    if X.ndim != 2 or X.shape[1] == 0:
        raise ValueError(f"X must have shape (n, d) with d > 0, got {X.shape}")
    if X.dtype.kind not in "fiub" or (X.dtype.kind == "f" and X.dtype.itemsize not in (4, 8)):
        raise TypeError(f"X must be float32, float64 or integers, got {X.dtype}")
    X = readable(X, np.float32 if X.dtype.kind == "f" and X.dtype.itemsize == 4 else np.float64)
    if y.shape != (len(X),):
        raise ValueError(f"y must have shape ({len(X)},) to match X, got {y.shape}")
    if y.dtype.kind not in "iub":
        raise TypeError(f"labels y must be integers, got {y.dtype}")
    if len(y) and (y.min() < 0 or y.max() >= n_classes):
        raise ValueError(f"labels must lie in 0..{n_classes - 1}, found {y.min()}..{y.max()}")
    return X, readable(y, np.uint8 if n_classes <= 256 else np.uint16)


def check_theta(theta: ArrayLike, p: int, name: str = "theta") -> NDArray[np.float64]:
    """theta (p,) as contiguous float64."""
    theta = readable(theta, np.float64)
    if theta.shape != (p,):
        raise ValueError(f"{name} must have shape ({p},), got {theta.shape}")
    return theta


def check_lam(lam: float) -> float:
    """A positive, finite penalty: without one the optimum need not exist."""
    if not 0 < float(lam) < np.inf:
        raise ValueError(f"lam must be positive and finite, got {lam}")
    return float(lam)


def check_ids(ids: ArrayLike, n_forget: ArrayLike, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """ids (m, s) of rows 0 .. n - 1 and n_forget (m,) from 0 to s - 1, both int64."""
    ids, n_forget = np.asarray(ids), np.asarray(n_forget)
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ValueError(f"ids must have shape (m, s) with s > 0, got {ids.shape}")
    if n_forget.shape != (len(ids),):
        raise ValueError(f"n_forget must have shape ({len(ids)},), got {n_forget.shape}")
    if ids.dtype.kind not in "iu" or n_forget.dtype.kind not in "iu":
        raise TypeError(f"ids and n_forget must be integers, got {ids.dtype} and {n_forget.dtype}")
    if ids.size and (ids.min() < 0 or ids.max() >= n):
        raise ValueError(f"row ids must lie in 0..{n - 1}, found {ids.min()}..{ids.max()}")
    if n_forget.size and (n_forget.min() < 0 or n_forget.max() >= ids.shape[1]):
        raise ValueError(f"n_forget must lie in 0..{ids.shape[1] - 1}, found {n_forget.min()}..{n_forget.max()}")
    return readable(ids, np.int64), readable(n_forget, np.int64)


def check_weights(weights: ArrayLike | None, n: int) -> NDArray[np.float64]:
    """weights (n,) as contiguous float64; empty for None."""
    if weights is None:
        return np.empty(0)
    weights = readable(weights, np.float64)
    if weights.shape != (n,):
        raise ValueError(f"weights must have shape ({n},) to match X, got {weights.shape}")
    return weights


def check_sum(out: NDArray[Any] | None, shape: tuple[int, ...], name: str) -> None:
    """An array that sums can be added to, or None."""
    if out is None:
        return
    if not isinstance(out, np.ndarray) or out.dtype != np.float64:
        raise TypeError(f"{name} must be a float64 array")
    if out.shape != shape or not out.flags.writeable:
        raise ValueError(f"{name} must be a writeable array of shape {shape}, got {out.shape}")


def mirror(lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """The symmetric matrix (..., k, k) that has this lower triangle."""
    return np.tril(lower) + np.swapaxes(np.tril(lower, -1), -1, -2)


def refuse_unusable(X: NDArray[Any], ids: NDArray[np.int64] | None) -> None:
    """Raise ValueError that names the first of the rows ids (all for None) with NaN or an infinity, if there is one."""
    rows = np.arange(len(X)) if ids is None else ids
    for lo in range(0, len(rows), 65536):
        bad = ~np.isfinite(X[rows[lo : lo + 65536]]).all(axis=1)
        if bad.any():
            raise ValueError(f"row {rows[lo + int(bad.argmax())]} of X has NaN or an infinity")
