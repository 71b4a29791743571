"""Interfaces that several packages implement, and that plug-ins may: methods and datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Style:
    """Name and marks of a method in every table and plot; an empty colour takes the next free one of the palette."""

    label: str
    colour: str = ""
    marker: str = "o"


@runtime_checkable
class Method(Protocol):
    """A compared method: `prepare` and `state_bytes` are not timed, `unlearn` is.

    Optional attributes: `style` (a Style), `exact` (answers equal training without the rows), `in_memory` (needs an
    ArrayTable), `table_order` (its place in tables), `needs` (extras it imports).
    """

    name: str

    def prepare(self, table: Any, model: Any, seed: int = 0) -> None:
        """Train on the rows of `table` and build what requests need."""

    def unlearn(self, forget: Any, commit: bool = False) -> Any:
        """The model without the rows with these numbers: an object with `theta`, `predict_proba` and `facts`."""

    def state_bytes(self) -> int:
        """Bytes kept between requests, the training rows left out."""


@runtime_checkable
class Dataset(Protocol):
    """Rows under a name."""

    name: str

    def load(self) -> tuple[NDArray[np.floating[Any]], NDArray[Any]] | Path:
        """(X, y), or the path of a file that holds them."""


Styles = Mapping[str, Style]
