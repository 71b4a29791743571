"""L2UL with the MLP: the anchored protocol, requests that touch its anchor, refresh, and training without an anchor."""

import numpy as np
import pytest
from test_l2ul import assert_counts
from unlearners import SCRATCH, TIMES, contents, curved_data, kept, retrain, rho, same_contents, small

import l2ul_kernels as lk
from l2ul_fast.errors import UserError
from l2ul_fast.unlearner.steps import AnchoredStep, LinearStep

X, Y = curved_data()
LABELS = Y.astype(np.uint8)


def fitted(**options):
    return small("mlp", **options).fit(X, Y)


def outside(u, count, seed=0):
    """Rows that are not anchor rows."""
    free = kept(1500, u.step.anchor_rows)
    return np.sort(np.random.default_rng(seed).choice(free, count, replace=False))


def anchored_retrain(u, rows):
    """theta trained from scratch without `rows`, the anchor included, and the new anchor."""
    plain = u.model.with_anchor(None, None)
    left = np.setdiff1d(u.step.anchor_rows, rows)
    anchor = plain.fit((X[left], LABELS[left]), start=u.model.anchor, tol=1e-10)
    assert anchor.converged
    keep = kept(1500, rows)
    found = u.model.with_anchor(anchor.theta, u.model.mu).fit((X[keep], LABELS[keep]))
    assert found.converged
    return found.theta, anchor.theta


def test_retraining_is_a_function_of_the_data():
    """Cold (from the anchor) and warm (from theta) meet, for every kind of request."""
    u = fitted()
    assert isinstance(u.step, AnchoredStep)
    assert u.report_["gradient_norm"] < 1e-9
    assert np.mean(u.predict(X) == Y) > 0.75
    near = np.argsort(np.linalg.norm(X - X[7], axis=1))
    for rows in ([3], np.arange(50), np.flatnonzero(Y == 1)[:100], near[:100]):
        cold, warm = retrain(u, X, Y, rows), retrain(u, X, Y, rows, start=u.theta)
        np.testing.assert_allclose(cold, warm, atol=1e-7)


@pytest.mark.parametrize(("prior", "limit"), [("newton", 0.1), ("none", 0.3)])
def test_unlearning_comes_close_to_retraining(prior, limit):
    for count in (1, 10, 60):
        found = []
        for seed in range(3):
            u = fitted(prior=prior)
            rows, before = outside(u, count, seed), u.theta
            after = u.unlearn(rows).theta
            found.append(rho(after, before, retrain(u, X, Y, rows, start=before)))
        assert np.median(found) < limit, (count, found)
    assert_counts(u, X, Y)
    assert u.forget_log[0]["rows"].tolist() == rows.tolist()


def test_empty_and_permuted_requests():
    u = fitted()
    before, theta = contents(u), u.theta.copy()
    np.testing.assert_array_equal(u.unlearn([]).theta, theta)
    same_contents(contents(u), before)
    rows = np.r_[outside(u, 20), u.step.anchor_rows[:3]]
    states = []
    for order in (rows, rows[::-1]):
        u = fitted()
        u.unlearn(order)
        states.append(contents(u, SCRATCH + TIMES))
    same_contents(*states)


def test_two_requests_and_one_differ_little():
    both, once = fitted(), fitted()
    rows, before = outside(once, 40), once.theta
    both.unlearn(rows[:15])
    both.unlearn(rows[15:])
    once.unlearn(rows)
    target = retrain(once, X, Y, rows, start=before)
    assert 0 < np.linalg.norm(both.theta - once.theta) / np.linalg.norm(before - target) < 0.1
    np.testing.assert_array_equal(both.cells.counts, once.cells.counts)


@pytest.mark.parametrize("count", [1, 10])
def test_a_request_that_holds_anchor_rows_moves_the_anchor_first(count):
    for others in (0, 20):
        u = fitted()
        rows = np.r_[u.step.anchor_rows[5 : 5 + count], outside(u, others)]
        before, anchor_rows = u.theta, u.step.anchor_rows
        target, anchor = anchored_retrain(u, rows)
        old = u.model.anchor
        u.unlearn(rows)
        assert rho(u.theta, before, target) < 0.3
        np.testing.assert_allclose(u.model.anchor, anchor, atol=1e-6)
        assert u.model is u.step.model
        assert not np.array_equal(u.model.anchor, old)
        np.testing.assert_array_equal(u.step.anchor_rows, np.setdiff1d(anchor_rows, rows))
        # from here on the rows are gone from the anchor too
        second, now = outside(u, 5, 9), u.theta
        second = np.setdiff1d(second, rows)
        keep = kept(1500, np.r_[rows, second])
        u.unlearn(second)
        assert rho(u.theta, now, u.model.fit((X[keep], LABELS[keep])).theta) < 1
        assert_counts(u, X, Y)


def test_refused_requests_change_nothing():
    u = fitted()
    gone = outside(u, 1)
    u.unlearn(gone)
    before = contents(u)
    for match, rows in [
        ("all anchor rows", u.step.anchor_rows), ("does not exist", [1500]), ("forgotten before", gone),
        ("named twice", [1, 1]), ("all rows of class 0", kept(1500, np.r_[np.flatnonzero(Y == 1), gone])),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=match):
            u.unlearn(rows)
        same_contents(contents(u), before)


def test_an_anchor_that_does_not_converge_is_refused(monkeypatch):
    u = fitted()
    before = contents(u)
    real = type(u.model).fit

    def stuck(self, *args, **options):
        found = real(self, *args, **options)
        found.converged = False
        return found

    monkeypatch.setattr(type(u.model), "fit", stuck)
    with pytest.raises(UserError, match="anchor cannot be trained again"):
        u.unlearn(u.step.anchor_rows[:1])
    same_contents(contents(u), before)
    u.unlearn(outside(u, 1))


def test_without_stored_rows_the_anchor_cannot_move():
    whole, bare = fitted(), fitted(store_rows=False)
    rows = outside(bare, 3)
    before = contents(bare)
    anchor = bare.step.anchor_rows[:1]
    with pytest.raises(UserError, match="keeps no rows"):
        bare.unlearn(anchor, X=X[anchor], y=Y[anchor])
    same_contents(contents(bare), before)
    np.testing.assert_array_equal(whole.unlearn(rows).theta, bare.unlearn(rows, X=X[rows], y=Y[rows]).theta)
    assert not any(value[1] == X.shape for value in contents(bare).values() if isinstance(value, tuple))


@pytest.mark.parametrize("prior", ["newton", "none"])
def test_refresh(prior):
    u = fitted(prior=prior)
    rows = np.r_[outside(u, 20), u.step.anchor_rows[:2], u.cells.partitions.row_ids[0, 0]]
    rows = np.unique(rows)
    before = u.theta.tobytes()
    u.unlearn(rows)
    done = u.refresh()
    assert done["partitions"] >= 1
    assert not np.isin(u.cells.partitions.row_ids, rows).any()
    assert_counts(u, X, Y)
    if prior == "none":
        assert done["pairs"] == 80
        assert not np.isin(u.learned.pairs.rows, rows).any()
    else:
        hessian = u.model.hessian(u.theta, X[kept(1500, rows)], LABELS[kept(1500, rows)])
        np.testing.assert_allclose(hessian @ u.step.W, np.eye(len(hessian)), atol=1e-6)
    assert not [name for name, value in contents(u, ()).items() if isinstance(value, tuple) and before in value[2]]
    now, more = u.theta, np.setdiff1d(outside(u, 20, 5), rows)
    u.unlearn(more)
    keep = kept(1500, np.r_[rows, more])
    # theta itself was left where the request had moved it: the target is measured from there
    assert rho(u.theta, now, u.model.fit((X[keep], LABELS[keep])).theta) < 1
    u.refresh(reanchor=True)
    np.testing.assert_allclose(u.theta, u.model.fit((X[keep], LABELS[keep])).theta, atol=1e-7)
    assert u.residual() < 1e-8


def test_training_without_an_anchor():
    u = fitted(anchor_rows=0, s=300)
    assert type(u.step) is LinearStep
    assert u.model.anchor is None
    assert np.mean(u.predict(X) == Y) > 0.65
    other = u.model.fit((X, LABELS), seed=u.params["random_state"] + 1, tol=1e-6).theta
    differ = np.mean(u.model.predict(other, X) != u.model.predict(u.theta, X))
    assert u.noise_floor() == differ > 0
    before = u.theta
    result = u.unlearn(np.arange(20))
    assert not np.array_equal(result.theta, before)
    assert np.isfinite(result.theta).all()
    assert_counts(u, X, Y)
    u.refresh()
    assert not np.isin(u.learned.pairs.rows, np.arange(20)).any()
    assert_counts(u, X, Y)
    u.unlearn([100])


@pytest.mark.parametrize("options", [{}, {"prior": "none"}, {"anchor_rows": 0, "s": 300}, {"head": "direct", "s": 300}])
def test_equal_seeds_give_equal_unlearners_for_every_number_of_threads(options):
    states = []
    for threads in (1, 2, 2):
        with lk.threads(threads):
            u = fitted(**options)
            u.unlearn([5, 900])
            u.refresh()
            u.unlearn(np.arange(40, 60))
        states.append(contents(u, SCRATCH + TIMES))
    same_contents(states[1], states[0])
    same_contents(states[2], states[0])


def test_the_direct_head_is_refreshed_too():
    u = fitted(head="direct", s=100)
    rows = np.array([5, int(u.cells.partitions.row_ids[0, 0])])
    held = u.learned.pairs.holding(rows)
    weights = {name: array.copy() for name, array in u.learned.weights.items()}
    u.unlearn(rows)
    done = u.refresh()
    assert (done["pairs"], done["head"]) == (len(held), "network refitted")
    assert not np.isin(u.learned.pairs.rows, rows).any()
    assert any(not np.array_equal(weights[name], array) for name, array in u.learned.weights.items())
    assert_counts(u, X, Y)
    assert np.isfinite(u.unlearn([9]).theta).all()


def test_a_wide_network_keeps_single_precision_weights():
    u = fitted(hidden=22, m=20, lam=1e-2)
    assert u.theta.size > 100
    assert u.step.W.dtype == np.float32
    rows, before = outside(u, 20), u.theta
    u.unlearn(rows)
    assert rho(u.theta, before, retrain(u, X, Y, rows, start=before)) < 0.2


@pytest.mark.slow
def test_three_classes_and_relu():
    labels = Y + (X[:, 2] > 1)
    u = small("mlp", s=300, activation="relu").fit(X, labels)
    before = u.theta
    assert not np.array_equal(u.unlearn(np.arange(20)).theta, before)
    u.refresh()
    assert_counts(u, X, labels)


def test_bad_anchor_rows():
    for count in (5, 1501):
        with pytest.raises(UserError, match="anchor_rows must be 0 or from 20 to 1500"):
            fitted(anchor_rows=count)
