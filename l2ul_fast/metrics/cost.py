"""Costs of unlearning beside retraining."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from l2ul_fast.checks import NotNegative, Number0, Numbers1, Positive, Results1, checked
from l2ul_fast.errors import DataError
from l2ul_fast.metrics.value import Value, degenerate, measured, same_length


class Times(NamedTuple):
    """Median and quartiles of repeated timings, in seconds."""

    median: float
    low: float
    high: float
    n: int


@checked
def times(seconds: Numbers1, warmup: Number0 = 1) -> Times:
    """Median and quartiles of timings (k,) without the first `warmup`."""
    kept = np.asarray(seconds, np.float64)[warmup:]
    if kept.size == 0 or not (np.asarray(seconds) >= 0).all():
        raise DataError(f"there must be timings of at least 0 seconds left after {warmup} for warming up")
    low, median, high = np.quantile(kept, [0.25, 0.5, 0.75])
    return Times(float(median), float(low), float(high), kept.size)


@checked
def break_even(extra_seconds: NotNegative, retrain_seconds: NotNegative, unlearn_seconds: NotNegative) -> Value:
    """Requests after which preparing has paid: extra / (retrain - unlearn). Target (of Retrain itself) 0. Round up.

    extra_seconds is what `prepare` costs beyond a plain fit. Degenerate when unlearning is not faster than retraining.
    """
    if unlearn_seconds >= retrain_seconds:
        return degenerate("never: unlearning is not faster than retraining", 0.0)
    return measured(extra_seconds / (retrain_seconds - unlearn_seconds), 0.0)


@checked
def throughput(seconds: Numbers1) -> Value:
    """Requests per second of timings (k,) of requests answered one after the other. Target: none, more is better."""
    if not (np.asarray(seconds) >= 0).all():
        raise DataError("times must be at least 0 seconds")
    total = float(np.asarray(seconds, np.float64).sum())
    return measured(np.size(seconds) / total) if total > 0 else degenerate("no time passed")


@checked
def time_to_rho(seconds: Numbers1, rhos: Results1, goal: Positive = 0.1) -> Value:
    """First of the cumulative times seconds (k,) at which rhos (k,) is below the goal. Target: Retrain's time."""
    same_length(seconds, rhos)
    reached = np.flatnonzero(np.asarray(rhos, np.float64) < goal)
    if reached.size == 0:
        return degenerate(f"rho never fell below {goal}")
    return measured(float(np.asarray(seconds, np.float64)[reached[0]]))
