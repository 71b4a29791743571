"""The compiled half of csvparse: kernels that read ordinary numeric lines and stop at anything else.

They never raise and never round in doubt: "understood" is False for a damaged number and for one that lies so close to
the middle between two float32 values that float64 arithmetic cannot decide. All helpers live in this one file because
numba's cache does not notice changes in other files.
"""
# mypy: ignore-errors
# (types are numba's business here)

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

PAD = 32  # bytes the kernels may look at (not use) beyond the end of a block
_ZERO = 120  # index of 10**0 in _POWERS
_POWERS = np.array([float(f"1e{k}") for k in range(-_ZERO, 100)])
_DIGITS = 17  # significant digits used; dropping the others changes a number by less than 2**-53 of itself
_CLOSE = 8  # in float64 steps; conversion, power, product and dropped digits together err by less than 5


@intrinsic
def _load8(typingctx, buf, i):
    """Eight bytes at any offset as one uint64 (little-endian), without bounds check; numba has no such load."""

    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        pointer = builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [args[1]])
        return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(buf, types.int64), codegen


@intrinsic
def _bits(typingctx, value):
    """The bit pattern of a float64 as int64."""
    return types.int64(types.float64), lambda context, builder, sig, args: builder.bitcast(args[0], ir.IntType(64))


if numba.config.DISABLE_JIT:  # intrinsics exist only in compiled code

    def _load8(buf, i):
        return np.frombuffer(buf[i : i + 8].tobytes(), dtype="<u8")[0]

    def _bits(value):
        return int(np.float64(value).view(np.int64))


_U = np.uint64  # numba turns uint64 with int64 into float64: every constant next to a uint64 has to be one


@numba.njit(nogil=True, cache=True, inline="always")
def _eight(v):
    """Value of eight ASCII digits in one word, and a word that is not 0 if one of them is no digit."""
    digits = v - _U(0x3030303030303030)
    bad = ((v + _U(0x4646464646464646)) | digits) & _U(0x8080808080808080)
    pairs = digits * _U(10) + (digits >> _U(8))
    mask = _U(0x000000FF000000FF)
    high = (pairs & mask) * _U(0x000F424000000064)
    low = ((pairs >> _U(16)) & mask) * _U(0x0000271000000001)
    return np.int64(((high + low) >> _U(32)) & _U(0xFFFFFFFF)), bad


@numba.njit(nogil=True, cache=True, inline="always")
def _settled(value):
    """Whether value >= 0, known to a few float64 steps, rounds to a normal float32 beyond doubt."""
    low = _bits(value) & ((1 << 29) - 1)  # the bits that float32 does not have; half way is 1 << 28
    return (abs(low - (1 << 28)) > _CLOSE) & (value > 1.2e-38) & (value < 3.4e38)


@numba.njit(nogil=True, cache=True, inline="always")
def _at(buf, i):
    """buf[i] for i >= 0: an unsigned index spares the test for a negative one."""
    return buf[np.uint64(i)]


@numba.njit(nogil=True, cache=True, inline="always")
def _scientific(buf, i):
    """Parse d.dddddddddddddddddde+dd (the form of HIGGS and SUSY) at i: (value, index after it, understood)."""
    negative = _at(buf, i) == 45
    i += np.int64(negative)
    first = np.int64(_at(buf, i)) - 48
    a, bad_a = _eight(_load8(buf, i + 2))
    b, bad_b = _eight(_load8(buf, i + 10))
    tail = _load8(buf, i + 18)  # d d e + d d and two bytes that follow
    digits = tail & _U(0x0000FFFF0000FFFF)
    bad = bad_a | bad_b
    bad |= ((digits + _U(0x0000464600004646)) | (digits - _U(0x0000303000003030))) & _U(0x0000808000008080)
    sign = (tail >> _U(24)) & _U(0xFF)
    bad |= _U(first < 0) | _U(first > 9) | _U(_at(buf, i + 1) != 46) | _U(((tail >> _U(16)) & _U(0xFF)) != _U(101))
    bad |= _U(sign != _U(43)) & _U(sign != _U(45))
    e = np.int64((tail >> _U(32)) & _U(15)) * 10 + np.int64((tail >> _U(40)) & _U(15))
    e = -e if sign == _U(45) else e
    w = first * 10000000000000000 + a * 100000000 + b
    if bad != _U(0):  # all conditions in one branch: it is taken never or always, so it costs nothing
        return 0.0, i, False
    value = np.float64(w) * _POWERS[_ZERO - 16 + e]
    # The last two digits are dropped, which is only harmless behind a first digit above 0.
    zero = (w == 0) & ((tail & _U(0xFFFF)) == _U(0x3030))
    return (-value if negative else value), i + 24, zero | ((first > 0) & _settled(value))


@numba.njit(nogil=True, cache=True)
def _number(buf, i):
    """Parse any plain decimal number at i: (value, index after it, understood)."""
    negative = _at(buf, i) == 45
    if negative or _at(buf, i) == 43:
        i += 1
    w = np.int64(0)  # the significant digits
    used = 0  # how many they are
    seen = 0
    exponent = np.int64(0)
    fraction = False
    while True:
        c = np.int64(_at(buf, i)) - 48
        if c >= 0 and c <= 9:
            if used < _DIGITS:
                w = w * 10 + c
                used += w != 0
                exponent -= fraction
            else:
                exponent += not fraction
            seen += 1
        elif c == -2 and not fraction:  # the decimal point
            fraction = True
        else:
            break
        i += 1
    if seen == 0:
        return 0.0, i, False
    if _at(buf, i) == 101 or _at(buf, i) == 69:
        minus = _at(buf, i + 1) == 45
        i += 2 if minus or _at(buf, i + 1) == 43 else 1
        start = i
        e = np.int64(0)
        while _at(buf, i) >= 48 and _at(buf, i) <= 57:
            e = min(e * 10 + np.int64(_at(buf, i)) - 48, 100000)
            i += 1
        if i == start:
            return 0.0, i, False
        exponent += -e if minus else e
    if exponent < -99 or exponent > 99:
        return 0.0, i, w == 0 and not negative
    value = np.float64(w) * _POWERS[_ZERO + exponent]
    exact = exponent == 0 and w < 1 << 53
    return (-value if negative else value), i, w == 0 or _settled(value) or exact


@numba.njit(nogil=True, cache=True)
def _blanks(buf, i, delimiter):
    """Index of the first byte from i on that is no blank, tab (unless tabs separate) or carriage return."""
    while _at(buf, i) == 32 or _at(buf, i) == 13 or (_at(buf, i) == 9 and delimiter != 9):
        i += 1
    return i


@numba.njit(nogil=True, cache=True)
def _plain(buf, i, delimiter, letter, nan):
    """Parse what _scientific does not: blanks, then any number, a letter (if letter) or NaN (if nan)."""
    i = _blanks(buf, i, delimiter)
    if letter and _at(buf, i) >= 65:
        return np.float64(_at(buf, i)), i + 1, True
    if nan and _at(buf, i) == 78 and _at(buf, i + 1) == 97 and _at(buf, i + 2) == 78:
        return np.nan, i + 3, True
    return _number(buf, i)


@numba.njit(nogil=True, cache=True)
def dense_rows(buf, i, end, targets, delimiter, nan, X, y):
    """Parse lines from i on until end, a full X or an odd line: (index of the next line, rows written)."""
    columns = targets.size
    row = 0
    while i < end and row < X.shape[0]:
        line = i
        for c in range(columns):
            target = targets[c]
            value, after, ok = _scientific(buf, i)
            if not ok:
                value, after, ok = _plain(buf, i, delimiter, target < 0, nan)
                if not ok:
                    return line, row
            i = after
            if target >= 0:
                X[row, target] = value
            else:
                y[row] = value
            separator = delimiter if c + 1 < columns else 10
            if _at(buf, i) != separator:
                i = _blanks(buf, i, delimiter)
                if _at(buf, i) != separator:
                    return line, row
            i += 1
        row += 1
    return i, row


@numba.njit(nogil=True, cache=True)
def libsvm_rows(buf, i, end, X, y):
    """The same for libsvm lines; features that a line leaves out are 0."""
    row = 0
    while i < end and row < X.shape[0]:
        line = i
        y[row], i, ok = _scientific(buf, i)
        if not ok:
            y[row], i, ok = _number(buf, line)
        if not ok:
            return line, row
        X[row] = 0.0
        previous = 0
        while True:
            if _at(buf, i) != 32 and _at(buf, i) != 13 and _at(buf, i) != 10:
                return line, row
            while _at(buf, i) == 32 or _at(buf, i) == 13:
                i += 1
            if _at(buf, i) == 10:
                break
            index = 0
            while _at(buf, i) >= 48 and _at(buf, i) <= 57 and index < 100000000:
                index = index * 10 + np.int64(_at(buf, i)) - 48
                i += 1
            if _at(buf, i) != 58 or index <= previous or index > X.shape[1]:
                return line, row
            previous = index
            value, after, ok = _scientific(buf, i + 1)
            if not ok:
                value, after, ok = _number(buf, i + 1)
            if not ok:
                return line, row
            X[row, index - 1] = value
            i = after
        i += 1
        row += 1
    return i, row


@numba.njit(nogil=True, cache=True)
def after_line(buf, i):
    """Index after the line break that follows i; there must be one."""
    while _at(buf, i) != 10:
        i += 1
    return i + 1
