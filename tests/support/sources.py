"""Syntax trees of the two packages, for tests of the sources."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*(ROOT / "l2ul_fast").rglob("*.py"), *(ROOT / "kernels" / "l2ul_kernels").rglob("*.py")])
#: Path from the top, with slashes -> tree.
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in FILES}


def is_alias(tree):
    """Whether a module only passes names on: a docstring, imports and perhaps a main guard."""
    return all(
        isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
        or (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
        for node in tree.body
    )
