"""Moved to `l2ul_fast.measure.environment`; kept for the case tables of older commits, which asv runs on this one."""

from l2ul_fast.measure.environment import describe, git_sha

__all__ = ["describe", "git_sha"]
