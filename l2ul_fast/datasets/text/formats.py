"""Rows of an original file, by the reader of its dataset: X (k, d) float32 and y (k,) uint8, in file order."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from l2ul_fast.datasets.split import train_mask
from l2ul_fast.datasets.text.csv import Rows
from l2ul_fast.datasets.text.rawfiles import READ_ERRORS, RawData, Seen
from l2ul_fast.errors import DataError


def read_rows(
    raw: RawData, *, split_seed: int = 0, seen_text: Seen | None = None, seen_file: Seen | None = None
) -> Iterator[Rows]:
    """The rows of an original. seen_text gets the unpacked text, seen_file the bytes on disk (text files only)."""
    reader = raw.info.reader
    if raw.kind == "npz":
        yield from read_npz(raw.path, raw.info.d, split_seed)
    else:
        assert reader is not None
        yield from reader(raw, split_seed, seen_text, seen_file)


def impute_train_median(X: np.ndarray, split_seed: int = 0) -> np.ndarray:
    """Replace each NaN of X (n, d), in place, by the (lower) median of its column over the training rows."""
    train = train_mask(0, len(X), split_seed)
    for j in np.flatnonzero(np.isnan(X).any(axis=0)):
        known = X[train, j]
        known = np.sort(known[~np.isnan(known)])
        X[np.isnan(X[:, j]), j] = known[(known.size - 1) // 2] if known.size else 0.0
    return X


def read_npz(path: Path, d: int, split_seed: int = 0) -> Iterator[Rows]:
    """Arrays X (n, d) and y (n,) of a NumPy archive; NaN is imputed."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            X, y = np.asarray(archive["X"], dtype=np.float32), np.asarray(archive["y"])
    except (*READ_ERRORS, ValueError, KeyError) as error:
        raise DataError(f"{path} is not a NumPy archive with X and y, or is damaged: {error}") from error
    if X.ndim != 2 or X.shape[1] != d or y.shape != X.shape[:1] or not np.isin(y, (0, 1)).all():
        raise DataError(f"{path} must hold X (n, {d}) and y (n,) of 0 and 1, not {X.shape} and {y.shape}")
    yield impute_train_median(X, split_seed), y.astype(np.uint8)
