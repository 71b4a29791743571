"""Moved to `l2ul_fast.datasets.stream.cellstore`; kept for the case tables of older commits that asv runs here."""

from l2ul_fast.datasets.stream.cellstore import CellStore, stream_cells

__all__ = ["CellStore", "stream_cells"]
