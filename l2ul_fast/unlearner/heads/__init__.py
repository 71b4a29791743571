"""What moves theta at a request: one module per head, whose class has the same name and the methods of `base.Head`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from l2ul_fast.errors import DataError

KINDS = ("expansion", "secant", "wide", "learned", "kme", "paper")


def head_class(kind: str) -> Any:
    """The class of a head by its `kind`, imported now: only some need networks, pairs or the MLP."""
    if kind not in KINDS:
        raise DataError(f"the saved head is of an unknown kind ({kind}): fit again")
    return getattr(import_module(f"{__name__}.{kind}"), kind.capitalize())
