"""Moved to `l2ul_fast.experiments.quality.heads`; kept for the case tables of older commits that asv runs here."""

from l2ul_fast.experiments.quality.heads import answer, newton

__all__ = ["answer", "newton"]
