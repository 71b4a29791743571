"""Kernel mean embedding of many shards: leaves count spans of rows, a tree of sums adds them up on the workers.

Counts are integers, so the order of adding does not matter; a task that runs twice returns the same array, and only
one of them enters the sum. The scheduler sees task names and sizes, never rows; the client gets one array.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.datasets.stream import stream
from l2ul_fast.datasets.stream.manifest import Manifest, Shard, checksum, describe, expand, is_url, open_shard
from l2ul_fast.datasets.stream.shards import Shards
from l2ul_fast.distributed.cluster import cancelled_on_error, prepare, token
from l2ul_fast.errors import DataError, UserError
from l2ul_kernels import Partitions, available_cores, sample_row_ids, warmup

Progress = Callable[[int, int | None], None]

#: A leaf reads at least this much of X: some 0.2 s of work, so that a millisecond of the scheduler does not show
#: (`l2ul bench distributed`).
LEAF_BYTES = 64 << 20
#: Leaves per worker where there is enough work: few enough for the scheduler, enough that nobody waits for the last.
LEAVES = 32
#: Arrays that one sum adds up.
FAN_IN = 16
#: Up to this many leaves progress follows every one, beyond it the first sums: of each task it follows the client is
#: told, and must let go of it, which keeps the scheduler busy.
WATCHED = 128


def describe_shards(client: Any, source: Sequence[str | os.PathLike[str]], known: Sequence[Shard] = ()) -> Manifest:
    """The manifest of the shards that paths, URLs and patterns name; workers read the headers.

    `known` shards (of a saved manifest) must still be the same.
    """
    from distributed import as_completed

    shards = list(known)
    paths = [shard.path for shard in shards] or expand(source)
    name = token()
    graph = {f"l2ul-describe-{name}-{i}": (describe, path) for i, path in enumerate(paths)}
    futures = client.get(graph, list(graph), sync=False)
    found: list[Any] = [None] * len(paths)
    numbers = {future.key: i for i, future in enumerate(futures)}
    with cancelled_on_error(futures):
        for future, shard in as_completed(futures, client.loop, with_results=True):
            found[numbers[future.key]] = shard
    for before, now in zip(shards, found, strict=False):
        if before != now:
            raise DataError(f"{now.path} is not the file of the manifest any more: make the manifest again")
    return Manifest(found)


_open: OrderedDict[Any, Shards] = OrderedDict()
#: Shards a worker keeps open.
_KEPT = 4


def opened_shard(path: str, expected: str) -> Shards:
    """A shard, kept open between the tasks of one worker; DataError if it is not the one of the manifest."""
    facts = None if is_url(path) or not os.path.exists(path) else os.stat(path)  # a file written anew is opened anew
    key = (path, expected, facts and (facts.st_ino, facts.st_size, facts.st_mtime_ns))
    if key not in _open:
        for old in [k for k in _open if k[0] == path]:  # HDF5 would hand out the old header as long as it is open
            del _open[old]
        file = open_shard(path)
        if checksum(file) != expected:
            file.close()
            raise DataError(f"{path} has changed since its header was read: start again")
        _open[key] = Shards(files=[file])
        while len(_open) > _KEPT:
            _open.popitem(last=False)  # not closed: another thread may be reading it
    return _open[key]


@atexit.register
def _close_all() -> None:
    """h5py crashes if it has to close a Python file object while the interpreter goes down."""
    while _open:
        _open.popitem()[1].close()


def _rows(path: str, expected: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    return opened_shard(path, expected).take_X(ids)


def take_rows(client: Any, manifest: Manifest, ids: ArrayLike) -> NDArray[np.float32]:
    """X (k, d) of the rows with these numbers, read by the workers."""
    ids = np.asarray(ids, np.int64)
    where, rows = manifest.locate(ids)
    out = np.empty((ids.size, manifest.d), np.float32)
    name, graph, mine = token(), {}, {}
    for i in np.unique(where):
        shard = manifest.shards[i]
        key = f"l2ul-rows-{name}-{i}"
        mine[key] = np.flatnonzero(where == i)
        graph[key] = (_rows, shard.path, shard.checksum, rows[mine[key]])
    futures = client.get(graph, list(graph), sync=False)
    with cancelled_on_error(futures):
        for key, found in zip(graph, client.gather(futures), strict=True):
            out[mine[key]] = found
    return out


def sample_partitions(
    client: Any, manifest: Manifest, t: int = 100, psi: int = 4, random_state: Any = None, standardise: bool = True
) -> Partitions:
    """Seeds drawn from all rows by their numbers: the same whatever the number of shards or workers."""
    ids = sample_row_ids(manifest.n, t, psi, random_state)
    rows = take_rows(client, manifest, ids.ravel()).reshape(t, psi, manifest.d)
    if not standardise:
        return Partitions.from_seeds(rows, ids)
    return stream.standardised(rows, ids, manifest.mean, manifest.scale)


def spans(
    manifest: Manifest, workers: int, leaf_bytes: int = LEAF_BYTES, leaves: int = LEAVES
) -> list[tuple[int, int, int]]:
    """(number of the shard, first row, last row + 1) of the leaves: whole chunks, equal parts of a shard.

    As many leaves per worker as make leaf_bytes each, at most `leaves`: smaller ones would cost more than they do, and
    more of them would keep the scheduler busy.
    """
    per_worker = min(leaves, max(1, round(4 * manifest.d * manifest.n / (workers * leaf_bytes))))
    rows = manifest.n / (per_worker * workers)
    found = []
    for i, shard in enumerate(manifest.shards):
        chunks = -(-shard.n // shard.chunk_rows)
        parts = min(chunks, max(1, round(shard.n / rows)))
        edges = [shard.chunk_rows * (chunks * k // parts) for k in range(parts)] + [shard.n]
        found += [(i, low, high) for low, high in itertools.pairwise(edges)]
    return found


@functools.lru_cache(maxsize=2)
def _partitions_of(name: str, held: _Held) -> Partitions:
    return Partitions.from_seeds(*held.arrays)


class _Held:
    """What all leaves share: arrays, not Partitions, which hold addresses of this process once they were used."""

    def __init__(self, name: str, partitions: Partitions, by_class: bool, part: str, of_host: int) -> None:
        self.name, self.by_class, self.part, self.of_host = name, by_class, part, of_host
        self.arrays = (partitions.seeds, partitions.row_ids, partitions.mean, partitions.scale)

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.name == other.name


def _same(held: _Held) -> _Held:
    """A task, not scattered data: should every worker that has it die, the scheduler makes it again."""
    return held


def _count(held: _Held, path: str, expected: str, low: int, high: int) -> NDArray[np.int64]:
    """Counts of the rows low .. high - 1 of a shard, on one thread."""
    numba.set_num_threads(1)
    partitions = _partitions_of(held.name, held)
    # a second thread to read takes time from other workers, unless a core is free or the network takes longer
    ahead = is_url(path) or held.of_host < available_cores()
    return stream.stream_counts(
        opened_shard(path, expected),
        partitions,
        held.by_class,
        held.part,  # type: ignore[arg-type]
        span=(low, high),
        ahead=ahead,
    )


def _add(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.sum(parts, axis=0)  # a new array: the parts belong to their tasks


def stream_counts(
    client: Any,
    source: Manifest | Sequence[str | os.PathLike[str]],
    partitions: Partitions,
    by_class: bool = False,
    part: str = "all",
    progress: Progress | None = None,
    leaves: list[tuple[int, int, int]] | None = None,
) -> NDArray[np.int64]:
    """Rows per cell of all shards, int64 (t, psi) or (C, t, psi): bit for bit what one process counts."""
    manifest = source if isinstance(source, Manifest) else describe_shards(client, source)
    if partitions.n_features != manifest.d:
        raise UserError(f"the partitions are of {partitions.n_features} columns but the shards have {manifest.d}")
    slots = prepare(client, _load)
    name = token()
    leaves = spans(manifest, slots.all) if leaves is None else leaves
    graph: dict[str, Any] = {f"l2ul-held-{name}": (_same, _Held(name, partitions, by_class, part, slots.of_host))}
    rows = {}
    for k, (i, low, high) in enumerate(leaves):
        shard = manifest.shards[i]
        graph[f"l2ul-count-{name}-{k}"] = (_count, f"l2ul-held-{name}", shard.path, shard.checksum, low, high)
        rows[f"l2ul-count-{name}-{k}"] = high - low
    sums, top = _sums(graph, rows, name)
    total = _compute(client, graph, rows if len(rows) <= WATCHED else sums, top, progress)
    wanted = manifest.rows_of(part)
    counted = total.reshape(-1, *total.shape[-2:]).sum(axis=0).sum(axis=1)
    if not (counted == wanted).all():  # cannot happen by a lost or repeated task; a file with a wrong header could
        raise UserError(f"{int(counted[0])} rows were counted, but the headers promise {wanted}: verify the shards")
    return total


def _load() -> None:
    """Compile or load what counting needs."""
    from l2ul_fast.datasets.file.chunks import fletcher32

    warmup(float64=False)
    fletcher32(np.zeros(8, np.uint8))


def _sums(graph: dict[str, Any], rows: dict[str, int], name: str) -> tuple[dict[str, int], str]:
    """Add a tree of sums of the keys of `rows` to the graph; (rows of the first sums, key of the total)."""
    first: dict[str, int] = {}
    keys, level = list(rows), 0
    while len(keys) > 1 or level == 0:
        parts = [keys[k : k + FAN_IN] for k in range(0, len(keys), FAN_IN)]
        keys = [f"l2ul-sum-{name}-{level}-{k}" for k in range(len(parts))]
        graph.update({key: (_add, part) for key, part in zip(keys, parts, strict=True)})
        if level == 0:
            first = {key: sum(rows[leaf] for leaf in part) for key, part in zip(keys, parts, strict=True)}
        level += 1
    return first, keys[0]


def _compute(
    client: Any, graph: dict[str, Any], rows: dict[str, int], top: str, progress: Progress | None
) -> NDArray[np.int64]:
    """The result of `top`; progress follows the tasks of `rows`, which says how many rows each stands for."""
    from distributed import as_completed

    done, all_rows = 0, sum(rows.values())
    rows = {} if progress is None else {key: n for key, n in rows.items() if key != top}
    *futures, total = client.get(graph, [*rows, top], sync=False)
    with cancelled_on_error([*futures, total]):
        for future in as_completed([*futures, total], client.loop):
            if future.status == "error" or future.key == top:
                result = future.result()
                if progress is not None:
                    progress(all_rows, all_rows)
                return np.asarray(result)
            done += rows[future.key]
            future.release()  # its sum still needs it, this client does not
            if progress is not None:
                progress(done, all_rows)
    raise UserError("the scheduler dropped the work")
