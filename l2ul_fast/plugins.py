"""Code of others: a class in a file that the user names, or in an installed distribution's entry points.

Nothing is imported unless it was named on the command line or installed on purpose.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import metadata, util
from pathlib import Path
from types import ModuleType
from typing import Any

from l2ul_fast.errors import UserError


def load_module(path: Path | str) -> ModuleType:
    """The Python file at `path` as a module; the same one each time it is asked for."""
    file = Path(path).resolve()
    name = f"l2ul_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise UserError(f"there is no Python file {path}")
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling between processes look it up there
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the output of commands
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def class_of(path: Path | str, name: str) -> Any:
    """The class `name` of a plug-in file, which must have a text `name` of its own."""
    found: Any = getattr(load_module(path), name, None)
    if not isinstance(found, type):
        raise UserError(f"{path} has no class {name}")
    named: Any = found
    if not isinstance(getattr(named, "name", None), str) or not named.name:
        raise UserError(f"class {name} of {path} needs a `name`")
    return found


def installed(group: str) -> Iterator[tuple[str, Any]]:
    """(name, object) of every entry point of a group; one that cannot be loaded is a UserError that names it."""
    for point in sorted(metadata.entry_points(group=group), key=lambda p: p.name):
        try:
            yield point.name, point.load()
        except Exception as error:
            raise UserError(
                f"the plug-in {point.name!r} of {point.value!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
