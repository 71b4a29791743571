"""Making training pairs on Dask workers beside one process, workers that tell nobody, and some that only multiply."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numba
import numpy as np

from l2ul_fast.distributed.cluster import token
from l2ul_fast.distributed.executor import _common, _make_some
from l2ul_fast.errors import UserError
from l2ul_fast.measure.records import Record
from l2ul_fast.measure.timing import Times, gain, gains, interleave, once, stolen_seconds
from l2ul_fast.models import LogisticModel, MLPModel
from l2ul_fast.tables import FileTable
from l2ul_fast.unlearner.pairs.make import Pairs, subset_pairs
from l2ul_fast.unlearner.pairs.plan import PairPlan, plan_pairs
from l2ul_kernels import threads

#: (model name, pairs, rows per pair): what `l2ul fit` makes by default (the MLP: its subset pairs), and a short job.
PAIRS = (("lr", 1000, 10_000), ("mlp", 1000, 3000), ("mlp", 200, 3000))
#: Rounds of multiply-adds, about a second, to see what the cores give at that time.
MULTIPLY = 80_000_000


def _make_and_keep(plan: PairPlan, work: Any) -> int:
    """The pairs of a part of a plan, left where they are; how many were accepted."""
    return int(_make_some(plan, work)[1].accepted.sum())


@numba.njit(nogil=True, cache=True, fastmath=True)
def _multiply(n):  # type: ignore[no-untyped-def]
    """n rounds of multiply-adds on 32 numbers: registers only, no memory."""
    a = np.zeros(32)
    for _ in range(n):
        for j in range(32):
            a[j] = a[j] * 0.999 + 0.5
    return a[0]


def _only_multiply() -> float:
    return float(_multiply(MULTIPLY))


@dataclass
class PairJob:
    """Pairs of one kind in the making of a benchmark: what was measured while all candidates took turns."""

    name: str
    m: int
    s: int
    make: Callable[..., Pairs]
    times: dict[str, Times]
    limits: dict[int, Times]
    stolen: float

    def here(self) -> None:
        with threads(1):
            self.make()


def pair_turns(clients: dict[int, Any], table: FileTable, repeats: int, share: float = 1.0) -> Iterator[PairJob]:
    """Making training pairs: one process with one thread, k one-thread workers, and the same k workers apart.

    Apart: each makes its share of the pairs in one task and keeps them; what Dask takes is next to nothing. Workers
    that only multiply show what is lost without any memory or results: to the clusters' own business, the idle one's
    too, and to the host (`stolen`, its share).
    """
    labels = table.y[table.ids()]
    for name, m, s in PAIRS:
        m, s = max(20, int(m * share)), min(s, table.n // 4)
        model = LogisticModel(table.d) if name == "lr" else MLPModel(table.d)
        job = PairJob(name, m, s, partial(subset_pairs, model, table, labels, m, s, 0), {}, {}, 0.0)
        found: dict[int, Pairs] = {}

        def there(k: int, job: PairJob = job, found: dict[int, Pairs] = found) -> None:
            found.pop(k, None)
            found[k] = job.make(client=clients[k])

        def apart(k: int, model: Any = model, m: int = m, s: int = s) -> None:
            client, plan = clients[k], plan_pairs(table.n, labels, m, s, random_state=0)
            work = _common(client, token(), model, table)
            parts = [plan.part(m * i // k, m * (i + 1) // k) for i in range(k)]
            client.gather(
                [
                    client.submit(_make_and_keep, part, work, pure=False, workers=[address])
                    for part, address in zip(parts, client.scheduler_info()["workers"], strict=True)
                ]
            )

        def multiply(k: int, of: int) -> None:
            client = clients[of]
            chosen = list(client.scheduler_info()["workers"])[:k]
            client.gather([client.submit(_only_multiply, pure=False, workers=[address]) for address in chosen])

        calls: dict[str, Callable[[], object]] = {"one process": job.here}
        calls |= {f"workers {k}": partial(there, k) for k in clients}
        calls |= {f"apart {k}": partial(apart, k) for k in clients if k > 1}
        calls |= {f"multiply {k}": partial(multiply, k, max(clients)) for k in clients}
        with threads(1):
            expected = job.make()
            for call in calls.values():
                call()
            begin, stolen = time.perf_counter(), stolen_seconds()
            job.times = interleave(calls, repeats, pause=0.05)
            job.stolen = (stolen_seconds() - stolen) / (time.perf_counter() - begin) / (os.cpu_count() or 1)
        for pairs in found.values():  # of the last round; comparing tens of megabytes takes a while
            _check_pairs(pairs, expected)
        job.limits = {k: job.times.pop(f"multiply {k}") for k in clients}
        yield job


def _check_pairs(pairs: Pairs, expected: Pairs) -> None:
    if not all(np.array_equal(getattr(pairs, f), getattr(expected, f)) for f in ("rows", "theta_r", "Z")):
        raise UserError("the workers' pairs are not those of one process: this is a defect, please report it")


def pair_records(client: Any, k: int, job: PairJob, table: FileTable, seconds: float) -> Iterator[Record]:
    """Records of a job after more rounds, as many as fit into `seconds`, of one process and the k workers alone.

    Single rounds differ by a tenth on machines that are shared, and workers of another cluster, which do nothing but
    look after themselves, would take time only from those who need all cores. Efficiencies are medians of the rounds'.
    """
    many = f"workers {k}"
    last: list[Pairs] = []

    def there() -> None:
        last[:] = [job.make(client=client)]

    judged: dict[str, Callable[[], object]] = {"one process": job.here, many: there}
    with threads(1):
        rounds = int(seconds / sum(once(call) for call in judged.values()))
        more = interleave(judged, rounds, pause=0.05)
        _check_pairs(last[0], job.make())
    for of, taken in job.limits.items():
        yield {
            "experiment": "distributed-limit",
            "model": job.name,
            "m": job.m,
            "method": "only multiply",
            "workers": of,
            "threads": of,
            "wall_seconds": taken.median,
            "efficiency": gain(job.limits[1], taken),
            "rounds": len(taken.seconds),
            "stolen": job.stolen,
        }
    often = more if rounds else {name: job.times[name] for name in judged}
    for method, turns in job.times.items():
        taken, beside = (often[method], often["one process"]) if method in often else (turns, job.times["one process"])
        what, of = ("one process", 1) if method == "one process" else (method.split()[0], int(method.split()[1]))
        yield {
            "experiment": "distributed-pairs",
            "dataset": "higgs",
            "source": table.label,
            "n": table.n,
            "d": table.d,
            "model": job.name,
            "m": job.m,
            "s": job.s,
            "method": what,
            "workers": 0 if method == "one process" else of,
            "threads": of,
            "wall_seconds": taken.median,
            "spread": taken.spread,
            "rounds": len(taken.seconds),
            "beside_seconds": beside.median,
            "efficiency": gain(beside, taken) / of,
            "half_of_rounds": list(np.percentile(gains(beside, taken) / of, [25, 75])),
            "of_one_worker": gain(job.times["workers 1"], turns) / of,
        }
