"""`l2ul unlearn` where things around it fail: several processes, full disks and streams, a cache out of reach."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from command import contents, done, ended, run
from command import mistake as refused
from faults import read_only, start, traces
from unlearners import logistic_data

from l2ul_fast import cli
from l2ul_fast.unlearner import L2UL
from l2ul_fast.unlearner.artifact import check_artifact

X, Y = logistic_data(1200, 5)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fitted") / "u"
    L2UL("lr").fit(X, Y).save(directory)
    return directory


@pytest.fixture
def directory(fitted, tmp_path):
    return shutil.copytree(fitted, tmp_path / "u")


# Several processes ---------------------------------------------------------------------------------------------------


def _requests(out, directory, requests):
    """Each (rows, name) once, and every third a second time, as a script that is not sure would."""
    with open(out, "w") as file:
        for i, (row, name) in enumerate(requests):
            for _ in range(1 + (i % 3 == 0)):
                defer = ("--defer",) if i % 2 else ()
                answer = run("unlearn", directory, "--rows", row, "--request-id", name, *defer, "--json")
                code, told, err = answer.exit_code, answer.stdout, answer.stderr
                assert code == 0, err
                facts = json.loads(told)
                file.write(json.dumps({"row": row, "r": facts["r"], "repeated": facts["repeated"]}) + "\n")


def _reads(directory, stop):
    while not stop.exists():
        done("show", directory)


@pytest.mark.parametrize("each", [6, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_processes_on_one_directory_lose_nothing_and_erase_nothing_twice(directory, tmp_path, each):
    """A fifth of the requests is made by two processes, under one name: one of them does it."""
    rows = np.random.default_rng(0).permutation(1200)[: 4 * each]
    shares = [
        [(int(row), f"ticket {row}") for row in [*rows[k::4], *rows[(k + 1) % 4 :: 4][: each // 5]]] for k in range(4)
    ]
    outs = [tmp_path / f"out {k}" for k in range(4)]
    writers = [start(_requests, out, directory, share) for out, share in zip(outs, shares, strict=True)]
    reader = start(_reads, directory, tmp_path / "stop")
    for writer in writers:
        writer.join(1700)
    (tmp_path / "stop").touch()
    reader.join(60)
    assert [p.exitcode for p in (*writers, reader)] == [0] * 5
    answers = [json.loads(line) for out in outs for line in out.read_text().splitlines()]
    erased = [a["row"] for a in answers if a["r"]]
    assert sorted(erased) == sorted(rows.tolist())
    assert all(a["repeated"] for a in answers if not a["r"])
    done("unlearn", directory, "--finish")
    ledger = check_artifact(directory)
    assert ledger.forgotten().tolist() == sorted(rows.tolist())
    names = [e["request_id"] for e in ledger.entries if e["action"] == "unlearn"]
    assert sorted(names) == sorted(f"ticket {row}" for row in rows)
    u = L2UL.load(directory)
    stay = np.setdiff1d(np.arange(1200), rows)
    np.testing.assert_allclose(u.theta, L2UL("lr").fit(X[stay], Y[stay]).theta, rtol=1e-9, atol=1e-12)


# Streams -------------------------------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-c", "from l2ul_fast.cli import main; main()"]


@pytest.mark.parametrize("json_", [(), ("--json",)])
def test_a_full_standard_output_after_the_commit_says_that_the_rows_are_forgotten(directory, json_):
    with open("/dev/full", "w") as full:
        words = [*COMMAND, "unlearn", str(directory), "--rows", "7", *json_]
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    said = f"error: 1 row(s) are forgotten and {directory} is saved, but standard output could not be written "
    assert (ended.returncode, ended.stderr) == (3, said + "(No space left on device)\n")
    assert check_artifact(directory).forgotten().tolist() == [7]


def _without_stdout(directory):
    os.close(1)
    sys.stdout = None
    sys.argv = ["l2ul", "unlearn", str(directory), "--rows", "7"]
    cli.main()


def test_a_closed_standard_output_gets_none_of_our_files(directory):
    process = start(_without_stdout, directory)
    process.join(120)
    assert process.exitcode == 3  # done and saved, and nobody could be told
    assert check_artifact(directory).forgotten().tolist() == [7]


def test_a_file_of_ours_is_never_a_standard_stream(run_python):
    code = "import os, sys; from pathlib import Path; from l2ul_fast.unlearner.artifact import durable\n"
    code += "os.close(0); print(durable.open_file(Path('x'), os.O_WRONLY | os.O_CREAT))"
    assert int(run_python(code)) > 2


# Disks ---------------------------------------------------------------------------------------------------------------


def _limited(most, out, directory, *words):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    out.write_text(refused("unlearn", directory, *words))


@pytest.mark.parametrize(("most", "defer"), [(3000, ()), (300, ("--defer",))])
def test_files_that_may_not_grow_are_one_sentence_and_the_old_state_stays(directory, tmp_path, most, defer):
    before = contents(directory)
    process = start(_limited, most, tmp_path / "out", directory, "--rows", 7, *defer)
    process.join(120)
    assert process.exitcode == 0
    assert "no space left to write" in (tmp_path / "out").read_text()
    assert contents(directory) == before
    done("unlearn", directory, "--rows", 7)
    assert check_artifact(directory).forgotten().tolist() == [7]


def test_a_small_file_system_that_is_full(fitted, tmp_path):
    tmp_path.joinpath("disk").mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", tmp_path / "disk"], capture_output=True)
    if mount.returncode:
        pytest.skip("no file system may be mounted here")
    try:
        directory = shutil.copytree(fitted, tmp_path / "disk" / "u")
        filler = tmp_path / "disk" / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        before = contents(directory)
        assert "no space left to write" in refused("unlearn", directory, "--rows", 7)
        assert contents(directory) == before
        filler.unlink()
        done("unlearn", directory, "--rows", 7)
        assert check_artifact(directory).forgotten().tolist() == [7]
    finally:
        subprocess.run(["umount", tmp_path / "disk"], check=True)


@pytest.mark.parametrize("defer", [(), ("--defer",)])
def test_old_files_that_cannot_be_deleted_do_not_make_a_saved_request_unsaved(directory, monkeypatch, defer):
    def stuck(path):
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", stuck)
        answer = run("unlearn", directory, "--rows", 7, *defer)
        code, out, err = answer.exit_code, answer.stdout, answer.stderr
    assert (code, out) == (3, "")
    assert err.startswith(f"error: {directory} is saved, but files of its old state may be left there")
    assert check_artifact(directory).forgotten().tolist() == [7]
    assert traces(directory, X[7]) == []  # opening it has deleted them


def test_a_directory_that_may_only_be_read(fitted):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        os.chmod(folder, 0o755)
        directory = shutil.copytree(fitted, Path(folder) / "u")
        with read_only(directory):
            done("show", directory)
            assert "Permission denied" in refused("unlearn", directory, "--rows", 7)


def test_a_kernel_cache_that_cannot_be_written_is_one_sentence(directory, monkeypatch, capsys):
    before = contents(directory)

    def full(*args):
        raise OSError(28, "No space left on device", "/cache/x.nbi")

    with monkeypatch.context() as patch:
        patch.setattr("l2ul_fast.unlearner.l2ul.resolve_rows", full)
        text = refused("unlearn", directory, "--rows", "1,2")
    assert text == "error: cannot use /cache/x.nbi: No space left on device"
    assert contents(directory) == before

    def nowhere(*args, **options):
        raise RuntimeError("cannot cache function 'f': no locator available for file 'x.py'")

    monkeypatch.setattr("l2ul_fast.cli.app.app", nowhere)
    assert ended("env", monkeypatch=monkeypatch) == 1
    assert capsys.readouterr().err == (
        "error: there is no folder to cache compiled kernels in: name one that can be written with NUMBA_CACHE_DIR, or "
        "set L2UL_CACHE=0\n"
    )
