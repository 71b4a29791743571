"""Emitting vector LLVM IR: sizes of the compile target, a small helper around the builder, the transpose of a block."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
PTR = ir.PointerType()


def _vector_bytes() -> int:
    """Widest vector the compile target has: 64 (AVX-512), 32 (AVX) or 16 bytes (SSE2, NEON)."""
    features = config.CPU_FEATURES if config.CPU_FEATURES is not None else get_host_cpu_features()
    have = set(features.split(","))
    if {"+avx512f", "+avx512bw", "+avx512vl"} <= have:
        return 64
    return 32 if {"+avx2", "+fma"} <= have else 16


VECTOR_BYTES = _vector_bytes()
#: Row vectors per tile. 4 x 3 accumulators + 3 broadcasts + 1 row fill the 16 registers of AVX2 (`l2ul bench kernels`).
R = 4
#: Columns per group: every psi - 1 >= 2 is a sum of threes and twos, so no column is ever padding.
G = 3


def tile_rows(itemsize: int) -> int:
    """Rows per tile for items of 4 or 8 bytes."""
    return R * VECTOR_BYTES // itemsize


def data_pointer(context: Any, builder: ir.IRBuilder, typ: types.Array, array: ir.Value) -> ir.Value:
    """Where the first element of an array operand lies, as a plain pointer: it fits every vector type."""
    return builder.inttoptr(builder.ptrtoint(context.make_array(typ)(context, builder, array).data, I64), PTR)


class Emit:
    """What every primitive needs: the builder, the element type and vectors of it."""

    def __init__(self, builder: ir.IRBuilder, dtype: types.Type) -> None:
        self.b = builder
        self.itemsize = dtype.bitwidth // 8
        self.lanes = VECTOR_BYTES // self.itemsize
        self.scalar = ir.FloatType() if self.itemsize == 4 else ir.DoubleType()
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self.int = ir.IntType(dtype.bitwidth)
        self.ivector = ir.VectorType(self.int, self.lanes)

    def const(self, value: int) -> ir.Constant:
        return ir.Constant(I64, value)

    def splat(self, value: ir.Value, vector: ir.VectorType | None = None) -> ir.Value:
        vector = vector or self.vector
        first = self.b.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
        return self.b.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)

    def isplat(self, value: int) -> ir.Constant:
        return ir.Constant(self.ivector, [value] * self.lanes)

    def at(self, base: ir.Value, index: ir.Value | int) -> ir.Value:
        """Address of element `index` behind `base`."""
        index = self.const(index) if isinstance(index, int) else index
        return self.b.gep(base, [index], source_etype=self.scalar)

    def load(self, address: ir.Value, typ: ir.Type) -> ir.Value:
        return self.b.load(address, align=self.itemsize, typ=typ)

    def shuffle(self, a: ir.Value, b: ir.Value, mask: list[int]) -> ir.Value:
        return self.b.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(mask)), mask))

    def minimum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.b.select(self.b.fcmp_ordered("<", a, b), a, b)

    def fma(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        # fmuladd, not fma: without FMA hardware the latter is a library call per lane
        name = f"llvm.fmuladd.v{self.lanes}f{self.itemsize * 8}"
        function = cgutils.get_or_insert_function(self.b.module, ir.FunctionType(self.vector, [self.vector] * 3), name)
        return self.b.call(function, [x, y, z])

    def sign(self, x: ir.Value) -> ir.Value:
        """All ones where x is negative, else zero, as integers."""
        return self.b.ashr(self.b.bitcast(x, self.ivector), self.isplat(self.itemsize * 8 - 1))

    def pick(self, mask: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        """Integer select by an all-ones mask. Bit logic, because blends compete with the multiply units."""
        return self.b.xor(no, self.b.and_(mask, self.b.xor(no, yes)))


def transpose(e: Emit, rows: list[ir.Value]) -> list[ir.Value]:
    """W vectors of W elements -> their transpose: first inside 128-bit lanes, then whole lanes."""
    width, per_lane = e.lanes, 16 // e.itemsize

    def unpack(a: ir.Value, b: ir.Value, run: int, half: int) -> ir.Value:
        # in every 128-bit lane: alternate runs of a and b, from the lane's low or high half
        mask = []
        for lane in range(0, width, per_lane):
            for start in range(half * per_lane // 2, (half + 1) * per_lane // 2, run):
                mask += [lane + start + i for i in range(run)] + [width + lane + start + i for i in range(run)]
        return e.shuffle(a, b, mask)

    if per_lane == 4:
        low = [[unpack(rows[i], rows[i + 1], 1, h) for h in (0, 1)] for i in range(0, width, 2)]
        lanes = [
            [unpack(low[i][j // 2], low[i + 1][j // 2], 2, j % 2) for j in range(4)] for i in range(0, width // 2, 2)
        ]
    else:
        lanes = [[unpack(rows[i], rows[i + 1], 1, h) for h in (0, 1)] for i in range(0, width, 2)]

    def blocks(a: ir.Value, b: ir.Value, picks: list[int]) -> ir.Value:
        return e.shuffle(a, b, [p * per_lane + i for p in picks for i in range(per_lane)])

    out: list[ir.Value] = [None] * width
    for j in range(per_lane):
        v = [group[j] for group in lanes]
        if len(v) == 2:
            v = [blocks(v[0], v[1], [0, 2]), blocks(v[0], v[1], [1, 3])]
        elif len(v) == 4:
            low4, high4 = [0, 1, 4, 5], [2, 3, 6, 7]
            p = [blocks(v[0], v[1], low4), blocks(v[2], v[3], low4)]
            q = [blocks(v[0], v[1], high4), blocks(v[2], v[3], high4)]
            even, odd = [0, 2, 4, 6], [1, 3, 5, 7]
            v = [blocks(a, b, picks) for a, b in (p, q) for picks in (even, odd)]
        for lane, value in enumerate(v):
            out[lane * per_lane + j] = value
    return out
