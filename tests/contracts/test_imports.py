"""Data flows one way: which package may import which, read from the sources (imports inside functions count too)."""

import ast
import re
import sys

import pytest
from sources import TREES, is_alias

FAST, KERNEL = ({k: tree for k, tree in TREES.items() if k.startswith(p)} for p in ("l2ul_fast/", "kernels/"))
#: From left to right; a package imports what stands at its left, or beside it on the same line.
LAYERS = """
    errors extras checks files protocols plugins workers embedding
    datasets tables
    models
    unlearner
    baselines
    metrics
    distributed
    resnet
    measure
    cases
    report
    experiments
    cli
"""
ORDER = {name: place for place, line in enumerate(LAYERS.split("\n")) for name in line.split()}
#: What report may import: records and their values, nothing that measures.
OF_REPORT = {"errors", "files", "measure", "protocols", "report"}
#: The case table runs on old commits: it imports names where every commit has them. perfcheck runs the case table.
#: `workers_of` wraps a Dask client for rooms that know nothing of Dask.
KEPT = {("cases", "experiments"), ("measure", "cases"), ("workers", "distributed")}
#: Imports to the right that are to go: this list may only shrink.
GOING: set[tuple[str, str]] = set()
#: Slow to import, or optional: at module level in these rooms only.
ROOMS = {"torch": ("l2ul_fast/resnet/", "l2ul_fast/unlearner/heads/network.py"), "matplotlib": (), "dask": ()}
OF_THE_KERNELS = {"numpy", "numba", "scipy", "threadpoolctl", "llvmlite", "l2ul_kernels"}


def imported(node):
    """Full names that a statement imports: l2ul_fast.tables.FileTable, numpy."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    assert node.level == 0, f"a relative import: {ast.unparse(node)}"
    return [f"{node.module}.{name.name}" for name in node.names]


def imports(tree):
    return [name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for name in imported(node)]


def room(name):
    """The package, or module at the top, of a file or of an imported name; None for l2ul_fast itself."""
    parts = name.removesuffix(".py").replace("/", ".").split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ORDER else None


def crossings():
    """(importing room, imported room, file, name) of every import between rooms of l2ul_fast."""
    found = []
    for file, tree in FAST.items():
        if room(file) is not None:
            here = [name for name in imports(tree) if name.startswith("l2ul_fast.")]
            found += [(room(file), room(name), file, name) for name in here if room(name) not in (None, room(file))]
    return found


def test_every_module_has_a_layer():
    top = {file.split("/")[1].removesuffix(".py"): tree for file, tree in FAST.items()}
    strangers = {name for name, tree in top.items() if name not in ORDER and not is_alias(tree)} - {"__init__"}
    assert strangers == set(), "give each a place in LAYERS"


def test_data_flows_one_way():
    wrong = {}
    for a, b, file, name in crossings():
        if ORDER[a] < ORDER[b] or (a == "report" and b not in OF_REPORT):
            wrong.setdefault((a, b), []).append(f"{file} imports {name}")
    assert [line for pair, lines in wrong.items() if pair not in GOING | KEPT for line in lines] == []
    assert GOING - set(wrong) == set(), "gone by now: take them off the list"


def test_no_private_name_of_another_package():
    found = set()
    for file, tree in TREES.items():
        package = ".".join(file.removeprefix("kernels/").removesuffix(".py").split("/")[:2])
        for module, _, last in (name.rpartition(".") for name in imports(tree) if name.startswith("l2ul_")):
            if re.match(r"_[^_]", last) and not f"{module}.".startswith(f"{package}."):
                found.add(f"{module}.{last}")
    assert found == set()


@pytest.mark.parametrize("library", ROOMS)
def test_slow_libraries_are_imported_where_they_are_needed(library):
    for file, tree in FAST.items():
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom) and not file.startswith(ROOMS[library] or "-"):
                assert library not in {name.split(".")[0] for name in imported(node)}, f"{file} imports {library}"


def test_kernels_import_little():
    for file, tree in KERNEL.items():
        outside = {name.split(".")[0] for name in imports(tree)} - OF_THE_KERNELS - sys.stdlib_module_names
        assert outside == set(), f"{file} imports {outside}"
