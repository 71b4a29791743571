"""Moved to `l2ul_fast.report.compare`; kept for one release."""

from l2ul_fast.report.compare import *  # noqa: F403
