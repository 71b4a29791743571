"""Compile everything now instead of at the first call."""

from __future__ import annotations

import numpy as np

from l2ul_kernels.voronoi.assign import assign_cells
from l2ul_kernels.voronoi.counts import cell_counts, counts_from_cells
from l2ul_kernels.voronoi.driver import SERIAL
from l2ul_kernels.voronoi.pack import pack_cells, unpack_cells
from l2ul_kernels.voronoi.partitions import Partitions


def warmup(float64: bool = True, many_seeds: bool = True) -> None:
    """Compile (or load from the cache) the kernels for float32, and for float64 and more than 256 seeds if wanted.

    Meant for container builds and for the start of a service: later calls then never wait for the compiler. Safe to run
    in several processes at once.
    """
    for dtype in (np.float32, np.float64) if float64 else (np.float32,):
        for psi in (4, 300) if many_seeds else (4,):
            seeds = np.arange(psi, dtype=dtype).reshape(1, psi, 1)
            partitions = Partitions.from_seeds(seeds)
            few = np.zeros((1, 1), dtype)
            many = np.zeros((SERIAL // psi + 1, 1), dtype)
            for rows in (few, many):
                cells = assign_cells(rows, partitions)
                cell_counts(rows, partitions)
            unpack_cells(pack_cells(cells, psi), 1, psi)
            counts_from_cells(cells, psi)
