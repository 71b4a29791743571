"""The options of an unlearner: one frozen dataclass, which `L2UL` checks its arguments by and `l2ul fit` offers.

Imports no numpy, so that the command line starts at once.
"""

from __future__ import annotations

import operator
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from numbers import Real
from typing import Any

from l2ul_fast.errors import UserError

MODELS = ("lr", "mlp", "squared", "poisson")
#: Models of numbers.
NUMBERS = ("squared", "poisson")
HEADS = ("expansion", "learned", "kme", "paper")
#: Heads by the names they had before.
OLD_HEADS = {"influence": "expansion", "direct": "paper"}
ANCHORS = ("grid", "optimum")


def option(default: Any, help: str | None = None, **facts: Any) -> Any:
    """A field of Options.

    help: its text in `l2ul fit`, which does not offer those without. facts: `choices` it must be one of; `low` and
    `high` between which it is a whole number; `none`, whether None stands for a default; `metavar` on the command line.
    """
    return field(default=default, metadata={"help": help, **facts})


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `L2UL` is told; UserError for what cannot be. See `L2UL` for their meaning."""

    model: str = option("lr", "Logistic regression, or an MLP of one layer.", choices=MODELS)
    head: str = option(
        "expansion",
        "expansion (derivatives of the loss), learned (a map taught by training pairs), kme (the paper's "
        "embeddings, by class) or paper (its network).",
        choices=HEADS,
        metavar="<name>",
    )
    order: int = option(3, "Of the expansion; 2 is Newton's step.", low=2, high=3)
    anchor: Any = option(  # noqa: RUF009
        "grid",
        "Where to expand: the optimum on a coarse grid, the optimum, or parameters read from a text file.",
        metavar="<grid|optimum|path>",
    )
    penalty: str = option("mean", "sum: the penalty does not shrink when rows leave.", choices=("mean", "sum"))
    lam: float = option(1e-3, "Penalty, in units of the mean loss.")
    psi: int | None = option(None, "Seeds per partition (default: 64 for kme, else 4).", low=2, high=4096, none=True)
    t: int = option(100, "Partitions.", low=1, high=10**6)
    m: int = option(1000, "Training pairs.", low=1, high=10**7)
    s: int | None = option(None, "Rows per pair; default by the size of the data.", low=20, none=True)
    hidden: int = option(10, "Hidden units of the MLP.", low=1, high=10**6)
    anchor_rows: int | None = option(
        None, "Anchor rows of the MLP (default: a fifth); 0: plain training.", low=0, none=True
    )
    robust: bool = option(False, "Train for large and structured requests too.")
    random_state: int | None = option(0, "Seed of everything random.", low=0, none=True)
    activation: str = option("tanh", choices=("tanh", "relu"))
    store_rows: bool = option(True)

    def __post_init__(self) -> None:
        found = {f.name: _checked(f.name, getattr(self, f.name), f.default, f.metadata) for f in fields(self)}
        if self.model in NUMBERS and self.head != "expansion":
            raise UserError(f'the model "{self.model}" has the head "expansion" only, got {self.head!r}')
        found["anchor"] = _checked_anchor(self.anchor)
        if not (isinstance(self.lam, Real) and not isinstance(self.lam, bool) and self.lam > 0 and isfinite(self.lam)):
            raise UserError(f"lam must be positive, got {_shown(self.lam)}")
        found["lam"] = float(self.lam)
        if self.psi is None:
            found["psi"] = 64 if self.head == "kme" else 4
        if self.random_state is None:  # a fresh seed, kept: all later draws follow from it
            found["random_state"] = secrets.randbits(32)
        for name, value in found.items():
            object.__setattr__(self, name, value)


def _checked(name: str, value: Any, default: Any, facts: Mapping[str, Any]) -> Any:
    """`value` as the option's facts have it; UserError otherwise."""
    if "choices" in facts and not (isinstance(value, str) and value in facts["choices"]):
        raise UserError(f"{name} must be one of {', '.join(facts['choices'])}, got {_shown(value)}")
    if isinstance(default, bool):
        if not isinstance(value, int) and type(value).__name__ not in ("bool", "bool_"):  # or NumPy's
            raise UserError(f"{name} must be True or False, got {_shown(value)}")
        return bool(value)
    if "low" not in facts or (value is None and facts.get("none")):
        return value
    try:
        found = operator.index(value)
    except Exception:
        raise UserError(f"{name} must be a whole number, got {_shown(value)}") from None
    low, high = facts["low"], facts.get("high")
    if found < low or (high is not None and found > high):
        raise UserError(f"{name} must be at least {low}{'' if high is None else f' and at most {high}'}, got {found}")
    return found


def _shown(value: Any) -> str:
    """A value of any kind as a part of one sentence."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"


def _checked_anchor(anchor: Any) -> str | list[float]:
    if isinstance(anchor, str):
        if anchor not in ANCHORS:
            raise UserError(f'anchor must be "grid", "optimum" or parameters, got {_shown(anchor)}')
        return anchor
    import numpy as np

    try:
        found: list[float] = np.array(anchor, np.float64).tolist()
    except Exception:
        raise UserError('anchor must be "grid", "optimum" or a list of parameters') from None
    return found


def current_head(head: str, prior: str | None) -> str:
    """The head by its present name; a DeprecationWarning of the caller's caller for older ones."""
    now = OLD_HEADS.get(head, head) if isinstance(head, str) else head
    if prior is not None:
        if not isinstance(prior, str) or prior not in ("newton", "none"):
            raise UserError(f'prior must be "newton" or "none", got {_shown(prior)}')
        if now == "expansion":
            now = "learned" if prior == "none" else "expansion"
            warnings.warn(f'prior={prior!r} is now head="{now}"', DeprecationWarning, stacklevel=3)
            return now
    if now is not head:
        warnings.warn(f'head={head!r} is now head="{now}"', DeprecationWarning, stacklevel=3)
    return now
