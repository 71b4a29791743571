"""Moved to `l2ul_fast.datasets.file.layout`; kept for the case tables of older commits, which asv runs on this one."""

from l2ul_fast.datasets.file.layout import CODECS, dataset_path, default_data_dir

__all__ = ["CODECS", "dataset_path", "default_data_dir"]
