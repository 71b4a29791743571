"""Putting row numbers in random order: numpy's permutation takes ten times as long, more than training on the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.splitmix import GOLDEN, mix

U = np.uint64


@kernel()
def shuffle(ids: Any, seed: int, salt: int) -> None:
    """Put ids (n,), n below 2**32, in an order that follows from seed and salt; every order is as likely as any."""
    state = mix(mix(U(seed) + GOLDEN) + U(salt) * GOLDEN)
    for i in range(len(ids) - 1, 0, -1):
        state += GOLDEN
        k = ((mix(state) >> U(32)) * U(i + 1)) >> U(32)  # from 0 to i
        ids[i], ids[k] = ids[k], ids[i]
