"""Memory that begins with a cache line: a vector that crosses two lines costs two loads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from l2ul_kernels.arrays import Array
from l2ul_kernels.codegen.pointers import address

LINE = 64


def aligned_parts(*parts: tuple[tuple[int, ...], Any], zeros: bool = False) -> list[Array]:
    """Arrays of these (shape, dtype), each from a cache line on, in one piece of memory: its address is what costs."""
    places, end = [], 0
    for shape, dtype in parts:
        places.append(end)
        end += -(-math.prod(shape) * np.dtype(dtype).itemsize // LINE) * LINE
    memory = (np.zeros if zeros else np.empty)(end + LINE, np.uint8)
    first = -address(memory) % LINE
    return [np.ndarray(*part, memory, first + place) for part, place in zip(parts, places, strict=True)]


def aligned_zeros(shape: int | tuple[int, ...], dtype: Any = np.float64) -> Array:
    """Zeros of that shape from a cache line on: no vector of a padded line then crosses two."""
    return aligned_parts((shape if isinstance(shape, tuple) else (shape,), dtype), zeros=True)[0]
