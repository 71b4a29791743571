"""Blocks of rows from numeric text: numbers between commas, tabs or blanks, and libsvm's index:value lines.

pyarrow reads the numbers: each becomes the float32 nearest to its decimal text, and anything else is refused. Only a
block that it refuses, or that holds something no dataset may hold, is read again in plain Python, which names the line.
"""

import codecs
import contextlib
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from l2ul_fast.datasets.text.rawfiles import READ_ERRORS, RawData, Rows, Seen, open_text
from l2ul_fast.errors import DataError
from l2ul_kernels.threads import thread_limit

BLOCK_BYTES = 4 << 20
#: Blocks parsed at a time: unpacking, one thread's work, cannot feed more.
MOST_THREADS = 8
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LIBSVM = re.compile(rb"(?:[^ :\r\n]++(?: ++\d{1,7}:[^ :\r\n]++)*+[ \r]*+\n)*+")


@dataclass(frozen=True)
class Layout:
    """What a line holds: d numbers and a class, before them (class_first) or behind them.

    labels: from the class in the file, numbers or words, to 0, 1, ...; None takes any class, as a word. The delimiter
    " " stands for any run of blanks and tabs; with the others, blanks around a field are ignored. libsvm: lines may be
    index:value pairs instead.
    """

    d: int
    labels: Mapping[float | str, int] | None
    class_first: bool = False
    delimiter: str = ","
    allow_nan: bool = False
    libsvm: bool = False

    @property
    def words(self) -> bool:
        """Whether classes are words."""
        return self.labels is None or isinstance(next(iter(self.labels)), str)

    def __call__(self, raw: RawData, split_seed: int, seen_text: Seen | None, seen_file: Seen | None) -> Iterator[Rows]:
        """The rows of an original file."""
        with open_text(raw, seen_file) as stream:
            yield from parse_text(stream, self, str(raw.path), seen=seen_text)


class LineError(ValueError):
    """A line that cannot be used; `line` is its index within the block, from 0."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def parse_block(text: bytes, layout: Layout, libsvm: bool = False) -> Rows:
    """Rows of whole lines, blank ones left out; LineError says what is wrong where."""
    import pyarrow as pa  # here: whoever has HDF5 files already needs no parser

    read = _libsvm_rows if libsvm else _dense_rows
    # to pyarrow, a lone carriage return ends a line; NumPy's words lose their last NUL bytes
    lone = b"\r" in text and text.count(b"\r") != text.count(b"\r\n")
    if not lone and b"\0" not in text:
        with contextlib.suppress(pa.ArrowInvalid, ValueError):
            return read(text, layout)
    _name_bad_line(text, layout, libsvm)
    try:  # every line is sound: only blanks and blank lines can have been in the way
        return read(b"".join(line.strip() + b"\n" for line in text.split(b"\n") if line.strip()), layout)
    except (pa.ArrowInvalid, ValueError) as error:
        raise LineError(0, f"the lines from here on cannot be read: {str(error).splitlines()[0]}") from None


def _columns(text: bytes, types: list[Any], delimiter: str) -> list[Any]:
    import pyarrow as pa
    from pyarrow import csv

    if not text.strip():
        return [pa.array([], kind) for kind in types]
    names = [str(j) for j in range(len(types))]
    table = csv.read_csv(
        pa.py_buffer(text),
        csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
        csv.ParseOptions(delimiter=delimiter, quote_char=False),
        csv.ConvertOptions(column_types=dict(zip(names, types, strict=True)), null_values=[], check_utf8=False),
    )
    return [column.combine_chunks() for column in table.columns]


def _dense_rows(text: bytes, layout: Layout) -> Rows:
    import pyarrow as pa

    if layout.delimiter == " ":
        text = re.sub(rb"[ \t]+", b" ", re.sub(rb"(?m)^[ \t]+|[ \t\r]+$", b"", text))
    kind = pa.binary() if layout.words else pa.float32()
    place = 0 if layout.class_first else layout.d
    columns = _columns(text, [kind if j == place else pa.float32() for j in range(layout.d + 1)], layout.delimiter)
    raw = columns.pop(place)
    X = np.empty((len(raw), layout.d), np.float32)
    for j, column in enumerate(columns):
        X[:, j] = column.to_numpy()
    return _checked(X, raw, layout)


def _libsvm_rows(text: bytes, layout: Layout) -> Rows:
    """Features that a line leaves out are 0."""
    import pyarrow as pa

    if not text.endswith(b"\n"):
        text += b"\n"
    if not _LIBSVM.fullmatch(text):
        raise ValueError("not all lines have the form class index:value index:value ...")
    kind, characters = [pa.float32()], np.frombuffer(text, np.uint8)
    numbers = _columns(text.translate(bytes.maketrans(b" :\r", b"\n\n\n")), kind, ",")[0].to_numpy()
    ends = np.flatnonzero(characters == ord("\n"))
    pairs = np.diff(np.searchsorted(np.flatnonzero(characters == ord(":")), ends), prepend=0)
    first = np.cumsum(2 * pairs + 1) - 2 * pairs - 1  # where the numbers of each line begin
    values = np.delete(numbers, first).reshape(-1, 2)
    row, column = np.repeat(np.arange(len(ends)), pairs), values[:, 0].astype(np.int64) - 1
    if column.size and (column.min() < 0 or column.max() >= layout.d or (np.diff(row * layout.d + column) <= 0).any()):
        raise ValueError("indices must ascend")
    X = np.zeros((len(ends), layout.d), np.float32)
    X[row, column] = values[:, 1]
    return _checked(X, numbers[first], layout)


def _checked(X: np.ndarray, raw: Any, layout: Layout) -> Rows:
    """X with the classes of `raw`; ValueError for anything that only text can hold."""
    if not (np.isfinite(X) | np.isnan(X) if layout.allow_nan else np.isfinite(X)).all():
        raise ValueError("NaN or infinity")
    if layout.words:
        coded = raw.dictionary_encode()
        found = [word.decode("utf-8", "backslashreplace").strip() for word in coded.dictionary.to_pylist()]
        raw = coded.indices.to_numpy()
        if layout.labels is None:
            if "" in found:
                raise ValueError("empty class")
            return X, np.array(found, dtype=np.str_)[raw] if found else np.empty(0, np.str_)
        values = {k: layout.labels.get(word) for k, word in enumerate(found)}
    else:
        assert layout.labels is not None
        raw, values = np.asarray(raw), dict(layout.labels)  # type: ignore[arg-type]
    y, known = np.zeros(len(raw), np.uint8), np.zeros(len(raw), bool)
    for value, label in values.items():
        if label is not None:
            chosen = raw == value
            y[chosen], known = label, known | chosen
    if not known.all():
        raise ValueError("unknown class")
    return X, y


def _name_bad_line(text: bytes, layout: Layout, libsvm: bool) -> None:
    """LineError for the first line that breaks a rule, if one does."""
    for number, line in enumerate(text.split(b"\n")):
        if line.strip():
            try:
                _check_line(line.strip(b" \r" if layout.delimiter == "\t" else b" \t\r"), layout, libsvm)
            except ValueError as error:
                raise LineError(number, str(error)) from None


def _check_line(line: bytes, layout: Layout, libsvm: bool) -> None:
    """ValueError unless the line follows the layout: what pyarrow accepts, in plain Python."""
    if b"\r" in line:
        raise ValueError("it has a carriage return that is no line end")
    if b"\0" in line:
        raise ValueError("it has a NUL byte")
    if libsvm:
        label, *pairs = line.split()
        indices = [0]
        for pair in pairs:
            index, _, value = pair.partition(b":")
            indices.append(int(index[:9]) if index.isdigit() else 0)
            if not value or not indices[-2] < indices[-1] <= layout.d:
                raise ValueError(f"{_show(pair)} is not index:value with ascending indices up to {layout.d}")
            check_number(value)
    else:
        fields = line.split() if layout.delimiter == " " else line.split(layout.delimiter.encode())
        if len(fields) != layout.d + 1:
            raise ValueError(f"it has {len(fields)} fields instead of {layout.d + 1}")
        label = fields.pop(0 if layout.class_first else -1).strip(b" \t\r")
        for field in fields:
            check_number(field.strip(b" \t\r"), layout.allow_nan)
    if layout.labels is None:
        if not label:
            raise ValueError("it has no class")
    else:
        found = label.decode("utf-8", "backslashreplace") if layout.words else check_number(label)
        if found not in layout.labels:
            known = ", ".join(f"{key:g}" if isinstance(key, float | int) else key for key in layout.labels)
            raise ValueError(f"its class {label.decode('ascii', 'backslashreplace')[:40]} is not one of {known}")


def check_number(text: bytes, allow_nan: bool = False) -> float:
    """The number that a field holds; ValueError if it is none, or too large for float32."""
    if allow_nan and text.lower() == b"nan":
        return math.nan
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{_show(text)} is not a number")
    with np.errstate(over="ignore"):
        if np.isinf(np.float32(float(text))):
            raise ValueError(f"{_show(text)} is too large for float32")
    return float(text)


def _show(text: bytes) -> str:
    """A field for an error message: short and printable."""
    return repr(text[:40].decode("ascii", "backslashreplace"))


def refuse_wide(text: bytes) -> None:
    """LineError for the beginning of a file in UTF-16 or UTF-32, or of no text at all."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or 4 * text[:256].count(0) > len(text[:256]):
        raise LineError(0, "it is no ASCII or UTF-8 text (UTF-16 perhaps): save the file in another encoding")


def _whole_lines(stream: BinaryIO, size: int, seen: Seen | None) -> Iterator[bytes]:
    """The text in blocks of whole lines."""
    rest, begun = b"", False
    while piece := stream.read(size - len(rest)):
        if seen is not None:
            seen(memoryview(piece))
        if not begun:
            refuse_wide(piece)
            piece, begun = piece.removeprefix(codecs.BOM_UTF8), True
        piece = rest + piece
        cut = piece.rfind(b"\n") + 1
        if cut == 0 and len(piece) >= size:
            raise LineError(0, f"it is longer than {size} bytes")
        rest = piece[cut:]
        if cut:
            yield piece[:cut]
    if rest:
        yield rest


def parse_text(
    stream: BinaryIO,
    layout: Layout,
    name: str,
    *,
    threads: int | None = None,
    block: int = BLOCK_BYTES,
    seen: Seen | None = None,
    line: int = 1,
) -> Iterator[Rows]:
    """Parse numeric text in flat memory; yields X (k, d) float32 and y (k,) in file order.

    name stands for the file in messages; a damaged line is a DataError with its number, counted from `line`. seen is
    called with every piece of text in order (for checksums). One thread reads and unpacks, `threads` parse.
    """
    threads = threads or min(MOST_THREADS, thread_limit())
    texts = _whole_lines(stream, block, seen)
    jobs: deque[Future[Any]] = deque()  # in file order
    libsvm: bool | None = None

    def parse(text: bytes, libsvm: bool) -> tuple[Rows, int]:
        return parse_block(text, layout, libsvm), text.count(b"\n")

    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(threads) as parsers:
        reading: Future[bytes | None] | None = reader.submit(next, texts, None)
        try:
            while reading is not None or jobs:
                while reading is not None and len(jobs) <= threads:
                    if reading.exception() is not None:
                        jobs.append(reading)  # raised when all rows before it have been handed out
                        reading = None
                    elif (text := reading.result()) is None:
                        reading = None
                    else:
                        if libsvm is None:
                            libsvm = layout.libsvm and b":" in text.partition(b"\n")[0]
                        reading = reader.submit(next, texts, None)
                        jobs.append(parsers.submit(parse, text, libsvm))
                if jobs:
                    rows, lines = jobs.popleft().result()
                    yield rows
                    line += lines
        except LineError as error:
            raise DataError(f"{name}, line {line + error.line} is damaged: {error}") from None
        except READ_ERRORS as error:
            raise DataError(f"{name} is truncated or damaged ({error}): get it again") from error
