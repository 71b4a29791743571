"""What the JSON of an artifact may hold: for each kind of object one table of names, types and bounds.

A rule takes a value and raises ValueError unless it fits. Tables name what must be there; `optional` what may be
missing. Names that no table has are let through, so that a field can be added without a new format version.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

Rule = Callable[[Any], None]

#: Row numbers, bytes and counts are below this: they fit int64 with room for sums.
MOST = 10**18


def parse(text: str | bytes) -> Any:
    """JSON without NaN and infinities; ValueError for anything else, however deep."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("JSON that is too deep") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def check(what: str, value: Any, rules: Mapping[str, Rule]) -> None:
    """ValueError, naming the field, unless the object has all fields and each fits its rule."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object")
    for name, rule in rules.items():
        if name in value:
            try:
                rule(value[name])
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
        elif not getattr(rule, "may_be_missing", False):
            raise ValueError(f"{name} is missing")


# Rules ---------------------------------------------------------------------------------------------------------------


class optional:
    """A field that may be missing."""

    may_be_missing = True

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def __call__(self, value: Any) -> None:
        self.rule(value)


def _rule(fits: Callable[[Any], bool], what: str) -> Rule:
    def rule(value: Any) -> None:
        if not fits(value):
            raise ValueError(f"is not {what}")

    return rule


def whole(low: int = 0, high: int = MOST) -> Rule:
    return _rule(lambda v: type(v) is int and low <= v <= high, f"a whole number from {low} to {high}")


def text(most: int) -> Rule:
    return _rule(lambda v: isinstance(v, str) and len(v) <= most, f"text of at most {most} characters")


def like(pattern: str, what: str) -> Rule:
    found = re.compile(pattern)
    return _rule(lambda v: isinstance(v, str) and found.fullmatch(v) is not None, what)


def one_of(*values: Any) -> Rule:
    return _rule(lambda v: isinstance(v, str | int) and v in values, f"one of {', '.join(map(str, values))}")


def each(rule: Rule, most: int = 10**6) -> Rule:
    """A list."""

    def every(value: Any) -> None:
        if not isinstance(value, list) or len(value) > most:
            raise ValueError(f"is not a list of at most {most}")
        for item in value:
            rule(item)

    return every


def named(key: Rule, rule: Rule) -> Rule:
    """An object with names that follow a rule."""

    def every(value: Any) -> None:
        if not isinstance(value, dict):
            raise ValueError("is no object")
        for name, item in value.items():
            key(name)
            rule(item)

    return every


def fields(**rules: Rule) -> Rule:
    return lambda value: check("it", value, rules)


def or_null(rule: Rule) -> Rule:
    return lambda value: None if value is None else rule(value)


_SCALARS = (str, bool, int, float, type(None))
scalar = _rule(lambda v: isinstance(v, _SCALARS) and not (isinstance(v, float) and math.isnan(v)), "one value")
obj = named(text(1000), lambda value: None)
digest = like(r"[0-9a-f]{64}", "a SHA-256")
group = like(r"[a-z0-9_]{1,40}", "the name of a group")

# Tables --------------------------------------------------------------------------------------------------------------

#: Bytes per digest of a file that is changed in place: reading one costs some 50 us, one in 1,000 bytes is a digest's.
BLOCK = 1 << 16

FILE: dict[str, Rule] = {
    "file": like(r"state-\d{1,18}-[a-z0-9_]{1,40}\.safetensors", "a file of arrays"),
    "bytes": whole(8),
    "arrays": each(text(100)),
    "blocks": optional(one_of(BLOCK)),
    "sha256": optional(digest),
}
HEADER: dict[str, Rule] = {
    "package_version": text(100),
    "generation": whole(),
    "facts": obj,
    "files": named(group, fields(**FILE)),
    "ledger": fields(bytes=whole(), entries=whole(), head=digest),
}
ENTRY: dict[str, Rule] = {
    "time": like(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "a time"),
    "action": one_of("fit", "unlearn", "refresh", "learn"),
    "n": whole(),
    "r": optional(whole()),
    "rows": optional(like(r"(?:\d{1,18}(?:-\d{1,18})?(?:,(?!$)|$))*", "a list of row numbers")),
    "request_id": optional(text(100)),
    "theta_before": optional(digest),
    "theta_after": optional(digest),
    "refreshed": optional(named(text(100), scalar)),
}
LINE: dict[str, Rule] = {
    "generation": whole(),
    "facts": obj,
    "files": named(group, fields(**FILE)),
    "dropped": each(group),
    "digests": named(group, named(like(r"\d{1,12}", "the number of a block"), digest)),
    "entries": each(fields(**ENTRY)),
    "previous": digest,
}
#: Facts of an unlearner; those of `params` are checked by Options, of `head_facts` by the head.
FACTS: dict[str, Rule] = {
    "params": obj,
    "n": whole(1),
    "d": whole(1),
    "rows": whole(1),
    "classes": each(scalar, 256),
    "label": text(1000),
    "fit": optional(or_null(text(100))),
    "data": fields(
        kind=one_of("arrays", "file", "none"),
        paths=optional(each(text(5000))),
        part=optional(text(100)),
        dtype=optional(one_of("float32", "float64")),
    ),
    "report": obj,
    "head": optional(text(100)),
    "head_facts": optional(obj),
    "due": optional(or_null(text(1000))),
}
