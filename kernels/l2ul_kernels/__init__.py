"""Compiled nearest-seed kernels: assign rows to Voronoi cells, count them, store them. numpy and numba only.

See kernels/README.md for the contract: shapes, dtypes, tie rule, determinism, threads, caching.
"""

from l2ul_kernels.cells import assign_cells, bits_per_cell, one_hot, pack_cells, packed_width, unpack_cells
from l2ul_kernels.counts import cell_counts, counts_from_cells
from l2ul_kernels.partitions import Partitions, sample_row_ids
from l2ul_kernels.threads import available_cores, threads
from l2ul_kernels.warm import warmup

__all__ = [
    "Partitions",
    "assign_cells",
    "available_cores",
    "bits_per_cell",
    "cell_counts",
    "counts_from_cells",
    "one_hot",
    "pack_cells",
    "packed_width",
    "sample_row_ids",
    "threads",
    "unpack_cells",
    "warmup",
]
