"""Comparing two runs: real changes are found, noise is not, and the exit code says which."""

import json

import numpy as np
import pytest
import report_data
from report_data import ENVIRONMENT, FEW, main_records, write
from scipy import stats
from typer.testing import CliRunner

from l2ul_fast.cli.app import app
from l2ul_fast.errors import UserError
from l2ul_fast.report.compare import compare_runs, holm, paired_p


def records(rng=1, seeds=10, **options):
    return main_records(seeds, FEW, rng=rng, **options)


def of(found, **key):
    return [r for r in found if all(r[k] == v for k, v in key.items())]


def changed(rows, **factors):
    for r in rows:
        r |= {name: r[name] * factor for name, factor in factors.items() if r[name] is not None}


def test_the_paired_test_is_scipys():
    moved = np.random.default_rng(0).normal(0.3, 1, 12)
    assert paired_p(moved) == pytest.approx(stats.ttest_1samp(moved, 0).pvalue)
    assert paired_p(np.zeros(5)) == 1
    assert paired_p(np.full(5, 0.2)) == 0
    assert paired_p(np.array([0.1, 5.0])) is None


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_two_runs_of_the_same_thing_do_not_differ(tmp_path):
    """Noise of 5 % on every time and rho, six pairs of runs: more than one false alarm is unlikely."""
    alarms = 0
    for k in range(6):
        a = write(tmp_path / f"a{k}", records(rng=100 + k, seeds=5))
        b = write(tmp_path / f"b{k}", records(rng=200 + k, seeds=5))
        alarms += any(c.verdict not in ("same", "too few runs") for c in compare_runs(a, b).changes)
    assert alarms <= 1


def test_a_real_change_is_found_and_only_it(tmp_path):
    after = records(rng=2)
    changed(of(after, method="l2ul-expansion", dataset="magic", experiment="lr"), answer_seconds=1.5, rho=0.5)
    for r in of(after, method="sisa", dataset="higgs", experiment="mlp", r=100):
        r["accuracy"] -= 0.05
    found = compare_runs(write(tmp_path / "a", records(rng=1)), write(tmp_path / "b", after))
    judged = {
        (c.cell["method"], c.cell["dataset"], c.metric.name, c.verdict) for c in found.changes if c.verdict != "same"
    }
    assert judged == {
        ("l2ul-expansion", "magic", "answer_seconds", "slower"),
        ("l2ul-expansion", "magic", "rho", "better"),
        ("sisa", "higgs", "accuracy", "worse"),
    }
    assert len(found.bad) == 2
    slower = next(c for c in found.changes if c.verdict == "slower")
    assert slower.pairs == 10
    assert np.exp(slower.effect) == pytest.approx(1.5, rel=0.1)


def test_the_minimum_is_an_option(tmp_path):
    before, after = records(noise=1e-4), records(noise=1e-4)
    for r in of(after, method="l2ul-expansion", experiment="lr"):
        r["answer_seconds"] *= 1.05
        r["accuracy"] -= 0.0005
    a, b = write(tmp_path / "a", before), write(tmp_path / "b", after)
    assert not compare_runs(a, b).bad
    named = {c.metric.name for c in compare_runs(a, b, min_effect=0.02, min_points=0.02).bad}
    assert named == {"answer_seconds", "accuracy"}


@pytest.mark.parametrize(
    ("method", "factors", "spread"),
    [
        ("retrain-warm", {"rho": 1000}, 0.0),  # from 1e-12 to 1e-9: below the solver's noise, 1e-8, all is one
        ("l2ul-expansion", {"answer_seconds": 1.3}, 0.5),  # timings are noisier than the change
        ("nothing", {"overhead_seconds": 9}, 0.0),  # doing nothing takes no time worth comparing
    ],
)
def test_changes_that_mean_nothing_are_not_judged(tmp_path, method, factors, spread):
    before, after = records(noise=1e-4), records(noise=1e-4)
    changed(of(after, method=method), **factors)
    for r in before + after:
        r["answer_spread"] = spread
    assert not compare_runs(write(tmp_path / "a", before), write(tmp_path / "b", after)).bad


def test_few_runs_are_never_judged(tmp_path):
    after = records(seeds=2)
    changed(after, answer_seconds=10)
    found = compare_runs(write(tmp_path / "a", records(seeds=2)), write(tmp_path / "b", after))
    assert not found.bad
    assert found.count("too few runs") > 50
    assert any("often the machine's" in w for w in found.warnings)


def test_one_preparation_in_ten_records_is_one_timing(tmp_path):
    after = records()
    changed(after, prepare_seconds=3)
    found = compare_runs(write(tmp_path / "a", records()), write(tmp_path / "b", after))
    prepared = [c for c in found.changes if c.metric.name == "prepare_seconds"]
    assert {(c.verdict, c.pairs) for c in prepared} == {("too few runs", 1)}


def test_runs_are_paired_by_seed_not_by_order(tmp_path):
    """Seeds differ a hundredfold among themselves; pairing takes that away."""
    before, after = records(noise=0.001), records(noise=0.001)
    for r in before + after:
        changed([r], answer_seconds=10 ** (r["repeat"] % 3))
    changed(of(after, method="newton"), answer_seconds=1.2)
    a, b = write(tmp_path / "a", before), write(tmp_path / "b", after[::-1])
    assert {c.cell["method"] for c in compare_runs(a, b).bad} == {"newton"}


def test_other_machines_and_versions_are_warned_about(tmp_path):
    other = {**ENVIRONMENT, "cpu": "Another CPU", "versions": {"python": "3.11.7", "numpy": "9.9"}}
    a, b = write(tmp_path / "a", records(seeds=3)), write(tmp_path / "b", records(seeds=3), other)
    warnings = compare_runs(a, b).warnings
    assert any("Example CPU 9000 and Another CPU" in w for w in warnings)
    assert any("numpy 2.4.6 and 9.9" in w for w in warnings)
    assert compare_runs(a, a).warnings == []


def test_runs_that_share_nothing(tmp_path):
    b = records(seeds=3)
    for r in b:
        r["profile"] = "paper"
    a, b = write(tmp_path / "a", records(seeds=3)), write(tmp_path / "b", b)
    with pytest.raises(UserError, match=r"share no cell.*different values of profile: quick and paper"):
        compare_runs(a, b)


def test_cells_of_one_run_only_are_counted(tmp_path):
    b = of(records(seeds=3), experiment="lr")
    found = compare_runs(write(tmp_path / "a", records(seeds=3)), write(tmp_path / "b", b))
    assert found.cells == 30
    assert any(w.endswith("a only.") and "cells are in" in w for w in found.warnings)


def run(*words):
    return CliRunner().invoke(app, ["compare", *map(str, words)])


def test_exit_codes_and_output(tmp_path):
    before, after = records(noise=0.01), records(rng=2, noise=0.01)
    same = write(tmp_path / "same", before)
    changed(of(after, method="l2ul-expansion", dataset="higgs", experiment="mlp", r=1), answer_seconds=2)
    slow = write(tmp_path / "slow", after)
    done = run(same, same)
    assert done.exit_code == 0
    assert "0 slower, 0 worse" in done.stdout
    done = run(same, slow)
    assert done.exit_code == 1
    assert "slower" in done.stdout
    assert "higgs (stand-in, n = 800,000)" in done.stdout
    back = run(slow, same)
    assert back.exit_code == 0
    assert "faster" in back.stdout
    lines = [json.loads(line) for line in run(same, slow, "--json").stdout.splitlines()]
    slower = [x for x in lines if x["verdict"] == "slower"]
    assert [(x["method"], x["dataset"], x["metric"], x["runs"]) for x in slower] == [
        ("l2ul-expansion", "higgs", "answer_seconds", 10)
    ]
    assert slower[0]["change"] == pytest.approx(1.0, abs=0.05)
    for words in ((same, tmp_path / "nowhere"), (same, tmp_path)):
        done = run(*words)
        assert done.exit_code == 2
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1
    (tmp_path / "slow" / "records.jsonl").write_text("nonsense\n")
    assert run(same, slow).exit_code == 2


def test_an_old_run_is_compared_under_the_names_of_today(tmp_path):
    old = report_data.before(records(seeds=3))
    found = compare_runs(write(tmp_path / "a", old), write(tmp_path / "b", records(seeds=3)))
    compared = {c.cell["method"] for c in found.changes}
    assert "newton" in compared
    assert not {m for m in compared if m == "l2ul" or "expansion" in m}  # a Newton step is no expansion
    assert "erased_seconds" not in {c.metric.name for c in found.changes}
    assert sum("cells are in" in w for w in found.warnings) == 2  # some in either run only


@pytest.mark.parametrize("shared", [[], [{"experiment": "gate", "threads": 1}], [{"experiment": "odd", "y": 1.0}]])
def test_runs_without_a_common_value_exit_with_2(tmp_path, shared):
    """A shared check, or a shared cell with nothing to compare, is no comparison: it may not pass."""
    lr, mlp = (of(records(seeds=1), experiment=name) for name in ("lr", "mlp"))
    done = run(write(tmp_path / "a", lr + shared), write(tmp_path / "b", mlp + shared))
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_value_that_was_lost_exits_with_1(tmp_path):
    """A cell that failed, or lost every value, is no better run."""
    before, after = records(seeds=3), records(seeds=3)
    lost = of(after, method="sisa", dataset="magic", experiment="lr")[0]
    for name in lost:
        lost[name] = None if name.endswith("_seconds") or name in ("rho", "accuracy", "state_bytes") else lost[name]
    lost |= {"status": "MemoryError", "disagreement": None}
    done = run(write(tmp_path / "a", before), write(tmp_path / "b", after))
    assert done.exit_code == 1
    assert "1 cell lost" in done.stderr


def test_fields_that_an_experiment_declared_tell_its_cells_apart(tmp_path):
    """Two cells that differ in a field of their own: one got slower; and repetitions by one of their own."""
    rng = np.random.default_rng(0)
    own = {"experiment": "mine", "method": "m", "schema": 2}
    before = [
        {**own, "grid": grid, "round": k, "seconds": float(10**k * (1 + 0.01 * rng.random()))}
        for grid in ("fine", "coarse")
        for k in range(5)
    ]
    after = [{**r, "seconds": r["seconds"] * (2 if r["grid"] == "fine" else 1)} for r in before[::-1]]
    told = ENVIRONMENT | {"fields": {"mine": {"grid": "identity", "round": "repeat"}}}
    a, b = write(tmp_path / "a", before, told), write(tmp_path / "b", after)  # one that knows is enough
    found = compare_runs(a, b)
    assert [(c.cell["grid"], c.pairs) for c in found.bad] == [("fine", 5)]
    assert found.bad[0].a == pytest.approx(100, rel=0.01)
    assert "mine grid=fine" in run(a, b).stdout


def test_runs_of_before_are_told_apart_by_fields_of_built_in_experiments(tmp_path):
    """Their run.json names none: `l2ul compare` knows them."""
    own = {"experiment": "unlearn-reconstruction", "method": "m", "schema": 2, "dataset": "magic"}
    records = [{**own, "how": how, "seed": k, "seconds": 1.0 + k} for how in ("file", "arrays") for k in range(3)]
    a, b = write(tmp_path / "a", records), write(tmp_path / "b", records)
    assert compare_runs(a, b).cells == 1
    assert "2 cells in both runs" in run(a, b).stdout
