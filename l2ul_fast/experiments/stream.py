"""Moved to `l2ul_fast.experiments.speed.stream`; kept for the case tables of older commits that asv runs here."""

from l2ul_fast.experiments.speed.stream import memory_growth

__all__ = ["memory_growth"]
