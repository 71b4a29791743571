"""Integer sums against an oracle of Python integers: the same bits in any order, by any means, up to the last bit there
is room for."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import l2ul_kernels as lk
from l2ul_kernels.linear import integer_sums as ints
from l2ul_kernels.linear.losses import LOGISTIC, LOGISTIC_BOUNDS, POISSON, derivatives
from l2ul_kernels.reference import expansion as oracle

seeds = st.integers(0, 2**32)
DTYPES = (np.float32, np.float64)


def exponents_of(X, y, weights, loss, anchor):
    """(p + 4,): each value is below 2 to its exponent, as an expansion takes them."""
    here = X if weights is None else X[weights > 0]
    largest = np.abs(here.astype(np.float64)).max(axis=0, initial=0.0)
    sizes = np.zeros(3)
    for i in range(len(X)):
        z = 0.0
        for a, x in zip(anchor, X[i].tolist(), strict=False):
            z += a * x
        weight = 1.0 if weights is None else weights[i]
        found = derivatives(loss, z + anchor[-1], float(y[i]))
        sizes = np.maximum(sizes, weight * np.abs(found))
    heaviest = 0 if weights is None else np.frexp(weights.max(initial=0.0))[1]
    exponents = [*np.frexp(largest)[1], 1, *np.frexp(sizes)[1], heaviest]
    if loss == LOGISTIC and weights is None:
        exponents[-4:-1] = LOGISTIC_BOUNDS
    return np.array(exponents, np.int64)


def scales_of(exponents, bits, weighted):
    first, second, cubic, weight = exponents[-4:].tolist()
    third = min(ints.THIRD_BITS, bits)
    scales = np.ones(ints.SCALES)
    scales[ints.MOMENT], scales[ints.FIRST], scales[ints.SECOND] = 2.0 ** np.array([bits, bits - first, bits - second])
    scales[ints.THIRD], scales[ints.COLUMN] = 2.0 ** (third - third // 2 - cubic), 2.0 ** (third // 2)
    scales[ints.HALF_THIRD] = 2.0 ** (third - third // 2 - 1)
    if weighted:
        scales[ints.WEIGHT] = 2.0 ** (bits - weight)
    return scales


class Summed:
    """Rows with a point and scales, and their sums by the kernels and by the oracle."""

    def __init__(self, X, y, weights, loss, order, anchor, bits=None, exponents=None):
        self.X, self.y, self.weights, self.loss, self.order, self.anchor = X, y, weights, loss, order, anchor
        self.classes = 2 if loss == LOGISTIC else 0
        self.exponents = exponents_of(X, y, weights, loss, anchor) if exponents is None else exponents
        self.bits = ints.fixed_point_bits(len(X)) if bits is None else bits
        self.scales = scales_of(self.exponents, self.bits, weights is not None)

    def zeros(self):
        return np.zeros(ints.sums_size(self.anchor.size, self.classes, self.order), np.int64)

    def add(self, sums, rows=slice(None), sign=1, X=None):
        X = self.X if X is None else X
        weights = None if self.weights is None else self.weights[rows]
        counted = self.loss != LOGISTIC or self.weights is not None
        inverse = np.ldexp(1.0, -self.exponents[: self.anchor.size])
        terms = ints.Terms(self.loss, self.order, counted, self.anchor, inverse, self.scales, self.classes)
        ints.add_all_rows(X[rows], self.y[rows], weights, sign, terms, sums)
        return sums

    def total(self, rows=slice(None)):
        return self.add(self.zeros(), rows)

    def oracle(self, rows=slice(None)):
        weights = None if self.weights is None else self.weights[rows]
        what = (self.loss, self.order, self.anchor, self.exponents, self.bits, self.classes)
        return oracle.sums(self.X[rows], self.y[rows], weights, *what)


def draw(seed, n, d, loss=LOGISTIC, order=3, dtype=np.float64, weighted=False, powers=0.0, far=0.0, ties=False):
    """Rows of columns of different sizes (2 to +-powers) and distances from the origin, some zero, some of ties."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    if ties:
        X = np.rint(X)
    X = X + far * rng.normal(size=d)
    sizes = np.ldexp(1.0, rng.integers(-int(powers), int(powers) + 1, d))
    X = (X * sizes).astype(dtype)
    X[:, rng.random(d) < 0.15] = 0
    y = rng.integers(0, 2, n).astype(np.uint8) if loss == LOGISTIC else rng.poisson(3.0, n).astype(np.float64)
    weights = rng.choice([0.0, 0.3, 1.0, 1.0, 7.0], n) if weighted else None
    if weighted and n:
        weights[0] = 0.7
    anchor = 0.3 * rng.normal(size=d + 1)
    anchor[:d] /= sizes * (1 + abs(far))
    return Summed(X, y, weights, loss, order, anchor)


# Against the oracle --------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seeds,
    st.sampled_from([0, 1, 2, 5, 30]),
    st.integers(1, 6),
    st.integers(0, 2),
    st.sampled_from([2, 3]),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.sampled_from([0.0, 1.0, 20.0]),
    st.sampled_from([0.0, 1e3]),
    st.booleans(),
)
@example(0, 1, 1, 0, 3, np.float32, False, 0.0, 0.0, False)
@example(1, 70, 5, 0, 3, np.float64, True, 20.0, 1e3, False)  # more rows than a block
@example(2, 129, 3, 2, 3, np.float64, False, 0.0, 0.0, True)
def test_sums_are_those_of_the_oracle(seed, n, d, loss, order, dtype, weighted, powers, far, ties):
    case = draw(seed, n, d, loss, order, dtype, weighted, powers, far, ties)
    sums = case.total()
    assert sums.tolist() == case.oracle()
    assert sums[0] == (n if case.weights is None else (case.weights > 0).sum())


@pytest.mark.parametrize("power", [-280, -100, 100, 280])
def test_huge_and_tiny_columns(power):
    case = draw(3, 40, 4)
    case.X[:, 1] = np.ldexp(case.X[:, 0], power)
    case.anchor[1] = np.ldexp(case.anchor[0], -power)
    big = Summed(case.X, case.y, None, LOGISTIC, 3, case.anchor)
    assert big.total().tolist() == big.oracle()
    unit = case.X.copy()
    unit[:, 1] = case.X[:, 0]
    plain = case.anchor.copy()
    plain[1] = plain[0]
    here = Summed(unit, case.y, None, LOGISTIC, 3, plain)
    np.testing.assert_array_equal(here.total(), big.total())  # the power of two is in the scale alone


@pytest.mark.parametrize("loss", [0, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_added_can_be_taken_out_in_any_order_and_parts(loss, dtype):
    case = draw(5, 300, 5, loss, dtype=dtype, weighted=loss == POISSON)
    rng = np.random.default_rng(1)
    whole = case.total()
    kept = np.sort(rng.choice(300, 180, replace=False))
    gone = rng.permutation(np.setdiff1d(np.arange(300), kept))
    sums = whole.copy()
    for part in np.array_split(gone, [1, 2, 9, 80]):
        case.add(sums, part, -1)
    np.testing.assert_array_equal(sums, case.total(kept))
    for part in np.array_split(rng.permutation(gone), 7):
        case.add(sums, part)
    np.testing.assert_array_equal(sums, whole)
    for row in range(300):
        case.add(sums, [row], -1)
    assert not sums.any()
    case.add(sums, slice(0, 0))
    assert not sums.any()


@pytest.mark.parametrize("loss", [0, 1, 2])
def test_one_and_two_threads_give_the_same_bits(loss):
    case = draw(6, 1700, 4, loss, weighted=loss == LOGISTIC)
    found = []
    for threads in (1, 2):
        with lk.threads(threads):
            found.append(case.total())
    np.testing.assert_array_equal(found[0], found[1])
    parts = [case.total(slice(a, b)) for a, b in ((900, 1700), (0, 3), (3, 900))]
    np.testing.assert_array_equal(sum(parts), found[0])
    with lk.threads(2):
        case.add(found[0], np.arange(1700)[::-1], -1)
    assert not found[0].any()


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 80), st.integers(1, 5), st.sampled_from(DTYPES))
def test_a_row_of_weight_zero_is_a_row_that_is_not_there(seed, n, d, dtype):
    case = draw(seed, n, d, dtype=dtype, weighted=True)
    present = np.flatnonzero(case.weights)
    less = Summed(case.X[present], case.y[present], case.weights[present], LOGISTIC, 3, case.anchor, case.bits)
    np.testing.assert_array_equal(less.exponents, case.exponents)
    np.testing.assert_array_equal(less.total(), case.total())
    assert case.total()[0] == present.size
    case.X[case.weights == 0] = 1e30  # whatever it holds
    np.testing.assert_array_equal(case.total(), less.total())


# The pass over columns -----------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(0, 60), st.integers(1, 5), st.integers(0, 2), st.sampled_from(DTYPES), st.booleans())
def test_extremes_and_moments_are_those_of_numpy(seed, n, d, loss, dtype, weighted):
    case = draw(seed, n, d, loss, dtype=dtype, weighted=weighted)
    weights = np.empty(0) if case.weights is None else case.weights
    largest = np.zeros(d)
    ints.column_extremes(case.X, weights, largest)
    here = case.X.astype(np.float64) if case.weights is None else case.X[weights > 0].astype(np.float64)
    np.testing.assert_array_equal(largest, np.abs(here).max(axis=0, initial=0.0))
    sizes = np.zeros(3)
    ints.derivative_extremes(case.X, case.y, weights, loss, case.anchor, sizes)
    if n and not (loss == LOGISTIC and weights.size == 0):
        np.testing.assert_array_equal(np.frexp(sizes)[1], case.exponents[-4:-1])
    moments = np.zeros(d + 1, np.int64)
    inverse = np.ldexp(1.0, -case.exponents[: d + 1])
    ints.add_moments(case.X, weights, inverse, case.scales[ints.MOMENT], moments)
    at = ints.moments_at(d + 1, case.classes)
    np.testing.assert_array_equal(moments, case.total()[at : at + d + 1])  # the pass before the sums agrees with them


# Up to the last bit --------------------------------------------------------------------------------------------------


def largest_case(n, d=3, bits=None):
    """Rows whose every term is as large as its scale allows: u just below 1, |e| just below 1."""
    X = np.full((n, d), 1 - 2.0**-53)
    X[:, 1] *= -1
    y = np.zeros(n, np.uint8)
    y[0] = 1
    anchor = np.array([0.0] * d + [40.0])  # e = 1 to the last bit for class 0
    return Summed(X, y, None, LOGISTIC, 3, anchor, bits)


@pytest.mark.parametrize("n", [4094, 4095, 4096])
def test_there_is_room_for_as_many_rows_as_the_scale_was_made_for(n):
    """Terms as large as they may be, as many as there may be: sums near 2^62 are exact, none has wrapped."""
    for anchor in (40.0, 0.0, -1.3):  # largest |e|, |w| and |c|
        case = largest_case(n)
        case.anchor[-1] = anchor
        one, other = case.oracle(slice(1, 2)), case.oracle(slice(0, 1))
        expected = [a * (n - 1) + b for a, b in zip(one, other, strict=True)]
        assert max(map(abs, expected)) < 2**62
        assert case.total().tolist() == expected


def test_the_room_is_for_any_number_of_rows():
    """What no test can add up: terms at their largest, times the most rows that their scale is for."""
    for power in (0, 1, 11, 12, 13, 20, 31, 40, 61):
        for rows in (2**power, 2 ** (power + 1) - 1):
            bits = ints.fixed_point_bits(rows)
            assert 0 <= bits <= ints.TERM_BITS
            if bits == 0:
                continue
            for anchor in (40.0, 0.0, -1.3):
                case = largest_case(1, 2, bits)
                case.anchor[-1] = anchor
                assert max(abs(v) for v in case.oracle()) * rows < 2**63
                assert case.total().tolist() == case.oracle()


def test_blocks_of_third_derivatives_stay_exact_in_floating_point():
    """64 products of 2^44 at once, with signs that do and do not cancel."""
    rng = np.random.default_rng(9)
    for same in (True, False):
        signs = np.ones((128, 4)) if same else rng.choice([-1.0, 1.0], (128, 4))
        X = signs * (1 - 2.0 ** -rng.integers(20, 53, (128, 4)))
        y = np.arange(128, dtype=np.uint8) % 2
        case = Summed(X, y, None, LOGISTIC, 3, np.array([0.0, 0, 0, 0, -1.31695789692]))  # where c is largest
        assert case.total().tolist() == case.oracle()


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 50))
def test_fewer_bits_round_to_the_nearest_integer(seed, bits):
    case = draw(seed, 12, 3)
    less = Summed(case.X, case.y, None, LOGISTIC, 3, case.anchor, bits)
    assert less.total().tolist() == less.oracle()
    at = ints.moments_at(4, 2) + 4
    e = np.array([derivatives(LOGISTIC, float(z), float(y))[0] for z, y in zip(_z(less), less.y, strict=True)])
    exact = (e[:, None] * np.hstack([case.X, np.ones((12, 1))])).sum(axis=0)
    unit = np.ldexp(1.0, less.exponents[:4] - bits)  # of G; |e| is below 1
    np.testing.assert_allclose(less.total()[at : at + 4] * unit, exact, rtol=0, atol=13 * unit.max())


def _z(case):
    return case.X @ case.anchor[:-1] + case.anchor[-1]
