"""`l2ul kme` and `l2ul fit` with workers: the same output, one sentence when something is missing, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from command import l2ul, mistake

from l2ul_fast.datasets.file.hdf5 import DatasetWriter
from l2ul_fast.measure.records import read_records
from l2ul_fast.report.figures.distributed import FIGURE, pairs_of
from l2ul_fast.report.runs import ready

L2UL = [sys.executable, "-c", "from l2ul_fast.cli import main; main()"]
ROOT = Path(__file__).parents[2]


def write(path, n, seed, d=6):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    with DatasetWriter(path, name="magic", source="standin:test:0", d=d, classes=[0, 1]) as writer:
        writer.append(X, (X[:, 0] + rng.standard_normal(n) > 0).astype(int))
    return str(path)


@pytest.fixture
def files(tmp_path):
    return [write(tmp_path / f"s{i}.h5", 2000 + i, i) for i in range(3)]


def test_kme_with_workers_prints_the_same_counts(client, tmp_path, files):
    manifest = tmp_path / "m.json"
    options = ["--by-class", "--part", "train", "--json"]
    alone = json.loads(l2ul("kme", *files, *options, "--manifest", manifest).stdout)
    spread = json.loads(l2ul("kme", manifest, *options, "--scheduler", client.scheduler.address).stdout)
    for key in ("counts", "n", "d", "t", "psi", "label", "classes", "files"):
        assert spread[key] == alone[key], key
    assert (spread["workers"], alone["workers"]) == (2, None)


def test_one_sentence_for_a_mistake(tmp_path, files):
    assert "only workers read" in mistake("kme", "s3://bucket/x.h5")
    assert "for one process" in mistake("kme", *files, "--workers", 2, "--cells", tmp_path / "c.h5")
    assert "give nothing else" in mistake("kme", *files, "m.json")


def test_without_dask_one_sentence_says_what_to_install(tmp_path, files, monkeypatch):
    for name in ("dask", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    commands = (
        ["kme", *files, "--workers", 2],
        ["fit", files[0], "--out", tmp_path / "u", "--scheduler", "tcp://127.0.0.1:1"],
        ["bench", "distributed", "--out", tmp_path / "r"],
    )
    for words in commands:
        assert "pip install 'l2ul-fast[dask]'" in mistake(*words)
    assert not (tmp_path / "u").exists()
    l2ul("kme", *files)


@pytest.mark.slow
def test_ctrl_c_cancels_and_leaves_nothing(tmp_path):
    big = write(tmp_path / "big.h5", 400_000, 0)
    out = tmp_path / "u"
    command = [*L2UL, "fit", big, "--out", str(out), "--workers", "2", "--head", "learned", "--m", "5000"]
    command += ["--s", "50000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:  # until workers have been at work for a while
        children = psutil.Process(process.pid).children(recursive=True)
        if sum(sum(c.cpu_times()[:2]) > 5 for c in children if c.is_running()) >= 2:
            break
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the client and to every worker
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors[-3000:]
    assert "interrupted" in errors
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["big.h5"]


@pytest.mark.slow
def test_the_benchmark_records_all_and_goes_on_where_it_stopped(tmp_path):
    words = [
        "bench",
        "distributed",
        "--rows",
        50_000,
        "--repeats",
        1,
        "--workers",
        2,
        "--json",
        "--out",
        tmp_path / "r",
    ]
    found = [json.loads(line) for line in l2ul(*words).stdout.splitlines()]
    of_workers = [(r["experiment"], r["workers"]) for r in found if r.get("method") == "workers"]
    assert of_workers == [(f"distributed-{name}", k) for name in ("kme", "sums", "pairs") for k in (1, 2)]
    assert len(pairs_of(ready(found))) == 6
    kept = (tmp_path / "r" / "records.jsonl").read_text()
    l2ul(*words)
    assert (tmp_path / "r" / "records.jsonl").read_text() == kept


def test_the_figure_reads_records_of_before_too():
    """Those of versions that recorded more: tasks, limits, and one process with one thread only beside pairs."""
    found = ready(read_records(ROOT / "docs" / "distributed.jsonl"))
    (table,) = FIGURE.all_tables(found)
    assert ["1,000 lr pairs, s = 10,000", "2", "674 ms", "1 thread: 1.25 s", "0.54×"] in [
        [c.text for c in row] for row in table.rows
    ]
    assert [drawing.name for drawing in FIGURE.plots(found)] == ["distributed"]
    slow = [{**r, "seconds": 9 * r["seconds"]} if r.get("method") == "workers" else r for r in found]
    assert [row[-1].mark for row in FIGURE.all_tables(slow)[0].rows[:2]] == ["", "missed"]
