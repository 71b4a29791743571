"""l2ul-fast: take someone's rows out of a trained model in microseconds, and measure what that is worth."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

from l2ul_fast import extras

extras.install()
__version__ = version("l2ul-fast")

# Imported when first used: each needs an optional extra that the others do not.
_LAZY = {
    "IsolationKernel": "l2ul_fast.embedding",
    "KernelMeanEmbedding": "l2ul_fast.embedding",
    "L2UL": "l2ul_fast.unlearner",
}
__all__ = ["L2UL", "IsolationKernel", "KernelMeanEmbedding", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
