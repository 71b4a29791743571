"""Memory that begins with a cache line: a vector of an array that does not lies in two lines each time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_kernels.voronoi.partitions import address

LINE = 64


def aligned_zeros(shape: int | tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
    """Zeros of that shape from a cache line on: no vector of a padded line then crosses two."""
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    width = size * np.dtype(dtype).itemsize
    room = np.zeros(width + LINE, np.uint8)
    skip = -address(room) % LINE
    return room[skip : skip + width].view(dtype).reshape(shape)
