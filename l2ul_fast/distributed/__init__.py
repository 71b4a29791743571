"""Past one machine, on Dask: kernel mean embeddings of many shards, training pairs, and any list of jobs.

Everything here takes a `dask.distributed.Client`; `connect` gives one for a scheduler's address or for a cluster on
this machine. Results do not depend on the number of workers, nor on which of them die on the way. Needs the extra
`dask`; see docs/distributed.md.
"""

from l2ul_fast.distributed.cluster import connect, map_jobs, once_per_host, token, worker_count
from l2ul_fast.distributed.counts import describe_shards, sample_partitions, spans, stream_counts, take_rows
from l2ul_fast.distributed.pairs import full_fits, make_pairs

__all__ = [
    "connect",
    "describe_shards",
    "full_fits",
    "make_pairs",
    "map_jobs",
    "once_per_host",
    "sample_partitions",
    "spans",
    "stream_counts",
    "take_rows",
    "token",
    "worker_count",
]
