"""The sum of some rows of a table, each times a number, with the sums in registers.

From plain loops LLVM makes one that checks for every few rows whether they overlap the result, and reads and writes the
result each time: for rows of a few vectors that takes longer than the sums.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from l2ul_kernels.arrays import Array
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.llvm import I64, VECTOR_BYTES, Emit, data_pointer
from l2ul_kernels.codegen.twins import intrinsic

#: Vectors of a row that are summed together: enough that no sum waits for its own last addition.
STRIP = 8
LANES = VECTOR_BYTES // 4


def _strip_twin(
    table: Array, at: int, stride: int, places: Array, values: Array, m: int, out: Array, to: int, v: int
) -> None:
    for k in range(m):
        first = at + int(places[k]) * stride
        out[to : to + v * LANES] += values[k] * table[first : first + v * LANES]


@intrinsic(twin=_strip_twin)
def _strip(
    typingctx: Any, table: Any, at: Any, stride: Any, places: Any, values: Any, m: Any, out: Any, to: Any, v: Any
) -> Any:
    """sum_rows for v <= STRIP vectors of columns, from table[at] and out[to] on; m >= 1."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e, B = Emit(builder, types.float32), builder
        rows = e.at(data_pointer(context, B, signature.args[0], args[0]), args[1])
        numbers, factors = (data_pointer(context, B, signature.args[i], args[i]) for i in (3, 4))
        result = e.at(data_pointer(context, B, signature.args[6], args[6]), args[7])
        stride, m = args[2], args[5]
        end = B.append_basic_block("end")
        which = B.switch(args[8], end)
        for vectors in range(1, STRIP + 1):
            first, loop, after = (B.append_basic_block(f"{name}{vectors}") for name in ("first", "loop", "after"))
            which.add_case(e.const(vectors), first)
            B.position_at_end(first)
            to = [e.at(result, j * e.lanes) for j in range(vectors)]
            start = [e.load(place, e.vector) for place in to]
            B.branch(loop)
            B.position_at_end(loop)
            k, sums = B.phi(I64), [B.phi(e.vector) for _ in range(vectors)]
            k.add_incoming(e.const(0), first)
            number = B.load(B.gep(numbers, [k], source_etype=I64), typ=I64)
            factor = e.splat(e.load(e.at(factors, k), e.scalar))
            row = e.at(rows, B.mul(number, stride))
            new = [e.fma(factor, e.load(e.at(row, j * e.lanes), e.vector), sums[j]) for j in range(vectors)]
            following = B.add(k, e.const(1))
            k.add_incoming(following, loop)
            for j in range(vectors):
                sums[j].add_incoming(start[j], first)
                sums[j].add_incoming(new[j], loop)
            B.cbranch(B.icmp_signed("<", following, m), loop, after)
            B.position_at_end(after)
            for j in range(vectors):
                B.store(new[j], to[j], align=4)
            B.branch(end)
        B.position_at_end(end)
        return context.get_dummy_value()

    i8 = types.int64
    return types.void(table, i8, i8, places, values, i8, out, i8, i8), codegen


@kernel()
def sum_rows(table: Any, at: int, width: int, stride: int, places: Any, values: Any, m: int, out: Any) -> None:
    """out[j] += sum over k < m of values[k] * table[at + places[k] * stride + j], for j < width.

    table, values, out are flat float32 arrays, places int64; width is a multiple of the vectors' lanes.
    """
    if m < 1:
        return
    j = 0
    while j < width:
        v = min(STRIP, (width - j) // LANES)
        _strip(table, at + j, stride, places, values, m, out, j, v)
        j += v * LANES
