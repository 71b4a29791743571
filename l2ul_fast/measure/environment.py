"""What a measurement depends on besides the code: machine, versions, threads."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numba

from l2ul_kernels.codegen import jit, llvm
from l2ul_kernels.threads import available_cores, report

PACKAGES = """
    l2ul-fast numpy numba llvmlite scipy scikit-learn torch h5py hdf5plugin faiss-cpu ikpykit distributed asv
    pytest-benchmark
"""


def cpu_model() -> str:
    """The CPU's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def git_sha() -> str | None:
    """Commit of the checkout this package runs from, with + when files differ from it; None outside a checkout."""
    order = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        found = subprocess.run(order, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def steal() -> tuple[float, float] | None:
    """(seconds for which the host kept this machine's cores from running, seconds of all cores) since its start, or
    None where the system does not say: only Linux does, and a machine that is not virtual has none stolen."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return None
    ticks = [int(word) for word in line.split()[1:9]]  # guests' time, which follows, is counted among users' too
    return ticks[7] / os.sysconf("SC_CLK_TCK"), sum(ticks) / os.sysconf("SC_CLK_TCK")


class StealMeter:
    """The share of all cores' time that the host took since the meter was made, or was asked last."""

    def __init__(self) -> None:
        self._last = steal()

    def share(self) -> float | None:
        """From 0 to 1; None where the system does not say."""
        before, self._last = self._last, steal()
        if before is None or self._last is None:
            return None
        stolen, whole = (now - then for now, then in zip(self._last, before, strict=True))
        return stolen / whole if whole > 0 else 0.0


def versions() -> dict[str, str | None]:
    """Installed version of every package that matters for speed; None when it is not there."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES.split():
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def describe() -> dict[str, Any]:
    """Everything, as JSON-ready values."""
    try:
        import psutil

        memory = round(psutil.virtual_memory().total / 2**30, 1)
    except ImportError:
        memory = None
    return {
        "git": git_sha(),
        "cpu": cpu_model(),
        "cores": available_cores(),
        "memory_gib": memory,
        "system": platform.platform(),
        "vector_bytes": llvm.VECTOR_BYTES,
        "numba_num_threads": numba.config.NUMBA_NUM_THREADS,
        "kernel_cache": jit.cache_place(),
        "threads": report(),
        "versions": versions(),
    }
