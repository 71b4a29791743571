"""The numeric text parser against slow oracles: exact fractions for numbers, plain Python for lines."""

import io
import math
import threading
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2ul_fast.datasets.text.csv import Layout, LineError, _check_line, parse_block, parse_text
from l2ul_fast.errors import DataError

ONE = Layout(1, {0: 0, 1: 1}, class_first=True)
THREE = Layout(3, {0: 0, 1: 1}, class_first=True)
TABS = Layout(2, {1: 1, 2: 0}, delimiter="\t")
NAN = Layout(2, {1: 1}, delimiter="|", allow_nan=True)
LIBSVM = Layout(4, {1: 1, 0: 0, -1: 0}, class_first=True, libsvm=True)


def nearest_float32(text: str) -> np.float32:
    """Oracle: the float32 nearest to the exact fraction, ties to the even bit pattern."""
    exact = Fraction(text)
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    finite = [x for x in around if np.isfinite(x)]
    return min(finite, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


digits = st.text("0123456789", min_size=1, max_size=25)
numbers = st.builds(
    lambda sign, whole, fraction, e: sign + whole + ("" if fraction is None else "." + fraction) + e,
    st.sampled_from(["", "-", "+"]),
    digits,
    st.none() | digits | st.just(""),
    st.just("")
    | st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "-", "+"]), st.integers(0, 25)),
).filter(lambda text: abs(Fraction(text)) < Fraction(10) ** 38)


@given(st.lists(numbers, min_size=1, max_size=20))
def test_any_decimal_is_rounded_correctly(texts):
    X, _ = parse_block("".join(f"1,{t}\n" for t in texts).encode(), ONE)
    for text, got in zip(texts, X[:, 0], strict=True):
        assert got == nearest_float32(text), text
        assert np.signbit(got) == text.startswith("-")


@given(st.integers(1, 0x7F7FFFFE), st.sampled_from(["exact", "above", "below"]), st.booleans())
def test_halfway_between_two_floats(bits, side, scientific):
    """The hardest numbers: the exact middle of neighbouring float32 values, and a hair beside it."""
    low, high = np.array([bits, bits + 1], dtype=np.uint32).view(np.float32)
    with localcontext() as context:
        context.prec = 300
        middle = (Decimal(float(low)) + Decimal(float(high))) / 2
        hair = middle * Decimal("1e-40")
        value = {"exact": middle, "above": middle + hair, "below": middle - hair}[side]
        text = f"{value:.250e}" if scientific else f"{value:f}"
    even = low if bits % 2 == 0 else high
    want = {"exact": even, "above": high, "below": low}[side]
    if side != "exact" or Fraction(text) == (Fraction(float(low)) + Fraction(float(high))) / 2:
        assert parse_block(f"0,{text}\n".encode(), ONE)[0][0, 0] == want


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50), st.sampled_from(["%.18e", "%.9g", "%r"]))
def test_float32_survive_printing(patterns, form):
    values = np.array(patterns, dtype=np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    text = "".join(f"0,{form % float(v)}\n" for v in values).encode()
    if values.size:
        assert same_bits(parse_block(text, ONE)[0][:, 0], values)


@pytest.mark.parametrize(
    "text", ["16777217", "16777219", "9007199791611905", "1e-45", "7e-46", "1e-60", "1.000000059604644775390625000001"]
)
def test_known_hard_cases(text):
    assert parse_block(f"0,{text}\n".encode(), ONE)[0][0, 0] == nearest_float32(text)


ODD = ["", "1 2", "\xff", "NaN", "nan", "inf", "-infinity", "NA", "g", "1f", "0x1", "1_0", '"1"', ".", "1.", ".5", "-"]
ODD += ["1e", "1e+", "--1", "+-1", "1.2.3", "-0.0", "1e39", "0", "1", "1", "1"]
odd = st.sampled_from(ODD)
indexed = st.builds("{}:{}".format, st.integers(0, 5), numbers | odd)
token = st.builds(
    "{}{}{}".format, st.sampled_from(["", " ", "\t"]), numbers | odd | indexed, st.sampled_from(["", " "])
)
lines = st.text("0123456789.,-+eE \t:|NaNgx", max_size=40) | st.builds(
    lambda delimiter, tokens, end: delimiter.join(tokens) + end,
    st.sampled_from([",", "\t", " ", "|", "  "]),
    st.lists(token, min_size=1, max_size=5),
    st.sampled_from(["", "\r", " "]),
)
SPACES = Layout(2, {1: 1}, delimiter=" ")
LETTERS = Layout(1, {"g": 1, "h": 0})


@settings(max_examples=400, deadline=None)
@given(lines, st.sampled_from([THREE, TABS, SPACES, NAN, LETTERS, LIBSVM]))
def test_blocks_hold_exactly_the_lines_that_plain_python_accepts(line, layout):
    text = line.encode("latin-1")
    libsvm = layout.libsvm
    try:
        _check_line(text.strip(b" \r" if layout.delimiter == "\t" else b" \t\r"), layout, libsvm)
        sound = True
    except ValueError:
        sound = not text.strip()
    good = {b",": b"1,5,6,7", b"\t": b"5\t6\t1", b" ": b"5 6 1", b"|": b"5|6|1"}[layout.delimiter.encode()]
    good = b"1 1:5" if libsvm else b"5,g" if layout is LETTERS else good
    block = good + b"\n" + text + b"\n\n" + good + b"\n"
    if not sound:
        with pytest.raises(LineError) as caught:
            parse_block(block, layout, libsvm)
        assert caught.value.line == 1
        return
    X, y = parse_block(block, layout, libsvm)
    assert len(X) == len(y) == 2 + bool(text.strip())
    assert same_bits(X[0], X[-1])
    fields = text.split() if layout is SPACES else text.split(layout.delimiter.encode())
    if text.strip() and not libsvm:
        fields.pop(0 if layout.class_first else -1)
        for got, field in zip(X[1], fields, strict=True):
            field = field.strip().decode()
            assert np.isnan(got) if field.lower() == "nan" else got == nearest_float32(field)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=60), st.integers(100, 400))
def test_blocks_and_threads_do_not_matter(rows, block):
    text = "\n".join("1," + ",".join(row) for row in rows).encode()  # no final line break
    want = parse_block(text + b"\n", THREE)[0]
    for threads in (1, 3):
        got = list(parse_text(io.BytesIO(text), THREE, "x", threads=threads, block=block))
        assert same_bits(np.concatenate([X for X, _ in got]), want)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"1,2,3", "3 fields instead of 4"),
        (b"1,2,3,4,5", "5 fields instead of 4"),
        (b"1,2,,4", "'' is not a number"),
        (b"1,2,x,4", "'x' is not a number"),
        (b"1,2,1_0,4", "not a number"),
        (b"1,2,nan,4", "'nan' is not a number"),
        (b"1,2,inf,4", "'inf' is not a number"),
        (b"1,2,1e39,4", "too large"),
        (b"1,2,3,0x10", "not a number"),
        (b"7,2,3,4", "its class 7 is not one of 0, 1"),
        (b"1,2,\xff,4", "not a number"),
        (b"1,2,\xff\x00,4", "NUL byte"),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 137])
def test_damaged_line_is_named(bad, reason, before):
    text = b"1,2,3,4\n" * before + bad + b"\n" + b"0,5,6,7\n" * 50
    with pytest.raises(DataError, match=rf"some\.csv, line {before + 1} is damaged: .*{reason}"):
        list(parse_text(io.BytesIO(text), THREE, "some.csv", threads=2, block=256))


def test_damaged_line_after_blank_lines():
    with pytest.raises(DataError, match="line 5 is damaged"):
        list(parse_text(io.BytesIO(b"1,2,3,4\n\n\r\n1,2,3,4\n1,2\n"), THREE, "x"))
    with pytest.raises(DataError, match="line 4 is damaged: its class 3"):
        list(parse_text(io.BytesIO(b"1,2,3,4\n\n\n3,2,3,4\n"), THREE, "x"))


def test_a_line_without_end_is_not_read_into_memory():
    with pytest.raises(DataError, match="line 2 is damaged: it is longer than 1000 bytes"):
        list(parse_text(io.BytesIO(b"1,2,3,4\n" + b"1" * 5000), THREE, "x", block=1000))


def test_a_caller_may_stop_early():
    before = threading.active_count()
    rows = parse_text(io.BytesIO(b"1,2,3,4\n" * 1000), THREE, "x", threads=3, block=64)
    next(rows)
    rows.close()
    assert threading.active_count() == before


def test_memory_does_not_grow_with_the_file():
    """A reader that is never waited for would hold the whole text; it is a few blocks ahead at most."""

    class Endless(io.RawIOBase):
        taken = 0

        def read(self, size=-1):
            self.taken += size
            return b"1,2,3,4\n" * (size // 8)

    stream = Endless()
    rows = parse_text(stream, THREE, "x", threads=2, block=800)
    for _ in range(100):
        next(rows)
    assert stream.taken <= 800 * 110
    rows.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failing_stream_is_named_after_the_rows_before_it(threads):
    class Failing(io.BytesIO):
        def read(self, size=-1):
            if self.tell() == len(self.getvalue()):
                raise OSError("no more")
            return super().read(size)

    rows = parse_text(Failing(b"1,2,3,4\n" * 100), THREE, "some.csv", threads=threads, block=80)
    assert sum(len(next(rows)[0]) for _ in range(10)) == 100
    with pytest.raises(DataError, match=r"some\.csv is truncated or damaged .no more."):
        next(rows)


@pytest.mark.parametrize(
    "text", [b"1, 2 ,3,\t4\r\n", b"1,2,3,4 \n", b"  1,2,3,4\n", b"\n1,2.,3e0,+4\n \t\n", b"1,2,3,4"]
)
def test_blanks_and_line_ends(text):
    X, y = parse_block(text, THREE)
    assert X.tolist() == [[2, 3, 4]]
    assert y.tolist() == [1]


def test_delimiters():
    X, y = parse_block(b"74\t85\t1\r\n7\t8\t2\n", TABS)
    assert X.tolist() == [[74, 85], [7, 8]]
    assert y.tolist() == [1, 0]
    with pytest.raises(LineError):
        parse_block(b"74 85 1\n", TABS)
    assert parse_block(b" 74  85 \t 1\r\n7 8 1\n", SPACES)[0].tolist() == [[74, 85], [7, 8]]


def test_words_as_classes():
    assert parse_block(b"1,g\n2, h \n", LETTERS)[1].tolist() == [1, 0]
    assert parse_block(b"1,g\n2, Hello \n3,g", Layout(1, None))[1].tolist() == ["g", "Hello", "g"]
    for bad in (b"g,g\n", b"1,gg\n", b"1,x\n", b"1,\n"):
        with pytest.raises(LineError):
            parse_block(bad, LETTERS)
    with pytest.raises(LineError, match="no class"):
        parse_block(b"1,g\n2,\n", Layout(1, None))


def test_libsvm():
    text = b"1 1:0.5 4:-2e0\n-1 2:1\n\n0\n+1 1:1 2:2 3:3 4:4 \r\n"
    X, y = map(np.concatenate, zip(*parse_text(io.BytesIO(text), LIBSVM, "x"), strict=True))
    assert X.tolist() == [[0.5, 0, 0, -2], [0, 1, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]]
    assert y.tolist() == [1, 0, 0, 1]
    for bad in (b"5:1", b"0:1", b"2:1 1:1", b"2:1 2:1", b"1", b"1:", b"a:1", b"1:1x", b"99999999999:1", b"1:nan"):
        with pytest.raises(DataError, match="line 2 is damaged"):
            list(parse_text(io.BytesIO(b"1 1:2\n1 " + bad + b"\n0 1:3 2:4\n"), LIBSVM, "x"))


def test_nan_only_where_allowed():
    X, _ = parse_block(b"NaN|1|1\n2|nan|1\n", NAN)
    assert math.isnan(X[0, 0])
    assert math.isnan(X[1, 1])
    with pytest.raises(LineError, match="'inf' is not a number"):
        parse_block(b"NaN|1|1\n2|inf|1\n", NAN)
