"""Experiments cores and scale: rates, peak memory, files of the right size."""

import mmap
import time

import numpy as np
import pytest
from experiment_runs import measured, options

from l2ul_fast.errors import UserError
from l2ul_fast.experiments import registry, runner
from l2ul_fast.experiments.inputs import all_rows, standin_file
from l2ul_fast.experiments.speed import cores, scale
from l2ul_kernels.threads import thread_limit


def test_cores_rates_are_work_by_time(tmp_path):
    records = measured("cores", tmp_path, threads=min(2, thread_limit()))
    assert [r["task"] for r in records] == list(cores.TASKS)
    for r in records:
        work = {"kme": 3000, "pairs": 10, "retrain": 3000}.get(r["task"], 1)
        assert r["rate"] == pytest.approx(work / r["seconds"])


def test_peak_sees_what_a_block_allocates_and_frees():
    idle = scale.Peak.resident()
    with scale.Peak(idle) as peak:
        big = np.frombuffer(mmap.mmap(-1, 64 << 20), np.uint8)  # pages that the process does not hold yet
        big += 1
        time.sleep(0.1)  # the thread that looks must get a turn
        del big
    assert 50 < peak.mib < 200


def test_files_of_stand_ins_have_the_rows_asked_for(tmp_path):
    small, large = (standin_file("higgs", n, tmp_path) for n in (1000, 3000))
    assert (all_rows(small), all_rows(large)) == (1000, 3000)
    assert standin_file("higgs", 3000, tmp_path) == large
    large.rename(tmp_path / large.name)  # one of the user's own, which is not the size asked for
    assert standin_file("higgs", 3000, tmp_path) == tmp_path / large.name
    assert all_rows(standin_file("higgs", 2000, tmp_path)) == 2000


def test_a_process_that_fails_says_why(tmp_path):
    job = runner.tasks_of(options("scale", tmp_path, n=(1000,), requests=0), 1)[0].job
    with pytest.raises(UserError, match="measuring 1,000 rows failed: "):
        list(job.measure(job.cells))


def test_numbers_that_replace_the_profiles_must_fit_them():
    numbers = registry.load()["scale"].numbers
    assert numbers("tiny", {"n": 1000})["n"] == (1000,)
    assert numbers("tiny", {"n": (1000, 2000), "other": 1}) == {"n": (1000, 2000), "requests": 5}
    with pytest.raises(UserError, match="--set requests=many: it does not fit, the profile has 5"):
        numbers("tiny", {"requests": "many"})
    with pytest.raises(UserError, match="--set s=500: it does not fit"):
        registry.load()["pairs"].numbers("tiny", {"s": 500})
