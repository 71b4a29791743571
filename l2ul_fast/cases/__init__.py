"""The benchmark cases: one table for asv (benchmarks/), pytest-benchmark (tests/bench) and the perf-check.

    from l2ul_fast.cases import CASES, PROFILES

    case, profile = CASES["cell_counts"], PROFILES["smoke"]
    for cell in case.cells(profile):  # {"dataset": "skin", "threads": 1, "psi": 4}, ...
        with case.open(profile, **cell) as work:
            work.before()  # not timed
            work.call()  # timed

A cell that cannot run here raises Skip, which is a NotImplementedError: what asv takes as "not applicable".
"""

from __future__ import annotations

from l2ul_fast.cases.case import Case, Skip, Work
from l2ul_fast.cases.profiles import DATASETS, PROFILES, Profile, current
from l2ul_fast.cases.table import CASES

__all__ = ["CASES", "DATASETS", "PROFILES", "Case", "Profile", "Skip", "Work", "current"]
