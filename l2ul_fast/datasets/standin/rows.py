"""Stand-ins: generated rows with the shape and statistics of the seven real datasets, for machines without them.

The model has two classes and K components, shared by the classes. A row picks a class and a component; the pair (a
"cell") has a Gaussian for the continuous columns and one table of probabilities per categorical column or one-hot
group. The Gaussian values then pass through monotone maps, one per class and column, which give every column the
real class-wise distribution (tails, atoms, rounding). For skin, many rows share one random key: exact duplicates.
standin_fit.py fits the parameters to the real data; only the parameters are stored here.

Every row depends on (name, seed, row number) alone, so threads, chunks and the number of rows do not change it:
a small stand-in is the beginning of a larger one. A stand-in never replaces the real data in a claim about it;
its source attribute is standin:<generator version>:<seed>.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from numba import get_num_threads

from l2ul_fast.datasets.registry import StandIn, get_info
from l2ul_fast.datasets.standin.kernel import Model, fill_rows
from l2ul_fast.errors import DataError
from l2ul_kernels.splitmix import mix

GENERATOR_VERSION = "1"
MIN_ROWS = 100
PIECE = 1 << 14  # rows that one thread generates at a time
PARAMS_DIR = Path(__file__).parent / "parameters"


@cache
def load_model(name: str) -> Model:
    """The fitted parameters of the stand-in for dataset `name`, ready for the kernel."""
    with np.load(PARAMS_DIR / stand_in_of(name).parameters, allow_pickle=False) as stored:
        return build_model(dict(stored))


def stand_in_of(name: str) -> StandIn:
    """How the stand-in of this dataset is made; DataError where there is none."""
    how = get_info(name).stand_in
    if how is None:
        raise DataError(f"there is no stand-in for {name}, only its own rows")
    return how


def build_model(p: dict[str, np.ndarray]) -> Model:
    """Unpack stored parameters (see standin_fit.fit_params) into the kernel's layout."""
    k, g = p["weight"].shape[1], p["columns"].size
    balance = float(p["balance"])
    weight = p["weight"] / p["weight"].sum(axis=1, keepdims=True) * [[1 - balance], [balance]]
    factor = np.zeros((2 * k, g, g + 3), np.float32)
    row, col = np.tril_indices(g)
    factor[:, row, col] = p["factor"].reshape(2 * k, -1)
    ends = np.cumsum(p["cat_prob"].astype(np.float64), axis=-1).reshape(2 * k, *p["cat_prob"].shape[2:])
    for s, size in enumerate(p["cat_size"]):
        ends[:, s, size - 1 :] = 2  # whatever rounding did to the sum, the last level takes the rest
    starts = np.concatenate(([0.0], np.cumsum(weight.ravel())[:-1]))
    return Model(
        d=int(p["d"]),
        starts=starts,
        guide=np.searchsorted(starts, np.arange(1024) / 1024, side="right") - 1,
        class_1=1 - balance,
        columns=p["columns"].astype(np.int64),
        mean=p["mean"].astype(np.float32).reshape(2 * k, g),
        factor=factor,
        value=np.ascontiguousarray(p["map"][:, :, :-1]),
        slope=np.diff(p["map"], axis=2),
        integer=p["integer"],
        cat_column=p["cat_column"].astype(np.int64),
        cat_size=p["cat_size"].astype(np.int64),
        cat_onehot=p["cat_onehot"],
        cat_levels=p["cat_levels"],
        cat_ends=ends.astype(np.float32),
        pool=p["pool"],
    )


def fill(model: Model, start: int, seed: int, X: np.ndarray, y: np.ndarray, alone: bool = False) -> None:
    """Generate rows start, start + 1, ... of the stand-in into X (k, d) float32 and y (k,) uint8, C-contiguous.

    By as many threads as numba may use, or alone by the calling one.
    """
    # uint64 again: numba hands results back as Python integers, and one dtype means one compiled kernel.
    key = np.uint64(mix(np.uint64(seed + 1)))
    if alone:
        fill_rows(start, key, model, X, y)
        return

    def piece(low: int) -> None:
        fill_rows(start + low, key, model, X[low : low + PIECE], y[low : low + PIECE])

    with ThreadPoolExecutor(get_num_threads()) as pool:
        list(pool.map(piece, range(0, len(y), PIECE)))


def generate(
    name: str, start: int = 0, stop: int | None = None, rows: int | None = None, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows start..stop of the stand-in with `rows` rows: X (stop - start, d) float32 and y (stop - start,) uint8."""
    model, rows = load_model(name), _check_rows(name, rows, seed)
    stop = rows if stop is None else stop
    if not 0 <= start <= stop <= rows:
        raise DataError(f"rows {start} to {stop} are not within the {rows} rows of the stand-in")
    X = np.empty((stop - start, model.d), np.float32)
    y = np.empty(stop - start, np.uint8)
    fill(model, start, seed, X, y)
    return X, y


def make(
    name: str,
    rows: int | None = None,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the stand-in of dataset `name` (default: as many rows as the real set) and return the path of its file.

    progress(done, total) is called after every piece. An older stand-in stays intact until the new one is complete.
    """
    # Imported here: whoever only generates rows in memory needs no h5py.
    from l2ul_fast.datasets.file.hdf5 import DatasetWriter, chunk_rows, dataset_path
    from l2ul_fast.datasets.file.layout import default_data_dir

    model, rows = load_model(name), _check_rows(name, rows, seed)
    path = dataset_path(default_data_dir() if data_dir is None else data_dir, name, "stand-in")
    source = f"standin:{GENERATOR_VERSION}:{seed}"
    piece = min(rows, chunk_rows(model.d))
    # As many threads generate as there are cores, and this one writes: whenever it waits for the disk or for rows, they
    # have both cores. There is one buffer for each, and one from which rows are written.
    threads = get_num_threads()
    buffers = [(np.empty((piece, model.d), np.float32), np.empty(piece, np.uint8)) for _ in range(threads + 1)]

    def produce(start: int) -> tuple[np.ndarray, np.ndarray]:
        k = min(piece, rows - start)
        X, y = (b[:k] for b in buffers[start // piece % len(buffers)])
        fill(model, start, seed, X, y, alone=True)
        return X, y

    starts = range(0, rows, piece)
    with (
        DatasetWriter(path, name=name, source=source, d=model.d, classes=[0, 1], n=rows) as writer,
        ThreadPoolExecutor(threads) as producers,
    ):
        coming = deque(producers.submit(produce, start) for start in starts[: len(buffers)])
        for i in range(len(starts)):
            X, y = coming.popleft().result()
            writer.append(X, y)
            coming.extend(producers.submit(produce, start) for start in starts[i + len(buffers) :][:1])
            if progress is not None:
                progress(writer.rows, rows)
    return path


def _check_rows(name: str, rows: int | None, seed: int) -> int:
    full = get_info(name).n
    rows = full if rows is None else rows
    if not MIN_ROWS <= rows <= full:
        raise DataError(f"a stand-in for {name} has {MIN_ROWS} to {full} rows, not {rows}")
    if not 0 <= seed < 2**63:
        raise DataError(f"the seed must be a whole number from 0 to 2**63 - 1, not {seed}")
    return rows
