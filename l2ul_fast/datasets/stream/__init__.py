"""Datasets larger than memory: shards, their manifests, and streams of rows through the kernels."""

from l2ul_fast.datasets.stream.shards import Shards
from l2ul_fast.datasets.stream.stream import sample_partitions, stream_counts

__all__ = ["Shards", "sample_partitions", "stream_counts"]
