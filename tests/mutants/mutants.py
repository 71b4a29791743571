"""Break the baselines and metrics on purpose, one small edit at a time, and see that a test fails each time.

    python tests/mutants/mutants.py                 all edits of mutant_edits.py
    python tests/mutants/mutants.py sisa newton     those whose file or replaced text contains one of these words

Edits go to a copy of the package in a temporary folder; the sources here are never touched. The kernels come along with
their compiled code: nothing is compiled again, and a run that outlives an edit of the kernels here cannot write stale
code into their cache. Every run is a fork (not on Windows) that has the libraries loaded already.
A developer's tool: pytest does not collect it. Exit code 1 if a mutant survives.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from mutant_edits import EDITS

ROOT = Path(__file__).resolve().parents[2]
#: Seconds after which a run counts as failed: an edit may make a loop endless.
PATIENCE = 600
#: Slow to import and not mutated. None of them may start threads, which a fork would lose.
PRELOAD = """
    h5py hypothesis numba numpy scipy.differentiate scipy.linalg scipy.optimize scipy.spatial.distance scipy.stats
    sklearn.linear_model sklearn.metrics sklearn.model_selection sklearn.neural_network sklearn.svm statsmodels.api
    l2ul_kernels.request.network l2ul_kernels.linear.logistic l2ul_kernels.mlp.anchored l2ul_kernels.mlp.hessian
    l2ul_kernels.mlp.adam l2ul_kernels.reference.sgd l2ul_kernels.request l2ul_kernels.sgd.descent
    l2ul_kernels.linear.softmax
"""


def copy_package(folder: Path) -> None:
    """The package, the kernels and the tests, in `folder`. Numba's caches come along, and their stamps stay valid."""
    for part in ("l2ul_fast", "kernels"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__", "fixtures"))
    shutil.copy2(ROOT / "pyproject.toml", folder)


def preload(folder: Path) -> None:
    """Import what the tests import, except what is mutated: every run is a fork that starts from here."""
    sys.path[:] = [
        str(folder),
        str(folder / "kernels"),
        *(p for p in sys.path if not p.startswith(str(ROOT / "tests"))),
    ]
    for name in PRELOAD.split():
        importlib.import_module(name)


def run_tests(folder: Path, names: tuple[str, ...]) -> tuple[int, str]:
    """(exit code of pytest, the test that failed first) of these test files on the copy."""
    report = folder / "report.txt"
    child = os.fork()
    if child == 0:
        with open(report, "w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        os._exit(_run_child(folder, [str(next((folder / "tests").rglob(f"test_{name}.py"))) for name in names]))
    end = time.monotonic() + PATIENCE
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 1, "no end"
        time.sleep(0.05)
    text = report.read_text()
    failed = [line.split(" - ")[0].split("::")[-1] for line in text.splitlines() if line.startswith("FAILED")]
    return os.waitstatus_to_exitcode(status), failed[0] if failed else text[-2000:]


def _run_child(folder: Path, files: list[str]) -> int:
    os.chdir(folder)
    sys.dont_write_bytecode = True  # an edit within a second of the last one must not meet its byte code
    for name in ("mutants", "mutant_edits"):
        sys.modules.pop(name, None)
    import l2ul_fast
    import l2ul_kernels

    for module in (l2ul_fast, l2ul_kernels):
        if not str(module.__file__).startswith(str(folder)):
            print(f"the copy is not what was imported: {module.__file__}")
            return 3
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rf", *files]))


def main(words: list[str]) -> int:
    chosen = [edit for edit in EDITS if not words or any(word in f"{edit.file} {edit.old}" for word in words)]
    stale = [e for e in chosen if (ROOT / "l2ul_fast" / e.file).read_text().count(e.old) != 1]
    for edit in stale:
        print(f"STALE     {edit.file}: {edit.old!r} does not occur exactly once", flush=True)
    chosen, survived, start = [e for e in chosen if e not in stale], 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        copy_package(folder)
        preload(folder)
        code, why = run_tests(folder, tuple(dict.fromkeys(t for e in chosen for t in e.tests)))
        if code != 0:
            print(f"the tests fail without any edit: {why}")
            return 1
        for edit in chosen:
            path = folder / "l2ul_fast" / edit.file
            source = path.read_text()
            path.write_text(source.replace(edit.old, edit.new))
            code, why = run_tests(folder, edit.tests)
            path.write_text(source)
            shown = f"{edit.file}: {' '.join(edit.old.split())} -> {' '.join(edit.new.split())}"
            if code == 1:
                print(f"killed    {shown}   [{why}]", flush=True)
            else:  # 0: all tests passed; anything else: they did not run at all, which proves nothing
                survived += 1
                print(f"SURVIVED  {shown}" + ("" if code == 0 else f"   (pytest ended with {code}: {why})"), flush=True)
    killed, seconds = len(chosen) - survived, time.monotonic() - start
    print(f"{killed} of {len(chosen)} mutants killed, {survived} survived, {len(stale)} stale, {seconds:.0f} s")
    return int(survived > 0 or len(stale) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
