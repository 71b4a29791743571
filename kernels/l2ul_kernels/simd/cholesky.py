"""Cholesky factor and solve for the small symmetric systems of a Newton step.

Loops instead of slice assignments: numba takes a second to compile each of those.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_kernels.codegen.jit import kernel

#: A pivot below this share of its diagonal entry is rounding error.
TINY = 1e-13


@kernel(fastmath=("contract", "reassoc", "nsz"))
def cholesky(A: Any, p: int) -> bool:
    """Replace the lower triangle of A[:p, :p] by its Cholesky factor; False if A is not positive definite (or NaN)."""
    for j in range(p):
        pivot = A[j, j]
        for k in range(j):
            pivot -= A[j, k] * A[j, k]
        if not pivot > TINY * A[j, j]:
            return False
        root = np.sqrt(pivot)
        A[j, j] = root
        for i in range(j + 1, p):
            t = A[i, j]
            for k in range(j):
                t -= A[i, k] * A[j, k]
            A[i, j] = t / root
    return True


@kernel(fastmath=("contract", "reassoc", "nsz"))
def solve(L: Any, p: int, b: Any, out: Any) -> None:
    """out[:p] = (L L^T)^-1 b[:p] for the lower triangular L[:p, :p]."""
    for j in range(p):
        t = b[j]
        for k in range(j):
            t -= L[j, k] * out[k]
        out[j] = t / L[j, j]
    for j in range(p - 1, -1, -1):
        out[j] /= L[j, j]
        t = out[j]
        for k in range(j):
            out[k] -= L[j, k] * t


@kernel()
def dot(a: Any, b: Any, p: int) -> float:
    """a[:p] . b[:p]"""
    total = 0.0
    for k in range(p):
        total += a[k] * b[k]
    return total


@kernel()
def copy(source: Any, target: Any) -> None:
    """target[:len(source)] = source"""
    for k in range(len(source)):
        target[k] = source[k]


@kernel()
def clear(A: Any) -> None:
    """A[:] = 0 for a matrix."""
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            A[i, j] = 0.0
