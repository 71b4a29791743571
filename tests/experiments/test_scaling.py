"""Experiments cores and scale: all tasks at the threads asked for, files of the right size, peak memory."""

import numpy as np
import pytest
from experiment_runs import check_figure, check_resume, run, tiny

from l2ul_fast.errors import UserError
from l2ul_fast.experiments.jobs import Setting
from l2ul_fast.experiments.speed import cores, scale
from l2ul_fast.tables import FileTable
from l2ul_kernels.threads import thread_limit


def test_cores_measures_every_task_at_its_threads(tmp_path):
    records = []
    for k in sorted({1, min(2, thread_limit())}):
        setting = tiny(tmp_path, "cores", k, n=3000, m=10, s=200, repeats=2, calls=3)
        new, found = run(cores, setting, tmp_path / str(k))
        assert new == len(cores.TASKS)
        assert [r["task"] for r in found] == list(cores.TASKS)
        assert {r["threads"] for r in found} == {k}
        for r in found:
            assert r["seconds"] > 0
            work = {"kme": 3000, "pairs": 10, "retrain": 3000}.get(r["task"], 1)
            assert r["rate"] == pytest.approx(work / r["seconds"])
        check_resume(cores, setting, tmp_path / str(k))
        records += found
    _, (table,) = check_figure("cores", records)
    assert table.columns[2] == "1 thread"
    assert len(table.rows) == len(cores.TASKS)


def test_peak_sees_what_a_block_allocates_and_frees():
    idle = scale.Peak.resident()
    with scale.Peak(idle) as peak:
        big = np.ones(8 << 20)  # 64 MiB
        total = big.sum()
        del big
    assert total == 8 << 20
    assert 50 < peak.mib < 200


def test_scale_in_processes_of_their_own(tmp_path):
    setting = tiny(tmp_path, "scale", n=(1000, 3000), requests=5)
    _, records = run(scale, setting, tmp_path / "run")
    assert [(r["n"], r["task"]) for r in records] == [(n, task) for n in (1000, 3000) for task in scale.TASKS]
    for r in records:
        assert r["seconds"] > 0
        assert r["peak_mib"] >= 0
        assert r["idle_mib"] > 20
        assert r["source"] == "stand-in"
    table = FileTable(scale.file_of(setting, 3000), "all")
    assert table.n == 3000
    table.close()
    check_resume(scale, setting, tmp_path / "run")
    check_figure("scale", records)


def test_a_process_that_fails_says_why(tmp_path):
    setting = tiny(tmp_path, "scale", n=(1000,), requests=0)
    with pytest.raises(UserError, match="measuring 1,000 rows failed: "):
        run(scale, setting, tmp_path / "run")


def test_unknown_profiles_are_refused(tmp_path):
    setting = Setting("huge", {}, ("magic",), tmp_path)
    with pytest.raises(UserError, match="quick, paper, full"):
        scale.jobs(setting)
    for profile in ("quick", "paper", "full"):
        jobs = scale.jobs(Setting(profile, {}, ("magic",), tmp_path))
        assert jobs[0].name == "10,000 rows"
    assert jobs[-1].name == "11,000,000 rows"
