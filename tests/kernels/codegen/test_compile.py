"""Importing, compiling, caching: in fresh interpreters, on other CPU targets, and with several processes at once."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import l2ul_kernels

pytestmark = pytest.mark.compiled
x86 = pytest.mark.skipif(sys.platform != "linux" or "x86" not in platform.machine(), reason="x86 targets")
slow = pytest.mark.slow

CHECK = """
import numpy as np, l2ul_kernels as lk
from l2ul_kernels import reference
from l2ul_kernels.codegen import llvm
from l2ul_kernels.voronoi import driver
rng = np.random.default_rng(0)
for dtype in DTYPES:
    for psi in PSIS:
        X = rng.integers(-4, 5, (400, 11)).astype(dtype)
        partitions = lk.Partitions.sample(X, 17, psi, random_state=0)
        cells = lk.assign_cells(X, partitions)
        assert (cells == reference.assign_cells(X, partitions.seeds)).all(), (dtype, psi)
        y = np.arange(400) % 2
        assert (lk.cell_counts(X, partitions, y) == reference.class_counts(cells, y, psi, 2)).all(), (dtype, psi)
        assert (lk.cell_counts(X, partitions) == reference.cell_counts(cells, psi)).all(), (dtype, psi)
"""
#: One element type and one thread; all of them with all threads and two bytes per cell.
FEW, ALL = ("'f'", "(2, 3, 4, 6)"), ("'fd'", "(2, 3, 4, 6, 300)")
AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2"
AVX512 = AVX2 + ",+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd"


def check(dtypes, psis):
    return CHECK.replace("DTYPES", dtypes).replace("PSIS", psis)


def test_import_needs_no_heavy_package_prints_nothing_and_leaves_the_environment_alone(run_python):
    code = (
        "import sys, os, numba\n"
        "for name in 'torch h5py sklearn scipy pandas l2ul_fast typer rich'.split(): sys.modules[name] = None\n"
        "before = dict(os.environ), numba.config.THREADING_LAYER\n"
        "import numpy as np, l2ul_kernels as lk\n"
        "assert before == (dict(os.environ), numba.config.THREADING_LAYER)\n"
        "X = np.eye(8, dtype='f'); p = lk.Partitions.sample(X, 3, 2, 0)\n"
        "assert lk.cell_counts(X, p).sum() == 24 and lk.assign_cells(X, p).shape == (8, 3)\n"
    )
    assert run_python(code) == ""


@x86
@pytest.mark.parametrize("what", [FEW, pytest.param(ALL, marks=slow)], ids=["few", "all"])
@pytest.mark.parametrize(
    ("name", "features", "vector", "register"),
    [("haswell", AVX2, 32, "%ymm"), ("x86-64", "+sse,+sse2", 16, "%xmm")],
    ids=["haswell", "x86-64"],
)
def test_right_on_lesser_cpus(run_python, name, features, vector, register, what):
    code = check(*what)
    code += f"""
assert llvm.VECTOR_BYTES == {vector}
asm = next(iter(driver.cells_of_tile.inspect_asm().values()))
assert "{register}" in asm and "%zmm" not in asm
"""
    if name == "x86-64":
        code += "assert '%ymm' not in asm and 'vfmadd' not in asm and 'fmaf' not in asm\n"
    run_python(code, NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=features, L2UL_CACHE="0")


@x86
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


# The cache: on a package of one small kernel, and (slow) on the whole one ---------------------------------------------

#: In the place of the package, beside its own decorator: a kernel whose argument is a NamedTuple of the package.
TINY = """
from typing import NamedTuple
from l2ul_kernels.codegen.jit import ensure_compiled, kernel
class RowView(NamedTuple):
    n: int
@kernel()
def work(view, x):
    return x * view.n
def call(x):
    ensure_compiled(type(x), lambda: work(RowView(0), x))
    return work(RowView(3), x)
"""
CALLS_OF_TINY = """
from l2ul_kernels.tiny import call, work
assert [call(x) for x in NUMBERS] == [3 * x for x in NUMBERS]
"""
CALL = """
import numpy as np, l2ul_kernels as lk
from l2ul_kernels.voronoi.driver import cells_of_tile as work
lk.cell_counts(np.eye(4, dtype="f"), lk.Partitions.sample(np.eye(4, dtype="f"), 1, 2, 0))
"""
#: Starts when told to, and makes numba slow in writing the index and a file of its cache: the other one comes between.
TOGETHER = """
import sys, time
from numba.core.caching import IndexDataCacheFile as File
def later(save, delay):
    return lambda *what: (time.sleep(float(delay)), save(*what))
File._save_index, File._save_data = map(later, (File._save_index, File._save_data), sys.argv[1:])
import l2ul_kernels.codegen.jit
print(flush=True), input()
"""
STATS = "print(sum(work.stats.cache_hits.values()), sum(work.stats.cache_misses.values()))"


@pytest.fixture(params=["tiny", pytest.param("whole", marks=slow)])
def package(request, tmp_path):
    """The folder of a copy of the package, or of one of its name with the decorator and a small kernel."""
    source, folder = Path(l2ul_kernels.__file__).parent, tmp_path / "l2ul_kernels"
    if request.param == "whole":
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        (folder / "codegen").mkdir(parents=True)
        shutil.copy(source / "codegen" / "jit.py", folder / "codegen")
        (folder / "__init__.py").touch()
        (folder / "tiny.py").write_text(TINY)
    return folder


def is_tiny(package):
    return (package / "tiny.py").exists()


def own_cache(package):
    return {"PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(package.parent / "cache")}


def test_cache_is_used_and_any_edit_of_the_package_renews_it(run_python, package):
    tiny, cache = is_tiny(package), package.parent / "cache"
    code, count = (CALLS_OF_TINY.replace("NUMBERS", "(2, 0.5)"), "2") if tiny else (CALL, "1")
    hit, missed = [count, "0"], ["0", count]

    def stats(**more):
        return run_python(code + STATS, **own_cache(package), **more).split()

    assert stats() == missed
    assert stats() == hit
    with open(package / "codegen" / "jit.py", "a") as file:  # not the file that holds the kernel
        file.write("\n# edited\n")
    assert stats() == missed
    holder = package / ("tiny.py" if tiny else "voronoi/driver.py")  # a cached index names the types of arguments
    holder.write_text(holder.read_text().replace("RowView", "View"))
    assert stats() == missed
    files = {f: f.stat().st_mtime_ns for f in cache.rglob("*.nb?")}
    assert files
    assert stats(L2UL_CACHE="0")[0] == "0"
    assert files == {f: f.stat().st_mtime_ns for f in cache.rglob("*.nb?")}


def test_processes_that_compile_at_once_do_not_disturb_each_other(run_python, package):
    """Two signatures in either order: without a lock, numba's index has the one and its file the other."""
    tiny, pipe = is_tiny(package), subprocess.PIPE
    codes = [CALLS_OF_TINY.replace("NUMBERS", numbers) for numbers in ("(2, 0.5)", "(0.5, 2)")]
    codes = codes if tiny else 2 * [check("'fd'", "(4, 300)")]
    env, delays = {**own_cache(package), "NUMBA_NUM_THREADS": "2", "PATH": ""}, [("0.1", "0.3"), ("0.2", "0")]
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER + c, *d], env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        for c, d in zip(codes, delays, strict=True)
    ]
    for run in runs:
        run.stdout.readline()  # imported
    for run in runs:
        print(file=run.stdin, flush=True)
    for run in runs:
        _, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors
    if tiny:
        assert run_python(codes[0] + STATS, **env).split() == ["2", "0"]
    assert list((package.parent / "cache").rglob("*.nbc"))


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
