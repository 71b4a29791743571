"""Timing that compares: candidates take turns in one run, so that noise hits all of them alike."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from l2ul_fast.checks import Whole, Within

T = TypeVar("T")

#: Pool threads spin for some milliseconds after their work: with several threads, the next candidate waits until they
#: sleep, or it would share its cores with them (see also l2ul_fast.cli.main).
PAUSE = 0.01


@dataclass
class Times:
    """Seconds of repeated calls of one candidate."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Interquartile range as a share of the median."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float((high - low) / self.median)

    @property
    def facts(self) -> dict[str, float]:
        """What a record says of them."""
        return {"seconds": self.median, "spread": self.spread, "repeats": len(self.seconds)}


def clocked(call: Callable[[], T]) -> tuple[float, T]:
    """(seconds of one call, its result)."""
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def once(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    return clocked(call)[0]


def interleave(
    calls: dict[str, Callable[[], object]], repeats: int = 7, inner: dict[str, int] | None = None, pause: float = PAUSE
) -> dict[str, Times]:
    """Call every candidate in turn, `repeats` rounds, each round in another order: what ran before leaves its traces.

    Candidates must be warmed up already. `inner[name]` calls are timed together where one would be too short to time.
    """
    repeats, pause = Whole(1)("repeats", repeats), Within(0.0, 3600.0)("pause", pause)
    names, inner, orders = list(calls), inner or {}, random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            for name in orders.sample(names, len(names)):
                call, count = calls[name], inner.get(name, 1)
                time.sleep(pause)
                start = time.perf_counter()
                for _ in range(count):
                    call()
                seconds[name].append((time.perf_counter() - start) / count)
    finally:
        if enabled:
            gc.enable()
    return {name: Times(values) for name, values in seconds.items()}
