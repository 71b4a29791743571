"""Random orders: every one as likely as any, and the same again from the same seed."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from l2ul_kernels.sgd.shuffle import shuffle


def shuffled(values, seed, salt):
    out = np.array(values, np.int64)
    shuffle(out, seed, salt)
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), max_size=200), st.integers(0, 2**63 - 1), st.integers(0, 2**31))
@example([], 0, 0)
@example([7], 1, 1)
def test_it_is_a_permutation_and_follows_from_seed_and_salt(values, seed, salt):
    first = shuffled(values, seed, salt)
    np.testing.assert_array_equal(np.sort(first), np.sort(np.array(values, np.int64)))
    np.testing.assert_array_equal(shuffled(values, seed, salt), first)


def test_seeds_and_salts_give_other_orders():
    seen = {tuple(shuffled(np.arange(30), seed, salt)) for seed in range(40) for salt in range(40)}
    assert len(seen) == 1600


@pytest.mark.parametrize("vary", ["seed", "salt"])
def test_every_order_is_as_likely_as_any(vary):
    draws = 24_000
    seen = Counter(tuple(shuffled(np.arange(4), *((k, 3) if vary == "seed" else (3, k)))) for k in range(draws))
    assert len(seen) == 24
    chi = sum((found - draws / 24) ** 2 / (draws / 24) for found in seen.values())
    assert chi < 60  # 23 degrees of freedom: 5 in 100,000 are above


def test_a_row_lands_anywhere():
    places = np.zeros((16, 16))
    for k in range(16_000):
        order = shuffled(np.arange(16), 9, k)
        places[order, np.arange(16)] += 1
    assert np.abs(places / 1000 - 1).max() < 0.16  # 5 standard deviations
