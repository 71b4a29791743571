"""The extras that bring optional packages, named wherever one is missing."""

from __future__ import annotations

import sys
from typing import Any

#: Module -> the smallest extra of pyproject.toml that has it.
EXTRAS = {
    **dict.fromkeys(("typer", "rich", "psutil"), "cli"),
    **dict.fromkeys(("h5py", "hdf5plugin", "pooch", "pyarrow", "requests"), "data"),
    **dict.fromkeys(("sklearn", "torch", "safetensors", "joblib"), "learn"),
    **dict.fromkeys(("matplotlib", "faiss", "ikpykit"), "bench"),
    **dict.fromkeys(("dask", "distributed", "fsspec"), "dask"),
    **dict.fromkeys(("pandas", "tables"), "dev"),
}
PACKAGES = {"sklearn": "scikit-learn", "faiss": "faiss-cpu"}


def sentence(module: str) -> str:
    """The command that installs a missing module."""
    top = module.split(".")[0]
    return f"this needs the package {PACKAGES.get(top, top)}: pip install 'l2ul-fast[{EXTRAS.get(top, 'all')}]'"


class Missing:
    """The last finder that an import asks: what l2ul_fast itself imports and nobody found is an error with a sentence.

    Imports of other programs, and questions by `importlib.util.find_spec`, are none of its business.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Raise for an optional package; None, as everybody before, for all others."""
        if name not in EXTRAS:
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") in ("importlib", "importlib._bootstrap"):
            frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("l2ul_fast"):
            raise ModuleNotFoundError(sentence(name), name=name)


def install() -> None:
    """Ask Missing last, once."""
    if Missing not in sys.meta_path:
        sys.meta_path.append(Missing)
