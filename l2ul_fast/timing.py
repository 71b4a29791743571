"""Moved to `l2ul_fast.measure.timing`; kept for the case tables of older commits, which asv runs on this one."""

from l2ul_fast.measure.timing import interleave, once

__all__ = ["interleave", "once"]
