"""Moved to `l2ul_fast.experiments.speed.peers`; kept for the case tables of older commits that asv runs here."""

from l2ul_fast.experiments.speed.peers import PEERS

__all__ = ["PEERS"]
