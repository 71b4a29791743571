"""The kernel mean embedding of D as an unlearner holds it: partitions, packed cells of every row, counts by class."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import Table
from l2ul_kernels import (
    Partitions,
    assign_cells,
    bits_per_cell,
    counts_from_cells,
    pack_cells,
    packed_width,
    sample_row_ids,
    unpack_cells,
)
from l2ul_kernels.codegen.jit import ensure_compiled
from l2ul_kernels.request.claims import forget_cells

Ids = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]

#: Rows whose stored cells are looked at together.
CHECKED_ROWS = 65_536


class CellState:
    """packed (N, width) uint8 by row number (zero for rows outside D), counts (C, t, psi) int64 of the rows of D."""

    def __init__(self, partitions: Partitions, packed: NDArray[np.uint8], counts: NDArray[np.int64]) -> None:
        self.partitions, self.packed, self.counts = partitions, packed, counts
        self.t, self.psi = partitions.n_partitions, partitions.n_seeds
        self.bits = bits_per_cell(self.psi)

    @classmethod
    def empty(cls, partitions: Partitions, size: int, n_classes: int) -> CellState:
        """Of no rows yet, for row numbers below `size`."""
        t, psi = partitions.n_partitions, partitions.n_seeds
        packed = np.zeros((size, packed_width(t, psi)), np.uint8)
        return cls(partitions, packed, np.zeros((n_classes, t, psi), np.int64))

    @classmethod
    def build(cls, table: Table, size: int, t: int, psi: int, random_state: Any) -> CellState:
        """Draw seeds from the rows of `table` and assign all of them; `size` is the largest row number + 1."""
        ids = table.ids()
        seed_ids = ids[sample_row_ids(table.n, t, psi, random_state)]
        rows, _ = table.take(seed_ids.ravel())
        state = cls.empty(Partitions.from_seeds(rows.reshape(t, psi, table.d), seed_ids), size, len(table.classes))
        done = 0
        for X, y in table.blocks():
            state.add(X, y, ids[done : done + len(X)])
            done += len(X)
        return state

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """(C,) rows of each class."""
        return np.asarray(self.counts[:, 0].sum(axis=1))

    # Rows come and go ------------------------------------------------------------------------------------------------

    def add(self, X: NDArray[Any], y: NDArray[np.uint8], ids: Ids) -> None:
        """Rows X (r, d) with classes y (r,) and numbers ids (r,): store their cells and count them."""
        cells = assign_cells(X, self.partitions)
        self.packed[ids] = pack_cells(cells, self.psi)
        counts_from_cells(cells, self.psi, y, len(self.counts), out=self.counts)

    def revert(self, y: NDArray[np.uint8], ids: Ids) -> None:
        """Take rows ids (r,) with classes y (r,) out of the counts (exact integers) and zero their cells."""
        what = (y, np.arange(ids.size), self.bits, self.counts)
        key = ("forget cells", y.dtype, ids.flags.writeable, y.flags.writeable)
        ensure_compiled(key, lambda: forget_cells(self.packed, ids[:0], *what))
        forget_cells(self.packed, ids, *what)

    def merge(self, other: CellState) -> None:
        """Add the rows of another state with the same seeds, none of which is in this one."""
        if not self.partitions.same_as(other.partitions) or len(self.counts) != len(other.counts):
            raise UserError("only cells of the same seeds and classes can be merged: give both the same partitions")
        if self.packed.shape != other.packed.shape:
            raise UserError("only cells of the same row numbers can be merged: make both for the same number of rows")
        self.counts += other.counts
        self.packed |= other.packed

    def copy(self) -> CellState:
        """One whose counts and stored cells are its own."""
        return CellState(self.partitions, self.packed.copy(), self.counts.copy())

    def __getstate__(self) -> Arrays:
        return self.arrays()  # what partitions have made for the kernels holds addresses: it is made again

    def __setstate__(self, state: Arrays) -> None:
        partitions = Partitions.from_seeds(state["cells.seeds"], state["cells.seed_rows"])
        self.__init__(partitions, state["cells.packed"], state["cells.counts"])  # type: ignore[misc]

    # Seeds -----------------------------------------------------------------------------------------------------------

    def seeds_among(self, ids: Ids) -> NDArray[np.int64]:
        """Numbers of the partitions that have one of these rows as a seed."""
        held = self.partitions.row_ids
        return np.flatnonzero(np.isin(held, ids).any(axis=1)) if held is not None else np.zeros(0, np.int64)

    def replace_seeds(self, forgotten: Ids, table: Table, rng: np.random.Generator) -> int:
        """Draw other rows of `table` for the seeds that were forgotten and assign those partitions again.

        Returns how many partitions changed. `table` holds the rows that stay.
        """
        changed = self.seeds_among(forgotten)
        if not changed.size:
            return 0
        ids = table.ids()
        if ids.size < self.psi:
            raise UserError(f"only {ids.size} rows stay, too few for partitions of psi={self.psi} seeds: fit again")
        held = np.array(self.partitions.row_ids)
        for p in changed:
            gone = np.flatnonzero(np.isin(held[p], forgotten))
            held[p, gone] = _draw_others(ids, held[p], gone.size, rng)
        seeds = np.array(self.partitions.seeds)
        rows, _ = table.take(held[changed].ravel())
        seeds[changed] = rows.reshape(changed.size, self.psi, table.d)
        partial = Partitions.from_seeds(np.ascontiguousarray(seeds[changed]))
        self.counts[:, changed] = 0
        done = 0
        for X, y in table.blocks():
            mine = ids[done : done + len(X)]
            cells = unpack_cells(self.packed[mine], self.t, self.psi)
            cells[:, changed] = assign_cells(X, partial)
            self.packed[mine] = pack_cells(cells, self.psi)
            fresh = np.ascontiguousarray(cells[:, changed])
            self.counts[:, changed] += counts_from_cells(fresh, self.psi, y, len(self.counts))
            done += len(X)
        self.partitions = Partitions.from_seeds(seeds, held)
        return int(changed.size)

    # Keep ------------------------------------------------------------------------------------------------------------

    def arrays(self) -> Arrays:
        """All of it."""
        return {
            "cells.packed": self.packed,
            "cells.counts": self.counts,
            "cells.seeds": np.asarray(self.partitions.seeds),
            "cells.seed_rows": np.asarray(self.partitions.row_ids),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, d: int) -> Self:
        """What `arrays` gave; ValueError where they do not fit each other, since compiled code trusts them."""
        packed, counts = np.array(arrays["cells.packed"]), np.array(arrays["cells.counts"])
        seeds, rows = arrays["cells.seeds"], np.array(arrays["cells.seed_rows"])
        if seeds.ndim != 3 or seeds.shape[2] != d or rows.shape != seeds.shape[:2] or rows.dtype != np.int64:
            raise ValueError("the seeds of the partitions")
        t, psi, _ = seeds.shape
        fits = packed.dtype == np.uint8 and packed.ndim == 2 and packed.shape[1] == packed_width(t, psi)
        fits = fits and counts.dtype == np.int64 and counts.ndim == 3 and counts.shape[1:] == (t, psi)
        if not fits or counts.min() < 0 or (counts.sum(axis=2) != counts[:, :1].sum(axis=2)).any():
            raise ValueError("the cells of the rows, which do not fit their counts")
        if psi & (psi - 1):  # with a power of two every pattern of bits is a cell
            for start in range(0, len(packed), CHECKED_ROWS):
                try:
                    unpack_cells(packed[start : start + CHECKED_ROWS], t, psi)
                except ValueError:
                    raise ValueError("the cells of the rows, of which some do not exist") from None
        return cls(Partitions.from_seeds(np.array(seeds), rows), packed, counts)


def _draw_others(ids: Ids, held: Ids, k: int, rng: np.random.Generator) -> Ids:
    """k rows of ids that are not in `held`."""
    found: list[int] = []
    while len(found) < k:
        row = int(ids[rng.integers(ids.size)])
        if row not in held and row not in found:
            found.append(row)
    return np.array(found, np.int64)
