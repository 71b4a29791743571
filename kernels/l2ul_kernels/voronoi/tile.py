"""The SIMD micro-kernel: one tile of rows against one partition, written as LLVM IR.

Why IR. The nearest seed of x is argmin_j (|s_j|^2/2 - x.s_j). Only differences between seeds matter, so seed 0 is the
reference with score 0 and every other seed j is one *column* (c_j, v_j) with score c_j + x.v_j: psi - 1 dot products
instead of psi. To run them at the speed of a matrix product, R vectors of W rows times G columns must stay in registers
as accumulators while a loop runs over the features. LLVM serialises such accumulators when they come from plain loops;
emitted as vector phi nodes it keeps them, and lowers them to whatever the CPU has (AVX-512, AVX2, SSE2, NEON).

A tile holds TILE = R * W rows, transposed to (d, TILE) so that rows lie in lanes. The primitives work on raw addresses:

- ``load_tile``     rows of X -> transposed, centred tile; reports values that are not usable numbers
- ``nearest``       tile x one partition -> TILE cell numbers of one or two bytes; nearest4, nearest2 for psi 4 and 2
- ``rows_in_cell``  which rows of a tile lie in a cell, as a bit mask
- ``transpose16``   16 x 16 bytes of cells, to turn (t, TILE) into rows of the (n, t) result

Ties go to the lowest seed: every comparison is strict, decided by the sign of a difference (x - x is +0, and the
difference of unequal numbers never rounds to zero), which keeps compares off the multiply units.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from l2ul_kernels.codegen.llvm import I8, I32, I64, PTR, VECTOR_BYTES, Emit, R, tile_rows, transpose

#: Only `l2ul bench kernels` turns this off, to measure what looking for NaN costs.
CHECK_VALUES = True


def _masked_load(e: Emit, address: ir.Value, mask: ir.Value) -> ir.Value:
    name = f"llvm.masked.load.v{e.lanes}f{e.itemsize * 8}.p0"
    signature = ir.FunctionType(e.vector, [PTR, I32, mask.type, e.vector])
    function = cgutils.get_or_insert_function(e.b.module, signature, name)
    return e.b.call(function, [address, ir.Constant(I32, e.itemsize), mask, ir.Constant(e.vector, None)])


@intrinsic
def load_tile(typingctx: Any, tile: Any, x: Any, stride: Any, last: Any, d: Any, centre: Any, limit: Any) -> Any:
    """Rows x[0..last] (clamped, so a short tile repeats its last row) -> tile (d, TILE), minus centre.

    `x`, `tile`, `centre` are addresses, `stride` is in bytes. Tile and centre have room for at least W features.
    Returns 1 when a value is NaN or beyond `limit` in magnitude (infinities are), else 0.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[6])
        tile, x, stride, last, d, centre, limit = args
        tile, x, centre = (builder.inttoptr(a, PTR) for a in (tile, x, centre))
        width = e.const(e.lanes)
        final = builder.sub(d, width)
        short = builder.icmp_signed("<", d, width)
        final = builder.select(short, e.const(0), final)
        lane_ids = ir.Constant(ir.VectorType(I64, e.lanes), list(range(e.lanes)))
        mask = builder.icmp_signed("<", lane_ids, e.splat(d, ir.VectorType(I64, e.lanes)))
        # as integers, magnitudes order like the numbers, infinity and NaN above all: one maximum finds the worst
        worst = cgutils.alloca_once_value(builder, e.isplat(0))
        magnitude = e.isplat((1 << (e.itemsize * 8 - 1)) - 1)
        n_blocks = builder.sdiv(builder.add(d, e.const(e.lanes - 1)), width)
        with cgutils.for_range(builder, n_blocks) as block:
            k0 = builder.mul(block.index, width)
            k0 = builder.select(builder.icmp_signed("<", k0, final), k0, final)
            mid = e.load(e.at(centre, k0), e.vector)
            with cgutils.for_range(builder, e.const(R)) as vec:
                row0 = builder.mul(vec.index, width)
                rows, high = [], builder.load(worst)
                for i in range(e.lanes):
                    row = builder.add(row0, e.const(i))
                    row = builder.select(builder.icmp_signed("<", row, last), row, last)
                    address = builder.gep(x, [builder.mul(row, stride)], source_etype=I8)
                    value = builder.fsub(_masked_load(e, e.at(address, k0), mask), mid)
                    if CHECK_VALUES:
                        size = builder.and_(builder.bitcast(value, e.ivector), magnitude)
                        high = builder.select(builder.icmp_unsigned(">", size, high), size, high)
                    rows.append(value)
                builder.store(high, worst)
                for k, value in enumerate(transpose(e, rows)):
                    column = builder.add(builder.mul(builder.add(k0, e.const(k)), e.const(R * e.lanes)), row0)
                    builder.store(value, e.at(tile, column), align=e.itemsize)
        over = builder.icmp_unsigned(">", builder.load(worst), e.splat(builder.bitcast(limit, e.int), e.ivector))
        bits = builder.bitcast(over, ir.IntType(e.lanes))
        return builder.zext(builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0)), I64)

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64, limit), codegen


# ------------------------------------------------------------------------------------------------------- nearest seed


def _scores(e: Emit, tile: ir.Value, columns: ir.Value, d: ir.Value, group: int) -> list[list[ir.Value]]:
    """acc[g][r] = c_g + x.v_g for `group` columns and R row vectors; columns = [c_0.., then v_0[k].. for each k]."""
    b = e.b
    start = [e.splat(e.load(e.at(columns, g), e.scalar)) for g in range(group)]
    before = b.basic_block
    loop, after = b.append_basic_block("k"), b.append_basic_block("k.end")
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(I64)
    k.add_incoming(e.const(0), before)
    acc = [[b.phi(e.vector) for _ in range(R)] for _ in range(group)]
    for g in range(group):
        for r in range(R):
            acc[g][r].add_incoming(start[g], before)
    row = e.at(tile, b.mul(k, e.const(R * e.lanes)))
    weights = e.at(columns, b.add(b.mul(k, e.const(group)), e.const(group)))
    v = [e.splat(e.load(e.at(weights, g), e.scalar)) for g in range(group)]
    new: list[list[ir.Value]] = [[None] * R for _ in range(group)]
    for r in range(R):
        x = e.load(e.at(row, r * e.lanes), e.vector)
        for g in range(group):
            new[g][r] = e.fma(x, v[g], acc[g][r])
    k_next = b.add(k, e.const(1))
    k.add_incoming(k_next, loop)
    for g in range(group):
        for r in range(R):
            acc[g][r].add_incoming(new[g][r], loop)
    b.cbranch(b.icmp_signed("<", k_next, d), loop, after)
    b.position_at_end(after)
    return new


def _next_group(e: Emit, columns: ir.Value, d: ir.Value, group: int) -> ir.Value:
    return e.at(columns, e.b.mul(e.b.add(d, e.const(1)), e.const(group)))


def _store_cells(e: Emit, cells: list[ir.Value], out: ir.Value, cell: ir.IntType) -> None:
    """R vectors of indices -> TILE small integers at `out`."""
    while len(cells) > 1:
        cells = [
            e.shuffle(cells[i], cells[i + 1], list(range(2 * cells[i].type.count))) for i in range(0, len(cells), 2)
        ]
    small = e.b.trunc(cells[0], ir.VectorType(cell, cells[0].type.count))
    e.b.store(small, out, align=1)


def _nearest_of(e: Emit, acc: list[list[ir.Value]], r: int) -> tuple[ir.Value, ir.Value]:
    """Lowest score among the columns of one group and its position in the group."""
    best, where = acc[0][r], e.isplat(0)
    for g in range(1, len(acc)):
        less = e.sign(e.b.fsub(acc[g][r], best))
        where = e.b.sub(where, less) if g == 1 else e.pick(less, e.isplat(g), where)
        best = e.minimum(acc[g][r], best)
    return best, where


@intrinsic
def nearest(
    typingctx: Any, tile: Any, columns: Any, d: Any, threes: Any, twos: Any, out: Any, like: Any, cell: Any
) -> Any:
    """Cells of one tile in one partition of psi >= 3 seeds: `threes` groups of three columns, then `twos` of two.

    `tile`, `columns`, `out` are addresses; `like` and `cell` give the element type and the integer type of a cell.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[6])
        tile, columns, d, threes, twos, out = args[:6]
        tile, columns, out = (builder.inttoptr(a, PTR) for a in (tile, columns, out))
        zero = ir.Constant(e.vector, [0.0] * e.lanes)  # the score of seed 0
        best = [cgutils.alloca_once_value(builder, zero) for _ in range(R)]
        index = [cgutils.alloca_once_value(builder, e.isplat(0)) for _ in range(R)]
        column = cgutils.alloca_once_value(builder, columns)
        seed = cgutils.alloca_once_value(builder, ir.Constant(e.int, 1))
        for group, count in ((3, threes), (2, twos)):
            with cgutils.for_range(builder, count):
                here = builder.load(column, typ=PTR)
                acc = _scores(e, tile, here, d, group)
                first = builder.load(seed)
                firsts = e.splat(first, e.ivector)
                for r in range(R):
                    low, where = _nearest_of(e, acc, r)
                    now = builder.load(best[r])
                    less = e.sign(builder.fsub(low, now))
                    builder.store(e.minimum(low, now), best[r])
                    builder.store(e.pick(less, builder.add(firsts, where), builder.load(index[r])), index[r])
                builder.store(builder.add(first, ir.Constant(e.int, group)), seed)
                builder.store(_next_group(e, here, d, group), column)
        _store_cells(e, [builder.load(i) for i in index], out, ir.IntType(signature.args[7].bitwidth))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, like, cell), codegen


@intrinsic
def nearest4(typingctx: Any, tile: Any, columns: Any, d: Any, out: Any, like: Any) -> Any:
    """Cells of one tile in one partition of 4 seeds, by a tournament: (seed 0, a) against (b, c)."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[4])
        tile, columns, d, out = args[:4]
        tile, columns, out = (builder.inttoptr(a, PTR) for a in (tile, columns, out))
        zero = ir.Constant(e.vector, [0.0] * e.lanes)
        a, b, c = _scores(e, tile, columns, d, 3)
        cells = []
        for r in range(R):
            second_pair = e.sign(builder.fsub(e.minimum(c[r], b[r]), e.minimum(a[r], zero)))
            in_first = builder.sub(e.isplat(0), e.sign(a[r]))
            in_second = builder.sub(e.isplat(2), e.sign(builder.fsub(c[r], b[r])))
            cells.append(e.pick(second_pair, in_second, in_first))
        _store_cells(e, cells, out, I8)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4, like), codegen


@intrinsic
def nearest2(
    typingctx: Any, tile: Any, columns: Any, d: Any, threes: Any, twos: Any, ones: Any, out: Any, like: Any
) -> Any:
    """Cells of one tile in all partitions of 2 seeds: one column each, taken in groups of three, two and one."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[7])
        tile, columns, d, threes, twos, ones, out = args[:7]
        tile, columns, out = (builder.inttoptr(a, PTR) for a in (tile, columns, out))
        column = cgutils.alloca_once_value(builder, columns)
        target = cgutils.alloca_once_value(builder, out)
        for group, count in ((3, threes), (2, twos), (1, ones)):
            with cgutils.for_range(builder, count):
                here, there = builder.load(column, typ=PTR), builder.load(target, typ=PTR)
                for acc in _scores(e, tile, here, d, group):
                    _store_cells(e, [builder.sub(e.isplat(0), e.sign(a)) for a in acc], there, I8)
                    there = builder.gep(there, [e.const(R * e.lanes)], source_etype=I8)
                builder.store(there, target)
                builder.store(_next_group(e, here, d, group), column)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7, like), codegen


# ---------------------------------------------------------------------------------------------- using a tile's cells


@intrinsic
def rows_in_cell(typingctx: Any, cells: Any, cell: Any, like: Any) -> Any:
    """Bit i is set where row i of a tile (TILE bytes at `cells`) lies in `cell`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        rows = tile_rows(signature.args[2].bitwidth // 8)
        e = Emit(builder, signature.args[2])
        vector = ir.VectorType(I8, rows)
        found = builder.load(builder.inttoptr(args[0], PTR), align=1, typ=vector)
        same = builder.icmp_unsigned("==", found, e.splat(builder.trunc(args[1], I8), vector))
        mask = builder.bitcast(same, ir.IntType(rows))
        return mask if rows == 64 else builder.zext(mask, I64)

    return types.uint64(types.int64, types.int64, like), codegen


@intrinsic
def transpose16(typingctx: Any, cells: Any, out: Any, stride: Any, like: Any) -> Any:
    """Bytes of 16 partitions (TILE apart at `cells`) x 16 or more rows -> rows `stride` apart at `out`.

    Returns how many rows were written: 16 to a 128-bit lane.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[3])
        rows = tile_rows(e.itemsize)
        lanes = min(rows, VECTOR_BYTES) // 16
        if lanes == 0:  # the caller does not come here with tiles of fewer than 16 rows
            return e.const(0)
        vector = ir.VectorType(I8, 16 * lanes)
        cells, out = (builder.inttoptr(a, PTR) for a in args[:2])
        v = [
            builder.load(builder.gep(cells, [e.const(i * rows)], source_etype=I8), align=1, typ=vector)
            for i in range(16)
        ]
        halves = [
            [
                lane + 8 * half + i + 16 * lanes * side
                for lane in range(0, 16 * lanes, 16)
                for i in range(8)
                for side in (0, 1)
            ]
            for half in (0, 1)
        ]
        for _ in range(4):  # four rounds of interleaving row i with row i + 8 transpose a 16 x 16 block
            v = [e.shuffle(v[i], v[i + 8], half) for i in range(8) for half in halves]
        for lane in range(lanes):
            for i, value in enumerate(v):
                row = builder.gep(out, [builder.mul(args[2], e.const(16 * lane + i))], source_etype=I8)
                part = value if lanes == 1 else e.shuffle(value, value, list(range(16 * lane, 16 * lane + 16)))
                builder.store(part, row, align=1)
        return e.const(16 * lanes)

    return types.int64(types.int64, types.int64, types.int64, like), codegen
