"""Compiled nearest-seed kernels: assign rows to Voronoi cells, count them, store them. numpy and numba only.

See kernels/README.md for the contract: shapes, dtypes, tie rule, determinism, threads, caching.
"""

from importlib import import_module
from typing import Any

from l2ul_kernels.cells import assign_cells, bits_per_cell, one_hot, pack_cells, packed_width, unpack_cells
from l2ul_kernels.counts import cell_counts, counts_from_cells
from l2ul_kernels.partitions import Partitions, sample_row_ids
from l2ul_kernels.threads import available_cores, threads
from l2ul_kernels.warm import warmup

# Imported when first used, so that assigning cells does not pay for training models.
_LAZY = {
    "logistic": ("logistic_fit_pairs", "logistic_sums", "logistic_gradient", "logistic_loss", "logistic_hvp"),
    "softmax": ("softmax_fit_pairs", "softmax_sums", "softmax_gradient", "softmax_loss", "softmax_hvp"),
    "mlp": ("mlp_sums", "mlp_gradient", "mlp_logits", "mlp_size"),
    "mlp_train": ("mlp_train", "mlp_fit_pairs"),
    "mlp_second": ("mlp_hessian", "mlp_hvp"),
    "mlp_anchored": ("mlp_anchored_pairs",),
    "rowcounts": ("count_rows", "count_sets"),
    "forward": ("DirectForward",),
}
_HOMES = {name: module for module, names in _LAZY.items() for name in names if name != module}
__all__ = [
    *_HOMES,
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


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"l2ul_kernels.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
