"""pytest-benchmark: the cases of l2ul_fast.cases, the ones that asv tracks. `make bench-pytest` runs and saves them.

Sizes follow L2UL_BENCH_PROFILE (smoke, regular, full); L2UL_BENCH_ROUNDS fixes the number of rounds of every cell.
"""

import os
import time

import pytest

from l2ul_fast.cases import CASES, Skip, current
from l2ul_fast.measure.environment import git_sha
from l2ul_kernels.threads import report

PROFILE = current()
ROUNDS = int(os.environ.get("L2UL_BENCH_ROUNDS", "0"))


def _cells():
    """(case, dataset, the other parameters) -> cell. Strings only: pytest-benchmark keeps anything else as its repr."""
    found = {}
    for case in CASES.values():
        for cell in case.cells(PROFILE):
            rest = ",".join(f"{name}={value}" for name, value in cell.items() if name != "dataset")
            found[case.name, cell["dataset"], rest] = cell
    return found


CELLS = _cells()


@pytest.fixture(scope="session")
def commit():
    return git_sha()


@pytest.mark.parametrize(("case", "dataset", "cell"), list(CELLS))
def test_case(benchmark, commit, case, dataset, cell):
    try:
        with CASES[case].open(PROFILE, **CELLS[case, dataset, cell]) as work:
            rounds = ROUNDS or _rounds(work)
            benchmark.group = dataset
            benchmark.extra_info.update(work.info, profile=PROFILE.name, git_sha=commit, layer=report()["numba_layer"])
            benchmark.pedantic(work.call, setup=work.before, rounds=rounds, iterations=1)
    except Skip as reason:
        pytest.skip(str(reason))


def _rounds(work):
    """As many rounds as fit the profile's time, from 5 to 1000."""
    work.before()
    start = time.perf_counter()
    work.call()
    return int(min(1000, max(5, PROFILE.seconds / (time.perf_counter() - start))))
