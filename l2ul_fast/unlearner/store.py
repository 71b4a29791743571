"""Where the rows of a request come from: arrays the unlearner keeps, the file it was fitted on, or the caller."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable, Block, FileTable, Table
from l2ul_kernels.request.claims import erase_rows, gather, gather_mapped

Ids = NDArray[np.int64]


_NO_WEIGHTS = np.empty(0)


class Store(Protocol):
    """`weights` (N,) of all rows, or empty where all weigh 1; `y` (N,) class indices or targets; X has `dtype`."""

    weights: NDArray[np.float64]
    dtype: np.dtype[Any]

    @property
    def y(self) -> NDArray[Any]:
        """(N,) of all rows."""

    def fetch(self, ids: Ids) -> tuple[NDArray[Any], NDArray[Any]]:
        """X (r, d) and y (r,) of rows that are present."""

    def weights_of(self, ids: Ids) -> NDArray[np.float64] | None:
        """(r,), or None where all weigh 1."""

    def erase(self, ids: Ids) -> None:
        """Overwrite what is held of these rows."""

    def append(self, X: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64] | None) -> None:
        """Keep these rows behind the others."""

    def cut(self, n: int) -> None:
        """Keep only the first n rows."""

    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> Table | None:
        """The rows that are not hidden, None if they are not kept."""


class ArrayStore:
    """Rows in memory, as private copies: forgetting overwrites them."""

    def __init__(self, X: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64] | None = None) -> None:
        self.X, self.y, self.weights = X, y, _NO_WEIGHTS if weights is None else weights
        self.dtype = X.dtype

    def fetch(self, ids: Ids) -> tuple[NDArray[Any], NDArray[Any]]:
        X, y = np.empty((ids.size, self.X.shape[1]), self.X.dtype), np.empty(ids.size, self.y.dtype)
        gather(self.X, self.y, ids, X, y)
        return X, y

    def weights_of(self, ids: Ids) -> NDArray[np.float64] | None:
        return self.weights[ids] if self.weights.size else None

    def erase(self, ids: Ids) -> None:
        erase_rows(self.X, self.y, ids)
        if self.weights.size:
            self.weights[ids] = 0.0

    def append(self, X: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64] | None) -> None:
        self.X, self.y = np.concatenate([self.X, X]), np.concatenate([self.y, y])
        if weights is not None:
            self.weights = np.concatenate([self.weights, weights])

    def cut(self, n: int) -> None:
        self.X, self.y, self.weights = self.X[:n].copy(), self.y[:n].copy(), self.weights[:n].copy()

    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> ArrayTable:
        return ArrayTable(self.X, self.y, classes, hidden, self.weights if self.weights.size else None)


class FileStore:
    """Rows in the dataset file (never changed by us); labels are held in memory."""

    weights: NDArray[np.float64] = _NO_WEIGHTS
    dtype = np.dtype(np.float32)

    def __deepcopy__(self, memo: dict[int, Any]) -> FileStore:
        return self  # nothing in it changes

    def __reduce__(self) -> Any:
        return _reopened, ([str(path) for path in self._table.shards.paths], self._table.part, self._table.coarse)

    def weights_of(self, ids: Ids) -> None:
        return None

    def append(self, X: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64] | None) -> None:
        raise UserError("rows cannot be added to a model that was fitted on a file: fit again")

    def cut(self, n: int) -> None:
        raise AssertionError("a file is never cut")

    def __init__(self, table: FileTable) -> None:
        self._table, self.y = table, table.y
        from l2ul_fast.datasets.stream.cellstore import fingerprint  # here: arrays need no h5py

        self._fingerprint = fingerprint
        shards = table.shards
        self._mapped = None
        if len(shards.files) == 1 and shards.files[0].is_plain:
            self._mapped = shards.reader(0)
            self._where = (self._mapped.memory, self._mapped.offsets, self._mapped.chunk_rows)
            self._scaling = np.stack([table.mean, table.inverse_scale])

    def fetch(self, ids: Ids) -> Block:
        if self._mapped is None:
            return self._table.take(ids)
        self._mapped.check_chunks(ids)
        raw, y = np.empty((ids.size, 4 * self._table.d), np.uint8), np.empty(ids.size, np.uint8)
        gather_mapped(*self._where, self._scaling, self.y, ids, raw, y)
        return raw.view(np.float32), y

    def erase(self, ids: Ids) -> None:
        """The file is the user's; nothing of its rows is kept here."""

    def reference(self) -> dict[str, Any]:
        """What an artifact notes of the file: where it is, and what it holds."""
        shards = self._table.shards
        return {
            "paths": [str(path.resolve()) for path in shards.paths],
            "part": self._table.part,
            "coarse": self._table.coarse,
            "fingerprint": self._fingerprint(shards),
        }

    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> FileTable:
        return FileTable(self._table.shards, self._table.part, hidden, self._table.y, coarse=self._table.coarse)

    def standardise(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Raw rows X (k, d) as the model sees them."""
        rows = np.asarray(X, np.float32).astype(np.float64)
        return ((rows - self._table.mean) * self._table.inverse_scale).astype(np.float32)


def _reopened(paths: list[str], part: str, coarse: bool) -> FileStore:
    """A FileStore in another process."""
    return FileStore(FileTable(paths, part, coarse=coarse))


class NoStore:
    """`store_rows=False`: every request brings its rows. digests (N,) uint32 tell whether they are the right ones.

    key (words + 3,) uint64 makes the digests: sums of a row's 32-bit words (the two of its target too) times random
    factors, the upper half kept.
    """

    def __init__(
        self, digests: NDArray[np.uint32], key: NDArray[np.uint64], dtype: np.dtype[Any], weights: NDArray[np.float64]
    ) -> None:
        self.digests, self.key, self.dtype, self.weights = digests, key, dtype, weights

    @classmethod
    def of(cls, X: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64] | None, seed: int) -> NoStore:
        words = X.shape[1] * X.dtype.itemsize // 4
        key = np.random.default_rng([seed, 3]).integers(0, 2**64, words + 3, np.uint64)
        store = cls(np.empty(len(X), np.uint32), key, X.dtype, _NO_WEIGHTS if weights is None else weights)
        for start in range(0, len(X), 65536):
            part = slice(start, start + 65536)
            store.digests[part] = store.digest(X[part], y[part])
        return store

    def digest(self, X: NDArray[Any], y: NDArray[Any]) -> NDArray[np.uint32]:
        """(r,) of rows X (r, d) with class indices or targets y (r,)."""
        words = (np.ascontiguousarray(X, self.dtype) + 0.0).view(np.uint32)  # -0.0 is 0.0
        marks = (np.ascontiguousarray(y, np.float64) + 0.0).view(np.uint32).reshape(-1, 2)
        total = (words * self.key[3:]).sum(axis=1) + (marks * self.key[1:3]).sum(axis=1) + self.key[0]
        return (total >> np.uint64(32)).astype(np.uint32)

    @property
    def y(self) -> NDArray[Any]:
        raise UserError("this unlearner keeps no rows (store_rows=False): give X and y of the rows to forget")

    def fetch(self, ids: Ids) -> tuple[NDArray[Any], NDArray[Any]]:
        return np.empty((0, 0)), self.y

    def weights_of(self, ids: Ids) -> NDArray[np.float64] | None:
        return self.weights[ids] if self.weights.size else None

    def erase(self, ids: Ids) -> None:
        self.digests[ids] = 0
        if self.weights.size:
            self.weights[ids] = 0.0

    def append(self, X: NDArray[Any], y: NDArray[Any], weights: NDArray[np.float64] | None) -> None:
        self.digests = np.concatenate([self.digests, self.digest(X, y)])
        if weights is not None:
            self.weights = np.concatenate([self.weights, weights])

    def cut(self, n: int) -> None:
        self.digests, self.weights = self.digests[:n].copy(), self.weights[:n].copy()

    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> None:
        return None
