"""The passes of an expansion over the shards of a dataset, on the workers of a Dask cluster.

Every pass ends in integers or maxima, which merge in any order: the result is bit for bit that of one process, whatever
the number of workers, and a task that runs twice because its worker died changes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.datasets.file.gather import standardise_rows
from l2ul_fast.datasets.stream.stream import blocks
from l2ul_fast.distributed.cluster import cancelled_on_error, prepare, token
from l2ul_fast.distributed.sums import describe_shards, opened_shard, spans
from l2ul_fast.errors import UserError
from l2ul_fast.tables import FileTable, Table
from l2ul_fast.unlearner.passes import Block, Columns, Terms, columns_of, derivatives_of, moments_of, sums_of

Vector = NDArray[np.float64]


class SharedPasses:
    """`unlearner.passes.Passes` over the visible rows of a FileTable; every leaf reads its rows from its shard."""

    def __init__(self, client: Any, table: Table | None) -> None:
        if not isinstance(table, FileTable):
            raise UserError("workers share the rows of dataset files: give the path of one, not arrays")
        self.client, self.table, self.d = client, table, table.d
        slots = prepare(client)
        manifest = describe_shards(client, [str(path) for path in table.shards.paths])
        first, self._leaves = table.shards.first_rows, []
        for i, low, high in spans(manifest, slots.all):
            # what the leaf cannot know: which of its rows were hidden by requests
            hidden = np.packbits(table.hidden[first[i] + low : first[i] + high])
            shard = manifest.shards[i]
            self._leaves.append((shard.path, shard.checksum, low, high, hidden))
        self._scaling = (table.mean, table.inverse_scale, list(table.classes))

    def _map(self, function: Callable[..., Any]) -> list[Any]:
        """function(blocks) of every leaf, in their order."""
        name = token()
        graph = {
            f"l2ul-pass-{name}-{k}": (_leaf, function, self._scaling, *leaf) for k, leaf in enumerate(self._leaves)
        }
        futures = self.client.get(graph, list(graph), sync=False)
        with cancelled_on_error(futures):
            return list(self.client.gather(futures))

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


def _leaf(
    function: Callable[[Iterator[Block]], Any],
    scaling: tuple[Vector, Vector, list[Any]],
    path: str,
    expected: str,
    low: int,
    high: int,
    hidden: NDArray[np.uint8],
) -> Any:
    """function of the visible rows low .. high - 1 of a shard, on one thread."""
    numba.set_num_threads(1)
    return function(_blocks(scaling, path, expected, low, high, hidden))


def _blocks(
    scaling: tuple[Vector, Vector, list[Any]], path: str, expected: str, low: int, high: int, hidden: NDArray[np.uint8]
) -> Iterator[Block]:
    mean, inverse_scale, classes = scaling
    visible = ~np.unpackbits(hidden, count=high - low).astype(bool)
    for first, X, y in blocks(opened_shard(path, expected), labels=True, span=(low, high)):
        keep = visible[first - low : first - low + len(X)]
        k = standardise_rows(X, mean, inverse_scale, keep, X)
        if k and y is not None:
            yield X[:k], np.searchsorted(classes, y[keep]).astype(np.uint8), None
