"""How every command ends: told to stop anywhere, or with output that nobody takes."""

import contextlib
import inspect
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from command import USES, commands, ended, l2ul, prepare

from l2ul_fast.datasets.text.rawfiles import find_raw
from l2ul_fast.experiments import registry

COMMANDS = commands()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with everything that the commands work on."""
    folder = tmp_path_factory.mktemp("commands") / "prepared"
    folder.mkdir()
    prepare(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "EXPERIMENTS", dict(registry.load()))
        patch.setattr("l2ul_fast.datasets.fetch", lambda name, raw, _: find_raw(name, raw))
        patch.chdir(folder)
        l2ul(*USES["bench"].replace("new-run", "run").split())
        yield folder


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard():
    """Also where the tests themselves run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def fresh(prepared, monkeypatch):
    """fresh() -> a new copy of it, where the process then is."""
    with contextlib.ExitStack() as stack:

        def copy():
            name = stack.enter_context(tempfile.TemporaryDirectory(dir=prepared.parent))
            folder = shutil.copytree(prepared, Path(name), dirs_exist_ok=True)
            monkeypatch.chdir(folder)
            monkeypatch.setenv("L2UL_RAW_DIR", str(folder / "raw"))
            monkeypatch.setenv("L2UL_DATA_DIR", str(folder / "data"))
            return folder

        yield copy
        monkeypatch.chdir(prepared)


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_command_has_a_use():
    assert set(COMMANDS) <= set(USES), "add a valid call to tests/support/command.py"


def stopped(words, monkeypatch, point=0, number=0):
    """(exit code, calls within l2ul_fast) of a command that gets a signal at its `point`-th such call."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        code = frame.f_code
        ours = "l2ul_fast" in code.co_filename and not code.co_filename.endswith("cli/process.py")
        # Python drops an exception that arises while it closes a generator
        if event == "call" and ours and not code.co_flags & inspect.CO_GENERATOR:
            calls += 1
            if calls == point:
                sys.setprofile(None)
                os.kill(os.getpid(), number)

    sys.setprofile(count)
    try:
        return ended(*words, monkeypatch=monkeypatch), calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("points", [2, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_anywhere_is_one_sentence(name, points, fresh, monkeypatch, capsys):
    words, folder = USES[name].split(), fresh()
    before = files(folder)
    code, calls = stopped(words, monkeypatch)
    assert code == 0, capsys.readouterr().err
    whole, arrived = before | files(folder), 0
    for turn, point in enumerate(random.Random(name).sample(range(2, calls), min(points, calls - 2))):
        folder, number = fresh(), (signal.SIGINT, signal.SIGTERM)[turn % 2]
        code, reached = stopped(words, monkeypatch, point, number)
        said = capsys.readouterr().err
        if reached < point:  # it was done sooner this time, without what the first one had to load
            assert code == 0, said
            continue
        arrived += 1
        assert code == 128 + number, (point, said)
        assert "Traceback" not in said
        assert said.strip().splitlines()[-1].startswith(("interrupted", "stopped: ")), said
        left = {name for name in files(folder) - whole if not name.endswith(".tmp")}
        assert left == set(), "something half-written stays"
    assert arrived


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("kind", ["full", "pipe"])
@pytest.mark.parametrize("name", COMMANDS)
def test_output_that_nobody_takes(name, kind, fresh, monkeypatch, capsys):
    """1, or 3 where what was asked for is done and saved; a reader that has gone needs no sentence."""
    folder = fresh()
    with open("/dev/full" if kind == "full" else closed_pipe(), "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        code = ended(*USES[name].split(), monkeypatch=monkeypatch)
    said = capsys.readouterr().err
    assert code in (1, 3), said
    assert "Traceback" not in said
    assert kind == "pipe" or "standard output" in said.splitlines()[-1]
    assert not list(folder.rglob("*.tmp"))


def test_a_closed_stream_gives_its_number_to_no_file(fresh):
    """What is printed to number 1 must not land in the file that is written."""
    folder = fresh()
    command = f"{sys.executable} -m l2ul_fast.cli data make magic --rows 300 --data-dir new >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, cwd=folder, timeout=100)
    assert done.returncode in (1, 3)
    assert done.stderr.splitlines()[-1] == "error: cannot write to standard output: Bad file descriptor"
    l2ul("data", "verify", "magic", "--data-dir", "new")


def test_ctrl_c_reaches_the_processes_of_a_run_through_their_parent(fresh, monkeypatch, capsys):
    """A terminal interrupts all of them at once: each would print a traceback of its own."""
    fresh()
    handlers, ended_by = [], []

    class Process:
        returncode = None

        def __init__(self, *words, **options):
            handlers.append(signal.getsignal(signal.SIGINT))

        def poll(self):
            raise KeyboardInterrupt

        def terminate(self):
            ended_by.append("terminate")

        def wait(self):
            ended_by.append("wait")

    real = subprocess.Popen
    mine = "l2ul_fast.experiments.runner"
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: (Process if mine in words else real)(words, **how))
    assert ended(*USES["bench"].split(), "--threads", "1", "--jobs", "2", monkeypatch=monkeypatch) == 130
    assert "stopped: " in capsys.readouterr().err
    assert handlers == [signal.SIG_IGN] * 2
    assert ended_by == ["terminate"] * 2 + ["wait"] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
