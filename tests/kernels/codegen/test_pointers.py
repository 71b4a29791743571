"""Intrinsics compiled, or their Python twins when compilation is off: both do what their names say."""

import numba
import numpy as np

from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.pointers import address, call_at, count_bits, entry_point, fetch_add, load_word, prefetch
from l2ul_kernels.codegen.twins import memory


@kernel()
def _use(rows, counter, at):
    prefetch(at)
    before = fetch_add(counter, 5), fetch_add(at, -2)
    return before, count_bits(np.uint64(0xF0F)), load_word(rows, 1, 2)


@kernel()
def _scaled(values, k, by):
    return values[k] * by


@kernel()
def _fill(values, k):
    values[k:] = 7.0


@kernel()
def _call(scaled, fill, values, k):
    call_at(fill, None, (values, k + 1))
    return call_at(scaled, 0.0, (values, k, 10.0))


def test_counters_bits_and_words():
    rows, counter = np.arange(24, dtype=np.uint8).reshape(2, 12), np.array([1, 1], np.int64)
    before, bits, word = _use(rows, counter, address(counter))
    assert before == (1, 6)
    assert counter.tolist() == [4, 1]
    assert bits == 8
    assert int(word) == int.from_bytes(rows[1, 2:10].tobytes(), "little")


def test_kernels_are_called_by_their_entry_points():
    values = np.arange(5.0)
    array, integer = numba.typeof(values), numba.int64
    entries = entry_point(_scaled, (array, integer, numba.float64)), entry_point(_fill, (array, integer))
    assert _call(*entries, values, 3) == 30
    assert values.tolist() == [0, 1, 2, 3, 7]


def test_memory_at_an_address_is_seen_and_written():
    X = np.arange(12.0).reshape(3, 4)
    view = memory(address(X), (3, 2), float, (32, 8))
    view[1, 1] = -1
    assert X[1, 1] == -1
    assert memory(0, (0, 2), float).shape == (0, 2)
