"""Cases that an attack on the unlearning core found: each was wrong once."""

import functools
import json
import pickle
import shutil
import threading

import numpy as np
import pytest
from unlearners import data_for, kept, logistic_data, optimum, rho, state_of

from l2ul_fast import L2UL
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.unlearner import RetrainInstead


def saved_sums(directory):
    return next(directory.glob("state-*-sums.safetensors")).read_bytes()


# Errors that were too small ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_curvature_that_is_rounding_is_no_answer(seed):
    """Separable rows: what is left in H after the easy rows stay may be negative."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([40, 200]))
    X = rng.normal(size=(n, 3))
    y = (X[:, 0] > 0).astype(int)
    u = L2UL("lr", lam=1e-4).fit(X, y)
    before = u.theta
    hard = np.argsort(u.predict_proba(X)[np.arange(n), y])[: n - 4]
    if len(np.unique(y[kept(n, hard)])) < 2:
        pytest.skip("one class would be left")
    with pytest.warns(RetrainInstead):
        found = u.unlearn(hard)
    assert found.error > 0.5
    assert found.due
    u.refresh()
    target = optimum(X[kept(n, hard)], y[kept(n, hard)], lam=1e-4)
    assert rho(u.theta, before, target) < 0.01


def test_a_pass_starts_afresh_where_the_parameters_are_far_off():
    rng = np.random.default_rng(13364)
    n, d = int(rng.integers(30, 600)), int(rng.integers(1, 9))
    X = rng.normal(size=(n, d))
    X = X * (1 + rng.exponential(size=(n, 1))) if rng.random() < 0.5 else X
    z = X @ rng.normal(size=d) * rng.choice([0.3, 1, 2]) / np.sqrt(d)
    y = (z + rng.logistic(size=n) > 0).astype(int)
    u = L2UL("lr").fit(X, y)
    u.unlearn([9])
    with pytest.warns(RetrainInstead):
        u.unlearn([21])
    u.refresh()
    keep = kept(n, [9, 21])
    assert state_of(u) == state_of(L2UL("lr").fit(X[keep], y[keep]))


@functools.cache
def mlp_of_a_sharp_boundary():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2500, 3))
    y = (X[:, 0] > 0).astype(int)
    y[(np.abs(X[:, 0]) < 0.3) & (rng.random(2500) < 0.3)] ^= 1
    return L2UL("mlp", lam=1e-6).fit(X, y), X, y


@pytest.mark.parametrize("r", [1, 100, 1250])
def test_the_error_of_an_mlp_counts_that_the_rows_that_stay_weigh_more(r):
    fitted, X, y = mlp_of_a_sharp_boundary()
    u = fitted.copy()
    before, easy = u.theta, np.argsort(-u.predict_proba(X)[np.arange(2500), y])[:r]
    if r == 1250:
        with pytest.warns(RetrainInstead):
            found = u.unlearn(easy)
    else:
        found = u.unlearn(easy)
    target = u.model.fit(u.retained(), start=before).theta
    assert rho(found.theta, before, target) <= 2 * found.error


# States that were not those of a fit without the rows ----------------------------------------------------------------


def test_the_order_does_not_change_with_the_number_of_rows(tmp_path):
    X = np.random.default_rng(0).normal(size=(1769, 100))
    y = (X[:, 0] + np.random.default_rng(1).normal(size=1769) > 0).astype(int)
    u = L2UL("lr").fit(X, y)
    assert u.head.order == 3  # with one row less a fit would keep no third derivatives
    u.unlearn(np.arange(100))
    u.refresh()
    assert u.head.order == 3


@pytest.mark.parametrize("seed", range(20, 40))
def test_order_two_is_due_where_its_root_is_uncertain(tmp_path, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(200, 4))
    y = rng.poisson(np.exp(X[:, 0] * 0.7 + X[:, 1] * 0.3)).astype(float)
    row = int(y.argmax())
    u = L2UL("poisson", order=2).fit(X, y)
    u.unlearn([row])
    u.save(tmp_path / "a")
    L2UL("poisson", order=2).fit(np.delete(X, row, 0), np.delete(y, row)).save(tmp_path / "b")
    assert saved_sums(tmp_path / "a") == saved_sums(tmp_path / "b")


def test_ties_between_grid_points_are_decided_by_the_integers():
    """lam moves the optimum across a boundary of the grid; warm and cold fits stop on different sides of it."""
    X, y = logistic_data(200, 3, seed=0, dtype=np.float64)
    stay, low, high = kept(200, [5]), 1e-3, 2e-3

    def points(lam):
        u = L2UL("lr", lam=lam).fit(X, y)
        u.unlearn([5])
        u.head.expand_anew(u.retained())
        return u.head.anchor, L2UL("lr", lam=lam).fit(X[stay], y[stay]).head.anchor

    first = points(low)[1]
    for _ in range(60):  # bisect to the lam at which the point changes
        middle = (low + high) / 2
        low, high = (middle, high) if np.array_equal(points(middle)[1], first) else (low, middle)
    for lam in (low, high, np.nextafter(low, 0), np.nextafter(high, 1)):
        np.testing.assert_array_equal(*points(lam))


def test_a_learned_row_gives_a_zero_column_its_scale():
    X, y = data_for("lr", 4000, 2)
    X[:, 1] = 0
    found = []
    for rows in ([[0.1, 0.3], [0.2, 0.6]], [[0.1, 0.3]]):
        u = L2UL("lr", lam=0.1).fit(X, y)
        ids = u.learn(rows, [1] * len(rows))
        for k in ids[1:]:
            u.unlearn([int(k)])
        u.head.canonical()
        if u.due:
            u.refresh()
        found.append(state_of(u))
    assert found[0] == found[1]


# What was left of a row ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["save", "refresh"])
def test_a_sealed_state_holds_nothing_of_the_last_row_in_memory(tmp_path, how):
    X, y = data_for("lr", 2000, 5)
    u = L2UL("lr").fit(X, y)
    before = u.theta
    for row in range(1000, 1050):
        tried = u.copy()
        tried.unlearn([row])
        if tried.due is None:
            break
    u.unlearn([row])
    if how == "save":
        u.save(tmp_path)
    else:
        u.refresh()
    assert u.due is None
    held = pickle.dumps(u)
    assert X[row].tobytes() not in held
    assert before.tobytes() not in held
    assert u.head.error is None  # what was moved is not known any more
    assert u.unlearn([3]).error < 0.1


def test_rows_of_weight_zero_are_not_stored(tmp_path):
    X, y = data_for("lr", 300, 4)
    weights = np.ones(300)
    weights[7] = 0
    for name, options in (("rows", {}), ("digests", {"store_rows": False})):
        u = L2UL("lr", **options).fit(X, y, weights)
        u.save(tmp_path / name, defer=True)
        for path in (tmp_path / name).iterdir():
            assert X[7].tobytes() not in path.read_bytes()
        with pytest.raises(UserError, match="weight 0"):
            u.unlearn([7], *([X[[7]], y[[7]]] if options else []))


def test_the_ledger_does_not_tell_why_a_pass_was_due(tmp_path):
    X, y = data_for("lr", 300, 4)
    X[11, 1] = 50.0
    u = L2UL("lr").fit(X, y)
    u.unlearn([11])
    assert "column" in u.due
    u.save(tmp_path)
    for line in (tmp_path / "ledger.jsonl").read_text().splitlines():
        assert "column" not in line
    assert "steps" not in json.loads((tmp_path / "artifact.json").read_text())["facts"]["report"]


# Objects and directories ---------------------------------------------------------------------------------------------


def test_two_models_are_never_mixed_in_one_directory(tmp_path):
    X, y = data_for("lr", 200, 3)
    L2UL("lr").fit(X, y).save(tmp_path / "d")
    u = L2UL.load(tmp_path / "d")
    shutil.rmtree(tmp_path / "d")
    L2UL("lr").fit(X[:150], y[:150]).save(tmp_path / "d")  # generation 1 again
    u.unlearn([5])
    for defer in (True, False):
        with pytest.raises(DataError, match="was changed by someone else"):
            u.save(tmp_path / "d", defer=defer)
    assert L2UL.load(tmp_path / "d").n == 150


def test_theta_seen_by_other_threads_is_always_a_state(tmp_path):
    X, y = logistic_data(3000, 30)
    u = L2UL("lr").fit(X, y)
    u.unlearn([1])
    u.save(tmp_path)
    expected, seen, stop = u.theta, [], threading.Event()

    def look():
        while not stop.is_set():
            seen.append(np.array_equal(u.theta, expected))

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(20):
        u.save(tmp_path)
    stop.set()
    thread.join()
    assert all(seen)
    assert seen


def test_rows_of_a_result_are_a_copy(tmp_path):
    X, y = data_for("squared", 100, 3)
    u = L2UL("squared").fit(X, y)
    u.save(tmp_path)
    mine = u.unlearn([5, 9]).rows
    mine += 1
    u.save(tmp_path, defer=True)
    assert L2UL.load(tmp_path).forget_log[-1]["rows"].tolist() == [5, 9]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda u, X, y: u.unlearn([True, 5]), "not truth values"),
        (lambda u, X, y: u.unlearn([3], y=[1]), "give X with y"),
        (lambda u, X, y: u.unlearn(X=np.ma.masked_array(X[:1]), y=y[:1]), "masked"),
        (lambda u, X, y: u.unlearn(X=X[:1], y=np.ma.masked_array(y[:1])), "masked"),
        (lambda u, X, y: u.learn(X[:1].astype(float) * 1e300, y[:1]), "beyond float32"),
        (lambda u, X, y: L2UL().fit(X, y, np.ma.masked_array(np.ones(len(X)))), "masked"),
        (lambda u, X, y: L2UL("squared").fit(X, np.ma.masked_array(y * 1.0)), "masked"),
    ],
)
def test_what_cannot_be_meant_is_refused(call, match):
    X, y = logistic_data(200, 3)
    u = L2UL().fit(X, y)
    state = state_of(u)
    with pytest.raises(UserError, match=match):
        call(u, X, y)
    assert (u.n, state_of(u)) == (200, state)
