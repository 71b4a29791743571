"""Timing that compares: candidates take turns in one run, so that noise hits all of them alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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


def once(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleave(
    calls: dict[str, Callable[[], object]],
    repeats: int = 7,
    inner: dict[str, int] | None = None,
    pause: float = PAUSE,
    settle: float = 0.0,
) -> dict[str, Times]:
    """Call every candidate in turn, `repeats` rounds, each round starting at another one.

    Candidates must be warmed up already. `inner[name]` calls are timed together where one would be too short to time.
    settle: seconds of calls that are not timed before those that are; a core that has slept is slow for a millisecond,
    which microsecond calls would pay for and longer ones not.
    """
    names, inner = list(calls), inner or {}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    enabled = gc.isenabled()
    gc.disable()
    try:
        for turn in range(repeats):
            for k in range(len(names)):
                name = names[(turn + k) % len(names)]
                call, count = calls[name], inner.get(name, 1)
                time.sleep(pause)
                ready = time.perf_counter() + settle
                while time.perf_counter() < ready:
                    call()
                start = time.perf_counter()
                for _ in range(count):
                    call()
                seconds[name].append((time.perf_counter() - start) / count)
    finally:
        if enabled:
            gc.enable()
    return {name: Times(values) for name, values in seconds.items()}
