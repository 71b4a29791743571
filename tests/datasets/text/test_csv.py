"""The numeric text parser against slow oracles: exact fractions for numbers, plain Python for lines."""

import io
import itertools
import math
import threading
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2ul_fast.datasets.text.blocks import parse_text
from l2ul_fast.datasets.text.csv import LABEL, PAD, Layout, LineError, exact_float32, parse_block, slow_row
from l2ul_fast.errors import DataError

ONE = Layout(1, ((0, 0), (1, 1)), (LABEL, 0))
THREE = Layout(3, ((0, 0), (1, 1)), (LABEL, 0, 1, 2))


def parse(text: bytes, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    blocks, _ = parse_block(np.frombuffer(text + bytes(PAD), dtype=np.uint8), len(text), layout)
    return np.concatenate([X for X, _ in blocks]), np.concatenate([y for _, y in blocks])


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


@settings(deadline=None)  # the first example compiles
@given(st.lists(numbers, min_size=1, max_size=20))
def test_any_decimal_is_rounded_correctly(texts):
    X, _ = parse("".join(f"1,{t}\n" for t in texts).encode(), ONE)
    expected = [nearest_float32(t) for t in texts]
    for text, got, want in zip(texts, X[:, 0], expected, strict=True):
        assert got == want, text
        assert np.signbit(got) == text.startswith("-")


@settings(deadline=None)
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
        assert parse(f"0,{text}\n".encode(), ONE)[0][0, 0] == want


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50), st.sampled_from(["%.18e", "%.9g", "%r"]))
def test_float32_survive_printing(patterns, form):
    values = np.array(patterns, dtype=np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    text = "".join(f"0,{form % float(v)}\n" for v in values).encode()
    if values.size:
        assert same_bits(parse(text, ONE)[0][:, 0], values)


@settings(deadline=None)
@given(st.integers(0, 19), st.integers(0, 10**19 - 1), st.sampled_from("+-"), st.integers(0, 36))
def test_physics_form_with_leading_zeros(zeros, number, sign, exponent):
    """d.dddddddddddddddddde+dd has a kernel of its own; it must not lose digits when the first ones are 0."""
    all_digits = ("0" * zeros + f"{number:019d}")[:19]
    text = f"{all_digits[0]}.{all_digits[1:]}e{sign}{exponent:02d}"
    assert parse(f"0,{text}\n0,-{text}\n".encode(), ONE)[0][:, 0].tolist() == [
        nearest_float32(text),
        -nearest_float32(text),
    ]


def test_physics_form_near_the_middle():
    """The kernel uses 15 of the 19 digits: near the middle of two float32 values they must not decide.

    The other four weigh most just above a power of ten, up to 90 float64 steps if a power of two follows closely.
    """
    rng = np.random.default_rng(0)
    values = (10.0 ** rng.integers(-18, 19, 20_000) * rng.choice([1, 1.1, 10], 20_000) ** rng.random(20_000)).astype(
        "f4"
    )
    middles = (values.astype(float) + np.nextafter(values, np.float32(np.inf))) / 2
    near = (middles.view(np.int64) + rng.integers(-100, 101, middles.size)).view(np.float64)
    texts = []
    for value, last in zip(near, rng.choice([0, 5000, 9999], near.size), strict=True):
        mantissa, _, exponent = f"{value:.18e}".partition("e")
        texts.append(f"{mantissa[:-4]}{last:04d}e{exponent}")
    X, _ = parse("".join(f"0,{t}\n1,-{t}\n" for t in texts).encode(), ONE)
    expected = [nearest_float32(t) for t in texts]
    np.testing.assert_array_equal(X[::2, 0], expected)
    np.testing.assert_array_equal(X[1::2, 0], np.negative(expected))


def test_physics_form_with_any_byte_changed_or_inserted():
    """Whatever is still a number has its value, all else is refused."""
    good = b"-8.692932128906250000e-01"
    for at, new, skip in itertools.product(range(len(good) + 1), range(256), (0, 1)):
        line = b"1," + good[:at] + bytes([new]) + good[at + skip :]
        try:
            row = slow_row(line, ONE)
        except ValueError:
            row = None
        if new == 10:
            continue
        try:
            X = parse(line + b"\n", ONE)[0]
        except LineError:
            X = None
        assert (X is None) == (row is None), line
        assert X is None or same_bits(X[0], np.array(row[0], dtype=np.float32)), line


@pytest.mark.parametrize("text", ["16777217", "16777219", "16777217.0", "9007199791611905", "1e-45", "7e-46", "1e-60"])
def test_known_hard_cases(text):
    assert parse(f"0,{text}\n".encode(), ONE)[0][0, 0] == nearest_float32(text)


def test_tie_hidden_by_double_rounding():
    # 1 + 2**-24 + 1e-30 rounds to the tie 1 + 2**-24 in float64, and from there (wrongly) down to 1.
    text = "1.000000059604644775390625000001"
    assert np.float32(float(text)) == 1.0
    assert exact_float32(text.encode()) == float(np.nextafter(np.float32(1), np.float32(2)))
    assert parse(f"0,{text}\n".encode(), ONE)[0][0, 0] > 1.0


alphabet = b"0123456789.,-+eE \t\r:|NaNgx"
odd = st.sampled_from(
    ["", "NaN", "nan", "g", ".", "1.", ".5", "-", "1e", "1e+", "--1", "1.2.3", "0", "1", "1", "1", "-0.0"]
)
indexed = st.builds("{}:{}".format, st.integers(0, 4), numbers)
token = st.builds(
    "{}{}{}".format, st.sampled_from(["", "", " ", "\t", "\r"]), numbers | odd | indexed, st.sampled_from(["", "", " "])
)
lines = st.lists(st.sampled_from(alphabet), max_size=40).map(bytes) | st.builds(
    lambda delimiter, tokens: delimiter.join(tokens).encode(),
    st.sampled_from([",", "\t", " ", "|", "  "]),
    st.lists(token, min_size=1, max_size=5),
)
layouts = st.sampled_from(
    [
        THREE,
        Layout(2, ((1, 1),), (0, 1, LABEL), delimiter=b"\t"),
        Layout(2, ((1, 1),), (0, LABEL, 1), delimiter=b" "),
        Layout(2, ((1, 1),), (0, 1, LABEL), delimiter=b"|", allow_nan=True),
        Layout(3, ((1, 1),)),
    ]
)


@settings(max_examples=1000, deadline=None)
@given(lines, layouts)
def test_kernels_and_plain_python_agree_on_any_line(line, layout):
    """Whatever the kernels accept, plain Python accepts with the same numbers, and the other way round."""
    try:
        row = slow_row(line, layout)
    except ValueError:
        with pytest.raises(LineError):
            parse(line + b"\n", layout)
        return
    if row is None:
        assert len(parse(line + b"\n", layout)[0]) == 0
    elif row[1] not in {value for value, _ in layout.labels}:
        with pytest.raises(LineError):
            parse(line + b"\n", layout)
    else:
        assert same_bits(parse(line + b"\n", layout)[0][0], np.array(row[0], dtype=np.float32))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=60), st.integers(100, 400))
def test_blocks_and_threads_do_not_matter(rows, block):
    text = "\n".join("1," + ",".join(row) for row in rows).encode()  # no final line break
    want = parse(text + b"\n", THREE)[0]
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
        (b"1,2,3,4e", "not a number"),
        (b"7,2,3,4", "its class 7 is not one of 0, 1"),
        (b"1,2,\xff\x00,4", "not a number"),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 137])
def test_damaged_line_is_named(bad, reason, before):
    text = b"1,2,3,4\n" * before + bad + b"\n" + b"0,5,6,7\n" * 50
    with pytest.raises(DataError, match=rf"some\.csv, line {before + 1} is damaged: .*{reason}"):
        list(parse_text(io.BytesIO(text), THREE, "some.csv", threads=2, block=256))


def test_damaged_line_after_blank_lines():
    text = b"1,2,3,4\n\n\r\n1,2,3,4\n1,2\n"
    with pytest.raises(DataError, match="line 5 is damaged"):
        list(parse_text(io.BytesIO(text), THREE, "x"))
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


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failing_stream_is_named_after_the_rows_before_it(threads):
    class Failing(io.BytesIO):
        def readinto(self, buffer):
            if self.tell() == len(self.getvalue()):
                raise OSError("no more")
            return super().readinto(buffer)

    rows = parse_text(Failing(b"1,2,3,4\n" * 100), THREE, "some.csv", threads=threads, block=80)
    assert sum(len(next(rows)[0]) for _ in range(10)) == 100
    with pytest.raises(DataError, match=r"some\.csv is truncated or damaged .no more."):
        next(rows)


@pytest.mark.parametrize("text", [b"1, 2 ,3,\t4\r\n", b"1,2,3,4 \n", b"  1,2,3,4\n", b"\n1,2.,3e0,+4\n\n"])
def test_blanks_and_line_ends(text):
    X, y = parse(text, THREE)
    assert X.tolist() == [[2, 3, 4]]
    assert y.tolist() == [1]


def test_tabs_separate():
    layout = Layout(2, ((1, 1), (2, 0)), (0, 1, LABEL), delimiter=b"\t")
    X, y = parse(b"74\t85\t1\r\n7\t8\t2\n", layout)
    assert X.tolist() == [[74, 85], [7, 8]]
    assert y.tolist() == [1, 0]
    with pytest.raises(LineError):
        parse(b"74 85 1\n", layout)


def test_letters_as_class_only_in_the_class_column():
    layout = Layout(1, ((ord("g"), 1), (ord("h"), 0)), (0, LABEL))
    assert parse(b"1,g\n2,h\n", layout)[1].tolist() == [1, 0]
    for bad in (b"g,g\n", b"1,gg\n", b"1,x\n"):
        with pytest.raises(LineError):
            parse(bad, layout)


def test_libsvm():
    layout = Layout(4, ((1, 1), (0, 0), (-1, 0)))
    X, y = parse(b"1 1:0.5 4:-2e0\n-1 2:1\n0\n+1 1:1 2:2 3:3 4:4 \r\n", layout)
    assert X.tolist() == [[0.5, 0, 0, -2], [0, 1, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]]
    assert y.tolist() == [1, 0, 0, 1]
    for bad in (
        b"1 5:1\n",
        b"1 0:1\n",
        b"1 2:1 1:1\n",
        b"1 1\n",
        b"1 1:\n",
        b"1 a:1\n",
        b"1 1:1x\n",
        b"1 99999999999:1\n",
    ):
        with pytest.raises(LineError):
            parse(bad, layout)


def test_nan_only_where_allowed():
    layout = Layout(2, ((1, 1),), (0, 1, LABEL), delimiter=b"|", allow_nan=True)
    X, _ = parse(b"NaN|1|1\n2|nan|1\n", layout)
    assert math.isnan(X[0, 0])
    assert math.isnan(X[1, 1])
