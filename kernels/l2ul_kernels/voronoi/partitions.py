"""Partitions: t sets of psi seeds, and the layout the tile kernel wants them in."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from l2ul_kernels.arrays import Array, Float, Ints
from l2ul_kernels.codegen.llvm import VECTOR_BYTES
from l2ul_kernels.validate import (
    check_array,
    check_count,
    check_integers,
    check_matrix,
    check_psi,
    check_t,
    check_vector,
)

#: Values beyond these magnitudes (after centring) could overflow a score; they are refused like infinities.
LIMITS = {np.dtype(np.float32): np.float32(1e30), np.dtype(np.float64): np.float64(1e290)}


def group_columns(m: int) -> tuple[int, int, int]:
    """m columns as (threes, twos, ones) without padding; ones only when m == 1."""
    if m == 1:
        return 0, 0, 1
    twos = (0, 2, 1)[m % 3]
    return (m - 2 * twos) // 3, twos, 0


def sample_row_ids(n: int, n_partitions: int, n_seeds: int, random_state: Any = None) -> Ints:
    """Row ids (t, psi): each partition draws psi different rows of n, in draw order.

    `random_state`: None, an int, a numpy Generator or a numpy RandomState.
    """
    n_partitions, n_seeds = check_t(n_partitions, "n_partitions"), check_psi(n_seeds, "n_seeds")
    if n_seeds > check_count(n, 0, 2**62, "n"):
        raise ValueError(f"n_seeds={n_seeds} seeds cannot be drawn from {n} rows")
    if isinstance(random_state, np.random.RandomState):  # what scikit-learn hands around
        random_state = random_state.randint(np.iinfo(np.int32).max)
    rng = np.random.default_rng(random_state)
    return np.stack([rng.choice(n, n_seeds, replace=False) for _ in range(n_partitions)]).astype(np.int64)


class SeedTable(NamedTuple):
    """Partitions as the kernels read them; see `Partitions.packed`."""

    columns: Array  # flat: groups of three, two or one columns
    centre: Array  # (d,), padded to a vector
    limit: Any  # largest usable magnitude of a value less centre
    d: int
    t: int
    psi: int
    threes: int  # how the columns are grouped: those of a partition, or for psi = 2 those of all
    twos: int
    ones: int


class Partitions:
    """t Voronoi partitions of psi seeds each, ready for the kernels.

    Attributes
    ----------
    seeds : (t, psi, d) float32 or float64, read-only
    row_ids : (t, psi) int64 or None, the rows the seeds were drawn from
    mean, scale : (d,) float64 or None; when given, a row x is compared with the seeds as (x - mean) / scale
    n_partitions, n_seeds, n_features : int, the shape (t, psi, d)
    """

    def __init__(
        self, seeds: Array, row_ids: Ints | None = None, mean: Float | None = None, scale: Float | None = None
    ) -> None:
        self.seeds = seeds
        self.row_ids = row_ids
        self.mean = mean
        self.scale = scale
        self.n_partitions, self.n_seeds, self.n_features = seeds.shape
        self._packed: dict[np.dtype[Any], SeedTable] = {}

    @classmethod
    def from_seeds(
        cls,
        seeds: ArrayLike,
        row_ids: ArrayLike | None = None,
        mean: ArrayLike | None = None,
        scale: ArrayLike | None = None,
    ) -> Partitions:
        """Partitions with the given seeds (t, psi, d). Integers become float64; the array is copied.

        With `mean` and `scale` (d,), the seeds are standardised values and rows are standardised on the way: at no
        cost, because the scale is folded into the seeds' columns.
        """
        array = np.array(check_array(seeds, "seeds", what="float32, float64 or integers"), order="C")
        if array.dtype not in LIMITS:
            array = array.astype(np.float64)
        if array.ndim != 3:
            raise ValueError(f"seeds must have shape (t, psi, d), got {array.ndim} dimension(s)")
        t, psi, d = array.shape
        if t == 0 or d == 0:
            raise ValueError(f"seeds are empty: shape {array.shape}")
        check_t(t), check_psi(psi)
        bad = np.argwhere(~(np.abs(array) <= LIMITS[array.dtype]))
        if len(bad):
            p, j, _ = bad[0]
            raise ValueError(f"seed {j} of partition {p} has NaN, an infinity or a value too large to compute with")
        array.setflags(write=False)
        ids = None
        if row_ids is not None:
            ids = np.array(check_integers(row_ids, 2**63, "row_ids"), np.int64)
            if ids.shape != (t, psi):
                raise ValueError(f"row_ids must have shape {(t, psi)}, got {ids.shape}")
            ids.setflags(write=False)
        made = cls(array, ids, *_check_standard(mean, scale, d))
        if not made._holds(np.dtype(np.float64)):
            raise ValueError("mean and scale make values too large or too small to compute with")
        return made

    @classmethod
    def sample(cls, X: ArrayLike, n_partitions: int = 100, n_seeds: int = 4, random_state: Any = None) -> Partitions:
        """Draw the seeds from the rows of X (n, d): without replacement inside a partition, afresh for each."""
        X = check_matrix(X)
        ids = sample_row_ids(len(X), n_partitions, n_seeds, random_state)
        return cls.from_seeds(X[ids.ravel()].reshape(*ids.shape, X.shape[1]), ids)

    def __repr__(self) -> str:
        t, psi, d = self.seeds.shape
        return f"Partitions(t={t}, psi={psi}, d={d}, {self.seeds.dtype})"

    def same_as(self, other: Partitions) -> bool:
        """Whether both send every row to the same cells: equal seeds, dtype and standardisation."""
        pairs = ((self.seeds, other.seeds), (self.mean, other.mean), (self.scale, other.scale))
        return self.seeds.dtype == other.seeds.dtype and all(np.array_equal(a, b) for a, b in pairs)  # type: ignore[arg-type]

    def compute_dtype(self, x_dtype: np.dtype[Any]) -> np.dtype[Any]:
        """float32 only when neither the rows nor the seeds lose a digit by it, nor does a scale leave its range."""
        return np.dtype(np.float32 if x_dtype == np.float32 and self._fits_float32 else np.float64)

    @cached_property
    def _fits_float32(self) -> bool:
        with np.errstate(over="ignore"):
            same = self.seeds.dtype == np.float32 or bool(np.all(self.seeds.astype(np.float32) == self.seeds))
        return same and self._holds(np.dtype(np.float32))

    def _holds(self, dtype: np.dtype[Any]) -> bool:
        """Whether standardised rows can be compared in this dtype: no column beyond range, none that would vanish."""
        if self.mean is None or self.scale is None:
            return True
        with np.errstate(all="ignore"):
            table, span = self.packed(dtype), self.scale.max() / self.scale.min()
        sizes, limit = np.abs(np.append(table.columns, table.centre)), table.limit
        return bool(span <= limit and (sizes <= limit).all() and (sizes[sizes > 0] >= 1 / limit).all())

    def packed(self, dtype: np.dtype[Any]) -> SeedTable:
        """Columns and centre for the kernels, made once per dtype.

        Columns: for each group of G columns [c_0 .. c_(G-1), then v_0[k] .. v_(G-1)[k] for k in 0 .. d-1], where seed j
        of a partition is the column with c = (|s_j|^2 - |s_0|^2) / 2 and v = s_0 - s_j, relative to `centre` and scaled
        by one power of two.
        """
        if dtype not in self._packed:
            self._packed[dtype] = _pack(self.seeds, dtype, self.mean, self.scale)
        return self._packed[dtype]


def _centre(seeds: Float) -> Float:
    """A point near the seeds' mean to measure from: expanded distances lose digits far from the origin.

    Each coordinate is rounded to a power of two no larger than the seeds' spread. Subtracting such a coarse number is
    exact for most data (always for integers), so that exact ties stay exact.
    """
    flat = seeds.reshape(-1, seeds.shape[-1])
    mean = flat.mean(axis=0)
    spread = np.abs(flat - mean).max(axis=0)
    step = np.exp2(np.floor(np.log2(np.where(spread > 0, spread, 1.0))))
    return np.where(spread > 0, np.round(mean / step) * step, flat[0])


def _check_standard(mean: ArrayLike | None, scale: ArrayLike | None, d: int) -> tuple[Float | None, Float | None]:
    if mean is None and scale is None:
        return None, None
    if mean is None or scale is None:
        raise ValueError("mean and scale go together")
    m, s = check_vector(mean, d, "mean").copy(), check_vector(scale, d, "scale").copy()
    if not np.isfinite(m).all() or not (np.isfinite(s) & (s > 0)).all():
        raise ValueError(f"mean and scale must be {d} finite numbers each, every scale above 0")
    return m, s


def _pack(seeds: Array, dtype: np.dtype[Any], mean: Float | None, scale: Float | None) -> SeedTable:
    t, psi, d = seeds.shape
    centre = _centre(seeds.astype(np.float64))
    if mean is None or scale is None:
        mean, scale = np.zeros(d), np.ones(d)
    centre = (mean + scale * centre).astype(dtype)  # of the rows as they come
    wide = seeds.astype(np.float64) - (centre.astype(np.float64) - mean) / scale
    v = wide[:, :1] - wide[:, 1:]
    # A common power of two changes no comparison and keeps products of tiny or huge numbers in range.
    reach = np.abs(v / scale).max(initial=0.0) or 1.0
    v *= np.exp2(min(1000.0, -np.floor(np.log2(reach)))) if reach < np.inf else np.nan
    c = -(v * (wide[:, :1] / 2 + wide[:, 1:] / 2)).sum(axis=-1, keepdims=True)
    table = np.concatenate([c, v / scale], axis=-1) + 0.0  # (t, psi - 1, 1 + d); + 0.0: no negative zeros
    if psi == 2:  # the columns of all partitions form the groups
        table = table.reshape(1, t, 1 + d)
    threes, twos, ones = group_columns(table.shape[1])
    ends = np.cumsum([3] * threes + [2] * twos + [1] * ones)
    groups = np.split(table, ends[:-1], axis=1)
    joined = np.concatenate([g.transpose(0, 2, 1).reshape(len(table), -1) for g in groups], axis=1)
    columns = np.ascontiguousarray(joined, dtype).ravel()
    padded = np.zeros(max(d, VECTOR_BYTES // dtype.itemsize), dtype)
    padded[:d] = centre
    return SeedTable(columns, padded, LIMITS[dtype], d, t, psi, threes, twos, ones)
