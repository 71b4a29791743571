"""Linear-model arithmetic on gathered rows that lie column by column: products, sigmoids, sums, Gram matrices.

Every loop runs along rows, which are contiguous in a column, so that the compiler turns it into full vectors. A model's
`columns` have shape (width, stride): the d features, a column of ones for the intercept, then zeros up to a multiple of
BLOCK. Row ranges `first`..`last` are multiples of PAD (rows beyond the data have weight 0), because what is left over
after whole vectors would run row by row. Row indices are unsigned: a signed one could be negative for all the compiler
knows, and numpy's wrap-around would then cost the vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from l2ul_kernels.arrays import Array
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.llvm import I64, PTR, VECTOR_BYTES, Emit, data_pointer, transpose
from l2ul_kernels.codegen.pointers import prefetch
from l2ul_kernels.codegen.twins import intrinsic, memory
from l2ul_kernels.simd.elementwise import exp_negative

#: Columns taken together: 3 x 3 sums fill the registers of AVX2 and came out fastest for 24 to 60 columns.
BLOCK = 3
#: Rows are padded to this.
PAD = 16
#: Rows whose products are summed before the sum is added in double precision.
CHUNK = 1024
#: Rows asked for ahead of their use when gathering from a table larger than the caches.
AHEAD = 16

_FLAGS = ("contract", "reassoc", "nsz")


def width_of(p: int) -> int:
    """Columns to allocate for p parameters."""
    return -(-p // BLOCK) * BLOCK


def padded(rows: int) -> int:
    """Rows to allocate: a multiple of PAD that is not one of a large power of two (columns would share cache sets)."""
    return -(-rows // PAD) * PAD + PAD


def _turn_twin(at: int, itemsize: int, stride: int, ids: Array, i: int, k: int, columns: Array, ld: int) -> None:
    lanes = VECTOR_BYTES // columns.itemsize
    for a in range(lanes):
        columns[k : k + lanes, i + a] = memory(at + int(ids[i + a]) * stride + k * itemsize, (lanes,), f"f{itemsize}")


@intrinsic(twin=_turn_twin)
def _turn(typingctx: Any, at: Any, itemsize: Any, stride: Any, ids: Any, i: Any, k: Any, columns: Any, ld: Any) -> Any:
    """columns[k + b, i + a] = number k + b of the row ids[i + a], for a, b < the lanes of a vector of columns.

    Rows lie at at + id * stride bytes, of float32 or float64 as `itemsize` says; columns have ld entries each.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        at, itemsize, stride, _, i, k, _, ld = args
        e = Emit(builder, columns.dtype)
        names = builder.gep(data_pointer(context, builder, ids, args[3]), [i], source_etype=I64)
        to = e.at(data_pointer(context, builder, columns, args[6]), builder.add(builder.mul(k, ld), i))

        def turn(kind: Any) -> None:
            source = Emit(builder, kind)
            vector = ir.VectorType(source.scalar, e.lanes)
            rows = []
            for a in range(e.lanes):
                row = builder.load(builder.gep(names, [e.const(a)], source_etype=I64), typ=I64)
                place = builder.add(builder.add(at, builder.mul(row, stride)), builder.mul(k, itemsize))
                value = source.load(builder.inttoptr(place, PTR), vector)
                if source.itemsize != e.itemsize:
                    value = (builder.fpext if e.itemsize == 8 else builder.fptrunc)(value, e.vector)
                rows.append(value)
            for b, value in enumerate(transpose(e, rows)):
                builder.store(value, e.at(to, builder.mul(e.const(b), ld)), align=e.itemsize)

        with builder.if_else(builder.icmp_signed("==", itemsize, e.const(4))) as (single, double):
            with single:
                turn(types.float32)
            with double:
                turn(types.float64)
        return context.get_dummy_value()

    i8 = types.int64
    return types.void(i8, i8, i8, ids, i8, i8, columns, i8), codegen


def _number_twin(at: int, itemsize: int) -> np.float64:
    return np.float64(memory(at, (1,), f"f{itemsize}")[0])


@intrinsic(twin=_number_twin)
def _number(typingctx: Any, at: Any, itemsize: Any) -> Any:
    """The float32 or float64 (by its size) at an address, as float64."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        place, out = builder.inttoptr(args[0], PTR), cgutils.alloca_once(builder, ir.DoubleType())
        with builder.if_else(builder.icmp_signed("==", args[1], ir.Constant(I64, 4))) as (single, double):
            with single:
                builder.store(builder.fpext(builder.load(place, align=4, typ=ir.FloatType()), ir.DoubleType()), out)
            with double:
                builder.store(builder.load(place, align=8, typ=ir.DoubleType()), out)
        return builder.load(out)

    return types.float64(types.int64, types.int64), codegen


@kernel()
def gather_rows(at: int, itemsize: int, d: int, ids: Any, lo: int, hi: int, columns: Any) -> None:
    """columns[:d, i - lo] = row ids[i] for lo <= i < hi, and a column of ones; rows of d numbers lie from address `at`.

    Whole squares of a vector's width are transposed in registers; the last square of a row overlaps the one before.
    """
    stride, lanes, ld = itemsize * d, VECTOR_BYTES // columns.itemsize, columns.shape[1]
    part = ids[lo:hi]
    n = hi - lo
    whole = n // lanes * lanes if d >= lanes else 0
    for i in range(0, whole, lanes):
        for ahead in range(i + AHEAD, min(i + AHEAD + lanes, n)):
            for line in range(0, stride, 64):
                prefetch(at + part[ahead] * stride + line)
        for k in range(0, d, lanes):
            _turn(at, itemsize, stride, part, i, min(k, d - lanes), columns, ld)
    for i in range(whole, n):
        for k in range(d):
            columns[k, i] = _number(at + part[i] * stride + k * itemsize, itemsize)
    for i in range(n):
        columns[d, i] = 1


@kernel()
def gather(rows: Any, ids: Any, columns: Any) -> None:
    """columns[:d, i] = X[ids[i]] and a column of ones, for the X of `rows`."""
    gather_rows(rows.address, rows.itemsize, rows.d, ids, 0, len(ids), columns)


@kernel(fastmath=_FLAGS)
def scores(columns: Any, theta: Any, first: int, last: int, z: Any) -> None:
    """z = theta . row for the rows first..last; theta (width,) is zero beyond its p entries."""
    lo, hi = np.uint64(first), np.uint64(last)
    for i in range(lo, hi):
        z[i] = 0.0
    for k in range(0, len(theta), 3):
        a, b, c = theta[k], theta[k + 1], theta[k + 2]
        for i in range(lo, hi):
            z[i] += a * columns[k, i] + b * columns[k + 1, i] + c * columns[k + 2, i]


@kernel(fastmath=_FLAGS)
def add_dots(columns: Any, v: Any, first: int, last: int, out: Any) -> None:
    """out += sum over the rows first..last of v_i * row_i; out (width,)."""
    lo, hi = np.uint64(first), np.uint64(last)
    for k in range(0, len(out), 3):
        a = b = c = 0.0
        for i in range(lo, hi):
            a += v[i] * columns[k, i]
            b += v[i] * columns[k + 1, i]
            c += v[i] * columns[k + 2, i]
        out[k] += a
        out[k + 1] += b
        out[k + 2] += c


@kernel(fastmath=_FLAGS)
def _add_gram_chunk(columns: Any, w: Any, first: int, last: int, scaled: Any, out: Any) -> None:
    lo, hi = np.uint64(first), np.uint64(last)
    zero = scaled.dtype.type(0)  # sums in the precision of the products
    for j in range(0, len(out), 3):
        for i in range(lo, hi):
            scaled[0, i - lo] = w[i] * columns[j, i]
            scaled[1, i - lo] = w[i] * columns[j + 1, i]
            scaled[2, i - lo] = w[i] * columns[j + 2, i]
        for k in range(0, j + 3, 3):
            a0 = a1 = a2 = b0 = b1 = b2 = c0 = c1 = c2 = zero
            for i in range(lo, hi):
                x, y, z = columns[k, i], columns[k + 1, i], columns[k + 2, i]
                u, v, t = scaled[0, i - lo], scaled[1, i - lo], scaled[2, i - lo]
                a0 += u * x
                a1 += u * y
                a2 += u * z
                b0 += v * x
                b1 += v * y
                b2 += v * z
                c0 += t * x
                c1 += t * y
                c2 += t * z
            out[j, k] += a0
            out[j, k + 1] += a1
            out[j, k + 2] += a2
            out[j + 1, k] += b0
            out[j + 1, k + 1] += b1
            out[j + 1, k + 2] += b2
            out[j + 2, k] += c0
            out[j + 2, k + 1] += c1
            out[j + 2, k + 2] += c2


@kernel()
def add_gram(columns: Any, w: Any, first: int, last: int, scaled: Any, out: Any) -> None:
    """out += sum over the rows first..last of w_i row_i row_i^T, only what is on and below the diagonal blocks.

    out (width, width) float64; scaled (3, CHUNK) is scratch and its dtype is the precision of products and short sums.
    """
    for lo in range(first, last, CHUNK):
        _add_gram_chunk(columns, w, lo, min(lo + CHUNK, last), scaled, out)


@kernel(fastmath=("contract",))
def residuals(z: Any, y: Any, first: int, last: int, residual: Any, w: Any) -> None:
    """residual = sigmoid(z) - y and w = sigmoid'(z) for the rows first..last."""
    for i in range(np.uint64(first), np.uint64(last)):
        e = exp_negative(-abs(z[i]))
        s = 1.0 / (1.0 + e)
        residual[i] = (s if z[i] >= 0.0 else e * s) - y[i]
        w[i] = e * s * s


@kernel(fastmath=("contract",))
def losses(z: Any, y: Any, first: int, last: int, out: Any) -> None:
    """out = log(1 + exp(z)) - y z for the rows first..last, y = 0 or 1."""
    for i in range(np.uint64(first), np.uint64(last)):
        e = exp_negative(-abs(z[i]))
        u = e / (2.0 + e)  # log(1 + e) = 2 atanh(u), u <= 1/3: 17 terms of its series reach full precision
        v = u * u
        q = 1.0 / 35.0
        q = q * v + 1.0 / 33.0
        q = q * v + 1.0 / 31.0
        q = q * v + 1.0 / 29.0
        q = q * v + 1.0 / 27.0
        q = q * v + 1.0 / 25.0
        q = q * v + 1.0 / 23.0
        q = q * v + 1.0 / 21.0
        q = q * v + 1.0 / 19.0
        q = q * v + 1.0 / 17.0
        q = q * v + 1.0 / 15.0
        q = q * v + 1.0 / 13.0
        q = q * v + 1.0 / 11.0
        q = q * v + 1.0 / 9.0
        q = q * v + 1.0 / 7.0
        q = q * v + 1.0 / 5.0
        q = q * v + 1.0 / 3.0
        q = q * v + 1.0
        # both terms are >= 0, so a small loss keeps its digits
        wrong = z[i] * (1.0 - y[i]) if z[i] >= 0.0 else -z[i] * y[i]
        out[i] = wrong + 2.0 * u * q


@kernel(fastmath=("contract",))
def largest_scores(P: Any, first: int, last: int, top: Any) -> None:
    """top_i = the largest of the scores P (C, rows) of row i, for the rows first..last."""
    lo, hi = np.uint64(first), np.uint64(last)
    for i in range(lo, hi):
        top[i] = P[0, i]
    for c in range(1, len(P)):
        for i in range(lo, hi):
            top[i] = max(top[i], P[c, i])


@kernel(fastmath=("contract",))
def probabilities(P: Any, first: int, last: int, top: Any, total: Any) -> None:
    """Scores P (C, rows) -> their softmax, given the largest; total_i = sum_c exp(P_ci - top_i)."""
    lo, hi = np.uint64(first), np.uint64(last)
    for i in range(lo, hi):
        total[i] = 0.0
    for c in range(len(P)):
        for i in range(lo, hi):
            P[c, i] = exp_negative(P[c, i] - top[i])
            total[i] += P[c, i]
    for c in range(len(P)):
        for i in range(lo, hi):
            P[c, i] /= total[i]
