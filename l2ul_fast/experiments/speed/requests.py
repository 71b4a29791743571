"""How long requests take: one row beside an expert's Newton step and torch, until erased, under attack; and the fit.

unlearn-latency  single calls of `u.unlearn([row])` and of its peers, which all take turns in one run on one thread;
                 ratio: p50 over that of "newton-numba"
unlearn-flat     a long stream of single requests on one unlearner, by order and block
unlearn-times    answer_seconds, and erased_seconds: until nothing kept in memory, journal or directory gives the
                 rows back (None: never)
unlearn-durable  `u.unlearn([row])` and `u.save(directory, defer=True)`; plain_seconds: writing 4 KB and fsync beside
unlearn-slow     requests chosen to make the server work; tiers {name: count}; due: how many left a pass due, and
                 refresh_seconds of these passes in total
unlearn-fit      a whole `fit(path)` and its parts, or one pass of sums
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from l2ul_fast.baselines.base import Ids, Vector
from l2ul_fast.baselines.l2ul import DEFAULT, HEADS, Scratch, plain, quiet, request
from l2ul_fast.datasets.registry import get_info
from l2ul_fast.experiments.inputs import (
    all_rows,
    dataset_file,
    original_file,
    some_rows,
    standin_rows,
    tables,
    train_size,
)
from l2ul_fast.experiments.quality.heads import expansion_of, shifts, widths
from l2ul_fast.experiments.registry import Cell, Context, Job
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import clocked, interleave, once
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import ArrayTable, FileTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.passes import LocalPasses
from l2ul_kernels import threads
from l2ul_kernels.request import expansion as kernels

LATENCY, FLAT, TIMES = "unlearn-latency", "unlearn-flat", "unlearn-times"
DURABLE, SLOW, FIT = "unlearn-durable", "unlearn-slow", "unlearn-fit"
#: The expert's Newton step, and the paper's network.
PEER, TORCH = "newton-numba", "torch-eager"
OURS = {order: f"{DEFAULT}, order {order}" for order in (2, 3)}
IDLE = "idle loop, as long as order 3"
LAM = 1e-3
#: Calls of one contender in a row: those before the timed ones of a turn, the timed ones, and those before all.
SETTLE, TURN, WARM = 5, 100, 300
#: Blocks that a long stream is looked at in.
BLOCKS = 10


# One row -------------------------------------------------------------------------------------------------------------


@numba.njit(fastmath=True, error_model="numpy", cache=True)
def newton_downdate(X, y, row, lam, theta, inverse, work):  # type: ignore[no-untyped-def]
    """What an expert writes: one Newton step without a row, and the inverse (p, p) of the summed Hessian downdated.

    theta (p,) and inverse change in place; work (4, p) is scratch. Nothing is checked, recorded or overwritten.
    """
    x, total, hx, step = work[0], work[1], work[2], work[3]
    p = theta.size
    x[: p - 1], x[p - 1] = X[row], 1.0
    s = 1.0 / (1.0 + np.exp(-(x * theta).sum()))
    e, w = s - y[row], s * (1.0 - s)
    for j in range(p):
        total[j] = e * x[j] + (lam * theta[j] if j < p - 1 else 0.0)
    held, dot = 0.0, 0.0
    for j in range(p):
        hx[j], step[j] = (inverse[j] * x).sum(), (inverse[j] * total).sum()
        held, dot = held + x[j] * hx[j], dot + total[j] * hx[j]
    gain = w / (1.0 - w * held)
    for j in range(p):
        theta[j] += step[j] + gain * dot * hx[j]
        for k in range(p):
            inverse[j, k] += gain * hx[j] * hx[k]
    return theta


def newton_expert(u: L2UL, X: NDArray[Any], y: NDArray[Any], rows: Iterator[int]) -> Callable[[], object]:
    """One call is one request to the expert's function, which starts from the same model as u."""
    model = u.model
    theta = np.asarray(model.fit((X, y), start=u.theta).theta)
    inverse, work = np.linalg.inv(len(X) * model.hessian(theta, X, y)), np.empty((4, theta.size))
    take = rows.__next__
    return lambda: newton_downdate(X, y, take(), LAM, theta, inverse, work)


def torch_network(p: int, inputs: int) -> Callable[[], object]:
    """One call of the paper's network (256, 64, ReLU) in eager torch on one thread, its input ready-made."""
    import torch
    from torch import nn

    network = nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, p)).eval()
    x = torch.rand(1, inputs)

    def call() -> None:
        with torch.inference_mode():
            network(x)

    torch.set_num_threads(1)
    return call


def own_request(u: L2UL, rows: Iterator[int]) -> Callable[[], object]:
    """One call is the whole of what a user writes."""
    unlearn, take = u.unlearn, rows.__next__
    return lambda: unlearn([take()])


def stream_of(n: int, seed: int) -> Iterator[int]:
    """All row numbers in random order, as plain ints."""
    return iter(np.random.default_rng([seed, 82]).permutation(n).tolist())


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, Vector]:
    """Seconds of TURN * rounds single calls of each; all take turns, each round in another order."""
    clock, rng, names = time.perf_counter_ns, np.random.default_rng(0), list(calls)
    seconds = {name: np.empty(TURN * rounds) for name in names}
    for call in calls.values():
        for _ in range(WARM):
            call()
    for turn in range(rounds):
        for place in rng.permutation(len(names)):
            call, out = calls[names[place]], seconds[names[place]]
            for _ in range(SETTLE):
                call()
            for k in range(turn * TURN, (turn + 1) * TURN):
                begin = clock()
                call()
                out[k] = clock() - begin
    return {name: 1e-9 * found for name, found in seconds.items()}


def summary(seconds: Vector) -> Record:
    """p50, p99 and the longest."""
    p50, p99 = np.percentile(seconds, [50, 99]).tolist()
    return {"p50_seconds": p50, "p99_seconds": p99, "max_seconds": float(seconds.max()), "calls": seconds.size}


def latency_jobs(context: Context) -> Iterator[Job]:
    """One row by shape, a long stream, and durable requests."""
    numbers = context.numbers
    for name, n in numbers["latency"].items():
        methods = (*OURS.values(), PEER, "nothing", *((TORCH,) if name == "higgs" else ()), IDLE, "retrain")
        base = {"experiment": LATENCY, "dataset": name, "n": n, "model": "lr", "r": 1}
        cells = tuple({**base, "method": method} for method in methods)
        yield Job(name, cells, partial(measure_latency, context), seconds=10.0)
    base = {"dataset": "higgs", "model": "lr", "method": DEFAULT, "r": 1}
    flat = {**base, "experiment": FLAT, "n": numbers["stream_rows"]}
    cells = tuple({**flat, "order": order, "block": block} for order in OURS for block in range(BLOCKS))
    yield Job("stream", cells, partial(measure_flat, context), seconds=5.0)
    for n in numbers["durable"]:
        durable = {**base, "experiment": DURABLE, "n": n}
        cells = tuple({**durable, "repeat": draw} for draw in range(numbers["durable_draws"]))
        yield Job(f"durable {n:,} rows", cells, partial(measure_durable, context), seconds=3.0)


def measure_latency(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Single-row requests on stand-in rows of a dataset's shape, every contender in turn."""
    n, wanted = cells[0]["n"], {cell["method"] for cell in cells}
    table = standin_rows(n, cells[0]["dataset"])
    X, y = table.X, table.y
    with threads(1), quiet():
        heads = {order: L2UL("lr", order=order, lam=LAM).fit(X, y) for order in OURS}
        calls: dict[str, Callable[[], object]] = {
            OURS[order]: own_request(u, stream_of(n, order)) for order, u in heads.items()
        }
        calls[PEER] = newton_expert(heads[2], X, y, stream_of(n, 1))
        calls["nothing"] = lambda: None
        if TORCH in wanted:
            calls[TORCH] = torch_network(table.d + 1, 2 * 100 * 4 + table.d + 1)
        default = calls[OURS[3]]
        for _ in range(WARM):
            default()
        spin = range(max(1, int(once(lambda: [default() for _ in range(TURN)]) / TURN / _loop_seconds())))

        def idle() -> None:
            for _ in spin:
                pass

        calls[IDLE] = idle
        found = {name: summary(seconds) for name, seconds in in_turns(calls, context.numbers["rounds"]).items()}
        found["retrain"] = summary(np.array([once(lambda: heads[3].model.fit((X, y))) for _ in range(3)]))
    order_of = {name: order for order, name in OURS.items()}
    for cell in cells:
        name = cell["method"]
        ratio = found[name]["p50_seconds"] / found[PEER]["p50_seconds"]
        facts = {"source": "stand-in", "d": table.d, "order": order_of.get(name), "threads_used": 1, "ratio": ratio}
        yield {**cell, **facts, **found[name]}


def _loop_seconds(rounds: int = 100_000) -> float:
    """Seconds of one round of an empty loop."""

    def run() -> None:
        for _ in range(rounds):
            pass

    return min(once(run) for _ in range(3)) / rounds


def measure_flat(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Single requests, one after the other, on one unlearner: does the thousandth take longer than the first?"""
    n, requests = cells[0]["n"], context.numbers["stream"]
    table = standin_rows(n)
    clock, size = time.perf_counter_ns, requests // BLOCKS
    for order in dict.fromkeys(cell["order"] for cell in cells):
        with threads(1), quiet():
            u = L2UL("lr", order=order).fit(table.X, table.y)
            call, seconds = own_request(u, stream_of(n, 5)), np.empty(requests)
            for _ in range(WARM):
                call()
            for k in range(requests):
                begin = clock()
                call()
                seconds[k] = clock() - begin
        for cell in (cell for cell in cells if cell["order"] == order):
            first = cell["block"] * size
            facts = {
                "source": "stand-in",
                "d": table.d,
                "first": first,
                **summary(1e-9 * seconds[first : first + size]),
            }
            yield {**cell, **facts}


# Until erased --------------------------------------------------------------------------------------------------------


def synced_write(path: Path, size: int = 4096) -> float:
    """Seconds of writing so many bytes to a new file and fsync."""
    begin = time.perf_counter()
    with open(path, "wb") as file:
        file.write(b"\0" * size)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def times_jobs(context: Context) -> Iterator[Job]:
    """The heads of the profile on its datasets, beside Retrain."""
    numbers = context.numbers
    for model, chosen in numbers["times"].items():
        orders = (3, 2) if model == "lr" else (None,)
        lines = [(DEFAULT, order) for order in orders]
        lines += [(name, None) for name in (*numbers["heads"], "nothing", "retrain") if name != DEFAULT]
        for dataset in (name for name in chosen if name in context.datasets):
            n = train_size(context, dataset, numbers["rows"])
            n = n if model == "lr" else min(n, MLP_ROWS)
            base = {"experiment": TIMES, "dataset": dataset, "n": n, "model": model, "seed": context.seed}
            cells = tuple(
                {**base, "method": method, "order": order, "r": r, "repeat": draw}
                for method, order in lines
                for r in sizes_on(n, numbers["sizes"])
                for draw in range(numbers["times_draws"])
            )
            measure = partial(measure_times, context, dataset, model)
            yield Job(f"{dataset} {model}", cells, measure, seconds=10.0 if model == "lr" else 30.0)


#: Rows of the MLP's table at most.
MLP_ROWS = 60_000


def sizes_on(n: int, sizes: tuple[int, ...]) -> dict[int, int]:
    """Rows of a request on n rows -> rows asked for: at most a tenth of them are taken."""
    return {min(r, n // 10): r for r in reversed(sizes)}


def measure_times(context: Context, dataset: str, model: str, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Two times: until the model without the rows is usable, until they are erased.

    Erased: the request, and `save` into the directory the unlearner was saved to before. Retrain: the fit (an MLP's
    anchor too, which was trained on the rows), and its parameters written and synced; it keeps nothing else.
    """
    numbers, seed = context.numbers, context.seed
    label, train, _ = tables(context, dataset, numbers["rows"])
    train = train if model == "lr" else some_rows(train, MLP_ROWS)
    asked = sizes_on(train.n, numbers["sizes"])
    made: dict[tuple[str, int | None], Scratch] = {}

    def scratch_of(method: str, order: int | None) -> Scratch:
        if (method, order) not in made:
            made.clear()  # one at a time: each holds a copy of the rows
            options = HEADS[method] if order is None else {**HEADS[method], "order": order}
            u = L2UL(model, random_state=seed, m=numbers["m"], **options).fit(train.X, train.y)
            made[method, order] = Scratch(u)
        return made[method, order]

    with TemporaryDirectory(dir=context.folder) as folder:
        for cell in cells:
            method, ids_asked = cell["method"], asked[cell["r"]]
            ids, spare = _rows_of(train, ids_asked, cell["repeat"], seed)
            facts = {"source": label, "d": train.d, "r_asked": ids_asked, "due": False}
            if method == "nothing":
                facts |= {"answer_seconds": 0.0, "erased_seconds": None}
            elif method == "retrain":
                u = scratch_of(DEFAULT, None if model == "mlp" else 3).first
                facts |= _retrained(u, train.without(ids), Path(folder))
            else:
                facts |= _two_times(scratch_of(method, cell["order"]), ids, spare, Path(folder))
            yield {**cell, **facts}


def _retrained(u: L2UL, rest: ArrayTable, folder: Path) -> Record:
    """The two times of Retrain on the rows that stay."""
    answered = once(partial(u.model.fit, rest))
    with TemporaryDirectory(dir=folder) as place:
        written = synced_write(Path(place) / "theta", u.model.size * 8)
    whole = answered if u.model.name == "lr" else u.report_["seconds"].get("train", answered)
    return {"answer_seconds": answered, "erased_seconds": whole + written}


#: Single requests before one whose two times are taken; the directory is saved after the first of them.
BEFORE = 20


def _rows_of(train: ArrayTable, r: int, draw: int, seed: int) -> tuple[Ids, Ids]:
    """(rows of a request, others for the requests before it)."""
    order = np.random.default_rng([seed, 83, r, draw]).permutation(train.n)
    r = min(r, train.n // 10)
    return np.sort(order[:r]), order[r : r + BEFORE]


def _two_times(scratch: Scratch, ids: Ids, spare: Ids, folder: Path) -> Record:
    """Seconds to the answer and until it is erased, and whether a pass was due, on a copy that is saved already."""
    with TemporaryDirectory(dir=folder) as name, quiet():
        u, place = scratch.renew(), Path(name) / "saved"
        u.save(place)
        rows = plain(ids)
        for k in range(spare.size):
            request(u, spare[k : k + 1])
            if k == 0:
                u.save(place)
        begin = time.perf_counter()
        u.unlearn(rows)
        middle = time.perf_counter()
        due = u.due is not None
        u.save(place)
        return {"answer_seconds": middle - begin, "erased_seconds": time.perf_counter() - begin, "due": due}


def measure_durable(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """A single request made durable in the directory it was loaded from, beside a plain write of 4 KB, in turns."""
    n = cells[0]["n"]
    table = standin_rows(n)
    with TemporaryDirectory(dir=context.folder) as name, quiet():
        place, rows = Path(name) / "saved", stream_of(n, 6)
        L2UL("lr").fit(table.X, table.y).save(place)
        u = L2UL.load(place)
        for _ in range(3):
            u.unlearn([next(rows)])
            u.save(place, defer=True)
        for cell in cells:
            ids = [next(rows)]
            begin = time.perf_counter()
            u.unlearn(ids)
            u.save(place, defer=True)
            seconds = time.perf_counter() - begin
            plain_seconds = synced_write(Path(name) / f"plain-{cell['repeat']}")
            yield {**cell, "source": "stand-in", "d": table.d, "seconds": seconds, "plain_seconds": plain_seconds}


# Slow-down attack ----------------------------------------------------------------------------------------------------


def largest_shift(u: L2UL, table: ArrayTable, requests: int) -> Iterator[int]:
    """The rows that move theta most, the largest first."""
    yield from np.argsort(-np.linalg.norm(shifts(u, table), axis=1), kind="stable")[:requests].tolist()


def column_maxima(u: L2UL, table: ArrayTable, requests: int) -> Iterator[int]:
    """The rows that hold a column's largest magnitude, then its second one, ...: scales and widths hang on them."""
    order = np.argsort(-np.abs(table.X), axis=0, kind="stable")[:requests]
    yield from list(dict.fromkeys(order.ravel().tolist()))[:requests]


def random_rows(u: L2UL, table: ArrayTable, requests: int) -> Iterator[int]:
    """The control."""
    yield from np.random.default_rng(84).permutation(table.n)[:requests].tolist()


def nearly_all_of_a_class(u: L2UL, table: ArrayTable, requests: int) -> Iterator[int]:
    """All rows of the smaller class but one, as far as the requests go."""
    rows = np.flatnonzero(table.y == np.bincount(table.y).argmin())
    yield from np.random.default_rng(85).permutation(rows)[: min(requests, rows.size - 1)].tolist()


#: Rows that the last attack chooses from at each request.
POOL = 4000


def across_the_edge(u: L2UL, table: ArrayTable, requests: int) -> Iterator[int]:
    """At every request the row that takes theta furthest towards, or across, the nearest edge of its grid cell.

    Knows the model, the grid and all rows, and looks at the unlearner after each request.
    """
    moves = shifts(u, table)
    p = moves.shape[1]
    pool = np.argsort(-np.abs(moves / widths(expansion_of(u))).max(axis=1), kind="stable")[:POOL]
    moves, left = moves[pool], np.ones(pool.size, bool)
    for _ in range(min(requests, pool.size)):
        low, high, delta = (expansion_of(u).state[row, :p] for row in (kernels.LOW, kernels.HIGH, kernels.DELTA))
        after = delta + moves
        beyond = np.maximum((after - high) / (high - low), (low - after) / (high - low)).max(axis=1)
        chosen = int(np.where(left, beyond, -np.inf).argmax())
        left[chosen] = False
        yield int(pool[chosen])


Attack = Callable[[L2UL, ArrayTable, int], Iterator[int]]
ATTACKS: dict[str, Attack] = {
    "random rows": random_rows,
    "largest shift of theta": largest_shift,
    "columns' largest values": column_maxima,
    "one class nearly emptied": nearly_all_of_a_class,
    "across the cell's edge": across_the_edge,
}


def few_of_a_class(table: ArrayTable, rows: int) -> ArrayTable:
    """The table with at most so many rows of its smaller class."""
    small = np.flatnonzero(table.y == np.bincount(table.y).argmin())
    if small.size <= rows:
        return table
    keep = np.ones(len(table.y), bool)
    keep[np.random.default_rng(86).permutation(small)[rows:]] = False
    return ArrayTable(np.ascontiguousarray(table.X[keep]), table.y[keep].copy(), table.classes)


def slow_jobs(context: Context) -> Iterator[Job]:
    """Every attack on the datasets of the profile."""
    numbers = context.numbers
    for dataset in (name for name in numbers["slow"] if name in context.datasets):
        base = {"experiment": SLOW, "dataset": dataset, "model": "lr", "r": 1, "seed": context.seed}
        n = train_size(context, dataset, numbers["rows"])
        cells: list[Cell] = [{**base, "method": DEFAULT, "attack": name} for name in ATTACKS]
        cells.append({**base, "n": n, "method": "retrain", "attack": "retrain"})
        yield Job(dataset, tuple(cells), partial(measure_slow, context, dataset), seconds=5.0)


def measure_slow(context: Context, dataset: str, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """Single requests chosen to make the server work; what is due is refreshed at once, and its time counted apart."""
    label, train, _ = tables(context, dataset, context.numbers["rows"])
    requests = min(context.numbers["requests"], train.n // 4)
    for cell in cells:
        base = {**cell, "source": label, "d": train.d}
        if cell["method"] == "retrain":
            model = LogisticModel(train.d, 2, LAM)
            rests = [train.without(np.array([row])) for row in range(4)]
            again = np.array([once(partial(model.fit, rest)) for rest in rests])[1:]
            yield {**base, "n": train.n, "requests": again.size, **summary(again)}
            continue
        attack = ATTACKS[cell["attack"]]
        table = few_of_a_class(train, requests + 1) if attack is nearly_all_of_a_class else train
        u = L2UL("lr", random_state=context.seed).fit(table.X, table.y)
        yield {**base, "n": table.n, **_follow(u, attack(u, table, requests))}


def _follow(u: L2UL, rows: Iterator[int]) -> Record:
    """Requests one after the other; a refresh follows each that leaves a pass due."""
    warm = u.copy()
    with quiet():
        for row in range(WARM):
            if warm.class_counts[warm.store.y[row]] > 1:
                warm.unlearn([row])
        warm.refresh()
        seconds: list[float] = []
        refreshes: list[float] = []
        tiers: dict[str, int] = {}
        error = 0.0
        for row in rows:
            taken, result = clocked(partial(u.unlearn, [row]))
            seconds.append(taken)
            tiers[result.tier] = tiers.get(result.tier, 0) + 1
            error = max(error, result.error if result.error is not None else 0.0)
            if result.due is not None:
                refreshes.append(once(u.refresh))
    return {
        "requests": len(seconds),
        **summary(np.array(seconds)),
        "tiers": tiers,
        "due": len(refreshes),
        "refresh_seconds": float(sum(refreshes)),
        "largest_error": error if np.isfinite(error) else None,
        "refresh_p50_seconds": float(np.median(refreshes)) if refreshes else None,
    }


# Fit -----------------------------------------------------------------------------------------------------------------

SUMS = {order: f"integer sums, order {order}" for order in (2, 3)}
NUMPY, TABMAT = "numpy, X' (w X)", "tabmat sandwich"


def fit_jobs(context: Context) -> Iterator[Job]:
    """The whole fit, and one pass of sums beside numpy and, where it is installed, tabmat."""
    numbers = context.numbers
    path = original_file("higgs", context.raw_dir, context.data_dir, complete=True)
    n = min(numbers["fit_rows"], get_info("higgs").n) if path is None else all_rows(path)
    base = {"experiment": FIT, "dataset": "higgs", "model": "lr"}
    cells = tuple({**base, "n": n, "method": method, "order": order} for order, method in OURS.items())
    yield Job(f"file {n:,} rows", cells, partial(measure_fit, context), seconds=1e-5 * n)
    methods = (*SUMS.values(), NUMPY, *((TABMAT,) if find_spec("tabmat") else ()))
    cells = tuple({**base, "n": numbers["sums_rows"], "method": method} for method in methods)
    yield Job("sums", cells, partial(measure_sums, context), seconds=5.0)


def measure_fit(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """A whole `fit(path)` with third derivatives beside one without, in turns; all threads."""
    path = dataset_file("higgs", context.numbers["fit_rows"], context.raw_dir, context.data_dir, complete=True)
    table = FileTable(path, "all")
    X, y = table.take(np.arange(min(table.n, 5000)))
    label, d = table.label, table.d
    table.close()
    parts: dict[int, list[dict[str, float]]] = {order: [] for order in OURS}

    def whole(order: int) -> None:
        parts[order].append(L2UL("lr", order=order).fit(path, part="all").report_["seconds"])

    for order in OURS:
        L2UL("lr", order=order).fit(X, y)  # compiles
    times = interleave({OURS[order]: partial(whole, order) for order in OURS}, context.numbers["repeats"])
    for cell in cells:
        taken, mine = times[cell["method"]], parts[cell["order"]]
        yield {
            **cell,
            "source": label,
            "d": d,
            **taken.facts,
            "parts": {key: float(np.median([p[key] for p in mine])) for key in mine[0]},
            "ratio": taken.median / times[OURS[2]].median,
        }


def measure_sums(context: Context, cells: tuple[Cell, ...]) -> Iterator[Record]:
    """One pass of integer sums over rows in memory, one thread, beside tabmat and numpy."""
    table = standin_rows(cells[0]["n"])
    calls: dict[str, Callable[[], object]] = {}
    with threads(1), threadpool_limits(1):
        for order, name in SUMS.items():
            u = L2UL("lr", order=order).fit(table.X[:5000], table.y[:5000])
            calls[name] = partial(LocalPasses(table).sums, expansion_of(u).terms)
        X64 = np.asfortranarray(table.X, np.float64)
        weights = np.full(table.n, 0.25)
        calls[NUMPY] = lambda: X64.T @ (X64 * weights[:, None])
        if any(cell["method"] == TABMAT for cell in cells):
            import tabmat

            dense = tabmat.DenseMatrix(X64)
            calls[TABMAT] = lambda: dense.sandwich(weights)
        for call in calls.values():
            call()
        times = interleave(calls, context.numbers["repeats"])
    peer = times.get(TABMAT)
    for cell in cells:
        taken = times[cell["method"]]
        yield {
            **cell,
            "source": "stand-in",
            "d": table.d,
            **taken.facts,
            "threads_used": 1,
            "ratio": None if peer is None else taken.median / peer.median,
        }
