"""Where the rows of a request come from: arrays the unlearner keeps, the file it was fitted on, or the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable, Block, FileTable
from l2ul_kernels.request import erase_rows, gather, gather_mapped
from l2ul_kernels.request_held import Held

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL

Ids = NDArray[np.int64]


class Store(Protocol):
    @property
    def y(self) -> NDArray[np.uint8]:
        """(N,) of all rows."""

    def fetch(self, ids: Ids) -> Block:
        """X (r, d) and y (r,) of rows that are present, for reading, until they are erased."""

    def erase(self, ids: Ids) -> None:
        """Overwrite what is held of these rows."""


class ArrayStore:
    """Rows in memory, as private copies: forgetting overwrites them."""

    def __init__(self, X: NDArray[Any], y: NDArray[np.uint8]) -> None:
        self.X, self.y = X, y

    def fetch(self, ids: Ids) -> Block:
        if ids.size == 1:  # the rows themselves: a copy would cost more than all else that is done with them
            row = ids.item()
            here = slice(row, row + 1)
            return self.X[here], self.y[here]
        X, y = np.empty((ids.size, self.X.shape[1]), self.X.dtype), np.empty(ids.size, np.uint8)
        gather(self.X, self.y, ids, X, y)
        return X, y

    def erase(self, ids: Ids) -> None:
        erase_rows(self.X, self.y, ids)

    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> ArrayTable:
        return ArrayTable(self.X, self.y, classes, hidden)


def held_by(u: L2UL, own: tuple[NDArray[Any], ...], held: Held | None) -> Held | None:
    """What the next request for one row of u works on, with a step's `own` arrays: `held` if it is that still. None
    where rows are not kept in memory."""
    store, cells, notes = u.store, u.cells, u.notes
    if type(store) is not ArrayStore:
        return None
    block = notes.block
    if notes.used == block.size:
        notes.make_room()
        block = notes.block
    if (
        held is not None and held.own is own and held.times is block.times and held.gone is u.gone
        and held.left is u.class_counts and held.X is store.X and held.y is store.y and held.packed is cells.packed
        and held.counts is cells.counts
    ):  # fmt: skip
        return held
    return Held(
        cells.bits, own, gone=u.gone, left=u.class_counts, X=store.X, y=store.y, packed=cells.packed,
        counts=cells.counts, thetas=block.thetas, totals=block.totals, rows=block.rows, times=block.times,
    )  # fmt: skip


class FileStore:
    """Rows in the dataset file (never changed by us); labels are held in memory."""

    def __init__(self, table: FileTable) -> None:
        self._table, self.y = table, table.y
        from l2ul_fast.datasets.cellstore import fingerprint  # here: arrays need no h5py

        self._fingerprint = fingerprint
        shards = table.shards
        self._mapped = None
        if len(shards.files) == 1 and shards.files[0].is_plain:
            self._mapped = shards.reader(0)
            self._where = (self._mapped.memory, self._mapped.offsets, self._mapped.chunk_rows)
            self._scale = (shards.mean, table.inverse_scale)

    def fetch(self, ids: Ids) -> Block:
        if self._mapped is None:
            return self._table.take(ids)
        self._mapped.check_chunks(ids)
        raw, y = np.empty((ids.size, 4 * self._table.d), np.uint8), np.empty(ids.size, np.uint8)
        X = raw.view(np.float32)
        gather_mapped(*self._where, *self._scale, self.y, ids, raw, X, y)
        return X, y

    def erase(self, ids: Ids) -> None:
        """The file is the user's; nothing of its rows is kept here."""

    def reference(self) -> dict[str, Any]:
        """What an artifact notes of the file: where it is, and what it holds."""
        shards = self._table.shards
        return {
            "paths": [str(path.resolve()) for path in shards.paths],
            "part": self._table.part,
            "fingerprint": self._fingerprint(shards),
        }

    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> FileTable:
        return FileTable(self._table.shards, self._table.part, hidden, self._table.y)


class NoStore:
    """`store_rows=False`: every request brings its rows. digests (N,) uint32 tell whether they are the right ones.

    key (words + 2,) uint64 makes the digests: sums of a row's 32-bit words times random factors, the upper half kept.
    """

    def __init__(self, digests: NDArray[np.uint32], key: NDArray[np.uint64], dtype: np.dtype[Any]) -> None:
        self.digests, self.key, self.dtype = digests, key, dtype

    @classmethod
    def of(cls, X: NDArray[Any], y: NDArray[np.uint8], seed: int) -> NoStore:
        words = X.shape[1] * X.dtype.itemsize // 4
        key = np.random.default_rng([seed, 3]).integers(0, 2**64, words + 2, np.uint64)
        store = cls(np.empty(len(X), np.uint32), key, X.dtype)
        for start in range(0, len(X), 65536):
            part = slice(start, start + 65536)
            store.digests[part] = store.digest(X[part], y[part])
        return store

    def digest(self, X: NDArray[Any], y: NDArray[np.uint8]) -> NDArray[np.uint32]:
        """(r,) of rows X (r, d) with class indices y (r,)."""
        words = (np.ascontiguousarray(X, self.dtype) + 0.0).view(np.uint32)  # -0.0 is 0.0
        total = (words * self.key[2:]).sum(axis=1) + y * self.key[1] + self.key[0]
        return (total >> np.uint64(32)).astype(np.uint32)

    @property
    def y(self) -> NDArray[np.uint8]:
        raise UserError("this unlearner keeps no rows (store_rows=False): give X and y of the rows to forget")

    def fetch(self, ids: Ids) -> Block:
        return np.empty((0, 0)), self.y

    def erase(self, ids: Ids) -> None:
        self.digests[ids] = 0

    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> ArrayTable:
        raise UserError("this unlearner keeps no rows (store_rows=False), so it cannot look at the retained ones")
