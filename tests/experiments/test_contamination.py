"""Fig. 6 on few points: dirt is where it should be, references score as defined, the control catches a cheat."""

import numpy as np
import pytest
from experiment_runs import measured

from l2ul_fast.errors import UserError
from l2ul_fast.experiments.paper import contamination
from l2ul_fast.models import LogisticModel

SMALL = {"clean": 300, "test": 500, "seeds": 1, "m": 60, "s": 120, "anchor_rows": 80}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contamination")
    return measured("contamination", folder, **SMALL, contaminated={"lr": {"far": (2, 60), "flipped": (75,)}})


def of(records, method, request="far", amount=60):
    return next(r for r in records if (r["method"], r["request"], r["contaminated"]) == (method, request, amount))


@pytest.mark.parametrize("kind", ["far", "flipped"])
def test_only_the_dirty_rows_are_wrong(kind):
    table, dirty = contamination.contaminated(kind, 40, 300, 3)
    truth = (table.X.sum(axis=1) > 0).astype(int)  # the blobs lie on either side of this line
    wrong = np.flatnonzero(table.y != truth)
    assert dirty.size == 40
    assert set(dirty) <= set(wrong)
    assert wrong.size <= 40 + 3  # a clean point may fall on the other side
    assert table.n == (340 if kind == "far" else 300)
    control = contamination.control_rows(table, dirty, 3)
    assert control.size == np.unique(control).size == 40
    assert not np.isin(control, dirty).any()


def test_impossible_amounts_are_refused():
    with pytest.raises(UserError, match="class 1 has 150 rows"):
        contamination.contaminated("flipped", 200, 300, 0)
    table, dirty = contamination.contaminated("far", 400, 300, 0)
    with pytest.raises(UserError, match="more clean rows"):
        contamination.control_rows(table, dirty, 0)


def test_references_score_as_defined(records):
    found = records
    assert all(r["status"] == "ok" for r in found)
    for kind, dirty in (("far", 60), ("flipped", 75)):
        nothing, retrain = of(found, "nothing", kind, dirty), of(found, "retrain", kind, dirty)
        assert nothing["accuracy"] == nothing["original_accuracy"] < 0.95
        assert (nothing["recovery"], nothing["null_recovery"], nothing["rho"]) == (0.0, 0.0, 1.0)
        assert nothing["fails_null_control"] is False
        assert retrain["accuracy"] == retrain["retrain_accuracy"] > 0.98
        assert (retrain["recovery"], retrain["fails_null_control"]) == (1.0, False)
        assert retrain["rho"] < 1e-5
        assert of(found, "newton", kind, dirty)["recovery"] > 0.7
    # what the contaminated model scores, from its definition alone
    table, _ = contamination.contaminated("far", 60, 300, 0)
    X, y = contamination.clean_points(500, np.random.default_rng([0, 43]))
    model = LogisticModel(2)
    hits = model.predict(model.fit((table.X, table.y)).theta, X) == y
    assert of(found, "nothing")["accuracy"] == hits.mean()


def test_harmless_dirt_has_no_recovery(records):
    for r in records:
        if r["contaminated"] == 2:
            assert r["recovery"] is None
            assert r["fails_null_control"] is None
            assert "less than" in r["recovery_degenerate"]


def test_control_catches_a_method_that_ignores_the_request(tmp_path, monkeypatch):
    clean = LogisticModel(2).fit(contamination.clean_points(2000, np.random.default_rng(1))).theta
    monkeypatch.setattr(contamination, "answer", lambda u, ids: clean)
    cheat = of(measured("contamination", tmp_path, **SMALL, contaminated={"lr": {"far": (60,)}}), "l2ul-learned")
    assert cheat["recovery"] > 0.95
    assert cheat["fails_null_control"] is True


@pytest.mark.parametrize(
    ("control", "target", "forgot"), [(0.0, -3.0, False), (0.6, 0.0, True), (0.4, 0.0, False), (None, None, None)]
)
def test_verdict_of_the_control(control, target, forgot):
    assert contamination.fails_null_control(control, target) is forgot


def test_mlp_has_every_method_and_a_failure_is_a_record(tmp_path, monkeypatch):
    def fails(u, ids):
        raise UserError("cannot answer")

    monkeypatch.setattr(contamination, "stable_newton", lambda u, table, ids: fails(u, ids))
    found = measured("contamination", tmp_path, **SMALL, contaminated={"mlp": {"flipped": (75,)}})
    assert [r["method"] for r in found] == [m for m in contamination.METHODS if m != "l2ul-robust"]
    for r in found:
        assert r["status"] == ("cannot answer" if r["method"] == "newton" else "ok")
        assert (r["accuracy"] is None) == (r["method"] == "newton")
    assert of(found, "retrain", "flipped", 75)["accuracy"] > 0.95
