"""A fitted unlearner on disk: directory, format, tensors, journal, ledger, durable writes."""

from l2ul_fast.unlearner.artifact.directory import check_artifact, load_artifact, read_ledger, save_artifact
from l2ul_fast.unlearner.artifact.durable import locked
from l2ul_fast.unlearner.artifact.format import read_header

__all__ = ["check_artifact", "load_artifact", "locked", "read_header", "read_ledger", "save_artifact"]
