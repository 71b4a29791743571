"""Strategies that several targets share: odd JSON values, odd numbers in text, edits of bytes."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st


def listed(text: str) -> list[str]:
    """Words or expressions that stand between bars."""
    return re.split(r"\s+\|\s+", text.strip())


#: Values that a careless reader takes for a size, an index or a name.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 255, 256, 65536, 2**31, 2**63 - 1, 2**63, 10**18, 10**30, -(2**40)),
    *(0.5, -0.0, 1e-320, 1e300, float("nan"), float("inf"), 3000.5),
    *("", "0", "nan", "x" * 300, "../../x", "/etc/passwd", "a\0b", "\ud800", "état", "lr", "mlp", "*", "file.h5"),
    *([], [0], [1, 2, 3], [[]], ["a"], [None], {}, {"a": 1}, {"": {}}, [[0] * 50] * 3),
]
values = st.one_of(
    st.sampled_from(VALUES),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=8),
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 300) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
)
#: (where as a share of the length, what is done there, with what)
edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(("flip", "put", "insert", "cut", "drop", "double")),
        st.binary(min_size=1, max_size=8).map(lambda b: b.decode("latin-1")),
    ),
    max_size=4,
)


def edited(data: bytes, changes: list[Any]) -> bytes:
    """The bytes after these edits."""
    for share, how, text in changes:
        at, new = int(share * len(data)), text.encode("latin-1")
        if how == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ (new[0] or 1)]) + data[at + 1 :]
        elif how in ("put", "insert"):
            data = data[:at] + new + data[at + (len(new) if how == "put" else 0) :]
        elif how == "cut":
            data = data[:at]
        elif how == "drop":
            data = data[:at] + data[at + 16 * len(new) :]
        elif how == "double":
            data = data[:at] + data[at : at + 64] + data[at:]
    return data


def replaced(content: Any, place: int, value: Any, how: str) -> Any:
    """JSON content with the value number `place` (counted through all levels) replaced, removed, or given a new key."""
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    if isinstance(content, dict | list):
        walk(content)
    if not spots:
        return value
    node, key = spots[place % len(spots)]
    if how == "remove":
        del node[key]
    elif how == "add" and isinstance(node, dict):
        node[f"{key}x"] = value
    else:
        node[key] = value
    return content


places = st.tuples(st.integers(0, 400), values, st.sampled_from(("replace", "replace", "replace", "remove", "add")))
