"""The paper's seven datasets: registry, download, conversion to chunked HDF5 and reading."""

from l2ul_fast.datasets.file.hdf5 import DatasetFile, DatasetWriter, open_dataset, verify
from l2ul_fast.datasets.file.layout import CODECS, dataset_path, default_data_dir
from l2ul_fast.datasets.registry import REGISTRY, DatasetInfo, get_info
from l2ul_fast.datasets.split import train_mask
from l2ul_fast.datasets.text.convert import convert
from l2ul_fast.datasets.text.fetch import fetch
from l2ul_fast.datasets.text.rawfiles import default_raw_dir, find_raw

__all__ = [
    "CODECS",
    "REGISTRY",
    "DatasetFile",
    "DatasetInfo",
    "DatasetWriter",
    "convert",
    "dataset_path",
    "default_data_dir",
    "default_raw_dir",
    "fetch",
    "find_raw",
    "get_info",
    "open_dataset",
    "train_mask",
    "verify",
]
