"""`l2ul bench unlearn`: what its records claim is so, and planted faults are seen."""

import itertools

import numpy as np
import pytest
from experiment_runs import measured, of

from l2ul_fast.datasets.registry import get_info
from l2ul_fast.errors import UserError
from l2ul_fast.experiments import scoring
from l2ul_fast.experiments.quality import heads, identity
from l2ul_fast.experiments.quality.unlearn import PROFILES
from l2ul_fast.experiments.speed import requests
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.heads.expansion import Expansion


def rows_of(n=1200, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (X @ rng.normal(size=d) + rng.logistic(size=n) > 0).astype(np.uint8)
    return ArrayTable(X, y, [0, 1])


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """A function: all records of one part; a part is measured once."""
    folder = tmp_path_factory.mktemp("unlearn")

    def part(name, **options):
        return measured("unlearn", folder, select=(name,), **options)

    return part


# Identity ------------------------------------------------------------------------------------------------------------


def test_every_case_is_identical_and_the_control_is_not(records):
    found = of(records("identity"), experiment=identity.IDENTITY)
    assert len(found) == 3 * len(identity.CHECKS)
    assert {r["sums_equal"] for r in of(found, check="nothing")} == {False}
    assert {r["sums_equal"] for r in of(found, check="without")} == {True}
    for check in ("refit", "replaced"):
        some = of(found, check=check)
        assert all(r["file_equal"] and r["theta_equal"] and r["sha256"] == r["other_sha256"] for r in some)
        assert {r["sums_equal"] for r in some if r["same_point"]} <= {True}
    assert any(r["requests"] > 1 and r["r"] > r["requests"] for r in found)  # some rows left in groups


def test_a_request_that_forgets_too_little_is_seen(monkeypatch):
    """The second row of every group stays in the sums."""
    whole = Expansion.revert

    def most(self, X, y, weights=None):
        whole(self, X[:1], y[:1], weights)

    table = rows_of()
    u = identity.fit(table.X, table.y, 1)
    ids = np.array([3, 5, 9])
    good = identity.forget(u.copy(), [ids])
    monkeypatch.setattr(Expansion, "revert", most)
    bad = identity.forget(u.copy(), [ids])
    made = heads.sums_without(u.head, table.without(ids))
    assert good.head.sums.tobytes() == made.sums.tobytes()
    assert bad.head.sums.tobytes() != made.sums.tobytes()


def test_schedule_names_every_row_once():
    ids = np.arange(100, 200)
    parts = identity.schedule(ids, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), ids)
    assert sum(part.size == 1 for part in parts) >= 50
    assert max(part.size for part in parts) > 1
    assert [part.tolist() for part in identity.schedule(ids[:1], np.random.default_rng(0))] == [[100]]


# rho -----------------------------------------------------------------------------------------------------------------


def test_requests_are_what_they_are_called(monkeypatch):
    table = rows_of(12_000)
    for asked, draw in itertools.product(heads.REQUESTS, range(2)):
        ids = heads.draw_request(table, asked, draw, 0)
        assert ids.size == np.unique(ids).size == asked.size(table.n)
        assert np.unique(np.delete(table.y, ids)).size == 2
        if asked.kind == "one class":
            assert np.unique(table.y[ids]).size == 1
    sizes = {asked.name: asked.size(table.n) for asked in heads.REQUESTS}
    assert (sizes["random 1"], sizes["one cluster 1000"]) == (1, 1000)
    assert (sizes["half-space 10 %"], sizes["random 50 %"]) == (1200, 6000)
    monkeypatch.setattr(heads, "TRIES", 1)  # half of all rows will hold the only one of its class
    few = ArrayTable(table.X[:100], np.eye(100, dtype=np.uint8)[0], [0, 1])
    with pytest.raises(UserError, match="whole class"):
        [heads.draw_request(few, heads.REQUESTS[-1], draw, 0) for draw in range(30)]


def test_requests_are_told_apart_by_their_rows():
    assert len(heads.sized(20_000)) == len(heads.REQUESTS)
    assert len(heads.sized(480)) == len(heads.REQUESTS) - 1  # 1000 random rows are as many as 100
    assert heads.sized(20_000)["random", 10_000] == heads.REQUESTS[-1]
    assert heads.sized(480)["random", 48] == heads.REQUESTS[1]


def test_references_score_what_they_must(records):
    found = of(records("rho-lr"), experiment=heads.RHO, model="lr")
    assert {r["rho"] for r in of(found, method="nothing")} == {1.0}
    assert max(r["rho"] for r in of(found, method="retrain")) < 1e-7
    ours = of(found, method="l2ul-expansion", order=3, rtol=None)
    assert len(ours) == 2 * len(heads.REQUESTS)
    assert all(r["own_equal"] for r in ours)
    assert max(r["own_rho"] for r in ours) < 1e-2
    for r in ours:
        newton = of(found, method="newton", request=r["request"], r=r["r"], repeat=r["repeat"])[0]
        if r["request"] == "one class":
            assert r["rho"] < newton["rho"] / 2
        assert (r["refresh_seconds"] is not None) == r["due"]


def test_newton_is_newton():
    """One step on the rows that stay, from first principles."""
    table = rows_of()
    u = L2UL("lr").fit(table.X, table.y)
    ids = np.array([1, 4, 7])
    rest = table.without(ids).ids()
    gradient = u.model.gradient(u.theta, table.X[rest], table.y[rest])
    before = u.model.gradient(u.theta, table.X, table.y)
    step = np.linalg.solve(u.model.hessian(u.theta, table.X[rest], table.y[rest]), gradient - before * 1200 / 1197)
    np.testing.assert_allclose(scoring.newton(u, table, ids), u.theta - step, rtol=1e-9)


def test_answer_leaves_the_unlearner_as_it_was():
    table = rows_of()
    u = L2UL("lr").fit(table.X, table.y)
    before = u.theta.tobytes()
    other = scoring.answer(u, np.array([2, 3]))
    assert (u.theta.tobytes(), u.n) == (before, 1200)
    np.testing.assert_array_equal(other, u.unlearn([2, 3]).theta)


def test_wider_grids_are_further_off_and_left_less_often(records):
    found = of(records("grid"), experiment=heads.GRID)
    middle = [np.median([r["rho"] for r in of(found, factor=f)]) for f in heads.FACTORS]
    crossing = [of(found, factor=f)[0]["crossing"] for f in heads.FACTORS]
    assert middle[-1] > 10 * middle[0]
    assert all(a > b > 0 for a, b in itertools.pairwise(crossing))


def test_the_mlp_meets_its_retrain_and_the_seal_its_own(records):
    found = of(records("rho-mlp"), experiment=heads.RHO, model="mlp")
    assert {r["rho"] for r in of(found, method="nothing")} == {1.0}
    assert max(r["rho"] for r in of(found, method="retrain")) < 1e-6  # from the anchor and from theta: one optimum
    instant = of(found, method="l2ul-expansion", rtol=None)
    assert max(r["refreshed_rho"] for r in instant) < 1e-4
    refined = of(found, method="l2ul-expansion", rtol=heads.MLP_RTOL)
    assert np.median([r["rho"] for r in refined]) < np.median([r["rho"] for r in instant])
    for r in of(found, method="retrain"):  # the anchor keeps something of the rows, or it did not move
        moved = of(instant, request=r["request"], r=r["r"])[0]["anchor_moved"]
        assert (r["rho_anew"] > 1e-6) == moved


# Reconstruction ------------------------------------------------------------------------------------------------------


def test_one_directory_gives_nothing_away_and_two_give_the_row(tmp_path):
    numbers = {"scenes": identity.SCENES, "attacks": 2}
    found = measured("unlearn", tmp_path, select=("reconstruction lr l2ul-expansion order 3",), **numbers)
    assert len(found) == 6
    for r in of(found, scene=identity.SAVED):
        assert r["ratio"] is None or r["ratio"] > 0.5
    assert max(r["ratio"] for r in of(found, scene=identity.BOTH)) < 1e-6


# Latency -------------------------------------------------------------------------------------------------------------


def test_the_experts_step_is_newtons_with_the_inverse_downdated():
    table = rows_of()
    u = L2UL("lr", order=2, anchor="optimum").fit(table.X, table.y)
    call = requests.newton_expert(u, table.X, table.y, iter([5, 9]))
    theta = np.array(call())
    expected = scoring.newton(u, table, np.array([5]))
    start = np.asarray(u.model.fit((table.X, table.y), start=u.theta).theta)
    np.testing.assert_allclose(theta - start, expected - u.theta, rtol=2e-3)  # one row's penalty is in the inverse
    rest = table.without(np.array([5])).ids()
    again = np.array(call())
    second = np.linalg.solve(
        u.model.hessian(start, table.X[rest], table.y[rest]) * 1199,
        u.model.data_gradient(theta, table.X[[9]], table.y[[9]]) + u.model.penalty_gradient(theta),
    )
    np.testing.assert_allclose(again - theta, second, rtol=0.02)


def test_latency_has_every_contender_and_a_ratio_to_the_expert(records):
    found = of(records("latency"), experiment=requests.LATENCY)
    names = {r["method"] for r in found}
    assert {"nothing", "retrain", "newton-numba", "torch-eager"} < names
    assert {r["order"] for r in found if r["method"].startswith("l2ul-expansion")} == {2, 3}
    expert = of(found, method="newton-numba")[0]
    for r in found:
        assert r["ratio"] == pytest.approx(r["p50_seconds"] / expert["p50_seconds"])
        assert r["p50_seconds"] <= r["p99_seconds"] <= r["max_seconds"]


def test_turns_time_every_call_once():
    counts = dict.fromkeys("ab", 0)

    def call(name):
        counts[name] += 1

    found = requests.in_turns({name: lambda name=name: call(name) for name in counts}, 3)
    assert set(counts.values()) == {requests.WARM + 3 * (requests.SETTLE + requests.TURN)}
    assert all(seconds.shape == (300,) and (seconds > 0).all() for seconds in found.values())


def test_erasing_takes_longer_than_answering(records):
    found = of(records("times"), experiment=requests.TIMES)
    assert {r["erased_seconds"] for r in of(found, method="nothing")} == {None}
    ours = [r for r in found if r["method"] != "nothing"]
    assert {(r["method"], r["order"]) for r in ours} == {
        ("retrain", None),
        ("l2ul-expansion", 2),
        ("l2ul-expansion", 3),
    }
    assert all(0 < r["answer_seconds"] <= r["erased_seconds"] for r in ours)


# Slow-down -----------------------------------------------------------------------------------------------------------


def test_attacks_choose_what_they_say():
    table = rows_of()
    u = L2UL("lr").fit(table.X, table.y)
    moved = np.linalg.norm(heads.shifts(u, table), axis=1)
    chosen = list(requests.largest_shift(u, table, 50))
    assert min(moved[chosen]) >= np.sort(moved)[-50]
    copy = u.copy()  # the largest first-order shift is about that of the request
    assert np.linalg.norm(copy.unlearn([chosen[0]]).theta - u.theta) == pytest.approx(moved[chosen[0]], rel=0.1)
    maxima = list(requests.column_maxima(u, table, 50))
    assert set(np.abs(table.X).argmax(axis=0)) <= set(maxima[: table.d])
    few = requests.few_of_a_class(table, 30)
    rows = list(requests.nearly_all_of_a_class(u, few, 100))
    small = np.bincount(few.y).min()
    assert (small, len(rows)) == (30, 29)
    assert np.unique(few.y[rows]).size == 1


def test_the_edge_is_crossed_more_often_than_by_chance(records):
    found = of(records("slow-down"), experiment=requests.SLOW, method="l2ul-expansion")
    due = {r["attack"]: r["due"] for r in found}
    assert set(due) == set(requests.ATTACKS)
    assert due["across the cell's edge"] > due["random rows"]
    for r in found:
        assert sum(r["tiers"].values()) == r["requests"]
        assert (r["refresh_seconds"] > 0) == (r["due"] > 0)


def test_the_shapes_of_the_profiles_can_be_made():
    for facts in PROFILES.values():
        for name, rows in facts["latency"].items():
            calls = requests.WARM + facts["rounds"] * (requests.SETTLE + requests.TURN)
            assert 1.2 * calls < rows <= get_info(name).n
