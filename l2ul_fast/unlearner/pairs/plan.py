"""Which rows training pairs and test requests consist of. Everything follows from one seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import UserError

Ids = NDArray[np.int64]
#: The rows themselves, or a function that reads rows by their numbers.
Rows = NDArray[Any] | Callable[[Ids], NDArray[Any]]
RANDOM, CLASS, CLUSTER, HALF_SPACE = KINDS = ("random", "one class", "one cluster", "half-space")
#: Shapes of the forget parts and their shares: as in the paper, for contaminated data, for pairs on all of D.
ORDINARY = {RANDOM: 1.0}
ROBUST = {RANDOM: 0.4, CLASS: 0.2, CLUSTER: 0.2, HALF_SPACE: 0.2}
FULL = {RANDOM: 0.5, CLASS: 0.25, CLUSTER: 0.25}
#: Neighbours of a row are looked for among this many rows, or 10 times as many as are wanted.
POOL = 50_000
#: Draws of a pair before a class that is not in it counts as too rare.
TRIES = 20


def log_uniform(rng: np.random.Generator, high: int, size: int) -> Ids:
    """Integers from 1 to high, their logarithms spread evenly."""
    return np.minimum(np.exp(rng.uniform(0, np.log(high + 1), size)).astype(np.int64), high)


def _labels(y: ArrayLike, n: int) -> NDArray[Any]:
    y = np.asarray(y)
    if y.shape != (n,) or y.dtype.kind not in "iub":
        raise UserError(f"labels must be {n} integers, got {y.dtype} of shape {y.shape}")
    return y


def _class_sizes(y: NDArray[Any]) -> Ids:
    """(C,) rows of every class. In pieces: bincount makes an int64 copy of its input, eight times a table's labels."""
    sizes = np.zeros(int(y.max(initial=0)) + 1, np.int64)
    for start in range(0, len(y), 1 << 16):
        sizes += np.bincount(y[start : start + (1 << 16)].astype(np.int64), minlength=len(sizes))
    return sizes


def _kinds(shapes: dict[str, float], m: int, rng: np.random.Generator) -> NDArray[np.str_]:
    """m names with the given shares: exact up to rounding, in random order."""
    unknown = set(shapes) - set(KINDS)
    if unknown or min(shapes.values(), default=0) < 0 or sum(shapes.values()) <= 0:
        raise UserError(f"shapes must give positive shares to some of {', '.join(KINDS)}, got {shapes}")
    edges = np.round(np.cumsum(list(shapes.values())) / sum(shapes.values()) * m).astype(int)
    return rng.permutation(np.repeat(list(shapes), np.diff(edges, prepend=0)))


def _take(X: Rows | None, ids: Ids) -> NDArray[np.float64]:
    if X is None:
        raise UserError("clusters and half-spaces need the rows X")
    return np.asarray(X(ids) if callable(X) else X[ids], np.float64)


def _nearest(points: NDArray[np.float64], centre: NDArray[np.float64], r: int) -> Ids:
    distance = ((points - centre) ** 2).sum(axis=1)
    return np.argpartition(distance, r - 1)[:r]


def _forget_places(kind: str, r: int, ids: Ids, y: NDArray[Any], X: Rows | None, rng: np.random.Generator) -> Ids:
    """Places within `ids` of a forget part of that kind with at most r rows; one class keeps one row of the class."""
    if kind == CLASS:
        labels = y[ids]
        of_class = np.flatnonzero(labels == rng.choice(np.unique(labels)))
        return rng.permutation(of_class)[: max(1, min(r, len(of_class) - 1))]
    points = _take(X, ids)
    if kind == CLUSTER:
        return _nearest(points, points[rng.integers(len(ids))], r)
    height = points @ rng.standard_normal(points.shape[1])
    return np.argpartition(-height, r - 1)[:r]


class PairPlan(NamedTuple):
    """What m pairs of s rows are drawn from. The rows of pair i follow from its number: any process can draw it.

    n : rows to draw from. kinds (m,) and n_forget (m,) : shape and largest size of the forget parts. class_sizes (C,) :
    rows of each class; every retained part gets some of each that has any. seed : of all pairs.
    """

    n: int
    s: int
    kinds: NDArray[np.str_]
    n_forget: Ids
    class_sizes: Ids
    seed: int

    def draw(self, i: int, y: NDArray[Any], X: Rows | None, visible: Ids, out: Ids) -> int:
        """Put the places in `visible` of the rows of pair i into out (s,), forget part first; how many are forgotten.

        visible (n,) are the numbers of the rows to draw from; y and X go by row number.
        """
        rng, kind, most = np.random.default_rng([self.seed, i]), str(self.kinds[i]), int(self.n_forget[i])
        for _ in range(TRIES):
            out[:] = rng.choice(self.n, self.s, replace=False)
            r = most
            if kind != RANDOM:
                first = _forget_places(kind, most, visible[out], y, X, rng)
                r = len(first)
                out[:r], out[r:] = out[first], np.delete(out, first)
            seen = self.class_sizes == 0
            for some in (out[r : r + 64], out[r:]):  # a few rows show the classes that are not rare
                seen[y[visible[some]]] = True
                if seen.all():
                    return r
        rare = int(np.where(self.class_sizes > 0, self.class_sizes, self.n + 1).argmin())
        raise UserError(f"class {rare} is too rare for pairs of s={self.s} rows: raise s, or leave that class out")


def plan_pairs(
    n: int,
    y: ArrayLike,
    m: int,
    s: int,
    *,
    forget_max: int | None = None,
    robust: bool = False,
    shapes: dict[str, float] | None = None,
    random_state: Any = None,
) -> PairPlan:
    """A plan of m pairs of s out of n rows with labels y (n,); see `draw_pairs`."""
    y = _labels(y, n)
    if not 2 <= s <= n:
        raise UserError(f"pairs of s={s} rows cannot be drawn from {n} rows")
    limit = (s // 2 if robust else s // 10) if forget_max is None else int(forget_max)
    limit = max(1, limit)
    if limit >= s:
        raise UserError(f"a forget part of {limit} rows leaves nothing of s={s}")
    rng = np.random.default_rng(random_state)
    kinds = _kinds(shapes or (ROBUST if robust else ORDINARY), m, rng)
    n_forget = rng.integers(1, limit + 1, m) if robust else log_uniform(rng, limit, m)
    return PairPlan(n, s, kinds, n_forget, _class_sizes(y), int(rng.integers(2**63)))


def draw_pairs(
    n: int, y: ArrayLike, m: int, s: int, *, X: Rows | None = None, **how: Any
) -> tuple[Ids, Ids, NDArray[np.str_]]:
    """(ids (m, s), n_forget (m,), shapes (m,)): the rows of m pairs, each pair's forget part first.

    Rows of a pair are different; r = n_forget is log-uniform in 1..s/10, or uniform in 1..s/2 with `robust`
    (forget_max replaces either limit). Shares of the forget parts' shapes: ORDINARY, or ROBUST, or `shapes`. Every
    class of y (n,) is in every retained part. X (n, d), or a function from ids to rows, is needed for clusters and
    half-spaces. The rest of `how` is that of `plan_pairs`.
    """
    plan, y = plan_pairs(n, y, m, s, **how), np.asarray(y)
    ids, everything = np.empty((m, s), np.int64), np.arange(n)
    n_forget = [plan.draw(i, y, X, everything, ids[i]) for i in range(m)]
    return ids, np.array(n_forget, np.int64), plan.kinds


def request(kind: str, r: int, X: Rows | None, y: ArrayLike, rng: np.random.Generator) -> Ids:
    """Row ids (r,) of one request on all of D: "random", "one class", "one cluster" or "half-space".

    "one class" takes a class with more than r rows; a cluster is the neighbourhood of a random row within a random
    pool of max(POOL, 10 r) rows. y (n,).
    """
    y = np.asarray(y)
    n = len(y)
    if kind not in KINDS:
        raise UserError(f"a request is one of {', '.join(KINDS)}, not {kind!r}")
    if not 1 <= r < n:
        raise UserError(f"a request for {r} of {n} rows cannot be drawn")
    if kind == RANDOM:
        return rng.choice(n, r, replace=False).astype(np.int64)
    if kind == CLASS:
        large = np.flatnonzero(np.bincount(y) > r)
        if not large.size:
            raise UserError(f"no class has more than {r} rows")
        return rng.permutation(np.flatnonzero(y == rng.choice(large)))[:r]
    size = max(POOL, 10 * r)
    pool = np.arange(n) if size >= n else np.sort(rng.choice(n, size, replace=False))
    return pool[_forget_places(kind, r, pool, y, X, rng)].astype(np.int64)


def draw_forget_sets(n: int, y: ArrayLike, m: int, *, X: Rows | None, random_state: Any) -> tuple[Ids, Ids]:
    """(ids flat, starts (m + 1,)): m forget sets of D itself, r log-uniform in 1..n/10, shapes as in FULL.

    Set i is ids[starts[i] : starts[i + 1]]; its rows are different, and every class of y (n,) keeps a row.
    """
    y = _labels(y, n)
    rng, sizes, sets = np.random.default_rng(random_state), _class_sizes(y), []
    kinds = _kinds(FULL, m, rng)
    for kind, r in zip(kinds, log_uniform(rng, max(1, n // 10), m), strict=True):
        most = int(sizes.max()) - 1 if kind == CLASS else n - 1
        for _ in range(TRIES):
            ids = request(str(kind), min(int(r), most), X, y, rng)
            if ((sizes - np.bincount(y[ids], minlength=len(sizes)) > 0) | (sizes == 0)).all():
                break
        else:
            raise UserError(f"class {sizes.argmin()} is too rare: it would be gone with most forget sets")
        sets.append(ids)
    starts = np.concatenate([[0], np.cumsum([len(s) for s in sets])]).astype(np.int64)
    return np.concatenate([np.zeros(0, np.int64), *sets]), starts
