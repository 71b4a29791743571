"""Training pairs of N_U: what changes in A(D) when a known part of D leaves.

Subset pairs (logistic regression, and the paper's way for the MLP) train A twice on s rows, with and without r of them.
Full pairs (anchored MLP) keep theta = A(D) and retrain on D without a forget set. Each pair follows from its number, so
workers may make parts of them anywhere, in any order: the pairs are the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from l2ul_fast.errors import UserError
from l2ul_fast.tables import Table
from l2ul_fast.unlearner.pairs.plan import PairPlan, draw_forget_sets, plan_pairs

Progress = Callable[[int, int], None]
Ids = NDArray[np.int64]

#: Bytes of rows that subset pairs of one batch take: few enough that the allocator keeps them for the next batch.
BATCH_BYTES = 3 << 23
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

    def first(self, k: int) -> Pairs:
        """The first k pairs."""
        parts = {name: getattr(self, name)[:k] for name in ("n_forget", "n", "theta", "theta_r", "Z", "T")}
        return replace(self, rows=self.rows[: self.starts[k]], starts=self.starts[: k + 1], **parts)


def features(
    model: Any, X: NDArray[Any], y: NDArray[np.uint8], theta: NDArray[np.float64], theta_r: NDArray[np.float64], n: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """z and its target for one pair: forgotten rows X (r, d), y (r,); theta before, theta_r after; n rows before."""
    r = len(X)
    z = np.sqrt(r) * (model.data_gradient(theta, X, y) + model.penalty_gradient(theta))
    return z, (theta_r - theta) * (n - r) / np.sqrt(r)


class PairBatch(NamedTuple):
    """The accepted ones of some pairs, whose numbers begin at `first`; tried: how many pairs these were.

    sizes, n_forget (k,), theta, theta_r, Z, T (k, p) : of each accepted pair. rows : their row numbers, end to end.
    """

    first: int
    tried: int
    rows: NDArray[Any]
    sizes: Ids
    n_forget: Ids
    theta: NDArray[np.float64]
    theta_r: NDArray[np.float64]
    Z: NDArray[np.float64]
    T: NDArray[np.float64]


class PairWork(Protocol):
    """Pairs to be made, in parts that do not depend on each other.

    full : whether on all rows. advice : where most of them do not converge.
    """

    full: ClassVar[bool]
    advice: ClassVar[str]

    def parts(self, most: int | None = None) -> list[tuple[int, int]]:
        """(first, last + 1) numbers of all pairs in parts of about equal size, of `most` pairs at most."""

    def make(self, first: int, last: int) -> PairBatch:
        """The pairs first .. last - 1."""


@dataclass(frozen=True)
class SubsetWork:
    """Subset pairs of a plan; visible (n,) are the numbers of the table's rows to draw from."""

    full: ClassVar[bool] = False
    advice: ClassVar[str] = "raise lam or s, or look for separable classes"
    model: Any
    table: Table
    plan: PairPlan
    visible: Ids

    def parts(self, most: int | None = None) -> list[tuple[int, int]]:
        """Parts whose rows fit into BATCH_BYTES, but with a pair for each thread."""
        size = BATCH_BYTES // (self.plan.s * self.table.d * self.table.dtype.itemsize)
        return _parts(len(self.plan.kinds), min(max(size, numba.get_num_threads()), most or size + 1))

    def make(self, first: int, last: int) -> PairBatch:
        """Draw, read and fit the pairs first .. last - 1."""
        model, table, plan = self.model, self.table, self.plan
        ids, n_forget = np.empty((last - first, plan.s), np.int64), np.empty(last - first, np.int64)
        for k in range(last - first):
            n_forget[k] = plan.draw(first + k, table.y, lambda rows: table.take(rows)[0], self.visible, ids[k])
        ids = self.visible[ids]
        if table.shards is None:
            rows: Any = table
            X, y, local = rows.X, rows.y, ids
        else:
            order = in_order(ids.ravel())  # of the file, in which rows are read sooner
            X, y = table.take(ids.ravel()[order])
            local = np.empty_like(ids)
            local.ravel()[order] = np.arange(ids.size)
        theta, theta_r, norms, *_ = model.fit_pairs(X, y, local, n_forget)
        # the MLP's subset pairs end after a fixed number of epochs, as in the paper: only wild ones are refused
        limit = CONVERGED if model.name == "lr" else np.inf
        keep = np.flatnonzero((norms <= limit).all(axis=1) & np.isfinite(theta_r).all(axis=1))
        Z, T = np.empty((2, keep.size, model.size))
        for k, i in enumerate(keep):
            rows = local[i, : n_forget[i]]
            Z[k], T[k] = features(model, X[rows], y[rows], theta[i], theta_r[i], plan.s)
        own = ids.astype(np.uint32 if len(table.y) <= 2**32 else np.int64)
        own = own if keep.size == len(own) else own[keep]
        sizes = np.full(keep.size, plan.s)
        return PairBatch(first, len(ids), own.ravel(), sizes, n_forget[keep], theta[keep], theta_r[keep], Z, T)


@dataclass(frozen=True)
class FullWork:
    """Full pairs on rows X (n, d), y (n,), whose row numbers are ids: pair i forgets flat[starts[i] : starts[i + 1]].

    found : A(D).
    """

    full: ClassVar[bool] = True
    advice: ClassVar[str] = "raise mu or lam"
    model: Any
    X: NDArray[Any]
    y: NDArray[np.uint8]
    ids: Ids
    found: Any
    flat: Ids
    starts: Ids

    def parts(self, most: int | None = None) -> list[tuple[int, int]]:
        """Parts of FULL_AT_ONCE pairs, which share every pass over the rows."""
        return _parts(len(self.starts) - 1, FULL_AT_ONCE)

    def make(self, first: int, last: int) -> PairBatch:
        """Retrain without the forget sets first .. last - 1."""
        model, X, y, theta = self.model, self.X, self.y, self.found.theta
        starts = self.starts[first : last + 1]
        made = model.anchored_pairs(
            X, y, self.flat[starts[0] : starts[-1]], starts - starts[0], self.found, fallback=False
        )
        keep = np.flatnonzero(made.gradient_norm <= CONVERGED)
        Z, T = np.empty((2, keep.size, model.size))
        sets = [self.flat[starts[i] : starts[i + 1]] for i in keep]
        for k, (i, rows) in enumerate(zip(keep, sets, strict=True)):
            Z[k], T[k] = features(model, X[rows], y[rows], theta, made.theta_r[i], len(X))
        rows, sizes = self.ids[np.concatenate([self.flat[:0], *sets])], np.diff(starts)[keep]
        thetas = np.tile(theta, (keep.size, 1))
        return PairBatch(first, last - first, rows, sizes, sizes, thetas, made.theta_r[keep], Z, T)


def _parts(m: int, most: int) -> list[tuple[int, int]]:
    """(first, last + 1) of 0 .. m - 1 in the fewest parts of at most `most` (1 if less), about equal."""
    parts = -(-m // max(1, most))
    return [(m * k // parts, m * (k + 1) // parts) for k in range(parts)]


def in_order(rows: Ids) -> Ids:
    """Permutation of rows (k,) that sorts them up to 65536 parts of the table (16 bits: numpy counts those)."""
    shift = max(0, int(rows.max(initial=0)).bit_length() - 16)
    return np.argsort((rows >> shift).astype(np.uint16), kind="stable")


def pairs_of(work: PairWork, executor: Any, n: int, progress: Progress | None = None) -> Pairs:
    """The accepted pairs by their numbers, each of n rows, made by an executor; in this process if None."""
    batches: list[PairBatch] = []
    m, done = work.parts()[-1][1], 0
    made = (work.make(first, last) for first, last in work.parts()) if executor is None else executor.map(work)
    for batch in made:
        batches.append(batch)
        done += batch.tried
        if progress is not None:
            progress(done, m)
    batches.sort(key=lambda batch: batch.first)
    columns = list(zip(*batches, strict=True))[2:]
    rows, sizes, n_forget, theta, theta_r, Z, T = (np.concatenate(column) for column in columns)
    if len(sizes) < m / 2:
        raise UserError(f"{m - len(sizes)} of {m} training pairs did not converge: {work.advice}")
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rejected = m - len(sizes)
    return Pairs(rows, starts, n_forget, np.full(len(sizes), n), theta, theta_r, Z, T, rejected, work.full)


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
    executor: Any = None,
) -> Pairs:
    """m pairs on subsets of s rows of `table`; labels (n,) are those of its visible rows in order."""
    plan = plan_pairs(table.n, labels, m, s, robust=robust, random_state=random_state)
    return pairs_of(SubsetWork(model, table, plan, table.ids()), executor, s, progress)


def full_pairs(
    model: Any,
    X: NDArray[Any],
    y: NDArray[np.uint8],
    ids: Ids,
    found: Any,
    m: int,
    random_state: Any,
    progress: Progress | None = None,
    executor: Any = None,
) -> Pairs:
    """m pairs on all rows X (n, d), y (n,), whose row numbers are ids: `found` is A(D), forget sets are drawn."""
    flat, starts = draw_forget_sets(len(X), y, m, X=X, random_state=random_state)
    work = FullWork(model, X, y, ids, found, flat, starts)
    return pairs_of(work, executor, len(X), progress)
