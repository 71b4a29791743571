"""MLP kernels against the NumPy oracles and against finite differences; determinism; edge cases."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit

from l2ul_kernels import threads
from l2ul_kernels.mlp.adam import mlp_fit_pairs, mlp_train
from l2ul_kernels.mlp.anchored import mlp_anchored_pairs
from l2ul_kernels.mlp.hessian import mlp_hessian, mlp_hvp
from l2ul_kernels.mlp.model import BLOCK, CHUNK, FEW, mlp_gradient, mlp_logits, mlp_size, mlp_sums
from l2ul_kernels.reference import mlp as reference
from l2ul_kernels.simd.elementwise import exp_minus_all, log_losses_all, tanh_all
from l2ul_kernels.simd.gemm import gemm, lanes

BOTH = pytest.mark.parametrize("activation", ["tanh", "relu"])


def problem(n, d=5, h=4, n_classes=2, seed=0, scale=1.0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(dtype)
    y = rng.integers(0, n_classes, n).astype(np.uint8)
    return X, y, scale * rng.normal(size=mlp_size(d, h, n_classes))


def learnable(n, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] + X[:, 2] + 0.5 * rng.normal(size=n) > 0).astype(np.uint8)
    return X, y


# ---------------------------------------------------------------------------------------------------- building blocks


@njit
def _tanh(a):
    tanh_all(a)


@njit
def _exp_minus(a):
    exp_minus_all(a)


@njit
def _log_losses(out, z, y):
    log_losses_all(out, z, y)


def test_vector_functions_are_accurate_to_the_last_digits():
    x = np.concatenate(
        [np.linspace(-30, 30, 4096), 10 ** np.linspace(-300, 1, 4096), -(10 ** np.linspace(-9, 1, 4096))]
    )
    t = x.copy()
    _tanh(t)
    np.testing.assert_allclose(t, np.tanh(x), rtol=1e-15, atol=0)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-320, 50.0, -50.0] * 2)
    t = special.copy()
    _tanh(t)
    np.testing.assert_array_equal(t, np.tanh(special))
    e = np.linspace(0, 700, 8192)
    expected = np.exp(-e)
    _exp_minus(e)
    np.testing.assert_allclose(e, expected, rtol=1e-15, atol=0)
    z = np.linspace(-700, 700, 8192)
    out = np.empty_like(z)
    _log_losses(out, z, np.ones_like(z))
    np.testing.assert_allclose(out, np.logaddexp(0, -z), rtol=2e-15, atol=0)
    x32 = x.astype(np.float32)
    t32 = x32.copy()
    _tanh(t32)
    np.testing.assert_allclose(t32, np.tanh(x32), rtol=3e-7, atol=1e-37)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 17),
    st.integers(1, 6),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([4, 8]),
    st.integers(0, 99),
)
def test_product_is_a_matrix_product(rows, vectors, inner, keep, itemsize, seed):
    rng, dtype = np.random.default_rng(seed), np.dtype(f"f{itemsize}")
    columns = vectors * lanes(itemsize)
    A, B = rng.normal(size=(inner, rows)).astype(dtype), rng.normal(size=(inner, columns)).astype(dtype)
    C = rng.normal(size=(rows, columns)).astype(dtype)
    expected = keep * C + A.T @ B
    gemm(C, A.T, B, keep)
    np.testing.assert_allclose(C, expected, rtol=0, atol=1e-13 if itemsize == 8 else 1e-4)


# -------------------------------------------------------------------------------------------------------------- sums


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, FEW, FEW + 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]),
    st.integers(1, 9),
    st.integers(1, 12),
    st.integers(2, 4),
    st.sampled_from(["tanh", "relu"]),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 10**6),
)
@example(1, 5, 10, 2, "relu", np.float32, 0)  # a loss so small that a careless oracle loses its digits
def test_sums_agree_with_the_oracle(n, d, h, n_classes, activation, dtype, seed):
    X, y, theta = problem(n, d, h, n_classes, seed, dtype=dtype)
    kind = {"h": h, "activation": activation, "n_classes": n_classes}
    rows = reference.gradients(X, y, theta, **kind)
    loss, gradient = mlp_sums(X, y, theta, **kind)
    size = 1e-13 * n * (1 + np.abs(rows).max())
    np.testing.assert_allclose(gradient, rows.sum(axis=0), atol=size, rtol=0)
    # log of a sum that rounds near 1: a tiny loss is right to the last digits of 1, not to its own
    np.testing.assert_allclose(loss, reference.losses(X, y, theta, **kind).sum(), rtol=1e-13, atol=1e-15 * n)
    np.testing.assert_allclose(mlp_gradient(X, y, theta, **kind), rows.mean(axis=0), atol=size, rtol=0)
    np.testing.assert_allclose(mlp_logits(X, theta, **kind), reference.logits(X, theta, **kind), atol=1e-12)


@BOTH
@pytest.mark.parametrize("n_classes", [2, 3])
def test_gradient_is_the_slope_of_the_loss(activation, n_classes):
    X, y, theta = problem(200, n_classes=n_classes, seed=3, dtype=np.float64)
    gradient = mlp_sums(X, y, theta, 4, activation, n_classes)[1]
    for k in range(len(theta)):
        e = np.zeros_like(theta)
        e[k] = 1e-6
        above, below = (mlp_sums(X, y, theta + s * e, 4, activation, n_classes)[0] for s in (1, -1))
        slope = (above - below) / 2e-6
        assert abs(slope - gradient[k]) < 1e-5 * (1 + abs(gradient[k]))


def test_removal_weights_and_ids_are_one_identity():
    X, y, theta = problem(1000, seed=1)
    forget = np.random.default_rng(0).permutation(1000)[:130]
    weights = np.ones(1000)
    weights[forget] = 0
    everything, gone = mlp_sums(X, y, theta, 4), mlp_sums(X, y, theta, 4, ids=forget)
    rest = np.delete(np.arange(1000), forget)
    for loss, gradient in (mlp_sums(X, y, theta, 4, weights=weights), mlp_sums(X[rest], y[rest], theta, 4)):
        np.testing.assert_allclose(loss, everything[0] - gone[0], rtol=1e-12)
        np.testing.assert_allclose(gradient, everything[1] - gone[1], atol=1e-10)
    H = mlp_hessian(X, y, theta, 4) - mlp_hessian(X, y, theta, 4, ids=forget)
    np.testing.assert_allclose(H, mlp_hessian(X, y, theta, 4, weights=weights), atol=1e-10)


def test_many_parameter_vectors_in_one_pass_are_the_single_ones():
    X, y, _ = problem(CHUNK + 100)
    theta = np.random.default_rng(1).normal(size=(37, mlp_size(5, 4)))
    losses, gradients = mlp_sums(X, y, theta, 4)
    for i in (0, 15, 16, 36):
        loss, gradient = mlp_sums(X, y, theta[i], 4)
        assert loss == losses[i]
        np.testing.assert_array_equal(gradient, gradients[i])
    out = np.ones_like(theta)
    assert mlp_sums(X, y, theta, 4, gradient_out=out)[1] is out
    np.testing.assert_array_equal(out, 1 + gradients)


def test_results_do_not_depend_on_threads():
    X, y = learnable(5 * CHUNK + 11)
    theta = np.random.default_rng(0).normal(size=mlp_size(6, 4))
    ids = np.stack([np.random.default_rng(i).permutation(len(X))[:300] for i in range(5)])
    inverse = np.eye(len(theta))

    def everything():
        fits = mlp_fit_pairs(X, y, ids, np.arange(5), theta, 4, epochs=2, epochs_retained=1)
        pairs = mlp_anchored_pairs(
            X, y, ids[:, :9].ravel(), np.arange(6) * 9, theta, theta, 1.0, inverse, max_steps=2, h=4
        )
        sums, H, v = mlp_sums(X, y, theta, 4), mlp_hessian(X, y, theta, 4), mlp_hvp(X, y, theta, theta, 4)
        return [sums[1], np.array(sums[0]), H, v, *fits, *pairs]

    with threads(1):
        one = everything()
    for a, b in zip(one, everything(), strict=True):
        np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------------------------------- second derivatives


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([1, 127, 128, 300]),
    st.integers(1, 9),
    st.integers(1, 11),
    st.sampled_from(["tanh", "relu"]),
    st.integers(0, 99),
)
def test_hessian_agrees_with_the_oracle(n, d, h, activation, seed):
    X, y, theta = problem(n, d, h, seed=seed)
    H = mlp_hessian(X, y, theta, h, activation)
    expected = reference.hessian(X, y, theta, h, activation)
    np.testing.assert_array_equal(H, H.T)
    np.testing.assert_allclose(H, expected, atol=1e-12 * np.abs(expected).max() + 1e-300, rtol=0)


@BOTH
@pytest.mark.parametrize("n_classes", [2, 3])
def test_hvp_is_the_change_of_the_gradient(activation, n_classes):
    X, y, theta = problem(150, n_classes=n_classes, seed=5, dtype=np.float64)
    v = np.random.default_rng(1).normal(size=len(theta))
    e = 1e-6 * v
    above, below = (mlp_sums(X, y, theta + s * e, 4, activation, n_classes)[1] for s in (1, -1))
    product_ = mlp_hvp(X, y, theta, v, 4, activation, n_classes)
    np.testing.assert_allclose(product_, (above - below) / 2e-6, atol=1e-4)
    if n_classes == 2:
        np.testing.assert_allclose(mlp_hessian(X, y, theta, 4, activation) @ v, product_, atol=1e-10)


# ---------------------------------------------------------------------------------------------------------- training


def test_pairs_are_coupled_and_polished_to_the_tolerance():
    X, y = learnable(2000)
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(2000)[:600] for _ in range(4)])
    start = rng.normal(size=mlp_size(6, 4)) / 2
    sizes = np.array([0, 1, 30, 60])
    rough = mlp_fit_pairs(X, y, ids, sizes, start, 4, lam=1e-2, epochs=30)
    fits = mlp_fit_pairs(X, y, ids, sizes, start, 4, lam=1e-2, epochs=30, tol=1e-8, max_steps=2000)
    assert fits.gradient_norm.max() <= 1e-8 < rough.gradient_norm.min()
    assert (fits.loss <= rough.loss + 1e-9).all()
    np.testing.assert_array_equal(fits.theta[0], fits.theta_r[0])
    for i, r in enumerate(sizes):
        for theta, rows, column in ((fits.theta[i], ids[i], 0), (fits.theta_r[i], ids[i, r:], 1)):
            loss, gradient = mlp_sums(X[rows], y[rows], theta, 4)
            assert abs(loss / len(rows) + 0.005 * theta @ theta - fits.loss[i, column]) < 1e-12
            assert np.linalg.norm(gradient / len(rows) + 0.01 * theta) < 1.1e-8


def test_training_a_pair_alone_gives_the_same_and_seeds_matter():
    X, y = learnable(500)
    ids = np.stack([np.random.default_rng(i).permutation(500)[:200] for i in range(3)])
    start = np.random.default_rng(9).normal(size=mlp_size(6, 4)) / 2
    many = mlp_fit_pairs(X, y, ids, [1, 2, 3], start, 4, epochs=3)
    alone = mlp_fit_pairs(X, y, ids[1:2], [2], start, 4, epochs=3)
    np.testing.assert_array_equal(many.theta[1], alone.theta[0])
    np.testing.assert_array_equal(many.theta_r[1], alone.theta_r[0])
    np.testing.assert_array_equal(mlp_train(X, y, start, ids[1:2], 4, epochs=3)[0], alone.theta[0])
    assert (mlp_fit_pairs(X, y, ids[1:2], [2], start, 4, epochs=3, seed=1).theta != alone.theta).any()


def test_adam_agrees_with_numpy():
    X, y, start = problem(100, d=3, h=2, scale=0.5)
    theta, m, v, t = start.copy(), 0.0, 0.0, 0
    orders = np.random.default_rng(4).permuted(np.tile(np.arange(4), (5, 1)), axis=1)
    for order in orders:
        for k in order:
            rows = np.arange(k, 100, 4)
            g = reference.gradients(X[rows], y[rows], theta, 2).mean(axis=0) + 0.01 * theta
            rate = 0.02 * 0.5 * (1 + np.cos(np.pi * t / 20))
            t += 1
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            theta -= rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    ours = mlp_train(X, y, start, h=2, lam=0.01, epochs=5, batch=25, rate=0.02, seed=4)[0]
    np.testing.assert_allclose(ours, theta, atol=2e-5)


# --------------------------------------------------------------------------------------------------------- edge cases


def test_far_from_the_origin_duplicates_one_class_and_one_row():
    X, y, theta = problem(300, seed=2, dtype=np.float64)
    far = X + 1e4
    rows = reference.gradients(far, y, theta, 4)
    np.testing.assert_allclose(mlp_sums(far, y, theta, 4)[1], rows.sum(axis=0), atol=1e-7)
    twice = mlp_sums(np.vstack([X, X]), np.append(y, y), theta, 4)
    np.testing.assert_allclose(twice[1], 2 * mlp_sums(X, y, theta, 4)[1], rtol=1e-12, atol=1e-12)
    fit = mlp_fit_pairs(X, np.zeros(300, int), [np.arange(100)], [5], theta, 4, epochs=3)
    assert np.isfinite(fit.loss).all()
    assert (mlp_logits(X[:100], fit.theta[0], 4) < mlp_logits(X[:100], theta, 4)).mean() > 0.9
    np.testing.assert_array_equal(mlp_train(X[:1], y[:1], theta, h=4, epochs=2).shape, (1, len(theta)))
    loss, gradient = mlp_sums(X[:0], y[:0], theta, 4)
    assert loss == 0
    assert not gradient.any()
    assert not mlp_gradient(X[:0], y[:0], theta, 4).any()
    X[7, 2] = np.nan
    assert np.isnan(mlp_sums(X, y, theta, 4)[1]).any()


def test_strided_read_only_and_integer_input():
    X, y, theta = problem(400, d=5)
    expected = mlp_sums(X, y, theta, 4)[1]
    wide = np.zeros((400, 10), np.float32)
    wide[:, ::2] = X
    frozen_X, frozen_y = X.copy(), y.astype(np.int64)
    frozen_X.setflags(write=False)
    frozen_y.setflags(write=False)
    np.testing.assert_array_equal(mlp_sums(wide[:, ::2], y, theta, 4)[1], expected)
    np.testing.assert_array_equal(mlp_sums(frozen_X, frozen_y, theta, 4)[1], expected)
    whole = np.round(3 * X)
    np.testing.assert_array_equal(mlp_sums(whole.astype(int), y, theta, 4)[1], mlp_sums(whole, y, theta, 4)[1])


def test_bad_input_is_one_clear_sentence():
    X, y, theta = problem(50)
    ids = np.arange(50)[None]
    cases = [
        (ValueError, r"\(n, d\)", lambda: mlp_sums(X[0], y, theta, 4)),
        (ValueError, "match X", lambda: mlp_sums(X, y[1:], theta, 4)),
        (ValueError, "0..1", lambda: mlp_sums(X, y + 1, theta, 4)),
        (ValueError, "29 entries", lambda: mlp_sums(X, y, theta[1:], 4)),
        (ValueError, "gradient_out", lambda: mlp_sums(X, y, theta, 4, gradient_out=np.zeros(3))),
        (ValueError, "n_forget", lambda: mlp_fit_pairs(X, y, ids, [50], theta, 4)),
        (
            ValueError,
            "forget_starts",
            lambda: mlp_anchored_pairs(X, y, [1], [0, 2], theta, theta, 1.0, np.eye(29), h=4),
        ),
        (ValueError, "retain", lambda: mlp_anchored_pairs(X, y, ids[0], [0, 50], theta, theta, 1.0, np.eye(29), h=4)),
        (ValueError, "inverse", lambda: mlp_anchored_pairs(X, y, [1], [0, 1], theta, theta, 1.0, np.eye(3), h=4)),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()
