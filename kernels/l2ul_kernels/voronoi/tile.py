"""The SIMD micro-kernel: one tile of rows against one partition, written as LLVM IR.

Why IR. The nearest seed of x is argmin_j (|s_j|^2/2 - x.s_j). Only differences between seeds matter, so seed 0 is the
reference with score 0 and every other seed j is one *column* (c_j, v_j) with score c_j + x.v_j: psi - 1 dot products
instead of psi. To run them at the speed of a matrix product, R vectors of W rows times G columns must stay in registers
as accumulators while a loop runs over the features. LLVM serialises such accumulators when they come from plain loops;
emitted as vector phi nodes it keeps them, and lowers them to whatever the CPU has (AVX-512, AVX2, SSE2, NEON).

A tile holds TILE = R * W rows, transposed to features (d, TILE) so that rows lie in lanes; its cells are (t, TILE).
Both begin with a cache line. The element type, and with it TILE, is that of `features`. The primitives:

- ``load_tile``     rows of X -> transposed, centred tile; reports values that are not usable numbers
- ``nearest``       tile x one partition -> TILE cell numbers of one or two bytes; nearest4, nearest2 for psi 4 and 2
- ``rows_in_cell``  which rows of a tile lie in a cell, as a bit mask
- ``transpose16``   16 x 16 bytes of cells, to turn (t, TILE) into rows of the (n, t) result

Ties go to the lowest seed: every comparison is strict, decided by the sign of a difference (x - x is +0, and the
difference of unequal numbers never rounds to zero), which keeps compares off the multiply units.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from l2ul_kernels.arrays import Array
from l2ul_kernels.codegen.llvm import I8, I32, I64, PTR, VECTOR_BYTES, Emit, R, data_pointer, tile_rows, transpose
from l2ul_kernels.codegen.twins import intrinsic, memory

#: Only `l2ul bench kernels` turns this off, to measure what looking for NaN costs.
CHECK_VALUES = True


def _masked_load(e: Emit, address: ir.Value, mask: ir.Value) -> ir.Value:
    name = f"llvm.masked.load.v{e.lanes}f{e.itemsize * 8}.p0"
    signature = ir.FunctionType(e.vector, [PTR, I32, mask.type, e.vector])
    function = cgutils.get_or_insert_function(e.b.module, signature, name)
    return e.b.call(function, [address, ir.Constant(I32, e.itemsize), mask, ir.Constant(e.vector, None)])


def _load_tile(features: Any, x: int, stride: int, last: int, d: int, centre: Any, limit: Any) -> int:
    rows = memory(x, (last + 1, d), features.dtype, (stride, features.itemsize))
    features[:d] = (rows[np.minimum(np.arange(features.shape[1]), last)] - centre[:d]).T
    return int(not (np.abs(features[:d]) <= limit).all())


@intrinsic(twin=_load_tile)
def load_tile(typingctx: Any, features: Any, x: Any, stride: Any, last: Any, d: Any, centre: Any, limit: Any) -> Any:
    """Rows x[0..last] (clamped, so a short tile repeats its last row) -> features (d, TILE), minus centre.

    `x` is an address, `stride` is in bytes. Features and centre have room for at least W features.
    Returns 1 when a value is NaN or beyond `limit` in magnitude (infinities are), else 0.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[6])
        tile, x, stride, last, d, centre, limit = args
        tile, centre = (data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 5))
        x = builder.inttoptr(x, PTR)
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

    return types.int64(features, types.int64, types.int64, types.int64, types.int64, centre, limit), codegen


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


def _cells_at(context: Any, builder: ir.IRBuilder, signature: Any, args: Any, i: int) -> tuple[ir.Value, ir.IntType]:
    """Where cells[p] begins for the operands i and i + 1, the array and p; and the type of a cell."""
    cell = ir.IntType(signature.args[i].dtype.bitwidth)
    rows = tile_rows(signature.args[0].dtype.bitwidth // 8)
    place = builder.mul(args[i + 1], ir.Constant(I64, rows))
    return builder.gep(data_pointer(context, builder, signature.args[i], args[i]), [place], source_etype=cell), cell


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


def _scores_of(features: Any, columns: Any, at: int, d: int, groups: tuple[int, int, int]) -> Array:
    """The twin of all calls of `_scores` for (threes, twos, ones) groups that begin with columns[at]."""
    found = []
    for group, count in zip((3, 2, 1), groups, strict=True):
        for _ in range(count):
            own = columns[at : at + (d + 1) * group].reshape(d + 1, group, 1)
            score = np.repeat(own[0], features.shape[1], axis=1)
            for k in range(d):  # one after the other: equal columns have equal scores
                score += own[1 + k] * features[k]
            found.append(score)
            at += own.size
    return np.concatenate(found)


def _nearest(features: Any, columns: Any, at: int, d: int, threes: int, twos: int, cells: Any, p: int) -> None:
    scores = _scores_of(features, columns, at, d, (threes, twos, 0))
    cells[p] = np.concatenate([np.zeros_like(scores[:1]), scores]).argmin(axis=0)


@intrinsic(twin=_nearest)
def nearest(
    typingctx: Any, features: Any, columns: Any, at: Any, d: Any, threes: Any, twos: Any, cells: Any, p: Any
) -> Any:
    """cells[p] = those of one tile in one partition of psi >= 3 seeds, whose columns begin with columns[at].

    `threes` groups of three columns, then `twos` of two.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[0].dtype)
        tile, columns, _, d, threes, twos = args[:6]
        tile, columns = (data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 1))
        columns, (out, cell) = e.at(columns, args[2]), _cells_at(context, builder, signature, args, 6)
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
        _store_cells(e, [builder.load(i) for i in index], out, cell)
        return context.get_dummy_value()

    return types.void(features, columns, *[types.int64] * 4, cells, types.int64), codegen


def _nearest4(features: Any, columns: Any, at: int, d: int, cells: Any, p: int) -> None:
    _nearest(features, columns, at, d, 1, 0, cells, p)


@intrinsic(twin=_nearest4)
def nearest4(typingctx: Any, features: Any, columns: Any, at: Any, d: Any, cells: Any, p: Any) -> Any:
    """`nearest` for 4 seeds, by a tournament: (seed 0, a) against (b, c)."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[0].dtype)
        tile, columns = (data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 1))
        columns, (out, cell) = e.at(columns, args[2]), _cells_at(context, builder, signature, args, 4)
        zero = ir.Constant(e.vector, [0.0] * e.lanes)
        a, b, c = _scores(e, tile, columns, args[3], 3)
        found = []
        for r in range(R):
            second_pair = e.sign(builder.fsub(e.minimum(c[r], b[r]), e.minimum(a[r], zero)))
            in_first = builder.sub(e.isplat(0), e.sign(a[r]))
            in_second = builder.sub(e.isplat(2), e.sign(builder.fsub(c[r], b[r])))
            found.append(e.pick(second_pair, in_second, in_first))
        _store_cells(e, found, out, cell)
        return context.get_dummy_value()

    return types.void(features, columns, types.int64, types.int64, cells, types.int64), codegen


def _nearest2(features: Any, columns: Any, d: int, threes: int, twos: int, ones: int, cells: Any) -> None:
    cells[:] = _scores_of(features, columns, 0, d, (threes, twos, ones)) < 0


@intrinsic(twin=_nearest2)
def nearest2(typingctx: Any, features: Any, columns: Any, d: Any, threes: Any, twos: Any, ones: Any, cells: Any) -> Any:
    """Cells of one tile in all partitions of 2 seeds: one column each, taken in groups of three, two and one."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[0].dtype)
        d, threes, twos, ones = args[2:6]
        tile, columns, out = (data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 1, 6))
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

    return types.void(features, columns, *[types.int64] * 4, cells), codegen


# ---------------------------------------------------------------------------------------------- using a tile's cells


def _rows_in_cell(cells: Any, p: int, cell: int, features: Any) -> np.uint64:
    return np.uint64(sum(1 << int(i) for i in np.flatnonzero(cells[p] == cell)))


@intrinsic(twin=_rows_in_cell)
def rows_in_cell(typingctx: Any, cells: Any, p: Any, cell: Any, features: Any) -> Any:
    """Bit i is set where row i of a tile lies in `cell` of partition p; cells (t, TILE) uint8."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[3].dtype)
        rows = tile_rows(e.itemsize)
        vector = ir.VectorType(I8, rows)
        data = data_pointer(context, builder, signature.args[0], args[0])
        place = builder.gep(data, [builder.mul(args[1], e.const(rows))], source_etype=I8)
        found = builder.load(place, align=1, typ=vector)
        same = builder.icmp_unsigned("==", found, e.splat(builder.trunc(args[2], I8), vector))
        mask = builder.bitcast(same, ir.IntType(rows))
        return mask if rows == 64 else builder.zext(mask, I64)

    return types.uint64(cells, types.int64, types.int64, features), codegen


def _transpose16(cells: Any, p: int, i: int, out: Any, row: int, features: Any) -> int:
    out[row : row + 16, p : p + 16] = cells[p : p + 16, i : i + 16].T
    return 16


@intrinsic(twin=_transpose16)
def transpose16(typingctx: Any, cells: Any, p: Any, i: Any, out: Any, row: Any, features: Any) -> Any:
    """cells[p : p + 16, i:] of a tile -> out[row:, p : p + 16], uint8, both C-contiguous; TILE is at least 16.

    Returns how many rows were written: 16 to a 128-bit lane.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[5].dtype)
        rows = tile_rows(e.itemsize)
        lanes = min(rows, VECTOR_BYTES) // 16
        if lanes == 0:  # the caller does not come here with tiles of fewer than 16 rows
            return e.const(0)
        vector = ir.VectorType(I8, 16 * lanes)
        found, target = (data_pointer(context, builder, signature.args[k], args[k]) for k in (0, 3))
        first = builder.add(builder.mul(args[1], e.const(rows)), args[2])
        stride = builder.extract_value(context.make_array(signature.args[3])(context, builder, args[3]).shape, 1)
        to = builder.add(builder.mul(args[4], stride), args[1])
        starts = [builder.add(first, e.const(i * rows)) for i in range(16)]
        v = [builder.load(builder.gep(found, [at], source_etype=I8), align=1, typ=vector) for at in starts]
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
                place = builder.add(to, builder.mul(stride, e.const(16 * lane + i)))
                part = value if lanes == 1 else e.shuffle(value, value, list(range(16 * lane, 16 * lane + 16)))
                builder.store(part, builder.gep(target, [place], source_etype=I8), align=1)
        return e.const(16 * lanes)

    return types.int64(cells, types.int64, types.int64, out, types.int64, features), codegen
