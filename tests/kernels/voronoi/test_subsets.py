"""Counts of chosen rows of a store against the oracle, and what is refused before anything is written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2ul_kernels import count_rows, count_sets, pack_cells, reference, threads
from l2ul_kernels.threads import thread_limit
from l2ul_kernels.voronoi.subsets import BLOCK, count_few


def store(rng, n, t, psi):
    cells = rng.integers(0, psi, (n, t)).astype(np.uint8 if psi <= 256 else np.uint16)
    return cells, pack_cells(cells, psi), rng.integers(0, 3, n).astype(np.uint8)


shapes = st.tuples(st.integers(1, 40), st.sampled_from([2, 3, 4, 5, 16, 70, 300]))
sizes = st.sampled_from([1, 2, 14, 15, 16, BLOCK, BLOCK + 1, 700])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), shapes, sizes)
def test_counts_of_stored_rows_agree_with_the_oracle(seed, shape, r):
    t, psi = shape
    rng = np.random.default_rng(seed)
    cells, packed, y = store(rng, 800, t, psi)
    ids = rng.choice(800, r, replace=False)
    expected = reference.cell_counts(cells[ids], psi)
    np.testing.assert_array_equal(count_rows(packed, ids, t, psi), expected)
    np.testing.assert_array_equal(count_rows(cells, ids, t, psi, bits=8 * cells.itemsize), expected)
    np.testing.assert_array_equal(count_few(packed, ids, t, psi, int(psi - 1).bit_length()), expected)
    by_class = reference.class_counts(cells[ids], y[ids], psi, 3)
    np.testing.assert_array_equal(count_rows(packed, ids, t, psi, y, 3), by_class)


def test_the_last_row_of_the_store_and_rows_in_one_cell():
    for t in (1, 4, 7, 31, 32, 33, 65, 100):
        cells = np.full((300, t), 3, np.uint8)
        packed = pack_cells(cells, 4)
        packed.setflags(write=False)
        counts = count_rows(packed, np.arange(300), t, 4)
        assert (counts == [0, 0, 0, 300]).all()
        assert (count_rows(packed, [299], t, 4) == [0, 0, 0, 1]).all()
    assert not count_rows(packed, np.zeros(0, np.int64), 100, 4).any()


def test_many_sets_are_the_same_for_any_number_of_threads():
    rng = np.random.default_rng(0)
    cells, packed, y = store(rng, 500, 30, 4)
    ids = rng.integers(0, 500, 8_000)
    edges = np.sort(rng.integers(0, 8_000, (20, 2)), axis=1)
    found = []
    for k in {1, thread_limit()}:
        with threads(k):
            found.append(count_sets(packed, ids, edges, 30, 4, y, 3))
    np.testing.assert_array_equal(found[0], found[-1])
    for k in (0, 7, 19):
        mine = ids[edges[k, 0] : edges[k, 1]]
        np.testing.assert_array_equal(found[0][k], reference.class_counts(cells[mine], y[mine], 4, 3))


@pytest.mark.parametrize(
    ("cells", "t", "psi", "bits"),
    [
        (np.full((200, 2), 65535, np.uint16), 2, 257, 16),
        (np.full((1000, 4), 255, np.uint8), 4, 4, 8),
        (np.full((300, 3), 7, np.uint8), 3, 5, 8),
        (np.full((300, 1), 0b11, np.uint8), 1, 3, 2),
        (np.full((300, 1), 0b10, np.uint8), 1, 2, 2),
        (np.full((300, 3), 255, np.uint8), 2, 2049, None),
    ],
)
def test_stored_cells_beyond_psi_are_refused_and_written_nowhere(cells, t, psi, bits):
    """Each once wrote outside the counts, or into another partition's."""
    for ids in (np.arange(len(cells)), np.array([5]), np.repeat(np.arange(len(cells)), 700)):
        with pytest.raises(ValueError, match=rf"stored cells must lie in 0..{psi - 1}"):
            count_rows(cells, ids, t, psi, bits=bits)
    assert not count_rows(cells, [], t, psi, bits=bits).any()


def test_bad_input_is_one_sentence():
    rng = np.random.default_rng(0)
    _, packed, y = store(rng, 100, 10, 4)
    ids, one = np.arange(10), np.array([[0, 1]])
    cases = [
        (ValueError, "0..99, found 1..100", lambda: count_rows(packed, [1, 100], 10, 4)),
        (ValueError, "found 0..0", lambda: count_rows(packed[:0], [0], 10, 4)),
        (ValueError, r"\(n, 3\)", lambda: count_rows(packed[:, :2], [1], 10, 4)),
        (ValueError, r"\(n, 3\)", lambda: count_rows(packed[0], [1], 10, 4)),
        (ValueError, "go together", lambda: count_rows(packed, [1], 10, 4, y)),
        (ValueError, "go together", lambda: count_rows(packed, [1], 10, 4, None, 3)),
        (ValueError, "to match the store", lambda: count_rows(packed, [1], 10, 4, y[1:], 3)),
        (ValueError, "labels must lie in 0..1", lambda: count_rows(packed, ids, 10, 4, y, 2)),
        (ValueError, "labels must lie in 0..0", lambda: count_rows(packed, ids, 10, 4, y + 5, 1)),
        (ValueError, "within the 10 ids", lambda: count_sets(packed, ids, one[:, ::-1], 10, 4)),
        (ValueError, r"\(m, 2\)", lambda: count_sets(packed, ids, one.T, 10, 4)),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()
