"""Kernel mean embedding of many shards: leaves count spans of rows on the workers, the client adds them up.

Counts are integers, so the order of adding does not matter; a task that runs twice returns the same array, and only
one of them enters the sum. Rows never leave the worker that read them.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.datasets.stream import stream
from l2ul_fast.datasets.stream.manifest import Manifest, Shard, checksum, describe, expand, is_url, open_shard
from l2ul_fast.datasets.stream.shards import Shards
from l2ul_fast.distributed.cluster import prepare, run_tasks
from l2ul_fast.errors import DataError, UserError
from l2ul_kernels import Partitions, sample_row_ids

Progress = Callable[[int, int | None], None]

#: A leaf reads at least this much of X: some 0.2 s of work, so that a millisecond of the scheduler does not show
#: (`l2ul bench distributed`).
LEAF_BYTES = 64 << 20
#: Leaves per worker where there is enough work: few enough for the scheduler, enough that nobody waits for the last.
LEAVES = 32


def describe_shards(client: Any, source: Sequence[str | os.PathLike[str]], known: Sequence[Shard] = ()) -> Manifest:
    """The manifest of the shards that paths, URLs and patterns name; workers read the headers.

    `known` shards (of a saved manifest) must still be the same.
    """
    shards = list(known)
    found = dict(run_tasks(client, describe, [shard.path for shard in shards] or expand(source)))
    described = [found[i] for i in range(len(found))]
    for before, now in zip(shards, described, strict=False):
        if before != now:
            raise DataError(f"{now.path} is not the file of the manifest any more: make the manifest again")
    return Manifest(described)


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


def _rows(item: tuple[str, str, NDArray[np.int64]]) -> NDArray[np.float32]:
    path, expected, ids = item
    return opened_shard(path, expected).take_X(ids)


def take_rows(client: Any, manifest: Manifest, ids: ArrayLike) -> NDArray[np.float32]:
    """X (k, d) of the rows with these numbers, read by the workers."""
    where, rows = manifest.locate(np.asarray(ids, np.int64))
    out = np.empty((where.size, manifest.d), np.float32)
    mine = [np.flatnonzero(where == i) for i in range(len(manifest.shards))]
    shards = [(shard, k) for shard, k in zip(manifest.shards, mine, strict=True) if k.size]
    for i, found in run_tasks(client, _rows, [(shard.path, shard.checksum, rows[k]) for shard, k in shards]):
        out[shards[i][1]] = found
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


class _Held:
    """Arguments of all leaves: arrays, not Partitions, which hold addresses of this process once they were used."""

    def __init__(self, partitions: Partitions, by_class: bool, part: str) -> None:
        self.by_class, self.part = by_class, part
        self.arrays = (partitions.seeds, partitions.row_ids, partitions.mean, partitions.scale)

    @functools.cached_property
    def partitions(self) -> Partitions:
        return Partitions.from_seeds(*self.arrays)


def _count(leaf: tuple[str, str, int, int], held: _Held) -> NDArray[np.int64]:
    """Counts of the rows low .. high - 1 of a shard."""
    path, expected, low, high = leaf
    # a second thread to read takes time from other workers, unless the network takes longer
    return stream.stream_counts(
        opened_shard(path, expected),
        held.partitions,
        held.by_class,
        held.part,  # type: ignore[arg-type]
        span=(low, high),
        ahead=is_url(path),
    )


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
    workers = prepare(client)
    leaves = spans(manifest, workers) if leaves is None else leaves
    shards = [manifest.shards[i] for i, _, _ in leaves]
    items = [(shard.path, shard.checksum, low, high) for shard, (_, low, high) in zip(shards, leaves, strict=True)]
    classes = (len(manifest.classes),) if by_class else ()
    total, done = np.zeros((*classes, partitions.n_partitions, partitions.n_seeds), np.int64), 0
    for i, counts in run_tasks(client, _count, items, _Held(partitions, by_class, part)):
        total += counts
        done += leaves[i][2] - leaves[i][1]
        if progress is not None:
            progress(done, manifest.n)
    wanted = manifest.rows_of(part)
    counted = total.reshape(-1, *total.shape[-2:]).sum(axis=0).sum(axis=1)
    if not (counted == wanted).all():  # cannot happen by a lost or repeated task; a file with a wrong header could
        raise UserError(f"{int(counted[0])} rows were counted, but the headers promise {wanted}: verify the shards")
    return total
