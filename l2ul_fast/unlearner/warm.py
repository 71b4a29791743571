"""Load the compiled request path of an unlearner before the first request, on copies of its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from l2ul_kernels.request import PRESENT, claim_labelled, forget_cells, forget_stored, release

if TYPE_CHECKING:
    from l2ul_fast.unlearner.l2ul import L2UL


def warm_request(u: L2UL) -> None:
    """Run every kernel of a request once on one row; nothing of `u` changes."""
    from l2ul_fast.unlearner.store import ArrayStore, NoStore

    one = np.flatnonzero(u.gone == PRESENT)[:1].astype(np.int64)
    if isinstance(u.store, NoStore):
        return
    gone = u.gone.copy()
    claim_labelled(one, gone, u.store.y, u.class_counts.copy())
    release(one, gone)
    u.store.fetch(np.repeat(one, 2))  # several rows are copied, one is not
    X, y = u.store.fetch(one)
    packed, first, bits, counts = u.cells.packed[one], np.zeros(1, np.int64), u.cells.bits, u.cells.counts.copy()
    if isinstance(u.store, ArrayStore):
        forget_stored(packed, first, bits, counts, X.copy(), y.copy())
        u.step.request(u, -1)  # refused
    else:
        forget_cells(packed, first, y, first, bits, counts)
    if u.step.total is not None:  # else a network, which compiled itself when it was built
        u.step.copy().move_stored(u.store, one, u.theta, u.n)
