"""Inputs of the heads that see rows through their cells, for all training pairs at once, counted from stored cells."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.voronoi.subsets import count_sets

Floats = NDArray[np.float32]

#: Values of the counts that `class_shifts` holds at a time.
AT_ONCE = 1 << 22


class Embeddings(NamedTuple):
    """mu_D (m, t psi) of all rows of each pair, and mu_f (m, t psi) of its forget part."""

    mu_D: Floats
    mu_f: Floats


def pair_embeddings(
    packed: NDArray[np.uint8],
    rows: ArrayLike,
    n_forget: ArrayLike,
    t: int,
    psi: int,
    *,
    starts: ArrayLike | None = None,
    whole: NDArray[np.int64] | None = None,
    bits: int | None = None,
) -> Embeddings:
    """Embeddings of m pairs from the store packed (N, width), or plain cells (N, t) with bits=8.

    rows (m, s) row ids, or flat with `starts` (m + 1,); the first n_forget[i] >= 1 rows of pair i are its forget part.
    Pairs on all of D list their forget part only and give D's counts (t, psi) as `whole`.
    """
    flat, starts, r = _checked(rows, n_forget, starts)
    m = len(r)
    part = count_sets(packed, flat, _forget(starts, r), t, psi, bits=bits)
    mu_f = (part.reshape(m, -1) / r[:, None]).astype(np.float32)
    if whole is None:
        # the retained rows are counted apart, so that no row is counted twice
        total = part + count_sets(packed, flat, _retained(starts, r), t, psi, bits=bits)
        mu_D = (total.reshape(m, -1) / np.diff(starts)[:, None]).astype(np.float32)
    else:
        one = (np.asarray(whole).ravel() / np.asarray(whole)[0].sum()).astype(np.float32)
        mu_D = np.tile(one, (m, 1))
    return Embeddings(mu_D, mu_f)


def class_shifts(
    packed: NDArray[np.uint8],
    rows: ArrayLike,
    n_forget: ArrayLike,
    t: int,
    psi: int,
    y: NDArray[Any],
    n_classes: int,
    *,
    starts: ArrayLike | None = None,
    whole: NDArray[np.int64] | None = None,
) -> Floats:
    """(m, C t psi): the mean over a pair's forget part of one-hot(class) x cells, less that over all rows of the pair.

    y (N,) are the labels by row number; `whole` (C, t, psi) D's counts for pairs on all of D; else as pair_embeddings.
    """
    flat, starts, r = _checked(rows, n_forget, starts)
    out = np.empty((len(r), n_classes * t * psi), np.float32)
    some = max(1, AT_ONCE // out.shape[1])
    for first in range(0, len(r), some):
        now = slice(first, first + some)
        part = count_sets(packed, flat, _forget(starts, r)[now], t, psi, y, n_classes).reshape(-1, out.shape[1])
        if whole is None:
            rest = count_sets(packed, flat, _retained(starts, r)[now], t, psi, y, n_classes).reshape(part.shape)
            mean = (part + rest) / np.diff(starts)[now, None]
        else:
            mean = np.asarray(whole).ravel() / np.asarray(whole)[:, 0].sum()
        out[now] = part / r[now, None] - mean
    return out


def _checked(
    rows: ArrayLike, n_forget: ArrayLike, starts: ArrayLike | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(flat row ids, starts, n_forget) of m pairs."""
    rows, r = np.asarray(rows, np.int64), np.asarray(n_forget, np.int64)
    if starts is None:
        m, s = rows.shape
        starts = np.arange(m + 1, dtype=np.int64) * s
    starts = np.asarray(starts, np.int64)
    if len(starts) != len(r) + 1 or (len(r) and (r.min() < 1 or (r > np.diff(starts)).any())):
        raise ValueError("every pair needs a forget part of at least one and at most all of its rows")
    return rows.reshape(-1), starts, r


def _forget(starts: NDArray[np.int64], r: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([starts[:-1], starts[:-1] + r], axis=1)


def _retained(starts: NDArray[np.int64], r: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([starts[:-1] + r, starts[1:]], axis=1)
