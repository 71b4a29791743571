"""Datasets by name. Each of the paper's seven is one file in sets/: where it comes from, what it holds, how it is read.

A dataset of one's own is a data file, or a file with a class `Dataset` (see plugin.py); installed ones are found by the
entry point group `l2ul_fast.datasets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from l2ul_fast.datasets.file.layout import dataset_path, default_data_dir
from l2ul_fast.errors import DataError

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
CC_BY = "CC BY 4.0"
ENTRY_POINTS = "l2ul_fast.datasets"


def words(text: str) -> tuple[str, ...]:
    """Names between blanks."""
    return tuple(text.split())


@dataclass(frozen=True)
class RawFile:
    """One file to download. sha256 is of the file as served (None: not known)."""

    url: str
    sha256: str | None = None

    @property
    def name(self) -> str:
        """Last part of the URL."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class StandIn:
    """How a dataset's stand-in was fitted; see standin/fit.py."""

    parameters: str  # file in standin/parameters
    components: int  # of the mixture
    balance: float | None = None  # share of class 1 in the complete set, where only a subset may be at hand
    one_hot: tuple[tuple[int, int], ...] = ()  # groups of columns, each from a first one to the one behind the last
    max_levels: int = 16  # columns with more distinct values are continuous


@dataclass(frozen=True)
class DatasetInfo:
    """Everything known about a dataset before reading it. The paper's sets have the classes 0 and 1."""

    name: str
    n: int
    columns: tuple[str, ...]
    original_name: str = ""
    source_page: str = ""
    licence: str = ""
    citation: str = ""
    files: tuple[RawFile, ...] = ()
    base_names: tuple[str, ...] = ()  # names of the original file once unpacked, lower case
    patterns: tuple[str, ...] = ()  # of many small original files, which may also be in the archives `files`
    content_sha256: str | None = None  # of the unpacked original file, line ends LF
    class_counts: tuple[int, int] | None = None  # rows of class 0 and 1 where known for certain
    class_rule: str = ""
    categorical: str = "none"
    missing: str = "none"
    npz: str | None = None  # a NumPy archive with X and y that may stand in the raw folder instead
    npz_sha256: str | None = None  # given when that archive is the complete set; without it, it is a subset
    reader: Callable[..., Iterator[Any]] | None = None  # (raw, split_seed, seen_text, seen_file) -> rows
    stand_in: StandIn | None = None
    order: int = 1000  # in tables: the paper's order, then by name
    path: Path | None = None  # the HDF5 file of a user's own dataset

    @property
    def d(self) -> int:
        """Columns."""
        return len(self.columns)


REGISTRY: dict[str, DatasetInfo] = {}


def register(info: DatasetInfo) -> DatasetInfo:
    """Add a dataset; DataError if its name is taken by another one."""
    known = REGISTRY.get(info.name)
    if known is not None and known != info:
        raise DataError(f"there is already a dataset {info.name!r}: choose another name")
    REGISTRY[info.name] = info
    return info


def installed() -> dict[str, EntryPoint]:
    """Datasets of installed packages, by name; none is imported."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def get_info(name: str) -> DatasetInfo:
    """The registry entry of a dataset; DataError for an unknown name.

    A user's own dataset is also found by its file in the data folder, an installed one by its entry point.
    """
    if name not in REGISTRY:
        from l2ul_fast.datasets import plugin

        own = dataset_path(default_data_dir(), name, "own")
        if own.is_file():
            plugin.load_dataset_file(own)
        elif name in installed():
            plugin.register_installed(installed()[name])
        else:
            raise DataError(f"there is no dataset {name!r}: choose one of {', '.join(dataset_names())}")
    return REGISTRY[name]


def dataset_names() -> list[str]:
    """All names: the paper's datasets in its order, a user's own ones, and installed ones (which are not imported)."""
    known = sorted(REGISTRY.values(), key=lambda info: (info.order, info.name))
    return list(dict.fromkeys([*(info.name for info in known), *sorted(installed())]))


def datasets() -> list[DatasetInfo]:
    """All datasets in the order of `dataset_names`; installed ones are imported, and their rows read once."""
    return [get_info(name) for name in dataset_names()]


def _load_sets() -> None:
    """Import every file of sets/, which registers itself."""
    from l2ul_fast.datasets import sets

    for module in iter_modules(sets.__path__):
        import_module(f"{sets.__name__}.{module.name}")


_load_sets()
REGISTRY = dict(sorted(REGISTRY.items(), key=lambda item: item[1].order))
