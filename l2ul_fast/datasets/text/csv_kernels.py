"""The compiled half of csvparse: kernels that read ordinary numeric lines and stop at anything else.

They never raise and never round in doubt: "understood" is False for a damaged number and for one that lies so close to
the middle between two float32 values that float64 arithmetic cannot decide. All helpers live in this one file because
numba's cache does not notice changes in other files.
"""
# mypy: ignore-errors
# (types are numba's business here)

import re

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

PAD = 32  # bytes the kernels may look at (not use) beyond the end of a block
_ZERO = 120  # index of 10**0 in _POWERS
_POWERS = np.array([float(f"1e{k}") for k in range(-_ZERO, 100)])
_DIGITS = 17  # significant digits _number uses; dropping the others changes a number by less than 2**-53 of itself
# How near the middle between two float32 values is too near to call, in float64 steps. _scientific errs by less than
# 93: its 15 digits drop less than 1e-14 of the number, 91 steps; the power and the product round once each.
_CLOSE = 128
_FORM = b"0.000000000000000000e+00"  # what HIGGS and SUSY are written in, after the sign


@intrinsic
def _load8(typingctx, buf, i):
    """Eight bytes at any offset as one uint64 (little-endian), without bounds check; numba has no such load."""

    def codegen(context, builder, sig, args):
        pointer = builder.bitcast(_address(context, builder, sig, args), ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(buf, types.int64), codegen


@intrinsic
def _fifteen(typingctx, buf, i):
    """(value of the first 15 digits at i, whether the 24 bytes at i have the form of _FORM), by SIMD.

    The IR is plain vector arithmetic, so it compiles for any processor; on x86 every line is one or two instructions.
    """

    def codegen(context, b, sig, args):
        text = b.load(b.bitcast(_address(context, b, sig, args), _vector(8, 32).as_pointer()), align=1)
        digits = b.sub(text, _constant(8, _FORM.ljust(32, b"\0")))  # 0 for the point as well
        # Each byte has a mask and a limit: a digit up to 9, the exponent's first up to 1, the rest exactly as in _FORM;
        # the mask lets "-" (2 above "+") through. The last 8 bytes are not looked at.
        masks = [253 if c == ord("+") else 255 for c in _FORM] + [0] * 8
        limits = [9 if c == ord("0") else 0 for c in _FORM] + [0] * 8
        limits[22] = 1
        fits = b.icmp_unsigned("<=", b.and_(digits, _constant(8, masks)), _constant(8, limits))
        fits = b.icmp_unsigned("==", b.bitcast(fits, ir.IntType(32)), ir.Constant(ir.IntType(32), 0xFFFFFFFF))
        # Neighbours are joined three times: x = low + high << k becomes low * scale + high. One product does it: its
        # upper half is that sum, and what exceeds the lane is lost. The first pair is a digit and the point.
        x = b.shuffle_vector(digits, ir.Constant(_vector(8, 32), ir.Undefined), _constant(32, range(16)))
        for bits, scale in ((16, 10), (32, 100)):
            lanes = 128 // bits
            factors = [scale << bits // 2 | 1] * lanes
            if bits == 16:
                factors[0] = 1 << 8
            x = b.mul(b.bitcast(x, _vector(bits, lanes)), _constant(bits, factors))
            x = b.lshr(x, _constant(bits, [bits // 2] * lanes))
        x = b.bitcast(x, _vector(64, 2))  # few processors multiply 64-bit lanes, so the last step is written out
        low = b.mul(b.and_(x, _constant(64, [0xFFFFFFFF] * 2)), _constant(64, [10000] * 2))
        x = b.add(low, b.lshr(x, _constant(64, [32] * 2)))
        high, low = (b.extract_element(x, ir.Constant(ir.IntType(32), k)) for k in (0, 1))
        return context.make_tuple(
            b, sig.return_type, [b.add(b.mul(high, ir.Constant(ir.IntType(64), 10**8)), low), fits]
        )

    return types.Tuple((types.int64, types.boolean))(buf, types.int64), codegen


def _address(context, builder, sig, args):
    """IR of the address of buf[i] for the intrinsics' arguments (buf, i)."""
    data = context.make_array(sig.args[0])(context, builder, args[0]).data
    return builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [args[1]])


def _vector(bits, lanes):
    return ir.VectorType(ir.IntType(bits), lanes)


def _constant(bits, values):
    """IR constant: a vector of integers of that many bits."""
    values = [ir.Constant(ir.IntType(bits), value) for value in values]
    return ir.Constant(ir.VectorType(ir.IntType(bits), len(values)), values)


@intrinsic
def _bits(typingctx, value):
    """The bit pattern of a float64 as int64."""
    return types.int64(types.float64), lambda context, builder, sig, args: builder.bitcast(args[0], ir.IntType(64))


if numba.config.DISABLE_JIT:  # intrinsics exist only in compiled code

    def _load8(buf, i):
        return np.frombuffer(buf[i : i + 8].tobytes(), dtype="<u8")[0]

    def _fifteen(buf, i):
        text = buf[i : i + 24].tobytes()
        fits = re.fullmatch(rb"\d\.\d{18}e[+-][01]\d", text) is not None
        return (np.int64(int(text[:1] + text[2:16])) if fits else np.int64(0)), fits

    def _bits(value):
        return int(np.float64(value).view(np.int64))


_U = np.uint64  # numba turns uint64 with int64 into float64: every constant next to a uint64 has to be one


@numba.njit(nogil=True, cache=True, inline="always")
def _clear(value):
    """Whether value, known to less than _CLOSE float64 steps, rounds to float32 beyond doubt, if to a normal one."""
    beside = (_bits(value) - (1 << 28) + _CLOSE) & ((1 << 29) - 1)  # of the 29 bits float32 lacks, half way is 1 << 28
    return beside > 2 * _CLOSE


@numba.njit(nogil=True, cache=True, inline="always")
def _at(buf, i):
    """buf[i] for i >= 0: an unsigned index spares the test for a negative one."""
    return buf[np.uint64(i)]


def _signed_powers():
    """10**(e - 14) for e = -19..19, then the same negative; bits of the index: number < 0, e < 0, tens, ones of e."""
    powers = np.zeros(128)
    for e in range(20):
        for minus in (0, 1):
            key = minus << 5 | e // 10 << 4 | e % 10
            powers[key] = float(f"1e{(-e if minus else e) - 14}")
            powers[64 | key] = -powers[key]
    return powers


_SIGNED_POWERS = _signed_powers()


@numba.njit(nogil=True, cache=True, inline="always")
def _scientific(buf, i):
    """Parse d.dddddddddddddddddde+dd (the form of HIGGS and SUSY) at i: (value, index after it, understood)."""
    negative = np.uint64(_at(buf, i) == 45)
    i += np.int64(negative)
    w, fits = _fifteen(buf, i)
    tail = _load8(buf, i + 16)  # d d d d e + d d
    # Of the exponent only a bit of its sign, of its first digit and four of its second matter; the product brings them
    # together at the top.
    key = ((tail & _U(0x0F01040000000000)) * _U(1 << 21 | 1 << 14 | 1 << 2)) >> _U(58)
    value = np.float64(w) * _SIGNED_POWERS[key | negative << _U(6)]
    # Dropping four digits is harmless behind a first digit above 0, and if they are 0.
    whole = (w >= 10**14) | ((tail & _U(0xFFFFFFFF)) == _U(0x30303030))
    return value, i + 24, fits & whole & _clear(value)


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
    normal = value > 1.2e-38 and value < 3.4e38
    exact = exponent == 0 and w < 1 << 53
    return (-value if negative else value), i, w == 0 or (normal and _clear(value)) or exact


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
def classes(raw, labels, y):
    """y[i] = the class of raw[i] by labels (k, 2), pairs of number and class: index of the first unknown one, or -1."""
    for i in range(raw.size):
        k = 0
        while k < labels.shape[0] and raw[i] != labels[k, 0]:
            k += 1
        if k == labels.shape[0]:
            return i
        y[i] = labels[k, 1]
    return -1


@numba.njit(nogil=True, cache=True)
def after_line(buf, i):
    """Index after the line break that follows i; there must be one."""
    while _at(buf, i) != 10:
        i += 1
    return i + 1


@numba.njit(nogil=True, cache=True)
def after_last_line(buf, end):
    """Index after the last line break in buf[:end], or 0."""
    while end > 0 and _at(buf, end - 1) != 10:
        end -= 1
    return end
