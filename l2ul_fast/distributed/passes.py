"""The passes of an expansion over the shards of a dataset, on the workers of a Dask cluster.

Every pass ends in integers or maxima, which merge in any order: the result is bit for bit that of one process, whatever
the number of workers, and a task that runs twice because its worker died changes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.datasets.file.gather import standardise_rows
from l2ul_fast.datasets.stream.stream import blocks
from l2ul_fast.distributed.cluster import prepare, run_tasks
from l2ul_fast.distributed.sums import describe_shards, opened_shard, spans
from l2ul_fast.errors import UserError
from l2ul_fast.tables import Table
from l2ul_fast.unlearner.passes import Block, Columns, Terms, columns_of, derivatives_of, moments_of, sums_of

Vector = NDArray[np.float64]
#: Path, checksum of its header, first row, last row + 1, packed bits of those that requests have hidden.
Leaf = tuple[str, str, int, int, NDArray[np.uint8]]


class SharedPasses:
    """`unlearner.passes.Passes` over the visible rows of a FileTable; every leaf reads its rows from its shard."""

    def __init__(self, client: Any, table: Table | None) -> None:
        if table is None or table.shards is None:
            raise UserError("workers share the rows of dataset files: give the path of one, not arrays")
        files: Any = table
        self.client, self.table, self.d = client, files, files.d
        workers = prepare(client)
        manifest = describe_shards(client, [str(path) for path in files.shards.paths])
        first, self._leaves = files.shards.first_rows, []
        for i, low, high in spans(manifest, workers):
            # what the leaf cannot know: which of its rows were hidden by requests
            hidden = np.packbits(files.hidden[first[i] + low : first[i] + high])
            shard = manifest.shards[i]
            self._leaves.append((shard.path, shard.checksum, low, high, hidden))
        self._scaling = (files.mean, files.inverse_scale, list(files.classes))

    def _map(self, function: Callable[[Iterator[Block]], Any]) -> list[Any]:
        """function(blocks) of all leaves."""
        return [part for _, part in run_tasks(self.client, _leaf, self._leaves, (function, self._scaling))]

    def columns(self) -> Columns:
        parts = self._map(functools.partial(columns_of, d=self.d))
        return Columns(np.max([part.largest for part in parts], axis=0), sum(part.rows for part in parts), 1.0)

    def moments(self, inverse_scale: Vector, scale: float) -> NDArray[np.int64]:
        return _total(self._map(functools.partial(moments_of, inverse_scale=inverse_scale, scale=scale)))

    def derivatives(self, loss: int, anchor: Vector) -> Vector:
        return np.asarray(np.max(self._map(functools.partial(derivatives_of, loss=loss, anchor=anchor)), axis=0))

    def sums(self, terms: Terms) -> NDArray[np.int64]:
        return _total(self._map(functools.partial(sums_of, terms=terms)))


def _total(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.asarray(np.sum(parts, axis=0))


def _leaf(leaf: Leaf, held: tuple[Callable[[Iterator[Block]], Any], tuple[Vector, Vector, list[Any]]]) -> Any:
    """function(blocks) of the visible rows of a leaf."""
    function, scaling = held
    return function(_blocks(leaf, *scaling))


def _blocks(leaf: Leaf, mean: Vector, inverse_scale: Vector, classes: list[Any]) -> Iterator[Block]:
    path, expected, low, high, hidden = leaf
    visible = ~np.unpackbits(hidden, count=high - low).astype(bool)
    for first, X, y in blocks(opened_shard(path, expected), labels=True, span=(low, high)):
        keep = visible[first - low : first - low + len(X)]
        k = standardise_rows(X, mean, inverse_scale, keep, X)
        if k and y is not None:
            yield X[:k], np.searchsorted(classes, y[keep]).astype(np.uint8), None
