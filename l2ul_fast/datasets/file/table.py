"""Rows of dataset files as models are trained on them; importable from `l2ul_fast.tables` too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.datasets.file.gather import standardise_rows
from l2ul_fast.datasets.stream.shards import as_shards
from l2ul_fast.datasets.stream.stream import blocks
from l2ul_fast.errors import DataError
from l2ul_fast.tables import MOST_CLASSES, Block


def coarse_scaling(mean: NDArray[np.float64], scale: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(mean, scale) of columns (d,), rounded: the scale to a power of two, the mean to eighths of it.

    Mean and scale of a file are sums over all its rows: from the exact ones, and all rows but one, that one follows.
    The rounded ones are very likely the same without it.
    """
    _, exponent = np.frexp(scale / np.sqrt(0.5))  # scale in [2^(e - 1/2), 2^(e + 1/2)) becomes 2^e
    rounded = np.ldexp(1.0, exponent - 1)
    return np.rint(8 * mean / rounded) * rounded / 8 + 0.0, rounded


class FileTable:
    """The training (or test, or all) rows of dataset files, standardised.

    source: a path, a pattern, a list, or open Shards. coarse: by `coarse_scaling` instead of the files' exact mean and
    scale. `mean` and `inverse_scale` (d,) are those that rows are standardised with.
    """

    def __init__(
        self,
        source: Any,
        part: str = "train",
        hidden: NDArray[np.bool_] | None = None,
        y: NDArray[np.uint8] | None = None,
        *,
        coarse: bool = False,
    ) -> None:
        if part not in ("train", "test", "all"):
            raise DataError(f'part must be "train", "test" or "all", got {part!r}')
        try:
            self.shards = as_shards(source)
        except TypeError:
            raise DataError(f"not a path of a dataset file: {type(source).__name__} (give y with X)") from None
        self.part = part
        self.d = self.shards.d
        self.classes = sorted(self.shards.classes)
        if len(self.classes) > MOST_CLASSES:
            raise DataError(
                f"{self.shards.paths[0]} has {len(self.classes)} classes, at most {MOST_CLASSES} are supported"
            )
        self.label = self.shards.label
        self.whole_part = hidden is None
        if hidden is None:
            hidden = np.zeros(self.shards.n, bool)
            if part != "all":
                train = np.concatenate([file.train_mask() for file in self.shards.files])
                hidden = ~train if part == "train" else train
        self.hidden = hidden
        self.n = int(self.shards.n - hidden.sum())
        if self.n == 0:
            raise DataError(f"{self.shards.paths[0]} has no {part} rows")
        self.coarse, self.mean, scale = coarse, self.shards.mean, self.shards.scale
        if coarse:
            self.mean, scale = coarse_scaling(self.mean, scale)
        self.inverse_scale = 1.0 / scale
        if y is None:  # a byte a row: h5py takes minutes to look up a million labels by number
            for file in self.shards.files:
                file.check_scaling()
            y = np.concatenate(
                [np.searchsorted(self.classes, file.labels()).astype(np.uint8) for file in self.shards.files]
            )
        self.y = y

    def blocks(self) -> Iterator[Block]:
        for first, X, _ in blocks(self.shards):
            keep = ~self.hidden[first : first + len(X)]
            # in place: the block is ours until the next one is asked for
            k = standardise_rows(X, self.mean, self.inverse_scale, keep, X)
            if k:
                yield X[:k], self.y[first : first + len(keep)][keep]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def take(self, ids: NDArray[np.int64], out: NDArray[Any] | None = None) -> Block:
        return self.shards.take_standardised(ids, self.mean, self.inverse_scale, out), self.y[ids]

    def ids(self) -> NDArray[np.int64]:
        return np.flatnonzero(~self.hidden)

    def without(self, ids: NDArray[np.int64]) -> FileTable:
        hidden = self.hidden.copy()
        hidden[ids] = True
        return FileTable(self.shards, self.part, hidden, self.y, coarse=self.coarse)

    def close(self) -> None:
        self.shards.close()
