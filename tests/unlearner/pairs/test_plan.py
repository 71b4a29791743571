"""Which rows pairs and requests consist of."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from l2ul_fast.errors import UserError
from l2ul_fast.unlearner.pairs.plan import (
    CLASS,
    CLUSTER,
    HALF_SPACE,
    RANDOM,
    _class_sizes,
    draw_forget_sets,
    draw_pairs,
    log_uniform,
    plan_pairs,
    request,
)


def data(n=600, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    return X, (X[:, 0] + 0.5 * rng.normal(size=n) > 0.5).astype(np.uint8)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(20, 300), st.booleans())
def test_pairs_have_different_rows_and_keep_both_classes(seed, m, s, robust):
    X, y = data()
    ids, r, kinds = draw_pairs(600, y, m, s, robust=robust, X=X, random_state=seed)
    assert ids.shape == (m, s)
    assert ids.dtype == np.int64
    assert r.shape == kinds.shape == (m,)
    assert r.min() >= 1
    assert r.max() <= (s // 2 if robust else max(1, s // 10))
    assert ids.min() >= 0
    assert ids.max() < 600
    for row, k in zip(ids, r, strict=True):
        assert np.unique(row).size == s
        assert set(y[row[k:]]) == {0, 1}
    again = draw_pairs(600, y, m, s, robust=robust, X=X, random_state=seed)
    for a, b in zip((ids, r, kinds), again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert m * s < 100 or not np.array_equal(ids, draw_pairs(600, y, m, s, random_state=seed + 1)[0])


def test_the_forget_part_comes_first_and_has_its_shape():
    X, y = data()
    ids, r, kinds = draw_pairs(600, y, 100, 60, robust=True, X=X, random_state=1)
    names, counts = np.unique(kinds, return_counts=True)
    assert dict(zip(names, counts, strict=True)) == {RANDOM: 40, CLASS: 20, CLUSTER: 20, HALF_SPACE: 20}
    for row, k, kind in zip(ids, r, kinds, strict=True):
        gone, kept = X[row[:k]].astype(float), X[row[k:]].astype(float)
        if kind == CLASS:
            assert np.unique(y[row[:k]]).size == 1
        if kind == CLUSTER:  # some forgotten row is the centre: no retained row is nearer to it than a forgotten one
            far = [np.linalg.norm(gone - c, axis=1).max() <= np.linalg.norm(kept - c, axis=1).min() for c in gone]
            assert any(far)
        if kind == HALF_SPACE:  # there is a direction w and a height b with w.gone >= b + 1 and w.kept <= b - 1
            sides = np.vstack([np.c_[-gone, np.ones(k)], np.c_[kept, -np.ones(60 - k)]])
            assert linprog(np.zeros(4), sides, -np.ones(60), bounds=(None, None)).status == 0
    uniform, _, _ = draw_pairs(600, y, 100, 60, random_state=1)
    assert np.mean([np.unique(y[row[:6]]).size == 1 for row in uniform]) < 0.5


def test_rows_are_drawn_evenly_in_every_place():
    y = np.arange(50) % 2
    ids, _, _ = draw_pairs(50, y, 4000, 20, random_state=0)
    for column in (0, 7, 19):
        counts = np.bincount(ids[:, column], minlength=50)
        assert ((counts - 80) ** 2 / 80).sum() < 100  # chi square with 49 degrees of freedom: 1e-5 beyond


def test_r_is_log_uniform_over_the_whole_range():
    r = log_uniform(np.random.default_rng(0), 300, 100_000)
    assert (r.min(), r.max()) == (1, 300)
    assert np.mean(r <= 17) == pytest.approx(np.log(18) / np.log(301), abs=0.01)
    assert np.mean(r == 1) == pytest.approx(np.log(2) / np.log(301), abs=0.01)


def test_a_class_too_rare_for_the_pairs_is_refused_and_a_rare_one_is_always_there():
    y = np.zeros(500, np.uint8)
    y[:12] = 1
    ids, r, _ = draw_pairs(500, y, 50, 50, random_state=0)
    assert all((y[row[k:]] == 1).any() for row, k in zip(ids, r, strict=True))
    y[1:] = 0
    with pytest.raises(UserError, match="class 1 is too rare"):
        draw_pairs(500, y, 50, 20, random_state=0)


def test_rows_may_come_from_a_function():
    X, y = data()
    seen = []

    def take(ids):
        seen.append(len(ids))
        return X[ids]

    a = draw_pairs(600, y, 20, 60, robust=True, X=take, random_state=3)[0]
    np.testing.assert_array_equal(a, draw_pairs(600, y, 20, 60, robust=True, X=X, random_state=3)[0])
    assert set(seen) == {60}


def test_forget_sets_of_all_data():
    X, y = data()
    ids, starts = draw_forget_sets(600, y, 80, X=X, random_state=5)
    r = np.diff(starts)
    assert starts[0] == 0
    assert starts[-1] == len(ids)
    assert (r.min(), r.max() <= 60) == (1, True)
    sets = [ids[a:b] for a, b in itertools.pairwise(starts)]
    assert all(np.unique(s).size == s.size for s in sets)
    assert np.mean([np.unique(y[s]).size == 1 for s in sets if len(s) > 8]) > 0.2  # a quarter is of one class
    again = draw_forget_sets(600, y, 80, X=X, random_state=5)
    np.testing.assert_array_equal(again[0], ids)


def test_no_forget_set_empties_a_class():
    X, y = data(60)
    y[:] = 0
    y[:2] = 1
    ids, starts = draw_forget_sets(60, y, 500, X=X, random_state=0)
    for a, b in itertools.pairwise(starts):
        assert np.setdiff1d(np.arange(2), ids[a:b]).size > 0
        assert np.setdiff1d(np.arange(2, 60), ids[a:b]).size > 0


def test_requests():
    X, y = data()
    rng = np.random.default_rng(0)
    for kind in (RANDOM, CLASS, CLUSTER, HALF_SPACE):
        ids = request(kind, 40, X, y, rng)
        assert ids.dtype == np.int64
        assert np.unique(ids).size == 40
    assert np.unique(y[request(CLASS, 100, X, y, rng)]).size == 1
    cluster = X[request(CLUSTER, 20, X, y, rng)]
    assert (
        np.linalg.norm(cluster - cluster.mean(axis=0), axis=1).mean()
        < np.linalg.norm(X - X.mean(axis=0), axis=1).mean()
    )
    with pytest.raises(UserError, match="one of random"):
        request("some", 3, X, y, rng)
    with pytest.raises(UserError, match="no class"):
        request(CLASS, 590, X, y, rng)
    with pytest.raises(UserError, match="cannot be drawn"):
        request(RANDOM, 600, X, y, rng)
    with pytest.raises(UserError, match="rows X"):
        request(CLUSTER, 3, None, y, rng)


def test_bad_draws_are_one_sentence():
    X, y = data()
    cases = [
        ("s=700", lambda: draw_pairs(600, y, 2, 700)),
        ("s=1 ", lambda: draw_pairs(600, y, 2, 1)),
        ("leaves nothing", lambda: draw_pairs(600, y, 2, 50, forget_max=50)),
        ("labels", lambda: draw_pairs(600, y[:-1], 2, 50)),
        ("labels", lambda: draw_pairs(600, X[:, 0], 2, 50)),
        ("shapes", lambda: draw_pairs(600, y, 2, 50, shapes={"round": 1.0})),
        ("rows X", lambda: draw_pairs(600, y, 10, 50, robust=True)),
    ]
    for text, call in cases:
        with pytest.raises(UserError, match=text):
            call()


@pytest.mark.parametrize("classes", [1, 2, 16, 17, 200])
def test_class_sizes(classes):
    y = np.random.default_rng(0).integers(0, classes, 200_000).astype(np.uint8)
    y[-1] = classes - 1
    for labels in (y, y[::-3], y.astype(np.int64)):
        np.testing.assert_array_equal(_class_sizes(labels), np.bincount(labels))
    assert _class_sizes(y[:0]).tolist() == [0]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 3))
def test_a_pair_follows_from_its_number_and_only_visible_rows_are_drawn(seed, robust, classes):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(300, 2)), rng.integers(0, classes, 300).astype(np.uint8)
    visible = np.sort(rng.choice(300, 200, replace=False))
    plan = plan_pairs(200, y[visible], 12, 40, robust=robust, random_state=seed)
    ids, n_forget, _ = draw_pairs(200, y[visible], 12, 40, robust=robust, X=X[visible], random_state=seed)
    out = np.empty(40, np.int64)
    for i in rng.permutation(12):  # in any order, of any process
        assert plan.draw(int(i), y, X, visible, out) == n_forget[i]
        np.testing.assert_array_equal(out, ids[i])
        assert set(y[visible[out[n_forget[i] :]]]) == set(y[visible])
    other = plan_pairs(200, y[visible], 12, 40, robust=robust, random_state=seed + 1)
    other.draw(0, y, X, visible, out)
    assert not np.array_equal(out, ids[0])
