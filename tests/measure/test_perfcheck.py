"""The perf-check: its verdict on made-up launches, its trees, and both sides of a real comparison."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from l2ul_fast.cases import Work
from l2ul_fast.cases.worker import turn
from l2ul_fast.errors import UserError
from l2ul_fast.measure import perfcheck
from l2ul_fast.measure.perfcheck import Plan, judge, main, smoke_cells, tree_of

ROOT = Path(__file__).parents[2]


def launches(ratio, noise, count=8, seed=0, seconds=1.0):
    ratios = np.exp(np.log(ratio) + noise * np.random.default_rng(seed).normal(size=count))
    return [(seconds, r) for r in ratios.tolist()]


def alarms(ratio, noise, cells, alpha, runs):
    """In how many of the runs any cell of that true ratio is called slower."""
    plan = Plan(alpha=alpha)
    found = [judge({str(k): launches(ratio, noise, seed=100 * s + k) for k in range(cells)}, plan) for s in range(runs)]
    return sum(any(f.slower for f in findings) for findings in found)


def test_slowdowns_are_found_and_noise_is_not():
    """At the boundary of the hypothesis too, with many suspects, the correction keeps false alarms at alpha."""
    assert alarms(1.10, 0.02, 1, 0.01, 20) == 20
    assert alarms(1.00, 0.05, 5, 0.01, 100) <= 1
    assert alarms(1.03, 0.02, 10, 0.05, 200) <= 20  # 5 % of 200, and chance
    assert 1.05 < judge({"a": launches(1.10, 0.02)}, Plan())[0].ratio < 1.15


def test_noiseless_ratios_need_no_test():
    found = judge({"same": [(1.0, 1.0)] * 4, "slow": [(1.0, 1.2)] * 4}, Plan())
    assert [(f.cell, f.slower) for f in found] == [("slow", True), ("same", False)]


@pytest.mark.parametrize(("seconds", "slower"), [(1e-6, False), (1e-3, True)])
def test_a_slowdown_must_be_of_some_share_and_of_some_seconds(seconds, slower):
    found = judge({"a": launches(1.2, 0.01, seconds=seconds)}, Plan(minimum=0.1, least=2e-6))[0]
    assert found.slower == slower
    assert found.seconds == pytest.approx(0.2 * seconds, rel=0.1)


def test_a_turn_takes_at_least_three_calls_and_ignores_an_interruption(monkeypatch):
    clock = iter([0.0] + [x for start, end in ((0, 1), (2, 99), (100, 101)) for x in (start, end)] + [200.0])
    monkeypatch.setattr("l2ul_fast.cases.worker.time.perf_counter", lambda: next(clock))
    log = []
    assert turn(Work(lambda: log.append("call"), {}, lambda: log.append("before")), 0.0) == 1.0
    assert log == ["before", "call"] * 3


class FakeSide:
    """A side whose calls take `seconds`."""

    def __init__(self, seconds, trouble=None):
        self.seconds, self.trouble, self.opened = seconds, trouble, 0

    def ask(self, **order):
        if "open" in order:
            self.opened += 1
            return self.trouble or {"ready": 1}
        if "close" in order:
            self.opened = 0
        return {"seconds": self.seconds}

    def close(self):
        pass


CELL = ("cell_counts", {"dataset": "skin", "threads": 1, "psi": 4})


def check(monkeypatch, base, head):
    made = perfcheck.Check(Path("base"), Path("head"), Plan(launches=2, confirm=4))
    monkeypatch.setattr(perfcheck, "Side", lambda tree, cores: {"base": base, "head": head}[tree.name])
    return perfcheck.report(made, *made.run([CELL]))


def test_the_check_passes_equal_sides_and_names_what_slowed(monkeypatch, capsys):
    assert check(monkeypatch, FakeSide(1.0), FakeSide(1.0))
    assert "0 slower" in capsys.readouterr().out
    assert not check(monkeypatch, FakeSide(1.0), FakeSide(1.1))
    assert "SLOWER         cell_counts[skin, threads=1, psi=4]: 1.100" in capsys.readouterr().out
    assert check(monkeypatch, FakeSide(1.0), FakeSide(0.8))
    assert "maybe faster" in capsys.readouterr().out


def test_a_case_that_breaks_in_head_fails_and_one_that_base_lacks_does_not(monkeypatch, capsys):
    assert not check(monkeypatch, FakeSide(1.0), FakeSide(1.0, {"error": "ImportError: x"}))
    assert "fails in HEAD: ImportError: x" in capsys.readouterr().out
    assert check(monkeypatch, FakeSide(1.0, {"error": "ImportError: x"}), FakeSide(1.0))
    assert "fails in BASE" in capsys.readouterr().out


def test_a_commit_becomes_a_worktree_and_a_folder_is_itself(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    for part in ("l2ul_fast", "kernels/l2ul_kernels"):
        (repository / part).mkdir(parents=True)
        (repository / part / "a.py").write_text("old\n")
    monkeypatch.chdir(repository)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for order in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *order], check=True)
    (repository / "l2ul_fast/a.py").write_text("new\n")
    base = tree_of("HEAD", "base", tmp_path / "work")
    assert (base / "l2ul_fast/a.py").read_text() == "old\n"
    assert (base / "l2ul_fast/cases/worker.py").exists()  # of the running package
    assert base == tree_of("HEAD", "base", tmp_path / "work") != tree_of("HEAD", "head", tmp_path / "work")
    assert tree_of(".", "head", tmp_path / "work") == repository


@pytest.mark.parametrize("base", ["no-such-commit", "--help", "tests"])
def test_what_is_neither_commit_nor_sources_is_one_sentence(base, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=r"commit|sources"):
        tree_of(base, "base", tmp_path)


def test_bad_arguments_are_refused(capsys):
    assert main(["--only", "no such cell"]) == 2
    assert main(["--only", "("]) == 2
    assert main(["--confirm", "1"]) == 2
    assert "error: " in capsys.readouterr().err
    assert len(smoke_cells(r"^cell_counts\[skin, threads=1")) == 1


@pytest.mark.slow
def test_both_sides_run_from_their_own_tree(tmp_path):
    """A real comparison of this checkout with a copy whose counts do all their work twice."""
    slow = tmp_path / "slow"
    for part in ("l2ul_fast", "kernels"):
        shutil.copytree(ROOT / part, slow / part, ignore=shutil.ignore_patterns("__pycache__"))
    with open(slow / "kernels/l2ul_kernels/voronoi/counts.py", "a") as file:
        file.write("\n_once = cell_counts\ndef cell_counts(*a, **k):\n    _once(*a, **k)\n    return _once(*a, **k)\n")
    arguments = ["--base", str(ROOT), "--only", r"^cell_counts\[skin, threads=1", "--work", str(tmp_path / "work")]
    assert main([*arguments, "--head", str(slow), "--launches", "1", "--confirm", "3", "--alpha", "0.05"]) == 1
