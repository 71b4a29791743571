"""L2UL with logistic regression: what a request must and must not change, and how close it comes to retraining."""

import warnings

import numpy as np
import pytest
from unlearners import SCRATCH, TIMES, contents, kept, logistic_data, retrain, rho, same_contents, small

import l2ul_kernels as lk
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.models import LogisticModel
from l2ul_fast.unlearner import L2UL, RetrainInstead
from l2ul_fast.unlearner.ridge import RidgeHead
from l2ul_kernels import reference
from l2ul_kernels.request import FORGOTTEN

HEADS = {"newton": {}, "learned": {"prior": "none"}, "direct": {"head": "direct"}}
X, Y = logistic_data()
heads = pytest.mark.parametrize("head", HEADS)
_fitted = {}


def fitted(head="newton", **options):
    """A fresh unlearner on X, Y."""
    return small(**HEADS[head], **options).fit(X, Y)


def assert_counts(u, X, y):
    """The counts are those of the rows that are present, the cells of the others are overwritten."""
    present = np.flatnonzero(u.gone == 0)
    cells = reference.assign_cells(X[present], np.asarray(u.cells.partitions.seeds))
    index = np.searchsorted(u.classes_, y)[present]
    np.testing.assert_array_equal(u.cells.counts, reference.class_counts(cells, index, u.cells.psi, len(u.classes_)))
    np.testing.assert_array_equal(lk.unpack_cells(u.cells.packed[present], u.cells.t, u.cells.psi), cells)
    assert not u.cells.packed[u.gone != 0].any()
    assert u.n == len(present)
    np.testing.assert_array_equal(u.class_counts, np.bincount(index, minlength=len(u.classes_)))


# The universal tests -------------------------------------------------------------------------------------------------


@heads
@pytest.mark.parametrize("nothing", [[], (), np.array([], np.int64), np.zeros(0), np.zeros(0, np.uint8)])
def test_u1_an_empty_request_changes_nothing(head, nothing):
    u = _fitted.setdefault(head, fitted(head))
    before, theta = contents(u), u.theta.copy()
    result = u.unlearn(nothing)
    np.testing.assert_array_equal(result.theta, theta)
    same_contents(contents(u), before)
    assert result.trust.share == 0
    assert result.trust.advice == "ok"
    u.unlearn(X=np.zeros((0, 6)), y=[])
    same_contents(contents(u), before)


@heads
def test_u2_the_order_of_the_rows_does_not_matter(head):
    rng = np.random.default_rng(3)
    rows = rng.choice(2000, 50, replace=False)
    states = []
    for order in (rows, rows[::-1], np.sort(rows), list(map(int, rows)), rng.permutation(rows).astype(np.uint32)):
        u = fitted(head)
        u.unlearn(order)
        u.forget_log[0]["time"] = 0
        states.append(contents(u, SCRATCH + TIMES))
    for state in states[1:]:
        same_contents(state, states[0])


@heads
def test_u4_what_is_kept_is_that_of_the_rows_that_stay(head):
    u = fitted(head)
    rng = np.random.default_rng(4)
    gone = np.zeros(0, np.int64)
    for r in (1, 30, 100):
        rows = rng.choice(kept(2000, gone), r, replace=False)
        u.unlearn(rows)
        gone = np.append(gone, rows)
        assert_counts(u, X, Y)
        np.testing.assert_array_equal(np.flatnonzero(u.gone == FORGOTTEN), np.sort(gone))
        assert not u.store.X[gone].any()
        assert not u.store.y[gone].any()
        np.testing.assert_array_equal(u.store.X[kept(2000, gone)], X[kept(2000, gone)])
    assert [len(e["rows"]) for e in u.forget_log] == [1, 30, 100]
    assert [e["n"] for e in u.forget_log] == [1999, 1969, 1869]
    np.testing.assert_array_equal(u.forget_log[2]["rows"], np.sort(rows))
    blocks = [X.copy() for X, _ in u.retained().blocks()]
    np.testing.assert_array_equal(np.concatenate(blocks), X[kept(2000, gone)])


def test_the_curvature_stays_exact_at_its_anchor():
    u = fitted()
    anchor = u.step.anchor.copy()
    gone = np.zeros(0, np.int64)
    rng = np.random.default_rng(5)
    for r in [1] * 20 + [200, 500]:
        rows = rng.choice(kept(2000, gone), r, replace=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RetrainInstead)
            u.unlearn(rows)
        gone = np.append(gone, rows)
        wide = np.hstack([X[kept(2000, gone)], np.ones((2000 - len(gone), 1))]).astype(float)
        s = 1 / (1 + np.exp(-wide @ anchor))
        np.testing.assert_allclose(u.step.curvature, (wide * (s * (1 - s))[:, None]).T @ wide, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(u.step.anchor, anchor)


@pytest.mark.parametrize(("head", "limit"), [("newton", 0.05), ("learned", 0.5)])
def test_u5_two_requests_and_one_differ_little(head, limit):
    a, b = np.arange(40), np.arange(100, 160)
    both, once = fitted(head), fitted(head)
    before = once.theta.copy()
    both.unlearn(a)
    both.unlearn(b)
    once.unlearn(np.r_[a, b])
    target = retrain(once, X, Y, np.r_[a, b])
    gap = np.linalg.norm(both.theta - once.theta) / np.linalg.norm(before - target)
    assert 0 < gap < limit
    for name in ("counts", "packed"):
        np.testing.assert_array_equal(getattr(both.cells, name), getattr(once.cells, name))
    np.testing.assert_array_equal(both.gone, once.gone)
    assert both.n == once.n


def requests(seed):
    """Forget sets of each kind: one row, random ones, one class, one corner of the space."""
    rng = np.random.default_rng(seed)
    near = np.argsort(np.linalg.norm(X - X[rng.integers(2000)], axis=1))
    return {
        "one": rng.choice(2000, 1), "some": rng.choice(2000, 20, replace=False),
        "many": rng.choice(2000, 150, replace=False), "class": rng.choice(np.flatnonzero(Y == 1), 100, replace=False),
        "cluster": near[:100],
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["one", "some", "many", "class", "cluster"])
def test_u6_t7_unlearning_comes_close_to_retraining(kind):
    """rho of doing nothing is 1. The Newton prior is at least 20 times closer, the purely learned head twice."""
    found = {"newton": [], "learned": []}
    for seed in range(5):
        rows = requests(seed)[kind]
        for head in found:
            u = fitted(head)
            before = u.theta
            after = u.unlearn(rows).theta
            target = retrain(u, X, Y, rows)
            found[head].append(rho(after, before, target))
            assert u.residual() < np.abs(u.model.gradient(before, *rows_of(kept(2000, rows)))).max()
    assert np.median(found["newton"]) < (0.05 if kind in ("one", "some", "many") else 0.2), found
    assert np.median(found["learned"]) < 0.5, found


def rows_of(ids):
    return X[ids], Y[ids].astype(np.uint8)


def test_the_residual_is_the_gradient_on_the_rows_that_stay():
    u = fitted()
    assert u.residual() < 1e-9
    u.unlearn(np.arange(30))
    expected = np.abs(u.model.gradient(u.theta, *rows_of(np.arange(30, 2000)))).max()
    assert u.residual() == pytest.approx(expected, rel=1e-6)


# The embedding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "psi", [3, 4, pytest.param(16, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.slow)]
)
def test_t1_to_t4_the_embedding(psi):
    u = small(psi=psi, t=13).fit(X, Y)
    one_hot = lk.one_hot(lk.unpack_cells(u.cells.packed, 13, psi), psi).toarray()
    assert (one_hot.sum(axis=1) == 13).all()  # T1
    mu = u.cells.counts.sum(axis=0) / u.n
    assert (mu.min(), mu.max()) >= (0, 0)
    assert mu.max() <= 1
    np.testing.assert_allclose(mu.sum(axis=1), 1)
    np.testing.assert_allclose(mu.ravel(), one_hot.mean(axis=0))
    kappa = one_hot[:50] @ one_hot[:50].T / 13  # T2
    assert ((kappa >= 0) & (kappa <= 1)).all()
    assert (np.diag(kappa) == 1).all()
    rows = np.arange(0, 300, 7)
    mu_f = one_hot[rows].mean(axis=0)  # T3
    u.unlearn(rows)
    expected = (2000 * mu.ravel() - len(rows) * mu_f) / (2000 - len(rows))
    np.testing.assert_allclose(u.cells.counts.sum(axis=0).ravel() / u.n, expected, atol=1e-15)
    order = np.random.default_rng(0).permutation(2000)  # T4
    shuffled = lk.counts_from_cells(lk.assign_cells(X[order], u.cells.partitions), psi)
    np.testing.assert_array_equal(shuffled, lk.counts_from_cells(lk.assign_cells(X, u.cells.partitions), psi))


def test_t8_the_direct_head_does_not_return_theta_by_itself():
    """Its network need not give theta for an empty request; U1 holds because such a request never reaches it."""
    u = fitted("direct")
    assert not np.array_equal(u.step.peek(np.zeros(0, np.int64)), u.theta)
    np.testing.assert_array_equal(u.unlearn([]).theta, u.theta)


def test_the_direct_head_answers_from_counts_alone():
    """theta' is N_U of (mu_D, mu_f, theta) as they are at the request."""
    from l2ul_fast.unlearner.network import UnlearnNetwork

    u = fitted("direct")
    network = UnlearnNetwork.from_weights(u.learned.weights)
    for rows in (np.arange(5), np.arange(50, 90)):
        mu_D = u.cells.counts.sum(axis=0).ravel()[None] / u.n
        cells = lk.unpack_cells(u.cells.packed[rows], 20, 4)
        mu_f = lk.one_hot(cells, 4).toarray().mean(axis=0)[None]
        expected = network.predict(mu_D=mu_D, mu_f=mu_f, theta=u.theta[None])[0]
        np.testing.assert_allclose(u.unlearn(rows).theta, expected, rtol=1e-4, atol=1e-5)


# Requests by content -------------------------------------------------------------------------------------------------


def test_rows_may_be_named_by_what_they_are():
    rows = np.array([700, 3, 51])
    by_number, by_content = fitted(), fitted()
    expected = by_number.unlearn(rows)
    for dtype in (np.float32, np.float64):
        u = fitted()
        result = u.unlearn(X=X[rows].astype(dtype), y=Y[rows])
        np.testing.assert_array_equal(result.rows, np.sort(rows))
        np.testing.assert_array_equal(result.theta, expected.theta)
    by_content.unlearn(rows, X=X[rows], y=Y[rows])  # both, and they agree
    np.testing.assert_array_equal(by_content.theta, expected.theta)
    before = contents(by_content)
    with pytest.raises(UserError, match="not among the rows"):  # forgotten
        by_content.unlearn(X=X[rows[:1]], y=Y[rows[:1]])
    with pytest.raises(UserError, match="not among the rows"):  # another label
        by_content.unlearn(X=X[:1], y=1 - Y[:1])
    with pytest.raises(UserError, match="given for row 0 are not that row"):
        by_content.unlearn([0], X=X[1:2], y=Y[1:2])
    with pytest.raises(UserError, match="given for row 0 are not that row"):
        by_content.unlearn([0], X=X[:1], y=1 - Y[:1])
    with pytest.raises(UserError, match="give y with X"):
        by_content.unlearn([0], X=X[:1])
    same_contents(contents(by_content), before)


def test_equal_rows_are_taken_one_by_one():
    double, labels = np.r_[X, X[:1], X[:1]], np.r_[Y, Y[:1], Y[:1]]
    double[2000, 0] = double[0, 0] = double[2001, 0] = 0.0
    u = small().fit(double, labels)
    wanted = double[[0, 0]].copy()
    wanted[:, 0] = -0.0  # equal, with other bytes
    np.testing.assert_array_equal(u.unlearn(X=wanted, y=labels[[0, 0]]).rows, [0, 2000])
    with pytest.raises(UserError, match="row 1 of the request is not among"):
        u.unlearn(X=wanted, y=labels[[0, 0]])
    np.testing.assert_array_equal(u.unlearn(X=wanted[:1], y=labels[:1]).rows, [2001])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_without_stored_rows_a_request_brings_them(dtype):
    data = X.astype(dtype) if dtype == np.float32 else logistic_data(dtype=dtype)[0]
    whole, bare = small().fit(data, Y), small(store_rows=False).fit(data, Y)
    rows = np.array([900, 4, 33])
    before = contents(bare)
    for match, request in [
        ("give X and y", lambda: bare.unlearn(rows)),
        ("given for row 900", lambda: bare.unlearn(rows, X=data[[901, 4, 33]], y=Y[rows])),
        ("given for row 33", lambda: bare.unlearn([33], X=np.nextafter(data[[33]], dtype(9)), y=Y[[33]])),
        ("given for row 4 ", lambda: bare.unlearn(rows, X=data[rows], y=[Y[900], 1 - Y[4], Y[33]])),
        ("given for row 4 ", lambda: bare.unlearn(rows, X=data[np.sort(rows)], y=Y[np.sort(rows)])),
        ("2 and y 3", lambda: bare.unlearn(rows, X=data[:2], y=Y[:3])),
        ("not among the rows", lambda: bare.unlearn(X=data[rows] + 1, y=Y[rows])),
        ("NaN", lambda: bare.unlearn(rows, X=np.full((3, 6), np.nan), y=Y[rows])),
        ("keeps no rows", bare.residual),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=match):
            request()
        same_contents(contents(bare), before)
    assert not any(value[1] == data.shape for value in before.values() if isinstance(value, tuple))  # X is not kept
    np.testing.assert_array_equal(
        whole.unlearn(rows).theta, bare.unlearn(rows, X=data[rows].astype(np.float64), y=Y[rows]).theta
    )
    np.testing.assert_array_equal(whole.unlearn([7]).theta, bare.unlearn(X=data[[7]], y=Y[[7]]).theta)
    np.testing.assert_array_equal(whole.cells.counts, bare.cells.counts)
    assert not bare.store.digests[[4, 7, 33, 900]].any()


# Bad input -----------------------------------------------------------------------------------------------------------

BAD = {
    "unknown": ("row 2000 does not exist", [5, 2000]),
    "huge": ("does not exist", [2**62]),
    "unsigned": ("does not exist", np.array([2**64 - 1], np.uint64)),
    "beyond": ("whole numbers", [10**30]),
    "negative": ("row -1 does not exist", [5, -1]),
    "repeated": ("row 5 is named twice", [5, 9, 5]),
    "forgotten": ("row 17 was forgotten before", [5, 17]),
    "fraction": ("whole numbers", [5.0]),
    "mask": ("whole numbers", np.ones(2000, bool)),
    "text": ("whole numbers", ["5"]),
    "number": ("must be a list", 5),
    "table": ("must be a list", [[5, 6]]),
    "ragged": ("list of whole numbers", [[5], [6, 7]]),
    "everything": ("takes out all rows: delete", kept(2000, [17])),
    "class": ("all rows of class 1", np.setdiff1d(np.flatnonzero(Y == 1), [17])),
    "nothing": ("by number, or give X and y", None),
}


@heads
def test_bad_requests_are_one_sentence_and_change_nothing(head):
    u = fitted(head)
    u.unlearn([17])
    before = contents(u)
    for match, rows in BAD.values():
        with pytest.raises(UserError, match=match) as caught:
            u.unlearn(rows)
        assert "\n" not in str(caught.value)
        same_contents(contents(u), before)
    for match, rows, labels in [
        ("NaN", np.full((1, 6), np.nan), [0]), ("shape", X[:1, :5], [0]), ("not one of the model's", X[:1], [2]),
        ("1 rows but y has 2", X[:1], [0, 1]), ("or give X and y", X[:1], None), ("numbers", [["a"] * 6], [0]),
        ("not among the rows", np.zeros((1, 6)), [0]),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=match) as caught:
            u.unlearn(X=rows, y=labels)
        assert "\n" not in str(caught.value)
        same_contents(contents(u), before)
    for use in (u.predict, u.predict_proba):
        with pytest.raises(DataError, match="NaN"):
            use(np.full((1, 6), np.nan))


def test_the_last_rows_of_a_class_are_refused_one_by_one():
    rare = np.zeros(2000, int)
    rare[:40] = 1
    u = small(m=20).fit(X + 2 * rare[:, None].astype(np.float32), rare)
    u.unlearn(np.arange(39))
    before = contents(u)
    for rows in ([39], [39, 50]):
        with pytest.raises(UserError, match="all rows of class 1"):
            u.unlearn(rows)
        same_contents(contents(u), before)
    u.unlearn([50])


def test_a_system_that_cannot_be_solved_leaves_the_state(monkeypatch):
    u = fitted()
    before = contents(u)

    def singular(matrix):
        raise np.linalg.LinAlgError

    with monkeypatch.context() as patch:
        patch.setattr(np.linalg, "inv", singular)
        with pytest.raises(UserError, match="do not determine the model: retrain instead"):
            u.unlearn(np.arange(600))
    same_contents(contents(u), before)
    with monkeypatch.context() as patch:  # an inverse that is only noise
        patch.setattr(np.linalg, "inv", lambda matrix: np.ones_like(matrix))
        with pytest.raises(UserError, match="do not determine the model: retrain instead"):
            u.unlearn(np.arange(600))
    same_contents(contents(u), before)


def test_bad_training_data_is_one_sentence_and_keeps_the_old_fit():
    u = fitted()
    u.unlearn([3])
    before = contents(u)
    bad = X.copy()
    bad[7, 2] = np.inf
    for match, rows, labels in [
        ("row 7 of X has a NaN or an infinity", bad, Y), ("only one class", X, np.zeros(2000)),
        ("2000 rows but y has 3", X, Y[:3]), ("too few", X[:30], Y[:30]), ("drawn from 300 rows", X[:300], Y[:300]),
        ("NaN", X, np.full(2000, np.nan)), ("numbers", [["a", "b"]], [0]), ("not a path", X, None),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=match) as caught:
            (u if len(rows) != 30 else small(s=None)).fit(rows, labels)
        assert "\n" not in str(caught.value)
        same_contents(contents(u), before)
    with pytest.raises(DataError, match="missing"):
        u.fit("missing.h5")
    same_contents(contents(u), before)


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("model must be", {"model": "svm"}), ("head must be", {"head": "x"}), ("prior one of", {"prior": "x"}),
        ("lam must be positive", {"lam": 0}), ("lam must be positive", {"lam": np.nan}), ("lam must", {"lam": np.inf}),
        ("psi must be at least 2", {"psi": 1}), ("psi must be", {"psi": 5000}), ("t must be", {"t": 0}),
        ("m must be at least 1", {"m": 0}), ("m must be a whole number", {"m": 10.5}), ("s must be", {"s": 19}),
        ("hidden must be", {"hidden": 0}), ("activation must be", {"activation": "x"}),
        ("random_state must be", {"random_state": -1}), ("anchor_rows must be", {"anchor_rows": -1}),
    ],
)  # fmt: skip
def test_bad_options_are_one_sentence(match, options):
    with pytest.raises(UserError, match=match) as caught:
        L2UL(**options)
    assert "\n" not in str(caught.value)


def test_what_needs_a_fit_says_so():
    u = small()
    assert not u.__sklearn_is_fitted__()
    for use in (
        lambda: u.unlearn([1]),
        lambda: u.unlearn([1, 2]),
        lambda: u.unlearn(X=X[:1], y=Y[:1]),
        lambda: u.predict(X),
        lambda: u.theta,
        u.refresh,
        lambda: u.save("x"),
        u.residual,
    ):
        with pytest.raises(UserError, match="not fitted yet"):
            use()
    assert not hasattr(u, "nonsense")
    assert u.fit(X, Y).__sklearn_is_fitted__()


def test_more_seeds_than_rows_is_one_sentence():
    with pytest.raises(UserError, match="psi=300 seeds cannot be drawn from 200 rows"):
        small(psi=300, s=20).fit(X[:200], Y[:200])


# Trust ---------------------------------------------------------------------------------------------------------------


def test_requests_out_of_range_are_told_to_retrain():
    u = fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ok = u.unlearn(np.arange(10)).trust
    assert ok.share == 0.005
    assert ok.advice == "ok"
    assert 0 < ok.distance < 2
    assert 0.05 < ok.largest <= 0.1
    with pytest.warns(RetrainInstead, match="retrain instead") as caught:
        much = u.unlearn(np.arange(10, 800))
    assert (caught[0].message.r, caught[0].message.n) == (790, 1990)
    assert caught[0].filename == __file__
    assert much.trust.advice == "retrain instead"
    assert much.trust.share == 790 / 1990


def test_a_strange_request_is_far_from_the_training_pairs():
    """200 rows of one side of the space: few, but their gradients all point the same way."""
    u = fitted()
    random = u.unlearn(np.arange(20)).trust.distance
    wrong = np.argsort(np.where(Y == 1, u.predict_proba(X)[:, 1], 1))[20:140]
    strange = u.unlearn(np.setdiff1d(wrong, np.arange(20))).trust
    assert strange.distance > max(2, 3 * random)
    assert strange.advice == "retrain instead"


# Determinism ---------------------------------------------------------------------------------------------------------


@heads
def test_equal_seeds_give_equal_unlearners_for_every_number_of_threads(head):
    states = []
    for threads in (1, 2, 2):
        with lk.threads(threads):
            u = fitted(head)
            u.unlearn([5, 900])
            u.refresh()
            u.unlearn(np.arange(40, 60))
        states.append(contents(u, SCRATCH + TIMES))
    same_contents(states[1], states[0])
    same_contents(states[2], states[0])
    other = fitted(head, random_state=1)
    assert not np.array_equal(other.cells.packed, u.cells.packed)


def test_a_fresh_seed_is_drawn_and_kept():
    a, b = small(random_state=None), small(random_state=None)
    assert a.params["random_state"] != b.params["random_state"]
    again = small(random_state=a.params["random_state"]).fit(X, Y)
    np.testing.assert_array_equal(a.fit(X, Y).cells.packed, again.cells.packed)
    a.unlearn([1])
    a.refresh()


# Kinds of data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", ["newton", "none"])
def test_three_classes(prior):
    data, labels = logistic_data(classes=3)
    names = np.array(["a", "b", "c"])[labels]
    for rows in (np.array([11]), np.arange(50), np.flatnonzero(labels == 2)[:60]):
        u = small(prior=prior).fit(data, names)
        before, accuracy = u.theta, np.mean(u.predict(data) == names)
        assert accuracy > 0.6
        assert u.classes_ == ["a", "b", "c"]
        after = u.unlearn(rows).theta
        target = retrain(u, data, names, rows)
        assert rho(after, before, target) < (0.1 if prior == "newton" else 0.5)
        assert_counts(u, data, names)
        u.refresh()
        assert_counts(u, data, names)
        again = u.theta
        more = kept(2000, rows)[:20]
        u.unlearn(more)
        assert rho(u.theta, again, retrain(u, data, names, np.r_[rows, more])) < 1
    np.testing.assert_allclose(u.predict_proba(data).sum(axis=1), 1)


def test_double_precision_and_other_layouts():
    data, labels = logistic_data(dtype=np.float64)
    rows = np.arange(30)
    u = small().fit(data, labels)
    before = u.theta
    assert u.store.X.dtype == np.float64
    assert rho(u.unlearn(rows).theta, before, retrain(u, data, labels, rows)) < 0.05
    for given in (np.asfortranarray(data), data.tolist(), np.ascontiguousarray(data[:, ::-1])[:, ::-1]):
        again = small().fit(given, labels.tolist())
        np.testing.assert_array_equal(again.theta, before)
        np.testing.assert_array_equal(again.unlearn(rows).theta, u.theta)


def test_the_given_arrays_are_never_changed():
    data, labels = logistic_data()
    copies = data.copy(), labels.copy()
    data.setflags(write=False)
    labels.setflags(write=False)
    u = small().fit(data, labels)
    u.unlearn(np.arange(50))
    u.refresh()
    np.testing.assert_array_equal(data, copies[0])
    np.testing.assert_array_equal(labels, copies[1])


def test_labels_are_given_back_as_they_came():
    for names in (["no", "yes"], [-1, 1], [False, True], [2.5, 7.0]):
        u = small(m=20).fit(X, np.array(names)[Y])
        assert u.classes_ == names
        result = u.unlearn([1])
        assert set(result.predict(X).tolist()) == set(names)
        np.testing.assert_array_equal(result.predict(X), u.predict(X))
        np.testing.assert_array_equal(result.predict_proba(X), u.predict_proba(X))
        np.testing.assert_array_equal(u.predict(X), np.array(names)[u.predict_proba(X).argmax(axis=1)])


@pytest.mark.parametrize("part", ["all", "train"])
def test_a_file_is_fitted_like_its_standardised_rows(tmp_path, monkeypatch, part):
    from l2ul_fast.datasets.hdf5 import DatasetWriter
    from l2ul_fast.tables import FileTable

    for module in ("writer", "hdf5"):
        monkeypatch.setattr(f"l2ul_fast.datasets.{module}.chunk_rows", lambda d: 128)
    with DatasetWriter(tmp_path / "a.h5", name="magic", source="standin:t:0", d=6, classes=[1, 0]) as writer:
        writer.append(X * 3 + 100, Y)
    table = FileTable(tmp_path / "a.h5", part)
    ids = table.ids()
    data, labels = table.take(ids)
    by_file, by_array = small().fit(tmp_path / "a.h5", part=part), small().fit(data, labels)
    assert (by_file.n, by_file.classes_, by_file.label) == (len(ids), [0, 1], "stand-in")
    np.testing.assert_allclose(by_file.theta, by_array.theta, atol=1e-12)
    np.testing.assert_array_equal(by_file.cells.counts, by_array.cells.counts)
    np.testing.assert_array_equal(by_file.cells.packed[ids], by_array.cells.packed)
    assert by_file.report_["m"] == by_array.report_["m"]
    places = np.array([0, 64, 500, 1200])
    np.testing.assert_allclose(by_file.unlearn(ids[places]).theta, by_array.unlearn(places).theta, atol=1e-12)
    np.testing.assert_array_equal(by_file.cells.counts, by_array.cells.counts)
    by_content = by_file.unlearn(X=data[[77]], y=labels[[77]])
    assert by_content.rows.tolist() == [ids[77]]
    by_array.unlearn([77])
    for u in (by_file, by_array):
        u.refresh()
    np.testing.assert_allclose(by_file.theta, by_array.theta, atol=1e-12)
    np.testing.assert_array_equal(by_file.cells.counts, by_array.cells.counts)
    if part == "train":
        before = contents(by_file)
        with pytest.raises(UserError, match="is not a training row"):
            by_file.unlearn([kept(2000, ids)[0]])
        same_contents(contents(by_file), before)


# Refresh -------------------------------------------------------------------------------------------------------------


def seed_row(u):
    return int(u.cells.partitions.row_ids[3, 1])


@heads
def test_refresh_removes_rows_from_pairs_and_seeds(head):
    u = fitted(head, m=100, s=40)
    rows = np.array([seed_row(u), 5])
    held = u.learned.pairs.holding(rows) if u.learned.pairs is not None else np.zeros(0)
    u.unlearn(rows)
    done = u.refresh()
    assert done["partitions"] >= 1
    assert done["pairs"] == len(held)
    assert not np.isin(u.cells.partitions.row_ids, rows).any()
    held = np.asarray(u.cells.partitions.row_ids)
    np.testing.assert_array_equal(np.asarray(u.cells.partitions.seeds), X[held])  # seeds are rows, and those rows
    assert all(len(set(row)) == u.cells.psi for row in held.tolist())
    assert_counts(u, X, Y)  # cells are those of the new partitions
    if u.learned.pairs is not None:
        assert not np.isin(u.learned.pairs.rows, rows).any()
        assert len(u.learned.pairs) >= 80
    before = contents(u, (*SCRATCH, "entries"))
    assert u.refresh()["partitions"] == 0  # nothing is left to do
    same_contents(contents(u, (*SCRATCH, "entries")), before)
    u.unlearn([900])


def test_a_seed_that_is_in_no_pair_still_changes_the_direct_head():
    """New partitions mean other inputs: the network has to be trained for them."""
    u = fitted("direct", m=20, s=20)
    row = np.setdiff1d(u.cells.partitions.row_ids, u.learned.pairs.rows)[0]
    before = u.learned.weights["W1.mu_f"].copy()
    u.unlearn([row])
    done = u.refresh()
    assert (done["pairs"], done["head"]) == (0, "network refitted")
    assert not np.array_equal(u.learned.weights["W1.mu_f"], before)


def test_the_exact_downdate_is_a_refit_on_the_pairs_that_stay():
    u = fitted("learned", m=200, s=40)
    pairs, old = u.learned.pairs, u.learned.head
    u.unlearn([5, 77])
    gone = pairs.holding(np.array([5, 77]))
    assert 0 < len(gone) < 40
    assert u.refresh()["head"] == "exact downdate"
    keep = np.setdiff1d(np.arange(len(pairs)), gone)
    again = RidgeHead.fit(pairs.Z[keep], pairs.T[keep], strength=old.strength, scale=old.scale)
    np.testing.assert_allclose(u.step.W, again.W, rtol=1e-6, atol=1e-9 * np.abs(again.W).max())
    np.testing.assert_array_equal(u.learned.pairs.Z, pairs.Z[keep])
    np.testing.assert_array_equal(u.learned.head.Z, pairs.Z[keep])


def test_too_few_rows_for_new_seeds_is_one_sentence():
    u = small(psi=16, s=30).fit(X[:60], Y[:60])
    held = np.unique(u.cells.partitions.row_ids)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RetrainInstead)
        u.unlearn(np.append(np.setdiff1d(np.arange(60), held), held[: len(held) - 12]))
    before = contents(u)
    with pytest.raises(UserError, match="only 12 rows stay, too few for partitions of psi=16"):
        u.refresh()
    same_contents(contents(u), before)


def test_many_refreshes_do_not_use_up_the_pairs():
    u = fitted("learned", m=100, s=100)
    kinds = set()
    for i in range(12):
        u.unlearn([i])
        kinds.add(u.refresh()["head"])
        assert len(u.learned.pairs) >= 80
        assert not np.isin(u.learned.pairs.rows, np.arange(i + 1)).any()
    assert kinds == {"exact downdate", "new pairs"}


@pytest.mark.parametrize("classes", [2, 3])
def test_refresh_takes_the_curvature_at_todays_theta(classes):
    """The old expansion point is the theta that knew the rows: nothing may be left of it."""
    data, labels = logistic_data(classes=classes)
    u = small().fit(data, labels)
    before = u.theta.tobytes()
    u.unlearn(np.arange(60))
    assert u.refresh()["head"] == "curvature of the rows that stay"
    hessian = u.model.hessian(u.theta, data[60:], labels[60:].astype(np.uint8))
    found = u.step.inverse_hessian(u.n)
    for i in range(60, 90):  # for gradients: with three classes there is a direction in which nothing changes
        z = u.model.data_gradient(u.theta, data[i : i + 1], labels[i : i + 1].astype(np.uint8))
        np.testing.assert_allclose(hessian @ (found @ z), z, atol=1e-9)
    assert not [name for name, value in contents(u, ()).items() if isinstance(value, tuple) and before in value[2]]


def test_reanchoring_gives_the_retrained_theta():
    u = fitted()
    rows = np.arange(100)
    u.unlearn(rows)
    assert u.residual() > 1e-7
    assert u.refresh(reanchor=True)["reanchored"]
    np.testing.assert_allclose(u.theta, retrain(u, X, Y, rows), atol=1e-8)
    assert u.residual() < 1e-9
    np.testing.assert_array_equal(u.step.anchor, u.theta)
    before = u.theta
    u.unlearn(np.arange(100, 140))
    assert rho(u.theta, before, retrain(u, X, Y, np.arange(140))) < 0.05


@pytest.mark.parametrize("refresh", [False, True])
def test_a_hundred_requests_one_after_the_other(refresh):
    u = fitted()
    first, gone = u.theta, np.zeros(0, np.int64)
    rng = np.random.default_rng(8)
    for i in range(100):
        rows = rng.choice(kept(2000, gone), 3, replace=False)
        u.unlearn(rows)
        gone = np.append(gone, rows)
        if refresh and i % 20 == 19:
            u.refresh()
    assert rho(u.theta, first, retrain(u, X, Y, gone)) < 0.3
    assert_counts(u, X, Y)
    assert len(u.forget_log) == 100
    assert u.n == 1700


def test_a_learned_correction_is_kept_only_where_it_helps(monkeypatch):
    """With a correction (here: forced) the step is Newton's plus it, and refresh makes it anew."""
    from l2ul_fast.unlearner import fitting

    monkeypatch.setattr(fitting, "transfer", lambda *a: {"prior_alone": 1.0, "with_correction": 0.5})
    real = RidgeHead.fit.__func__

    def forced(cls, Z, T, prior=None, strength=None, scale=None):
        return real(cls, Z, T, prior, strength or (1e3 if prior is not None else None), scale)

    monkeypatch.setattr(RidgeHead, "fit", classmethod(forced))
    u = fitted()
    assert u.report_["head"]["kept"] == "correction"
    assert u.step.correction.shape == (7, 7)
    plain = LogisticModel(6, 2, 1e-3)
    rows = np.arange(10)
    before = u.theta
    total = 10 * plain.gradient(before, *rows_of(rows))
    hessian = plain.hessian(before, *rows_of(kept(2000, rows)))
    expected = before + np.linalg.solve(hessian, total) / 1990 + u.step.correction @ total / 1990
    np.testing.assert_allclose(u.unlearn(rows).theta, expected, atol=1e-10)
    done = u.refresh()
    assert done["pairs"] > 0
    assert done["head"] in ("exact downdate", "new pairs")
    assert u.step.correction.shape == (7, 7)
    np.testing.assert_allclose(u.learned.head.prior, u.step.inverse_hessian(u.n), rtol=1e-12)
    np.testing.assert_allclose(u.step.correction, u.learned.head.W - u.learned.head.prior, atol=1e-12)
    assert not np.isin(u.learned.pairs.rows, rows).any()


def test_one_pair_is_enough_for_newton_and_too_few_to_learn_from():
    u = fitted(m=1)
    before = u.theta
    assert rho(u.unlearn([4]).theta, before, retrain(u, X, Y, [4])) < 0.05
    with pytest.raises(UserError, match="taught nothing: raise m or s"):
        fitted("learned", m=1)
