"""Losses of a linear predictor: their derivatives by other means, and an exponential that is the same everywhere."""

import math

import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from l2ul_kernels.linear.losses import (
    LARGEST,
    LOGISTIC,
    LOGISTIC_BOUNDS,
    NAMES,
    POISSON,
    derivatives,
    exp,
    row_losses,
    value,
)

CASES = [(loss, y) for loss in range(3) for y in ((0.0, 1.0) if loss == LOGISTIC else (0.0, 3.0, 250.5))]
losses = pytest.mark.parametrize(("loss", "y"), CASES, ids=[f"{NAMES[loss]}-{y:g}" for loss, y in CASES])


@numba.njit
def all_derivatives(loss, z, y, out):
    for i in range(z.size):
        out[i, 0], out[i, 1], out[i, 2] = derivatives(loss, z[i], y[i])


@numba.njit
def all_exponentials(x, out):
    for i in range(x.size):
        out[i] = exp(x[i])


def ulps(found, expected):
    return abs(found - expected) / math.ulp(expected)


# The exponential -----------------------------------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(st.floats(-LARGEST, LARGEST))
@example(0.0)
@example(-0.0)
@example(LARGEST)
@example(-LARGEST)
@example(math.log(2) / 2)
@example(-math.log(2) / 2)
@example(math.nextafter(353.5 * math.log(2), 0))
@example(5e-324)
def test_exp_is_within_two_units_of_the_last_place(x):
    assert ulps(exp(x), math.exp(x)) <= 2


def test_exp_on_a_grid_in_vectors_has_the_bits_of_single_calls():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-LARGEST, LARGEST, 4001), rng.normal(size=4000), 1e-9 * rng.normal(size=100)])
    found = np.empty_like(x)
    all_exponentials(x, found)
    assert max(ulps(f, math.exp(v)) for f, v in zip(found.tolist(), x.tolist(), strict=True)) <= 2
    np.testing.assert_array_equal(found, [exp(v) for v in x.tolist()])


@pytest.mark.parametrize("x", [709.0, 800.0, 1e300, math.inf])
def test_exp_of_extremes_is_finite_and_positive(x):
    assert exp(x) == exp(LARGEST) < math.inf
    assert exp(-x) == exp(-LARGEST) > 0.0


# Derivatives ---------------------------------------------------------------------------------------------------------


#: z up to where a Poisson mean is 1e17 and a logistic weight rounds to nothing.
PLACES = np.concatenate([np.linspace(-40, 40, 81), [-1e-8, 1e-8, -0.5, 0.5, -700, 36.04, -36.04]])


@losses
def test_derivatives_are_those_of_torch(loss, y):
    torch = pytest.importorskip("torch")
    at = torch.tensor(PLACES, dtype=torch.float64, requires_grad=True)
    here = [torch.nn.functional.softplus(at, threshold=1e9) - y * at, (at - y) ** 2 / 2, torch.exp(at) - y * at][loss]
    expected = []
    for _ in range(3):
        (here,) = torch.autograd.grad(here.sum(), at, create_graph=True, allow_unused=True)
        here = 0 * at if here is None else here
        expected.append(here.detach().numpy())
    found = np.array([derivatives(loss, v, y) for v in PLACES.tolist()]).T
    for k in range(3):
        # torch takes e^z for z > 0 and loses the small tail there: the absolute tolerance
        np.testing.assert_allclose(found[k], expected[k], rtol=1e-12, atol=1e-13 * max(1, y), err_msg=f"order {k + 1}")


@losses
def test_derivatives_are_differences_of_the_order_below(loss, y):
    h = 1e-4
    for z in np.linspace(-6, 6, 25).tolist():
        here = derivatives(loss, z, y)
        above, below = derivatives(loss, z + h, y), derivatives(loss, z - h, y)
        slope = (value(loss, z + h, y) - value(loss, z - h, y)) / (2 * h)
        assert here[0] == pytest.approx(slope, rel=1e-6, abs=1e-6)
        for k in (1, 2):
            assert here[k] == pytest.approx((above[k - 1] - below[k - 1]) / (2 * h), rel=1e-6, abs=1e-7)


@settings(max_examples=300, deadline=None)
@given(st.floats(-700, 700), st.integers(0, 1))
@example(0.0, 0)
@example(-0.0, 1)
def test_logistic_derivatives_stay_within_their_bounds_and_keep_its_symmetry(z, y):
    first, second, third = derivatives(LOGISTIC, z, float(y))
    for size, power in zip((first, second, third), LOGISTIC_BOUNDS, strict=True):
        assert abs(size) <= 2.0**power * (1 + 2**-52)  # s (1 - s) is rounded
    assert abs(third) < 2.0 ** LOGISTIC_BOUNDS[2]  # the largest is 1 / (6 sqrt 3)
    assert second >= 0
    mirrored = derivatives(LOGISTIC, -z, 1.0 - y)
    assert (mirrored[1], mirrored[2]) == (second, -third)
    assert mirrored[0] == pytest.approx(-first, abs=2**-52)


@losses
def test_derivatives_of_many_rows_have_the_bits_of_single_calls(loss, y):
    z = np.random.default_rng(loss).normal(size=1003) * 20
    found = np.empty((z.size, 3))
    all_derivatives(loss, z, np.full(z.size, y), found)
    np.testing.assert_array_equal(found, [derivatives(loss, v, y) for v in z.tolist()])


@pytest.mark.parametrize("z", [-math.inf, -1e300, -750.0, 750.0, 1e300, math.inf])
def test_extreme_predictors_have_finite_derivatives(z):
    for y in (0.0, 1.0):
        first, second, third = derivatives(LOGISTIC, z, y)
        assert first == pytest.approx((z > 0) - y, abs=1e-300)
        assert 0 <= second < 1e-300
        assert abs(third) < 1e-300
    mean = derivatives(POISSON, z, 2.0)[1]
    assert 0 < mean < math.inf
    assert derivatives(POISSON, z, 2.0)[0] == mean - 2.0


def test_a_loss_is_what_it_says():
    assert NAMES == ("logistic", "squared", "poisson")
    for z in (-3.0, 0.0, 0.7, 30.0):
        assert value(0, z, 1.0) == pytest.approx(math.log1p(math.exp(-z)), rel=1e-12)
        assert value(0, z, 0.0) == pytest.approx(math.log1p(math.exp(-z)) + z, rel=1e-12)
        assert value(1, z, 2.0) == (z - 2.0) ** 2 / 2
        assert value(2, z, 2.0) == pytest.approx(math.exp(z) - 2 * z, rel=1e-12)


@pytest.mark.parametrize("loss", range(3))
def test_derivatives_of_all_rows_are_those_of_each(loss):
    """Times the rows' weights; a row of weight 0 may hold anything."""
    z, y, weights = np.linspace(-2, 2, 5), np.array([0, 1, 0, 1, 1]), np.array([1.0, 0.0, 2.0, 0.5, 1.0])
    z[1] = np.nan
    for factors in (weights, np.empty(0)):
        first, second, total = np.empty(5), np.empty(5), 0.0
        found = row_losses(loss, z, y, factors, first, second)
        for i in range(5):
            w = factors[i] if factors.size else 1.0
            e, h, _ = derivatives(loss, z[i], float(y[i]))
            total += w * value(loss, z[i], float(y[i])) if w else 0.0
            np.testing.assert_array_equal([first[i], second[i]], [w * e, w * h] if w else 0.0)
        np.testing.assert_allclose(found, total, rtol=1e-15)
