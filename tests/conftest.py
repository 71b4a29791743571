"""Shared by all tests: how to run code in a fresh interpreter."""

import os
import subprocess
import sys

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of two processes that wait in a loop take the cores from each other's work: a quarter of all CPU time.
    os.environ |= {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    """No real syncs: tests of what survives a loss of power (support/faults.py) keep books of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        patch.setattr(os, "fdatasync", lambda fd: None)
        yield


@pytest.fixture
def run_python(tmp_path):
    """run_python(code, **environment) -> stdout of a fresh interpreter; a non-zero exit fails with its stderr."""

    def run(code: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run
