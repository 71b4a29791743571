"""How long requests take: one row beside an expert's Newton step and torch, until erased, under attack; and the fit.

Records by experiment; dataset, source, n, d, model and method are in all of them, times are seconds:
  unlearn-latency  one per (dataset, method): p50, p99, most of single calls of `u.unlearn([row])` and of its peers,
                   which all take turns in one run on one thread; ratio: p50 over that of "newton-numba"
  unlearn-flat     one per (order, block) of a long stream of single requests on one unlearner: first, p50, p99
  unlearn-times    one per (method, order, r, draw): answer_seconds; erased_seconds, until nothing kept in memory,
                   journal or directory gives the rows back (None: never)
  unlearn-durable  one per (n, draw): seconds of `u.unlearn([row])` and `u.save(directory, defer=True)`; plain_seconds
                   of writing 4 KB and fsync beside it
  unlearn-slow     one per (dataset, attack): requests and their p50, p99, most; tiers {name: count}; due, how many left
                   a pass due, and refresh_seconds of these passes in total
  unlearn-fit      one per method: seconds of a whole `fit(path)` and of its parts, or of one pass of sums
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from l2ul_fast.datasets.standin.rows import generate
from l2ul_fast.experiments.contenders import DEFAULT, HEADS, Scratch, plain, quiet, request
from l2ul_fast.experiments.jobs import Done
from l2ul_fast.experiments.quality.heads import shifts, widths
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import interleave, once
from l2ul_fast.models import LogisticModel
from l2ul_fast.tables import ArrayTable, FileTable
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.passes import LocalPasses
from l2ul_kernels import threads
from l2ul_kernels.request import expansion as kernels

Vector = NDArray[np.float64]
Ids = NDArray[np.int64]

LATENCY, FLAT, TIMES = "unlearn-latency", "unlearn-flat", "unlearn-times"
DURABLE, SLOW, FIT = "unlearn-durable", "unlearn-slow", "unlearn-fit"
#: The expert's Newton step, and the paper's network.
PEER, TORCH = "newton-numba", "torch-eager"
LAM = 1e-3
#: Calls of one contender in a row: those before the timed ones of a turn, the timed ones, and those before all.
SETTLE, TURN, WARM = 5, 100, 300
#: Blocks that a long stream is looked at in.
BLOCKS = 10


def shaped(name: str, n: int, seed: int = 3) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """n standardised stand-in rows of a dataset's shape."""
    X, y = generate(name, 0, n, n, seed)
    scale = X.std(axis=0)
    return ((X - X.mean(axis=0)) / np.where(scale > 0, scale, 1.0)).astype(np.float32), y.astype(np.uint8)


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
    return {"p50": p50, "p99": p99, "most": float(seconds.max()), "calls": seconds.size}


def measure_latency(dataset: str, n: int, rounds: int, torch: bool, done: Done) -> Iterator[Record]:
    """Single-row requests on stand-in rows of a dataset's shape, every contender in turn."""
    if done(method="retrain"):
        return
    X, y = shaped(dataset, n)
    base: Record = {"dataset": dataset, "source": "stand-in", "n": n, "d": X.shape[1], "model": "lr", "r": 1}
    base["threads_used"] = 1
    with threads(1), quiet():
        heads = {order: L2UL("lr", order=order, lam=LAM).fit(X, y) for order in (2, 3)}
        calls: dict[str, Callable[[], object]] = {
            f"{DEFAULT}, order {order}": own_request(u, stream_of(n, order)) for order, u in heads.items()
        }
        calls[PEER] = newton_expert(heads[2], X, y, stream_of(n, 1))
        calls["nothing"] = lambda: None
        if torch:
            calls[TORCH] = torch_network(X.shape[1] + 1, 2 * 100 * 4 + X.shape[1] + 1)
        default = calls[f"{DEFAULT}, order 3"]
        for _ in range(WARM):
            default()
        spin = range(max(1, int(once(lambda: [default() for _ in range(TURN)]) / TURN / _loop_seconds())))

        def idle() -> None:
            for _ in spin:
                pass

        calls["idle loop, as long as order 3"] = idle
        found = {name: summary(seconds) for name, seconds in in_turns(calls, rounds).items()}
        model = heads[3].model
        again = np.array([once(lambda: model.fit((X, y))) for _ in range(3)])
    for name, facts in found.items():
        if not done(method=name):
            order = int(name[-1]) if name.startswith(DEFAULT) else None
            yield {**base, "method": name, "order": order, **facts, "ratio": facts["p50"] / found[PEER]["p50"]}
    yield {**base, "method": "retrain", **summary(again), "ratio": float(np.median(again)) / found[PEER]["p50"]}


def _loop_seconds(rounds: int = 100_000) -> float:
    """Seconds of one round of an empty loop."""

    def run() -> None:
        for _ in range(rounds):
            pass

    return min(once(run) for _ in range(3)) / rounds


def measure_flat(n: int, requests: int, done: Done) -> Iterator[Record]:
    """Single requests, one after the other, on one unlearner: does the thousandth take longer than the first?"""
    todo = [order for order in (2, 3) if not done(order=order, block=BLOCKS - 1)]
    if not todo:
        return
    X, y = shaped("higgs", n)
    clock = time.perf_counter_ns
    for order in todo:
        with threads(1), quiet():
            u = L2UL("lr", order=order).fit(X, y)
            call, seconds = own_request(u, stream_of(n, 5)), np.empty(requests)
            for _ in range(WARM):
                call()
            for k in range(requests):
                begin = clock()
                call()
                seconds[k] = clock() - begin
        size = requests // BLOCKS
        for block in range(BLOCKS):
            if not done(order=order, block=block):
                yield {
                    "dataset": "higgs",
                    "source": "stand-in",
                    "n": n,
                    "d": X.shape[1],
                    "model": "lr",
                    "method": DEFAULT,
                    "order": order,
                    "block": block,
                    "first": block * size,
                    **summary(1e-9 * seconds[block * size : (block + 1) * size]),
                }


# Until erased --------------------------------------------------------------------------------------------------------


def synced_write(path: Path, size: int = 4096) -> float:
    """Seconds of writing so many bytes to a new file and fsync."""
    begin = time.perf_counter()
    with open(path, "wb") as file:
        file.write(b"\0" * size)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def heads_of(model: str, methods: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    """(method, arguments of L2UL) of these methods, the default head of order 2 too."""
    found = [(name, dict(HEADS[name])) for name in methods]
    return [*found, (DEFAULT, {"order": 2})] if model == "lr" else found


def measure_times(
    dataset: str,
    source: str,
    train: ArrayTable,
    model: str,
    methods: tuple[str, ...],
    m: int,
    sizes: tuple[int, ...],
    draws: int,
    folder: Path,
    available: Callable[[str, str], bool],
    done: Done,
    seed: int = 1,
) -> Iterator[Record]:
    """Two times of the heads of these methods: until the model without the rows is usable, until they are erased.

    Erased: the request, and `save` into the directory the unlearner was saved to before. Retrain: the fit (an MLP's
    anchor too, which was trained on the rows), and its parameters written and synced; it keeps nothing else.
    """
    base: Record = {"dataset": dataset, "source": source, "n": train.n, "d": train.d, "model": model, "seed": seed}
    first: L2UL | None = None
    for method, options in heads_of(model, methods):
        head, order = options.get("head", "expansion"), options.get("order", 3 if model == "lr" else None)
        order = order if head == "expansion" else None
        todo = [
            (r, draw)
            for r in sizes
            for draw in range(draws)
            if not done(method=method, order=order, r_asked=r, draw=draw)
        ]
        if not todo or not available(model, head):
            continue
        u = L2UL(model, random_state=seed, m=m, **options).fit(train.X, train.y)
        first = first or u
        scratch = Scratch(u)
        for r, draw in todo:
            ids, spare = _rows_of(train, r, draw, seed)
            answered, erased, due = _two_times(scratch, ids, spare, folder)
            yield {
                **base,
                "method": method,
                "order": order,
                "r": ids.size,
                "r_asked": r,
                "draw": draw,
                "answer_seconds": answered,
                "erased_seconds": erased,
                "due": due,
            }
    if first is None and not available(model, "expansion"):
        return
    for r in sizes:
        for draw in range(draws):
            if done(method="retrain", r_asked=r, draw=draw):
                continue
            first = first or L2UL(model, random_state=seed, m=m).fit(train.X, train.y)
            ids, _ = _rows_of(train, r, draw, seed)
            rest, own = train.without(ids), first.model
            answered = once(partial(own.fit, rest))
            with TemporaryDirectory(dir=folder) as place:
                written = synced_write(Path(place) / "theta", own.size * 8)
            whole = answered if model == "lr" else first.report_["seconds"].get("train", answered)
            facts = {**base, "order": None, "r": ids.size, "r_asked": r, "draw": draw, "due": False}
            yield {**facts, "method": "nothing", "answer_seconds": 0.0, "erased_seconds": None}
            yield {**facts, "method": "retrain", "answer_seconds": answered, "erased_seconds": whole + written}


#: Single requests before one whose two times are taken; the directory is saved after the first of them.
BEFORE = 20


def _rows_of(train: ArrayTable, r: int, draw: int, seed: int) -> tuple[Ids, Ids]:
    """(rows of a request, others for the requests before it)."""
    order = np.random.default_rng([seed, 83, r, draw]).permutation(train.n)
    r = min(r, train.n // 10)
    return np.sort(order[:r]), order[r : r + BEFORE]


def _two_times(scratch: Scratch, ids: Ids, spare: Ids, folder: Path) -> tuple[float, float, bool]:
    """(seconds to the answer, seconds until it is erased, whether a pass was due) on a copy that is saved already."""
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
        return middle - begin, time.perf_counter() - begin, due


def measure_durable(n: int, draws: int, folder: Path, done: Done) -> Iterator[Record]:
    """A single request made durable in the directory it was loaded from, beside a plain write of 4 KB, in turns."""
    todo = [draw for draw in range(draws) if not done(n=n, draw=draw)]
    if not todo:
        return
    X, y = shaped("higgs", n)
    with TemporaryDirectory(dir=folder) as name, quiet():
        place, rows = Path(name) / "saved", stream_of(n, 6)
        L2UL("lr").fit(X, y).save(place)
        u = L2UL.load(place)
        for _ in range(3):
            u.unlearn([next(rows)])
            u.save(place, defer=True)
        for draw in todo:
            ids = [next(rows)]
            begin = time.perf_counter()
            u.unlearn(ids)
            u.save(place, defer=True)
            seconds = time.perf_counter() - begin
            yield {
                "dataset": "higgs",
                "source": "stand-in",
                "n": n,
                "d": X.shape[1],
                "model": "lr",
                "method": DEFAULT,
                "r": 1,
                "draw": draw,
                "seconds": seconds,
                "plain_seconds": synced_write(Path(name) / f"plain-{draw}"),
            }


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
    pool = np.argsort(-np.abs(moves / widths(u.head)).max(axis=1), kind="stable")[:POOL]
    moves, left = moves[pool], np.ones(pool.size, bool)
    for _ in range(min(requests, pool.size)):
        low, high, delta = (u.head.state[row, :p] for row in (kernels.LOW, kernels.HIGH, kernels.DELTA))
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


def measure_slow(
    dataset: str, source: str, train: ArrayTable, requests: int, done: Done, seed: int = 1
) -> Iterator[Record]:
    """Single requests chosen to make the server work; what is due is refreshed at once, and its time counted apart."""
    requests = min(requests, train.n // 4)
    base: Record = {"dataset": dataset, "source": source, "d": train.d, "model": "lr", "r": 1, "seed": seed}
    for name, attack in ATTACKS.items():
        if done(attack=name):
            continue
        table = few_of_a_class(train, requests + 1) if attack is nearly_all_of_a_class else train
        u = L2UL("lr", random_state=seed).fit(table.X, table.y)
        yield {**base, "n": table.n, "method": DEFAULT, "attack": name, **_follow(u, attack(u, table, requests))}
    if not done(attack="retrain"):
        model = LogisticModel(train.d, 2, LAM)
        rests = [train.without(np.array([row])) for row in range(4)]
        again = np.array([once(partial(model.fit, rest)) for rest in rests])[1:]
        yield {**base, "n": train.n, "method": "retrain", "attack": "retrain", "requests": 3, **summary(again)}


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
            begin = time.perf_counter()
            result = u.unlearn([row])
            seconds.append(time.perf_counter() - begin)
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
        "refresh_p50": float(np.median(refreshes)) if refreshes else None,
    }


# Fit -----------------------------------------------------------------------------------------------------------------


def measure_fit(path: Path, repeats: int, done: Done) -> Iterator[Record]:
    """A whole `fit(path)` with third derivatives beside one without, in turns; all threads."""
    table = FileTable(path, "all")
    label, d, n = table.label, table.d, table.n
    if done(method=f"{DEFAULT}, order 3", n=n):
        table.close()
        return
    X, y = table.take(np.arange(min(n, 5000)))
    table.close()
    made: dict[int, list[dict[str, float]]] = {2: [], 3: []}

    def whole(order: int) -> Callable[[], object]:
        def run() -> None:
            made[order].append(L2UL("lr", order=order).fit(path, part="all").report_["seconds"])

        return run

    for order in made:
        L2UL("lr", order=order).fit(X, y)  # compiles
    times = interleave({f"{DEFAULT}, order {order}": whole(order) for order in made}, repeats)
    for order, parts in made.items():
        name = f"{DEFAULT}, order {order}"
        yield {
            "dataset": "higgs",
            "source": label,
            "n": n,
            "d": d,
            "model": "lr",
            "method": name,
            "order": order,
            "seconds": times[name].median,
            "spread": times[name].spread,
            "parts": {key: float(np.median([p[key] for p in parts])) for key in parts[0]},
            "ratio": times[name].median / times[f"{DEFAULT}, order 2"].median,
        }


def measure_sums(n: int, repeats: int, done: Done) -> Iterator[Record]:
    """One pass of integer sums over rows in memory, one thread, beside tabmat (where installed) and numpy."""
    calls: dict[str, Callable[[], object]] = {}
    X, y = shaped("higgs", n)
    with threads(1), threadpool_limits(1):
        table = ArrayTable(X, y, [0, 1])
        for order in (2, 3):
            u = L2UL("lr", order=order).fit(X[:5000], y[:5000])
            calls[f"integer sums, order {order}"] = lambda terms=u.head.terms: LocalPasses(table).sums(terms)  # type: ignore[misc]
        X64 = np.asfortranarray(X, np.float64)
        weights = np.full(n, 0.25)
        calls["numpy, X' (w X)"] = lambda: X64.T @ (X64 * weights[:, None])
        try:
            import tabmat

            dense = tabmat.DenseMatrix(X64)
            calls["tabmat sandwich"] = lambda: dense.sandwich(weights)
        except ImportError:
            pass
        if all(done(method=name, n=n) for name in calls):
            return
        for call in calls.values():
            call()
        times = interleave(calls, repeats)
    peer = times.get("tabmat sandwich")
    for name, taken in times.items():
        yield {
            "dataset": "higgs",
            "source": "stand-in",
            "n": n,
            "d": X.shape[1],
            "model": "lr",
            "method": name,
            "seconds": taken.median,
            "spread": taken.spread,
            "threads_used": 1,
            "ratio": None if peer is None else taken.median / peer.median,
        }
