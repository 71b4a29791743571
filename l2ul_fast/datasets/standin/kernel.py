"""The stand-in generator's kernel: rows from (seed, row number) and a fitted model, in any order, on any thread."""

from typing import NamedTuple

import numpy as np

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.splitmix import GOLDEN, mix

KNOTS = 81  # of each column map: on [-5, 5] in steps of 1/8; of 11 million rows about 3 lie beyond either end
Z_MAX = 5.0
Z_STEPS = 8  # knots per unit of z
_BLOCK = 4096  # rows one thread takes at a time and sorts by cell
_TILE = 256  # rows computed together; with _BLOCK the fastest of 64..256 x 1024..4096 on HIGGS

_f = np.float32  # float32 constants keep numba from widening the arithmetic to float64
# Polynomials of Cephes' logf, sinf and cosf, highest power first.
_LOG_POLY = tuple(
    map(_f, (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1))
) + tuple(map(_f, (-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)))
_SIN_POLY = tuple(map(_f, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)))
_COS_POLY = tuple(map(_f, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)))
_LN2, _ZERO, _HALF, _ONE, _TWO = _f(np.log(2)), _f(0), _f(0.5), _f(1), _f(2)
_TO_ANGLE, _TO_UNIT = _f(np.pi / 2 * 2.0**-24), _f(2.0**-24)  # 24 random bits to an angle, to a uniform
_Z_END, _Z_SCALE, _LAST = _f(Z_MAX), _f(Z_STEPS), _f(KNOTS - 2)


class Model(NamedTuple):
    """Parameters in the layout of the kernel; g = continuous columns, s = categorical columns or one-hot groups."""

    d: int
    starts: np.ndarray  # (cells,) float64: cell c is picked for a uniform in [starts[c], starts[c + 1])
    guide: np.ndarray  # (1024,) int64: the cell of i / 1024, where the search for larger uniforms begins
    class_1: float  # where class 1 begins on that scale
    columns: np.ndarray  # (g,) int64: where the continuous columns are
    mean: np.ndarray  # (cells, g) float32
    factor: np.ndarray  # (cells, g, g + 3) float32: Cholesky factors, padded with zeros
    value: np.ndarray  # (2, g, KNOTS - 1) float32: the map at the knots
    slope: np.ndarray  # (2, g, KNOTS - 1) float32: its rise to the next knot
    integer: np.ndarray  # (g,) bool: round to whole numbers
    cat_column: np.ndarray  # (s,) int64: first column of the group
    cat_size: np.ndarray  # (s,) int64: its number of levels
    cat_onehot: np.ndarray  # (s,) bool
    cat_levels: np.ndarray  # (s, levels) float32: what a code column holds at each level
    cat_ends: np.ndarray  # (cells, s, levels) float32: upper end of each level's interval, the last one 2
    pool: np.ndarray  # (2, 2) float64: scale and power of the shared keys of each class; scale 0: no shared keys


@kernel()
def _bits(low, high, lane):  # type: ignore[no-untyped-def]
    """32 random bits for one lane of the row with the key (low, high); 32-bit arithmetic so that it vectorises."""
    x = np.uint32(low + np.uint32(lane) * np.uint32(0x9E3779B9))
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    x = np.uint32((x ^ (x >> np.uint32(15))) + high)
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x735A2D97))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x85EBCA6B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@kernel()
def _neg_log(u):  # type: ignore[no-untyped-def]
    """-ln(u) for float32 u in (0, 1], without a library call."""
    i = np.float32(u).view(np.int32)
    e = np.int32((i - np.int32(0x3F3504F3)) >> np.int32(23))
    x = np.int32(i - np.int32(e << np.int32(23))).view(np.float32) - _ONE
    y = _LOG_POLY[0]
    for c in _LOG_POLY[1:]:
        y = y * x + c
    square = x * x
    return -(x + (y * x * square - _HALF * square) + np.float32(e) * _LN2)


@kernel()
def _uniform_bits(low, high, width, bits):  # type: ignore[no-untyped-def]
    """bits[lane, r] for the first `width` rows r of the tile."""
    for lane in range(bits.shape[0]):
        for r in range(width):
            bits[lane, r] = _bits(low[r], high[r], lane)


@kernel()
def _normals(bits_a, bits_b, width, out_a, out_b):  # type: ignore[no-untyped-def]
    """Box-Muller: two rows of bits become two rows of normals."""
    for r in range(width):
        u = np.float32(np.int32(bits_a[r] >> np.uint32(8))) * _TO_UNIT + _TO_UNIT  # in (0, 1]
        radius = np.sqrt(_TWO * _neg_log(u))
        b = bits_b[r]
        # An angle in [-pi/4, pi/4); two more bits mirror it into the other three quadrants.
        x = np.float32(np.int32(b >> np.uint32(8)) - np.int32(1 << 23)) * _TO_ANGLE
        z = x * x
        s = ((_SIN_POLY[0] * z + _SIN_POLY[1]) * z + _SIN_POLY[2]) * z * x + x
        c = ((_COS_POLY[0] * z + _COS_POLY[1]) * z + _COS_POLY[2]) * z * z - _HALF * z + _ONE
        c = -c if b & np.uint32(1) else c
        swap = (b & np.uint32(2)) != 0
        out_a[r] = radius * (s if swap else c)
        out_b[r] = radius * (c if swap else s)


@kernel()
def _pick(seed, row, starts, guide, class_1, pool):  # type: ignore[no-untyped-def]
    """Cell and 64-bit key of one row."""
    key = mix(seed + np.uint64(row) * GOLDEN)
    u = np.float64(np.int64(mix(key) >> np.uint64(11))) * 2.0**-53
    c = 1 if u >= class_1 else 0
    if pool[c, 0] > 0:
        # Rows of a class draw their key from a pool whose members are wanted ever less often (a shifted Pareto law).
        v = np.float64(np.int64(key >> np.uint64(11)) + 1) * 2.0**-53
        power = v
        for _ in range(1, int(pool[c, 1])):
            power *= v
        member = np.uint64(min(pool[c, 0] * (1.0 / power - 1.0), 2.0**60))
        key = mix(seed ^ mix(member * np.uint64(2) + np.uint64(c) + np.uint64(1)))
        u = np.float64(np.int64(mix(key) >> np.uint64(11))) * 2.0**-53
        u = class_1 + u * (1.0 - class_1) if c else u * class_1
    cell = guide[min(int(u * guide.size), guide.size - 1)]
    while cell + 1 < starts.size and u >= starts[cell + 1]:
        cell += 1
    return cell, key


@kernel()
def _add_four(f, k, i, eps, width, z):  # type: ignore[no-untyped-def]
    """z += the terms i..i + 3 of row k of f @ eps: four at a time means fewer trips through z."""
    f0, f1, f2, f3 = f[k, i], f[k, i + 1], f[k, i + 2], f[k, i + 3]
    e0, e1, e2, e3 = eps[i], eps[i + 1], eps[i + 2], eps[i + 3]
    for r in range(width):
        z[r] += (f0 * e0[r] + f1 * e1[r]) + (f2 * e2[r] + f3 * e3[r])


@kernel()
def _map_column(z, width, value, slope, integer, knot, x):  # type: ignore[no-untyped-def]
    """x = the column's map at z: linear between knots, constant beyond. Loops apart, so that most vectorise."""
    for r in range(width):
        z[r] = (min(max(z[r], -_Z_END), _Z_END) + _Z_END) * _Z_SCALE
        knot[r] = np.int32(min(z[r], _LAST))
    for r in range(width):
        z[r] -= np.float32(knot[r])
    for r in range(width):
        i = np.uint32(knot[r])
        x[r] = value[i] + z[r] * slope[i]
    if integer:
        for r in range(width):
            x[r] = np.floor(x[r] + _HALF)


@kernel()
def _continuous(eps, width, cell, m, z, knot, x):  # type: ignore[no-untyped-def]
    """x[column] = map(mean + factor @ eps) for the continuous columns of a tile of one cell."""
    c = 1 if 2 * cell >= m.starts.size else 0
    factor = m.factor[cell]
    for k in range(m.columns.size):
        z[:width] = m.mean[cell, k]
        for i in range(0, k + 1, 4):  # beyond k the factor is padded with zeros
            _add_four(factor, k, i, eps, width, z)
        _map_column(z, width, m.value[c, k], m.slope[c, k], m.integer[k], knot, x[m.columns[k]])


@kernel()
def _categorical(bits, first, width, cell, m, level, x):  # type: ignore[no-untyped-def]
    """Categorical columns and one-hot groups of a tile of one cell, from bits[first:]."""
    for g in range(m.cat_column.size):
        for r in range(width):
            level[r] = 0
        for k in range(m.cat_ends.shape[2] - 1):
            end = m.cat_ends[cell, g, k]
            for r in range(width):
                level[r] += np.float32(np.int32(bits[first + g, r] >> np.uint32(8))) * _TO_UNIT >= end
        j = m.cat_column[g]
        if m.cat_onehot[g]:
            for k in range(m.cat_size[g]):
                for r in range(width):
                    x[j + k, r] = _ONE if level[r] == k else _ZERO
        else:
            for r in range(width):
                x[j, r] = m.cat_levels[g, level[r]]


@kernel()
def _sort_by_cell(seed, first, m, cells, keys, order, ends, y):  # type: ignore[no-untyped-def]
    """Pick cells and keys of the rows first, first + 1, .. and their labels y; order[ends[c]:ends[c + 1]] are the rows
    of cell c, from 0."""
    ends[:] = 0
    starts, guide, class_1, pool = m.starts, m.guide, m.class_1, m.pool  # once: each access counts references
    for r in range(y.size):
        cells[r], keys[r] = _pick(seed, first + r, starts, guide, class_1, pool)
        ends[cells[r] + 2] += 1
        y[r] = 2 * cells[r] >= starts.size
    for c in range(2, ends.size):
        ends[c] += ends[c - 1]
    for r in range(y.size):
        order[ends[cells[r] + 1]] = r
        ends[cells[r] + 1] += 1


@kernel()
def _fill_block(first, seed, m, X, y, low, high):  # type: ignore[no-untyped-def]
    """Rows low..high of X and y, at most _BLOCK. Rows of one cell go together: SIMD lanes are rows."""
    d = X.shape[1]
    pairs = (m.columns.size + 1) // 2
    cells, order = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    keys = np.empty(_BLOCK, np.uint64)
    ends = np.empty(m.starts.size + 2, np.int64)
    key_low, key_high = np.zeros(_TILE, np.uint32), np.zeros(_TILE, np.uint32)
    level = np.empty(_TILE, np.int32)
    bits = np.empty((2 * pairs + m.cat_column.size, _TILE), np.uint32)
    eps = np.zeros((2 * pairs + 3, _TILE), np.float32)
    z, x = np.empty(_TILE, np.float32), np.empty((d, _TILE), np.float32)
    _sort_by_cell(seed, first + low, m, cells, keys, order, ends, y[low:high])
    for cell in range(m.starts.size):
        for start in range(ends[cell], ends[cell + 1], _TILE):
            size = min(_TILE, ends[cell + 1] - start)
            width = (size + 15) // 16 * 16  # whole vectors; the surplus rows are computed and dropped
            for r in range(size):
                key_low[r] = keys[order[start + r]] & np.uint64(0xFFFFFFFF)
                key_high[r] = keys[order[start + r]] >> np.uint64(32)
            _uniform_bits(key_low, key_high, width, bits)
            for i in range(pairs):
                _normals(bits[2 * i], bits[2 * i + 1], width, eps[2 * i], eps[2 * i + 1])
            _continuous(eps, width, cell, m, z, level, x)
            _categorical(bits, 2 * pairs, width, cell, m, level, x)
            for r in range(size):
                row = low + order[start + r]
                for j in range(d):
                    X[row, j] = x[j, r]


@kernel()
def fill_rows(first, seed, m, X, y):  # type: ignore[no-untyped-def]
    """Rows first, first + 1, ... into X (n, d) and y (n,), by the calling thread alone: any number of them may."""
    n = X.shape[0]
    for block in range((n + _BLOCK - 1) // _BLOCK):
        _fill_block(first, seed, m, X, y, block * _BLOCK, min(n, (block + 1) * _BLOCK))
