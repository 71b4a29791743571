"""Training pairs of N_U: what changes in A(D) when a known part of D leaves.

Subset pairs (logistic regression, and the paper's way for the MLP) train A twice on s rows, with and without r of them.
Full pairs (anchored MLP) keep theta = A(D) and retrain on D without a forget set.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import ArrayTable, Table
from l2ul_fast.unlearner.pairs.order import in_order
from l2ul_fast.unlearner.pairs.plan import PairPlan, draw_forget_sets, plan_pairs

Progress = Callable[[int, int], None]

#: Rows of subset pairs in memory at one time: at most, and how many are enough for one thread; or bytes of them.
#: The more rows, the less far apart they lie in the file; wide ones fill its pages by themselves.
ROWS_AT_ONCE, ROWS_ENOUGH, BYTES_ENOUGH = 2_000_000, 800_000, 1 << 27
#: Largest gradient entry of an accepted fit.
CONVERGED = 1e-8
#: Full pairs trained together (they share every pass over the data).
FULL_AT_ONCE = 128


@dataclass
class Pairs:
    """m accepted pairs.

    rows : flat row numbers (uint32 where they fit) and starts (m + 1,): which rows of D a pair was made from.
    n_forget : (m,) r of each; for subset pairs the forget part comes first among the members.
    theta, theta_r : (m, p) before and after. n : (m,) rows before.
    Z, T : (m, p) features and targets of a linear map (see `features`).
    rejected : pairs whose fits did not converge.
    """

    rows: NDArray[Any]
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

    def without(self, gone: NDArray[np.int64]) -> Pairs:
        """The pairs but those with these numbers."""
        keep = np.setdiff1d(np.arange(len(self)), gone)
        rows = [self.rows[self.starts[i] : self.starts[i + 1]] for i in keep]
        starts = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
        flat = np.concatenate([self.rows[:0], *rows])
        per_pair = ("n_forget", "n", "theta", "theta_r", "Z", "T")
        return Pairs(
            rows=flat,
            starts=starts,
            rejected=self.rejected,
            full=self.full,
            **{name: getattr(self, name)[keep] for name in per_pair},
        )


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
    plan = plan_pairs(table.n, labels, m, s, robust=robust, random_state=random_state)
    if client is None:
        made, maker = Made(m, s, table), PairMaker(model, table, plan)
        for first, last in maker.batches(0, m):
            made.add(first, maker.make(first, last, made.ids[first:last], progress))
    else:
        from l2ul_fast.distributed import make_pairs  # here: Dask is an extra

        made = make_pairs(client, model, table, plan, progress)
    pairs = made.pairs()
    if len(pairs) < m / 2:
        raise UserError(
            f"{pairs.rejected} of {m} training pairs did not converge: raise lam or s, or look for separable classes"
        )
    return pairs


class Fits(NamedTuple):
    """Some pairs: n_forget (k,), which of them were accepted (k,), and those' parameters and features (accepted, p)."""

    n_forget: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    theta: NDArray[np.float64]
    theta_r: NDArray[np.float64]
    Z: NDArray[np.float64]
    T: NDArray[np.float64]


class PairMaker:
    """Draws, reads and fits the subset pairs of a plan, some at a time. Its memory is that of one batch, used again:
    fresh pages take longer to get than rows to read into them."""

    def __init__(
        self,
        model: Any,
        table: Table,
        plan: PairPlan,
        visible: NDArray[np.int64] | None = None,
        before: PairMaker | None = None,
    ) -> None:
        """visible : `table.ids()` if there already. before : one that is no longer needed, for its memory."""
        self.model, self.table, self.plan = model, table, plan
        self.visible = table.ids() if visible is None else visible
        enough = min(ROWS_ENOUGH, BYTES_ENOUGH // (table.d * table.dtype.itemsize)) // plan.s
        self._at_once = max(1, min(max(enough, 4 * numba.get_num_threads()), ROWS_AT_ONCE // plan.s))
        shape = (0 if isinstance(table, ArrayTable) else self._at_once * plan.s, table.d)
        self._memory: NDArray[Any] = np.empty(0, table.dtype) if before is None else before._memory
        if self._memory.size < math.prod(shape) or self._memory.dtype != table.dtype:
            self._memory = np.empty(math.prod(shape), table.dtype)
        self._X = self._memory[: math.prod(shape)].reshape(shape)

    def batches(self, first: int, last: int) -> list[tuple[int, int]]:
        """The pairs first .. last - 1 in equal parts that fit into memory: rows of few pairs take longer to read."""
        parts = -(-(last - first) // self._at_once)
        edges = [first + (last - first) * k // parts for k in range(parts + 1)]
        return list(itertools.pairwise(edges))

    def make(self, first: int, last: int, ids: NDArray[Any], progress: Progress | None = None) -> Fits:
        """The pairs first .. last - 1, their rows into ids (last - first, s); progress(pairs done, m)."""
        plan, table, visible, k = self.plan, self.table, self.visible, last - first
        places, n_forget = np.empty((k, plan.s), np.int64), np.empty(k, np.int64)
        for i in range(k):
            n_forget[i] = plan.draw(first + i, table.y, lambda rows: table.take(rows)[0], visible, places[i])
        if isinstance(table, ArrayTable):
            local = visible[places]
            X, y, ids[:] = table.X, table.y, local
        else:
            rows, local, _ = in_order(places, visible, ids)
            X, y = table.take(rows, self._X[: rows.size])
        report = None if progress is None else (lambda done, _: progress(first + done, len(plan.n_forget)))
        return Fits(n_forget, *fit_batch(self.model, X, y, local, n_forget, report))


def id_type(n: int) -> type[np.uint32 | np.int64]:
    """What numbers of n rows are kept in: m * s of them are most of what an unlearner holds."""
    return np.uint32 if n <= 2**32 else np.int64


class Made:
    """m subset pairs of s rows of a table in the making; whoever makes some puts their rows into ids (m, s)."""

    def __init__(self, m: int, s: int, table: Table) -> None:
        self.ids, self._n_forget = np.empty((m, s), id_type(len(table.y))), np.zeros(m, np.int64)
        self._accepted = np.zeros(m, bool)
        self._found: list[NDArray[np.float64]] = []

    def add(self, first: int, fits: Fits) -> None:
        """The pairs with the numbers from `first`."""
        part = slice(first, first + len(fits.n_forget))
        self._n_forget[part], self._accepted[part] = fits[:2]
        if not self._found:
            self._found = [np.empty((len(self.ids), found.shape[1])) for found in fits[2:]]
        for whole, found in zip(self._found, fits[2:], strict=True):
            whole[part][fits.accepted] = found

    def pairs(self) -> Pairs:
        """Those that were accepted, in the order of their numbers."""
        kept, (m, s) = self._accepted, self.ids.shape
        k = int(kept.sum())
        rows = self.ids if k == m else self.ids[kept]
        theta, theta_r, Z, T = (whole if k == m else whole[kept] for whole in self._found)
        return Pairs(
            rows=rows.ravel(),
            starts=np.arange(k + 1) * s,
            n_forget=self._n_forget[kept],
            n=np.full(k, s),
            theta=theta,
            theta_r=theta_r,
            Z=Z,
            T=T,
            rejected=m - k,
        )


def fit_batch(
    model: Any,
    X: NDArray[Any],
    y: NDArray[np.uint8],
    local: NDArray[np.int64],
    n_forget: NDArray[np.int64],
    progress: Any = None,
) -> tuple[NDArray[Any], ...]:
    """(which pairs are accepted (m,), their theta, theta_r, Z, T (k, p)) of pairs with rows X[local] (m, s)."""
    s = local.shape[1]
    options = {"progress": progress} if model.name == "lr" else {}
    theta, theta_r, norms, *_ = model.fit_pairs(X, y, np.ascontiguousarray(local), n_forget, **options)
    # the MLP's subset pairs end after a fixed number of epochs, as in the paper: only wild ones are refused
    limit = CONVERGED if model.name == "lr" else np.inf
    accepted = (norms <= limit).all(axis=1) & np.isfinite(theta_r).all(axis=1)
    keep = np.flatnonzero(accepted)
    Z, T = np.empty((keep.size, model.size)), np.empty((keep.size, model.size))
    for k, i in enumerate(keep):
        rows = local[i, : n_forget[i]]
        Z[k], T[k] = features(model, X[rows], y[rows], theta[i], theta_r[i], s)
    return accepted, theta[keep], theta_r[keep], Z, T


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
        rows=np.concatenate(rows),
        starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        n_forget=sizes,
        n=np.full(keep.size, len(X)),
        theta=np.tile(theta, (keep.size, 1)),
        theta_r=theta_r[keep],
        Z=Z,
        T=T,
        rejected=m - keep.size,
        full=True,
    )
