"""Moved to `l2ul_fast.distributed.worker`; kept for one release."""

from l2ul_fast.distributed.worker import LocalWorker, keep_memory

__all__ = ["LocalWorker", "keep_memory"]
