"""Inputs of the heads that see rows through their cells, for all training pairs at once, counted from stored cells.

The first n_forget[i] >= 1 rows of pair i are its forget part; pairs on all of D list no other rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2ul_kernels.voronoi.subsets import count_sets

Floats = NDArray[np.float32]

#: Values of the counts that `class_shifts` holds at a time.
AT_ONCE = 1 << 22


def pair_embeddings(cells: Any, pairs: Any) -> tuple[Floats, Floats]:
    """mu_D (m, t psi) of all rows of each of m pairs, and mu_f (m, t psi) of its forget part."""
    forget, rest = _edges(pairs)
    rows, r = pairs.rows.astype(np.int64), pairs.n_forget[:, None]
    m, what = len(r), (cells.t, cells.psi)
    part = count_sets(cells.packed, rows, forget, *what).reshape(m, -1)
    if pairs.full:
        whole = cells.counts.sum(axis=0)
        mu_D = np.tile((whole.ravel() / whole[0].sum()).astype(np.float32), (m, 1))
    else:  # the retained rows are counted apart, so that no row is counted twice
        total = part + count_sets(cells.packed, rows, rest, *what).reshape(m, -1)
        mu_D = (total / np.diff(pairs.starts)[:, None]).astype(np.float32)
    return mu_D, (part / r).astype(np.float32)


def class_shifts(cells: Any, pairs: Any, y: NDArray[Any]) -> Floats:
    """(m, C t psi): the mean over a pair's forget part of one-hot(class) x cells, less that over all rows of the pair.

    y (N,) are the labels by row number.
    """
    forget, rest = _edges(pairs)
    rows, sizes, what = pairs.rows.astype(np.int64), np.diff(pairs.starts), (cells.t, cells.psi, y, len(cells.counts))
    out = np.empty((len(pairs.n_forget), cells.counts.size), np.float32)
    some = max(1, AT_ONCE // out.shape[1])
    for first in range(0, len(out), some):
        now = slice(first, first + some)
        part = count_sets(cells.packed, rows, forget[now], *what).reshape(-1, out.shape[1])
        if pairs.full:
            mean = cells.counts.ravel() / cells.counts[:, 0].sum()
        else:
            retained = count_sets(cells.packed, rows, rest[now], *what).reshape(part.shape)
            mean = (part + retained) / sizes[now, None]
        out[now] = part / pairs.n_forget[now, None] - mean
    return out


def _edges(pairs: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(m, 2) first and last + 1 places in `rows` of the pairs' forget parts, and of the others."""
    first, end = pairs.starts[:-1], pairs.starts[1:]
    return np.stack([first, first + pairs.n_forget], axis=1), np.stack([first + pairs.n_forget, end], axis=1)
