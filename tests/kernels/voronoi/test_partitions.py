"""Drawing seeds, and refusing the ones that cannot work."""

import numpy as np
import pytest

import l2ul_kernels as lk
from l2ul_kernels.voronoi.partitions import group_columns


def test_seeds_are_rows_and_differ_inside_a_partition():
    X = np.random.default_rng(0).random((50, 3)).astype(np.float32)
    partitions = lk.Partitions.sample(X, n_partitions=40, n_seeds=50, random_state=7)
    assert partitions.seeds.shape == (40, 50, 3)
    assert partitions.seeds.dtype == np.float32
    np.testing.assert_array_equal(partitions.seeds, X[partitions.row_ids])
    assert all(len(set(ids)) == 50 for ids in partitions.row_ids)
    assert len({tuple(ids) for ids in partitions.row_ids}) == 40
    assert not partitions.seeds.flags.writeable


def test_same_seed_same_partitions():
    X = np.random.default_rng(0).random((50, 3))
    for state in (3, np.random.default_rng(3), np.random.RandomState(3)):
        again = {int: 3, np.random.Generator: np.random.default_rng(3)}.get(type(state), np.random.RandomState(3))
        first, second = (lk.Partitions.sample(X, 5, 4, s).row_ids for s in (state, again))
        np.testing.assert_array_equal(first, second)
    assert (lk.Partitions.sample(X, 5, 4, 3).row_ids != lk.Partitions.sample(X, 5, 4, 4).row_ids).any()
    np.testing.assert_array_equal(lk.sample_row_ids(50, 5, 4, 3), lk.Partitions.sample(X, 5, 4, 3).row_ids)


def test_columns_are_never_padded():
    for m in range(1, 500):
        threes, twos, ones = group_columns(m)
        assert 3 * threes + 2 * twos + ones == m
        assert min(threes, twos, ones) >= 0
        assert twos <= 2
        assert ones == (m == 1)


def test_bad_seeds_are_one_clear_sentence():
    good = np.zeros((2, 3, 4))
    nan = good.copy()
    nan[1, 2, 0] = np.nan
    cases = [
        (ValueError, r"\(t, psi, d\)", lambda: lk.Partitions.from_seeds(good[0])),
        (ValueError, "empty", lambda: lk.Partitions.from_seeds(good[:0])),
        (ValueError, "empty", lambda: lk.Partitions.from_seeds(good[:, :, :0])),
        (ValueError, "2 to 4096", lambda: lk.Partitions.from_seeds(good[:, :1])),
        (ValueError, "2 to 4096", lambda: lk.Partitions.from_seeds(np.zeros((1, 4097, 1)))),
        (ValueError, "seed 2 of partition 1", lambda: lk.Partitions.from_seeds(nan)),
        (ValueError, "go together", lambda: lk.Partitions.from_seeds(good, mean=np.zeros(4))),
        (ValueError, "above 0", lambda: lk.Partitions.from_seeds(good, mean=np.zeros(4), scale=np.zeros(4))),
        (ValueError, "row_ids", lambda: lk.Partitions.from_seeds(good, np.zeros((2, 2), int))),
        (ValueError, "5 seeds cannot be drawn from 4 rows", lambda: lk.Partitions.sample(np.zeros((4, 2)), 1, 5)),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()
