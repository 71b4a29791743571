"""Checks of arguments: `@checked` refuses what the annotations of a public function do not allow, in one sentence.

    @checked
    def rho(theta_new: Numbers1, share: Share = 0.5) -> Value: ...

Every refusal is a DataError (a ValueError) or a TypeError. Arrays are looked at and never changed; the function gets
what numpy reads in them. None passes where it is the default or the annotation names it.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from inspect import Parameter, signature
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from l2ul_fast.errors import DataError

Function = TypeVar("Function", bound=Callable[..., Any])


def refuse_mask(name: str, values: Any) -> None:
    """DataError for a masked array, whose mask would be lost."""
    if np.ma.isMaskedArray(values):
        raise DataError(f"{name} must not be masked: fill in or leave out what is masked")


def read_array(name: str, values: Any) -> NDArray[Any]:
    """The array that numpy sees in `values`; DataError for masked arrays, ragged lists, text, sets and the like."""
    refuse_mask(name, values)
    if isinstance(values, str | bytes | dict | set | frozenset | Iterator):
        raise DataError(f"{name} must be an array or a list, got {type(values).__name__}")
    if isinstance(values, list | tuple):
        for part in values:
            refuse_mask(name, part)
    try:
        return np.asarray(values)
    except Exception as error:  # whatever an object's __array__ raises
        raise DataError(f"{name} cannot be read as an array: {' '.join(str(error).split())[:200]}") from None


def all_finite(a: NDArray[Any]) -> bool:
    """Whether all numbers are finite."""
    return a.dtype.kind != "f" or bool(np.isfinite(a).all())


def plain(name: str, values: Any) -> NDArray[Any]:
    """An array of numbers as it is, anything else as numpy reads it: quick where all is well, NaNs included."""
    if type(values) is np.ndarray and values.dtype.kind in "fiub":
        return values
    return Numbers(finite=False, double=False)(name, values)


def parameters(name: str, values: Any, size: int) -> NDArray[np.float64]:
    """A parameter vector (size,) of finite numbers as float64."""
    found = plain(name, values)
    if found.shape != (size,):
        raise DataError(f"{name} must have shape ({size},), got {found.shape}")
    if not all_finite(found):
        raise DataError(f"{name} must be finite, but has a NaN or an infinity")
    return np.asarray(found, np.float64)


def known_classes(y: NDArray[Any], n_classes: int) -> None:
    """DataError for class indices (n,) of at least n_classes."""
    if y.size and y.max() >= n_classes:
        raise DataError(f"label {y.max()} is no class: there are {n_classes}, from 0 to {n_classes - 1}")


@dataclass(frozen=True)
class Numbers:
    """Real numbers: ndim dimensions, all finite unless said otherwise; `double` makes them float64."""

    ndim: int | None = None
    finite: bool = True
    double: bool = True

    def __call__(self, name: str, values: Any) -> NDArray[Any]:
        found = read_array(name, values)
        if found.dtype.kind not in "fiub":
            raise DataError(f"{name} must hold numbers, got {found.dtype}")
        if self.ndim is not None and found.ndim != self.ndim:
            raise DataError(f"{name} must have {self.ndim} dimension(s), got shape {found.shape}")
        if self.finite and not all_finite(found):
            bad = int(np.isfinite(found).reshape(len(np.atleast_1d(found)), -1).all(axis=1).argmin())
            raise DataError(f"row {bad} of {name} has a NaN or an infinity")
        return found.astype(np.float64, copy=False) if self.double else found


@dataclass(frozen=True)
class Labels:
    """Whole numbers of at least 0: indices of classes (n,), or numbers of rows (floats are no row numbers)."""

    floats: bool = True
    ndim: int = 1

    def __call__(self, name: str, values: Any) -> NDArray[np.int64]:
        found = read_array(name, values)
        if found.ndim != self.ndim:
            raise DataError(f"{name} must have {self.ndim} dimension(s), got shape {found.shape}")
        if found.size == 0:
            return np.zeros(found.shape, np.int64)
        kinds = "iubf" if self.floats else "iu"
        if found.dtype.kind not in kinds or (found.dtype.kind == "f" and not (found == np.floor(found)).all()):
            raise DataError(f"{name} must hold whole numbers, got {found.dtype}")
        if not (found.min() >= 0 and found.max() < 2**62):
            raise DataError(f"{name} must be whole numbers of at least 0, found {found.min()}..{found.max()}")
        return found.astype(np.int64, copy=False)


@dataclass(frozen=True)
class Classes:
    """Labels (n,) of any kind: numbers or words."""

    def __call__(self, name: str, values: Any) -> NDArray[Any]:
        found = read_array(name, values)
        if found.ndim != 1 or found.dtype.kind not in "fiubUS":
            raise DataError(f"{name} must be a list of numbers or words, got {found.dtype} of shape {found.shape}")
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise DataError(f"{name} must not hold a NaN or an infinity")
        return found


@dataclass(frozen=True)
class Each:
    """A sequence whose parts pass another check."""

    part: Callable[[str, Any], Any]

    def __call__(self, name: str, values: Any) -> list[Any]:
        refuse_mask(name, values)
        if not isinstance(values, list | tuple | np.ndarray) or getattr(values, "ndim", 1) == 0:
            raise DataError(f"{name} must be a list, got {type(values).__name__}")
        return [self.part(f"part {k} of {name}", value) for k, value in enumerate(values)]


@dataclass(frozen=True)
class Pair:
    """Rows (X (n, d), y (n,)) in memory, or a table."""

    def __call__(self, name: str, values: Any) -> Any:
        if hasattr(values, "blocks"):
            return values
        if not isinstance(values, tuple | list) or len(values) != 2:
            raise DataError(f"{name} must be (X, y) or a table, got {type(values).__name__}")
        X, y = Numbers(2, double=False)(f"X of {name}", values[0]), Labels()(f"y of {name}", values[1])
        if y.shape != (len(X),):
            raise DataError(f"{name} has {len(X)} rows but labels of shape {y.shape}")
        return X, y


@dataclass(frozen=True)
class Within:
    """A finite number from `low` to `high`; `above`: more than `low`."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __call__(self, name: str, value: Any) -> float:
        value = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
        try:
            if not isinstance(value, numbers.Real) or isinstance(value, bool):
                raise TypeError
            found = float(value)
        except (TypeError, OverflowError, ValueError):
            raise DataError(f"{name} must be a number, got {shown(value)}") from None
        fits = self.low <= found <= self.high and not (self.above and found == self.low)
        if not math.isfinite(found) or not fits or (self.below and found == self.high):
            raise DataError(f"{name} must be {self._wanted()}, got {shown(value)}")
        return found

    def _wanted(self) -> str:
        if self.low == -math.inf:
            return "finite"
        at_least = "above" if self.above else "at least"
        most = "" if self.high == math.inf else f" and {'below' if self.below else 'at most'} {self.high:g}"
        return f"{at_least} {self.low:g}{most or ' and finite'}"


@dataclass(frozen=True)
class Whole:
    """A whole number from `low` to `high`."""

    low: int = 0
    high: int = 2**40

    def __call__(self, name: str, value: Any) -> int:
        value = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise DataError(f"{name} must be a whole number, got {shown(value)}")
        if not self.low <= int(value) <= self.high:
            raise DataError(f"{name} must be from {self.low} to {self.high}, got {shown(value)}")
        return int(value)


@dataclass(frozen=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def __call__(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            wanted = " or ".join(f'"{word}"' for word in self.words)
            raise DataError(f"{name} must be {wanted}, got {shown(value)}")
        return value


@dataclass(frozen=True)
class Flag:
    """True or False."""

    def __call__(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise DataError(f"{name} must be True or False, got {shown(value)}")
        return bool(value)


@dataclass(frozen=True)
class Having:
    """An object with these attributes."""

    names: tuple[str, ...]
    what: str

    def __call__(self, name: str, value: Any) -> Any:
        if isinstance(value, type) or not all(hasattr(value, one) for one in self.names):
            raise DataError(f"{name} must be {self.what}, got {shown(value)}")
        return value


def shown(value: Any) -> str:
    """An odd value in a sentence: short, on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = ""
    return text if 0 < len(text) <= 60 else f"a {type(value).__name__}"


def checked(function: Function) -> Function:
    """The function, with its arguments checked by the checks in their annotations (`Annotated[type, check]`)."""
    sig = signature(function)

    @cache
    def checks() -> dict[str, tuple[Any, bool]]:
        hints = get_type_hints(function, include_extras=True)
        found = {name: _check_in(hint) for name, hint in hints.items() if name in sig.parameters}
        optional = {name for name, hint in hints.items() if type(None) in get_args(hint)}
        return {
            name: (check, name in optional or sig.parameters[name].default is None)
            for name, check in found.items()
            if check is not None and sig.parameters[name].kind is not Parameter.VAR_KEYWORD
        }

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = sig.bind(*args, **kwargs)
        for name, (check, optional) in checks().items():
            if name in bound.arguments:
                value = bound.arguments[name]
                if sig.parameters[name].kind is Parameter.VAR_POSITIONAL:
                    bound.arguments[name] = tuple(check(name, one) for one in value)
                elif not (optional and value is None):
                    bound.arguments[name] = check(name, value)
        return function(*bound.args, **bound.kwargs)

    return cast(Function, call)


def _check_in(hint: Any) -> Any:
    """The check in an annotation, or in the parts of a union."""
    if get_origin(hint) is Annotated:
        return next((m for m in hint.__metadata__ if callable(m)), None)
    return next((found for part in get_args(hint) if (found := _check_in(part)) is not None), None)


# Annotations ---------------------------------------------------------------------------------------------------------

#: Numbers of any shape, (k,) and (n, k); the same where a NaN is a result that the function names; features of rows.
Numbers1 = Annotated[ArrayLike, Numbers(1)]
Numbers2 = Annotated[ArrayLike, Numbers(2)]
Results1 = Annotated[ArrayLike, Numbers(1, finite=False)]
Results2 = Annotated[ArrayLike, Numbers(2, finite=False)]
Features = Annotated[Any, Numbers(2, double=False)]
ClassIndices = Annotated[Any, Labels()]
RowNumbers = Annotated[Any, Labels(floats=False)]
AnyLabels = Annotated[ArrayLike, Classes()]
RowSet = Annotated[Any, Pair()]
Finite = Annotated[float, Within()]
Positive = Annotated[float, Within(0.0, above=True)]
NotNegative = Annotated[float, Within(0.0)]
Share = Annotated[float, Within(0.0, 1.0)]
#: More than 0 and less than 1.
Between = Annotated[float, Within(0.0, 1.0, above=True, below=True)]
Count = Annotated[int, Whole(1)]
#: Of models, draws, epochs: each costs memory or time.
Times = Annotated[int, Whole(1, 10**7)]
Number0 = Annotated[int, Whole(0)]
Switch = Annotated[bool, Flag()]
ModelLike = Annotated[Any, Having(("n_classes", "size", "d", "penalty_gradient"), "a model such as LogisticModel")]
TableLike = Annotated[Any, Having(("blocks", "n", "d", "classes", "ids", "take", "without"), "a table of rows")]
