"""The kernel mean embedding of D as an unlearner holds it: partitions, packed cells of every row, counts by class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import Table
from l2ul_fast.unlearner.store import ArrayStore, Store
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
from l2ul_kernels.request import forget_cells, forget_stored

Ids = NDArray[np.int64]


class CellState:
    """packed (N, width) uint8 by row number (zero for rows outside D), counts (C, t, psi) int64 of the rows of D."""

    def __init__(self, partitions: Partitions, packed: NDArray[np.uint8], counts: NDArray[np.int64]) -> None:
        self.partitions, self.packed, self.counts = partitions, packed, counts
        self.t, self.psi = partitions.n_partitions, partitions.n_seeds
        self.bits = bits_per_cell(self.psi)

    @classmethod
    def build(cls, table: Table, size: int, t: int, psi: int, random_state: Any) -> CellState:
        """Draw seeds from the rows of `table` and assign all of them; `size` is the largest row number + 1."""
        ids = table.ids()
        seed_ids = ids[sample_row_ids(table.n, t, psi, random_state)]
        rows, _ = table.take(seed_ids.ravel())
        partitions = Partitions.from_seeds(rows.reshape(t, psi, table.d), seed_ids)
        state = cls(
            partitions,
            np.zeros((size, packed_width(t, psi)), np.uint8),
            np.zeros((len(table.classes), t, psi), np.int64),
        )
        done = 0
        for X, y in table.blocks():
            cells = assign_cells(X, partitions)
            state.packed[ids[done : done + len(X)]] = pack_cells(cells, psi)
            counts_from_cells(cells, psi, y, len(table.classes), out=state.counts)
            done += len(X)
        return state

    def forget(self, ids: Ids, y: NDArray[np.uint8], at: Ids, store: Store) -> None:
        """Take rows with classes y[at] out of the counts (exact integers); overwrite their cells and what `store`
        holds of them."""
        if isinstance(store, ArrayStore):  # one call instead of two
            forget_stored(self.packed, ids, self.bits, self.counts, store.X, store.y)
        else:
            forget_cells(self.packed, ids, y, at, self.bits, self.counts)
            store.erase(ids)

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


def _draw_others(ids: Ids, held: Ids, k: int, rng: np.random.Generator) -> Ids:
    """k rows of ids that are not in `held`."""
    found: list[int] = []
    while len(found) < k:
        row = int(ids[rng.integers(ids.size)])
        if row not in held and row not in found:
            found.append(row)
    return np.array(found, np.int64)
