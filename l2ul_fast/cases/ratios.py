"""Ratios that asv tracks: candidates take turns in one process, so a slow machine slows both sides alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from l2ul_fast.cases.case import Skip, budget
from l2ul_fast.cases.data import rows
from l2ul_fast.cases.profiles import Profile
from l2ul_fast.cases.table import BASELINES, R, Requests, T, fitted, forget_rows, prepared
from l2ul_fast.datasets.registry import get_info
from l2ul_fast.timing import interleave, once

#: Peers of the kernel (names of l2ul_fast.experiments.peers.PEERS) by the short name of the parameter.
PEERS = {"numpy": "numpy GEMM+argmin", "torch": "torch GEMM+argmin", "faiss": "faiss"}
KERNELS = {"assign_cells": "l2ul assign_cells", "cell_counts": "l2ul cell_counts"}
METHODS = BASELINES
#: Rows that kernel and peers assign in one call.
ROWS = 4096


def _ratio(theirs: Callable[[], object], ours: Callable[[], object], turns: int) -> float:
    """Seconds of their call over those of ours, in turns, both warmed up by two calls."""
    for call in (ours, theirs, ours, theirs):
        call()
    inner = max(1, min(50, int(0.01 / once(ours))))
    times = interleave({"ours": ours, "theirs": theirs}, turns, {"ours": inner})
    return times["theirs"].median / times["ours"].median


def over_baseline(profile: Profile, dataset: str, threads: int, model: str, method: str) -> float:
    """Seconds of a baseline's request over those of L2UL's, R rows each. Above 1, L2UL is faster."""
    with budget(threads):
        requests = Requests(fitted(profile, dataset, model), R)
        found = prepared(profile, dataset, model, method)
        ids = forget_rows(found.n, R)

        def ours() -> None:
            requests.before()
            requests.call()

        return _ratio(lambda: found.unlearn(ids), ours, profile.turns)


def over_peer(profile: Profile, dataset: str, threads: int, psi: int, peer: str) -> float:
    """Seconds of a peer's nearest-seed search over those of assign_cells, on the same rows. Above 1, ours is faster."""
    from l2ul_kernels import Partitions, assign_cells

    try:
        from l2ul_fast.experiments.peers import PEERS as known

        X, _ = rows(dataset, ROWS)
        partitions = Partitions.sample(X, T, psi, random_state=0)
        out = np.empty((len(X), T), np.uint8)
        with budget(threads):
            theirs = partial(known[PEERS[peer]](X, partitions.seeds, threads), len(X))
            return _ratio(theirs, lambda: assign_cells(X, partitions, out=out), profile.turns)
    except ImportError as error:
        raise Skip(f"{peer} is not installed ({error.name})") from None


def of_peak(profile: Profile, dataset: str, threads: int, psi: int, kernel: str) -> float:
    """Rate of a kernel over the machine's single-precision matrix product, taken in the same turns (random rows)."""
    from l2ul_fast.experiments.kernels import measure_cell

    with budget(threads):
        records = measure_cell(get_info(dataset).d, psi, threads, profile.turns, 0.02, ())
        return float(next(r["of_peak"] for r in records if r["method"] == KERNELS[kernel]))
