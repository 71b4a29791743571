"""Memory that begins with a cache line: a vector that crosses two lines costs two loads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from l2ul_kernels.arrays import Array, Bytes
from l2ul_kernels.codegen.pointers import address

LINE = 64


def _aligned(allocate: Callable[[int, Any], Bytes], shape: int | tuple[int, ...], dtype: Any) -> Array:
    size = (math.prod(shape) if isinstance(shape, tuple) else shape) * np.dtype(dtype).itemsize
    memory = allocate(size + LINE, np.uint8)
    return np.ndarray(shape, dtype, memory, -address(memory) % LINE)


def aligned_zeros(shape: int | tuple[int, ...], dtype: Any = np.float64) -> Array:
    """Zeros of that shape from a cache line on: no vector of a padded line then crosses two."""
    return _aligned(np.zeros, shape, dtype)


def aligned_empty(shape: int | tuple[int, ...], dtype: Any = np.float64) -> Array:
    """The same, not filled."""
    return _aligned(np.empty, shape, dtype)
