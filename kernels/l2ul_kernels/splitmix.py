"""splitmix64's output function: a bijection of 64-bit words whose values look random. Splits and stand-ins rest on it.

The k-th value of the stream of a seed is mix(seed + k * GOLDEN), modulo 2**64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_kernels.codegen.jit import kernel

U = np.uint64
#: 2**64 over the golden ratio: what the state of splitmix64 grows by.
GOLDEN = U(0x9E3779B97F4A7C15)
_FIRST, _SECOND = U(0xBF58476D1CE4E5B9), U(0x94D049BB133111EB)


@kernel()
def mix(x: Any) -> Any:
    """The value of one uint64."""
    x = (x ^ (x >> U(30))) * _FIRST
    x = (x ^ (x >> U(27))) * _SECOND
    return x ^ (x >> U(31))


def mix_all(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The values of z (k,) uint64, in place. Products wrap modulo 2**64, as intended."""
    z ^= z >> U(30)
    z *= _FIRST
    z ^= z >> U(27)
    z *= _SECOND
    z ^= z >> U(31)
    return z
