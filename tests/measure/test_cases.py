"""The case table: every cell names what the suites need, works leave no trace, asv sees every case."""

import importlib
import inspect
import itertools
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from l2ul_fast.cases import CASES, DATASETS, PROFILES, Skip, Work, current
from l2ul_fast.cases import quality as quality_figures
from l2ul_fast.cases.case import Case
from l2ul_fast.cases.data import many_rows, rows
from l2ul_fast.cases.table import Requests
from l2ul_fast.datasets import REGISTRY
from l2ul_fast.errors import UserError
from l2ul_kernels.threads import thread_limit

ROOT = Path(__file__).parents[2]
SMOKE = PROFILES["smoke"]


def test_datasets_are_the_seven_from_narrow_to_wide():
    assert set(DATASETS) == set(REGISTRY)
    assert [REGISTRY[name].d for name in DATASETS] == sorted(info.d for info in REGISTRY.values())


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
def test_parameters_are_strings_and_ints_and_begin_with_dataset_and_threads(profile):
    for case in CASES.values():
        parameters = case.parameters(profile)
        assert list(parameters)[:2] == ["dataset", "threads"]
        assert all(type(value) in (str, int) for values in parameters.values() for value in values)
        assert len(list(case.cells(profile))) == np.prod([len(values) for values in parameters.values()])


def test_profile_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("L2UL_BENCH_PROFILE", "full")
    assert current().name == "full"
    monkeypatch.delenv("L2UL_BENCH_PROFILE")
    assert current().name == "regular"
    monkeypatch.setenv("L2UL_BENCH_PROFILE", "huge")
    with pytest.raises(UserError, match="smoke, regular, full"):
        current()


def test_threads_beyond_the_affinity_are_skipped_before_anything_is_built():
    case = Case("x", "kernels", lambda profile, **cell: pytest.fail("built"), lambda p: {"dataset": ("skin",)})
    with pytest.raises(Skip, match="may use"), case.open(SMOKE, threads=thread_limit() + 1, dataset="skin"):
        pass
    assert issubclass(Skip, NotImplementedError)  # what asv takes as "not applicable"


def test_open_calls_before_every_call_and_closes_after_errors():
    log = []
    work = Work(lambda: log.append("call"), {}, lambda: log.append("before"), lambda: log.append("close"))
    case = Case("x", "kernels", lambda profile, dataset: work, lambda p: {"dataset": ("skin",)})
    with pytest.raises(ZeroDivisionError), case.open(SMOKE, threads=1, dataset="skin"):
        raise ZeroDivisionError
    assert work.info == {"case": "x", "threads": 1}
    assert log == ["before", "call", "before", "call", "close"]


def test_rows_are_standardised_and_repeat_where_the_set_is_small():
    X, y = rows("magic", 10**9)
    assert len(X) == len(y) == REGISTRY["magic"].n
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-4)
    many = many_rows("magic", len(X) + 5)
    np.testing.assert_array_equal(many[-5:], X[:5])


@pytest.mark.parametrize("r", [1, 100, 1000])
def test_requests_never_ask_twice_and_begin_anew_with_all_rows(r):
    from l2ul_fast.cases.table import fitted

    first = fitted(SMOKE, "magic", "lr")
    n = first.n
    requests = Requests(first, r)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(1, len(requests.requests) + 2 if r > 1 else 4):
            requests.before()
            requests.call()
            answered = (turn - 1) % len(requests.requests) + 1
            assert requests.unlearner.n == n - answered * r
    assert first.n == n  # the fitted unlearner itself is never asked


def test_mlps_on_wide_rows_are_skipped_but_in_the_full_profile():
    with (
        pytest.raises(Skip, match="full profile"),
        CASES["pairs"].open(SMOKE, dataset="sepsis", threads=1, model="mlp"),
    ):
        pass


def test_a_work_says_what_its_result_needs():
    cell = {"dataset": "skin", "threads": 1, "psi": 4}
    with CASES["cell_counts"].open(SMOKE, **cell) as work:
        assert work.info["n"] > 2048
        assert {"case", "dataset", "source", "n", "d", "psi", "t", "threads"} == set(work.info)
        assert work.info["source"] == "stand-in"
        counts = work.call()
    assert counts.sum() == work.info["n"] * work.info["t"]


def test_quality_knows_retrain_and_nothing():
    found = {method: quality_figures.rho(SMOKE, "magic", "lr", 100, method) for method in quality_figures.METHODS}
    assert (found["retrain"], found["nothing"]) == (0.0, 1.0)
    assert 0 < found["l2ul"] < 0.5
    assert quality_figures.accuracy_gap(SMOKE, "magic", "lr", 100, "retrain") == 0.0


def test_asv_suites_cover_the_table(monkeypatch):
    """Every case is timed by exactly one asv class, with the parameters of the table; every suite has its file."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("L2UL_BENCH_PROFILE", "smoke")
    names = ["kernels", "stream", "unlearn", "pairs", "baselines", "speedup", "quality", "cold_start"]
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == {*names, "__init__", "common"}
    try:
        modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}
        found = []
        for name, module in modules.items():
            classes = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
            assert classes, name
            for cls in classes:
                if getattr(cls, "case", None):
                    case = CASES[cls.case]
                    assert case.suite == name
                    assert list(itertools.product(*cls.params)) == [tuple(c.values()) for c in case.cells(SMOKE)]
                    found.append(cls.case)
        assert sorted(found) == sorted(CASES)
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
            del sys.modules[name]
