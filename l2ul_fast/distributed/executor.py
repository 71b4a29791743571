"""Training pairs on workers: each draws, reads and fits pairs by their numbers.

Which rows a pair has follows from its number and one seed, and a fit depends on its pair only. So the pairs are those
of a single process, bit for bit.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.distributed.cluster import cancelled_on_error, prepare, token
from l2ul_fast.errors import DataError, UserError
from l2ul_fast.tables import ArrayTable, FileTable, Table
from l2ul_fast.unlearner.pairs.make import Fits, Made, PairMaker, fit_batch, id_type
from l2ul_fast.unlearner.pairs.order import in_order
from l2ul_fast.unlearner.pairs.plan import PairPlan, has_classes

Progress = Callable[[int, int], None]
Ids = NDArray[np.int64]

#: The smallest runs are this many times the square root of a worker's pairs: the last task's time is lost where a
#: worker waits for another's, and every task takes all processes some milliseconds.
SMALLEST = 0.5
#: The share of what is left that is given out at a time: with more, one slow worker would keep the others waiting.
AT_A_TIME = 0.8
#: The share of all pairs that is fetched at a time, if not many rows: to fetch a result takes milliseconds too.
FETCHED = 0.5

#: Bytes of paths that go with every task, at most: to have one task hold them makes all others start 10 ms later.
SMALL = 1 << 14

#: Rows of the pairs of one task, at most: a worker holds four bytes of each until they are fetched.
TASK_ROWS = 8_000_000

#: Seconds of work for each worker up to which every one gets its share in one run: another run each takes all of them
#: some milliseconds, and on equal cores never saved as much.
SHORT = 1.0

#: What a worker's thread keeps from task to task.
_own = threading.local()


class _Work(NamedTuple):
    """What all tasks of one call have in common; `source` is a _Files or what an ArrayTable is made of."""

    name: str
    model: Any
    source: Any


class _Files(NamedTuple):
    """Dataset files that workers open themselves; hidden: packed bits, if not just those that `part` hides."""

    paths: tuple[str, ...]
    fingerprint: str
    part: str
    hidden: bytes | None
    coarse: bool

    @classmethod
    def of(cls, table: FileTable) -> _Files:
        from l2ul_fast.datasets.stream.cellstore import fingerprint

        paths = tuple(str(path.resolve()) for path in table.shards.paths)
        hidden = None if table.whole_part else np.packbits(table.hidden).tobytes()
        return cls(paths, fingerprint(table.shards), table.part, hidden, table.coarse)


@functools.lru_cache(maxsize=2)
def _opened(files: _Files) -> tuple[FileTable, Ids]:
    """The table and the numbers of its rows."""
    from l2ul_fast.datasets.stream.cellstore import fingerprint

    table = FileTable(list(files.paths), files.part, coarse=files.coarse)
    if fingerprint(table.shards) != files.fingerprint:
        table.close()
        raise DataError(f"{files.paths[0]} on the worker is not the file that was fitted: use one file system for all")
    if files.hidden is not None:
        hidden = np.unpackbits(np.frombuffer(files.hidden, np.uint8), count=table.shards.n).view(bool)
        table = FileTable(table.shards, files.part, hidden, table.y, coarse=files.coarse)
    return table, table.ids()


def _same(held: Any) -> Any:
    """A task, not scattered data: the scheduler can make it again when workers die."""
    return held


def _make_some(plan: PairPlan, work: _Work) -> tuple[NDArray[Any], Fits]:
    """(ids (k, s) of their rows, fits) of the pairs of a part of a plan, on one thread."""
    numba.set_num_threads(1)
    if getattr(_own, "name", None) != work.name:
        before, _own.name = getattr(_own, "maker", None), None
        table, visible = _opened(work.source) if isinstance(work.source, _Files) else (ArrayTable(*work.source), None)
        _own.maker = PairMaker(work.model, table, plan, visible, before)
        _own.name = work.name
    maker, first, k = _own.maker, plan.first, len(plan.kinds)
    maker.plan, ids = plan, np.empty((k, plan.s), id_type(len(maker.table.y)))
    parts = [maker.make(lo, hi, ids[lo - first : hi - first]) for lo, hi in maker.batches(first, first + k)]
    return ids, Fits(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _load(model: Any, d: int, dtype: str) -> None:
    """Compile or load what making a pair needs, on rows of no meaning."""
    from l2ul_fast.datasets.file import gather as rows
    from l2ul_fast.datasets.file.chunks import fletcher32

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, d)).astype(dtype), np.arange(40, dtype=np.uint8) % model.n_classes
    fit_batch(model, X, y, np.arange(40)[None], np.array([1]))
    places = np.arange(40)
    has_classes(places, places, y, np.bincount(y))
    in_order(places, places, places.astype(np.uint32))
    fletcher32(np.zeros(8, np.uint8))
    rows.load(d)


def about_seconds(model: Any, s: int) -> float:
    """What one thread takes for a pair of s rows, within a factor of three: enough to tell short jobs from long ones.

    Newton's method (lr) multiplies all parameters by all, row by row.
    """
    return s * (5e-8 + 4e-11 * model.size**2 if model.name == "lr" else 8e-7 + 2e-9 * model.size)


def shares(m: int, workers: int, largest: int, short: bool = False) -> list[tuple[int, int]]:
    """The pairs 0 .. m - 1 in runs that get smaller: few tasks, and nobody waits long for the last one.

    Every worker gets a run, in all AT_A_TIME of what is left, and so on; the last few pairs are shared evenly, those of
    a `short` job all of them.
    """
    if short:
        parts = min(m, workers * -(-m // (workers * largest)))
        return [(m * i // parts, m * (i + 1) // parts) for i in range(parts)]
    smallest, size, edges = max(1, int(SMALLEST * math.sqrt(m / workers))), largest, [0]
    while (left := m - edges[-1]) > 0:
        few = left <= 2 * smallest * workers
        size = min(size, -(-left // workers) if few else max(smallest, int(left * AT_A_TIME / workers)))
        for _ in range(workers):
            edges.append(min(m, edges[-1] + size))
    return [(first, last) for first, last in itertools.pairwise(edges) if first < last]


def _common(client: Any, name: str, model: Any, table: Table) -> Any:
    """The _Work of all tasks of a call: itself if it is small, else a future."""
    if isinstance(table, FileTable):
        work = _Work(name, model, files := _Files.of(table))
        if files.hidden is None and sum(map(len, files.paths)) <= SMALL:
            return work
        return client.submit(_same, work, key=f"l2ul-held-{name}", pure=False)
    if isinstance(table, ArrayTable):
        source = (table.X, table.y, table.classes, table.hidden)
        return client.scatter(_Work(name, model, source), broadcast=True, hash=False)
    raise UserError(f"workers cannot read a {type(table).__name__}")


def make_pairs(client: Any, model: Any, table: Table, plan: PairPlan, progress: Progress | None = None) -> Made:
    """All pairs of a plan, made by the workers of a client."""
    from distributed import as_completed

    m, name, most = len(plan.n_forget), token(), max(1, TASK_ROWS // plan.s)
    # the kernels for a table's dtype; a file's rows are float32
    slots = prepare(client, _load, model, table.d, str(table.dtype))
    work = _common(client, name, model, table)
    runs = shares(m, slots.all, most, m * about_seconds(model, plan.s) <= SHORT * slots.all)
    keys = [f"l2ul-pairs-{name}-{i:06}" for i in range(len(runs))]
    futures = client.map(_make_some, [plan.part(*run) for run in runs], work=work, key=keys, pure=False)
    run_of, made = dict(zip(keys, runs, strict=True)), Made(m, plan.s, table)
    done, fetched, there = 0, 0, []
    with cancelled_on_error([*futures, work]):
        for future in as_completed(futures, client.loop):
            there.append(future)
            first, last = run_of[future.key]
            done += last - first
            if done == m or done - fetched >= min(FETCHED * m, most) or future.status != "finished":
                for each, (ids, fits) in zip(there, client.gather(there), strict=True):
                    start, end = run_of[each.key]
                    made.ids[start:end] = ids
                    made.add(start, fits)
                    each.release()
                fetched, there = done, []
            if progress is not None:
                progress(done, m)
    return made


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
    client: Any,
    model: Any,
    X: NDArray[Any],
    y: NDArray[np.uint8],
    batches: list[tuple[Ids, Ids]],
    found: Any,
    progress: Progress | None = None,
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
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
