"""Kernels of the network's forward; see network.py.

Everything a network does to a request is one primitive: add some rows of a matrix, each times a number, to a vector.
The first layer adds one row of weights per cell of a forgotten row (or per non-empty cell when many rows leave), a
later layer one row per active unit. Weights lie in one flat float32 buffer `net`, because each array argument of a
compiled function costs a tenth of a microsecond:

    sizes (HEADER) | base (h1) | W1 of mu_f (t psi, h1) | W2 (h1, h2) | b2 | W3 (h2, p) | b3

with sizes = t, psi, h1, h2, p, t psi, bits per cell, p before it was padded; as floats.

What a row costs is reading its weights. With cells of two bits (psi = 4) the sums for all pairs of cells of two
neighbouring partitions are kept too, and half as many rows have to be read: `twos` (16 t / 2, 2 h1) has W1 of mu_f and
of mu_D side by side, or is empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.simd.rowsum import sum_rows
from l2ul_kernels.voronoi.pack import unpack_row

HEADER = 16
CONTRACT = ("contract",)
U = np.uint64


@kernel(fastmath=CONTRACT)
def add_rows(net: Any, at: int, width: int, places: Any, values: Any, m: int, out: Any) -> None:
    """out[j] += sum over k < m of values[k] * net[at + places[k] * width + j], for j < width.

    Eight rows per sweep, so that `out` is read and written once for them. Unsigned indices need no wrap-around test,
    which would keep the loop from being vectorised.
    """
    a, s, k = U(at), U(width), 0
    while k + 8 <= m:
        r0, r1, r2 = a + U(places[k]) * s, a + U(places[k + 1]) * s, a + U(places[k + 2]) * s
        r3, r4, r5 = a + U(places[k + 3]) * s, a + U(places[k + 4]) * s, a + U(places[k + 5]) * s
        r6, r7 = a + U(places[k + 6]) * s, a + U(places[k + 7]) * s
        v0, v1, v2, v3 = values[k], values[k + 1], values[k + 2], values[k + 3]
        v4, v5, v6, v7 = values[k + 4], values[k + 5], values[k + 6], values[k + 7]
        for j in range(s):
            left = (v0 * net[r0 + j] + v1 * net[r1 + j]) + (v2 * net[r2 + j] + v3 * net[r3 + j])
            right = (v4 * net[r4 + j] + v5 * net[r5 + j]) + (v6 * net[r6 + j] + v7 * net[r7 + j])
            out[j] += left + right
        k += 8
    while k < m:
        row, value = a + U(places[k]) * s, values[k]
        for j in range(s):
            out[j] += value * net[row + j]
        k += 1


@kernel()
def _copy(net: Any, at: int, n: int, out: Any) -> None:
    for j in range(U(n)):
        out[j] = net[U(at) + j]


@kernel()
def _active(values: Any, n: int, places: Any, kept: Any) -> int:
    """The positive ones of values[:n] and where they are: what is left after a ReLU."""
    m = 0
    for j in range(n):
        places[m] = j
        kept[m] = values[j]
        m += values[j] > 0
    return m


@kernel()
def _fits(packed: Any, ids: Any, bits: int, net: Any, theta: Any) -> bool:
    """Whether ids (r,), r >= 1, are rows of the contiguous store packed, with rows and theta of the network's sizes."""
    if packed.ndim != 2 or ids.ndim != 1 or theta.ndim != 1:
        return False
    n, width = packed.shape
    inside = len(ids) > 0 and len(theta) == net[7] and width == (np.int64(net[0]) * bits + 7) // 8
    for i in range(len(ids)):
        inside &= (ids[i] >= 0) & (ids[i] < n)
    inside &= packed.strides[0] == width and packed.strides[1] == 1 and theta.strides[0] == theta.itemsize
    at, store, numbers = theta.ctypes.data, packed.ctypes.data, ids.ctypes.data
    end = at + len(theta) * theta.itemsize  # answers are written: not over what is read
    return inside and (end <= store or store + n * width <= at) and (end <= numbers or numbers + 8 * len(ids) <= at)


@kernel()
def _cells_of(packed: Any, ids: Any, bits: int, t: int, psi: int, places: Any, values: Any) -> int:
    """Which rows of the first layer's weights a request adds (places), each once (values); returns how many.

    -1 if a cell is not below psi.
    """
    r, most = len(ids), 0
    for i in range(r):
        own = places[i * t : (i + 1) * t]
        unpack_row(packed, ids[i], bits, own)
        for q in range(t):
            most = max(most, own[q])
            own[q] += q * psi
    if most >= psi:
        return -1
    for k in range(r * t):
        values[k] = 1
    return r * t


@kernel()
def _twos_of(packed: Any, ids: Any, t: int, psi: int, places: Any, values: Any) -> int:
    """The same for `twos`: half a byte is the number of two cells."""
    groups = (t + 1) // 2
    threes: Any = 0
    if psi == 3:
        for i in range(len(ids)):
            for b in range(packed.shape[1]):
                byte = np.int64(packed[ids[i], b])
                threes |= byte & (byte >> 1) & 0x55
    if threes:
        return -1
    for i in range(len(ids)):
        row, at = ids[i], i * groups
        for g in range(groups):
            places[at + g] = 16 * g + (np.int64(packed[row, g >> 1]) >> (4 * (g & 1)) & 15)
            values[at + g] = 1
    return len(ids) * groups


@kernel()
def _filled_cells(counts: Any, places: Any, values: Any) -> int:
    """The same for counted rows: places of the cells that are not empty, how many rows each has."""
    m = 0
    for k in range(len(counts)):
        places[m] = k
        values[m] = counts[k]
        m += counts[k] > 0
    return m


@kernel(fastmath=CONTRACT)
def _finish(net: Any, hidden: Any, places: Any, values: Any, room: Any, out: Any) -> None:
    """From the first layer's sums `hidden` (h1) to the output: ReLU, W2, ReLU, W3. room (h2 + p,) is scratch."""
    h1, h2, wide = np.int64(net[2]), np.int64(net[3]), np.int64(net[4])
    second, third = room[:h2], room[h2 : h2 + wide]
    w2 = HEADER + h1 * np.int64(1 + net[5])
    w3 = w2 + (h1 + 1) * h2
    _copy(net, w2 + h1 * h2, h2, second)
    sum_rows(net, w2, h2, h2, places, values, _active(hidden, h1, places, values), second)
    _copy(net, w3 + h2 * wide, wide, third)
    sum_rows(net, w3, wide, wide, places, values, _active(second, h2, places, values), third)
    for j in range(len(out)):
        out[j] = third[j]


@kernel(fastmath=CONTRACT)
def _first_layer(net: Any, places: Any, values: Any, m: int, r: int, sums: Any) -> None:
    """sums (h1, zeros) = base + the mean over r rows of their cells' weights."""
    h1 = np.int64(net[2])
    sum_rows(net, HEADER + h1, h1, h1, places, values, m, sums)
    _add_base(net, r, sums)


@kernel(fastmath=CONTRACT)
def _add_base(net: Any, r: int, sums: Any) -> None:
    """sums (h1) = base + sums / r."""
    h1 = np.int64(net[2])
    each = np.float32(1) / np.float32(r)
    for j in range(U(h1)):
        sums[j] = net[U(HEADER) + j] + each * sums[j]


@kernel(fastmath=CONTRACT)
def direct_forward(packed: Any, ids: Any, bits: int, net: Any, twos: Any, out: Any) -> bool:
    """theta' (p,) of the direct head for a few stored rows `ids` (r,) int64; False if they are not what it is for."""
    if not _fits(packed, ids, bits, net, out):
        return False
    t, psi, h1 = np.int64(net[0]), np.int64(net[1]), np.int64(net[2])
    most = max(len(ids) * t, h1)
    places, values, sums = np.empty(most, np.int64), np.empty(most, np.float32), np.zeros(h1, np.float32)
    if bits == 2 and len(twos):
        m = _twos_of(packed, ids, t, psi, places, values)
        if m < 0:
            return False
        sum_rows(twos, 0, h1, 2 * h1, places, values, m, sums)
        _add_base(net, len(ids), sums)
    else:
        m = _cells_of(packed, ids, bits, t, psi, places, values)
        if m < 0:
            return False
        _first_layer(net, places, values, m, len(ids), sums)
    _finish(net, sums, places, values, np.empty(np.int64(net[3] + net[4]), np.float32), out)
    return True


@kernel(fastmath=CONTRACT)
def counts_forward(counts: Any, r: int, net: Any, out: Any) -> None:
    """The same from counts, 1-d int64 (t psi), of r >= 1 rows."""
    h1, cells = np.int64(net[2]), np.int64(net[5])
    most: Any = max(cells, h1)
    places, values, sums = np.empty(most, np.int64), np.empty(most, np.float32), np.zeros(h1, np.float32)
    _first_layer(net, places, values, _filled_cells(counts, places, values), r, sums)
    _finish(net, sums, places, values, np.empty(np.int64(net[3] + net[4]), np.float32), out)


@kernel(fastmath=CONTRACT)
def _set_base(memory: Any, total: Any, n: int, theta: Any, net: Any, places: Any, values: Any, sums: Any) -> None:
    """direct_base with scratch: places, values (p or more), sums (h1)."""
    h1, cells, p = U(net[2]), U(net[5]), len(theta)
    for k in range(p):
        places[k] = k
        values[k] = theta[k]
    b1, each = (cells + U(p)) * h1, 1.0 / n
    for j in range(h1):
        sums[j] = total[j] * each + memory[b1 + j]
    sum_rows(memory, np.int64(cells * h1), np.int64(h1), np.int64(h1), places, values, p, sums)
    for j in range(h1):
        net[U(HEADER) + j] = sums[j]


@kernel(fastmath=CONTRACT)
def direct_base(memory: Any, total: Any, n: int, theta: Any, net: Any) -> None:
    """net's base = total / n + W1_theta theta + b1, with memory = W1 of mu_D | W1 of theta | b1, flat.

    total (h1) float64 = W1 of mu_D times D's counts.
    """
    h1, p = np.int64(net[2]), len(theta)
    values, sums = np.empty(p, np.float32), np.empty(h1, np.float32)
    _set_base(memory, total, n, theta, net, np.empty(p, np.int64), values, sums)


@kernel(fastmath=CONTRACT)
def direct_forget(packed: Any, ids: Any, bits: int, memory: Any, total: Any, n_left: int, theta: Any, net: Any) -> bool:
    """Take a few rows `ids` out of mu_D (n_left rows stay), set the new theta: `total` and net's base follow."""
    if not _fits(packed, ids, bits, net, theta):
        return False
    t, psi, h1 = np.int64(net[0]), np.int64(net[1]), np.int64(net[2])
    most = len(ids) * t
    places, values, gone = np.empty(most, np.int64), np.empty(most, np.float64), np.zeros(h1, np.float64)
    m = _cells_of(packed, ids, bits, t, psi, places, values)
    if m < 0:
        return False
    add_rows(memory, 0, h1, places, values, m, gone)
    for j in range(h1):
        total[j] -= gone[j]
    direct_base(memory, total, n_left, theta, net)
    return True


@kernel(fastmath=CONTRACT)
def direct_move(packed: Any, ids: Any, memory: Any, total: Any, n_left: int, net: Any, twos: Any, out: Any) -> bool:
    """direct_forward, then direct_forget with its answer, as one call: cells are looked up once.

    The few weights that leave are summed in float32, then taken from `total` in float64.
    """
    if not _fits(packed, ids, np.int64(net[6]), net, out):
        return False
    t, psi, h1, bits = np.int64(net[0]), np.int64(net[1]), np.int64(net[2]), np.int64(net[6])
    most: Any = max(len(ids) * t, h1, len(out))
    places, values, both = np.empty(most, np.int64), np.empty(most, np.float32), np.zeros(2 * h1, np.float32)
    sums, gone = both[:h1], both[h1:]
    if bits == 2 and len(twos):
        m = _twos_of(packed, ids, t, psi, places, values)
        if m < 0:
            return False
        sum_rows(twos, 0, 2 * h1, 2 * h1, places, values, m, both)
        _add_base(net, len(ids), sums)
    else:
        m = _cells_of(packed, ids, bits, t, psi, places, values)
        if m < 0:
            return False
        sum_rows(memory, 0, h1, h1, places, values, m, gone)
        _first_layer(net, places, values, m, len(ids), sums)
    _finish(net, sums, places, values, np.empty(np.int64(net[3] + net[4]), np.float32), out)
    for j in range(h1):
        total[j] -= gone[j]
    _set_base(memory, total, n_left, out, net, places, values, sums)
    return True


@kernel(fastmath=CONTRACT)
def direct_total(counts: Any, sign: int, memory: Any, total: Any, net: Any) -> None:
    """total += sign * W1 of mu_D times counts, 1-d int64 (t psi)."""
    h1 = np.int64(net[2])
    places, values, sums = np.empty(len(counts), np.int64), np.empty(len(counts), np.float64), np.zeros(h1, np.float64)
    add_rows(memory, 0, h1, places, values, _filled_cells(counts, places, values), sums)
    for j in range(h1):
        total[j] += sign * sums[j]
