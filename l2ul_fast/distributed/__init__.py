"""Past one machine, on Dask: kernel mean embeddings of many shards, fits, training pairs, and any list of jobs.

Everything here takes a `dask.distributed.Client`; `connect` gives one for a scheduler's address or for a cluster on
this machine. Results do not depend on the number of workers, nor on which of them die on the way. Needs the extra
`dask`; see docs/distributed.md.
"""

from importlib import import_module
from typing import Any

# Imported when first used: a worker that counts shards needs no unlearner.
_LAZY = {
    **dict.fromkeys(("connect", "map_jobs", "worker_count"), "cluster"),
    **dict.fromkeys(("describe_shards", "sample_partitions", "spans", "stream_counts", "take_rows"), "sums"),
    **dict.fromkeys(("DaskWorkers", "make_pairs"), "executor"),
}
__all__ = [
    "DaskWorkers",
    "connect",
    "describe_shards",
    "make_pairs",
    "map_jobs",
    "sample_partitions",
    "spans",
    "stream_counts",
    "take_rows",
    "worker_count",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"l2ul_fast.distributed.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
