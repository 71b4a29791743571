"""Putting row numbers in random order: numpy's permutation takes ten times as long, more than training on the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_kernels.codegen.jit import kernel

U = np.uint64


@kernel()
def _mix(x: Any) -> Any:
    """splitmix64's output function: a bijection of 64-bit words whose values look random."""
    x = (x ^ (x >> U(30))) * U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U(27))) * U(0x94D049BB133111EB)
    return x ^ (x >> U(31))


@kernel()
def shuffle(ids: Any, seed: int, salt: int) -> None:
    """Put ids (n,), n below 2**32, in an order that follows from seed and salt; every order is as likely as any."""
    step = U(0x9E3779B97F4A7C15)
    state = _mix(_mix(U(seed) + step) + U(salt) * step)
    for i in range(len(ids) - 1, 0, -1):
        state += step
        k = ((_mix(state) >> U(32)) * U(i + 1)) >> U(32)  # from 0 to i
        ids[i], ids[k] = ids[k], ids[i]
