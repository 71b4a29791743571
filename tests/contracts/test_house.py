"""Habits that nothing else enforces, as limits that may only fall: lower a limit when the code gets better."""

import ast
import re

from sources import FILES, ROOT, TREES, is_alias

MODULES_OF_A_PACKAGE = 16
#: One file is one method, dataset or experiment: these folders may grow.
PLUG_INS = {
    f"l2ul_fast/{p}"
    for p in ("baselines", "datasets/sets", *(f"experiments/{e}" for e in ("paper", "speed", "quality")))
}
ARGUMENTS_OF_A_KERNEL = 8
#: Registers are arguments there.
WIDE_KERNELS = ("kernels/l2ul_kernels/simd/", "kernels/l2ul_kernels/voronoi/tile.py")
LIMITS = {
    "kernels with more arguments": 0,
    "isinstance on our own classes": 7,
    "first lines that are no noun phrase": 139,
}


def test_a_package_has_at_most_sixteen_modules():
    flat: dict[str, list[str]] = {}
    for name, tree in TREES.items():
        folder, module = name.rsplit("/", 1)
        if folder not in PLUG_INS and not module.startswith("__") and not is_alias(tree):
            flat.setdefault(folder, []).append(module)
    assert {folder: len(modules) for folder, modules in flat.items() if len(modules) > MODULES_OF_A_PACKAGE} == {}


def functions():
    return (
        (name, node) for name, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    )


def test_kernels_have_few_arguments():
    found = []
    for name, node in functions():
        marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
        count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
        if re.search("kernel|njit|intrinsic|entry", marks) and count > ARGUMENTS_OF_A_KERNEL:
            found.append(f"{name}: {node.name} has {count}")
    assert_falls("kernels with more arguments", [line for line in found if not line.startswith(WIDE_KERNELS)])


def test_a_protocol_stands_where_isinstance_would():
    classes = {node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    own = {node.name for node in classes if not node.name.endswith("Error")}
    found = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                named = {
                    part.id if isinstance(part, ast.Name) else getattr(part, "attr", "")
                    for part in ast.walk(node.args[1])
                }
                if named & own:
                    found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert_falls("isinstance on our own classes", found)


def test_docstrings_begin_with_a_noun_or_a_verb():
    found = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                line = (ast.get_docstring(node) or "").split("\n")[0]
                if re.match(r"(What|Which|How|Who|Where|Those|In place)\b", line):
                    found.append(f"{name}: {getattr(node, 'name', 'module')}: {line}")
    assert_falls("first lines that are no noun phrase", found)


def test_the_formatter_decides():
    written = [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    assert [str(path) for path in written if re.search(r"#\s*fmt:\s*(skip|off)", path.read_text())] == []


def assert_falls(name, found):
    assert len(found) <= LIMITS[name], f"{len(found)} {name}, the limit is {LIMITS[name]}:\n" + "\n".join(found)
