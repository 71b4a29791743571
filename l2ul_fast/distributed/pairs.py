"""Training pairs on workers: this process draws the rows of every pair, workers read those rows and fit.

Which rows a pair has follows from one seed, drawn here in the same order as without workers; a fit depends on its pair
only. So the pairs are those of a single process, bit for bit. Drawing goes on while the first pairs are being fitted.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.distributed.cluster import cancelled_on_error, prepare, token, worker_count
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.tables import ArrayTable, FileTable, Table
from l2ul_fast.unlearner.pairs import ROWS_AT_ONCE, Drawn, Pairs, Room, fit_batch, rows_of

Progress = Callable[[int, int], None]
Ids = NDArray[np.int64]

#: Tasks per worker: enough that nobody waits long for the last one (`l2ul bench distributed`).
TASKS = 16


#: What a worker's thread keeps from task to task.
_own = threading.local()


class _Files:
    """Dataset files that workers open themselves."""

    def __init__(self, table: FileTable) -> None:
        from l2ul_fast.datasets.cellstore import fingerprint

        self.paths = tuple(str(path.resolve()) for path in table.shards.paths)
        self.fingerprint = fingerprint(table.shards)


@functools.lru_cache(maxsize=2)
def _table_of(paths: tuple[str, ...], expected: str) -> FileTable:
    from l2ul_fast.datasets.cellstore import fingerprint

    table = FileTable(list(paths), "all")  # rows come by number, so none has to be hidden
    if fingerprint(table.shards) != expected:
        table.close()
        raise DataError(f"{paths[0]} on the worker is not the file that was fitted: use one file system for all")
    return table


def _same(held: Any) -> Any:
    """A task, not scattered data: the scheduler can make it again when workers die."""
    return held


def _fit_some(held: tuple[Any, Any], ids: NDArray[Any], n_forget: Ids) -> tuple[NDArray[Any], ...]:
    """fit_batch of pairs with row numbers ids (k, s), on one thread."""
    numba.set_num_threads(1)
    model, source = held
    table = _table_of(source.paths, source.fingerprint) if isinstance(source, _Files) else ArrayTable(*source)
    if not hasattr(_own, "room"):
        _own.room = Room()
    return fit_batch(model, *rows_of(table, ids.astype(np.int64), _own.room), n_forget)


def _load(model: Any, d: int, dtype: str) -> None:
    """Compile or load what fitting a pair needs, on rows of no meaning."""
    from l2ul_fast.datasets.chunks import fletcher32

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, d)).astype(dtype), np.arange(40, dtype=np.uint8) % model.n_classes
    fit_batch(model, X, y, np.arange(40)[None], np.array([1]))
    fletcher32(np.zeros(8, np.uint8))


class PairPool:
    """Pairs of one model and table on the workers of a client: `add` pairs as they are drawn, then take `pairs`."""

    def __init__(self, client: Any, model: Any, table: Table, visible: Ids, m: int, s: int) -> None:
        """m pairs of s rows; visible (n,) are the numbers of the table's rows."""
        self.client, self.visible, self.m, self.s = client, visible, m, s
        self.name = token()
        # the kernels for a table's dtype; a file's rows are float32
        dtype = str(table.X.dtype) if isinstance(table, ArrayTable) else "float32"
        prepare(client, _load, model, table.d, dtype)
        if isinstance(table, FileTable):
            self.held = client.submit(_same, (model, _Files(table)), key=f"l2ul-held-{self.name}", pure=False)
        elif isinstance(table, ArrayTable):
            self.held = client.scatter((model, (table.X, table.y, table.classes)), broadcast=True, hash=False)
        else:
            raise UserError(f"workers cannot read a {type(table).__name__}")
        self.batch = max(1, min(ROWS_AT_ONCE // s, -(-m // (TASKS * worker_count(client)))))
        self.drawn = Drawn(m, s)
        self.waiting = np.zeros(0, np.int64)
        self.futures: dict[str, Any] = {}
        self.numbers: dict[str, Ids] = {}

    def add(self, numbers: Ids, places: Ids, n_forget: Ids) -> None:
        """Pairs with these numbers (k,) have the rows visible[places] (k, s), of which the first n_forget (k,) are
        forgotten."""
        for number, row in zip(numbers, places, strict=True):
            np.take(self.visible, row, out=self.drawn.ids[number], mode="clip")  # "raise" would copy it once more
        self.drawn.n_forget[numbers] = n_forget
        self.waiting = np.concatenate([self.waiting, numbers])
        while len(self.waiting) >= self.batch:
            self._submit()

    def _submit(self) -> None:
        numbers, self.waiting = self.waiting[: self.batch], self.waiting[self.batch :]
        in_a_row = (np.diff(numbers) == 1).all()  # as long as no pair had to be drawn again
        ids = self.drawn.ids[slice(numbers[0], numbers[-1] + 1) if in_a_row else numbers]
        small = ids.astype(np.uint32 if self.visible[-1] < 2**32 else np.int64)
        key = f"l2ul-pairs-{self.name}-{len(self.futures)}"
        self.numbers[key] = numbers
        task = (_fit_some, self.held, small, self.drawn.n_forget[numbers])
        self.futures[key] = self.client.submit(*task, key=key, pure=False)

    def pairs(self, progress: Progress | None = None) -> Pairs:
        """All pairs that were added, in the order of their numbers."""
        from distributed import as_completed

        while self.waiting.size:
            self._submit()
        done = 0
        for future, made in as_completed(list(self.futures.values()), self.client.loop, with_results=True):
            numbers = self.numbers[future.key]
            self.drawn.add(numbers, made)
            future.release()
            done += len(numbers)
            if progress is not None:
                progress(done, self.m)
        return self.drawn.pairs()

    def __enter__(self) -> PairPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            with cancelled_on_error([*self.futures.values(), self.held]):
                raise error


def _full_some(held: tuple[Any, ...], ids: Ids, starts: Ids) -> tuple[NDArray[Any], NDArray[Any]]:
    numba.set_num_threads(1)
    model, X, y, found = held
    made = model.anchored_pairs(X, y, ids, starts, found, fallback=False)
    return made.theta_r, made.gradient_norm


def _load_full(model: Any, d: int, dtype: str, found: Any) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((64, d)).astype(dtype), np.arange(64, dtype=np.uint8) % 2
    model.anchored_pairs(X, y, np.arange(2), np.array([0, 1, 2]), found, fallback=False, max_steps=1)


def full_fits(
    client: Any, model: Any, X: NDArray[Any], y: NDArray[np.uint8], batches: list[tuple[Ids, Ids]], found: Any,
    progress: Progress | None = None,
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:  # fmt: skip
    """(theta_r, gradient norms) of full pairs on X (n, d), y (n,), for each batch of forget sets (flat ids, starts)."""
    from distributed import as_completed

    prepare(client, _load_full, model, X.shape[1], str(X.dtype), found)
    held = client.scatter((model, X, y, found), broadcast=True, hash=False)
    name = token()
    futures = [
        client.submit(_full_some, held, ids, starts, key=f"l2ul-full-{name}-{i}", pure=False)
        for i, (ids, starts) in enumerate(batches)
    ]
    results: dict[str, Any] = {}
    done = 0
    with cancelled_on_error([*futures, held]):
        for future, result in as_completed(futures, client.loop, with_results=True):
            results[future.key] = result
            done += len(result[0])
            if progress is not None:
                progress(done, sum(len(starts) - 1 for _, starts in batches))
    return [results[future.key] for future in futures]
