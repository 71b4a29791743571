"""Moved to `l2ul_fast.experiments.speed.kernels`; kept for the case tables of older commits that asv runs here."""

from l2ul_fast.experiments.speed.kernels import measure_cell

__all__ = ["measure_cell"]
