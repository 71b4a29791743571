"""Where the rows of a request come from: arrays the unlearner keeps, the file it was fitted on, or the caller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import DataError, UserError
from l2ul_fast.tables import ArrayTable, Block, Table
from l2ul_kernels.request.claims import erase_rows, gather, gather_mapped

if TYPE_CHECKING:
    from l2ul_fast.datasets.file.table import FileTable

Ids = NDArray[np.int64]
Weights = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]

_NO_WEIGHTS = np.empty(0)
#: Rows that are checked for NaN, or given a digest, at a time.
PIECE = 1 << 16


class Store(ABC):
    """`weights` (N,) of all rows, or empty where all weigh 1; `y` (N,) class indices or targets; X has `dtype`."""

    #: Name of the kind in a saved state.
    kind: ClassVar[str]
    #: Whether rows can be read by number alone, and passes made over them.
    keeps_rows: ClassVar[bool] = True
    #: Whether the rows are private arrays X, y, which forgetting overwrites.
    in_memory: ClassVar[bool] = False
    #: Whether rows can be added; the rows of a file can neither be changed nor overwritten.
    can_grow: ClassVar[bool] = True

    weights: Weights = _NO_WEIGHTS
    dtype: np.dtype[Any]
    y: Any

    @abstractmethod
    def fetch(self, ids: Ids) -> tuple[NDArray[Any], NDArray[Any]]:
        """X (r, d) and y (r,) of rows that are present."""

    @abstractmethod
    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> Table | None:
        """The rows that are not hidden, None if they are not kept."""

    def weights_of(self, ids: Ids) -> Weights | None:
        """(r,), or None where all weigh 1."""
        return self.weights[ids] if self.weights.size else None

    def differ(self, ids: Ids, X: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
        """(r,) which of the given rows X (r, d), y (r,) are not the rows of these numbers."""
        own, labels = self.fetch(ids)
        return np.asarray((own != X).any(axis=1) | (labels != y))

    def places(
        self, X: NDArray[Any], y: NDArray[Any], visible: Ids, table: Any
    ) -> tuple[list[Any], dict[Any, list[int]]]:
        """(a key for each of the rows X (r, d), y (r,); numbers of the rows with each of these keys, ascending).

        table: all rows that are visible, whose numbers are `visible`; one pass over them.
        """
        X = np.ascontiguousarray(X, self.dtype) + self.dtype.type(0)  # -0.0 is 0.0
        keys, found, done = _keys(X, y), dict[Any, list[int]](), 0
        wanted = set(keys)
        for rows, labels in table.blocks():
            near = np.flatnonzero(np.isin(rows[:, 0], X[:, 0]))
            for i, key in zip(near, _keys(rows[near] + self.dtype.type(0), labels[near]), strict=True):
                if key in wanted:
                    found.setdefault(key, []).append(int(visible[done + i]))
            done += len(rows)
        return keys, found

    def standardise(self, X: NDArray[Any]) -> NDArray[Any]:
        """Rows X (k, d) in the units of the data, as the model sees them."""
        return X

    def erase(self, ids: Ids) -> None:
        """Overwrite what is held of these rows."""
        if self.weights.size:
            self.weights[ids] = 0.0

    def append(self, X: NDArray[Any], y: NDArray[Any], weights: Weights | None) -> None:
        """Keep these rows behind the others."""
        if weights is not None:
            self.weights = np.concatenate([self.weights, weights])

    def cut(self, n: int) -> None:
        """Keep only the first n rows."""
        self.weights = self.weights[:n].copy()

    # Saved -----------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """JSON values that `from_saved` needs."""
        return {"kind": self.kind}

    def arrays(self) -> Arrays:
        """What is saved row by row, and overwritten on disk when a row is forgotten."""
        return {"weights": self.weights} if self.weights.size else {}

    def constants(self) -> Arrays:
        """What is saved besides."""
        return {}

    @classmethod
    @abstractmethod
    def from_saved(cls, facts: dict[str, Any], arrays: Arrays, data: Any) -> Store:
        """The store of `facts`, `arrays` and `constants`; `data` names the dataset file if it has moved."""

    def check(self, n: int, d: int, classes: int) -> None:
        """ValueError unless this holds n rows of d features and so many classes: compiled code trusts it."""
        w = self.weights
        if w.shape not in ((0,), (n,)) or w.dtype != np.float64 or not (np.isfinite(w) & (w >= 0)).all():
            raise ValueError("weights, which must be numbers from 0")


def _keys(X: NDArray[Any], y: NDArray[Any]) -> list[bytes]:
    """The bytes of each row and its label."""
    return [row.tobytes() + label.tobytes() for row, label in zip(X, y, strict=True)]


class ArrayStore(Store):
    """Rows in memory, as private copies: forgetting overwrites them."""

    kind = "arrays"
    in_memory = True

    def __init__(self, X: NDArray[Any], y: NDArray[Any], weights: Weights | None = None) -> None:
        self.X, self.y, self.weights = X, y, _NO_WEIGHTS if weights is None else weights
        self.dtype = X.dtype

    def fetch(self, ids: Ids) -> tuple[NDArray[Any], NDArray[Any]]:
        X, y = np.empty((ids.size, self.X.shape[1]), self.X.dtype), np.empty(ids.size, self.y.dtype)
        gather(self.X, self.y, ids, X, y)
        return X, y

    def erase(self, ids: Ids) -> None:
        erase_rows(self.X, self.y, ids)
        super().erase(ids)

    def append(self, X: NDArray[Any], y: NDArray[Any], weights: Weights | None) -> None:
        self.X, self.y = np.concatenate([self.X, X]), np.concatenate([self.y, y])
        super().append(X, y, weights)

    def cut(self, n: int) -> None:
        self.X, self.y = self.X[:n].copy(), self.y[:n].copy()
        super().cut(n)

    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> ArrayTable:
        return ArrayTable(self.X, self.y, classes, hidden, self.weights if self.weights.size else None)

    def arrays(self) -> Arrays:
        return {"X": self.X, "y": self.y} | super().arrays()

    @classmethod
    def from_saved(cls, facts: dict[str, Any], arrays: Arrays, data: Any) -> ArrayStore:
        return cls(arrays["X"], arrays["y"], np.array(arrays["weights"]) if "weights" in arrays else None)

    def check(self, n: int, d: int, classes: int) -> None:
        super().check(n, d, classes)
        X, y = self.X, self.y
        if X.shape != (n, d):
            raise ValueError(f"X, which has shape {X.shape} instead of {(n, d)}")
        if X.dtype not in (np.float32, np.float64):
            raise ValueError(f"X, which holds {X.dtype}")
        if not all(np.isfinite(X[start : start + PIECE]).all() for start in range(0, n, PIECE)):
            raise ValueError("X, which must hold finite numbers")
        if y.shape != (n,) or y.dtype != (np.uint8 if classes else np.float64):
            raise ValueError(f"y, which holds {y.dtype} in shape {y.shape}")
        if classes and y.max(initial=0) >= classes:
            raise ValueError("y, which has labels of other classes")
        if not np.isfinite(y).all():
            raise ValueError("y, which must hold finite numbers")


class FileStore(Store):
    """Rows in the dataset file, which is never changed: `erase` has nothing to overwrite. Labels are held in memory."""

    kind = "file"
    can_grow = False
    dtype = np.dtype(np.float32)

    def __init__(self, table: FileTable) -> None:
        self._table, self.y = table, table.y
        from l2ul_fast.datasets.stream.cellstore import fingerprint  # here: arrays need no h5py

        self._fingerprint = fingerprint
        shards = table.shards
        self._mapped = None
        if len(shards.files) == 1 and shards.files[0].offsets is not None:
            self._mapped = shards.reader(0)
            self._where = (self._mapped.memory, self._mapped.offsets, self._mapped.chunk_rows)
            self._scaling = np.stack([table.mean, table.inverse_scale])

    def __deepcopy__(self, memo: dict[int, Any]) -> FileStore:
        return self  # nothing in it changes

    def __reduce__(self) -> Any:
        return _reopened, ([str(path) for path in self._table.shards.paths], self._table.part, self._table.coarse)

    def fetch(self, ids: Ids) -> Block:
        if self._mapped is None:
            return self._table.take(ids)
        self._mapped.check_chunks(ids)
        raw, y = np.empty((ids.size, 4 * self._table.d), np.uint8), np.empty(ids.size, np.uint8)
        gather_mapped(*self._where, self._scaling, self.y, ids, raw, y)
        return raw.view(np.float32), y

    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> FileTable:
        from l2ul_fast.tables import FileTable  # here: arrays need no h5py

        return FileTable(self._table.shards, self._table.part, hidden, self._table.y, coarse=self._table.coarse)

    def standardise(self, X: NDArray[Any]) -> NDArray[np.float32]:
        rows = np.asarray(X, np.float32).astype(np.float64)
        return ((rows - self._table.mean) * self._table.inverse_scale).astype(np.float32)

    def facts(self) -> dict[str, Any]:
        shards = self._table.shards
        return {
            "kind": self.kind,
            "paths": [str(path.resolve()) for path in shards.paths],
            "part": self._table.part,
            "coarse": self._table.coarse,
            "fingerprint": self._fingerprint(shards),
        }

    @classmethod
    def from_saved(cls, facts: dict[str, Any], arrays: Arrays, data: Any) -> FileStore:
        paths = [str(data)] if data is not None else list(facts["paths"])
        try:
            from l2ul_fast.tables import FileTable  # here: arrays need no h5py

            table = FileTable(paths, facts["part"], coarse=facts.get("coarse") is True)
        except DataError as error:
            raise DataError(
                f"the data file of this model cannot be used ({error}); say where it is with --data"
            ) from error
        store = cls(table)
        if store.facts()["fingerprint"] != facts["fingerprint"]:
            table.close()
            raise DataError(
                f"{paths[0]} is not the file this model was fitted on (other rows): restore it, or fit again"
            )
        return store

    def check(self, n: int, d: int, classes: int) -> None:
        if self.y.shape != (n,):
            raise ValueError("its rows: the data file has another number of them")


def _reopened(paths: list[str], part: str, coarse: bool) -> FileStore:
    """A FileStore in another process."""
    from l2ul_fast.tables import FileTable  # here: arrays need no h5py

    return FileStore(FileTable(paths, part, coarse=coarse))


class NoStore(Store):
    """`store_rows=False`: every request brings its rows. digests (N,) uint32 tell whether they are the right ones.

    key (words + 3,) uint64 makes the digests: sums of a row's 32-bit words (the two of its target too) times random
    factors, the upper half kept.
    """

    kind = "none"
    keeps_rows = False

    def __init__(
        self, digests: NDArray[np.uint32], key: NDArray[np.uint64], dtype: np.dtype[Any], weights: Weights | None
    ) -> None:
        self.digests, self.key, self.dtype = digests, key, dtype
        self.weights = _NO_WEIGHTS if weights is None else weights

    @classmethod
    def of(cls, X: NDArray[Any], y: NDArray[Any], weights: Weights | None, seed: int) -> NoStore:
        """Digests of rows X (N, d), y (N,), by a key drawn from `seed`."""
        words = X.shape[1] * X.dtype.itemsize // 4
        key = np.random.default_rng([seed, 3]).integers(0, 2**64, words + 3, np.uint64)
        store = cls(np.empty(len(X), np.uint32), key, X.dtype, weights)
        for start in range(0, len(X), PIECE):
            part = slice(start, start + PIECE)
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

    def differ(self, ids: Ids, X: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(self.digest(X, y) != self.digests[ids])

    def places(
        self, X: NDArray[Any], y: NDArray[Any], visible: Ids, table: Any
    ) -> tuple[list[Any], dict[Any, list[int]]]:
        wanted, found = self.digest(X, y), dict[Any, list[int]]()
        for row in visible[np.isin(self.digests[visible], wanted)].tolist():
            found.setdefault(int(self.digests[row]), []).append(row)
        return wanted.tolist(), found

    def erase(self, ids: Ids) -> None:
        self.digests[ids] = 0
        super().erase(ids)

    def append(self, X: NDArray[Any], y: NDArray[Any], weights: Weights | None) -> None:
        self.digests = np.concatenate([self.digests, self.digest(X, y)])
        super().append(X, y, weights)

    def cut(self, n: int) -> None:
        self.digests = self.digests[:n].copy()
        super().cut(n)

    def table(self, classes: list[Any], hidden: NDArray[np.bool_]) -> None:
        return None

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind, "dtype": self.dtype.name}

    def arrays(self) -> Arrays:
        return {"digests": self.digests} | super().arrays()

    def constants(self) -> Arrays:
        return {"digest_key": self.key}

    @classmethod
    def from_saved(cls, facts: dict[str, Any], arrays: Arrays, data: Any) -> NoStore:
        weights = np.array(arrays["weights"]) if "weights" in arrays else None
        return cls(np.array(arrays["digests"]), arrays["digest_key"], np.dtype(facts["dtype"]), weights)

    def check(self, n: int, d: int, classes: int) -> None:
        super().check(n, d, classes)
        if self.digests.shape != (n,) or self.digests.dtype != np.uint32:
            raise ValueError("digests, which are of another kind or number")
        if self.key.shape != (d * self.dtype.itemsize // 4 + 3,) or self.key.dtype != np.uint64:
            raise ValueError("digest_key, which is of another kind")


#: By their names in a saved state.
STORES: dict[str, type[Store]] = {store.kind: store for store in (ArrayStore, FileStore, NoStore)}
