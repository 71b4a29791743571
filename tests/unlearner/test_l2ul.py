"""L2UL with the expansion: what a request must and must not change, who is refused and how, what a result is."""

import copy
import inspect
import pickle
import warnings

import numpy as np
import pytest
from unlearners import (
    SCRATCH,
    TIMES,
    canonical_of,
    contents,
    data_for,
    kept,
    logistic_data,
    optimum,
    refused,
    retrain,
    rho,
    same_contents,
    small,
    state_of,
)

import l2ul_kernels as lk
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.unlearner import L2UL, RetrainInstead
from l2ul_kernels.request.claims import FORGOTTEN, PRESENT

X, Y = logistic_data()
MODELS = ("lr", "squared", "poisson")
models = pytest.mark.parametrize("model", MODELS)
_fitted = {}


def fitted(**options):
    """A fresh unlearner on X, Y."""
    return L2UL(**options).fit(X, Y)


def rows_of(ids):
    return X[ids], Y[ids].astype(np.uint8)


# The universal tests -------------------------------------------------------------------------------------------------


@models
@pytest.mark.parametrize("nothing", [[], (), np.array([], np.int64), np.zeros(0), np.zeros(0, np.uint8)])
def test_an_empty_request_changes_nothing(model, nothing):
    if model not in _fitted:
        _fitted[model] = L2UL(model).fit(*data_for(model))
    u = _fitted[model]
    before, theta = contents(u), u.theta
    result = u.unlearn(nothing)
    np.testing.assert_array_equal(result.theta, theta)
    same_contents(contents(u), before)
    assert (result.rows.size, result.n, result.error, result.due) == (0, 400, 0.0, None)
    u.unlearn(X=np.zeros((0, 4)), y=[])
    u.unlearn(nothing, rtol=0.0)
    same_contents(contents(u), before)
    assert u.forget_log == []


def test_the_order_of_the_rows_does_not_matter():
    rng = np.random.default_rng(3)
    rows = rng.choice(2000, 50, replace=False)
    states = []
    for order in (rows, rows[::-1], np.sort(rows), list(map(int, rows)), rng.permutation(rows).astype(np.uint32)):
        u = fitted()
        u.unlearn(order)
        states.append(contents(u, SCRATCH + TIMES))
    for state in states[1:]:
        same_contents(state, states[0])


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_kept_is_that_of_the_rows_that_stay(alone):
    u = fitted()
    rng = np.random.default_rng(4)
    gone = np.zeros(0, np.int64)
    for r in (1, 30, 100):
        rows = rng.choice(kept(2000, gone), r, replace=False)
        for part in rows.reshape(-1, 1).tolist() if alone else [rows]:
            u.unlearn(part)
        gone = np.append(gone, rows)
        stay = kept(2000, gone)
        np.testing.assert_array_equal(np.flatnonzero(u.status == FORGOTTEN), np.sort(gone))
        assert (u.status[stay] == PRESENT).all()
        assert not u.store.X[gone].any()
        assert not u.store.y[gone].any()
        np.testing.assert_array_equal(u.store.X[stay], X[stay])
        np.testing.assert_array_equal(u.store.y[stay], Y[stay])
        assert u.n == stay.size == u.head.sums[0]
        np.testing.assert_array_equal(u.class_counts, np.bincount(Y[stay]))
    blocks = [part.copy() for part, _ in u.retained().blocks()]
    np.testing.assert_array_equal(np.concatenate(blocks), X[stay])
    if alone:
        assert [e["rows"].tolist() for e in u.forget_log] == gone.reshape(-1, 1).tolist()
        assert [e["n"] for e in u.forget_log] == list(range(1999, 1868, -1))
    else:
        assert [len(e["rows"]) for e in u.forget_log] == [1, 30, 100]
        assert [e["n"] for e in u.forget_log] == [1999, 1969, 1869]
        np.testing.assert_array_equal(u.forget_log[2]["rows"], np.sort(rows))


def requests(seed):
    """Forget sets of each kind: one row, random ones, one class, one corner of the space."""
    rng = np.random.default_rng(seed)
    near = np.argsort(np.linalg.norm(X - X[rng.integers(2000)], axis=1))
    return {
        "one": rng.choice(2000, 1),
        "some": rng.choice(2000, 20, replace=False),
        "many": rng.choice(2000, 150, replace=False),
        "class": rng.choice(np.flatnonzero(Y == 1), 100, replace=False),
        "cluster": near[:100],
    }


@pytest.mark.parametrize("kind", ["one", "some", "many", "class", "cluster"])
def test_unlearning_comes_close_to_retraining(kind):
    """rho of doing nothing is 1."""
    found, newton = [], []
    for seed in range(5):
        rows = requests(seed)[kind]
        u, two = fitted(), fitted(order=2, anchor="optimum")
        before = optimum(X, Y)
        result = u.unlearn(rows)
        target = retrain(u, X, Y, rows)
        found.append(rho(result.theta, before, target))
        newton.append(rho(two.unlearn(rows).theta, before, target))
        assert u.residual() < np.abs(u.model.gradient(before, *rows_of(kept(2000, rows)))).max()
    assert np.median(found) < (0.01 if kind in ("one", "some", "many") else 0.02), found
    if kind not in ("one", "some"):
        assert np.median(found) < np.median(newton) / 2, (found, newton)


def test_the_residual_is_the_gradient_on_the_rows_that_stay():
    u = fitted(anchor="optimum")
    assert u.residual() < 1e-12
    assert u.residual(np.zeros(7)) == pytest.approx(np.abs(u.model.gradient(np.zeros(7), *rows_of(range(2000)))).max())
    u.unlearn(np.arange(30))
    expected = np.abs(u.model.gradient(u.theta, *rows_of(np.arange(30, 2000)))).max()
    assert u.residual() == pytest.approx(expected, rel=1e-6)
    weights = np.random.default_rng(0).uniform(0.5, 2, 400)
    data, labels = data_for("poisson")
    v = L2UL("poisson", penalty="sum").fit(data, labels, weights)
    v.unlearn(np.arange(50))
    best = optimum(data[50:], labels[50:], "poisson", weights=weights[50:], penalty=1e-3 * weights.sum())
    assert v.residual(best) < 1e-10 < 1e-6 < v.residual(best + 1e-3)


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
    for match, what in [
        ("not among the rows", {"X": X[rows[:1]], "y": Y[rows[:1]]}),  # forgotten
        ("not among the rows", {"X": X[:1], "y": 1 - Y[:1]}),  # another label
        ("given for row 0 are not that row", {"rows": [0], "X": X[1:2], "y": Y[1:2]}),
        ("given for row 0 are not that row", {"rows": [0], "X": X[:1], "y": 1 - Y[:1]}),
        ("give y with X", {"rows": [0], "X": X[:1]}),
    ]:
        with refused(match, by_content):
            by_content.unlearn(**what)


def test_equal_rows_are_taken_one_by_one():
    double, labels = np.r_[X, X[:1], X[:1]], np.r_[Y, Y[:1], Y[:1]]
    double[2000, 0] = double[0, 0] = double[2001, 0] = 0.0
    u = L2UL().fit(double, labels)
    wanted = double[[0, 0]].copy()
    wanted[:, 0] = -0.0  # equal, with other bytes
    np.testing.assert_array_equal(u.unlearn(X=wanted, y=labels[[0, 0]]).rows, [0, 2000])
    with pytest.raises(UserError, match="row 1 of the request is not among"):
        u.unlearn(X=wanted, y=labels[[0, 0]])
    np.testing.assert_array_equal(u.unlearn(X=wanted[:1], y=labels[:1]).rows, [2001])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_without_stored_rows_a_request_brings_them(dtype):
    data = X.astype(dtype) if dtype == np.float32 else logistic_data(dtype=dtype)[0]
    whole, bare = L2UL().fit(data, Y), L2UL(store_rows=False).fit(data, Y)
    rows = np.array([900, 4, 33])
    for match, request in [
        ("give X and y", lambda: bare.unlearn(rows)),
        ("give X and y", lambda: bare.unlearn([4])),
        ("given for row 900", lambda: bare.unlearn(rows, X=data[[901, 4, 33]], y=Y[rows])),
        ("given for row 33", lambda: bare.unlearn([33], X=np.nextafter(data[[33]], dtype(9)), y=Y[[33]])),
        ("given for row 4 ", lambda: bare.unlearn(rows, X=data[rows], y=[Y[900], 1 - Y[4], Y[33]])),
        ("given for row 4 ", lambda: bare.unlearn(rows, X=data[np.sort(rows)], y=Y[np.sort(rows)])),
        ("2 rows but y has 3", lambda: bare.unlearn(rows, X=data[:2], y=Y[:3])),
        ("not among the rows", lambda: bare.unlearn(X=data[rows] + 1, y=Y[rows])),
        ("NaN", lambda: bare.unlearn(rows, X=np.full((3, 6), np.nan), y=Y[rows])),
        ("keeps no rows", bare.residual),
        ("keeps no rows", lambda: bare.unlearn(rows, X=data[rows], y=Y[rows], rtol=1e-3)),
    ]:
        with refused(match, bare):
            request()
    held = [value[1] for value in contents(bare).values() if isinstance(value, tuple)]
    assert data.shape not in held  # X is not kept
    np.testing.assert_array_equal(
        whole.unlearn(rows).theta, bare.unlearn(rows, X=data[rows].astype(np.float64), y=Y[rows]).theta
    )
    one = whole.unlearn([7])
    np.testing.assert_allclose(one.theta, bare.unlearn(X=data[[7]], y=Y[[7]]).theta, rtol=1e-8)
    assert state_of(whole) == state_of(bare)
    assert not bare.store.digests[[4, 7, 33, 900]].any()


# Bad input -----------------------------------------------------------------------------------------------------------

BAD = {
    "unknown": ("row 2000 does not exist", [5, 2000]),
    "alone": ("row 2000 does not exist", [2000]),
    "huge": ("does not exist", [2**62]),
    "largest": ("does not exist", [2**63 - 1]),
    "smallest": ("does not exist", [-(2**63)]),
    "unsigned": ("does not exist", np.array([2**64 - 1], np.uint64)),
    "beyond": ("whole numbers", [10**30]),
    "negative": ("row -1 does not exist", [5, -1]),
    "last": ("row -1 does not exist", [-1]),
    "repeated": ("row 5 is named twice", [5, 9, 5]),
    "forgotten": ("row 17 was forgotten before", [5, 17]),
    "gone": ("row 17 was forgotten before", [17]),
    "fraction": ("whole numbers", [5.0]),
    "half": ("whole numbers", [0.5]),
    "NaN": ("whole numbers", [np.nan]),
    "truth": ("a mask must have 2000 truth values", [True]),
    "mask": ("row 17 was forgotten before", np.ones(2000, bool)),
    "masked": ("masked", np.ma.masked_array([5, 6], mask=[0, 1])),
    "text": ("whole numbers", ["5"]),
    "none": ("whole numbers", [None]),
    "number": ("must be a list", 5),
    "table": ("must be a list", [[5, 6]]),
    "ragged": ("list of whole numbers", [[5], [6, 7]]),
    "everything": ("takes out all rows: delete", kept(2000, [17])),
    "class": ("all rows of class 1", np.setdiff1d(np.flatnonzero(Y == 1), [17])),
    "nothing": ("by number, or give X and y", None),
}


@pytest.mark.parametrize("store_rows", [True, False])
def test_bad_requests_are_one_sentence_and_change_nothing(store_rows):
    u = fitted(store_rows=store_rows)
    u.unlearn([17], X[[17]], Y[[17]])
    for match, rows in BAD.values():
        given = (
            ()
            if store_rows or rows is None or match.endswith(("list", "numbers"))
            else (X[: len(rows)], Y[: len(rows)])
        )
        with refused(match if store_rows else f"{match}|not that row", u):
            u.unlearn(rows, *given)
    for rtol in (-1.0, np.nan, "a", [1e-3], True) if store_rows else ():
        with refused("rtol must be", u):
            u.unlearn([5], rtol=rtol)
    for match, rows, labels in [
        ("NaN", np.full((1, 6), np.nan), [0]),
        ("shape", X[:1, :5], [0]),
        ("not one of the model's", X[:1], [2]),
        ("1 rows but y has 2", X[:1], [0, 1]),
        ("or give X and y", X[:1], None),
        ("numbers", [["a"] * 6], [0]),
        ("not among the rows", np.zeros((1, 6)), [0]),
    ]:
        with refused(match, u):
            u.unlearn(X=rows, y=labels)
    for use in (u.predict, u.predict_proba):
        with pytest.raises(DataError, match="NaN"):
            use(np.full((1, 6), np.nan))
    assert issubclass(UserError, ValueError)


@pytest.mark.parametrize("model", ["squared", "poisson"])
def test_a_model_of_numbers_keeps_a_row(model):
    data, numbers = data_for(model, 6, 1)
    u = L2UL(model, lam=0.1).fit(data, numbers)
    for rows in (range(6), [0, 1, 2, 3, 4, 5]):
        with pytest.raises(UserError, match="takes out all rows: delete"):
            u.unlearn(list(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RetrainInstead)
        u.unlearn([0, 1, 2, 3])
        u.unlearn([4])
    with pytest.raises(UserError, match="takes out all rows: delete"):
        u.unlearn([5])
    assert (u.n, u.class_counts.size) == (1, 0)
    with pytest.raises(UserError, match="no class probabilities"):
        u.predict_proba(data)


def test_the_last_rows_of_a_class_are_refused_one_by_one():
    rare = np.zeros(2000, int)
    rare[:40] = 1
    u = L2UL().fit(X + 2 * rare[:, None].astype(np.float32), rare)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RetrainInstead)
        u.unlearn(np.arange(39))
        for rows in ([39], [39, 50]):
            with refused("all rows of class 1", u):
                u.unlearn(rows)
        u.unlearn([50])


def test_bad_training_data_is_one_sentence_and_keeps_the_old_fit():
    u = fitted()
    u.unlearn([3])
    bad = X.copy()
    bad[7, 2] = np.inf
    ones = np.ones(2000)
    for match, rows, labels, weights in [
        ("row 7 of X has a NaN or an infinity", bad, Y, None),
        ("only one class", X, np.zeros(2000), None),
        ("2000 rows but y has 3", X, Y[:3], None),
        ("two rows at least|one class", X[:1], Y[:1], None),
        ("NaN", X, np.full(2000, np.nan), None),
        ("numbers", [["a", "b"]], [0], None),
        ("not a path", X, None, None),
        ("finite and at least 0", X, Y, -ones),
        ("finite and at least 0", X, Y, np.nan * ones),
        ("2000 numbers", X, Y, ones[:5]),
        ("must hold numbers", X, Y, ["a"] * 2000),
        ("weight 0", X, Y, 0 * ones),
        ("no row of class 1", X, Y, (Y == 0).astype(float)),
        ("without weights", "a.h5", None, ones),
    ]:
        with refused(match, u):
            u.fit(rows, labels, weights)
    with refused("missing", u, DataError):
        u.fit("missing.h5")
    for model, match, labels in [
        ("squared", "numbers", ["a"] * 2000),
        ("squared", "finite", np.full(2000, np.inf)),
        ("poisson", "negative", -ones),
        ("poisson", "list", np.ones((2000, 1))),
    ]:
        with refused(match):
            L2UL(model).fit(X, labels)


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("model must be", {"model": "svm"}),
        ("head must be", {"head": "x"}),
        ("prior must be", {"prior": "x"}),
        ("lam must be positive", {"lam": 0}),
        ("lam must be positive", {"lam": np.nan}),
        ("lam must", {"lam": np.inf}),
        ("lam must be positive", {"lam": "1e-3"}),
        ("lam must be positive", {"lam": None}),
        ("psi must be at least 2", {"psi": 1}),
        ("psi must be", {"psi": 5000}),
        ("t must be", {"t": 0}),
        ("t must be", {"t": 10**9}),
        ("m must be at least 1", {"m": 0}),
        ("m must be a whole number", {"m": 10.5}),
        ("s must be", {"s": 19}),
        ("hidden must be", {"hidden": 0}),
        ("activation must be", {"activation": "x"}),
        ("random_state must be", {"random_state": -1}),
        ("anchor_rows must be", {"anchor_rows": -1}),
        ("order must be at least 2 and at most 3", {"order": 4}),
        ("order must be", {"order": "3"}),
        ("anchor must", {"anchor": "x"}),
        ("penalty must be", {"penalty": "max"}),
        ('head "expansion" only', {"model": "squared", "head": "learned"}),
        ("anchor", {"anchor": [[1.0], [1.0, 2.0]]}),
        ("anchor", {"anchor": ["a"]}),
    ],
)
def test_bad_options_are_one_sentence(match, options):
    with refused(match):
        L2UL(**options)


ODD = (None, "1e-3", 1j, np.ones(2), np.zeros((2, 2)), [1], {}, b"x", float("nan"), -1, 10**30, 10.5, object(), "a\nb")


@pytest.mark.parametrize("name", inspect.signature(L2UL).parameters)
def test_options_of_odd_types_are_taken_or_one_sentence(name):
    default = inspect.signature(L2UL).parameters[name].default
    for value in ODD:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                kept = L2UL(**{name: value}).params.get(name)
            except UserError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert len(str(error)) < 300  # noqa: PT017
            else:
                assert name in ("anchor", "lam", "prior") or value is None or isinstance(kept, type(default) | int)
    for name, value in (("robust", "no"), ("store_rows", "False"), ("robust", np.ones(2)), ("model", np.array(["lr"]))):
        with refused(name):
            L2UL(**{name: value})
    assert L2UL(robust=np.True_).params["robust"] is True


@pytest.mark.parametrize("anchor", [np.zeros(6), np.full(7, np.nan), np.zeros((7, 1)), [], 0.0])
def test_an_anchor_that_does_not_fit_is_one_sentence(anchor):
    with refused("anchor"):
        fitted(anchor=anchor)


def test_what_needs_a_fit_says_so():
    u = L2UL()
    assert not u.__sklearn_is_fitted__()
    for use in (
        lambda: u.unlearn([1]),
        lambda: u.unlearn([1, 2]),
        lambda: u.unlearn([1], rtol=0.1),
        lambda: u.unlearn(X=X[:1], y=Y[:1]),
        lambda: u.learn(X[:1], Y[:1]),
        lambda: u.predict(X),
        lambda: u.theta,
        lambda: u.due,
        lambda: u.class_counts,
        u.refresh,
        u.retained,
        lambda: u.save("x"),
        u.residual,
    ):
        with pytest.raises(UserError, match="not fitted yet"):
            use()
    assert not hasattr(u, "nonsense")
    assert "not fitted" in repr(u)
    assert not u.copy().__sklearn_is_fitted__()
    assert u.fit(X, Y).__sklearn_is_fitted__()


# Results -------------------------------------------------------------------------------------------------------------


@models
def test_a_result_is_a_value(model):
    data, labels = data_for(model)
    u = L2UL(model).fit(data, labels)
    for rows in ([5], [6, 7]):
        result = u.unlearn(rows)
        theta, predictions = result.theta.copy(), result.predict(data)
        for held in (result.theta, u.theta):
            with pytest.raises(ValueError, match="read-only"):
                held[:] = 0
        later = u.unlearn([50 + rows[0]])
        u.unlearn(np.arange(100, 120))
        u.refresh()
        u.class_counts[:] = 0
        np.testing.assert_array_equal(result.theta, theta)
        np.testing.assert_array_equal(result.predict(data), predictions)
        assert result.rows.tolist() == rows
        assert result.n == later.n + 1
        assert not np.array_equal(later.theta, theta)
        if model == "lr":
            np.testing.assert_array_equal(result.predict_proba(data).argmax(axis=1), predictions)
            assert u.class_counts.sum() == u.n
        u.fit(data, labels)
    assert pickle.loads(pickle.dumps(result)).theta.tobytes() == theta.tobytes()  # noqa: S301


@models
def test_objects_and_results_say_what_they_are(model):
    data, labels = data_for(model)
    u = L2UL(model, lam=0.02).fit(data, labels)
    text = repr(u)
    for part in (f"{model!r}", "expansion", "lam=0.02", "400 rows x 4", "0 forgotten"):
        assert part in text
    result = u.unlearn([5])
    for part in ("1 row", "399 stay", f"{result.error:.1e}", "order 3"):
        assert part in repr(result)
    assert "1 forgotten" in repr(u)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RetrainInstead)
        result = u.unlearn(np.setdiff1d(np.argsort(data[:, 0])[150:], 5))
    assert f"due: {u.due}" in repr(u)
    assert "due: " in repr(result)
    assert "\n" not in repr(u) + repr(result)
    assert "not known" in repr(L2UL(model="lr", order=2).fit(X, Y).unlearn([4]))


def test_an_error_that_is_large_is_warned_of():
    u = fitted(lam=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ok = u.unlearn(np.arange(10))
    assert ok.error < 0.1
    one = np.flatnonzero(Y == 1)
    with pytest.warns(RetrainInstead, match="call refresh") as caught:
        much = u.unlearn(one[one >= 10][:-3])
    assert caught[0].filename == __file__
    assert much.error > 0.5
    assert much.due


def test_old_names_work_with_a_warning():
    for options, head in [
        ({"head": "influence"}, "expansion"),
        ({"head": "direct"}, "paper"),
        ({"prior": "newton"}, "expansion"),
        ({"prior": "none"}, "learned"),
        ({"head": "influence", "prior": "none"}, "learned"),
    ]:
        with pytest.warns(DeprecationWarning, match="is now head=") as caught:
            u = L2UL(**options)
        assert u.params["head"] == head
        assert caught[0].filename == __file__
    u = fitted()
    with pytest.warns(DeprecationWarning, match="reanchor"):
        u.refresh(reanchor=True)
    result = u.unlearn(np.arange(20))
    with pytest.warns(DeprecationWarning, match="replaced by"):
        trust = result.trust
    assert (trust.share, trust.advice) == (0.01, "ok")


def test_the_context_manager_finishes_what_is_due():
    rows = np.argsort(X[:, 0])[:300]
    with fitted() as u:
        u.unlearn(rows)
        assert u.due
    assert u.due is None
    left = np.flatnonzero(u.status == PRESENT)
    assert state_of(u) == state_of(L2UL().fit(X[left], Y[left]))
    v = fitted()
    with pytest.raises(UserError, match="named twice"), v:
        v.unlearn([3, 3] if v.unlearn(rows).due else [])
    assert v.due  # whatever went wrong is not made worse by a pass over the data
    with fitted() as quiet:
        quiet.unlearn([3])
        entries = len(quiet.entries)
        due = quiet.due
    assert (len(quiet.entries) > entries) == (due is not None)


@models
@pytest.mark.parametrize("how", ["copy", "deepcopy", "pickle", "shallow"])
def test_copies_are_independent_and_answer_alike(model, how):
    data, labels = data_for(model)
    u = L2UL(model).fit(data, labels)
    u.unlearn([5])
    u.unlearn([1, 2])
    make = {
        "copy": L2UL.copy,
        "deepcopy": copy.deepcopy,
        "shallow": copy.copy,
        "pickle": lambda w: pickle.loads(pickle.dumps(w)),  # noqa: S301 - its own bytes
    }[how]
    v = make(u)
    same_contents(contents(v), contents(u))
    before = contents(u)
    found = v.unlearn([7]), v.unlearn([8, 9])
    v.learn(0.5 * data[:2], labels[:2])
    v.refresh()
    same_contents(contents(u), before)
    for rows, result in zip(([7], [8, 9]), found, strict=True):
        np.testing.assert_array_equal(u.unlearn(rows).theta, result.theta)
    w = make(v)
    assert w._lock is not v._lock
    np.testing.assert_array_equal(w.theta, v.theta)
    assert [e["rows"].tolist() for e in w.forget_log] == [[5], [1, 2], [7], [8, 9]]


# Determinism ---------------------------------------------------------------------------------------------------------


@models
def test_any_number_of_threads_gives_the_same_bits(model):
    data, labels = data_for(model, 1500)
    states = []
    for threads in (1, 2, 2):
        with lk.threads(threads):
            u = L2UL(model).fit(data, labels)
            u.unlearn([5, 900])
            u.unlearn([6])
            u.unlearn(np.setdiff1d(np.arange(40, 1300), 900))  # enough for two threads
            left = state_of(u)
            u.refresh()
            states.append((left, state_of(u), u.theta.tobytes()))
    assert states[0] == states[1] == states[2]


def test_a_fresh_seed_is_drawn_and_kept():
    a, b = small(random_state=None), small(random_state=None)
    assert a.params["random_state"] != b.params["random_state"]


# Kinds of data -------------------------------------------------------------------------------------------------------


@models
def test_other_layouts_and_types_of_the_same_rows(model):
    data, labels = data_for(model)
    rows = np.arange(30)
    u = L2UL(model).fit(data, labels)
    before, left = u.theta, u.unlearn(rows).theta
    assert u.store.X.dtype == np.float64
    wide = np.repeat(np.repeat(data, 2, axis=0), 2, axis=1)
    for given in (
        np.asfortranarray(data),
        data.tolist(),
        np.ascontiguousarray(data[:, ::-1])[:, ::-1],
        data[::-1].copy()[::-1],
        wide[::2, ::2],
        data.astype(">f8"),
    ):
        again = L2UL(model).fit(given, labels.tolist())
        np.testing.assert_array_equal(again.theta, before)
        np.testing.assert_array_equal(again.unlearn(rows).theta, left)
        assert state_of(again) == state_of(u)
    single = L2UL(model).fit(data.astype(np.float32), labels)
    assert single.store.X.dtype == np.float32
    np.testing.assert_allclose(single.unlearn(rows).theta, left, atol=1e-3)


def test_columns_without_values_and_far_from_the_origin():
    data = X.astype(np.float64)
    data[:, 1] = 0
    data[:, 2] += 30
    data[:, 3] = 2.5
    u = L2UL().fit(data, Y)
    before = optimum(data, Y)
    assert u.theta[1] == 0
    result = u.unlearn(np.arange(40))
    target = optimum(data[40:], Y[40:])
    assert rho(result.theta, before, target) < 0.05
    assert result.theta[1] == 0
    np.testing.assert_array_equal(fitted().unlearn([3]).theta, fitted().unlearn([3]).theta)


@models
@pytest.mark.parametrize("scales", [(1.0, 1e8), (1e-8, 1.0), (1e-5, 1e5)], ids=str)
def test_features_on_scales_far_apart_converge(model, scales):
    data, labels = data_for(model)
    units = np.append(np.geomspace(*scales, 4), 1.0)
    data = (data + 1) * units[:4]
    labels = labels.astype(np.uint8) if model == "lr" else labels
    u = L2UL(model, anchor="optimum").fit(data, labels)
    for rows in ([], [3], [4, 5, 6]):
        assert u.unlearn(rows).error < 0.2
        u.refresh()
        stay = u.status == PRESENT
        gradient = u.model.data_gradient(u.theta, data[stay], labels[stay]) + u.model.penalty_gradient(u.theta)
        assert np.abs(gradient / units).max() < 1e-7  # in the columns' own units


def test_the_given_arrays_are_never_changed():
    data, labels = logistic_data()
    weights = np.random.default_rng(0).uniform(0.5, 1, 2000)
    copies = data.copy(), labels.copy(), weights.copy()
    for array in (data, labels, weights):
        array.setflags(write=False)
    for given in (None, weights):
        u = L2UL().fit(data, labels, given)
        u.unlearn(np.arange(50))
        u.unlearn([60])
        u.refresh()
    numbers = labels.astype(np.float64)
    v = L2UL("squared").fit(data, numbers)
    v.unlearn([3])
    v.unlearn([4, 5])
    np.testing.assert_array_equal(numbers, copies[1])
    for now, then in zip((data, labels, weights), copies, strict=True):
        np.testing.assert_array_equal(now, then)


def test_labels_are_given_back_as_they_came():
    for names in (["no", "yes"], [-1, 1], [False, True], [2.5, 7.0]):
        u = L2UL().fit(X, np.array(names)[Y])
        assert u.classes_ == names
        result = u.unlearn([1])
        assert set(result.predict(X).tolist()) == set(names)
        np.testing.assert_array_equal(result.predict(X), u.predict(X))
        np.testing.assert_array_equal(result.predict_proba(X), u.predict_proba(X))
        np.testing.assert_array_equal(u.predict(X), np.array(names)[u.predict_proba(X).argmax(axis=1)])


@pytest.mark.parametrize("model", ["squared", "poisson"])
def test_predictions_of_numbers_are_expected_targets(model):
    data, numbers = data_for(model)
    u = L2UL(model).fit(data, numbers)
    z = data @ u.theta[:-1] + u.theta[-1]
    np.testing.assert_allclose(u.predict(data), np.exp(z) if model == "poisson" else z, rtol=1e-12)
    assert u.classes_ == []


@pytest.mark.parametrize("part", ["all", "train"])
def test_a_file_is_fitted_like_its_standardised_rows(tmp_path, monkeypatch, part):
    from l2ul_fast.datasets.file.hdf5 import DatasetWriter
    from l2ul_fast.tables import FileTable

    for module in ("writer", "hdf5"):
        monkeypatch.setattr(f"l2ul_fast.datasets.file.{module}.chunk_rows", lambda d: 128)
    with DatasetWriter(tmp_path / "a.h5", name="magic", source="standin:t:0", d=6, classes=[1, 0]) as writer:
        writer.append(X * 3 + 100, Y)
    ids = FileTable(tmp_path / "a.h5", part).ids()
    by_file = L2UL().fit(tmp_path / "a.h5", part=part)
    data, labels = by_file.standardise(X[ids] * 3 + 100), Y[ids]
    assert np.abs(data.mean(axis=0)).max() < 0.1
    assert 0.7 < data.std(axis=0).min() <= data.std(axis=0).max() < 1.5
    by_array = L2UL().fit(data, labels)
    np.testing.assert_array_equal(by_array.standardise(data), data)  # arrays are used as they are
    assert (by_file.n, by_file.classes_, by_file.label) == (len(ids), [0, 1], "stand-in")
    assert state_of(by_file) == state_of(by_array)
    places = np.array([0, 64, 500, 1200])
    by_file.unlearn(ids[places])
    by_array.unlearn(places)
    by_content = by_file.unlearn(X=data[[77]], y=labels[[77]])
    assert by_content.rows.tolist() == [ids[77]]
    by_array.unlearn([77])
    assert state_of(by_file) == state_of(by_array)
    np.testing.assert_array_equal(canonical_of(by_file), canonical_of(by_array))
    np.testing.assert_allclose(by_file.theta, by_array.theta, atol=1e-6)  # a single row of an array is answered at once
    for u in (by_file, by_array):
        u.refresh()
    assert state_of(by_file) == state_of(by_array)
    np.testing.assert_array_equal(by_file.theta, by_array.theta)
    with pytest.raises(UserError, match="fitted on a file"):
        by_file.learn(data[:1], labels[:1])
    if part == "train":
        for rows in ([int(kept(2000, ids)[0])], kept(2000, ids)[:2]):
            with refused("is not a training row", by_file):
                by_file.unlearn(rows)


# Refresh -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anchor", ["grid", "optimum"])
def test_refresh_leaves_nothing_of_the_former_model(anchor):
    """The old expansion point is, or is near, the theta that knew the rows: nothing may be left of it."""
    u = fitted(anchor=anchor)
    before = u.theta.tobytes()
    rows = np.argsort(X[:, 0])[:300]
    u.unlearn(rows)
    assert u.residual() > 1e-9
    done = u.refresh()
    assert done["expanded"]
    left = kept(2000, rows)
    other = L2UL(anchor=anchor).fit(X[left], Y[left])
    if anchor == "grid":
        assert state_of(u) == state_of(other)
        np.testing.assert_array_equal(u.theta, other.theta)
    np.testing.assert_allclose(u.theta, retrain(u, X, Y, rows), atol=1e-3 if anchor == "grid" else 1e-9)
    found = contents(u, ("entries", "history"))
    assert not [name for name, value in found.items() if isinstance(value, tuple) and before in value[2]]
    before = u.theta
    u.unlearn(kept(2000, rows)[:40])
    assert rho(u.theta, before, retrain(u, X, Y, np.r_[rows, kept(2000, rows)[:40]])) < 0.05


def test_a_refresh_that_has_nothing_to_do_settles_theta_on_the_integers():
    u = fitted()
    for row in range(1900, 1950):
        u.unlearn([row])
    if u.due is None:
        state = state_of(u)
        exact = canonical_of(u)
        assert u.refresh() == {"expanded": False, "why": None}
        assert state_of(u) == state
        np.testing.assert_array_equal(u.theta, exact)
    u.refresh()
    u.refresh()
    settled = contents(u, (*SCRATCH, "entries"))
    u.refresh()
    same_contents(contents(u, (*SCRATCH, "entries")), settled)


def test_progress_is_told():
    seen = []
    u = L2UL().fit(X, Y, progress=lambda what, done, total: seen.append((what, done, total)))
    assert seen[-1][1] == seen[-1][2]
    assert all(0 <= done <= total for _, done, total in seen)
    u.unlearn(np.argsort(X[:, 0])[:300])
    seen.clear()
    u.refresh(progress=lambda what, done, total: seen.append(what))
    assert seen


def test_arrays_need_no_h5py(run_python):
    out = run_python(
        """
import sys; sys.modules["h5py"] = None
import numpy as np
from l2ul_fast import L2UL
X = np.random.default_rng(0).normal(size=(300, 3))
print(L2UL("lr").fit(X, X[:, 0] > 0).unlearn([3]).n)
"""
    )
    assert out.split() == ["299"]
