"""The experiment on networks, its records and its report."""

from dataclasses import replace

import pytest
from experiment_runs import options

from l2ul_fast.experiments import runner
from l2ul_fast.experiments.paper import resnet
from l2ul_fast.measure.records import Run
from l2ul_fast.report.figures import resnet as report
from l2ul_fast.report.values import Cell
from l2ul_fast.resnet import bench
from l2ul_fast.resnet.train import Recipe
from l2ul_kernels import threads as budget

MICRO = replace(
    bench.PROFILES["tiny"],
    rows=100,
    test_rows=60,
    tune_rows=40,
    eval_rows=60,
    recipe=Recipe(1, 25, 0.1),
    sizes=(10, 20),
    mia_rows=60,
)
SOME = ("l2ul-network", "finetune")


def measure(folder, methods):
    """(records, what the runner says) of a run of these methods."""
    run, chosen = Run(folder / "run"), options("resnet", folder, methods=methods)
    with budget(1):
        summary = runner.run_tasks(run, runner.tasks_of(chosen, 1, run.folder), lambda stage, done, total: None)
    return run.records, summary


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    monkeypatch.setitem(bench.PROFILES, "tiny", MICRO)
    whole, calls = bench.answer, []

    def kill(parts, method, forget):
        if method == "l2ul-network" and len(forget) == 20:
            raise Killed
        return whole(parts, method, forget)

    monkeypatch.setattr(bench, "answer", kill)
    with pytest.raises(Killed):
        measure(tmp_path, SOME)
    before = Run(tmp_path / "run").records
    wanted = ["retrain", "nothing", "finetune", "l2ul-network"]
    keys = [("origin", 0), *((name, r) for r in (10, 20) for name in wanted)]
    assert [(r["method"], r["r"]) for r in before] == keys[:-1]
    monkeypatch.setattr(bench, "answer", lambda *a: calls.append((a[1], len(a[2]))) or whole(*a))
    records, summary = measure(tmp_path, SOME)
    assert (summary.new, summary.failed) == (1, 0)
    assert ("finetune", 10) not in calls
    assert records[: len(before)] == before
    assert [(r["method"], r["r"]) for r in records] == keys
    calls.clear()
    assert measure(tmp_path, SOME)[1].new == 0
    assert not calls
    for r in records[1:]:
        assert r["source"] == "stand-in"
        assert {"tow", "mia", "mia_gap", "mia_degenerate", "setup_seconds", "answer_seconds", "width", "n"} <= set(r)
        if r["method"] == "retrain":
            assert (r["tow"], r["forget_disagreement"]) == (1.0, 0.0)
        product = 1.0
        for part in ("forget", "retain", "test"):
            product *= 1 - abs(r[f"{part}_accuracy"] - r[f"retrain_{part}_accuracy"])
        assert r["tow"] == pytest.approx(product)


@pytest.mark.slow
def test_the_tiny_profile_runs_every_method(tmp_path):
    records, summary = measure(tmp_path, ())
    assert summary.failed == 0
    assert {(r["method"], r["scope"]) for r in records} == {("origin", "all"), *resnet.METHODS}


# Report --------------------------------------------------------------------------------------------------------------


def rows(source="subset", **changes):
    """Made-up records of three methods."""
    common = {
        "experiment": "resnet",
        "profile": "local",
        "dataset": "cifar10",
        "source": source,
        "n": 10_000,
        "width": 16,
        "augment": True,
        "epochs": 8,
        "seed": 0,
        "threads": 2,
        "mia_degenerate": None,
        "mia": 0.4,
        "setup_seconds": 5.0,
        "fooled": 0.5,
        "reached": False,
        "steps": 7,
    }
    out = [{**common, "method": "origin", "scope": "all", "r": 0, "unlearn_seconds": 100.0}]
    for method, scope, tow, seconds in (
        ("retrain", "all", 1.0, 100.0),
        ("nothing", "all", 0.9, 0.0),
        ("rum", "all", 0.8, 10.0),
        ("advimp", "all", 0.3, 10.0),
        ("l2ul-network", "head", 0.95, 0.01),
    ):
        own = {**common, "method": method, "scope": scope, "tow": tow, "mia_gap": 0.1, "unlearn_seconds": seconds}
        out += [{**own, "r": r, **changes} for r in (10, 3000)]
    return out


def test_the_table_stands_beside_the_papers():
    table = report.quality(rows())
    found = {(row[0].text, row[1].text): [c.text for c in row[2:]] for row in table.rows}
    assert found["r = 10", "L2UL, head"][0] == "0.950 (0.80)"
    assert found["r = 3,000", "L2UL, head"][0] == "0.950 (0.99)"
    assert found["r = 10", "RUM"][2] == "10 s (13.6 s)"
    assert found["r = 10", "Do nothing"][2] == "–"
    flagged = report.quality(rows(mia_degenerate="the attacker gives every row the same verdict"))
    assert flagged.rows[0][3].text == "degenerate"


def test_goals_that_are_missed_are_shown_missed():
    found = {tuple(c.text for c in row[:3]): row[3] for row in report.goals(rows()).rows}
    head = "L2UL, head"
    assert found[head, "10", "times faster than Retrain"] == Cell("10,000×", 10_000.0)
    assert found[head, "3,000", "ToW beside the paper's"].mark == "missed"
    assert not found[head, "10", "ToW beside Do nothing"].mark


def test_a_weak_attack_is_called_weak():
    assert [c.text for c in report.attacks(rows()).rows[0]] == ["10", "50% (too weak)", "no, stopped", "7"]
    assert [c.text for c in report.attacks(rows(fooled=0.95, reached=True)).rows[1]] == ["3,000", "95%", "yes", "7"]


def test_a_stand_in_is_named_in_every_title():
    assert "STAND-IN" in report.title(rows("stand-in"))
    assert "subset of the real data" in report.title(rows())
    assert len(report.settings(rows() + rows("stand-in"))) == 2
    assert "STAND-IN" in report.FIGURE.all_tables(rows("stand-in"))[0].title
    assert [d.name for d in report.FIGURE.plots(rows())] == ["resnet"]
    assert report.FIGURE.plots([]) == report.FIGURE.all_tables([]) == []
