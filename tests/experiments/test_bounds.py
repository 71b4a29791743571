"""The bounds of Theorems 4.5 and 4.6: their constants worked out otherwise, and that the corrected one holds."""

import numpy as np
import pytest
from experiment_runs import measured

from l2ul_fast.experiments.paper import bounds
from l2ul_fast.models import LogisticModel, MLPModel


def thetas(model, rng, scale):
    return rng.normal(size=model.size) * scale, rng.normal(size=model.size) * scale


def test_log_loss_is_that_of_the_probabilities():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.integers(0, 2, 50).astype(np.uint8)
    for model in (LogisticModel(3), MLPModel(3, h=4)):
        theta = rng.normal(size=model.size)
        wanted = -np.log(model.predict_proba(theta, X)[np.arange(50), y]).mean()
        assert bounds.log_loss(model, theta, X, y) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("model", [LogisticModel(3), MLPModel(3, h=4)], ids=["lr", "mlp"])
def test_no_row_is_steeper_than_the_constant(model, scale):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 3))
    radius = np.linalg.norm(X, axis=1).max()
    steepest = 0.0
    for _ in range(20):
        a, b = thetas(model, rng, scale)
        limit = bounds.lipschitz(model, radius, a, b)
        for share in (0.0, 0.5, 1.0):
            at = a + share * (b - a)
            norms = [
                np.linalg.norm(model.data_gradient(at, x[None], np.array([c], np.uint8)))
                for x in X[:40]
                for c in (0, 1)
            ]
            steepest = max(steepest, max(norms) / limit)
    assert 0.2 < steepest <= 1.0


def test_constants_of_the_paper():
    assert bounds.paper_constant(LogisticModel(3), 2.5, 9.9) == 5.0
    # n = (3, 4, 2), R = 2: A_W = 4*4*2 + (4/16) * (3*4*2)^2 / (4*2), A_B = 4*2 + (4/16) * (4*2)^2 / 4
    assert bounds.paper_constant(MLPModel(3, h=4), 2.5, 2.0) == pytest.approx(np.hypot(32 + 18, 8 + 4))


def test_comparison_by_hand():
    model = LogisticModel(1)
    X, y = np.array([[3.0]]), np.array([1], np.uint8)
    answered, target = np.array([0.0, 0.0]), np.array([0.3, 0.4])
    found = bounds.compare(model, answered, target, 3.0, (X, y), (X, y))
    assert found["epsilon"] == pytest.approx(0.125)  # 0.25 / 2
    assert found["bound"] == pytest.approx(6 * np.sqrt(0.125))
    assert found["corrected_bound"] == pytest.approx(np.sqrt(10) * 0.5)
    assert found["excess_loss"] == pytest.approx(np.log(2) - np.log1p(np.exp(-1.3)))
    assert found["holds"]
    assert found["corrected_holds"]


def test_missing_factor_can_break_the_paper_form():
    """Many parameters that all err a little: 2 R sqrt(eps) falls short, R sqrt(p eps) does not."""
    d = 100
    model = LogisticModel(d)
    X, y = np.full((1, d), 0.1), np.array([0], np.uint8)
    answered, target = np.append(np.full(d, 3.0), 0.0), np.append(np.full(d, 2.0), 0.0)
    found = bounds.compare(model, answered, target, 1.0, (X, y), (X, y))
    assert not found["holds"]
    assert found["corrected_holds"]


def test_the_corrected_bound_holds(tmp_path):
    numbers = {"lr": ("magic",), "mlp": ("magic",), "rows": {"lr": 800, "mlp": 800}, "m": 150, "s": 200}
    numbers |= {"anchor_rows": 200, "r": (1, 20), "seeds": {"lr": 3, "mlp": 1}}
    records = measured("bounds", tmp_path, **numbers)
    assert len(records) == 7 * 2 * (3 + 1)
    for r in records:
        assert r["corrected_holds"], r
        assert r["epsilon"] * r["p"] == pytest.approx((r["rho"] * r["change"]) ** 2, rel=1e-6, abs=1e-18)
        assert (r["method"] == "retrain") == (r["epsilon"] == 0)
    assert all(r["rho"] == 1 for r in records if r["method"] == "nothing")
    assert all(r["rho"] < 0.05 for r in records if (r["method"], r["model"]) == ("l2ul-expansion", "lr"))
    assert {r["epsilon_training"] > 0 for r in records if r["method"] == "l2ul-paper"} == {True}
