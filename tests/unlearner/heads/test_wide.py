"""What is kept by the number of parameters; and the head for many of them: conjugate gradients on the rows."""

import numpy as np
import pytest
from unlearners import data_for, kept, logistic_data, optimum, rho

from l2ul_fast import L2UL
from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner import fit as fitting
from l2ul_fast.unlearner.heads import expansion, wide
from l2ul_fast.unlearner.heads.expansion import Expansion
from l2ul_fast.unlearner.heads.secant import Secant
from l2ul_fast.unlearner.heads.wide import Wide

MODELS = ("lr", "squared", "poisson")


@pytest.fixture
def few_allowed(monkeypatch):
    """Small models count as wide."""
    monkeypatch.setattr(fitting, "MOST_OF_HESSIAN", 1)
    monkeypatch.setattr(fitting, "MOST_PARAMETERS", 1)


def wide_unlearner(model="lr", n=400, d=5, seed=0, dtype=np.float64, weights=None, **options):
    X, y = data_for(model, n, d, seed, dtype)
    u = L2UL(model, lam=1e-2, **options).fit(X, y, weights)
    assert isinstance(u.head, Wide)
    return u, X, y


# Which head ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "n", "d", "weighted", "options", "kind"),
    [
        ("lr", 200, 9, False, {}, Expansion),
        ("lr", 200, 10, False, {}, Secant),
        ("lr", 6000, 10, False, {}, Expansion),  # T takes less than the rows
        ("lr", 200, 10, True, {}, Wide),
        ("lr", 200, 10, False, {"penalty": "sum"}, Wide),
        ("lr", 200, 10, False, {"order": 2}, Expansion),
        ("lr", 200, 10, False, {"anchor": "optimum"}, Expansion),
        ("lr", 100, 16, False, {}, Wide),
        ("squared", 200, 10, False, {}, Expansion),
        ("squared", 100, 21, False, {}, Wide),
        ("poisson", 200, 10, False, {}, Wide),
    ],
)
def test_the_number_of_parameters_decides_what_is_kept(model, n, d, weighted, options, kind, monkeypatch):
    monkeypatch.setattr(fitting, "MOST_OF_HESSIAN", 15)
    monkeypatch.setattr(fitting, "MOST_PARAMETERS", 20)
    monkeypatch.setattr(expansion, "SMALL_PARAMETERS", 10)
    monkeypatch.setattr(expansion, "THIRD_SHARE", 0.1)
    X, y = data_for(model, n, d)
    if model == "poisson":
        X, y = 0.3 * X, np.minimum(y, 20)
    weights = np.random.default_rng(0).uniform(0.5, 2, n) if weighted else None
    u = L2UL(model, lam=1e-2, **options).fit(X, y, weights)
    assert isinstance(u.head, kind)
    assert kind is Expansion or u.residual() < 1e-7
    rows = [3, 5, 11]
    answer = u.unlearn(rows, rtol=None if u.head.error is None else 1e-3)
    keep, w = kept(n, rows), np.ones(n) if weights is None else weights
    total = w.sum() if options.get("penalty") == "sum" else w[keep].sum()
    before = optimum(X, y, model, 1e-2, w)
    target = optimum(X[keep], y[keep], model, weights=w[keep], penalty=1e-2 * total)
    limit = 1.0 if "order" in options else 0.1 if "anchor" in options else 0.02  # without T: Newton's step
    assert rho(answer.theta, before, target) < limit


@pytest.mark.parametrize("options", [{"order": 2}, {"anchor": "optimum"}, {"anchor": np.zeros(2101)}])
def test_integer_sums_of_too_many_parameters_are_refused_in_one_sentence(options):
    X, y = logistic_data(60, 2100)
    with pytest.raises(UserError, match=r"2101 parameters: .* leave `order` and `anchor` out"):
        L2UL(**options).fit(X, y)


def test_without_rows_no_passes_can_be_made():
    X, y = logistic_data(60, 2100)
    with pytest.raises(UserError, match="leave store_rows=False out"):
        L2UL(store_rows=False).fit(X, y)


def test_logistic_regression_of_two_classes_by_its_hessian_agrees_with_the_expansion(monkeypatch):
    monkeypatch.setattr(expansion, "SMALL_PARAMETERS", 10)
    monkeypatch.setattr(expansion, "THIRD_SHARE", 0.01)
    X, y = logistic_data(500, 20)
    u, sums = L2UL(lam=1e-2).fit(X, y), L2UL(lam=1e-2, anchor="optimum").fit(X, y)
    assert isinstance(u.head, Secant)
    a, b = u.unlearn([4]), sums.unlearn([4])
    np.testing.assert_allclose(a.theta, b.theta, atol=0.05 * np.abs(a.theta - L2UL(lam=1e-2).fit(X, y).theta).max())
    u.refresh()
    np.testing.assert_allclose(u.theta, optimum(X[kept(500, [4])], y[kept(500, [4])], lam=1e-2), atol=1e-6)


# The head ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("penalty", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.usefixtures("few_allowed")
def test_answers_are_near_a_retrained_model_and_say_how_near(model, weighted, penalty, dtype):
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 3, 400).astype(float) if weighted else None
    u, X, y = wide_unlearner(model, dtype=dtype, weights=weights, penalty=penalty)
    w = np.ones(400) if weights is None else weights
    alive = np.flatnonzero(w > 0)
    before = u.theta
    np.testing.assert_allclose(before, optimum(X, y, model, 1e-2, w), atol=1e-5)
    gone = []
    for r in (1, 40):
        rows = rng.choice(np.setdiff1d(alive, gone), r, replace=False)
        gone += rows.tolist()
        keep = np.setdiff1d(alive, gone)
        strength = 1e-2 * (w.sum() if penalty == "sum" else w[keep].sum())
        target = optimum(X[keep], y[keep], model, weights=w[keep], penalty=strength)
        answer = u.unlearn(rows)
        assert answer.error <= wide.PASSES_UNTIL
        assert answer.due
        assert rho(answer.theta, before, target) <= max(5 * answer.error, 1e-3)
        assert answer.n == keep.size
    u.refresh()
    assert not u.due
    assert u.head.error == 0
    np.testing.assert_allclose(u.theta, target, atol=1e-5)


@pytest.mark.usefixtures("few_allowed")
def test_rows_learned_and_forgotten_again_leave_nothing():
    u, X, y = wide_unlearner()
    before = u.theta
    ids = u.learn(X[:7] + 1, y[:7])
    assert u.head.error <= wide.PASSES_UNTIL
    assert np.abs(u.theta - before).max() > 1e-3
    u.unlearn(ids, rtol=1e-8)
    np.testing.assert_allclose(u.theta, before, atol=1e-8)
    u.refresh()
    np.testing.assert_allclose(u.theta, before, atol=1e-8)


@pytest.mark.usefixtures("few_allowed")
def test_blocks_of_any_size_give_the_same_answers(monkeypatch):
    u, _, _ = wide_unlearner()
    answer = u.copy().unlearn([1, 2, 3])
    monkeypatch.setattr(wide, "BLOCK_NUMBERS", 35)
    np.testing.assert_allclose(u.unlearn([1, 2, 3]).theta, answer.theta, rtol=1e-6)


@pytest.mark.usefixtures("few_allowed")
@pytest.mark.parametrize("how", ["", "defer"])
def test_saved_and_loaded_it_goes_on(how, tmp_path):
    u, X, y = wide_unlearner()
    u.unlearn([1, 2])
    u.save(tmp_path, defer=bool(how))
    again = L2UL.load(tmp_path)
    assert bool(again.due) == bool(how)
    np.testing.assert_array_equal(again.theta, u.theta)
    assert again.head.error == u.head.error
    np.testing.assert_allclose(again.unlearn([9]).theta, u.unlearn([9]).theta, atol=1e-12)
    again.save(tmp_path)
    keep = kept(400, [1, 2, 9])
    np.testing.assert_allclose(L2UL.load(tmp_path).theta, optimum(X[keep], y[keep], lam=1e-2), atol=1e-5)


@pytest.mark.usefixtures("few_allowed")
def test_what_is_saved_does_not_give_a_forgotten_row_away(tmp_path):
    from l2ul_fast.unlearner.reconstruct import reconstruct, verdict

    X, y = logistic_data(300, 5, seed=3)
    u = L2UL(lam=1e-2).fit(X, y)
    u.unlearn([17])
    u.save(tmp_path)
    found = reconstruct(tmp_path, truth=(X[[17]], y[[17]]))
    assert any("gradient" in attack.name for attack in found)
    assert verdict(found).leaks is False
    u.unlearn([18])
    u.save(tmp_path, defer=True)
    assert verdict(reconstruct(tmp_path, truth=(X[[18]], y[[18]]))).chance is not None


@pytest.mark.usefixtures("few_allowed")
def test_separable_rows_end_with_an_honest_error_or_a_sentence():
    X = np.random.default_rng(0).normal(size=(60, 3))
    u = L2UL(lam=1e-9).fit(X, X[:, 0] > 0)
    answer = u.unlearn(np.flatnonzero(X[:, 0] > 0)[:20])
    target = Wide.sealed(
        u.model, u.head.penalty, ArrayTable(*(a[u.retained().ids()] for a in (X, (X[:, 0] > 0) * 1)), [0, 1]), u.theta
    ).theta
    truth = np.linalg.norm(answer.theta - target) / np.linalg.norm(u.head._first - target)
    assert answer.error >= truth / 5


def test_damaged_states_are_refused():
    model = fitting.linear_model({"model": "lr", "lam": 1e-2}, ArrayTable(np.zeros((2, 3)), np.array([0, 1]), [0, 1]))
    X, y = data_for("lr", 50, 3)
    head = Wide.sealed(model, (0.0, 1e-2), ArrayTable(X, y.astype(np.uint8), [0, 1]), np.zeros(4))
    facts, arrays = head.facts(), head.arrays()
    np.testing.assert_array_equal(Wide.from_arrays(model, facts, arrays).theta, head.theta)
    for name, value in {
        "wide.theta": np.full(4, np.nan),
        "wide.gradient": np.zeros(3),
        "wide.value": np.zeros(1, np.float32),
        "wide.counts": np.array([-1, 51]),
    }.items():
        with pytest.raises(ValueError, match=r"does not fit|do not fit"):
            Wide.from_arrays(model, facts, arrays | {name: value})
    for changed in ({"weight": -1.0}, {"penalty": [-1.0, 0.0]}, {"weight": float("nan")}):
        with pytest.raises(ValueError, match="weight"):
            Wide.from_arrays(model, facts | changed, arrays)
