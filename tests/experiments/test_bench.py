"""The comparison of methods, the correctness gate, and the command line of a run: killed, resumed, reproduced."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from in_process import l2ul

from l2ul_fast.baselines import HEAD_NAMES, method_names
from l2ul_fast.baselines.l2ul import DEFAULT, Scratch, request
from l2ul_fast.errors import UserError
from l2ul_fast.experiments import gate, runner, timed
from l2ul_fast.experiments.arena import Arena, cells_of, compare
from l2ul_fast.experiments.inputs import dataset_file
from l2ul_fast.experiments.reproduce import find
from l2ul_fast.experiments.timed import TimedL2UL, TimedMethod, erased_seconds
from l2ul_fast.tables import ArrayTable

ALL_METHODS = method_names()
REQUESTS = (("random", 1), ("random", 50))


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 4)).astype(np.float32)
    y = (X @ rng.normal(size=4) + rng.normal(size=1500) > 0).astype(np.uint8)
    return ArrayTable(X[:1000], y[:1000], [0, 1]), ArrayTable(X[1000:], y[1000:], [0, 1])


@pytest.fixture(scope="module")
def arena(tables):
    return Arena("toy", "synthetic", *tables, "lr", 3, 60)


@pytest.fixture(scope="module")
def records(arena):
    return list(compare(arena, REQUESTS, cells_of("toy", "lr", 1000, REQUESTS, ALL_METHODS, 2, 3)))


def test_every_method_answers_every_request(records):
    keys = {(r["method"], r["r"], r["repeat"]) for r in records}
    assert keys == {(m, r, k) for m in ALL_METHODS for r in (1, 50) for k in (0, 1)}
    assert len(records) == len(keys)


def test_references_score_what_they_must(records):
    for r in records:
        if r["method"] == "nothing":
            assert r["rho"] == pytest.approx(1.0)
            assert r["disagreement"] == r["nothing_disagreement"]
        if r["method"] == "retrain":
            assert r["rho"] < 1e-4  # the solver's noise
            assert r["accuracy"] == r["retrain_accuracy"]
            assert r["noise_floor"] == r["rho"]
        if r["method"] == "sisa":
            assert r["rho"] is None
        if r["method"] == DEFAULT:
            assert r["rho"] < 0.01
            assert r["tier"] == "order 3"
            assert r["error"] < 0.05
        if r["method"] == "nothing":  # what is timed there is the harness
            assert r["answer_seconds"] is None
            assert r["overhead_seconds"] > 0
        else:
            assert r["answer_seconds"] > 0
        assert r["state_bytes"] > 0


def test_rho_is_the_distance_to_an_independent_retrain(arena, records):
    """From first principles: scikit-learn without the rows of the request."""
    from sklearn.linear_model import LogisticRegression

    train, ids = arena.train, arena.request("random", 50, 1, 0)

    def fit(rows):
        peer = LogisticRegression(C=1 / (1e-3 * len(rows)), solver="newton-cholesky", tol=1e-12)
        peer.fit(train.X[rows].astype(np.float64), train.y[rows])
        return np.append(peer.coef_[0], peer.intercept_)

    everything = np.arange(1000)
    before, after = fit(everything), fit(np.delete(everything, ids))
    made = TimedMethod("influence")
    made.prepare(train, arena.model, 3)
    rho = np.linalg.norm(made.answer(ids).theta - after) / np.linalg.norm(before - after)
    recorded = next(r["rho"] for r in records if (r["method"], r["r"], r["repeat"]) == ("influence", 50, 1))
    assert recorded == pytest.approx(rho, rel=1e-4)


def test_methods_of_one_run_get_the_same_request(arena):
    first = arena.request("random", 5, 0, 0)
    np.testing.assert_array_equal(first, arena.request("random", 5, 0, 0))
    assert not np.array_equal(first, arena.request("random", 5, 1, 0))
    assert not np.array_equal(first, arena.request("random", 5, 0, 1))


def test_the_second_time_is_never_shorter_than_the_first(records):
    for r in records:
        if r["method"] == "nothing":
            assert r["erased_seconds"] is None  # never
        elif r["method"] in ("retrain", "sisa") or r.get("retrained"):
            assert r["erased_seconds"] == r["answer_seconds"]
        else:
            assert r["erased_seconds"] > r["answer_seconds"]
    assert any(r["method"] == DEFAULT and r["due"] for r in records)  # 50 of 1000 rows move the grid point


def test_a_method_prepared_anew_is_that_of_somebody_without_the_rows(arena, monkeypatch):
    """What the second time pays for: nothing that is kept is as it was, all is as if the rows had not been there."""
    train, ids, made, make = arena.train, arena.request("random", 20, 0, 0), [], timed.make
    monkeypatch.setattr(timed, "make", lambda name: made.append(make(name)) or made[-1])
    for name in ("newton", "influence", "deltagrad", "certified"):
        method = arena[name]
        made.clear()
        answer = method.answer(ids)
        assert erased_seconds(method, ids, answer, 1.0) > 1.0 or answer.facts.get("retrained")
        if answer.facts.get("retrained"):
            assert not made  # the answer itself did it
            continue
        again, fresh = made[-1], make(name)
        assert again.n == train.n - 20
        fresh.prepare(train.without(ids), arena.model, 3)
        for mine, theirs in zip(again._arrays(), fresh._arrays(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)


def test_timed_requests_forget_as_many_rows_as_they_say(arena, monkeypatch):
    """Half of the rows were gone from earlier requests once, and dropped from those that were timed."""
    method, forgotten, kind = arena[DEFAULT], [], type(arena[DEFAULT].u)
    whole = kind.unlearn

    def watched(self, rows, **options):
        found = whole(self, rows, **options)
        forgotten.append(found.rows.size)
        return found

    monkeypatch.setattr(kind, "unlearn", watched)
    ids, turn = arena.request("random", 150, 0, 0), iter(range(1, 1000))
    for _ in range(5):
        seconds = method.time_requests(ids, lambda: arena.request("random", 150, 0, next(turn)), 1.0)
        assert seconds
    assert set(forgotten) == {150, 1}  # 1: warms a fresh copy


def test_timing_requests_leaves_the_answers_alone(arena):
    method = arena[DEFAULT]
    ids = arena.request("random", 3, 0, 0)
    before = method.answer(ids).theta
    theta, n = method.u.theta, method.u.n
    method.time_requests(ids, lambda: arena.request("random", 3, 0, 1), 1.0)
    np.testing.assert_array_equal(before, method.answer(ids).theta)
    np.testing.assert_array_equal(theta, method.u.theta)
    assert method.u.n == n
    assert method.u.forget_log == []


def test_a_scratch_copy_takes_requests_back(tables):
    train, _ = tables
    first = TimedL2UL(DEFAULT)
    first.prepare(train, "lr", 3)
    scratch = Scratch(first.u)
    rows = np.arange(0, 300, 7)
    request(scratch.u, rows)
    request(scratch.u, np.array([1]))
    u = scratch.renew()
    np.testing.assert_array_equal(u.store.X, train.X)
    np.testing.assert_array_equal(u.store.y, train.y)
    np.testing.assert_array_equal(u.status, first.u.status)
    np.testing.assert_array_equal(u.head.sums, first.u.head.sums)
    assert u.n == train.n
    assert u.forget_log == []
    np.testing.assert_array_equal(u.unlearn(rows).theta, first.u.copy().unlearn(rows).theta)


def test_mlp_requests_are_of_all_rows(tables):
    train, test = tables
    arena = Arena("toy", "synthetic", ArrayTable(train.X[:400], train.y[:400], [0, 1]), test, "mlp", 1, 60)
    asked = np.concatenate([arena.request("random", 80, run, 0) for run in range(60)])
    assert np.unique(asked).size == 400
    wanted = (("random", 20),)
    cells = cells_of("toy", "mlp", 400, wanted, ("nothing", "retrain", *HEAD_NAMES), 1, 1)
    found = {r["method"]: r for r in compare(arena, wanted, cells)}
    assert found["nothing"]["rho"] == pytest.approx(1)
    assert found["retrain"]["rho"] < 1e-4  # from the anchor and from theta: the same point
    assert {found[head]["r"] for head in HEAD_NAMES} == {20}
    assert found[DEFAULT]["rho"] < 0.5


def test_mlp_and_efficacy_of_a_dataset_follow_each_other(tmp_path):
    from l2ul_fast.datasets.registry import dataset_names

    chosen = runner.Options(("lr", "mlp", "efficacy"), "tiny", data_dir=str(tmp_path), raw_dir=str(tmp_path))
    found = [(task.experiment.name, task.job.name) for task in runner.tasks_of(chosen, 1)]
    assert len(found) == 21
    assert [name for _, name in found[7:]] == [name for name in dataset_names() for _ in range(2)]
    selected = runner.Options(("lr",), "tiny", select=("skin",), data_dir=str(tmp_path), raw_dir=str(tmp_path))
    assert [task.job.name for task in runner.tasks_of(selected, 1)] == ["skin"]
    with pytest.raises(UserError, match="not one of the experiments"):
        runner.tasks_of(runner.Options(("nonsense",)), 1)


def test_a_request_larger_than_the_table_gives_is_asked_once():
    cells = cells_of("toy", "lr", 400, (("random", 1), ("random", 100), ("random", 1000)), ("newton",), 1, 0)
    assert [cell["r"] for cell in cells] == [1, 80]


def test_a_reduced_stand_in_never_replaces_a_full_one(tmp_path, monkeypatch):
    monkeypatch.delenv("L2UL_RAW_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    small = dataset_file("magic", 1000, tmp_path, tmp_path)
    assert small.parent.name == "standin-1000"
    assert dataset_file("magic", None, tmp_path, tmp_path).parent == tmp_path


def test_the_gate_stops_wrong_code(monkeypatch):
    assert set(gate.check()) == {"cells", "gradients", "newton", "unlearner"}
    monkeypatch.setattr(gate, "assign_cells", lambda X, partitions: np.zeros((len(X), 20), np.uint8))
    with pytest.raises(gate.GateFailed, match="correctness check of cells"):
        gate.check()


def test_cells_are_found_by_line_and_by_words():
    records = [{"experiment": "environment"}, {"experiment": "lr", "dataset": "magic", "method": DEFAULT, "r": 1}]
    assert find(records, "2") == records[1:]
    assert find(records, "lr/magic/l2ul-expansion/r=1") == records[1:]
    for wrong in ("3", "lr/skin", "r=2"):
        with pytest.raises(UserError):
            find(records, wrong)


BENCH = ("bench", "lr", "--profile", "tiny", "--datasets", "skin")


def test_kill_resume_reproduce(tmp_path):
    """kill -9 in the middle; the same command completes the run without repeating a cell; one cell is repeated."""
    environment = {k: v for k, v in os.environ.items() if k != "L2UL_RAW_DIR"}
    path = tmp_path / "results" / "lr-tiny" / "records.jsonl"
    command, quiet = [sys.executable, "-m", "l2ul_fast.cli", *BENCH], subprocess.DEVNULL
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=quiet, stderr=quiet) as process:
        while process.poll() is None and not (path.exists() and path.read_bytes().count(b"\n") >= 6):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    before = path.read_bytes()
    assert before.count(b"\n") >= 6
    # a line that was being written when the process died
    path.write_bytes(before[: before.rfind(b"\n") + 1] + b'{"experiment": "lr", "data')
    assert "report:" in l2ul(tmp_path, *BENCH)[1]
    assert (path.parent / "report" / "index.html").stat().st_size > 10_000
    after = path.read_bytes()
    assert after.startswith(before[: before.rfind(b"\n") + 1])
    lines = [json.loads(line) for line in after.splitlines()]
    cells = [(r["method"], r["repeat"], r["r"]) for r in lines if r["experiment"] == "lr"]
    assert len(cells) == len(set(cells)) == 2 * len(ALL_METHODS)
    assert {r["source"] for r in lines if r["experiment"] == "lr"} == {"stand-in"}
    shown, _ = l2ul(tmp_path, "reproduce", path.parent, "lr/skin/newton/repeat=1")
    rho = next(r["rho"] for r in lines if r["experiment"] == "lr" and (r["method"], r["repeat"]) == ("newton", 1))
    line = next(line for line in shown.splitlines() if " rho " in line)
    old, new = (float(part) for part in line.replace("│", " ").split()[-2:])
    assert old == pytest.approx(rho, rel=1e-3)
    assert new == pytest.approx(old, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "is not one of the experiments"),
        (["--datasets", "mnist"], "is not one of"),
        (["--threads", "4096"], "cannot use 4096 threads"),
        (["--jobs", "4096"], "cores, there are"),
        (["--set", "speed=1"], "have the numbers"),
    ],
)
def test_bad_input_is_one_sentence(words, message, tmp_path):
    out, said = l2ul(tmp_path, *BENCH, *words, code=1)
    assert out == ""
    assert message in said


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_selection_of_nothing_is_a_mistake(dry, tmp_path):
    out, said = l2ul(tmp_path, *BENCH, "--select", "nothing-like-it", *dry, code=2)
    assert out == ""
    assert said.startswith("error: there is nothing to measure")


def test_a_fit_is_shared_and_its_time_counted_for_everybody(tables):
    train, arena = tables[0], Arena("toy", "synthetic", *tables, "lr", 3, 60)
    first, second = TimedMethod("nothing"), TimedMethod("finetune")
    first.prepare(train, arena.trained, 3)
    assert arena.trained.seconds_saved == 0
    second.prepare(train, arena.trained, 3)
    assert arena.trained.seconds_saved > 0
    assert second.prepare_seconds >= arena.trained.seconds_saved
    np.testing.assert_array_equal(first.theta, second.theta)
    hidden = train.without(np.arange(10))
    assert not np.array_equal(arena.trained.fit(hidden).theta, first.theta)  # other rows are fitted anew
