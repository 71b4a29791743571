"""Inputs of N_U for all training pairs at once: kernel mean embeddings, counted straight from the stored cells."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_kernels.rowcounts import count_sets

Floats = NDArray[np.float32]


class Embeddings(NamedTuple):
    """mu_D (m, t psi) of all rows of each pair, mu_f (m, t psi) of its forget part, and mu_f_class (m, C t psi): the
    forget part's rows of each class, divided by r, so that the classes add up to mu_f (None without labels)."""

    mu_D: Floats
    mu_f: Floats
    mu_f_class: Floats | None


def pair_embeddings(
    packed: NDArray[np.uint8],
    rows: ArrayLike,
    n_forget: ArrayLike,
    t: int,
    psi: int,
    *,
    starts: ArrayLike | None = None,
    y: NDArray[Any] | None = None,
    n_classes: int | None = None,
    whole: NDArray[np.int64] | None = None,
    bits: int | None = None,
) -> Embeddings:
    """Embeddings of m pairs from the store packed (N, width), or plain cells (N, t) with bits=8.

    rows (m, s) row ids, or flat with `starts` (m + 1,); the first n_forget[i] >= 1 rows of pair i are its forget part.
    Pairs on all of D list their forget part only and give D's counts (t, psi) as `whole`.
    """
    rows, r = np.asarray(rows, np.int64), np.asarray(n_forget, np.int64)
    if starts is None:
        m, s = rows.shape
        starts = np.arange(m + 1, dtype=np.int64) * s
    starts = np.asarray(starts, np.int64)
    if len(starts) != len(r) + 1 or (len(r) and (r.min() < 1 or (r > np.diff(starts)).any())):
        raise ValueError("every pair needs a forget part of at least one and at most all of its rows")
    flat, m = rows.reshape(-1), len(r)
    forget = np.stack([starts[:-1], starts[:-1] + r], axis=1)
    per_class = None
    if y is None:
        part = count_sets(packed, flat, forget, t, psi, bits=bits)
    else:
        by_class = count_sets(packed, flat, forget, t, psi, y, n_classes, bits)
        part = by_class.sum(axis=1)
        per_class = (by_class.reshape(m, -1) / r[:, None]).astype(np.float32)
    if whole is None:
        # the retained rows are counted apart, so that no row is counted twice
        retained = np.stack([starts[:-1] + r, starts[1:]], axis=1)
        total = part + count_sets(packed, flat, retained, t, psi, bits=bits)
        mu_D = (total.reshape(m, -1) / np.diff(starts)[:, None]).astype(np.float32)
    else:
        one = (np.asarray(whole).ravel() / np.asarray(whole)[0].sum()).astype(np.float32)
        mu_D = np.tile(one, (m, 1))
    return Embeddings(mu_D, (part.reshape(m, -1) / r[:, None]).astype(np.float32), per_class)
