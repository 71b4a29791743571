"""Moved to `l2ul_fast.datasets.file.hdf5`; kept for the case tables of older commits, which asv runs on this one."""

from l2ul_fast.datasets.file.hdf5 import DatasetFile, DatasetWriter, open_dataset, verify

__all__ = ["DatasetFile", "DatasetWriter", "open_dataset", "verify"]
