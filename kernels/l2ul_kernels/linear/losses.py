"""Losses of a linear predictor z = coef . x + intercept: the value and its first three derivatives by z.

Every function here gives the same bits on every machine: plain multiplications and additions in a fixed order, no fused
multiply-add, and an exponential of its own. Integer sums made from them can then be compared byte for byte.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.twins import intrinsic

#: Codes of the losses, and their names in this order.
LOGISTIC, SQUARED, POISSON = 0, 1, 2
NAMES = ("logistic", "squared", "poisson")
#: Bounds of |first|, |second|, |third| derivative as powers of two, for losses that have them.
LOGISTIC_BOUNDS = (0, -2, -3)

_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # few bits, so that its product with a small integer is exact
_LN2_LOW = 1.90821492927058770002e-10
#: 1.5 * 2^52: adding it to |x| < 2^51 rounds x to the nearest integer and leaves that integer in the low bits.
MAGIC = 6755399441055744.0
#: The bits of MAGIC.
MAGIC_BITS = 0x4338000000000000
#: exp of more than this is taken as exp of this, e^708: finite.
LARGEST = 708.0


@intrinsic(twin=lambda x: np.float64(x).view(np.int64))
def as_bits(typingctx: Any, x: Any) -> Any:
    """The bits of a float64 as int64."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic(twin=lambda x: np.int64(x).view(np.float64))
def from_bits(typingctx: Any, x: Any) -> Any:
    """The float64 with these bits."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@kernel()
def exp(x: float) -> float:
    """e^x for |x| <= LARGEST (others are clipped), within two units in the last place; the same bits everywhere."""
    x = min(max(x, -LARGEST), LARGEST)
    k = (x * _LOG2E + MAGIC) - MAGIC
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    s = 1.0 / 6227020800.0
    s = s * r + 1.0 / 479001600.0
    s = s * r + 1.0 / 39916800.0
    s = s * r + 1.0 / 3628800.0
    s = s * r + 1.0 / 362880.0
    s = s * r + 1.0 / 40320.0
    s = s * r + 1.0 / 5040.0
    s = s * r + 1.0 / 720.0
    s = s * r + 1.0 / 120.0
    s = s * r + 1.0 / 24.0
    s = s * r + 1.0 / 6.0
    s = s * r + 0.5
    s = s * r + 1.0
    s = s * r + 1.0
    return s * from_bits((np.int64(k) + 1023) << 52)


@kernel()
def derivatives(loss: int, z: float, y: float) -> tuple[float, float, float]:
    """First, second and third derivative of the loss by z, at z with target y.

    logistic: log(1 + e^z) - y z, y 0 or 1; squared: (z - y)^2 / 2; poisson: e^z - y z.
    """
    if loss == SQUARED:
        return z - y, 1.0, 0.0
    if loss == POISSON:
        mean = exp(z)
        return mean - y, mean, mean
    a = exp(-abs(z))
    s = 1.0 / (1.0 + a)
    chance, tilt = s, (a - 1.0) * s  # tilt = 1 - 2 chance
    if z < 0.0:
        chance, tilt = a * s, -tilt
    weight = a * s * s
    return chance - y, weight, weight * tilt


@kernel()
def value(loss: int, z: float, y: float) -> float:
    """The loss at z with target y."""
    if loss == SQUARED:
        return 0.5 * (z - y) * (z - y)
    if loss == POISSON:
        return exp(z) - y * z
    return max(z, 0.0) + math.log1p(exp(-abs(z))) - y * z


@kernel()
def row_losses(loss: int, z: Any, y: Any, weights: Any, first: Any, second: Any) -> float:
    """Derivatives of all rows' losses at z (n,), times the weights (n,; none: all 1); returns the sum of the losses."""
    total = 0.0
    for i in range(z.size):
        weight = weights[i] if weights.size else 1.0
        if weight == 0.0:
            first[i] = second[i] = 0.0
            continue
        e, w, _ = derivatives(loss, z[i], np.float64(y[i]))
        first[i], second[i] = weight * e, weight * w
        total += weight * value(loss, z[i], np.float64(y[i]))
    return total
