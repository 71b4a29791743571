"""Which rows a request names, and which columns: positions, masks, labels, names; and what becomes of them."""

import pickle
import warnings

import numpy as np
import pytest
from unlearners import kept, logistic_data, refused, state_of

from l2ul_fast import L2UL
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.unlearner.rows import RowLabels, row_numbers
from l2ul_fast.unlearner.sklearn import unlearn_estimator

pandas = pytest.importorskip("pandas")

X, Y = logistic_data(300, 3, dtype=np.float64)
COLUMNS = ["age", "height", "weight"]
PEOPLE = [f"person {k} of 300" for k in range(300)]
MIXED = [1.5, None, True, *PEOPLE[3:]]


def frame(index=None, columns=COLUMNS):
    return pandas.DataFrame(X, columns=columns, index=index)


def fitted(index=None, **options):
    return L2UL(**options).fit(frame(index), Y)


def forgotten(u, *request, **named):
    """Positions that a request takes out of a copy of u."""
    return u.copy().unlearn(*request, **named).rows.tolist()


def mask(*rows):
    return np.isin(np.arange(300), rows)


class Polars:
    """What a polars frame is to us: columns by name, no index."""

    def __init__(self, data, columns):
        self.data, self.columns = np.asarray(data), list(columns)

    def __array__(self, dtype=None, copy=None):
        return self.data.astype(dtype or self.data.dtype)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, names):
        return Polars(self.data[:, [self.columns.index(name) for name in names]], names)


# Rows ----------------------------------------------------------------------------------------------------------------

SHUFFLED = np.random.default_rng(0).permutation(1000)[:300]


def test_positions_and_masks_are_of_what_was_fitted():
    for u in (L2UL().fit(X, Y), fitted(), fitted(PEOPLE)):
        for rows in ([4, 9], (4, 9), np.array([9, 4], np.uint8), range(4, 10, 5), mask(4, 9), mask(4, 9).tolist()):
            assert forgotten(u, rows) == [4, 9]
        for match, rows in [
            ("a mask must have 300 truth values", np.ones(299, bool)),
            ("a mask must have 300 truth values", [True]),
            ("not truth values", [True, 5]),
            ("row numbers must be whole numbers", [4.0]),
            ("masked", np.ma.masked_array([7, 8], mask=[0, 1])),
        ]:
            with refused(match, u):
                u.unlearn(rows)


@pytest.mark.parametrize("index", [None, PEOPLE, SHUFFLED, pandas.date_range("2020-01-01", periods=300)])
def test_labels_are_looked_up_in_the_index_of_the_fitted_frame(index):
    u, own = fitted(index), frame(index).index
    for named in (own[[9, 4]], own[[9, 4]].to_series(), pandas.Series(own[[4, 9]])):
        assert forgotten(u, named) == [4, 9]
        assert forgotten(u, labels=named) == [4, 9]
    assert forgotten(u, labels=own[[9, 4]].tolist()) == [4, 9]
    yes = pandas.Series(mask(4, 9), index=own)
    assert forgotten(u, yes) == [4, 9]
    assert forgotten(u, yes.sample(frac=1, random_state=0)) == [4, 9]  # by its labels, in any order
    assert forgotten(u, yes.astype("boolean")) == [4, 9]
    for match, request in [
        ("no row of the model has the label 'nobody'", {"labels": ["nobody"]}),
        ("is named twice", {"labels": own[[4, 4]]}),
        ("by numbers or by labels, not both", {"rows": [3], "labels": own[:1]}),
        ("must be a list of labels", {"labels": "person 1"}),
        ("must be a list of labels", {"labels": 3}),
        ("hashable", {"labels": [[1]]}),
        ("the mask says nothing of row", {"rows": yes[5:]}),
        ("missing values", {"rows": yes.astype("boolean").where(own != own[3])}),
    ]:
        with refused(match, u):
            u.unlearn(**request)
    u.unlearn(labels=own[[4, 9]])
    with refused("no row of the model has the label .* was forgotten", u):
        u.unlearn(labels=own[[9]])
    assert forgotten(u, pandas.Series(mask(20), index=own)) == [20]  # the mask may still speak of those that left
    assert state_of(u) == state_of(u.copy())


def test_a_label_of_several_rows_means_all_of_them():
    index = np.array(PEOPLE, object)
    index[[7, 8]] = "twins"
    u = fitted(index)
    with pytest.warns(UserWarning, match=r"label 'twins' names several rows \(2\)") as caught:
        assert forgotten(u, labels=["twins", PEOPLE[3]]) == [3, 7, 8]
    assert caught[0].filename == __file__
    assert forgotten(u, pandas.Series(mask(7, 8), index=index)) == [7, 8]
    with refused("yes and no for rows of the same label", u):
        u.unlearn(pandas.Series(mask(7), index=index))


def test_numbers_that_may_be_labels_are_warned_of_once():
    u = fitted(SHUFFLED)
    inside, outside = (np.flatnonzero(np.isin(np.arange(300), SHUFFLED) == yes)[:3].tolist() for yes in (True, False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        u.unlearn(outside[:1])
        u.unlearn([outside[1], inside[1]])
    with pytest.warns(UserWarning, match="taken as positions.*labels=") as caught:
        assert u.unlearn(inside[:1]).rows.tolist() == inside[:1]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        u.unlearn(inside[2:])
        fitted().unlearn([5])
        fitted(PEOPLE).unlearn([5])


def test_labels_of_arrays_are_refused_and_not_taken_as_positions():
    u = L2UL().fit(X, Y)
    for match, rows in [
        ("a pandas Series names rows by their labels", pandas.Series([3, 4])),
        ("a pandas Index names rows by their labels", pandas.Index([3, 4])),
        ("the index of the mask is not 0 to 299", pandas.Series(mask(3), index=np.arange(300)[::-1])),
    ]:
        with refused(match, u):
            u.unlearn(rows)
    with refused("not fitted on a frame", u):
        u.unlearn(labels=[3])
    assert forgotten(u, pandas.Series(mask(3))) == [3]


def test_learned_rows_have_the_labels_they_came_with():
    u = fitted(PEOPLE)
    new = frame([f"new {k}" for k in range(300)])[:3] * 0.5
    u.learn(new, Y[:3])
    assert forgotten(u, labels=["new 1"]) == [301]
    u.learn(new.to_numpy(), Y[:3])  # none
    assert forgotten(u, [304]) == [304]
    assert forgotten(u, labels=["new 2", PEOPLE[0]]) == [0, 302]
    v = fitted()
    v.learn(new.set_index(pandas.Index([300, 301, 302])), Y[:3])
    assert v.labels.known is None
    v.learn(new, Y[:3])
    assert forgotten(v, labels=[5, 301, "new 0"]) == [5, 301, 303]


def test_without_stored_rows_labels_name_what_is_brought():
    u = fitted(PEOPLE, store_rows=False)
    some = frame(PEOPLE).iloc[[9, 4]]
    expected = fitted().unlearn([4, 9])
    found = u.unlearn(labels=some.index, X=some[["weight", "age", "height"]], y=Y[[9, 4]])
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-9)


def test_baselines_estimators_and_networks_resolve_rows_alike():
    from sklearn.linear_model import LogisticRegression

    from l2ul_fast.baselines import make
    from l2ul_fast.models import LogisticModel
    from l2ul_fast.tables import ArrayTable

    method = make("newton")
    method.prepare(ArrayTable(X, Y.astype(np.uint8), [0, 1]), LogisticModel(3))
    np.testing.assert_array_equal(method.unlearn(mask(4, 9)).theta, method.unlearn([4, 9]).theta)
    with refused("masked"):
        method.unlearn(np.ma.masked_array([7, 8], mask=[0, 1]))
    data = frame(PEOPLE)
    before = LogisticRegression(tol=1e-10).fit(data, Y)
    expected = unlearn_estimator(before, data, Y, [4, 9])
    for rows in (mask(4, 9), data.index[[4, 9]], pandas.Series(mask(4, 9), index=PEOPLE)):
        np.testing.assert_array_equal(unlearn_estimator(before, data, Y, rows).coef_, expected.coef_)
    turned = unlearn_estimator(before, data[COLUMNS[::-1]], Y, [4, 9])
    np.testing.assert_array_equal(turned.coef_, expected.coef_)
    assert row_numbers(mask(2, 3), 300).tolist() == [2, 3]


# Columns -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [pandas.DataFrame, Polars], ids=["pandas", "polars"])
def test_columns_are_those_of_the_fit_wherever_rows_are_given(made):
    u = L2UL().fit(made(X, columns=COLUMNS), Y)
    whole, other = made(X, columns=COLUMNS), made(X[:, ::-1].copy(), columns=COLUMNS[::-1])
    assert u.columns == tuple(COLUMNS)
    result = u.copy().unlearn([5])
    for use in (u.predict, u.predict_proba, result.predict, result.predict_proba, u.standardise):
        np.testing.assert_array_equal(use(other), use(whole))
        np.testing.assert_array_equal(use(X), use(whole))
    some = made(X[3:5, ::-1].copy(), columns=COLUMNS[::-1])
    assert forgotten(u, X=some, y=Y[3:5]) == [3, 4]
    assert forgotten(u, [3, 4], some, Y[3:5]) == [3, 4]
    a, b = u.copy(), u.copy()
    a.learn(some, Y[3:5])
    b.learn(X[3:5], Y[3:5])
    assert state_of(a) == state_of(b)
    for match, names in [
        ("X lacks the column 'weight' and has the column 'mass', which the fit", ["age", "height", "mass"]),
        ("X lacks the column 'weight': give", ["age", "height"]),
        ("X has the column 'mass', which the fit did not have: give", [*COLUMNS, "mass"]),
        ("of the same name|lacks", ["age", "age", "height"]),
    ]:
        wrong = made(np.zeros((2, len(names))), columns=names)
        for use in (u.predict, result.predict, lambda X: u.learn(X, [0, 1]), lambda X: u.unlearn(X=X, y=[0, 1])):
            with refused(match, u, DataError):
                use(wrong)


def test_columns_that_are_no_names_are_not_asked_for():
    u = L2UL().fit(pandas.DataFrame(X), Y)
    assert u.columns is None
    u.predict(frame())
    with refused("words and others mixed"):
        L2UL().fit(frame(columns=["a", 1, 2]), Y)
    double = L2UL().fit(frame(columns=["a", "a", "b"]), Y)
    double.predict(frame(columns=["a", "a", "b"]))
    with refused("nobody knows which is which", error=DataError):
        double.predict(frame(columns=["b", "a", "a"]))


def test_targets_in_another_order_than_the_rows_are_refused():
    y = pandas.Series(Y, index=PEOPLE)
    for who in (L2UL().fit, fitted(PEOPLE).learn):
        with refused("the labels of X in another order"):
            who(frame(PEOPLE), y[::-1])
    with refused("sample_weight has the labels of X in another order"):
        L2UL().fit(frame(PEOPLE), y, pandas.Series(1.0, index=PEOPLE[::-1]))
    assert state_of(L2UL().fit(frame(PEOPLE), y)) == state_of(fitted())


# Saved and forgotten -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [None, PEOPLE, SHUFFLED, MIXED], ids=["default", "words", "numbers", "mixed"])
@pytest.mark.parametrize("store_rows", [True, False])
def test_names_survive_the_disk(index, store_rows, tmp_path):
    data, u = frame(index), fitted(index, store_rows=store_rows)
    rows = {} if store_rows else {"X": data.iloc[[4, 9]], "y": Y[[4, 9]]}
    u.save(tmp_path / "a", defer=True)
    u.unlearn([4, 9], **rows)
    u.save(tmp_path / "a", defer=True)  # a journal
    for v in (L2UL.load(tmp_path / "a"), pickle.loads(pickle.dumps(u)), u.copy()):  # noqa: S301 - our own
        assert (v.columns, v.labels.fact()) == (tuple(COLUMNS), u.labels.fact())
        bring = {} if store_rows else {"X": data.iloc[[20]], "y": Y[[20]]}
        assert v.unlearn(labels=data.index[[20]], **bring).rows.tolist() == [20]
        with refused("no row of the model has the label", v):
            v.unlearn(labels=data.index[[9]], **rows)
        with refused("lacks the column 'age'", v, DataError):
            v.predict(data.rename(columns={"age": "years"}))


@pytest.mark.parametrize("how", ["defer", "whole"])
def test_the_label_of_a_forgotten_row_is_nowhere(how, tmp_path):
    u = fitted(PEOPLE)
    u.save(tmp_path / "u", defer=True)
    for row in (17, 41):
        u.unlearn([row])
    u.unlearn(labels=[PEOPLE[99]])
    u.save(tmp_path / "u", defer=how == "defer")
    held = [path.read_bytes() for path in (tmp_path / "u").iterdir()] + [pickle.dumps(u)]
    assert any(PEOPLE[18].encode() in part for part in held)
    for gone in (17, 41, 99):
        assert not any(PEOPLE[gone].encode() in part for part in held)


def test_labels_that_cannot_be_saved_are_refused_afterwards(tmp_path):
    u = fitted(pandas.date_range("2020-01-01", periods=300))
    u.save(tmp_path)
    v = L2UL.load(tmp_path)
    with refused("labels of the rows are of a kind that is not saved", v):
        v.unlearn(labels=["2020-01-02"])
    assert v.unlearn([3]).rows.tolist() == [3]
    v.learn(frame()[:2], Y[:2])
    v.save(tmp_path)
    assert L2UL.load(tmp_path).columns == tuple(COLUMNS)


def test_saved_names_that_make_no_sense_are_refused():
    good = RowLabels(np.array([3, 9])).arrays()
    assert RowLabels.from_saved("kept", good, 2).known.tolist() == [3, 9]
    words = RowLabels(np.array(["a", None], object)).arrays()["labels"]
    for fact, array in [
        ("kept", np.array([3, 9, 4])),
        ("kept", np.array([3.0, 9.0])),
        ("kept", words[:1]),
        ("kept", np.full((2, 3), ord("["), np.uint8)),
        ("kept", np.array([list(b"[1]"), list(b"[2]")], np.uint8)),
        ("kept", np.full((2, 2000), ord("1"), np.uint8)),
    ]:
        with pytest.raises(ValueError, match=r"labels|Expecting|JSON|delimiter"):
            RowLabels.from_saved(fact, {"labels": array}, 2)
    assert RowLabels.from_saved("kept", {"labels": words}, 2).known.tolist() == ["a", None]
    assert RowLabels.from_saved(None, {}, 2) is None


# By value ------------------------------------------------------------------------------------------------------------


def test_rows_that_have_to_be_rounded_to_be_found_are_said_so():
    u = L2UL().fit(X.astype(np.float32), Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert forgotten(u, X=X[[7]].astype(np.float32).astype(float), y=Y[[7]]) == [7]
    with pytest.warns(UserWarning, match="rounded to float32") as caught:
        assert forgotten(u, X=X[[7]], y=Y[[7]]) == [7]
    assert caught[0].filename == __file__
    with refused("not among the rows", u), pytest.warns(UserWarning, match="rounded"):
        u.unlearn(X=X[[7]] + 1e-3, y=Y[[7]])
    assert kept(3, [1]).tolist() == [0, 2]


class Broken:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array\nto be had")


def test_objects_that_cannot_be_read_are_one_sentence():
    u = L2UL().fit(X, Y)
    for match, call in [
        ("row numbers must be .*: no array$", lambda: u.unlearn(Broken())),
        ("X must hold numbers.*: no array$", lambda: u.predict(Broken())),
        ("X must hold numbers.*: no array$", lambda: u.unlearn(X=Broken(), y=[1])),
        ("labels must be .*: no array$", lambda: u.unlearn(X=X[:1], y=Broken())),
        ("labels must be .*: no array$", lambda: u.learn(X[:1], Broken())),
        ("labels must be .*: no array$", lambda: L2UL().fit(X, Broken())),
        ("y must hold numbers: no array$", lambda: L2UL("squared").fit(X, Broken())),
        ("sample_weight must hold numbers: no array$", lambda: L2UL().fit(X, Y, Broken())),
        ("X must hold numbers", lambda: u.predict(np.array([[10**400, 0, 0]], object))),
        ("a directory must be a path", lambda: u.save(None)),
        ("a directory must be a path", lambda: u.save("a\0b")),
        ("a directory must be a path", lambda: L2UL.load(None)),
    ]:
        with refused(match, u):
            call()
    assert issubclass(DataError, UserError) or issubclass(DataError, ValueError)


@pytest.mark.parametrize(
    ("match", "labels"),
    [
        ("NaN", np.where(Y == 1, np.nan, 0.0)),
        ("NaN", np.where(Y == 1, np.nan, 0.0).astype(object)),
        ("numbers or words, got datetime64", np.datetime64("2020-01-01") + Y),
        ("numbers or words, got timedelta64", np.timedelta64(1) * Y),
        ("numbers or words, got complex", Y * 1j),
        ("numbers or words, got", Y.astype("S1")),
        ("not both", ["a", 0] * 150),
        ("not both", np.array(["a", 0] * 150, object)),
        ("numbers or words|list", np.array([None, 0] * 150, object)),
        ("numbers or words", pandas.date_range("2020", periods=300)),
        ("numbers or words|list", [b"a", b"b"] * 150),
        ("2 dimensions", np.c_[Y, Y]),
    ],
    ids=str,
)
def test_labels_that_no_state_can_hold_are_refused_at_the_fit(match, labels):
    with refused(match, error=(UserError, DataError)):
        L2UL().fit(X, labels)


def test_labels_of_pandas_and_of_plain_objects_are_what_they_say(tmp_path):
    names = np.array(["no", "yes"])[Y]
    for given in (pandas.Series(names), pandas.Series(names, dtype="category"), names.astype(object), names.tolist()):
        u = L2UL().fit(X, given)
        assert u.classes_ == ["no", "yes"]
        u.save(tmp_path / "u")
    assert L2UL().fit(X, pandas.Series(Y, dtype="Int64")).classes_ == [0, 1]
    assert L2UL().fit(X, Y.astype(object)).classes_ == [0, 1]
