"""The methods that unlearning is measured against: one file and one class each, one protocol (see base.py).

`METHODS[name]()` makes a baseline with its defaults; keyword arguments are those of its class. A file here with a class
that has a `name` is found by itself; so are classes of installed distributions (entry points `l2ul_fast.methods`) and
the class `Method` of a file that `use_plugin` is given. `make(name)` makes any of them, L2UL's heads too.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from l2ul_fast import plugins
from l2ul_fast.baselines.base import Answer, Baseline
from l2ul_fast.baselines.certified import Certified
from l2ul_fast.baselines.d2d import DescentToDelete
from l2ul_fast.baselines.deltagrad import DeltaGrad
from l2ul_fast.baselines.finetune import Finetune
from l2ul_fast.baselines.fyemu import Fyemu
from l2ul_fast.baselines.influence import Influence
from l2ul_fast.baselines.minibatch import Recipe
from l2ul_fast.baselines.neggrad import NegGrad
from l2ul_fast.baselines.newton import Newton
from l2ul_fast.baselines.nothing import Nothing
from l2ul_fast.baselines.retrain import Retrain
from l2ul_fast.baselines.sisa import Sisa
from l2ul_fast.errors import UserError
from l2ul_fast.protocols import Method, Style


def _built_in() -> dict[str, Callable[..., Baseline]]:
    """Every class with a name of its own in the files of this folder, by `table_order`."""
    found: list[type[Baseline]] = []
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        if module.name.rpartition(".")[2] == "l2ul":  # imports the unlearner: loaded when it is asked for
            continue
        for one in vars(import_module(module.name)).values():
            if isinstance(one, type) and issubclass(one, Baseline) and one.__module__ == module.name:
                found += [one] if one.name != Baseline.name else []
    return {one.name: one for one in sorted(found, key=lambda one: (one.table_order, one.name))}


#: The baselines in the order of a table: the two references first.
METHODS: dict[str, Callable[..., Baseline]] = _built_in()
#: L2UL's heads, last in every table.
HEAD_NAMES = ("l2ul-expansion", "l2ul-learned", "l2ul-kme", "l2ul-paper")
_plugins: dict[str, type[Method]] = {}


def use_plugin(file: Path | str) -> str:
    """Take the class `Method` of a Python file among the methods; its name.

    Raises
    ------
    UserError
        If the file has no such class, or its name is taken.
    """
    return _add(plugins.class_of(file, "Method"), str(file))


def _add(found: Any, where: str) -> str:
    name = str(found.name)
    if _plugins.get(name, found) is not found or name in METHODS or name in HEAD_NAMES:
        raise UserError(f"{where} defines a method {name!r}, which is there already")
    for wanted in ("prepare", "unlearn", "state_bytes"):
        if not callable(getattr(found, wanted, None)):
            raise UserError(f"the method {name!r} of {where} has no function {wanted}")
    _plugins[name] = found
    return name


def method_names() -> tuple[str, ...]:
    """Every method that can be compared, in the order of a table: baselines, plug-ins, L2UL's heads."""
    for name, found in plugins.installed("l2ul_fast.methods"):
        _add(found, f"the entry point {name!r}")
    own = sorted(_plugins, key=lambda name: (getattr(_plugins[name], "table_order", 1000), name))
    return (*METHODS, *own, *HEAD_NAMES)


def make(name: str) -> Any:
    """The method of this name with its defaults.

    Raises
    ------
    UserError
        For an unknown name.
    """
    if name in METHODS:
        return METHODS[name]()
    if name in HEAD_NAMES:
        from l2ul_fast.baselines.l2ul import L2ULMethod

        return L2ULMethod(name)
    if name not in method_names():
        raise UserError(f"{name!r} is not one of the methods {', '.join(method_names())}")
    return _plugins[name]()


def styles() -> dict[str, Style]:
    """Name and marks of every method, in the order of tables."""
    from l2ul_fast.baselines.l2ul import STYLES

    classes: dict[str, Any] = {**METHODS, **_plugins}
    found: dict[str, Style] = {name: getattr(classes.get(name), "style", Style(name)) for name in method_names()}
    return found | STYLES


__all__ = [
    "HEAD_NAMES",
    "METHODS",
    "Answer",
    "Baseline",
    "Certified",
    "DeltaGrad",
    "DescentToDelete",
    "Finetune",
    "Fyemu",
    "Influence",
    "NegGrad",
    "Newton",
    "Nothing",
    "Recipe",
    "Retrain",
    "Sisa",
    "make",
    "method_names",
    "styles",
    "use_plugin",
]
