"""Python twins of intrinsics: with ``NUMBA_DISABLE_JIT=1`` kernels run as plain Python, so that coverage sees them.

An intrinsic exists only in compiled code. Each one names the plain function that does the same, its twin, which
takes its name when compilation is off::

    def _count_bits(mask):
        return int(mask).bit_count()

    @intrinsic(twin=_count_bits)
    def count_bits(typingctx, mask):
        ...  # types and LLVM IR, as for numba.extending.intrinsic

A twin takes the arguments of the intrinsic and need not be fast. Where these are an array and an index, it uses them as
such; where it is an address, `memory` makes an array of what lies there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import config
from numba.extending import intrinsic as _intrinsic

from l2ul_kernels.arrays import Array

#: Whether kernels are compiled in this process.
COMPILED = not config.DISABLE_JIT


def intrinsic(twin: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of intrinsics: numba's own, or `twin` in its place when nothing is compiled."""
    return _intrinsic if COMPILED else lambda typing_function: twin


class _Place:
    """An address, shape and dtype in the form that numpy makes arrays of."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (int(address), False),
            "shape": tuple(map(int, shape)),
            "typestr": np.dtype(dtype).str,
            "strides": strides,
        }


def memory(address: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None) -> Array:
    """The array that lies at an address, which may be written; the caller keeps its memory alive."""
    return np.asarray(_Place(address, shape, dtype, strides))
