"""The fixed train/test split: a stateless hash of (seed, row), so only the seed has to be stored.

Row r is a training row when splitmix64 of (seed, r) falls below 80 % of 2**64. The split of a row does not depend on n,
on chunk borders or on the order of reading; a larger file with the same seed keeps the split of its prefix.
"""

import numpy as np

from l2ul_kernels.splitmix import GOLDEN, mix_all

TRAIN_FRACTION = 0.8
SPLIT_RULE = "splitmix64-v1"

_THRESHOLD = np.uint64(int(TRAIN_FRACTION * 2**64))
_BLOCK = 1 << 16  # rows hashed at a time: the temporaries stay in cache


def train_mask(start: int, stop: int, seed: int = 0) -> np.ndarray:
    """Which of the rows start..stop-1 are training rows, (stop-start,) bool."""
    out = np.empty(max(0, stop - start), dtype=bool)
    key = mix_all(np.array([seed % 2**64], dtype=np.uint64) + GOLDEN)
    for low in range(start, stop, _BLOCK):
        high = min(low + _BLOCK, stop)
        z = np.arange(low + 1, high + 1, dtype=np.uint64)
        z *= GOLDEN
        z += key
        out[low - start : high - start] = mix_all(z) < _THRESHOLD
    return out


def count_train(n: int, seed: int = 0) -> int:
    """How many of the rows 0..n-1 are training rows."""
    return sum(int(train_mask(low, min(low + 2**20, n), seed).sum()) for low in range(0, n, 2**20))
