"""Small matrix products at the speed of the multiply units: one register tile as LLVM IR, and the loops around it.

All of the MLP is products of few units (h = 10) with a block of rows, far below the sizes BLAS is made for. Here a tile
of MR x NV accumulators stays in registers while a loop runs over the common index; LLVM serialises such accumulators
when they come from plain loops (see voronoi/tile.py). The order of every sum is fixed, whatever the threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from l2ul_kernels.arrays import Array
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.llvm import I64, PTR, VECTOR_BYTES, Emit, data_pointer
from l2ul_kernels.codegen.pointers import address
from l2ul_kernels.codegen.twins import intrinsic, memory

#: Accumulators of a tile: 5 x 2 (+ 2 row vectors + 1 broadcast) fit the 16 registers of AVX2, 5 x 4 the 32 of AVX-512.
MR = 5
NV = 4 if VECTOR_BYTES == 64 else 2


def lanes(itemsize: int) -> int:
    """Elements per vector: the columns of every operand are padded to a multiple of it."""
    return VECTOR_BYTES // itemsize


@intrinsic(twin=lambda: None)
def stay_one(typingctx: Any) -> Any:
    """The function that calls this is not inlined anywhere: a copy at every call would only cost compile time."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


def _loop(
    e: Emit, c: Any, a: Any, b: Any, ldc: Any, sai: Any, sat: Any, ldb: Any, T: Any, keep: Any, m: int, v: int
) -> None:
    """One m x v tile: phi nodes hold the accumulators while t runs from 0 to T - 1 (T >= 1)."""
    B = e.b
    zero = ir.Constant(e.vector, [0.0] * e.lanes)
    places = [[e.at(c, B.add(B.mul(e.const(i), ldc), e.const(j * e.lanes))) for j in range(v)] for i in range(m)]
    old, fresh, loop, after = (B.append_basic_block(n) for n in ("old", "fresh", "loop", "after"))
    B.cbranch(keep, old, fresh)
    B.position_at_end(old)
    start = [[e.load(places[i][j], e.vector) for j in range(v)] for i in range(m)]
    B.branch(loop)
    B.position_at_end(fresh)
    B.branch(loop)
    B.position_at_end(loop)
    t = B.phi(I64)
    t.add_incoming(e.const(0), old)
    t.add_incoming(e.const(0), fresh)
    acc = [[B.phi(e.vector) for _ in range(v)] for _ in range(m)]
    for i in range(m):
        for j in range(v):
            acc[i][j].add_incoming(start[i][j], old)
            acc[i][j].add_incoming(zero, fresh)
    row, first = e.at(b, B.mul(t, ldb)), B.mul(t, sat)
    xs = [e.load(e.at(row, j * e.lanes), e.vector) for j in range(v)]
    new = []
    for i in range(m):
        w = e.splat(e.load(e.at(a, B.add(first, B.mul(e.const(i), sai))), e.scalar))
        new.append([e.fma(w, xs[j], acc[i][j]) for j in range(v)])
    following = B.add(t, e.const(1))
    t.add_incoming(following, loop)
    for i in range(m):
        for j in range(v):
            acc[i][j].add_incoming(new[i][j], loop)
    B.cbranch(B.icmp_signed("<", following, T), loop, after)
    B.position_at_end(after)
    for i in range(m):
        for j in range(v):
            B.store(new[i][j], places[i][j], align=e.itemsize)


@intrinsic(twin=lambda A: A)
def _first(typingctx: Any, A: Any) -> Any:
    """Pointer to the first element: arrays of every layout then share one compiled product."""
    kind = types.CPointer(A.dtype)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        place = data_pointer(context, builder, signature.args[0], args[0])
        return builder.bitcast(place, context.get_value_type(kind))

    return kind(A), codegen


def _tile_twin(
    C: Array,
    c0: int,
    ldc: int,
    A: Array,
    a0: int,
    sai: int,
    sat: int,
    B: Array,
    b0: int,
    ldb: int,
    T: int,
    keep: int,
    m: int,
    v: int,
) -> None:
    s, n = C.itemsize, v * VECTOR_BYTES // C.itemsize
    c = memory(address(C) + c0 * s, (m, n), C.dtype, (ldc * s, s))
    a = memory(address(A) + a0 * s, (m, T), C.dtype, (sai * s, sat * s))
    b = memory(address(B) + b0 * s, (T, n), C.dtype, (ldb * s, s))
    c[...] = a @ b + (c if keep else 0)


@intrinsic(twin=_tile_twin)
def _tile(
    typingctx: Any,
    C: Any,
    c0: Any,
    ldc: Any,
    A: Any,
    a0: Any,
    sai: Any,
    sat: Any,
    B: Any,
    b0: Any,
    ldb: Any,
    T: Any,
    keep: Any,
    m: Any,
    v: Any,
) -> Any:
    """The tile of `_product` with m <= MR rows and v <= NV vectors of columns, from element offsets c0, a0, b0."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, C.dtype)
        bases = {i: builder.inttoptr(builder.ptrtoint(args[i], I64), PTR) for i in (0, 3, 7)}  # fits every vector type
        c, a, b = (e.at(base, args[i + 1]) for i, base in bases.items())
        ldc, sai, sat, ldb, T, keep, m, v = (args[i] for i in (2, 5, 6, 9, 10, 11, 12, 13))
        fresh_or_old = builder.icmp_signed("!=", keep, e.const(0))
        end = builder.append_basic_block("end")
        which = builder.switch(builder.add(builder.mul(m, e.const(NV + 1)), v), end)
        for rows in range(1, MR + 1):
            for vectors in range(1, NV + 1):
                case = builder.append_basic_block(f"tile{rows}x{vectors}")
                which.add_case(e.const(rows * (NV + 1) + vectors), case)
                builder.position_at_end(case)
                _loop(e, c, a, b, ldc, sai, sat, ldb, T, fresh_or_old, rows, vectors)
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    i8 = types.int64
    return types.void(C, i8, i8, A, i8, i8, i8, B, i8, i8, i8, i8, i8, i8), codegen


@kernel()
def _product(
    C: Any, ldc: int, A: Any, sai: int, sat: int, B: Any, ldb: int, M: int, N: int, T: int, keep: int, width: int
) -> None:
    """C[i, j] = keep * C[i, j] + sum_t A[i, t] B[t, j] for i < M, j < N, t < T; T >= 1, N a multiple of `width` lanes.

    C, A, B point to elements of one type: C[i, j] lies at i ldc + j, A[i, t] at i sai + t sat, B[t, j] at t ldb + j.
    """
    stay_one()
    groups = (M + MR - 1) // MR
    rows = (M + groups - 1) // max(groups, 1)  # even groups: 6 = 3 + 3 is faster than 5 + 1
    j = 0
    while j < N:
        v = min(NV, (N - j) // width)
        for i in range(0, M, rows):
            _tile(C, i * ldc + j, ldc, A, i * sai, sai, sat, B, j, ldb, T, keep, min(rows, M - i), v)
        j += v * width


@kernel(inline=True)
def gemm(out: Any, a: Any, b: Any, accumulate: bool) -> None:
    """out (M, N) = a (M, T) b (T, N), or += if `accumulate`; T >= 1, N a multiple of `lanes`, one dtype.

    Rows of out and b are contiguous; a may be any view.
    """
    size = out.itemsize
    _product(
        _first(out),
        out.strides[0] // size,
        _first(a),
        a.strides[0] // size,
        a.strides[1] // size,
        _first(b),
        b.strides[0] // size,
        out.shape[0],
        out.shape[1],
        a.shape[1],
        np.int64(accumulate),
        VECTOR_BYTES // size,
    )
