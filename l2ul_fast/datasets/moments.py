"""Column mean and scale of rows that arrive in blocks: one pass, float64, no cancellation."""

import numpy as np
from numpy.typing import ArrayLike

from l2ul_kernels.codegen.jit import kernel

_BLOCK = 256  # rows whose mean and squares are taken together: 256 x 28 float32 stay in the L1 cache


@kernel()
def _update(X, n, mean, m2, block_mean, block_m2):  # type: ignore[no-untyped-def]
    """Fold the rows of X (k, d) into mean and m2 (d,), which hold n rows so far; returns the new n."""
    d = X.shape[1]
    for low in range(0, X.shape[0], _BLOCK):
        high = min(low + _BLOCK, X.shape[0])
        k = high - low
        for j in range(d):
            block_mean[j] = 0.0
            block_m2[j] = 0.0
        for i in range(low, high):
            for j in range(d):
                block_mean[j] += X[i, j]
        for j in range(d):
            block_mean[j] /= k
        for i in range(low, high):
            for j in range(d):
                delta = X[i, j] - block_mean[j]
                block_m2[j] += delta * delta
        # Chan, Golub, LeVeque: merge two sets of (count, mean, sum of squares about the mean).
        total = n + k
        for j in range(d):
            delta = block_mean[j] - mean[j]
            mean[j] += delta * k / total
            m2[j] += block_m2[j] + delta * delta * n * k / total
        n = total
    return n


@kernel()
def _first_bad_row(bits):  # type: ignore[no-untyped-def]
    """First row of bits (k, d) uint32, the patterns of float32, whose exponent is all ones (NaN, infinity), or -1."""
    mask = np.uint32(0x7FFFFFFF)
    for i in range(bits.shape[0]):
        largest = np.uint32(0)  # an integer maximum is SIMD code, a floating-point sum is not
        for j in range(bits.shape[1]):
            largest = max(largest, np.uint32(bits[i, j] & mask))
        if largest >= np.uint32(0x7F800000):
            return i
    return -1


def first_bad_row(X: np.ndarray) -> int:
    """Index of the first row of X (k, d) float32 that has a NaN or an infinity, or -1."""
    return int(_first_bad_row(np.ascontiguousarray(X, np.float32).view(np.uint32)))


class Moments:
    """Running mean and standard deviation of each of d columns."""

    def __init__(self, d: int) -> None:
        self.n = 0
        self.mean = np.zeros(d)
        self._m2 = np.zeros(d)
        self._work = np.zeros((2, d))

    def update(self, X: np.ndarray) -> None:
        """Add the rows of X (k, d) float32, all finite."""
        self.n = int(_update(X, self.n, self.mean, self._m2, self._work[0], self._work[1]))

    def variance(self) -> np.ndarray:
        """Population variance of each column, (d,)."""
        return self._m2 / max(self.n, 1)

    def scale(self) -> np.ndarray:
        """Population standard deviation of each column, (d,); 1 for a constant column, so that it may divide."""
        return scale_of(self.variance())


def scale_of(variance: np.ndarray) -> np.ndarray:
    """Standard deviation of each column, 1 where it is 0."""
    return np.where(variance > 0, np.sqrt(variance), 1.0)


def pooled(sizes: ArrayLike, means: ArrayLike, variances: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """(mean, variance) (d,) of all rows of sets with these numbers of rows (k,), means and variances (k, d)."""
    share, means = (np.asarray(sizes) / np.sum(sizes))[:, None], np.asarray(means)
    mean = np.sum(share * means, axis=0)
    return mean, np.sum(share * (np.asarray(variances) + (means - mean) ** 2), axis=0)


def round24(x: np.ndarray) -> np.ndarray:
    """x rounded to 24 significant bits.

    The mean of the same rows cut into other shards differs in its last bits. Rounded, it is the same (but for a chance
    of about one in a million per data set), and so are the seeds and all counts.
    """
    fraction, exponent = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.round(fraction * 2**24) / 2**24, exponent)
