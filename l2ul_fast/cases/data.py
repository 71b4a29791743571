"""Rows of the benchmark cases: stand-ins by default, the real files of the data folder when asked for."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.datasets.registry import get_info
from l2ul_fast.errors import UserError

SOURCE_VARIABLE = "L2UL_BENCH_SOURCE"
SEED = 0


def source() -> str:
    """ "stand-in", or "real" when L2UL_BENCH_SOURCE says so."""
    found = os.environ.get(SOURCE_VARIABLE) or "stand-in"
    if found not in ("stand-in", "real"):
        raise UserError(f"{SOURCE_VARIABLE} must be stand-in or real, not {found!r}")
    return found


def real_file(name: str) -> Path:
    """The HDF5 file of the real dataset; UserError says how to make it when it is not there."""
    from l2ul_fast.datasets.layout import dataset_path, default_data_dir

    path = dataset_path(default_data_dir(), name).absolute()
    if not path.exists():
        raise UserError(f"{path} is not there: make it with `l2ul data convert {name}`, or set L2UL_DATA_DIR")
    return path


@lru_cache(maxsize=4)
def rows(name: str, n: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The first n standardised rows X (n, d) and labels y (n,), fewer where the set has fewer. Do not change them."""
    n = min(n, get_info(name).n)
    if source() == "real":
        from l2ul_fast.datasets.hdf5 import open_dataset

        with open_dataset(real_file(name)) as file:
            X, y = file.X[:n], np.searchsorted(sorted(file.classes), file.y[:n]).astype(np.uint8)
    else:
        from l2ul_fast.datasets.standin import generate

        X, y = generate(name, 0, n, n, SEED)
    scale = X.std(axis=0)
    return ((X - X.mean(axis=0)) / np.where(scale > 0, scale, 1)).astype(np.float32), y


def many_rows(name: str, n: int) -> NDArray[np.float32]:
    """X (n, d): the rows of the set, again and again where it has fewer. For kernels whose speed is that of any row."""
    X, _ = rows(name, n)
    return np.resize(X, (n, X.shape[1])) if len(X) < n else X


def facts(name: str, n: int, **more: Any) -> dict[str, Any]:
    """Name, source and shape of the rows, for results."""
    return {"dataset": name, "source": source(), "n": n, "d": get_info(name).d, **more}
