"""Ridge regression on training pairs: the strength by leave-one-out, with fewer or more features than pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from l2ul_fast.errors import DataError
from l2ul_fast.unlearner.pairs.ridge import GRID, RidgeHead


def pairs(seed, m=60, q=5, p=5, noise=0.1, spread=1.0):
    """Features with column scales over `spread` decades, targets W Z plus noise; returns Z, T, W."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(m, q)) * 10 ** rng.uniform(0, spread, q)
    W = rng.normal(size=(p, q)) / np.sqrt((Z**2).mean(axis=0))
    return Z, Z @ W.T + noise * rng.normal(size=(m, p)), W


def solved(Z, T, strength, scale):
    """W (p, q) by textbook: an independent solver on scaled features."""
    fitted = Ridge(alpha=strength, fit_intercept=False, solver="svd").fit(Z / scale, T)
    return fitted.coef_.reshape(T.shape[1], -1) / scale


def left_out(Z, T, strength, scale):
    """(m, p) errors of maps fitted without each pair."""
    out = np.empty_like(T)
    for i in range(len(Z)):
        keep = np.arange(len(Z)) != i
        out[i] = T[i] - solved(Z[keep], T[keep], strength, scale) @ Z[i]
    return out


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(2, 30), st.integers(1, 6), st.floats(0.01, 3))
def test_agrees_with_scikit_learn_in_scaled_features(seed, q, m, p, noise):
    Z, T, _ = pairs(seed, m, q, p, noise)
    head = RidgeHead.fit(Z, T)
    if np.isinf(head.strength):
        assert not head.W.any()
        return
    expected = solved(Z, T, head.strength, np.sqrt((Z**2).mean(axis=0)))
    np.testing.assert_allclose(head.W, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("m", "q"), [(25, 6), (20, 33)])
def test_leave_one_out_is_that_of_brute_force_and_the_best_of_the_grid(m, q):
    Z, T, _ = pairs(1, m=m, q=q, p=3, noise=0.8)
    head, scale = RidgeHead.fit(Z, T), np.sqrt((Z**2).mean(axis=0))
    values = np.linalg.eigvalsh((Z / scale).T @ (Z / scale))[-min(m, q) :]
    brute = [left_out(Z, T, g * values.mean(), scale) for g in GRID[4:]]  # below, the solver itself is at its limits
    errors = [np.mean(np.sum(e**2, axis=1)) for e in brute]
    best = int(np.argmin(errors))
    assert head.strength == pytest.approx(GRID[4:][best] * values.mean())
    assert head.loo["fitted"] == pytest.approx(np.sqrt(errors[best]))
    np.testing.assert_allclose(head.left_out, brute[best], rtol=1e-6, atol=1e-8)
    assert head.loo["nothing"] == pytest.approx(np.sqrt((T**2).sum(axis=1).mean()))
    relative = np.linalg.norm(brute[best], axis=1) / np.linalg.norm(T, axis=1)
    assert head.loo["rho"] == pytest.approx(np.median(relative))
    assert head.loo["m"] == m


def test_the_left_out_error_is_honest():
    """It is what fresh pairs show, which the error on the pairs themselves is not."""
    Z, T, W = pairs(2, m=60, q=40, p=40, noise=1.0)
    head = RidgeHead.fit(Z, T)
    rng = np.random.default_rng(3)
    fresh = rng.normal(size=(2000, 40)) * np.sqrt((Z**2).mean(axis=0))
    targets = fresh @ W.T + rng.normal(size=(2000, 40))
    rho = np.median(np.linalg.norm(targets - fresh @ head.W.T, axis=1) / np.linalg.norm(targets, axis=1))
    own = np.median(np.linalg.norm(T - Z @ head.W.T, axis=1) / np.linalg.norm(T, axis=1))
    assert abs(np.log(head.loo["rho"] / rho)) < 0.25 < np.log(rho / own)


def test_nothing_to_learn_gives_exactly_no_update():
    """T6: trained on theta_r := theta the head does not move; nor does one that is fed noise."""
    Z, T, _ = pairs(5, m=300, p=5, noise=0.01)
    for targets in (np.zeros_like(T), np.random.default_rng(0).normal(size=T.shape)):
        head = RidgeHead.fit(Z, targets)
        assert np.isinf(head.strength) == (not head.W.any())
        assert np.abs(Z @ head.W.T).max() < 0.2
    assert not RidgeHead.fit(Z, np.zeros_like(T)).W.any()
    assert np.isinf(RidgeHead.fit(Z[:1], T[:1]).strength)


def test_a_feature_that_is_never_active_does_no_harm():
    Z, T, _ = pairs(7)
    Z[:, 2] = 0
    assert np.isfinite(RidgeHead.fit(Z, T).W).all()
    assert not RidgeHead.fit(Z, T).W[:, 2].any()
    assert not RidgeHead.fit(np.zeros_like(Z), T).W.any()
    wide = np.hstack([Z, np.zeros((60, 100))])
    assert not RidgeHead.fit(wide, T).W[:, 5:].any()


def test_a_rarely_active_feature_is_shrunk_no_more_than_a_common_one():
    rng = np.random.default_rng(8)
    Z = rng.normal(size=(400, 2))
    Z[:, 1] *= rng.random(400) < 0.03
    T = Z @ np.array([[1.0, 1.0]]).T + 0.5 * rng.normal(size=(400, 1))
    W = RidgeHead.fit(Z, T).W[0]
    assert 0.6 < W[1] / W[0] < 1.6


def test_bad_input_is_one_sentence():
    Z, T, _ = pairs(9)
    holes = Z.copy()
    holes[3, 1] = np.nan
    for text, call in [
        ("same number of rows", lambda: RidgeHead.fit(Z, T[:-1])),
        ("same number of rows", lambda: RidgeHead.fit(Z[:0], T[:0])),
        ("matrix", lambda: RidgeHead.fit(Z[0], T[0])),
        ("NaN", lambda: RidgeHead.fit(holes, T)),
    ]:
        with pytest.raises(DataError, match=text):
            call()
