"""Moved to `l2ul_fast.measure.records`; kept for one release."""

from l2ul_fast.measure.records import Run, read_records, write_atomic

__all__ = ["Run", "read_records", "write_atomic"]
