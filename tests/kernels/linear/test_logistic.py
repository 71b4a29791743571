"""Batched and full-data logistic regression against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import l2ul_kernels as lk
from l2ul_kernels.codegen.twins import COMPILED
from l2ul_kernels.linear.logistic import (
    logistic_fit_pairs,
    logistic_gradient,
    logistic_hvp,
    logistic_loss,
    logistic_sums,
)
from l2ul_kernels.linear.softmax import softmax_fit_pairs, softmax_gradient, softmax_hvp, softmax_loss, softmax_sums
from l2ul_kernels.reference import linear as reference
from l2ul_kernels.simd.elementwise import exp_negative


def make(n, d, seed, dtype=np.float32, n_classes=2, strength=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(dtype)
    scores = X @ rng.normal(size=(d, n_classes)) * strength
    y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    return X, y, rng


def norm(X, y, theta, lam):
    """Largest gradient entry of the objective, by NumPy."""
    g = reference.logistic_sums(X, y, theta)[1] / len(X)
    return np.abs(g + lam * np.append(theta[:-1], 0)).max()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 700), st.integers(1, 9), st.booleans(), st.sampled_from([0.1, 1.0, 30.0]), st.integers(0, 2**32))
def test_sums_agree_with_the_oracle(n, d, weighted, size, seed):
    check_sums(n, d, np.float32, weighted, size, seed)


def check_sums(n, d, dtype, weighted, size, seed):
    X, y, rng = make(n, d, seed, dtype)
    theta, v = size * rng.normal(size=d + 1), rng.normal(size=d + 1)
    weights = rng.normal(size=n) if weighted else None
    loss, g, H = reference.logistic_sums(X, y, theta, weights)
    g_out, H_out = np.ones(d + 1), np.full((d + 1, d + 1), 2.0)
    tolerance = 1e-13 * max(n, 1) * size * 10
    assert logistic_sums(X, y, theta, weights, g_out, H_out) == pytest.approx(loss, abs=tolerance)
    np.testing.assert_allclose(g_out - 1, g, atol=tolerance)
    np.testing.assert_allclose(H_out - 2, H, atol=tolerance)
    if n and not weighted:
        np.testing.assert_allclose(logistic_gradient(X, y, theta), g / n, atol=1e-13 * size)
        np.testing.assert_allclose(logistic_hvp(X, theta, v), H @ v / n, atol=1e-12)
        assert logistic_loss(X, y, theta) == pytest.approx(loss / n, rel=1e-12)


def test_sums_do_not_depend_on_threads_and_hardly_on_blocks():
    X, y, rng = make(30_011, 11, 0, np.float32)
    theta = rng.normal(size=12)

    def sums(*ranges):
        g, H = np.zeros(12), np.zeros((12, 12))
        return [sum(logistic_sums(X[a:b], y[a:b], theta, None, g, H) for a, b in ranges), g, H]

    whole = sums((0, 30_011))
    with lk.threads(1):
        for one, two in zip(sums((0, 30_011)), whole, strict=True):
            np.testing.assert_array_equal(one, two)
    for one, two in zip(sums((0, 1), (1, 17), (17, 20_000), (20_000, 30_011)), whole, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-11, atol=1e-9)
    np.testing.assert_array_equal(whole[2], whole[2].T)


@pytest.mark.slow  # for its compile time
@settings(max_examples=20, deadline=None)
@given(st.integers(2, 90), st.integers(1, 8), st.sampled_from([0.3, 3.0, 100.0]), st.integers(0, 2**32))
def test_double_precision_rows_as_well(n, d, strength, seed):
    check_sums(n, d, np.float64, seed % 2 == 0, strength, seed)
    check_pairs(n, d, np.float64, strength, 1e-3, seed)


def test_exp_is_exact_to_the_last_places():
    x = -np.concatenate([np.linspace(0, 40, 4001), np.linspace(40, 690, 500), [0.0, 1e-300, 1e-17]])
    np.testing.assert_allclose([exp_negative(v) for v in x], np.exp(x), rtol=4e-16)
    assert exp_negative(-1e5) < 1e-300
    assert np.isnan(exp_negative(np.nan))


def test_extreme_scores_keep_their_digits():
    X, theta = np.array([[800.0], [-800.0], [40.0], [-40.0]], np.float32), np.array([1.0, 0.0])
    for y in (np.array([1, 0, 1, 0]), np.array([0, 1, 0, 1])):
        loss, g, H = reference.logistic_sums(X, y, theta)
        out_g, out_H = np.zeros(2), np.zeros((2, 2))
        assert logistic_sums(X, y, theta, None, out_g, out_H) == pytest.approx(loss, rel=1e-14)
        np.testing.assert_allclose(out_g, g, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(out_H, H, rtol=1e-12, atol=1e-300)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(2, 90),
    st.integers(1, 8),
    st.sampled_from([0.3, 3.0, 100.0]),
    st.sampled_from([1e-6, 1e-3, 1.0]),
    st.integers(0, 2**32),
)
def test_pairs_agree_with_the_oracle_whatever_the_separation(s, d, strength, lam, seed):
    check_pairs(s, d, np.float32, strength, lam, seed)


def check_pairs(s, d, dtype, strength, lam, seed):
    X, y, rng = make(3 * s, d, seed, dtype, strength=strength)
    ids = np.stack([rng.permutation(3 * s)[:s] for _ in range(3)])
    n_forget = np.array([0, min(1, s - 1), s // 2])
    theta, theta_r, norms, steps = logistic_fit_pairs(X, y, ids, n_forget, lam)
    for i in range(3):
        for part, found in enumerate((theta[i], theta_r[i])):
            use = ids[i, n_forget[i] :] if part else ids[i]
            if len(set(y[use])) < 2:
                assert norms[i, part] == np.inf
                continue
            assert norms[i, part] <= 1e-10
            assert norm(X[use], y[use], found, lam) == pytest.approx(norms[i, part], abs=1e-13)
            assert steps[i, part] <= 50
            if lam >= 1e-3:
                np.testing.assert_allclose(found, reference.fit(X[use], y[use], lam), rtol=1e-5, atol=1e-6)


def test_pairs_do_not_depend_on_threads_or_progress_and_forgetting_nothing_changes_nothing():
    X, y, rng = make(2000, 6, 1, np.float32)
    m = 200 if COMPILED else 20
    ids = np.stack([rng.permutation(2000)[:150] for _ in range(m)])
    n_forget = np.concatenate([[0], rng.integers(1, 140, m - 1)])
    calls = []
    many = logistic_fit_pairs(X, y, ids, n_forget, 1e-3, progress=lambda done, m: calls.append((done, m)))
    with lk.threads(1):
        one = logistic_fit_pairs(X, y, ids, n_forget, 1e-3)
    for a, b in zip(one, many, strict=True):
        np.testing.assert_array_equal(a, b)
    alone = logistic_fit_pairs(X, y, ids[7:8], n_forget[7:8], 1e-3)
    for a, b in zip(alone, many, strict=True):
        np.testing.assert_array_equal(a[0], b[7])
    assert calls[-1] == (m, m)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    np.testing.assert_array_equal(many[0][0], many[1][0])


def test_difficult_columns_converge():
    """Constant and far-away columns, rare one-hot columns, duplicated rows and duplicated columns."""
    X, y, rng = make(4000, 4, 2, np.float32)
    far = (100 + rng.normal(size=(4000, 1))).astype(np.float32)
    rare = (np.arange(4000) % 400 == 0).astype(np.float32)[:, None] * 20 - 0.05
    X = np.hstack([X, np.full((4000, 1), 7, np.float32), far, rare, rare, X[:, :1], 0 * far]).astype(np.float32)
    ids = np.stack([rng.permutation(4000)[:500] for _ in range(8)])
    ids[:, 250:] = ids[:, :250]
    theta, theta_r, norms, _ = logistic_fit_pairs(X, y, ids, np.full(8, 40), 1e-3)
    assert norms.max() <= 1e-10
    assert max(norm(X[ids[i]], y[ids[i]], theta[i], 1e-3) for i in range(8)) < 2e-10
    assert max(norm(X[ids[i, 40:]], y[ids[i, 40:]], theta_r[i], 1e-3) for i in range(8)) < 2e-10
    np.testing.assert_allclose(theta[:, 0], theta[:, 8], atol=1e-7)
    np.testing.assert_array_equal(theta[:, 9], 0)


@pytest.mark.skipif(not COMPILED, reason="how close depends on the order of compiled sums")
def test_columns_too_far_for_the_tolerance_still_come_close():
    """At 1e4 from the origin no float64 theta has a gradient norm of 1e-10; what is reported is the truth."""
    X, y, rng = make(2000, 4, 2)
    X[:, 2] += 1e4
    ids = np.stack([rng.permutation(2000)[:500] for _ in range(8)])
    theta, _, norms, _ = logistic_fit_pairs(X, y, ids, np.full(8, 40), 1e-3)
    assert norms.max() < 1e-7
    np.testing.assert_allclose([norm(X[i], y[i], t, 1e-3) for i, t in zip(ids, theta, strict=True)], 0, atol=1e-7)
    X[:, 2] -= 1e4
    near = logistic_fit_pairs(X, y, ids, np.full(8, 40), 1e-3)[0]
    # how close depends on the order of the sums and so on the width of vectors: 0.6e-6 with 256 bits, 1.3e-6 with 512
    np.testing.assert_allclose(theta[:, :4], near[:, :4], atol=3e-6)


def test_one_class_is_reported_as_not_converged():
    X, _, _ = make(100, 3, 3, np.float32)
    y = (np.arange(100) < 10).astype(np.uint8)
    ids = np.stack([np.arange(50), np.arange(50, 100)])  # the first loses its ones, the second has none
    theta, theta_r, norms, _ = logistic_fit_pairs(X, y, ids, np.array([10, 5]), 1e-3)
    np.testing.assert_array_equal(norms > 1e-10, [[False, True], [True, True]])
    assert np.isfinite(theta).all()
    assert np.isfinite(theta_r).all()
    unreachable = logistic_fit_pairs(X, y, ids[:1], np.array([1]), 1e-3, tol=1e-30)
    assert (unreachable[2] < 1e-14).all()


def test_no_pairs_and_two_rows():
    X, y = np.array([[1.0], [-1.0]], np.float32), np.array([1, 0])
    assert logistic_fit_pairs(X, y, np.empty((0, 2), int), np.empty(0, int), 1e-3)[0].shape == (0, 2)
    theta, theta_r, norms, _ = logistic_fit_pairs(X, y, [[0, 1]], [0], 1e-3)
    assert norms.max() <= 1e-10
    np.testing.assert_allclose(theta[0], reference.fit(X, y, 1e-3), atol=1e-7)
    np.testing.assert_array_equal(theta, theta_r)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 300), st.integers(1, 5), st.integers(2, 5), st.booleans(), st.integers(0, 2**32))
def test_softmax_sums_agree_with_the_oracle(n, d, n_classes, weighted, seed):
    X, y, rng = make(n, d, seed, np.float32, n_classes)
    p = n_classes * (d + 1)
    theta, v = 3 * rng.normal(size=p), rng.normal(size=p)
    weights = rng.normal(size=n) if weighted else None
    loss, g, H = reference.softmax_sums(X, y, theta, n_classes, weights)
    g_out, H_out = np.ones(p), np.full((p, p), 2.0)
    assert softmax_sums(X, y, theta, n_classes, weights, g_out, H_out) == pytest.approx(loss, abs=1e-12 * n)
    np.testing.assert_allclose(g_out - 1, g, atol=1e-12 * n)
    np.testing.assert_allclose(H_out - 2, H, atol=1e-12 * n)
    if not weighted:
        np.testing.assert_allclose(softmax_gradient(X, y, theta, n_classes), g / n, atol=1e-12)
        np.testing.assert_allclose(softmax_hvp(X, theta, v, n_classes), H @ v / n, atol=1e-12)
        assert softmax_loss(X, y, theta, n_classes) == pytest.approx(loss / n, rel=1e-12)


def test_softmax_pairs_agree_with_the_oracle_and_do_not_depend_on_threads():
    X, y, rng = make(400, 3, 4, np.float32, 3, strength=4)
    ids = np.stack([rng.permutation(400)[:60] for _ in range(9)])
    y = y.copy()
    y[ids[8, :30]], y[ids[8, 30:]] = np.arange(30) % 3, np.arange(30) % 2  # forgetting 30 leaves two classes
    n_forget = np.array([0, 1, 2, 5, 10, 20, 30, 3, 30])
    found = softmax_fit_pairs(X, y, ids, n_forget, 1e-3, 3)
    with lk.threads(1):
        for a, b in zip(softmax_fit_pairs(X, y, ids, n_forget, 1e-3, 3), found, strict=True):
            np.testing.assert_array_equal(a, b)
    theta, theta_r, norms, _ = found
    assert norms[8, 1] == np.inf
    assert norms.ravel()[:-1].max() <= 1e-10
    for i in range(8):
        rest = ids[i, n_forget[i] :]
        np.testing.assert_allclose(theta[i], reference.fit(X[ids[i]], y[ids[i]], 1e-3, 3), atol=1e-6)
        np.testing.assert_allclose(theta_r[i], reference.fit(X[rest], y[rest], 1e-3, 3), atol=1e-6)
    np.testing.assert_allclose(theta[:, -3:].sum(axis=1), 0, atol=1e-12)


def test_two_softmax_classes_are_the_binary_model():
    X, y, rng = make(300, 3, 5)
    theta = rng.normal(size=8)
    binary = np.append(theta[3:6] - theta[:3], theta[7] - theta[6])
    assert softmax_loss(X, y, theta, 2) == pytest.approx(logistic_loss(X, y, binary), rel=1e-13)
    g = softmax_gradient(X, y, theta, 2)
    np.testing.assert_allclose(np.append(g[3:6], g[7]), logistic_gradient(X, y, binary), atol=1e-14)


def test_bad_input_is_one_clear_sentence():
    X, y, _ = make(20, 3, 6)
    ids, theta = np.arange(20).reshape(2, 10), np.zeros(4)
    with_nan = X.copy()
    with_nan[7, 1] = np.nan
    pairs = logistic_fit_pairs
    cases = [
        (ValueError, "row 7", lambda: pairs(with_nan, y, ids, [1, 1], 1e-3)),
        (ValueError, "row 7", lambda: logistic_gradient(with_nan, y, theta)),
        (ValueError, "row 7", lambda: softmax_loss(with_nan, y, np.zeros(12), 3)),
        (ValueError, "0..19", lambda: pairs(X, y, ids + 1, [1, 1], 1e-3)),
        (ValueError, "n_forget", lambda: pairs(X, y, ids, [1, 10], 1e-3)),
        (ValueError, "n_forget", lambda: pairs(X, y, ids, [1], 1e-3)),
        (ValueError, "labels", lambda: pairs(X, y + 1, ids, [1, 1], 1e-3)),
        (ValueError, r"\(20,\)", lambda: logistic_gradient(X, y[1:], theta)),
        (ValueError, "hessian_out", lambda: logistic_sums(X, y, theta, None, None, np.zeros((3, 3)))),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()


def test_inputs_of_other_kinds_are_read_as_they_are():
    X, y, rng = make(60, 3, 7, np.float32)
    theta = rng.normal(size=4)
    expected = logistic_gradient(X, y, theta)
    wide = np.zeros((60, 6), np.float32)
    wide[:, ::2] = X
    frozen = X.copy()
    frozen.setflags(write=False)
    for other in (wide[:, ::2], np.asfortranarray(X), frozen, X.astype(">f4")):
        np.testing.assert_array_equal(logistic_gradient(other, y.astype(np.uint8), theta), expected)
    ids = np.arange(60, dtype=np.int32).reshape(2, 30)
    frozen_ids = ids.astype(np.int64)
    frozen_ids.setflags(write=False)
    for a, b in zip(
        logistic_fit_pairs(frozen, y, frozen_ids, [1, 2], 1e-3),
        logistic_fit_pairs(X, y, ids, [1, 2], 1e-3),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
