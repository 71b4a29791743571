"""Importing, compiling, caching: in fresh interpreters, on other CPU targets, and with several processes at once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import l2ul_kernels

pytestmark = pytest.mark.compiled

CHECK = """
import numpy as np, l2ul_kernels as lk
from l2ul_kernels import reference
from l2ul_kernels.codegen import llvm
from l2ul_kernels.voronoi import driver
rng = np.random.default_rng(0)
for dtype in (np.float32, np.float64):
    for psi in PSIS:
        X = rng.integers(-4, 5, (400, 11)).astype(dtype)
        partitions = lk.Partitions.sample(X, 17, psi, random_state=0)
        cells = lk.assign_cells(X, partitions)
        assert (cells == reference.assign_cells(X, partitions.seeds)).all(), (dtype, psi)
        y = np.arange(400) % 2
        assert (lk.cell_counts(X, partitions, y) == reference.class_counts(cells, y, psi, 2)).all(), (dtype, psi)
        assert (lk.cell_counts(X, partitions) == reference.cell_counts(cells, psi)).all(), (dtype, psi)
"""
AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2"
AVX512 = AVX2 + ",+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd"


def test_import_needs_no_heavy_package(run_python):
    run_python(
        "import sys\n"
        "for name in 'torch h5py sklearn scipy pandas l2ul_fast typer rich'.split(): sys.modules[name] = None\n"
        "import numpy as np, l2ul_kernels as lk\n"
        "X = np.eye(8, dtype='f'); p = lk.Partitions.sample(X, 3, 2, 0)\n"
        "assert lk.cell_counts(X, p).sum() == 24 and lk.assign_cells(X, p).shape == (8, 3)\n"
    )


def test_import_prints_nothing_and_leaves_the_environment_alone(run_python):
    code = "import os, numba; before = dict(os.environ), numba.config.THREADING_LAYER\n"
    code += "import l2ul_kernels; assert before == (dict(os.environ), numba.config.THREADING_LAYER)"
    assert run_python(code) == ""


@pytest.mark.skipif(sys.platform != "linux" or "x86" not in __import__("platform").machine(), reason="x86 targets")
@pytest.mark.parametrize(
    ("name", "features", "vector", "register"), [("haswell", AVX2, 32, "%ymm"), ("x86-64", "+sse,+sse2", 16, "%xmm")]
)
def test_right_on_lesser_cpus(run_python, tmp_path, name, features, vector, register):
    code = CHECK.replace("PSIS", "(2, 3, 4, 6, 300)")
    code += f"""
assert llvm.VECTOR_BYTES == {vector}
asm = next(iter(driver.cells_of_tile.inspect_asm().values()))
assert "{register}" in asm and "%zmm" not in asm
"""
    if name == "x86-64":
        code += "assert '%ymm' not in asm and 'vfmadd' not in asm and 'fmaf' not in asm\n"
    run_python(code, NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=features, NUMBA_CACHE_DIR=str(tmp_path), L2UL_CACHE="0")


@pytest.mark.skipif("x86" not in __import__("platform").machine(), reason="x86 target")
def test_compiles_to_full_registers_for_avx512(run_python):
    """Compiled, not run: the machine at hand may not have it."""
    out = run_python(
        """
import numpy as np, numba, re, l2ul_kernels as lk
from l2ul_kernels.codegen import llvm
from l2ul_kernels.voronoi import driver
from l2ul_kernels.voronoi.driver import RowView, cells_of_tile
assert llvm.VECTOR_BYTES == 64
seeds = lk.Partitions.from_seeds(np.eye(4, dtype="f")[None]).packed(np.dtype("f"))
tile, cells, no_counts = np.empty((16, 64), "f"), np.empty((1, 64), np.uint8), np.empty(0, np.int64)
cells_of_tile.compile(tuple(map(numba.typeof, (RowView(0, 0, 0, 0), 0, seeds, tile, cells, no_counts))))
asm = next(iter(cells_of_tile.inspect_asm().values()))
line = r"\\t(?:vfmadd231ps[^\\n]*zmm|vmov|vbroadcast|add)[^\\n]*\\n"
loop = max(re.findall(f"(?:{line})+", asm), key=len)
print(loop.count("vfmadd"), loop.count("(%rsp)"))
""",
        NUMBA_CPU_NAME="skylake-avx512",
        NUMBA_CPU_FEATURES=AVX512,
        L2UL_CACHE="0",
    )
    multiplications, spills = map(int, out.split())
    assert multiplications >= 12
    assert spills == 0


def test_processes_that_compile_at_once_do_not_disturb_each_other(tmp_path):
    code = CHECK.replace("PSIS", "(4, 300)")
    env = {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": "2", "PATH": ""}
    runs = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for run in runs:
        _, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors
    assert list(tmp_path.rglob("*.nbc"))


def test_cache_is_used_and_any_edit_of_the_package_renews_it(run_python, tmp_path):
    package = tmp_path / "l2ul_kernels"
    shutil.copytree(Path(l2ul_kernels.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    code = """
import numpy as np, l2ul_kernels as lk
from l2ul_kernels.voronoi.driver import cells_of_tile as work
lk.cell_counts(np.eye(4, dtype="f"), lk.Partitions.sample(np.eye(4, dtype="f"), 1, 2, 0))
print(sum(work.stats.cache_hits.values()), sum(work.stats.cache_misses.values()))
"""
    env = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert run_python(code, **env).split() == ["0", "1"]
    assert run_python(code, **env).split() == ["1", "0"]
    with open(package / "codegen" / "llvm.py", "a") as file:  # not the file that holds the kernel
        file.write("\n# edited\n")
    assert run_python(code, **env).split() == ["0", "1"]
    driver = package / "voronoi" / "driver.py"  # a cached index names the types of arguments
    driver.write_text(driver.read_text().replace("RowView", "View"))
    assert run_python(code, **env).split() == ["0", "1"]
    files = {f: f.stat().st_mtime_ns for f in (tmp_path / "cache").rglob("*.nb?")}
    assert run_python(code, **env, L2UL_CACHE="0").split()[0] == "0"
    assert files == {f: f.stat().st_mtime_ns for f in (tmp_path / "cache").rglob("*.nb?")}


def test_warmup_leaves_nothing_to_compile(run_python):
    run_python(
        """
import numpy as np, l2ul_kernels as lk
from l2ul_kernels.voronoi import driver
lk.warmup(float64=False, many_seeds=False)
names = "cells_of_tile assign_worker assign_workers count_worker count_workers"
kernels = [getattr(driver, name) for name in names.split()]
before = [len(k.signatures) for k in kernels]
X = np.zeros((driver.SERIAL // 8 + 1, 2), np.float32)
p = lk.Partitions.from_seeds(np.arange(8, dtype=np.float32).reshape(1, 4, 2))
frozen = X.copy(); frozen.setflags(write=False)
for rows in (X, X[:5], frozen, np.asfortranarray(X)):
    lk.assign_cells(rows, p); lk.cell_counts(rows, p, np.zeros(len(rows), int))
assert before == [len(k.signatures) for k in kernels] == [1] * 5
"""
    )
