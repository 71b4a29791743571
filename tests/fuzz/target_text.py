"""Text of rows: one's own csv, tsv and the like, and the original files of the seven datasets (csv, psv, libsvm)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from engine import Lie
from hypothesis import strategies as st
from strange import edited, edits, listed

MODULES = ("l2ul_fast/datasets/text/csv.py", "l2ul_fast/datasets/text/convert.py")
MODULES += ("l2ul_fast/datasets/sets/adult.py", "l2ul_fast/datasets/sets/sepsis.py")
MODULES += ("l2ul_fast/datasets/plugin.py:load_dataset_file,_made,_classes,_whole,_labels,_csv,_is_number",)
FIELDS = listed("""
    0 | 1 | 2 | -1 | +4 | 1.5 | -2.25e3 | .5 | 5. | 1e-400 | 1e400 | -0 | 007 | 0x10 | 1_000 | 3 4 | nan | NaN | inf |
    -inf | Infinity | NA | null | ? | None | true | "1" | "a,b" | " | '1' | 1, | a |
    1e | e5 | --1 | 1.2.3 | g | h
""")
FIELDS += [" 3 ", "", "\x00", "\xff", "\xef\xbb\xbf", "1\x00", "\u0661", "\uff11", "9" * 400, "0." + "3" * 2000]
ENDS = ("\n", "\r\n", "\r", "", "\n\n")
ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Husband, White, Male, 2174, 0, 40, Cuba, <=50K"
)
#: Set -> (name of its file, a line of each class).
SETS = {
    "magic": ("magic04.data", ("28.7,16.0,2.6,0.39,0.19,27.7,22.0,-8.2,40.0,81.8,g", "1,2,3,4,5,6,7,8,9,10,h")),
    "skin": ("Skin_NonSkin.txt", ("74\t85\t123\t1", "1\t2\t3\t2")),
    "adult": (
        "adult.data",
        (ADULT, ADULT.replace("<=50K", ">50K").replace("Male", "Female"), ADULT.replace("Cuba", "?")),
    ),
    "covtype": ("covtype.data", (",".join(["7"] * 54 + ["2"]), ",".join(["0"] * 54 + ["5"]))),
    "susy": ("SUSY.csv", (",".join(["1.0", *["0.5"] * 18]), ",".join(["0.0", *["2.5e-1"] * 18]))),
    "higgs": ("HIGGS.libsvm", ("1 1:0.5 3:0.25 28:1", "0 2:1e-3", "-1 1:2 2:3")),
}


def cases() -> Any:
    number = st.floats(-1e6, 1e6, width=32).map(repr) | st.integers(-9, 9).map(str)
    words = st.text(max_size=4).map(lambda text: text.encode("utf-8", "replace").decode("latin-1"))
    odd = st.sampled_from(FIELDS) | words
    field = st.one_of(number, number, number, odd)
    label = st.sampled_from((*"010101ab", "2", "1.0", "", "nan", "-7", "9" * 30))
    damage = st.one_of(st.just([]), st.just([]), st.just([]), edits)
    own = st.fixed_dictionaries(
        {
            "kind": st.just("own"),
            "suffix": st.sampled_from((".csv", ".tsv", ".txt")),
            "delimiter": st.sampled_from((",", ",", ";", "\t", "|", " ")),
            "header": st.sampled_from((None, None, "a", "x1", "1", '"q"', "\xef\xbb\xbfa")),
            "rows": st.lists(st.tuples(st.lists(field, max_size=3), label), max_size=2),
            "width": st.integers(1, 4),
            "sound": st.sampled_from((0, 1, 2, 10, 60)),
            "end": st.sampled_from(ENDS[:3]),
            "last": st.sampled_from(ENDS),
            "edits": damage,
            "long": st.sampled_from((0, 0, 0, 0, 100_000, 10_000_000)),
        }
    )
    raw = st.fixed_dictionaries(
        {
            "kind": st.sampled_from((*SETS, "sepsis")),
            "lines": st.lists(st.integers(0, 2), max_size=6).map(lambda some: [0, 1, *some]),
            "fields": st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), field), max_size=1),
            "end": st.sampled_from(ENDS[:2]),
            "last": st.sampled_from(ENDS),
            "edits": damage,
            "subset": st.sampled_from((True, True, True, False)),
        }
    )
    return st.one_of(own, raw)


def prepare() -> None:
    import l2ul_fast.datasets.plugin  # noqa: F401 - what is slow to load
    from l2ul_fast.datasets.text.csv import parse_block  # noqa: F401


def sepsis_lines(picked: list[int]) -> list[str]:
    from l2ul_fast.datasets.sets.sepsis import HOURLY

    hours = ["|".join(["NaN" if (j + k) % 3 else "97.5" for j in range(40)] + [str(k % 2)]) for k in picked]
    return ["|".join((*HOURLY, "SepsisLabel")), *hours]


def raw_text(case: Any) -> tuple[str, bytes]:
    """(name of the file, its text) of an original."""
    kind = case["kind"]
    name, pool = ("p000001.psv", ()) if kind == "sepsis" else SETS[kind]
    lines = sepsis_lines(case["lines"]) if kind == "sepsis" else [pool[k % len(pool)] for k in case["lines"]]
    delimiter = {"skin": "\t", "sepsis": "|", "higgs": " "}.get(kind, ",")
    for line, place, text in case["fields"]:
        if lines:
            fields = lines[line % len(lines)].split(delimiter)
            fields[place % len(fields)] = text
            lines[line % len(lines)] = delimiter.join(fields)
    text = case["end"].join(lines) + case["last"]
    return name, edited(text.encode("utf-8", "surrogateescape"), case["edits"])


def own_text(case: Any) -> bytes:
    """Rows of which most are sound: `sound` of them come first."""
    width, delimiter = case["width"], case["delimiter"]
    rows = [[str(((k + 1) * (j + 2)) % 11) for j in range(width)] + [str(k % 2)] for k in range(case["sound"])]
    rows += [[*(fields + ["1"] * width)[:width], label] for fields, label in case["rows"]]
    if case["header"] is not None:
        rows.insert(0, [f"{case['header']}{j}" for j in range(width)] + ["class"])
    text = case["end"].join(delimiter.join(row) for row in rows) + case["last"]
    if case["long"]:
        text += "7" * case["long"]
    return edited(text.encode("latin-1", "replace"), case["edits"])


def run(case: Any, folder: Path) -> None:
    from l2ul_fast.datasets import convert, open_dataset, verify
    from l2ul_fast.datasets.plugin import load_dataset_file
    from l2ul_fast.datasets.registry import REGISTRY

    if case["kind"] == "own":
        path = folder / f"mine{case['suffix']}"
        path.write_bytes(own_text(case))
        try:
            made = load_dataset_file(path, folder / "data").path
        finally:
            REGISTRY.pop("mine", None)
        checked(made, verify)
        with open_dataset(made) as data:
            X = data.read(0, data.n)[0]
        compared(case, path.read_bytes(), X)
        return
    (folder / "raw").mkdir()
    name, text = raw_text(case)
    (folder / "raw" / name).write_bytes(text)
    checked(convert(case["kind"], folder / "raw", folder / "data", subset=case["subset"]), verify)


def checked(made: Any, verify: Any) -> None:
    """What was written must be sound."""
    if problems := verify(made):
        raise Lie(f"what was converted is not sound: {problems[0]}")


def compared(case: Any, text: bytes, X: Any) -> None:
    """Rows and numbers of what was accepted, against Python's own reading of the lines."""
    lines = [line for line in text.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()]
    if case["edits"] or case["long"] or case["end"] == "\r":
        return  # what a line is, or the first one, is for the reader to say
    if len(X) not in (len(lines), len(lines) - 1):
        raise Lie(f"{len(lines)} lines became {len(X)} rows")
    delimiter = None if case["delimiter"] == " " else case["delimiter"].encode()
    for line, row in zip(lines[-len(X) :], X, strict=True):
        fields = [field.strip().strip(b'"') for field in line.split(delimiter)][: len(row)]
        try:
            wanted = np.array([float(field) for field in fields]).astype(np.float32)
        except ValueError:
            raise Lie(f"{line[:80]!r} was read as {row.tolist()}") from None
        if not np.array_equal(wanted, row):
            raise Lie(f"{line[:80]!r} was read as {row.tolist()}")
