"""Slow, obvious NumPy versions of every kernel: the definition of what is right, for our tests and yours.

The ones of cells and counts stand here; `reference.linear`, `.mlp`, `.sgd`, `.network`, `.expansion` and `.request`
hold those of the other packages.
"""

from l2ul_kernels.reference.voronoi import (
    assign_cells,
    bits_per_cell,
    cell_counts,
    class_counts,
    one_hot,
    pack_cells,
    squared_distances,
    unpack_cells,
)

__all__ = [
    "assign_cells",
    "bits_per_cell",
    "cell_counts",
    "class_counts",
    "one_hot",
    "pack_cells",
    "squared_distances",
    "unpack_cells",
]
