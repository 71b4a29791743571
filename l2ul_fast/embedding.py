"""The isolation kernel as a scikit-learn transformer, and kernel mean embeddings whose state is exact integers."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from l2ul_fast.checks import Having, Labels, Numbers, Whole, read_array
from l2ul_kernels import Partitions, assign_cells, cell_counts, one_hot, threads
from l2ul_kernels.threads import thread_limit


class IsolationKernel(TransformerMixin, BaseEstimator):
    """Isolation kernel with Voronoi cells: kappa(x, y) = share of t partitions in which x and y share a cell.

    Parameters
    ----------
    psi : seeds (= cells) per partition, from 2 to 4096.
    t : partitions.
    random_state : None, int or numpy RandomState; which rows become seeds.
    n_jobs : threads for `transform`; None keeps the current budget, -1 is all that are available.

    Attributes
    ----------
    partitions_ : the fitted `l2ul_kernels.Partitions`.
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn.
    """

    def __init__(self, psi: int = 4, t: int = 100, *, random_state: Any = None, n_jobs: int | None = None) -> None:
        self.psi = psi
        self.t = t
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: ArrayLike, y: Any = None) -> IsolationKernel:
        """Draw the seeds from the rows of X (n, d). y is ignored."""
        psi, t = Whole(2, 4096)("psi", self.psi), Whole(1, 10**6)("t", self.t)
        rows = self._rows(X, True)
        if psi > len(rows):
            raise ValueError(f"psi={self.psi} seeds cannot be drawn from n_samples={len(rows)} rows")
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        self.partitions_ = Partitions.sample(rows, t, psi, seed)
        return self

    def assign(self, X: ArrayLike) -> NDArray[Any]:
        """Cells (n, t) of the rows of X (n, d)."""
        check_is_fitted(self)
        with self._budget():
            return assign_cells(self._rows(X, False), self.partitions_)

    def transform(self, X: ArrayLike) -> csr_array:
        """Feature map (n, t * psi) as CSR float32: one 1 per row and partition."""
        return one_hot(self.assign(X), self.partitions_.n_seeds)

    def kernel(self, X: ArrayLike, Y: ArrayLike | None = None) -> NDArray[np.float64]:
        """Kernel matrix (n, m) between the rows of X and of Y (or X itself), values in [0, 1]."""
        left = self.transform(X)
        right = left if Y is None else self.transform(Y)
        return (left @ right.T).toarray().astype(np.float64) / self.partitions_.n_partitions

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """partition0_cell0, partition0_cell1, ..."""
        check_is_fitted(self)
        t, psi = self.partitions_.n_partitions, self.partitions_.n_seeds
        return np.array([f"partition{p}_cell{j}" for p in range(t) for j in range(psi)], dtype=object)

    def _rows(self, X: ArrayLike, reset: bool) -> NDArray[Any]:
        """X (n, d) as scikit-learn reads it; whatever is wrong in one sentence."""
        if not hasattr(X, "tocsr") and read_array("X", X).dtype.kind in "mMV":  # which NumPy makes numbers of
            raise ValueError("X must hold numbers, not dates or structures")
        try:
            return np.asarray(validate_data(self, X, reset=reset, dtype=[np.float32, np.float64]))
        except ValueError as error:
            text = " ".join(str(error).split())
            raise ValueError(text if len(text) <= 300 else text.split(". ")[0][:300]) from None

    def _budget(self) -> contextlib.AbstractContextManager[Any]:
        if self.n_jobs is None:
            return contextlib.nullcontext()
        jobs = Whole(-1, 2**16)("n_jobs", self.n_jobs)
        return threads(thread_limit() if jobs == -1 else jobs)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags


class KernelMeanEmbedding:
    """Kernel mean embedding of a set of rows that can grow, shrink and merge without ever drifting.

    The state is how many rows lie in each cell, as int64; `mean` divides only when asked. Adding and forgetting the
    same rows, in any order and any grouping, returns to the same state bit for bit.

    Parameters
    ----------
    partitions : the partitions that define the embedding (for example `IsolationKernel().fit(X).partitions_`).
    n_classes : keep one embedding per class; then rows come with labels 0 .. n_classes - 1.

    Attributes
    ----------
    counts : int64 (t, psi), or (C, t, psi) with classes.
    n : rows held; int, or int64 (C,) with classes.
    """

    def __init__(self, partitions: Partitions, n_classes: int | None = None) -> None:
        Having(("n_partitions", "n_seeds", "same_as"), "Partitions")("partitions", partitions)
        n_classes = None if n_classes is None else Whole(1, 65535)("n_classes", n_classes)
        self.partitions = partitions
        self.n_classes = n_classes
        shape = (partitions.n_partitions, partitions.n_seeds)
        self.counts = np.zeros(shape if n_classes is None else (n_classes, *shape), np.int64)

    def __repr__(self) -> str:
        classes = "" if self.n_classes is None else f", n_classes={self.n_classes}"
        return f"KernelMeanEmbedding({self.partitions!r}{classes}, n={self.n})"

    @property
    def n(self) -> Any:
        """Rows held (every row is in exactly one cell of the first partition)."""
        held = self.counts[..., 0, :].sum(axis=-1)
        return int(held) if self.n_classes is None else held

    @property
    def mean(self) -> NDArray[np.float64]:
        """The embedding: counts / n as float64 (t * psi,), or (C, t * psi); zeros where no row is held."""
        held = np.maximum(self.counts[..., 0, :].sum(axis=-1), 1)
        flat = self.counts.reshape(*self.counts.shape[:-2], -1)
        return flat / (held if self.n_classes is None else held[:, None])

    def _count(self, X: ArrayLike, y: ArrayLike | None) -> NDArray[np.int64]:
        if (y is None) != (self.n_classes is None):
            why = "is by class: give labels y" if y is None else "has no classes: leave out the labels y"
            raise ValueError(f"this embedding {why}")
        y = None if y is None else Labels(floats=False)("y", y)
        return cell_counts(Numbers(2, double=False)("X", X), self.partitions, y, self.n_classes)

    def _remove(self, counts: NDArray[np.int64], what: str) -> KernelMeanEmbedding:
        left = self.counts - counts
        if (left < 0).any():
            raise ValueError(f"{what} were never added to this embedding, or are already forgotten")
        self.counts = left
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None) -> KernelMeanEmbedding:
        """Add the rows of X (n, d), with labels y (n,) when the embedding is by class."""
        self.counts = self.counts + self._count(X, y)
        return self

    def forget(self, X: ArrayLike, y: ArrayLike | None = None) -> KernelMeanEmbedding:
        """Take the rows of X out again, exactly. Rows that cannot have been added are refused, the state unchanged."""
        return self._remove(self._count(X, y), "some of these rows")

    def merge(self, other: KernelMeanEmbedding) -> KernelMeanEmbedding:
        """Add all rows that `other` holds; both must use the same seeds and classes."""
        if not isinstance(other, KernelMeanEmbedding):
            raise TypeError(f"can only merge a KernelMeanEmbedding, got {type(other).__name__}")
        if not self.partitions.same_as(other.partitions):
            raise ValueError("the two embeddings use different seeds")
        if self.n_classes != other.n_classes:
            raise ValueError(f"the two embeddings have {self.n_classes} and {other.n_classes} classes")
        self.counts = self.counts + other.counts
        return self
