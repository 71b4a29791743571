"""N_U and everything around one request: pairs, heads, state, artifact, ledger."""

from importlib import import_module
from typing import Any

# Imported when first used: reading an artifact or a ledger needs none of the kernels.
_LAZY = {"L2UL": "l2ul", "RetrainInstead": "result", "Trust": "result", "Unlearned": "result"}
__all__ = ["L2UL", "RetrainInstead", "Trust", "Unlearned"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"l2ul_fast.unlearner.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
