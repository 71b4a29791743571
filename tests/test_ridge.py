"""The linear influence head: strength by leave-one-out, downdates, the prior, storing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner import ridge
from l2ul_fast.unlearner.ridge import GRID, RidgeHead


def pairs(seed, m=60, p=5, noise=0.1, spread=1.0):
    """Features with column scales over `spread` decades, targets W Z plus noise; returns Z, T, W."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(m, p)) * 10 ** rng.uniform(0, spread, p)
    W = rng.normal(size=(p, p)) / np.sqrt((Z**2).mean(axis=0))
    return Z, Z @ W.T + noise * rng.normal(size=(m, p)), W


def brute_force_loo(Z, T, prior, strength, scale):
    """(m, p) errors of heads fitted without each pair."""
    out = np.empty_like(T)
    for i in range(len(Z)):
        keep = np.arange(len(Z)) != i
        out[i] = T[i] - RidgeHead.fit(Z[keep], T[keep], prior, strength, scale).predict(Z[i])
    return out


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 40), st.floats(-6, 3), st.booleans())
def test_agrees_with_scikit_learn_in_scaled_features(seed, p, m, exponent, with_prior):
    Z, T, W = pairs(seed, m, p)
    prior = 0.9 * W if with_prior else None
    head = RidgeHead.fit(Z, T, prior, strength=10.0**exponent)
    left = T - Z @ prior.T if with_prior else T
    theirs = Ridge(alpha=10.0**exponent, fit_intercept=False, solver="svd").fit(Z / head.scale, left).coef_
    expected = theirs.reshape(p, p) / head.scale + (prior if with_prior else 0)
    np.testing.assert_allclose(head.W, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("with_prior", [False, True])
def test_leave_one_out_is_that_of_brute_force_and_the_best_of_the_grid(with_prior):
    Z, T, W = pairs(1, m=25, p=6, noise=0.8)
    prior = W + 0.3 * np.random.default_rng(0).normal(size=W.shape) / np.abs(Z).mean(axis=0) if with_prior else None
    head = RidgeHead.fit(Z, T, prior)
    assert head.loo["kept"] == "correction"
    mean = np.linalg.eigvalsh((Z / head.scale).T @ (Z / head.scale)).mean()
    errors = [np.mean(np.sum(brute_force_loo(Z, T, prior, g * mean, head.scale) ** 2, axis=1)) for g in GRID]
    assert head.strength == pytest.approx(GRID[np.argmin(errors)] * mean)
    assert head.loo["correction"] == pytest.approx(np.sqrt(min(errors)))
    brute = brute_force_loo(Z, T, prior, head.strength, head.scale)
    np.testing.assert_allclose(head.loo_residuals(), brute, rtol=1e-7, atol=1e-9)
    alone = T - Z @ prior.T if with_prior else T
    assert head.loo["prior"] == pytest.approx(np.sqrt((alone**2).sum(axis=1).mean()))


def test_large_problems_look_only_near_the_best_guess_and_find_the_same(monkeypatch):
    Z, T, _ = pairs(2, m=80, p=10, noise=2.0)
    whole = RidgeHead.fit(Z, T)
    monkeypatch.setattr(ridge, "WHOLE_GRID", 0)
    assert RidgeHead.fit(Z, T).strength == whole.strength


def test_a_perfect_prior_is_left_alone_and_a_poor_one_is_mended():
    Z, T, W = pairs(3, m=200, p=6, noise=1.0)
    good = RidgeHead.fit(Z, T, W)
    assert good.loo["kept"] == "prior"
    assert np.isinf(good.strength)
    np.testing.assert_array_equal(good.W, W)
    np.testing.assert_array_equal(good.loo_residuals(), T - Z @ W.T)
    Z, T, W = pairs(3, m=200, p=6, noise=0.2)
    poor = RidgeHead.fit(Z, T, 0.5 * W)
    assert poor.loo["kept"] == "correction"
    assert poor.loo["correction"] < 0.6 * poor.loo["prior"]
    fresh = np.random.default_rng(4).normal(size=(500, 6)) * Z.std(axis=0)
    error = {name: np.linalg.norm(fresh @ (A - W).T) for name, A in (("prior", 0.5 * W), ("head", poor.W))}
    assert error["head"] < 0.5 * error["prior"]


def test_a_prior_is_never_left_for_a_correction_that_is_worse_on_held_out_pairs():
    for seed in range(20):
        Z, T, W = pairs(seed, m=30, p=8, noise=3.0)
        head = RidgeHead.fit(Z, T, W)
        kept = np.sqrt((head.loo_residuals() ** 2).sum(axis=1).mean())
        assert kept <= head.loo["prior"] * (1 + 1e-12)
        assert head.loo["kept"] == "prior" or head.loo["rho_correction"] <= head.loo["rho_prior"]


def test_nothing_to_learn_gives_exactly_no_update():
    """T6: trained on theta_r := theta the head does not move, with a prior or without."""
    Z, T, W = pairs(5, m=300, p=5, noise=0.01)
    assert not RidgeHead.fit(Z, np.zeros_like(T)).W.any()
    head = RidgeHead.fit(Z, np.zeros_like(T), W)
    rho = np.linalg.norm(Z @ head.W.T, axis=1) / np.linalg.norm(T, axis=1)
    assert rho.max() <= 1e-2


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_a_downdate_equals_refitting_without_the_pairs(seed, data):
    m = data.draw(st.integers(2, 60))
    Z, T, W = pairs(seed, m, 4)
    head = RidgeHead.fit(Z, T, data.draw(st.sampled_from([None, W * 0.8])))
    gone = data.draw(st.lists(st.integers(0, m - 1), max_size=m - 1))
    other = 1.1 * W
    for prior in (None, other):
        left = head.without(gone, prior)
        keep = np.setdiff1d(np.arange(m), gone)
        W0 = head.prior if prior is None else prior
        if np.isinf(head.strength):
            np.testing.assert_array_equal(left.W, np.zeros_like(W) if W0 is None else W0)
            continue
        again = RidgeHead.fit(Z[keep], T[keep], W0, head.strength, head.scale)
        np.testing.assert_allclose(left.W, again.W, rtol=1e-9, atol=1e-9 * np.abs(again.W).max())
        np.testing.assert_array_equal(left.Z, Z[keep])


def test_downdates_in_sequence_stay_exact_also_when_hardly_regularised():
    Z, T, _ = pairs(6, m=400, p=6, noise=1e-9)
    head = RidgeHead.fit(Z, T)
    assert head.strength < ridge.FRAGILE * len(Z)
    for _ in range(50):
        head = head.without([1, 5])
    again = RidgeHead.fit(head.Z, head.T, None, head.strength, head.scale)
    np.testing.assert_allclose(head.W, again.W, rtol=1e-9, atol=1e-9 * np.abs(again.W).max())
    assert len(head.Z) == 300
    assert head.chosen_again().loo["m"] == 300


def test_a_feature_that_is_never_active_does_no_harm():
    Z, T, _ = pairs(7)
    Z[:, 2] = 0
    assert np.isfinite(RidgeHead.fit(Z, T).W).all()
    assert not RidgeHead.fit(Z, T).W[:, 2].any()
    assert not RidgeHead.fit(np.zeros_like(Z), T).W.any()


@pytest.mark.parametrize("with_prior", [False, True])
def test_storing_round_trips_bit_for_bit(with_prior):
    Z, T, W = pairs(8)
    head = RidgeHead.fit(Z, T, 0.5 * W if with_prior else None)
    again = RidgeHead.from_arrays(head.arrays())
    np.testing.assert_array_equal(again.W, head.W)
    assert again.loo == head.loo
    assert again.strength == head.strength
    np.testing.assert_array_equal(again.without([3]).W, head.without([3]).W)
    broken = head.arrays()
    del broken["gram"]
    with pytest.raises(DataError, match="gram"):
        RidgeHead.from_arrays(broken)
    with pytest.raises(DataError, match="fit each other"):
        RidgeHead.from_arrays({**head.arrays(), "W": np.zeros((2, 2))})


def test_bad_input_is_one_sentence():
    Z, T, W = pairs(9)
    holes = Z.copy()
    holes[3, 1] = np.nan
    head = RidgeHead.fit(Z, T)
    cases = [
        ("same shape", lambda: RidgeHead.fit(Z, T[:-1])),
        ("same shape", lambda: RidgeHead.fit(Z[:0], T[:0])),
        ("matrix", lambda: RidgeHead.fit(Z[0], T[0])),
        ("NaN", lambda: RidgeHead.fit(holes, T)),
        ("prior", lambda: RidgeHead.fit(Z, T, W[:2])),
        ("positive", lambda: RidgeHead.fit(Z, T, strength=0.0)),
        ("positive", lambda: RidgeHead.fit(Z, T, strength=1.0, scale=np.zeros(5))),
        ("pairs 0..59", lambda: head.without([60])),
        ("pairs 0..59", lambda: head.without([-1])),
        ("no pair", lambda: head.without(np.arange(60))),
    ]
    for text, call in cases:
        with pytest.raises(DataError, match=text):
            call()
