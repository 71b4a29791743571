"""Training pairs of N_U: what changes in A(D) when a known part of D leaves.

Subset pairs (logistic regression, and the paper's way for the MLP) train A twice on s rows, with and without r of them.
Full pairs (anchored MLP) keep theta = A(D) and retrain on D without a forget set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable, Table
from l2ul_fast.unlearner.draw import draw_forget_sets, draw_pairs, pairs_holding

Progress = Callable[[int, int], None]

#: Rows of subset pairs that are in memory at one time: at most, and how many are enough for one thread.
ROWS_AT_ONCE, ROWS_ENOUGH = 2_000_000, 320_000
#: Largest gradient entry of an accepted fit.
CONVERGED = 1e-8
#: Full pairs trained together (they share every pass over the data).
FULL_AT_ONCE = 128


@dataclass
class Pairs:
    """m accepted pairs.

    members : flat row numbers and starts (m + 1,): which rows of D a pair was made from.
    n_forget : (m,) r of each; for subset pairs the forget part comes first among the members.
    theta, theta_r : (m, p) before and after. n : (m,) rows before.
    Z, T : (m, p) features and targets of the influence head.
    rejected : pairs whose fits did not converge.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    n_forget: NDArray[np.int64]
    n: NDArray[np.int64]
    theta: NDArray[np.float64]
    theta_r: NDArray[np.float64]
    Z: NDArray[np.float64]
    T: NDArray[np.float64]
    rejected: int
    full: bool = False

    def __len__(self) -> int:
        return len(self.n_forget)

    def members(self, i: int) -> NDArray[np.int64]:
        return self.rows[self.starts[i] : self.starts[i + 1]]

    def holding(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of the pairs that have one of these rows among their members, ascending."""
        return pairs_holding(self.rows, ids, self.starts)

    def without(self, gone: NDArray[np.int64]) -> Pairs:
        """The pairs but those with these numbers."""
        keep = np.setdiff1d(np.arange(len(self)), gone)
        rows = [self.members(i) for i in keep]
        starts = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
        flat = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        per_pair = ("n_forget", "n", "theta", "theta_r", "Z", "T")
        return Pairs(
            rows=flat, starts=starts, rejected=self.rejected, full=self.full,
            **{name: getattr(self, name)[keep] for name in per_pair},
        )  # fmt: skip


class Room:
    """Memory for the rows of one batch after the other: fresh pages take longer to get than rows to read into them."""

    def __init__(self) -> None:
        self._X = np.empty((0, 0))

    def take(self, table: Table, ids: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """`table.take`; X is valid until the next call."""
        k = len(ids)
        if len(self._X) < k or self._X.shape[1] != table.d or self._X.dtype != table.dtype:
            self._X = np.empty((k + k // 16, table.d), table.dtype)
        return table.take(ids, self._X[:k])


def features(
    model: Any, X: NDArray[Any], y: NDArray[np.uint8], theta: NDArray[np.float64], theta_r: NDArray[np.float64], n: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """z and its target for one pair: forgotten rows X (r, d), y (r,); theta before, theta_r after; n rows before."""
    r = len(X)
    z = np.sqrt(r) * (model.data_gradient(theta, X, y) + model.penalty_gradient(theta))
    return z, (theta_r - theta) * (n - r) / np.sqrt(r)


def subset_pairs(
    model: Any,
    table: Table,
    labels: NDArray[np.uint8],
    m: int,
    s: int,
    random_state: Any,
    *,
    robust: bool = False,
    progress: Progress | None = None,
    client: Any = None,
) -> Pairs:
    """m pairs on subsets of s rows of `table`; labels (n,) are those of its visible rows in order.

    `client` (of dask.distributed): its workers fit the pairs; the result is the same.
    """
    visible = table.ids()
    how = {"robust": robust, "X": lambda places: table.take(visible[places])[0], "random_state": random_state}
    if client is None:
        pairs = _fit_here(model, table, visible, *draw_pairs(table.n, labels, m, s, **how)[:2], progress)
    else:
        from l2ul_fast.distributed import PairPool  # here: Dask is an extra

        with PairPool(client, model, table, visible, m, s) as pool:
            draw_pairs(table.n, labels, m, s, drawn=pool.add, **how)
            pairs = pool.pairs(progress)
    if len(pairs) < m / 2:
        raise UserError(
            f"{pairs.rejected} of {m} training pairs did not converge: raise lam or s, or look for separable classes"
        )
    return pairs


class Drawn:
    """Subset pairs in the making: ids (m, s) of their rows, n_forget (m,), and what was fitted of them so far."""

    def __init__(self, m: int, s: int) -> None:
        self.ids, self.n_forget = np.empty((m, s), np.int64), np.zeros(m, np.int64)
        self._kept = np.zeros(m, bool)
        self._found: list[NDArray[np.float64]] = []

    def add(self, numbers: NDArray[np.int64], made: tuple[NDArray[Any], ...]) -> None:
        """The pairs with these numbers (k,) were fitted: what fit_batch returned for them."""
        keep, *found = made
        if not self._found:
            self._found = [np.empty((len(self.ids), part.shape[1])) for part in found]
        mine = numbers[keep]
        self._kept[mine] = True
        for whole, part in zip(self._found, found, strict=True):
            whole[mine] = part

    def pairs(self) -> Pairs:
        """Those that were accepted, in the order of their numbers."""
        kept, (m, s) = self._kept, self.ids.shape
        k = int(kept.sum())
        rows = self.ids if k == m else self.ids[kept]
        theta, theta_r, Z, T = (whole if k == m else whole[kept] for whole in self._found)
        return Pairs(
            rows=rows.ravel(), starts=np.arange(k + 1) * s, n_forget=self.n_forget[kept], n=np.full(k, s),
            theta=theta, theta_r=theta_r, Z=Z, T=T, rejected=m - k,
        )  # fmt: skip


def rows_of(table: Table, ids: NDArray[np.int64], room: Room) -> tuple[NDArray[Any], NDArray[np.uint8], Any]:
    """(X, y, local (k, s)): the rows ids (k, s) of the table are X[local], y[local]; X is valid until the next call."""
    if isinstance(table, ArrayTable):
        return table.X, table.y, ids
    if ids.size > table.n // 4:  # many come more than once
        held, index = np.unique(ids, return_inverse=True)
        return *room.take(table, held), index.reshape(ids.shape)
    # in the order of the file, where neighbours are read sooner; numbers that carry their places are quick to sort
    bits = int(ids.size).bit_length()
    keys = (ids.ravel() << bits) | np.arange(ids.size)
    keys.sort()
    local = np.empty(ids.size, np.int64)
    local[keys & ((1 << bits) - 1)] = np.arange(ids.size)
    keys >>= bits
    return *room.take(table, keys), local.reshape(ids.shape)


def _fit_here(
    model: Any, table: Table, visible: NDArray[np.int64], local: NDArray[np.int64], n_forget: NDArray[np.int64],
    progress: Progress | None,
) -> Pairs:  # fmt: skip
    """The pairs with rows visible[local] (m, s), fitted by this process."""
    (m, s), room = local.shape, Room()
    drawn = Drawn(m, s)
    drawn.n_forget[:] = n_forget
    enough = max(ROWS_ENOUGH // s, 4 * numba.get_num_threads())  # pairs
    batch = max(1, min(enough, ROWS_AT_ONCE // s))
    for first in range(0, m, batch):
        part = slice(first, min(first + batch, m))
        ids = drawn.ids[part]
        np.take(visible, local[part], out=ids, mode="clip")  # "raise" would copy everything once more
        X, y, index = rows_of(table, ids, room)
        report = None if progress is None else (lambda done, _, first=first: progress(first + done, m))
        drawn.add(np.arange(part.start, part.stop), fit_batch(model, X, y, index, n_forget[part], report))
    return drawn.pairs()


def fit_batch(
    model: Any, X: NDArray[Any], y: NDArray[np.uint8], local: NDArray[np.int64], n_forget: NDArray[np.int64],
    progress: Any = None,
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """(places of the accepted pairs (k,), their theta, theta_r, Z, T (k, p)) of pairs with rows X[local] (m, s)."""
    s = local.shape[1]
    options = {"progress": progress} if model.name == "lr" else {}
    theta, theta_r, norms, *_ = model.fit_pairs(X, y, np.ascontiguousarray(local), n_forget, **options)
    # the MLP's subset pairs end after a fixed number of epochs, as in the paper: only wild ones are refused
    limit = CONVERGED if model.name == "lr" else np.inf
    keep = np.flatnonzero((norms <= limit).all(axis=1) & np.isfinite(theta_r).all(axis=1))
    Z, T = np.empty((keep.size, model.size)), np.empty((keep.size, model.size))
    for k, i in enumerate(keep):
        rows = local[i, : n_forget[i]]
        Z[k], T[k] = features(model, X[rows], y[rows], theta[i], theta_r[i], s)
    return keep, theta[keep], theta_r[keep], Z, T


def joined(parts: list[Pairs]) -> Pairs:
    """All pairs of the parts, in order."""
    sizes = [len(p.rows) for p in parts]
    shifts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    starts = np.concatenate([p.starts[:-1] + shift for p, shift in zip(parts, shifts, strict=True)] + [[sum(sizes)]])
    per_pair = ("n_forget", "n", "theta", "theta_r", "Z", "T")
    return Pairs(
        rows=np.concatenate([p.rows for p in parts]), starts=starts.astype(np.int64),
        rejected=sum(p.rejected for p in parts), full=parts[0].full,
        **{name: np.concatenate([getattr(p, name) for p in parts]) for name in per_pair},
    )  # fmt: skip


def full_pairs(
    model: Any,
    X: NDArray[Any],
    y: NDArray[np.uint8],
    ids: NDArray[np.int64],
    found: Any,
    m: int,
    random_state: Any,
    progress: Progress | None = None,
    client: Any = None,
) -> Pairs:
    """m pairs on all rows X (n, d), y (n,), whose row numbers are ids: `found` is A(D), forget sets are drawn.

    `client` (of dask.distributed): its workers do the retraining; the result is the same.
    """
    flat, starts = draw_forget_sets(len(X), y, m, X=X, random_state=random_state)
    theta, batches = found.theta, []
    for first in range(0, m, FULL_AT_ONCE):
        edges = starts[first : min(first + FULL_AT_ONCE, m) + 1]
        batches.append((flat[edges[0] : edges[-1]], edges - edges[0]))
    fits = []
    if client is None:
        for k, (some, edges) in enumerate(batches):
            made = model.anchored_pairs(X, y, some, edges, found, fallback=False)
            fits.append((made.theta_r, made.gradient_norm))
            if progress is not None:
                progress(min((k + 1) * FULL_AT_ONCE, m), m)
    else:
        from l2ul_fast.distributed import full_fits  # here: Dask is an extra

        fits = full_fits(client, model, X, y, batches, found, progress)
    theta_r = np.concatenate([fit[0] for fit in fits])
    keep = np.flatnonzero(np.concatenate([fit[1] for fit in fits]) <= CONVERGED)
    Z, T = np.empty((keep.size, model.size)), np.empty((keep.size, model.size))
    rows = []
    for k, i in enumerate(keep):
        local = flat[starts[i] : starts[i + 1]]
        Z[k], T[k] = features(model, X[local], y[local], theta, theta_r[i], len(X))
        rows.append(ids[local])
    sizes = np.array([len(r) for r in rows])
    if keep.size < m / 2:
        raise UserError(f"{m - keep.size} of {m} training pairs did not converge: raise mu or lam")
    return Pairs(
        rows=np.concatenate(rows), starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), n_forget=sizes,
        n=np.full(keep.size, len(X)), theta=np.tile(theta, (keep.size, 1)), theta_r=theta_r[keep], Z=Z, T=T,
        rejected=m - keep.size, full=True,
    )  # fmt: skip
