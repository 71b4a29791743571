"""Rows for experiments: an original dataset where its files are, else its stand-in, and how many there are."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from l2ul_fast.datasets.file.layout import dataset_path
from l2ul_fast.datasets.registry import REGISTRY, get_info
from l2ul_fast.datasets.split import count_train
from l2ul_fast.errors import DataError
from l2ul_fast.experiments.registry import Context, say
from l2ul_fast.tables import ArrayTable, FileTable, in_memory

#: Share of the rows asked for that are for training, and the fewest there may be.
TRAIN, FEWEST = 0.8, 100


def tables(context: Context, name: str, rows: int | None = None) -> tuple[str, ArrayTable, ArrayTable]:
    """(label, training rows, test rows) in memory; `rows` in all at most. The label says real, subset or stand-in."""
    return load(name, rows, context.raw_dir, context.data_dir, bool(context.numbers.get("complete")))


def train_size(context: Context, name: str, rows: int | None = None) -> int:
    """Training rows that `tables` gives, without reading or making any stand-in."""
    return _train_size(name, rows, context.raw_dir, context.data_dir, bool(context.numbers.get("complete")))


@lru_cache(maxsize=2)
def load(
    name: str, rows: int | None, raw_dir: Path | None, folder: Path, complete: bool = False
) -> tuple[str, ArrayTable, ArrayTable]:
    """(label, training rows, test rows); the last two datasets are kept in memory."""
    say(f"loading {name}")
    path = dataset_file(name, rows, raw_dir, folder, complete)
    train = FileTable(path, "train")
    label, both = own_source(name) or train.label, []
    for part, share in ((train, TRAIN), (FileTable(path, "test"), 1 - TRAIN)):
        table = in_memory(part)
        part.close()
        both.append(some_rows(table, None if rows is None else max(FEWEST, round(rows * share))))
    return label, both[0], both[1]


def own_source(name: str) -> str | None:
    """own:<sha256> of a user's own dataset; None of the others, and of names that are no dataset's."""
    path = REGISTRY[name].path if name in REGISTRY else None
    if path is None:
        return None
    table = FileTable(path, "all")
    table.close()
    return str(table.shards.files[0].source)


@lru_cache(maxsize=64)
def _train_size(name: str, rows: int | None, raw_dir: Path | None, folder: Path, complete: bool) -> int:
    path = original_file(name, raw_dir, folder, complete)
    if path is None:
        total = get_info(name).n
        n = count_train(total if rows is None else min(rows, total))
    else:
        table = FileTable(path, "train")
        n = table.n
        table.close()
    return n if rows is None else min(n, max(FEWEST, round(rows * TRAIN)))


def original_file(name: str, raw_dir: Path | None, folder: Path, complete: bool = False) -> Path | None:
    """The HDF5 file of the original rows (a subset of them only if not `complete`), converted if need be; None without
    original files."""
    from l2ul_fast.datasets.text.convert import convert
    from l2ul_fast.datasets.text.rawfiles import find_raw

    if get_info(name).path is not None:  # the user's own
        return get_info(name).path
    for label in ("real",) if complete else ("real", "subset"):
        if dataset_path(folder, name, label).exists():
            return dataset_path(folder, name, label)
    try:
        raw = find_raw(name, raw_dir)
    except DataError:
        return None
    if raw is None or (complete and raw.is_subset):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return convert(name, raw_dir, folder)


def dataset_file(name: str, rows: int | None, raw_dir: Path | None, folder: Path, complete: bool = False) -> Path:
    """The dataset's HDF5 file: the original's, else a stand-in's of `rows` rows (None: as many as the original has)."""
    total = get_info(name).n
    found = original_file(name, raw_dir, folder, complete)
    return found or standin_file(name, total if rows is None else min(rows, total), folder)


def standin_file(name: str, rows: int, folder: Path) -> Path:
    """The file of a stand-in of `rows` rows, made in a folder of its own if it is not there yet."""
    from l2ul_fast.datasets.standin.rows import make

    own = folder if rows == get_info(name).n else folder / f"standin-{rows}"  # a full one is found by name alone
    for path in (dataset_path(folder, name, "stand-in"), dataset_path(own, name, "stand-in")):
        if path.exists() and all_rows(path) == rows:
            return path
    own.mkdir(parents=True, exist_ok=True)
    return make(name, rows, 0, own)


def all_rows(path: Path) -> int:
    """Rows of a dataset's file, training and test."""
    table = FileTable(path, "all")
    table.close()
    return table.n


def some_rows(table: ArrayTable, k: int | None) -> ArrayTable:
    """k rows drawn once for all (files may be sorted by class)."""
    if k is None or table.n <= k:
        return table
    some = np.random.default_rng(0).permutation(len(table.X))[:k]
    return ArrayTable(np.ascontiguousarray(table.X[some]), table.y[some].copy(), table.classes)


def standin_rows(n: int, name: str = "higgs") -> ArrayTable:
    """Standardised rows of a stand-in, in memory, without a file; columns that are constant stay zero."""
    from l2ul_fast.datasets.standin.rows import generate

    X, y = generate(name, 0, n, n, 3)
    scale = X.std(axis=0)
    return ArrayTable(((X - X.mean(axis=0)) / np.where(scale > 0, scale, 1.0)).astype(np.float32), y, [0, 1])
