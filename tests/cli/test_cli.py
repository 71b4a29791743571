"""The `l2ul` command as a user types it."""

import json
import os
import sys

import pytest
from command import l2ul, mistake

from l2ul_fast.cli import main
from l2ul_fast.experiments.speed.kernels import measure_cell
from l2ul_fast.report.figures.kernels import notes


def test_env_tells_the_machine():
    facts = json.loads(l2ul("env", "--json").stdout)
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert facts["versions"]["numba"]
    assert "numpy" in l2ul("env").stdout


def test_help_is_everywhere():
    for words in ((), ("bench",), ("bench", "kernels"), ("data", "make"), ("kme",), ("fit",)):
        assert "Usage" in l2ul(*words, "--help").stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--threads", "4096"), "cannot use 4096 threads"),
        (("--threads", "x"), "expected positive numbers"),
        (("--out", "/proc/nowhere"), "cannot use /proc/nowhere"),
    ],
)
def test_mistakes_are_one_sentence(words, text):
    assert text in mistake("bench", "kernels", *words)


def test_a_missing_extra_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "l2ul_fast.cli.app")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "error: this needs the package typer: pip install 'l2ul-fast[cli]'\n"


def test_bench_kernels_measures_writes_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("bench", "kernels", "--profile", "tiny", "--select", "psi=", "--threads", 1)
    records = [json.loads(line) for line in l2ul(*words, "--json").stdout.splitlines()]
    methods = {r["method"] for r in records if r["experiment"] == "kernels"}
    assert {"sgemm peak", "sgemm of this shape", "l2ul cell_counts", "l2ul assign_cells", "scikit-learn"} <= methods
    assert all(r["differs_from_ours"] < 0.01 for r in records if "differs_from_ours" in r)
    assert (tmp_path / "results/kernels-tiny/report/kernels.png").stat().st_size > 10_000
    assert "assign_cells" in l2ul(*words).stdout  # nothing is measured twice
    written = (tmp_path / "results/kernels-tiny/records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == records


def test_a_peer_that_is_not_installed_is_a_row_that_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    records = list(measure_cell(3, 4, 1, 1, 0.001, ["faiss", "numpy GEMM+argmin"]))
    assert [r["status"] for r in records if r["method"] == "faiss"] == ["not installed (faiss)"]
    assert "not measured: faiss" in str(notes(records))
