"""The result of every metric, and the model that metrics ask for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.checks import ClassIndices, Features, ModelLike, Numbers, Results1, Within, checked, known_classes
from l2ul_fast.errors import DataError

Vector = NDArray[np.float64]
Ids = NDArray[np.int64]

#: Fewer forgotten rows than this give shares too coarse to compare (steps of more than a tenth).
MIN_ROWS = 10


@dataclass(frozen=True)
class Value:
    """One measured number, or the reason why there is none."""

    value: float | None
    target: float | None = None  #: what Retrain scores; not always the largest or smallest possible value
    degenerate: str | None = None  #: why the input allows no number; None when there is one
    interval: tuple[float, float] | None = None  #: 95 % unless the metric says otherwise
    nothing: float | None = None  #: what doing nothing scores, where known

    def __post_init__(self) -> None:
        if (self.value is None) == (self.degenerate is None):
            raise ValueError("a metric has either a value or a reason why it is degenerate")
        for name in ("value", "target", "nothing"):
            if getattr(self, name) is not None:
                Within()(f"the {name} of a metric", getattr(self, name))

    @property
    def gap(self) -> float | None:
        """Distance to the target."""
        return None if self.value is None or self.target is None else abs(self.value - self.target)

    @property
    def beaten_by_nothing(self) -> bool | None:
        """Whether doing nothing is at least as near the target; None when one of the three is unknown."""
        if self.gap is None or self.target is None or self.nothing is None:
            return None
        return abs(self.nothing - self.target) <= self.gap

    def __str__(self) -> str:
        return f"degenerate: {self.degenerate}" if self.value is None else f"{self.value:.4g}"


Number = Value | float | None


def number(x: Number) -> float | None:
    """The number in a Value, or the number itself."""
    found: Any = getattr(x, "value", x)
    return None if found is None else Within()("a value to compare with", found)


def measured(
    value: float, target: Number = None, nothing: Number = None, interval: tuple[float, float] | None = None
) -> Value:
    """A Value; degenerate if the number is not finite."""
    if not math.isfinite(value):
        return degenerate("the result is not finite", target, nothing)
    ends = None if interval is None else (float(interval[0]), float(interval[1]))
    return Value(float(value), number(target), None, ends, number(nothing))


def degenerate(reason: str, target: Number = None, nothing: Number = None) -> Value:
    """A Value without a number."""
    return Value(None, number(target), reason, None, number(nothing))


def first_degenerate(*values: Number) -> str | None:
    """Reason of the first degenerate one, if any."""
    return next(filter(None, (getattr(value, "degenerate", None) for value in values)), None)


class Model(Protocol):
    """Model A as metrics see it: LogisticModel, MLPModel."""

    n_classes: int
    size: int
    d: int

    def logits(self, theta: Vector, X: Any) -> Vector: ...

    def predict_proba(self, theta: Vector, X: Any) -> Vector: ...

    def predict(self, theta: Vector, X: Any) -> NDArray[np.int64]: ...

    def data_gradient(self, theta: Vector, X: Any, y: Any) -> Vector: ...

    def gradient(self, theta: Vector, X: Any, y: Any) -> Vector: ...

    def loss(self, theta: Vector, X: Any, y: Any) -> float: ...

    def hessian(self, theta: Vector, X: Any, y: Any) -> Vector: ...


#: theta (p,), row numbers to forget (r,), all row numbers theta was trained on (s,) -> theta' (p,)
Unlearn = Callable[[Vector, Ids, Ids], Vector]


@checked
def margins(model: ModelLike, theta: Results1, X: Features, y: ClassIndices) -> Vector:
    """(n,) log(p_y / (1 - p_y)) of the true class, from the logits: exact where p_y rounds to 1.

    The log-loss of a row is log(1 + exp(-margin)).
    """
    z, y = model.logits(np.asarray(theta, np.float64), X), np.asarray(y, np.int64)
    if len(z) != len(y):
        raise DataError(f"there are {len(z)} rows but {len(y)} labels")
    known_classes(y, model.n_classes)
    if z.ndim == 1:
        return np.asarray(np.where(y == 1, z, -z))
    own = np.take_along_axis(z, y[:, None], axis=1)[:, 0]
    others = z.copy()
    np.put_along_axis(others, y[:, None], -np.inf, axis=1)
    top = others.max(axis=1)
    return np.asarray(own - top - np.log(np.exp(others - top[:, None]).sum(axis=1)))


def losses(model: Model, theta: ArrayLike, X: Any, y: ArrayLike) -> Vector:
    """(n,) log-loss of each row, without the penalty."""
    return np.logaddexp(0.0, -margins(model, theta, X, y))


def check_proba(p: ArrayLike) -> Vector:
    """Probabilities (n, C) as float64; DataError if rows do not sum to 1."""
    p = Numbers(finite=False)("probabilities", p)
    if p.ndim != 2 or p.shape[1] < 2:
        raise DataError(f"probabilities must have shape (n, C) with at least 2 classes, got {p.shape}")
    if not ((p >= 0).all() and (np.abs(p.sum(axis=1) - 1) < 1e-6).all()):
        raise DataError("probabilities must be at least 0 and sum to 1 in every row")
    return p


def same_length(*arrays: ArrayLike) -> int:
    """The common number of rows; DataError otherwise."""
    sizes = [len(np.asarray(a)) for a in arrays]
    if len(set(sizes)) != 1:
        raise DataError(f"inputs must have the same number of rows, got {' and '.join(map(str, sizes))}")
    return sizes[0]
