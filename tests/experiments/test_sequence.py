"""Streams of requests: drift against a retrain by another solver, refreshing, resume."""

import numpy as np
import pytest
from experiment_runs import measured
from sklearn.linear_model import LogisticRegression

from l2ul_fast.experiments.inputs import load
from l2ul_fast.experiments.quality import sequence


def test_points_and_rows_of_a_stream():
    assert sequence.points_of(100) == [1, 2, 5, 10, 20, 50, 100]
    assert sequence.points_of(7) == [1, 2, 5, 7]
    order, spare = sequence.stream(1000, 30, 4, 0)
    assert order.shape == (30, 4)
    assert np.unique(np.concatenate([order.ravel(), spare])).size == 120 + spare.size
    with pytest.raises(ValueError, match="too many"):
        sequence.stream(100, 30, 4, 0)


NUMBERS = {"lr": ("magic",), "mlp": (), "rows": {"lr": 1000}, "s": 300, "requests": 12, "r": {"lr": (3,)}, "every": 5}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequence")
    return folder, measured("sequence", folder, **NUMBERS)


def at(records, method, count):
    return next(r for r in records if (r["method"], r["requests"]) == (method, count))


def test_every_method_at_every_point(records):
    methods = {"nothing", "retrain", "l2ul-expansion", "l2ul-refreshed", "l2ul-learned", "l2ul-kme", "l2ul-paper"}
    assert {(r["method"], r["requests"]) for r in records[1]} == {(m, k) for m in methods for k in (1, 2, 5, 10, 12)}
    for k in (1, 12):
        assert at(records[1], "nothing", k)["rho"] == 1
        assert at(records[1], "retrain", k)["rho"] == 0
        assert at(records[1], "retrain", k)["residual"] < 1e-9
        assert at(records[1], "l2ul-expansion", k)["rho"] < 0.01
        assert at(records[1], "l2ul-expansion", k)["forgotten"] == 3 * k
        assert at(records[1], "retrain", k)["answer_seconds"] > 0


def test_change_is_that_of_another_solver(records):
    folder, found = records
    train = load("magic", 1000, folder / "no original files", folder / "data")[1]
    order, _ = sequence.stream(train.n, 12, 3, 0)

    def peer(X, y):
        fit = LogisticRegression(C=1 / (1e-3 * len(y)), solver="newton-cholesky", tol=1e-12, max_iter=200)
        fit.fit(X.astype(np.float64), y)
        return np.append(fit.coef_[0], fit.intercept_)

    stay = np.setdiff1d(np.arange(train.n), order.ravel())
    change = np.linalg.norm(peer(train.X, train.y) - peer(train.X[stay], train.y[stay]))
    assert at(found, "nothing", 12)["drift"] == pytest.approx(change, rel=1e-5)
    assert at(found, "l2ul-expansion", 12)["change"] == pytest.approx(change, rel=1e-5)


def test_refreshing_is_counted_and_timed(records):
    refreshed = [at(records[1], "l2ul-refreshed", k) for k in (2, 5, 10, 12)]
    assert [r["refreshes"] for r in refreshed] == [0, 1, 2, 2]
    assert refreshed[0]["refresh_seconds"] is None
    assert refreshed[1]["refresh_seconds"] > 0
    assert refreshed[0]["drift"] == pytest.approx(at(records[1], "l2ul-expansion", 2)["drift"], rel=1e-6)
    assert not refreshed[2]["due"] or at(records[1], "l2ul-refreshed", 10)["rho"] < 0.01


def test_no_error_of_the_expansion_adds_up(records):
    """36 rows leave in 12 requests; the estimate holds at each point."""
    stream = [at(records[1], "l2ul-expansion", k) for k in (1, 2, 5, 10, 12)]
    assert max(r["rho"] for r in stream) < 0.01
    assert all(r["rho"] < 10 * r["error"] for r in stream)
    assert at(records[1], "retrain", 12)["due"] == stream[-1]["due"]  # a fact of the stream, in all its records


def test_mlp_stream(tmp_path):
    """After a refresh the retrain belongs to the anchor of then."""
    numbers = {"lr": (), "s": 300, "requests": 3, "every": 2}
    found = measured("sequence", tmp_path, **numbers)
    assert {r["method"] for r in found} == {"nothing", "retrain", "l2ul-expansion", "l2ul-refreshed", "l2ul-learned"}
    assert at(found, "l2ul-expansion", 3)["rho"] < 1
    assert at(found, "l2ul-refreshed", 2)["rho"] < 1e-4
