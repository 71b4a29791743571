"""Our kernels beside every peer and beside the machine's own matrix product, over the shapes of the seven datasets.

One cell of the grid is (d, psi, threads). In a cell all candidates take turns (see timing.interleave), each on as many
of the same rows as fit its time slice. Rates count 2 * d * psi * t operations per row for everyone: what a matrix
product of that shape does. Ours needs only psi - 1 dot products per partition, which is how it can pass the product's
own speed; `arithmetic_share` in a record is the part of those operations it really performs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from l2ul_fast.experiments.speed.peers import COMPARABLE, PEERS
from l2ul_fast.measure.records import Record, Run
from l2ul_fast.measure.timing import PAUSE, interleave, once
from l2ul_kernels import Partitions, assign_cells, cell_counts, reference, threads
from l2ul_kernels.threads import thread_limit

#: d of magic, adult, sepsis, skin, covtype, susy and higgs.
DIMENSIONS = (3, 10, 14, 18, 28, 54, 89)
SEEDS = (2, 4, 16, 64, 256)
T = 100
PEAK = "sgemm peak"
SHAPE = "sgemm of this shape"
#: Side of the square matrices of the yardstick: the fastest of 1024, 1536, 2048 and 3072 here, one thread and two.
PEAK_SIZE = 1536
#: Our own calls take about as long as the yardstick's, so that waking a sleeping thread weighs the same on both.
OUR_SECONDS = 0.05
COUNTS = "l2ul cell_counts"
ASSIGN = "l2ul assign_cells"


def thread_counts(limit: int) -> list[int]:
    """1, 2, 4, ... and all."""
    counts = [1]
    while counts[-1] * 2 < limit:
        counts.append(counts[-1] * 2)
    return counts if limit == 1 else [*counts, limit]


def _sgemm(n: int) -> tuple[Callable[[], object], float]:
    rng = np.random.default_rng(0)
    a, b = (rng.random((n, n), dtype=np.float32) for _ in range(2))
    out = np.empty_like(a)
    return lambda: np.matmul(a, b, out=out), 2.0 * n**3


def _rows_in(call: Callable[[int], object], most: int, seconds: float) -> int:
    """Rows for one timed call of a peer: about that time, but 4096 rows where they take less than 0.15 s.

    Peers that start threads or check arguments once per partition need that many rows for their overhead not to count.
    """
    n = min(256, most)
    call(n)
    per_row = min(once(partial(call, n)) for _ in range(2)) / n
    n = int(np.clip(0.15 / per_row, n, min(4096, most)))
    per_row = min(once(partial(call, n)) for _ in range(2)) / n  # again, with the overhead spread over more rows
    return int(np.clip(max(seconds, min(4096 * per_row, 0.15)) / per_row, min(256, most), most))


def measure_cell(
    d: int, psi: int, k: int, repeats: int, slice_seconds: float, peers: Iterable[str]
) -> Iterator[Record]:
    """Records of one cell of the grid: every candidate with its rate, or with why it is missing."""
    base: Record = {
        "experiment": "kernels",
        "dataset": "synthetic",
        "source": "synthetic:standard normal",
        "d": d,
        "psi": psi,
        "t": T,
        "threads": k,
        "dtype": "float32",
    }
    rng = np.random.default_rng([d, psi])
    most = int(np.clip(OUR_SECONDS * 80e9 * k / (2 * d * psi * T), 2048, 400_000))
    X = rng.standard_normal((most, d), dtype=np.float32)
    partitions = Partitions.sample(X, T, psi, random_state=0)
    seeds = partitions.seeds
    flops = 2.0 * d * psi * T

    with threads(k):
        sample = X[:200]
        cells = assign_cells(sample, partitions)
        wrong = float((cells != reference.assign_cells(sample, seeds)).mean())
        if wrong > 1e-3:
            raise AssertionError(f"d={d}, psi={psi}: {wrong:.2%} of the cells differ from the oracle")

        gemm, gemm_flops = _sgemm(PEAK_SIZE if k <= 8 else 2 * PEAK_SIZE)
        flat = np.ascontiguousarray(seeds.reshape(-1, d).T)
        product = np.empty((min(most, 8192), T * psi), np.float32)
        out = np.empty((most, T), np.uint8)
        calls: dict[str, Callable[[], object]] = {
            PEAK: gemm,
            SHAPE: lambda: np.matmul(X[: len(product)], flat, out=product),
            COUNTS: lambda: cell_counts(X, partitions),
            ASSIGN: lambda: assign_cells(X, partitions, out=out),
        }
        work = {PEAK: gemm_flops, SHAPE: flops * len(product), COUNTS: flops * most, ASSIGN: flops * most}
        rows = {PEAK: 0, SHAPE: len(product), COUNTS: most, ASSIGN: most}
        extra: dict[str, Record] = {name: {} for name in calls}
        for name in (COUNTS, ASSIGN):
            extra[name] = {"oracle_difference": wrong, "arithmetic_share": (psi - 1) / psi}
        for name in peers:
            try:
                call = PEERS[name](X, seeds, k)
                fits = _rows_in(call, most, slice_seconds)
            except ImportError as error:
                yield {**base, "method": name, "status": f"not installed ({error.name})"}
                continue
            calls[name] = lambda call=call, fits=fits: call(fits)  # type: ignore[misc]
            work[name], rows[name] = flops * fits, fits
            same = np.asarray(call(200)) if name in COMPARABLE else None
            extra[name] = {} if same is None else {"differs_from_ours": float((same != cells).mean())}
        for call_now in calls.values():
            call_now()
        times = interleave(calls, repeats, pause=PAUSE if k > 1 else 0.0)

    peak = work[PEAK] / times[PEAK].median
    for name, taken in times.items():
        rate = work[name] / taken.median
        yield {
            **base,
            "method": name,
            "status": "ok",
            "n": rows[name],
            "seconds": taken.seconds,
            "spread": taken.spread,
            "gflops": rate / 1e9,
            "of_peak": rate / peak,
            "rows_per_second": rate / flops if rows[name] else None,
            **extra[name],
        }


COLD = """
import json, sys, time
start = time.perf_counter()
import numpy as np
numpy_done = time.perf_counter()
import numba
numba_done = time.perf_counter()
import l2ul_kernels as lk
imported = time.perf_counter()
X = np.random.default_rng(0).standard_normal((1000, 28), dtype=np.float32)
partitions = lk.Partitions.sample(X, 100, 4, 0)
begin = time.perf_counter()
lk.cell_counts(X[:10], partitions)
first = time.perf_counter()
steady = []
for _ in range(200):
    now = time.perf_counter(); lk.cell_counts(X[:1], partitions); steady.append(time.perf_counter() - now)
print(json.dumps({"import_numpy": numpy_done - start, "import_numba": numba_done - numpy_done,
    "import_ours": imported - numba_done, "import_all": imported - start, "first_call": first - begin,
    "one_row_call": sorted(steady)[100]}))
"""


def cold_start(repeats: int = 5) -> Iterator[Record]:
    """Import, first call without and with the on-disk cache, and a steady call on one row, in fresh interpreters."""
    import os

    with tempfile.TemporaryDirectory() as folder:
        for state in ["cold"] + ["cached"] * repeats:
            done = subprocess.run(
                [sys.executable, "-c", COLD],
                env={**os.environ, "NUMBA_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=True,
            )
            yield {"experiment": "cold-start", "method": state, "status": "ok", **json.loads(done.stdout)}


def check_cost(repeats: int = 41) -> Record:
    """What looking for NaN costs. In an interpreter of its own, without the on-disk cache: a kernel that does not look
    must never be what this process, or a later one, runs."""
    import os

    code = f"import json; from {__name__} import _check_cost; print(json.dumps(_check_cost({repeats})))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "L2UL_CACHE": "0"}, capture_output=True, text=True, check=True
    )
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found


def _check_cost(repeats: int) -> Record:
    """The kernel compiled with and without the check, taking turns (d=28, psi=4). Leaves the one without it behind."""
    from l2ul_kernels.voronoi import driver, tile

    X = np.random.default_rng(0).standard_normal((50_000, 28), dtype=np.float32)
    partitions = Partitions.sample(X, T, 4, random_state=0)
    versions: dict[str, dict[Any, int]] = {}
    kept: list[Any] = []  # compiled code lives as long as its overload
    with threads(1):
        expected = cell_counts(X, partitions)
        try:
            for name, check in (("with", True), ("without", False)):
                tile.CHECK_VALUES = check
                driver.cells_of_tile.disable_compile(False)
                driver.cells_of_tile.recompile()
                driver.tile_entries.clear()
                cell_counts(X[:1], partitions)
                versions[name] = dict(driver.tile_entries)
                kept += driver.cells_of_tile.overloads.values()

            def timed(version: Any) -> Callable[[], object]:
                def call() -> object:
                    driver.tile_entries.update(version)
                    return cell_counts(X, partitions)

                return call

            calls = {name: timed(version) for name, version in versions.items()}
            for call in calls.values():
                np.testing.assert_array_equal(call(), expected)
            times = interleave(calls, repeats)
        finally:
            driver.tile_entries.update(versions["with"])
            tile.CHECK_VALUES = True
    return {
        "experiment": "nan-check",
        "method": "cell_counts",
        "status": "ok",
        "d": 28,
        "psi": 4,
        "threads": 1,
        "cost": times["with"].median / times["without"].median - 1,
        "spread": times["with"].spread,
    }


def run_grid(
    run: Run,
    dimensions: Iterable[int] = DIMENSIONS,
    seeds: Iterable[int] = SEEDS,
    thread_list: Iterable[int] | None = None,
    repeats: int = 7,
    slice_seconds: float = 0.015,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> None:
    """Measure every cell that `run` does not hold yet, then cold start and the cost of the NaN check."""
    grid = [(k, d, psi) for k in (thread_list or thread_counts(thread_limit())) for d in dimensions for psi in seeds]
    total = len(grid) + 2
    for done, (k, d, psi) in enumerate(grid):
        progress(f"d={d} psi={psi} threads={k}", done, total)
        if not run.has(experiment="kernels", d=d, psi=psi, threads=k, method=ASSIGN):
            for record in measure_cell(d, psi, k, repeats, slice_seconds, PEERS):
                run.append(record)
    progress("cold start", len(grid), total)
    if not run.has(experiment="cold-start", method="cached"):
        for record in cold_start():
            run.append(record)
    progress("NaN check", len(grid) + 1, total)
    if not run.has(experiment="nan-check"):
        run.append(check_cost())
    progress("done", total, total)
