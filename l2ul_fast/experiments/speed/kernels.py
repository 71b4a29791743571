"""Our kernels beside every peer and beside the machine's own matrix product, over the shapes of the seven datasets.

One job is (d, psi); the runner starts one process for every number of threads. In a job all candidates take turns (see
timing.interleave), each on as many of the same rows as fit its time slice. Rates count 2 * d * psi * t operations per
row for everyone: what a matrix product of that shape does. Ours needs only psi - 1 dot products per partition, which is
how it can pass the product's own speed; `arithmetic_share` in a record is the part of those operations it performs.

Task "cold-start": import, first call without ("cold") and with ("cached") the on-disk cache, and a steady call on one
row, in fresh interpreters.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np

from l2ul_fast.datasets.registry import REGISTRY
from l2ul_fast.experiments.registry import Cell, Context, Experiment, Job, by_profile, register
from l2ul_fast.experiments.speed.peers import COMPARABLE, PEERS
from l2ul_fast.measure.records import Record, info, metric
from l2ul_fast.measure.timing import PAUSE, interleave, once
from l2ul_kernels import Partitions, assign_cells, cell_counts, reference

DIMENSIONS = tuple(sorted({found.d for found in REGISTRY.values()}))
SEEDS = (2, 4, 16, 64, 256)
T = 100
PEAK = "sgemm peak"
SHAPE = "sgemm of this shape"
COUNTS = "l2ul cell_counts"
ASSIGN = "l2ul assign_cells"
#: Side of the square matrices of the yardstick: the fastest of 1024, 1536, 2048 and 3072 here, one thread and two.
PEAK_SIZE = 1536
#: Our own calls take about as long as the yardstick's, so that waking a sleeping thread weighs the same on both.
OUR_SECONDS = 0.05
COLD_START = "cold-start"


def jobs(context: Context) -> Iterator[Job]:
    """The grid, and the cold start."""
    numbers = context.numbers
    common = {"dataset": "synthetic", "t": T, "dtype": "float32"}
    for d in numbers["d"]:
        for psi in numbers["psi"]:
            methods = (PEAK, SHAPE, COUNTS, ASSIGN, *PEERS)
            cells = tuple({**common, "d": d, "psi": psi, "method": method} for method in methods)
            yield Job(f"d={d} psi={psi}", cells, partial(measure, context), seconds=8.0)
    states = [("cold", 0), *(("cached", repeat) for repeat in range(numbers["starts"]))]
    base = {"experiment": COLD_START, "task": COLD_START}
    starts = tuple({**base, "method": state, "repeat": repeat} for state, repeat in states)
    yield Job("cold start", starts, cold_start, seconds=10.0)


def measure(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """All candidates of one (d, psi) in turn."""
    d, psi, numbers = cells[0]["d"], cells[0]["psi"], context.numbers
    peers = [name for name in PEERS if any(cell["method"] == name for cell in cells)]
    found = {r["method"]: r for r in measure_cell(d, psi, context.threads, numbers["repeats"], numbers["slice"], peers)}
    for cell in cells:
        yield {**cell, **found[cell["method"]]}


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
    d: int, psi: int, threads: int, repeats: int, slice_seconds: float, peers: Iterable[str]
) -> Iterator[Record]:
    """Every candidate with its rate, or with why it is missing; the caller has set the number of threads.

    Raises
    ------
    AssertionError
        If our cells differ from the oracle's in more than one of a thousand.
    """
    rng = np.random.default_rng([d, psi])
    most = int(np.clip(OUR_SECONDS * 80e9 * threads / (2 * d * psi * T), 2048, 400_000))
    X = rng.standard_normal((most, d), dtype=np.float32)
    partitions = Partitions.sample(X, T, psi, random_state=0)
    seeds = partitions.seeds
    flops = 2.0 * d * psi * T

    sample = X[:200]
    cells = assign_cells(sample, partitions)
    wrong = float((cells != reference.assign_cells(sample, seeds)).mean())
    if wrong > 1e-3:
        raise AssertionError(f"d={d}, psi={psi}: {wrong:.2%} of the cells differ from the oracle")

    gemm, gemm_flops = _sgemm(PEAK_SIZE if threads <= 8 else 2 * PEAK_SIZE)
    flat = np.ascontiguousarray(seeds.reshape(-1, d).T)
    product = np.empty((min(most, 8192), T * psi), np.float32)
    out = np.empty((most, T), np.uint8)
    calls: dict[str, Callable[[], object]] = {
        PEAK: gemm,
        SHAPE: lambda: np.matmul(X[: len(product)], flat, out=product),
        COUNTS: lambda: cell_counts(X, partitions),
        ASSIGN: lambda: assign_cells(X, partitions, out=out),
    }
    rows = {SHAPE: len(product), COUNTS: most, ASSIGN: most}
    extra: dict[str, Record] = {
        name: {"oracle_difference": wrong, "arithmetic_share": (psi - 1) / psi} for name in (COUNTS, ASSIGN)
    }
    base: Record = {"source": "synthetic:standard normal", "d": d, "psi": psi}
    for name in peers:
        try:
            call = PEERS[name](X, seeds, threads)
            rows[name] = _rows_in(call, most, slice_seconds)
        except ImportError as error:
            yield {**base, "method": name, "status": f"not installed ({error.name})"}
            continue
        calls[name] = partial(call, rows[name])
        if name in COMPARABLE:
            extra[name] = {"differs_from_ours": float((np.asarray(call(200)) != cells).mean())}
    for warm in calls.values():
        warm()
    times = interleave(calls, repeats, pause=PAUSE if threads > 1 else 0.0)

    rates = {name: (flops * rows[name] if name in rows else gemm_flops) / times[name].median for name in calls}
    for name, taken in times.items():
        yield {
            **base,
            "method": name,
            "rows": rows.get(name),
            **taken.facts,
            "gflops": rates[name] / 1e9,
            "fraction_of_peak": rates[name] / rates[PEAK],
            "rows_per_second": rates[name] / flops if name in rows else None,
            **extra.get(name, {}),
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


def cold_start(cells: tuple[Cell, ...]) -> Iterator[Record]:
    """An interpreter for each cell; all share a cache that is empty before the first."""
    with TemporaryDirectory() as folder:
        order = [sys.executable, "-c", COLD]
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}

        def start() -> Record:
            done = subprocess.run(order, env=environment, capture_output=True, text=True, check=True)
            return dict(json.loads(done.stdout))

        first = start()
        for cell in cells:
            yield {**cell, **(first if cell["method"] == "cold" else start())}


NUMBERS = {"d": ((3,), DIMENSIONS), "psi": ((4,), SEEDS), "repeats": (1, 7), "slice": (0.001, 0.015), "starts": (1, 5)}
STARTS = ("import_numpy", "import_numba", "import_ours", "import_all", "first_call", "one_row_call")

register(
    Experiment(
        name="kernels",
        title="Kernels",
        help="Our kernels beside every peer and the machine's matrix product.",
        profiles=by_profile(NUMBERS),
        jobs=jobs,
        figure="l2ul_fast.report.figures.kernels:FIGURE",
        fields={
            "rows": info("rows of one call", (int,)),
            "gflops": metric("2 * d * psi * t operations per row and second", "GF/s", "higher"),
            "fraction_of_peak": metric("rate over that of the matrix product of the machine", better="higher"),
            "oracle_difference": info("share of the cells that differ from the oracle's"),
            "arithmetic_share": info("share of the counted operations that are performed"),
            "differs_from_ours": info("share of the cells that differ from ours"),
            **{name: metric("of a fresh interpreter", "s") for name in STARTS},
        },
        records=("cold-start", "nan-check"),
        datasets=("synthetic",),
        in_all=False,
        order=110,
        each_thread_count=True,
    )
)
