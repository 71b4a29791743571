"""Value, accuracy, F1, disagreement, churn, ToW, output distances: against scikit-learn, scipy and plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import ttest_rel
from sklearn.metrics import accuracy_score, f1_score

from l2ul_fast import metrics
from l2ul_fast.errors import DataError
from l2ul_fast.metrics import Accuracies, Value
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import ArrayTable

labels = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30)


def probabilities(rng, n, c=3, zeros=False):
    p = rng.dirichlet(np.full(c, 0.3), n)
    if zeros:
        p[: n // 2] = np.eye(c)[rng.integers(0, c, n // 2)]
    return p


# ------------------------------------------------------------------------------------------------------------- Value


def test_a_value_is_a_number_or_a_reason():
    for bad in ({"value": None}, {"value": 1.0, "degenerate": "x"}, {"value": np.nan}, {"value": np.inf}):
        with pytest.raises(ValueError, match="value"):
            Value(**bad)
    v = Value(0.7, target=0.6, nothing=0.9)
    assert v.gap == pytest.approx(0.1)
    assert v.beaten_by_nothing is False
    assert Value(0.7, target=0.6, nothing=0.6).beaten_by_nothing is True
    assert Value(0.7, target=0.6, nothing=0.7).beaten_by_nothing is True
    assert Value(0.7, target=0.6).beaten_by_nothing is None
    assert Value(None, 0.6, "one class", nothing=0.1).beaten_by_nothing is None
    assert str(Value(None, degenerate="one class")) == "degenerate: one class"
    with pytest.raises(AttributeError):
        v.value = 1.0


@pytest.mark.parametrize("classes", [2, 4])
def test_margins_and_losses(classes):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.integers(0, classes, 50)
    for model in (LogisticModel(3, classes), MLPModel(3, classes)):
        theta = rng.normal(size=model.size)
        p = model.predict_proba(theta, X)[np.arange(50), y]
        np.testing.assert_allclose(metrics.margins(model, theta, X, y), np.log(p / (1 - p)), rtol=1e-9)
        np.testing.assert_allclose(metrics.losses(model, theta, X, y), -np.log(p), rtol=1e-9)
        # where the probability rounds to 1 the margin still grows
        far = metrics.margins(model, 1000 * theta, X, y) if model.name == "lr" else None
        assert far is None or np.isfinite(far).all()
        with pytest.raises(DataError, match="labels"):
            metrics.margins(model, theta, X, y[:-1])


# ------------------------------------------------------------------------------------------ accuracy and its relatives


@given(labels)
@settings(max_examples=100, deadline=None)
def test_accuracy_and_f1_equal_scikit_learn(rows):
    y, predicted, _ = (np.array(c) for c in zip(*rows, strict=True))
    assert metrics.accuracy(predicted, y).value == pytest.approx(accuracy_score(y, predicted))
    two, called = (y > 0).astype(int), (predicted > 0).astype(int)
    for average, a, b in (("macro", y, predicted), ("binary", two, called)):
        found = metrics.f1(b, a, average)
        if len(np.unique(a)) < 2:
            assert found.degenerate == "all rows are of one class"
        else:
            assert found.value == pytest.approx(f1_score(a, b, average=average))


@given(labels)
@settings(max_examples=100, deadline=None)
def test_disagreement_and_churn(rows):
    u, r, o = (np.array(c) for c in zip(*rows, strict=True))
    found = metrics.disagreement(u, r, o)
    assert (found.value, found.nothing) == pytest.approx(((r != u).mean(), (r != o).mean()))
    assert metrics.disagreement(r, r, o).value == 0 == found.target
    moved = metrics.churn(u, o, r)
    assert (moved.value, moved.target) == pytest.approx(((o != u).mean(), (o != r).mean()))
    assert metrics.churn(r, o, r).gap == 0
    assert metrics.churn(o, o, r).value == 0 == moved.nothing


def test_no_rows_and_wrong_lengths():
    none = np.zeros(0, int)
    for found in (
        metrics.accuracy(none, none),
        metrics.f1(none, none),
        metrics.disagreement(none, none),
        metrics.churn(none, none, none),
        metrics.activation_distance(np.zeros((0, 2)), np.zeros((0, 2))),
        metrics.js_divergence(np.zeros((0, 2)), np.zeros((0, 2))),
        metrics.zrf(np.zeros((0, 2)), np.zeros((0, 2))),
        metrics.accuracy_on(LogisticModel(2), np.zeros(3), (np.zeros((0, 2)), none)),
    ):
        assert found.degenerate == "no rows"
    with pytest.raises(DataError, match="rows"):
        metrics.accuracy([1, 0], [1])
    with pytest.raises(DataError, match="rows"):
        metrics.disagreement([1, 0], [1, 1], [1])
    with pytest.raises(ValueError, match="average"):
        metrics.f1([1], [1], "micro")
    assert metrics.f1([2, 2], [0, 2], "binary").degenerate == "class 1 neither occurs nor is predicted"


def test_accuracy_on_reads_tables_in_blocks(monkeypatch):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(101, 3)), rng.integers(0, 2, 101).astype(np.uint8)
    model, theta = LogisticModel(3), rng.normal(size=4)
    table = ArrayTable(X, y, [0, 1]).without(np.arange(5))
    monkeypatch.setattr("l2ul_fast.tables.BLOCK_ROWS", 10)
    expected = accuracy_score(y[5:], model.predict(theta, X[5:]))
    assert metrics.accuracy_on(model, theta, table).value == pytest.approx(expected)
    three = metrics.accuracies(model, theta, (X[:5], y[:5]), table, (X, y))
    assert three.retain.value == pytest.approx(expected)
    assert three.forget.value == pytest.approx(accuracy_score(y[:5], model.predict(theta, X[:5])))


def test_paired_difference_equals_scipy():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=12), rng.normal(size=12)
    found = metrics.paired_difference(a, b)
    low, high = ttest_rel(a, b).confidence_interval(0.95)
    assert found.value == pytest.approx((a - b).mean())
    assert found.interval == pytest.approx((low, high))
    assert metrics.paired_difference(a, a).value == 0 == found.target
    assert "1 run" in metrics.paired_difference([1.0], [0.5]).degenerate


# --------------------------------------------------------------------------------------------------------- Tug-of-War

unit = st.floats(0, 1)
triple = st.builds(Accuracies, unit, unit, unit)


@given(triple, triple, triple)
@settings(max_examples=100, deadline=None)
def test_tow(u, r, o):
    found = metrics.tow(u, r, o)
    expected = 1.0
    for part in ("forget", "retain", "test"):
        expected *= 1 - abs(getattr(u, part) - getattr(r, part))
    assert found.value == pytest.approx(expected)
    assert found.nothing == pytest.approx(metrics.tow(o, r, u).value)
    assert metrics.tow(r, r, o).value == 1 == found.target
    swapped = metrics.tow_mia(u, r, o, 0.3, 0.5, 0.9)
    own = 1 - abs(u.forget - r.forget)
    if own > 1e-3:
        assert swapped.value == pytest.approx(found.value / own * 0.8)


def test_tow_passes_degenerate_parts_on_and_refuses_percent():
    fine, bad = Accuracies(0.5, 0.5, 0.5), Value(None, degenerate="no rows")
    assert metrics.tow(fine._replace(forget=bad), fine, fine).degenerate == "no rows"
    assert metrics.tow_mia(fine, fine, fine, 0.5, bad, 0.5).degenerate == "no rows"
    with pytest.raises(ValueError, match="0 to 1"):
        metrics.tow(Accuracies(50.0, 50.0, 50.0), fine, fine)


# ---------------------------------------------------------------------------------------------------- output distances


@pytest.mark.parametrize("zeros", [False, True])
def test_js_equals_scipy(zeros):
    rng = np.random.default_rng(3)
    p, q, o = (probabilities(rng, 40, zeros=zeros) for _ in range(3))
    expected = [jensenshannon(a, b) ** 2 for a, b in zip(p, q, strict=True)]  # scipy gives its root, in nats
    np.testing.assert_allclose(metrics.js_rows(p, q), expected, atol=1e-12)
    found = metrics.js_divergence(p, q, o)
    assert found.value == pytest.approx(np.mean(expected))
    assert found.nothing == pytest.approx(metrics.js_divergence(o, q).value)
    assert metrics.js_divergence(p, p).value == pytest.approx(0, abs=1e-15)
    assert metrics.zrf(p, q, target=0.9).value == pytest.approx(1 - np.mean(expected))


@given(st.integers(0, 10_000), st.integers(2, 5))
@settings(max_examples=50, deadline=None)
def test_output_distances_are_symmetric_bounded_and_blind_to_order(seed, c):
    rng = np.random.default_rng(seed)
    p, q = probabilities(rng, 8, c, zeros=True), probabilities(rng, 8, c)
    rows, columns = rng.permutation(8), rng.permutation(c)
    for metric, most in ((metrics.js_divergence, np.log(2)), (metrics.activation_distance, 2**0.5)):
        value = metric(p, q).value
        assert 0 <= value <= most + 1e-12
        assert metric(q, p).value == pytest.approx(value)
        assert metric(p[rows][:, columns], q[rows][:, columns]).value == pytest.approx(value)
        assert metric(q, q).value == pytest.approx(0, abs=1e-15)
    assert metrics.activation_distance(p, q).value == pytest.approx(
        np.mean([np.linalg.norm(a - b) for a, b in zip(p, q, strict=True)])
    )


def test_opposite_answers_are_log_2_apart():
    p, q = np.eye(2), np.eye(2)[::-1]
    assert metrics.js_divergence(p, q).value == pytest.approx(np.log(2))
    assert metrics.activation_distance(p, q, q).nothing == 0


def test_probabilities_are_checked():
    for bad in (np.full((3, 2), 0.6), np.array([[1.5, -0.5]]), np.zeros(3), np.ones((3, 1))):
        with pytest.raises(DataError, match="probabilities"):
            metrics.js_rows(bad, bad)
    with pytest.raises(DataError, match="same shape"):
        metrics.js_rows(np.full((2, 2), 0.5), np.full((3, 2), 0.5))


@pytest.mark.parametrize("model", [LogisticModel(3), LogisticModel(3, 4), MLPModel(3)])
def test_random_answers_depend_on_the_seed_only(model):
    X = np.random.default_rng(4).normal(size=(20, 3))
    first = metrics.random_proba(model, X, 1)
    np.testing.assert_array_equal(first, metrics.random_proba(model, X, 1))
    assert (first != metrics.random_proba(model, X, 2)).any()
    assert first.shape == (20, model.n_classes)
