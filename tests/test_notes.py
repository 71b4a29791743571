"""What an unlearner notes of requests until its log takes them over."""

import copy

import numpy as np
import pytest
from unlearners import contents, logistic_data, small

from l2ul_fast.unlearner import notes as module
from l2ul_fast.unlearner.notes import LEAST, MOST, Notes

SMALL = 50


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "MOST", SMALL)
    monkeypatch.setattr(module, "LEAST", SMALL)


@pytest.mark.usefixtures("small_blocks")
def test_notes_come_back_in_order_and_over_blocks():
    rng = np.random.default_rng(0)
    start, count = rng.normal(size=3), 2 * SMALL + 5
    notes, thetas = Notes(start), rng.normal(size=(count, 3))
    sets = [np.sort(rng.choice(1000, 1 + k % 3, replace=False)) for k in range(count)]
    for k in range(count):
        notes.add(sets[k], float(k), thetas[k], thetas[k] + 1 if k % 2 else None)
        assert len(notes) == k + 1
        np.testing.assert_array_equal(notes.theta, thetas[k])
        total = notes.block.totals[notes.used - 1]
        np.testing.assert_array_equal(total, thetas[k] + 1 if k % 2 else np.full(3, np.nan))
    found = notes.all()
    assert [note.time for note in found] == list(range(count))
    for k, note in enumerate(found):
        np.testing.assert_array_equal(note.rows, sets[k])
        np.testing.assert_array_equal(note.before, thetas[k - 1] if k else start)
        np.testing.assert_array_equal(note.after, thetas[k])


def test_blocks_of_large_models_are_smaller():
    assert Notes(np.zeros(29)).block.size == MOST
    assert Notes(np.zeros(10_000)).block.size == LEAST
    assert LEAST < Notes(np.zeros(300)).block.size < MOST


@pytest.fixture(scope="module")
def first():
    X, y = logistic_data(4000)
    return small().fit(X, y)


@pytest.mark.usefixtures("small_blocks")
def test_results_stay_as_they_were_when_blocks_change(first):
    u = copy.deepcopy(first)
    u.theta = start = u.theta.copy()  # from here on in small blocks
    block, rows = u.notes.block, np.random.default_rng(0).permutation(4000)[: 2 * SMALL + 3].tolist()
    answers = [u.unlearn([row]) for row in rows]
    assert u.notes.block is not block
    seen = [answer.theta.copy() for answer in answers]
    log = u.forget_log  # takes the notes over
    assert u.notes.used == 0
    assert [e["rows"].tolist() for e in log] == [[row] for row in rows]
    assert [e["n"] for e in log] == [4000 - 1 - k for k in range(len(rows))]
    u.unlearn(np.setdiff1d(np.arange(4000), rows)[:2])
    for row, answer, theta, e in zip(rows, answers, seen, log, strict=False):
        assert answer.rows.tolist() == [row]
        assert answer.n == e["n"]
        np.testing.assert_array_equal(answer.theta, theta)
        assert answer.trust.distance > 0
    assert len({theta.tobytes() for theta in (start, *seen)}) == len(rows) + 1
    assert len(u.forget_log) == len(rows) + 1


def test_a_copy_has_rows_and_parameters_of_its_own(first):
    u = copy.deepcopy(first)
    u.unlearn([5])  # addresses are known now
    v = copy.deepcopy(u)
    theta, counts = u.theta.copy(), u.cells.counts.copy()
    v.unlearn([6])
    np.testing.assert_array_equal(u.theta, theta)
    np.testing.assert_array_equal(u.cells.counts, counts)
    assert u.store.X[6].any()
    assert u.gone[6] == 0
    assert not v.store.X[6].any()
    assert (u.n, v.n) == (3999, 3998)
    u.unlearn([6])
    np.testing.assert_array_equal(u.theta, v.theta)


def test_a_theta_that_is_set_keeps_the_log(first):
    u = copy.deepcopy(first)
    u.unlearn([5])
    u.theta = np.zeros_like(u.theta)
    assert not u.theta.any()
    u.unlearn([7])
    assert [e["rows"].tolist() for e in u.forget_log] == [[5], [7]]
    assert [e["action"] for e in u.entries] == ["fit", "unlearn", "unlearn"]


def test_arrays_that_are_replaced_are_noticed(first):
    u = copy.deepcopy(first)
    u.unlearn([5])
    old = u.gone
    u.gone = old.copy()
    u.unlearn([6])
    assert (old[6], u.gone[6]) == (0, 1)
    store = u.store
    for name in ("X", "y"):
        setattr(store, name, getattr(store, name).copy())
    held = store.X
    u.unlearn([8])
    assert not held[8].any()


@pytest.mark.parametrize("head", ["influence", "direct"])
def test_parameters_between_requests_are_not_kept(head):
    u = small(head=head).fit(*logistic_data(1000))
    u.unlearn([5])
    between = u.theta.tobytes()
    u.unlearn([6])

    assert between in u.notes.block.thetas.tobytes()
    assert len(u.forget_log) == 2  # the log has digests of them only
    held = {name: value for name, value in contents(u, ("_packed",)).items() if isinstance(value, tuple)}
    assert not [name for name, value in held.items() if between in value[2]]
