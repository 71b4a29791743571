"""The compiled forward of one request beside the same network in torch, and beside merely gathering the rows.

Torch gets its input ready-made and a batch of one; ours starts from row ids and stored packed cells, another row at
every call. Both at one thread and at all of them, taking turns in blocks of calls: call by call, each would push the
other's weights out of the cache.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import torch

from l2ul_fast.results import Record
from l2ul_fast.timing import interleave
from l2ul_fast.unlearner.network import UnlearnNetwork
from l2ul_kernels import pack_cells, threads
from l2ul_kernels.forward import CorrectionForward, DirectForward
from l2ul_kernels.threads import thread_limit

T, PSI = 100, 4
#: Parameters of A at HIGGS' 28 features: logistic regression, and an MLP with 10 hidden units and one logit.
MODELS = {"lr": 29, "mlp": 301}
OURS, EAGER, SCRIPT, COMPILED = "l2ul forward", "torch eager", "torchscript", "torch.compile"
GATHER = "gather rows"
CALLS = 200


def _scripts(network: UnlearnNetwork, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Torch's own ways to run this network, those that work here."""
    calls: dict[str, Callable[[], object]] = {EAGER: lambda: network(x)}
    scripted: Any = torch.jit.freeze(torch.jit.trace(network.eval(), x))
    calls[SCRIPT] = lambda: scripted(x)
    with contextlib.suppress(Exception):  # needs a C++ compiler, which few servers have; then it is left out
        compiled = torch.compile(network)
        compiled(x)
        calls[COMPILED] = lambda: compiled(x)
    return calls


def _percentiles(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """p50 and p99 of single calls."""
    seconds = np.empty(calls)
    for k in range(calls):
        start = time.perf_counter()
        call()
        seconds[k] = time.perf_counter() - start
    low, high = np.percentile(seconds, [50, 99])
    return float(low), float(high)


def _same(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference as a share of the largest value."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


class _Setting:
    """A random network of one head, a store of n random rows, and one request's inputs in both forms."""

    def __init__(self, head: str, p: int, n: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        cells = rng.integers(0, PSI, (n, T)).astype(np.uint8)
        self.packed, self.y, self.rng, self.n = pack_cells(cells, PSI), rng.integers(0, 2, n).astype(np.uint8), rng, n
        generator = torch.Generator().manual_seed(seed)
        theta, self.out = rng.standard_normal(p), np.empty(p)
        counts = np.stack([np.bincount(column, minlength=PSI) for column in cells.T])
        first = np.zeros((1, T, PSI), np.float32)
        first[0, np.arange(T), cells[0]] = 1
        if head == "direct":
            self.network = UnlearnNetwork({"mu_D": T * PSI, "mu_f": T * PSI, "theta": p}, p, generator=generator)
            self.x = self.network.join(mu_D=counts.reshape(1, -1) / n, mu_f=first, theta=theta[None])
            direct = DirectForward(self.network.weights(), T, PSI)
            direct.set_base(counts, n, theta)
            direct.compile(self.packed)
            self.forward: Callable[[Any], Any] = lambda ids: direct(self.packed, ids, self.out)
        else:
            blocks = {"z": p, "mu_f_class": 2 * T * PSI, "log_ratio": 1}
            self.network = UnlearnNetwork(blocks, p, generator=generator, log_range=(-20.0, 0.0))
            ratio = -float(np.log(n))
            by_class = np.zeros((2, T, PSI), np.float32)
            by_class[self.y[0]] = first[0]
            self.x = self.network.join(z=theta[None], mu_f_class=by_class, log_ratio=np.array([ratio]))
            network = CorrectionForward(self.network.weights(), T, PSI)
            network.compile(self.packed, self.y)
            self.forward = lambda ids: network(self.packed, ids, self.y, theta, ratio, self.out)
        with torch.inference_mode():
            self.difference = _same(self.forward(np.zeros(1, np.int64)), self.network(self.x).numpy()[0])

    def requests(self, r: int, count: int) -> Callable[[], object]:
        """A call that answers the next of `count` random requests of r rows."""
        ids = cycle([self.rng.choice(self.n, r, replace=False) for _ in range(count)])
        return lambda: self.forward(next(ids))


def measure(
    n: int = 2_000_000, repeats: int = 21, heads: tuple[str, ...] = ("direct", "correction")
) -> Iterator[Record]:
    """Records of each head and model: seconds per call of every candidate at r = 1, then r = 1000 beside gathering."""
    for head in heads:
        for model, p in MODELS.items():
            setting = _Setting(head, p, n)
            base: Record = {
                "experiment": "forward", "dataset": "synthetic", "source": "synthetic:uniform cells", "head": head,
                "model": model, "p": p, "n": n, "t": T, "psi": PSI, "difference": setting.difference,
            }  # fmt: skip
            yield from _one_row(setting, base, repeats)
            yield from _many_rows(setting, base, 1000, repeats)


def _one_row(setting: _Setting, base: Record, repeats: int) -> Iterator[Record]:
    with torch.inference_mode():
        for k in sorted({1, thread_limit()}):
            with threads(k):
                calls = {OURS: setting.requests(1, 5000), **_scripts(setting.network, setting.x)}
                for call in calls.values():
                    for _ in range(CALLS):
                        call()
                times = interleave(calls, repeats, dict.fromkeys(calls, CALLS))
                for name, taken in times.items():
                    p50, p99 = _percentiles(calls[name], 10 * CALLS)
                    yield {
                        **base, "method": name, "r": 1, "threads": k, "status": "ok", "seconds": taken.seconds,
                        "median": taken.median, "spread": taken.spread, "p50": p50, "p99": p99,
                        "ratio": taken.median / times[OURS].median,
                    }  # fmt: skip


def _many_rows(setting: _Setting, base: Record, r: int, repeats: int) -> Iterator[Record]:
    ids = cycle([setting.rng.choice(setting.n, r, replace=False) for _ in range(100)])
    room = np.empty((r, setting.packed.shape[1]), np.uint8)
    calls: dict[str, Callable[[], object]] = {
        OURS: setting.requests(r, 100),
        GATHER: lambda: np.take(setting.packed, next(ids), axis=0, out=room, mode="clip"),
    }
    with threads(1):
        for call in calls.values():
            call()
        times = interleave(calls, repeats, dict.fromkeys(calls, 50))
    for name, taken in times.items():
        yield {
            **base, "method": name, "r": r, "threads": 1, "status": "ok", "seconds": taken.seconds,
            "median": taken.median, "spread": taken.spread, "ratio": taken.median / times[OURS].median,
        }  # fmt: skip
