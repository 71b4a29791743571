"""Fast and exact parsing of numeric text: rows of numbers (commas, tabs, blanks) and libsvm's index:value lines.

Two layers. The compiled kernels (csvkernels.py) read ordinary lines and stop at any line they do not fully understand:
a damaged one, or one with a number whose float32 rounding is too close to call. Such a line goes to plain Python
(slow_row), which knows the exact rules and either returns the row or says what is wrong. So every number becomes the
float32 nearest to its decimal text (ties to even), whichever layer read it.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from l2ul_fast.datasets.text.csv_kernels import PAD, after_line, classes, dense_rows, libsvm_rows

LABEL = -1  # in Layout.targets: this column holds the class
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NAN = re.compile(rb"nan", re.IGNORECASE)

Rows = tuple[np.ndarray, np.ndarray]  # X (k, d) float32, y (k,) uint8


@dataclass(frozen=True)
class Layout:
    """What a line holds: column c goes to feature targets[c], or is the class (LABEL). No targets: libsvm lines.

    The delimiter b" " stands for any run of blanks and tabs; with the others, blanks around a number are ignored.
    labels: (number in the file, class) pairs; a one-letter class counts as its character code.
    """

    d: int
    labels: tuple[tuple[float, int], ...]
    targets: tuple[int, ...] = ()
    delimiter: bytes = b","
    allow_nan: bool = False


class LineError(ValueError):
    """A line that cannot be used; `line` is its index within the block, from 0."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def exact_float32(text: bytes) -> float:
    """The float32 nearest to a decimal number, ties to even; ValueError if it is no number or too large."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{_show(text)} is not a number")
    value = float(text)
    if 0.0 < abs(value) < math.inf:
        exact = Decimal(text.decode("ascii"))
        # Rounding twice (to float64, then float32) is safe if the first rounding is "to odd": an inexact value must
        # not look like an exact tie.
        if exact != value and not int(np.float64(value).view(np.int64)) & 1:
            value = math.nextafter(value, math.inf if exact > value else -math.inf)
    with np.errstate(over="ignore"):
        single = float(np.float32(value))
    if math.isinf(single):
        raise ValueError(f"{_show(text)} is too large for float32")
    return single


def slow_row(line: bytes, layout: Layout) -> tuple[list[float], float] | None:
    """Parse one line in plain Python: (features, class as in the file), or None for a blank line."""
    text = line.strip(b" \r\n") if layout.delimiter == b"\t" else line.strip()
    if not text:
        return None
    features, label = [0.0] * layout.d, math.nan
    if not layout.targets:
        first, *pairs = text.split()
        previous = 0
        for pair in pairs:
            index, colon, value = pair.partition(b":")
            if not colon or not index.isdigit() or not previous < int(index[:9]) <= layout.d:
                raise ValueError(f"{_show(pair)} is not index:value with ascending indices up to {layout.d}")
            previous = int(index)
            features[previous - 1] = exact_float32(value)
        return features, exact_float32(first)
    fields = text.split() if layout.delimiter == b" " else text.split(layout.delimiter)
    if len(fields) != len(layout.targets):
        raise ValueError(f"it has {len(fields)} fields instead of {len(layout.targets)}")
    for target, raw in zip(layout.targets, fields, strict=True):
        field = raw.strip()
        if target == LABEL:
            label = float(field[0]) if len(field) == 1 and field.isalpha() else exact_float32(field)
        elif layout.allow_nan and _NAN.fullmatch(field):
            features[target] = math.nan
        else:
            features[target] = exact_float32(field)
    return features, label


def parse_block(buf: np.ndarray, end: int, layout: Layout) -> tuple[list[Rows], int]:
    """Parse the whole lines in buf[:end] (uint8; at least PAD more bytes behind end; the last line ends in \\n).

    Returns blocks of rows in order, and the number of lines. Raises LineError.
    """
    assert buf.size >= end + PAD
    assert end == 0 or buf[end - 1] == 10
    targets = np.array(layout.targets, dtype=np.int64)
    # Enough for a block of lines as long as the first one; if the others are shorter, a further pair is made.
    capacity = end // after_line(buf, 0) + 16 if end else 0
    blocks: list[Rows] = []
    position = lines = 0
    while position < end:
        X = np.empty((capacity, layout.d), dtype=np.float32)
        y = np.empty(capacity, dtype=np.float32)
        first_line, filled = lines, 0
        blank: list[int] = []  # rows before each blank line
        while position < end and filled < capacity:
            if layout.targets:
                position, k = dense_rows(
                    buf, position, end, targets, layout.delimiter[0], layout.allow_nan, X[filled:], y[filled:]
                )
            else:
                position, k = libsvm_rows(buf, position, end, X[filled:], y[filled:])
            filled += k
            lines += k
            if position < end and filled < capacity:  # an odd line
                stop = after_line(buf, position)
                try:
                    row = slow_row(buf[position:stop].tobytes(), layout)
                except ValueError as error:
                    raise LineError(lines, str(error)) from None
                if row is not None:
                    X[filled], y[filled] = row
                    filled += 1
                else:
                    blank.append(filled)
                position = stop
                lines += 1
        blocks.append((X[:filled], _classes(y[:filled], layout, first_line, blank)))
    return blocks, lines


def _classes(raw: np.ndarray, layout: Layout, first_line: int, blank: list[int]) -> np.ndarray:
    """Classes (k,) uint8 of the labels found in the file."""
    y = np.empty(raw.size, dtype=np.uint8)
    bad = classes(raw, np.array(layout.labels, dtype=np.float32), y)
    if bad >= 0:
        line = first_line + bad + sum(rows <= bad for rows in blank)
        known = ", ".join(f"{value:g}" for value, _ in layout.labels)
        raise LineError(line, f"its class {raw[bad]:g} is not one of {known}")
    return y


def _show(text: bytes) -> str:
    """A field for an error message: short and printable."""
    return repr(text[:40].decode("ascii", "backslashreplace"))
