"""`l2ul bench unlearn`: what its records claim is so, planted faults are seen, a run resumes, misses are marked."""

import itertools
import json

import numpy as np
import pytest

from l2ul_fast.errors import UserError
from l2ul_fast.experiments.quality import heads as unlearn_quality
from l2ul_fast.experiments.quality import identity as unlearn_identity
from l2ul_fast.experiments.quality import unlearn
from l2ul_fast.experiments.speed import requests as unlearn_latency
from l2ul_fast.measure.records import Run
from l2ul_fast.report import markdown
from l2ul_fast.report.figures import unlearn as report
from l2ul_fast.report.runs import ready
from l2ul_fast.tables import ArrayTable
from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.heads.expansion import Expansion

NUMBERS = {
    "datasets": ("magic",),
    "rows": 2500,
    "cases": 3,
    "draws": 2,
    "mlp": (("magic", 600),),
    "mlp_draws": 1,
    "latency": {"higgs": 1500},
    "rounds": 2,
    "stream": 200,
    "stream_rows": 1500,
    "durable": (500,),
    "durable_draws": 2,
    "times": {"lr": ("magic",)},
    "heads": ("l2ul-expansion",),
    "sizes": (1,),
    "times_draws": 2,
    "slow": ("magic",),
    "requests": 60,
    "attacked": 400,
    "attacks": 1,
    "fit_rows": 3000,
    "sums_rows": 2000,
    "repeats": 2,
}
PARTS = ("identity", "rho-lr", "grid", "latency", "times", "slow-down", "fit")


def rows_of(n=1200, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (X @ rng.normal(size=d) + rng.logistic(size=n) > 0).astype(np.uint8)
    return ArrayTable(X, y, [0, 1])


def never(**key):
    return False


def of(records, **key):
    return [r for r in records if all(r.get(k) == v for k, v in key.items())]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """(folder of a run, what measures it again)."""
    folder = tmp_path_factory.mktemp("bench")
    nothing = folder / "no original files"  # None would be those of the user's environment
    nothing.mkdir()

    def measure(only=PARTS):
        run = Run(folder / "run")
        new = unlearn.run_all(run, "quick", nothing, only, data_dir=folder / "data", numbers=NUMBERS)
        return new, run.records

    return folder, measure, measure()[1]


# Identity ------------------------------------------------------------------------------------------------------------


def test_every_case_is_identical_and_the_control_is_not(measured):
    found = of(measured[2], experiment=unlearn_identity.IDENTITY)
    assert len(found) == NUMBERS["cases"] * 4
    assert {r["sums_equal"] for r in of(found, check="nothing")} == {False}
    assert {r["sums_equal"] for r in of(found, check="without")} == {True}
    for check in ("refit", "replaced"):
        some = of(found, check=check)
        assert all(r["file_equal"] and r["theta_equal"] and r["sha256"] == r["other_sha256"] for r in some)
        assert {r["sums_equal"] for r in some if r["same_point"]} <= {True}
    assert any(r["requests"] > 1 and r["r"] > r["requests"] for r in found)  # some rows left in groups


def test_a_request_that_forgets_too_little_is_seen(monkeypatch, tmp_path):
    """The second row of every group stays in the sums."""
    whole = Expansion.revert

    def most(self, X, y, weights=None):
        whole(self, X[:1], y[:1], weights)

    table = rows_of()
    u = unlearn_identity.fit(table.X, table.y, 1)
    ids = np.array([3, 5, 9])
    good = unlearn_identity.forget(u.copy(), [ids])
    monkeypatch.setattr(Expansion, "revert", most)
    bad = unlearn_identity.forget(u.copy(), [ids])
    made = unlearn_quality.sums_without(u.head, table.without(ids))
    assert good.head.sums.tobytes() == made.sums.tobytes()
    assert bad.head.sums.tobytes() != made.sums.tobytes()


def test_schedule_names_every_row_once():
    ids = np.arange(100, 200)
    parts = unlearn_identity.schedule(ids, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), ids)
    assert sum(part.size == 1 for part in parts) >= 50
    assert max(part.size for part in parts) > 1
    assert [part.tolist() for part in unlearn_identity.schedule(ids[:1], np.random.default_rng(0))] == [[100]]


# rho -----------------------------------------------------------------------------------------------------------------


def test_requests_are_what_they_are_called(monkeypatch):
    table = rows_of(12_000)
    found = list(unlearn_quality.requests_of(table, 2, 0))
    assert len(found) == 2 * len(unlearn_quality.REQUESTS)
    for asked, _, ids in found:
        assert ids.size == np.unique(ids).size == asked.size(table.n)
        assert np.unique(np.delete(table.y, ids)).size == 2
        if asked.kind == "one class":
            assert np.unique(table.y[ids]).size == 1
    sizes = {asked.name: ids.size for asked, _, ids in found}
    assert (sizes["random 1"], sizes["one cluster 1000"]) == (1, 1000)
    assert (sizes["half-space 10 %"], sizes["random 50 %"]) == (1200, 6000)
    monkeypatch.setattr(unlearn_quality, "TRIES", 1)  # half of all rows will hold the only one of its class
    few = ArrayTable(table.X[:100], np.eye(100, dtype=np.uint8)[0], [0, 1])
    with pytest.raises(UserError, match="whole class"):
        list(unlearn_quality.requests_of(few, 30, 0))


def test_references_score_what_they_must(measured):
    found = of(measured[2], experiment=unlearn_quality.RHO)
    assert {r["rho"] for r in of(found, method="nothing")} == {1.0}
    assert max(r["rho"] for r in of(found, method="retrain")) < 1e-7
    ours = of(found, method="l2ul-expansion", order=3, rtol=None)
    assert len(ours) == 2 * len(unlearn_quality.REQUESTS)
    assert all(r["own_equal"] for r in ours)
    assert max(r["own_rho"] for r in ours) < 1e-2
    for r in ours:
        newton = of(found, method="newton", request=r["request"], draw=r["draw"])[0]
        if r["request"] == "one class 1000":
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
    np.testing.assert_allclose(unlearn_quality.newton(u, table, ids), u.theta - step, rtol=1e-9)


def test_answer_leaves_the_unlearner_as_it_was():
    table = rows_of()
    u = L2UL("lr").fit(table.X, table.y)
    before = u.theta.tobytes()
    other = unlearn_quality.answer(u, np.array([2, 3]))
    assert (u.theta.tobytes(), u.n) == (before, 1200)
    np.testing.assert_array_equal(other, u.unlearn([2, 3]).theta)


def test_wider_grids_are_further_off_and_left_less_often(measured):
    found = of(measured[2], experiment=unlearn_quality.GRID)
    middle = [np.median([r["rho"] for r in of(found, factor=f)]) for f in unlearn_quality.FACTORS]
    crossing = [of(found, factor=f)[0]["crossing"] for f in unlearn_quality.FACTORS]
    assert middle[-1] > 10 * middle[0]
    assert all(a > b > 0 for a, b in itertools.pairwise(crossing))


def test_the_mlp_meets_its_retrain_and_the_seal_its_own(measured):
    found = of(measured[1](("rho-mlp",))[1], experiment=unlearn_quality.RHO, model="mlp")
    assert {r["request"] for r in found} == {asked.name for asked in unlearn_quality.REQUESTS}
    assert {r["rho"] for r in of(found, method="nothing")} == {1.0}
    assert max(r["rho"] for r in of(found, method="retrain")) < 1e-6  # from the anchor and from theta: one optimum
    instant = of(found, method="l2ul-expansion", rtol=None)
    assert max(r["refreshed_rho"] for r in instant) < 1e-4
    refined = of(found, method="l2ul-expansion", rtol=unlearn_quality.MLP_RTOL)
    assert np.median([r["rho"] for r in refined]) < np.median([r["rho"] for r in instant])
    for r in of(found, method="retrain"):  # the anchor keeps something of the rows, or it did not move
        moved = of(instant, request=r["request"])[0]["anchor_moved"]
        assert (r["rho_anew"] > 1e-6) == moved
    rho, times = (make(ready(found)) for make in (report.mlp_rho, report.mlp_times))
    assert [row[1].text for row in rho.rows] == [answer.name for answer in report.ANSWERS["mlp"]]
    assert len(times.rows) == len(unlearn_quality.REQUESTS)


# Reconstruction ------------------------------------------------------------------------------------------------------


def test_one_directory_gives_nothing_away_and_two_give_the_row(tmp_path):
    table = rows_of(600)
    subject = unlearn_identity.SUBJECTS[0]
    scenes, name = unlearn_identity.SCENES, {"experiment": unlearn_identity.RECONSTRUCTION}
    measured = unlearn_identity.measure_reconstruction(
        subject, "drawn", "arrays", table, tmp_path, 20, 2, scenes, tmp_path, never
    )
    found = [name | r for r in measured]
    assert len(found) == 6
    for r in of(found, scene=unlearn_identity.SAVED):
        assert r["ratio"] is None or r["ratio"] > 0.5
    assert max(r["ratio"] for r in of(found, scene=unlearn_identity.BOTH)) < 1e-6
    lines = {row[1].text: row for row in report.reconstruction(found).rows}
    assert not lines["saved"][-1].mark
    assert not lines["before and after"][-1].mark  # no goal: nothing deterministic can reach it
    leaking = [r | {"ratio": 0.01} for r in of(found, scene=unlearn_identity.SAVED)]
    assert report.reconstruction(leaking).rows[0][-1].text == "0.01 (miss: >= 0.5)"


# Latency -------------------------------------------------------------------------------------------------------------


def test_the_experts_step_is_newtons_with_the_inverse_downdated():
    table = rows_of()
    u = L2UL("lr", order=2, anchor="optimum").fit(table.X, table.y)
    call = unlearn_latency.newton_expert(u, table.X, table.y, iter([5, 9]))
    theta = np.array(call())
    expected = unlearn_quality.newton(u, table, np.array([5]))
    start = np.asarray(u.model.fit((table.X, table.y), start=u.theta).theta)
    np.testing.assert_allclose(theta - start, expected - u.theta, rtol=2e-3)  # one row's penalty is in the inverse
    rest = table.without(np.array([5])).ids()
    again = np.array(call())
    second = np.linalg.solve(
        u.model.hessian(start, table.X[rest], table.y[rest]) * 1199,
        u.model.data_gradient(theta, table.X[[9]], table.y[[9]]) + u.model.penalty_gradient(theta),
    )
    np.testing.assert_allclose(again - theta, second, rtol=0.02)


def test_latency_has_every_contender_and_a_ratio_to_the_expert(measured):
    found = of(measured[2], experiment=unlearn_latency.LATENCY)
    names = {r["method"] for r in found}
    assert {"nothing", "retrain", "newton-numba", "torch-eager"} < names
    assert {r["order"] for r in found if r["method"].startswith("l2ul-expansion")} == {2, 3}
    expert = of(found, method="newton-numba")[0]
    assert all(r["ratio"] == pytest.approx(r["p50"] / expert["p50"]) for r in found if r["method"] != "retrain")
    assert all(r["p50"] <= r["p99"] <= r["most"] for r in found)


def test_turns_time_every_call_once():
    counts = dict.fromkeys("ab", 0)

    def call(name):
        counts[name] += 1

    found = unlearn_latency.in_turns({name: lambda name=name: call(name) for name in counts}, 3)
    assert set(counts.values()) == {unlearn_latency.WARM + 3 * (unlearn_latency.SETTLE + unlearn_latency.TURN)}
    assert all(seconds.shape == (300,) and (seconds > 0).all() for seconds in found.values())


def test_two_times_and_durable_requests(measured):
    found = of(measured[2], experiment=unlearn_latency.TIMES)
    assert {r["erased_seconds"] for r in of(found, method="nothing")} == {None}
    ours = [r for r in found if r["method"] != "nothing"]
    assert {(r["method"], r["order"]) for r in ours} == {
        ("retrain", None),
        ("l2ul-expansion", 2),
        ("l2ul-expansion", 3),
    }
    assert all(0 < r["answer_seconds"] <= r["erased_seconds"] for r in ours)
    assert len(of(measured[2], experiment=unlearn_latency.DURABLE)) == 2


# Slow-down -----------------------------------------------------------------------------------------------------------


def test_attacks_choose_what_they_say():
    table = rows_of()
    u = L2UL("lr").fit(table.X, table.y)
    moved = np.linalg.norm(unlearn_quality.shifts(u, table), axis=1)
    chosen = list(unlearn_latency.largest_shift(u, table, 50))
    assert min(moved[chosen]) >= np.sort(moved)[-50]
    copy = u.copy()  # the largest first-order shift is about that of the request
    assert np.linalg.norm(copy.unlearn([chosen[0]]).theta - u.theta) == pytest.approx(moved[chosen[0]], rel=0.1)
    maxima = list(unlearn_latency.column_maxima(u, table, 50))
    assert set(np.abs(table.X).argmax(axis=0)) <= set(maxima[: table.d])
    few = unlearn_latency.few_of_a_class(table, 30)
    rows = list(unlearn_latency.nearly_all_of_a_class(u, few, 100))
    small = np.bincount(few.y).min()
    assert (small, len(rows)) == (30, 29)
    assert np.unique(few.y[rows]).size == 1


def test_the_edge_is_crossed_more_often_than_by_chance(measured):
    found = of(measured[2], experiment=unlearn_latency.SLOW, method="l2ul-expansion")
    due = {r["attack"]: r["due"] for r in found}
    assert set(due) == set(unlearn_latency.ATTACKS)
    assert due["across the cell's edge"] > due["random rows"]
    for r in found:
        assert sum(r["tiers"].values()) == r["requests"]
        assert (r["refresh_seconds"] > 0) == (r["due"] > 0)


# Runs ----------------------------------------------------------------------------------------------------------------


def test_a_run_resumes_and_measures_what_was_lost(measured):
    folder, measure, _ = measured
    assert measure()[0] == 0
    path = folder / "run" / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lost = max(k for k, line in enumerate(lines) if '"model": "lr", "seed": 1, "request"' in line)
    path.write_text("".join(lines[:lost] + lines[lost + 1 :]))
    new, again = measure()
    assert new == 1
    gone, back = json.loads(lines[lost]), again[-1]
    assert {k: gone[k] for k in ("request", "draw", "method")} == {k: back[k] for k in ("request", "draw", "method")}


def test_a_head_that_is_not_there_is_left_out_with_a_sentence(monkeypatch, measured):
    monkeypatch.setattr(unlearn, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="does not exist yet"):
        assert measured[1](("rho-mlp", "reconstruction"))[0] == 0


def test_bad_profile_is_refused(tmp_path):
    with pytest.raises(UserError, match="profile"):
        unlearn.run_all(Run(tmp_path), "none")


# Report --------------------------------------------------------------------------------------------------------------


def test_every_part_has_its_table_and_its_plot(measured):
    tables = report.FIGURE.all_tables(ready(measured[2]))
    found = {table.title.split(":")[0].split(" ")[0]: table for table in tables}
    assert set(found) == {"Identity", "Logistic", "Coverage", "The", "Latency", "A", "Two", "Slow-down", "Fit"}
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    text = markdown.render(tables)
    assert "stand-in" in text
    assert "not installed" in text or "tabmat sandwich | " in text
    assert [drawing.name for drawing in report.FIGURE.plots(ready(measured[2]))] == ["unlearn"]
    assert report.FIGURE.plots([]) == report.FIGURE.all_tables([]) == []


def lr_record(request, rho, **more):
    return {
        "experiment": unlearn_quality.RHO,
        "dataset": "magic",
        "source": "real",
        "n": 15223,
        "d": 10,
        "model": "lr",
        "request": request,
        "kind": request.split(" ")[0],
        "draw": 0,
        "method": "l2ul-expansion",
        "order": 3,
        "rtol": None,
        "rho": rho,
        "error": 0.01,
        "seconds": 1e-3,
        "own_rho": 0.0,
        "own_equal": True,
        "due": False,
        **more,
    }


def cell(records, name, column):
    table = report.lr_rho(ready(records))
    line = next(row for row in table.rows if row[1].text == name)
    return line[table.columns.index(column)].text


def test_misses_have_their_goal_beside_them():
    good, bad = lr_record("random 1000", 9e-4), lr_record("random 1000", 1.1e-3)
    assert cell([good], "l2ul-expansion", "random 1000") == "0.0009"
    assert cell([bad], "l2ul-expansion", "random 1000") == "0.0011 (miss: <= 0.001)"
    assert cell([bad | {"dataset": "sepsis"}], "l2ul-expansion", "random 1000") == "0.0011"
    assert cell([bad | {"rtol": 1e-3}], "l2ul-expansion, rtol=0.001", "random 1000") == "0.0011"  # goals: instant
    newton = lr_record("one class 1000", 0.02, method="newton", order=None)
    assert cell([lr_record("one class 1000", 4.9e-3), newton], "l2ul-expansion", "one class 1000") == "0.0049"
    text = cell([lr_record("one class 1000", 5.1e-3), newton], "l2ul-expansion", "one class 1000")
    assert text == "0.0051 (miss: <= Newton's / 4)"


def test_coverage_counts_truth_over_estimate():
    records = [lr_record("random 1", 0.01 * k) for k in range(1, 21)]  # ratios 1 .. 20
    records += [lr_record("random 1", 0.5, error=None), lr_record("random 1", 0.5, error=0.0)]
    line = [c.text for c in report.coverage(ready(records)).rows[0]]
    assert line[2:4] == ["21", "1"]
    assert line[-1] == "23.8 % (miss: >= 95 %)"  # 5 of 21, the estimate of 0 among the others
    assert float(line[5]) == 11
    assert report.coverage(ready([lr_record("random 1", 0.05)])).rows[0][-1].text == "100 %"


def test_the_shapes_of_the_profiles_can_be_made():
    from l2ul_fast.datasets.registry import get_info

    for facts in unlearn.PROFILES.values():
        for name, rows in facts["latency"].items():
            calls = unlearn_latency.WARM + facts["rounds"] * (unlearn_latency.SETTLE + unlearn_latency.TURN)
            assert 1.2 * calls < rows <= get_info(name).n
