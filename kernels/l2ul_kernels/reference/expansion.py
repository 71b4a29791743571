"""Slow oracles of the integer sums: every term rounded by itself, added up as Python integers that never overflow.

Only the derivatives of the loss come from the kernels, which have tests of their own: a unit in their last place would
be another integer. Arguments are never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from l2ul_kernels.arrays import Float
from l2ul_kernels.linear.losses import LOGISTIC, derivatives


def nearest(value: Float) -> int:
    """The integer nearest to a float, ties to even."""
    return round(Fraction(float(value)))


def terms(
    x: Any, y: float, weight: float | None, loss: int, anchor: Float, exponents: Any, bits: int, order: int
) -> Iterator[int]:
    """What one row adds behind the counts: its tops (p + 4), moments (p), G (p), H and T.

    exponents (p + 4,): of the columns, the three derivatives and the weights; weight: None where rows have none.
    """
    p, heavy = len(anchor), np.float64(1.0 if weight is None else weight)
    z = np.float64(0.0)
    for a, value in zip(anchor[:-1], x, strict=True):
        z += a * np.float64(value)
    e, w, c = (heavy * d for d in derivatives(loss, float(z + anchor[-1]), float(y)))
    u = np.ldexp(np.append(np.asarray(x, np.float64), 1.0), -np.asarray(exponents[:p]))
    yield from (int(abs(v) >= 0.5) for v in u)
    for size, exponent, counted in zip(
        (e, w, c, heavy),
        exponents[p:],
        (*3 * [loss != LOGISTIC or weight is not None], weight is not None),
        strict=True,
    ):
        yield int(counted and np.ldexp(abs(size), -exponent) >= 0.5)
    yield from (nearest(np.ldexp(v * v, bits)) for v in u)
    yield from (nearest(np.ldexp(e, bits - exponents[p]) * v) for v in u)
    for j, k in combinations_with_replacement(range(p), 2):
        yield nearest(np.ldexp(w, bits - exponents[p + 1]) * u[j] * u[k])
    if order == 3:
        third = min(44, bits)
        columns = third // 2
        c = np.ldexp(c, third - columns - exponents[p + 2])
        for j, k, m in combinations_with_replacement(range(p), 3):
            yield nearest(np.ldexp(u[j], columns)) * nearest(c * u[k] * u[m])


def sums(
    X: Any, y: Any, weights: Float | None, loss: int, order: int, anchor: Float, exponents: Any, bits: int, classes: int
) -> list[int]:
    """All of `integer_sums.sums` over the rows X (n, d), y (n,)."""
    p = len(anchor)
    heavy = [1.0] * len(X) if weights is None else weights.tolist()
    kept = [i for i in range(len(X)) if heavy[i] > 0.0]
    unit = 0 if weights is None else bits - exponents[p + 3]
    counts = [len(kept), sum(nearest(np.ldexp(heavy[i], unit)) for i in kept)]
    counts += [sum(int(y[i]) == label for i in kept) for label in range(classes)]
    total = [0] * (p + 4 + 2 * p + p * (p + 1) // 2 + (p * (p + 1) * (p + 2) // 6 if order == 3 else 0))
    for i in kept:
        weight = None if weights is None else heavy[i]
        row = terms(X[i], float(y[i]), weight, loss, anchor, exponents, bits, order)
        total = [a + b for a, b in zip(total, row, strict=True)]
    return counts + total
