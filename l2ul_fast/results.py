"""Moved to `l2ul_fast.measure.records`; kept for one release."""

from l2ul_fast.files import write_atomic
from l2ul_fast.measure.records import Run, read_records

__all__ = ["Run", "read_records", "write_atomic"]
