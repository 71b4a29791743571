"""Embeddings and shifts of training pairs against a plain count of their rows' cells."""

import types

import numpy as np
import pytest

from l2ul_fast.unlearner.pairs.features import class_shifts, pair_embeddings
from l2ul_kernels import pack_cells, reference


def drawn(n, t, psi, m, s, full=False, seed=4):
    """(cells (n, t), labels (n,), stored cells, m pairs of s rows, or of up to s forgotten ones of all)."""
    rng = np.random.default_rng(seed)
    cells, y = rng.integers(0, psi, (n, t)).astype(np.uint8), rng.integers(0, 3, n).astype(np.uint8)
    rows, r = [rng.choice(n, s, replace=False) for _ in range(m)], rng.integers(1, s + 1, m)
    rows = [some[:k] for some, k in zip(rows, r, strict=True)] if full else rows
    starts = np.cumsum([0, *map(len, rows)])
    pairs = types.SimpleNamespace(rows=np.concatenate(rows), starts=starts, n_forget=r, full=full)
    counts = reference.class_counts(cells, y, psi, 3)
    return cells, y, types.SimpleNamespace(packed=pack_cells(cells, psi), counts=counts, t=t, psi=psi), pairs


@pytest.mark.parametrize("full", [False, True])
def test_what_pairs_look_like_is_counted_from_their_rows(full):
    cells, y, store, pairs = drawn(2000, 12, 4, 30, 80, full)
    mu_D, mu_f = pair_embeddings(store, pairs)
    shifts = class_shifts(store, pairs, y)
    for i, r in enumerate(pairs.n_forget):
        own = pairs.rows[pairs.starts[i] : pairs.starts[i + 1]]
        whole, forget = np.arange(2000) if full else own, own[:r]
        part = reference.class_counts(cells[forget], y[forget], 4, 3) / r
        for found, expected in [
            (mu_D[i], reference.cell_counts(cells[whole], 4) / len(whole)),
            (mu_f[i], reference.cell_counts(cells[forget], 4) / r),
            (shifts[i], part - reference.class_counts(cells[whole], y[whole], 4, 3) / len(whole)),
        ]:
            np.testing.assert_array_equal(found, expected.ravel().astype(np.float32))


def test_shifts_do_not_depend_on_how_many_pairs_are_counted_at_a_time(monkeypatch):
    _, y, store, pairs = drawn(500, 7, 5, 23, 40)
    at_once = class_shifts(store, pairs, y)
    monkeypatch.setattr("l2ul_fast.unlearner.pairs.features.AT_ONCE", 4 * 7 * 5 * 3)
    np.testing.assert_array_equal(class_shifts(store, pairs, y), at_once)
