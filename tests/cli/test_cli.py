"""The `l2ul` command as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

L2UL = Path(sys.executable).parent / "l2ul"


def l2ul(*words, cwd, **environment):
    return subprocess.run(
        [L2UL, *map(str, words)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_env_tells_the_machine(tmp_path):
    facts = json.loads(l2ul("env", "--json", cwd=tmp_path).stdout)
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert facts["versions"]["numba"]
    assert "numpy" in l2ul("env", cwd=tmp_path).stdout


def test_help_is_everywhere(tmp_path):
    for words in (
        (),
        ("bench",),
        ("bench", "kernels"),
        ("bench", "stream"),
        ("env",),
        ("data",),
        ("data", "make"),
        ("kme",),
    ):
        done = l2ul(*words, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert "Usage" in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("bench", "kernels", "--threads", "4096"), "cannot use 4096 threads"),
        (("bench", "kernels", "--threads", "x"), "expected positive numbers"),
        (("bench", "kernels", "--out", "/proc/nowhere"), "cannot use /proc/nowhere"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, words, text):
    done = l2ul(*words, cwd=tmp_path)
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_one_sentence(run_python):
    code = "import sys; sys.modules['typer'] = None\nfrom l2ul_fast.cli import main\n"
    code += "try: main()\nexcept SystemExit as stop: print(stop)"
    assert "pip install 'l2ul-fast[all]'" in run_python(code)


def test_bench_kernels_measures_writes_and_goes_on(tmp_path):
    words = ("bench", "kernels", "--profile", "tiny", "--threads", "1")
    done = l2ul(*words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    methods = {r["method"] for r in records if r["experiment"] == "kernels"}
    assert {"sgemm peak", "sgemm of this shape", "l2ul cell_counts", "l2ul assign_cells", "scikit-learn"} <= methods
    assert all(r["differs_from_ours"] < 0.01 for r in records if "differs_from_ours" in r)
    assert {r["method"] for r in records if r["experiment"] == "cold-start"} == {"cold", "cached"}
    assert (tmp_path / "results/kernels-tiny/report/kernels.png").stat().st_size > 10_000
    again = l2ul(*words, cwd=tmp_path)  # nothing is measured twice
    assert "assign_cells" in again.stdout
    written = (tmp_path / "results/kernels-tiny/records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == records


def test_a_peer_that_is_not_installed_is_a_row_that_says_so(run_python):
    out = run_python(
        """
import sys; sys.modules["faiss"] = None
from l2ul_fast.experiments.speed.kernels import measure_cell
from l2ul_fast.report.figures.kernels import notes
records = list(measure_cell(3, 4, 1, 1, 0.001, ["faiss", "numpy GEMM+argmin"]))
print([r["status"] for r in records if r["method"] == "faiss"], notes(records))
"""
    )
    assert "not installed (faiss)" in out
    assert "not measured: faiss" in out
