"""Sweeps of psi, s and m on stand-ins: what depends on what, shared pairs, failures as records."""

import numpy as np
import pytest
from experiment_runs import measured, of

from l2ul_fast.errors import UserError
from l2ul_fast.experiments import inputs
from l2ul_fast.experiments.paper import sensitivity
from l2ul_fast.experiments.scoring import answer
from l2ul_fast.unlearner import L2UL

NUMBERS = {
    "lr": ("susy", "higgs"),
    "mlp": (),
    "rows": {"lr": 1500},
    "psi": (2, 8),
    "s": {"lr": (100, 400)},
    "m": {"lr": (30, 120)},
    "default": {"lr": (2, 400, 120)},
    "r": (1, 20),
    "seeds": {"lr": 2},
    "t": 10,
    "anchor_rows": None,
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sensitivity")
    return measured("sensitivity", folder, **NUMBERS)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {name: inputs.load(name, 1500, folder, folder)[1] for name in ("susy", "higgs")}


def test_all_cells_and_references(records):
    found = records
    assert len(found) == 2 * 2 * 2 * (2 + 3 * 6)  # datasets, seeds, r; nothing, retrain, three methods x 3 x 2 values
    assert {r["dataset"] for r in found} == {"susy", "higgs"}
    assert {r["source"] for r in found} == {"stand-in"}
    assert {r["rho"] for r in of(found, method="nothing")} == {1.0}
    assert {r["rho"] for r in of(found, method="retrain")} == {0.0}


def test_default_value_is_the_same_cell_in_every_sweep(records):
    for method in sensitivity.METHODS:
        key = {"dataset": "susy", "method": method, "seed": 0, "r": 20}
        same = [of(records, parameter=p, value=v, **key)[0] for p, v in (("psi", 2), ("s", 400), ("m", 120))]
        assert len({r["rho"] for r in same}) == 1
        assert {(r["psi"], r["s"], r["m"]) for r in same} == {(2, 400, 120)}


def test_what_depends_on_psi(records):
    for method, values in (("l2ul-learned", 1), ("l2ul-kme", 2), ("l2ul-paper", 2)):
        found = of(records, dataset="susy", method=method, seed=0, r=20, parameter="psi")
        assert len({r["rho"] for r in found}) == values


def test_larger_s_and_m_help_the_learned_head(records):
    for parameter, small, large in (("s", 100, 400), ("m", 30, 120)):
        key = {"method": "l2ul-learned", "parameter": parameter}
        low, high = (np.median([r["rho"] for r in of(records, value=v, **key)]) for v in (small, large))
        assert high < low


def test_fewer_pairs_are_the_first_of_them(tables):
    bench = sensitivity.Bench("lr", tables["susy"], NUMBERS, 0)
    few, many = bench.pairs("l2ul-learned", 100, 30, 0), bench.pairs("l2ul-learned", 100, 120, 0)
    assert (len(few), len(many)) == (30, 120)
    np.testing.assert_array_equal(few.Z, many.Z[:30])
    np.testing.assert_array_equal(few.rows, many.rows[: few.rows.size])


def test_heads_are_those_of_the_unlearner(records, tables):
    """Built from parts here, but no other head than L2UL's own: similar rho on the same requests."""
    found, train = records, tables["higgs"]
    u = L2UL("lr", head="learned", m=120, s=400, t=10, random_state=5).fit(train.X, train.y)
    ids = np.random.default_rng(3).choice(train.n, 20, replace=False)
    target = u.model.fit(train.without(ids), start=u.theta).theta
    rho = np.linalg.norm(answer(u, ids) - target) / np.linalg.norm(u.theta - target)
    ours = [r["rho"] for r in of(found, dataset="higgs", method="l2ul-learned", r=20, parameter="m", value=120)]
    assert 0.3 * rho < np.median(ours) < 3 * rho


def test_pairs_that_fail_are_recorded(tmp_path, monkeypatch):
    whole = sensitivity.make_pairs

    def fails(trained, *args):
        if trained.model.anchor is not None:
            raise UserError("too few converged")
        return whole(trained, *args)

    monkeypatch.setattr(sensitivity, "make_pairs", fails)
    small = {
        "lr": (),
        "mlp": ("susy",),
        "rows": {"mlp": 800},
        "psi": (2,),
        "s": {"mlp": (100,)},
        "m": {"mlp": (20,)},
        "r": (1,),
    }
    small |= {"default": {"mlp": (2, 100, 20)}, "seeds": {"mlp": 1}, "anchor_rows": 200, "t": 10}
    found = measured("sensitivity", tmp_path, **small)
    assert {r["status"] for r in of(found, method="l2ul-learned")} == {"too few converged"}
    assert {r["status"] for r in of(found, method="l2ul-paper")} == {"ok"}
