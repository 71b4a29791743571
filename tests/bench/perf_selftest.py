"""Shows what the perf-check is worth here: it finds a kernel slowed by 10 %, and keeps quiet on equal builds.

    python tests/bench/perf_selftest.py [--runs 10] [--slow-runs 1] [--only REGEX]

The slow build is a copy of the files here whose cell_counts counts a tenth of its rows once more.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from l2ul_fast.measure.perfcheck import main as perf_check

ROOT = Path(__file__).parents[2]
SLOWER = """

_plain_cell_counts = cell_counts


def cell_counts(X, partitions, *arguments, **options):
    _plain_cell_counts(X[: len(X) // 10], partitions)
    return _plain_cell_counts(X, partitions, *arguments, **options)
"""


def copy_sources(folder):
    for part in ("l2ul_fast", "kernels"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="runs on equal builds")
    parser.add_argument("--slow-runs", type=int, default=1, help="runs on the slow build")
    parser.add_argument("--only", default="", help="cells, as for the perf-check")
    parser.add_argument("--work", default=".asv/perfcheck", help="folder of the trees")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        base, slow = Path(name) / "base", Path(name) / "slow"  # copies: the files here may change while this runs
        copy_sources(base)
        copy_sources(slow)
        with open(slow / "kernels/l2ul_kernels/voronoi/counts.py", "a") as file:
            file.write(SLOWER)
        codes = {}
        for what, head, runs in (("slow", slow, a.slow_runs), ("equal", base, a.runs)):
            codes[what] = []
            for run in range(1, runs + 1):
                start = time.perf_counter()
                code = perf_check(["--base", str(base), "--head", str(head), "--only", a.only, "--work", a.work])
                codes[what].append(code)
                print(f"{what} build, run {run}: exit {code}, {time.perf_counter() - start:.0f} s\n", flush=True)
    found, quiet = codes["slow"].count(1), codes["equal"].count(0)
    print(f"slow build found in {found} of {a.slow_runs} runs, quiet on equal builds in {quiet} of {a.runs}")
    return 0 if found == a.slow_runs and quiet >= 0.9 * a.runs else 1


if __name__ == "__main__":
    sys.exit(main())
