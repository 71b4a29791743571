"""How long one request takes: the compiled core and the whole call a user makes, beside the same network in torch.

The model is fitted on HIGGS stand-in rows in memory. Torch gets its input ready-made; ours starts from row numbers.
Every call of unlearn takes another row out for good, so that state updates are part of what is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from l2ul_fast.datasets.standin import generate
from l2ul_fast.results import Record
from l2ul_fast.timing import interleave
from l2ul_fast.unlearner.l2ul import L2UL
from l2ul_fast.unlearner.network import UnlearnNetwork
from l2ul_kernels import threads
from l2ul_kernels.threads import thread_limit

CALLS = 200
R = 1000
#: Rounds of single calls for p50 and p99.
ROUNDS = 9
#: Seconds of calls before those that are timed.
SETTLE = 0.003


def rows_of_higgs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Standardised stand-in rows."""
    X, y = generate("higgs", 0, n, n, 3)
    return ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32), y


def _torch_calls(network: UnlearnNetwork, p: int, t: int, psi: int) -> dict[str, Callable[[], object]]:
    """The paper's network in torch with its input prebuilt, eager and TorchScript, at one thread and at all."""
    x = torch.rand(1, 2 * t * psi + p)
    scripted: Any = torch.jit.freeze(torch.jit.trace(network.eval(), x))

    def at(k: int, call: Any) -> Callable[[], object]:
        def run() -> None:
            if torch.get_num_threads() != k:
                torch.set_num_threads(k)
            with torch.inference_mode():
                call(x)

        return run

    calls: dict[str, Callable[[], object]] = {}
    for k in sorted({1, thread_limit()}):
        calls[f"torch eager, {k} thread(s)"] = at(k, network)
        calls[f"torchscript, {k} thread(s)"] = at(k, scripted)
    return calls


class _Requests:
    """Rows of one unlearner in random order, each taken once."""

    def __init__(self, u: L2UL, seed: int) -> None:
        self.u = u
        self.order = np.random.default_rng(seed).permutation(len(u.gone)).tolist()
        if hasattr(u.step, "anchor_rows"):
            held = set(u.step.anchor_rows.tolist())
            self.order = [row for row in self.order if row not in held]
        self.next = count()

    def row(self) -> int:
        return int(self.order[next(self.next)])

    def rows(self, r: int) -> np.ndarray:
        return np.array([self.row() for _ in range(r)], np.int64)


def _core(u: L2UL, requests: _Requests) -> Callable[[], object]:
    """Stored data of one row -> theta', without validation and bookkeeping."""
    if hasattr(u.step, "peek"):
        some = [np.array([row]) for row in requests.order[-5000:]]
        turn = count()
        return lambda: u.step.peek(some[next(turn) % 5000])  # type: ignore[attr-defined]
    step, store = u.step.copy(), u.store
    some = [np.array([row]) for row in requests.order[-5000:]]
    turn = count()

    def call() -> object:
        ids = some[next(turn) % 5000]
        return step.move_stored(store, ids, u.theta, u.n)

    return call


def measure(n: int = 1_000_000, repeats: int = 11, models: tuple[str, ...] = ("lr", "mlp")) -> Iterator[Record]:
    """Records of r = 1 (every candidate), r = 1000 beside gathering, and the time to make a request durable."""
    X, y = rows_of_higgs(n)
    for model in models:
        if model == "mlp":  # training it on more would take minutes and change nothing here
            n = min(n, 100_000)
            X, y = X[:n], y[:n]
        heads = {"influence": L2UL(model, m=40, s=1000), "direct": L2UL(model, head="direct", m=40, s=1000)}
        for u in heads.values():
            u.fit(X, y)
        base: Record = {
            "experiment": "latency", "dataset": "higgs", "source": "stand-in", "n": n, "d": X.shape[1], "model": model,
            "p": int(heads["direct"].theta.size), "t": 100, "psi": 4,
        }  # fmt: skip
        yield from _one_row(base, heads, repeats)
        yield from _many_rows(base, heads["influence"], repeats)
        yield from _durable(base, heads["influence"])


def _one_row(base: Record, heads: dict[str, L2UL], repeats: int) -> Iterator[Record]:
    direct = heads["direct"]
    network = UnlearnNetwork.from_weights(direct.step.weights)  # type: ignore[attr-defined]
    calls = _torch_calls(network, direct.theta.size, direct.cells.t, direct.cells.psi)
    for head, u in heads.items():
        requests = _Requests(u, 0)
        calls[f"core, {head} head"] = _core(u, requests)
        calls[f"unlearn([row]), {head} head"] = lambda u=u, q=requests: u.unlearn([q.row()])  # type: ignore[misc]
    with threads(1):
        for call in calls.values():
            for _ in range(CALLS):
                call()
        times = interleave(calls, repeats, dict.fromkeys(calls, CALLS), settle=SETTLE)
        eager = min(t.median for name, t in times.items() if "eager" in name)
        script = min(t.median for name, t in times.items() if "script" in name)
        single = _percentiles(calls, {name: taken.median for name, taken in times.items()})
        for name, taken in times.items():
            (p50, p99), (idle50, idle99) = single[name]
            yield {
                **base, "method": name, "r": 1, "threads": 1, "us": taken.median * 1e6, "spread": taken.spread,
                "p50_us": p50 * 1e6, "p99_us": p99 * 1e6, "idle_ratio": idle99 / idle50,
                "eager_ratio": eager / taken.median, "script_ratio": script / taken.median,
            }  # fmt: skip


Percentiles = tuple[float, float]


def _percentiles(
    calls: dict[str, Callable[[], object]], seconds: dict[str, float]
) -> dict[str, tuple[Percentiles, Percentiles]]:
    """(p50, p99) of single calls of each, and of a loop that does nothing for about as long, call by call in turns.

    Medians of ROUNDS, in which all take turns: a machine that is slow for a second would otherwise be the fault of one.
    What the second one has above 1 comes from the machine (interrupts, neighbours), not from the call.
    """
    begin, rounds = time.perf_counter(), range(100_000)
    for _ in rounds:
        pass
    each = (time.perf_counter() - begin) / len(rounds)
    found = {name: np.empty((ROUNDS, 2, 2)) for name in calls}
    for turn in range(ROUNDS):
        for name, call in calls.items():
            idle = range(max(1, int(seconds[name] / each)))
            found[name][turn] = np.percentile(_single(call, idle), [50, 99], axis=0).T
    medians = {name: np.median(values, axis=0).tolist() for name, values in found.items()}
    return {name: ((own[0], own[1]), (idle[0], idle[1])) for name, (own, idle) in medians.items()}


def _single(call: Callable[[], object], idle: range) -> np.ndarray:
    """(20 * CALLS, 2) seconds of a call, and of the loop after it."""
    times = np.empty((20 * CALLS, 2))
    for k in range(len(times)):
        begin = time.perf_counter()
        call()
        end = time.perf_counter()
        for _ in idle:
            pass
        times[k] = end - begin, time.perf_counter() - end
    return times


def _many_rows(base: Record, u: L2UL, repeats: int) -> Iterator[Record]:
    requests = _Requests(u, 1)
    present = [row for row in requests.order if u.gone[row] == 0]
    sets = [np.sort(np.array(present[k * R : (k + 1) * R])) for k in range(40)]
    turn, other = count(), count()
    step = u.step.copy()

    def core() -> object:
        return step.move_stored(u.store, sets[next(turn) % 40], u.theta, u.n)

    calls: dict[str, Callable[[], object]] = {
        f"core, r = {R}": core,
        f"gather {R} rows": lambda: u.store.fetch(sets[next(other) % 40]),
    }
    with threads(1):
        for call in calls.values():
            call()
        times = interleave(calls, repeats, dict.fromkeys(calls, 40), settle=SETTLE)
    gather = times[f"gather {R} rows"].median
    for name, taken in times.items():
        yield {
            **base, "method": name, "r": R, "threads": 1, "us": taken.median * 1e6, "spread": taken.spread,
            "gather_ratio": taken.median / gather,
        }  # fmt: skip


def _durable(base: Record, u: L2UL) -> Iterator[Record]:
    with TemporaryDirectory() as folder:
        u.save(Path(folder) / "a")
        rows = _Requests(u, 2)
        row = next(row for row in rows.order if u.gone[row] == 0)
        u.unlearn([row])
        begin = time.perf_counter()
        u.save(Path(folder) / "a")
        yield {**base, "method": "save after a request", "r": 1, "us": (time.perf_counter() - begin) * 1e6}
