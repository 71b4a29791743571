"""Compiled nearest-seed kernels: assign rows to Voronoi cells, count them, store them. numpy and numba only.

See kernels/README.md for the contract: shapes, dtypes, tie rule, determinism, threads, caching.
"""

from importlib import import_module
from typing import Any

from l2ul_kernels.threads import available_cores, threads
from l2ul_kernels.validate import bits_per_cell, packed_width
from l2ul_kernels.voronoi.assign import assign_cells
from l2ul_kernels.voronoi.counts import cell_counts, counts_from_cells
from l2ul_kernels.voronoi.pack import one_hot, pack_cells, unpack_cells
from l2ul_kernels.voronoi.partitions import Partitions, sample_row_ids
from l2ul_kernels.warmup import warmup

# Name -> module, imported when first used, so that assigning cells does not pay for training models.
_LAZY = {
    **{f"logistic_{name}": "linear.logistic" for name in ("fit_pairs", "sums", "gradient", "loss", "hvp")},
    **{f"softmax_{name}": "linear.softmax" for name in ("fit_pairs", "sums", "gradient", "loss", "hvp")},
    **{f"mlp_{name}": "mlp.model" for name in ("sums", "gradient", "logits", "size")},
    "mlp_train": "mlp.adam",
    "mlp_fit_pairs": "mlp.adam",
    "mlp_hessian": "mlp.hessian",
    "mlp_hvp": "mlp.hessian",
    "mlp_anchored_pairs": "mlp.anchored",
    "count_rows": "voronoi.subsets",
    "count_sets": "voronoi.subsets",
    "DirectForward": "request.network",
}
__all__ = [
    *_LAZY,
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
    if name in _LAZY:
        return getattr(import_module(f"l2ul_kernels.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
