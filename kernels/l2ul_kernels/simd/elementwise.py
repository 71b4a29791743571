"""Element by element in vector lanes, as LLVM IR: tanh, the logistic loss, dot products, the Adam update.

Library calls for tanh would take longer than all products of the MLP. Here exp(x) - 1 = 2^k (e^r - 1) + (2^k - 1) with
k = round(x / ln 2), |r| <= ln(2) / 2 and a Taylor polynomial for e^r - 1; for k = 0 nothing cancels, so tanh keeps its
relative accuracy near 0 (a few units of the last place everywhere: tests/kernels/mlp/test_mlp.py). NaN stays NaN.

Every function works on whole contiguous arrays of one size, a multiple of `lanes`; the dtype of the first array rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from l2ul_kernels.arrays import Array
from l2ul_kernels.codegen.jit import kernel
from l2ul_kernels.codegen.llvm import I64, PTR, Emit, data_pointer, transpose
from l2ul_kernels.codegen.twins import intrinsic, memory

i8 = types.int64
_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # few bits, so that its product with a small integer is exact
_LN2_LOW = 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the nearest integer in the low bits
#: ln 2 in two parts; the first has so few bits that its product with any exponent is exact.
_LOG2_HIGH, _LOG2_LOW = 0.693115234375, 3.19461849453094172321e-05


def _constant(e: Emit, value: float) -> ir.Constant:
    return ir.Constant(e.vector, [value] * e.lanes)


def _call(e: Emit, name: str, *arguments: ir.Value) -> ir.Value:
    """A vector intrinsic of LLVM that takes and gives vectors."""
    kind = ir.FunctionType(e.vector, [e.vector] * len(arguments))
    function = cgutils.get_or_insert_function(e.b.module, kind, f"llvm.{name}.v{e.lanes}f{e.itemsize * 8}")
    return e.b.call(function, arguments)


def _polynomial(e: Emit, x: ir.Value, coefficients: list[float]) -> ir.Value:
    """Lowest power first, by Estrin's rule: neighbours are paired, then pairs, so that the units do not wait."""
    terms: list[ir.Value] = [_constant(e, c) for c in coefficients]
    while len(terms) > 1:
        pairs = [e.fma(terms[i + 1], x, terms[i]) for i in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[2 * len(pairs) :]
        x = e.b.fmul(x, x)
    return terms[0]


def _exp_parts(e: Emit, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(2^k, e^r - 1) with x = k ln 2 + r."""
    bits, bias, degree = (52, 1023, 13) if e.itemsize == 8 else (23, 127, 7)
    magic = _constant(e, 1.5 * 2.0**bits)  # adding it rounds to an integer, which is left in the low bits
    shifted = e.fma(x, _constant(e, 1 / math.log(2)), magic)
    k = e.b.fsub(shifted, magic)
    r = e.fma(k, _constant(e, -_LOG2_HIGH), x)
    r = e.fma(k, _constant(e, -_LOG2_LOW), r)
    power = e.b.bitcast(e.b.shl(e.b.add(e.b.bitcast(shifted, e.ivector), e.isplat(bias)), e.isplat(bits)), e.vector)
    tail = _polynomial(e, r, [1 / math.factorial(i) for i in range(2, degree + 1)])
    return power, e.fma(tail, e.b.fmul(r, r), r)


def _smaller(e: Emit, x: ir.Value, limit: float) -> ir.Value:
    bound = _constant(e, limit)
    return e.b.select(e.b.fcmp_unordered("<", x, bound), x, bound)  # unordered: NaN stays


def _exp_minus(e: Emit, x: ir.Value) -> ir.Value:
    """exp(-x) for x >= 0; arguments where it would underflow are cut."""
    power, tail = _exp_parts(e, e.b.fneg(_smaller(e, x, 708.0 if e.itemsize == 8 else 87.0)))
    return e.fma(power, tail, power)


def _tanh(e: Emit, x: ir.Value) -> ir.Value:
    double = _smaller(e, e.b.fmul(_call(e, "fabs", x), _constant(e, 2.0)), 44.0)  # tanh(22) rounds to 1
    power, tail = _exp_parts(e, double)
    less_one = e.fma(power, tail, e.b.fsub(power, _constant(e, 1.0)))
    return _call(e, "copysign", e.b.fdiv(less_one, e.b.fadd(less_one, _constant(e, 2.0))), x)


def _log1p(e: Emit, u: ir.Value) -> ir.Value:
    """log(1 + u) for 0 <= u <= 1 as 2 artanh(u / (2 + u)), an argument of at most 1/3."""
    s = e.b.fdiv(u, e.b.fadd(u, _constant(e, 2.0)))
    terms = 17 if e.itemsize == 8 else 8
    odd = _polynomial(e, e.b.fmul(s, s), [2 / (2 * i + 1) for i in range(terms + 1)])
    return e.b.fmul(odd, s)


@kernel(fastmath=("contract",))
def exp_negative(x: float) -> float:
    """exp(x) for x <= 0 to about one unit of the last place (exp(-700) below -700), vectorising. NaN stays NaN."""
    x = -700.0 if x < -700.0 else x
    shifted = x * _LOG2E + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    q = 1.0 / 6227020800.0
    q = q * r + 1.0 / 479001600.0
    q = q * r + 1.0 / 39916800.0
    q = q * r + 1.0 / 3628800.0
    q = q * r + 1.0 / 362880.0
    q = q * r + 1.0 / 40320.0
    q = q * r + 1.0 / 5040.0
    q = q * r + 1.0 / 720.0
    q = q * r + 1.0 / 120.0
    q = q * r + 1.0 / 24.0
    q = q * r + 1.0 / 6.0
    q = q * r + 0.5
    q = q * r + 1.0
    q = q * r + 1.0
    return q * np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)


def _items(context: Any, builder: ir.IRBuilder, typ: Any, value: Any) -> ir.Value:
    """Number of elements of an array operand."""
    return context.make_array(typ)(context, builder, value).nitems


def _each(n_arrays: int, body: Callable[..., None]) -> Any:
    """codegen of f(array, ..., scalar, ...): body(e, places, scalars) for every vector of the arrays."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e, kinds = Emit(builder, signature.args[0].dtype), signature.args
        starts = [data_pointer(context, builder, kinds[i], args[i]) for i in range(n_arrays)]
        scalars = [e.splat(s) for s in args[n_arrays:]]
        n = _items(context, builder, kinds[0], args[0])
        with cgutils.for_range(builder, builder.sdiv(n, e.const(e.lanes))) as step:
            at = builder.mul(step.index, e.const(e.lanes))
            body(e, [e.at(s, at) for s in starts], scalars)
        return context.get_dummy_value()

    return codegen


@kernel()
def fill(out: Any, value: float) -> None:
    """out = value; a slice assignment would take numba a second to compile."""
    for i in range(out.size):
        out[i] = value


def _tanh_twin(A: Array) -> None:
    A[...] = np.tanh(A)


@intrinsic(twin=_tanh_twin)
def tanh_all(typingctx: Any, A: Any) -> Any:
    """A = tanh(A)."""

    def body(e: Emit, places: list[ir.Value], _: list[ir.Value]) -> None:
        e.b.store(_tanh(e, e.load(places[0], e.vector)), places[0], align=e.itemsize)

    return types.void(A), _each(1, body)


def _relu_twin(A: Array) -> None:
    A[A < 0] = 0


@intrinsic(twin=_relu_twin)
def relu_all(typingctx: Any, A: Any) -> Any:
    """A = max(A, 0)."""

    def body(e: Emit, places: list[ir.Value], _: list[ir.Value]) -> None:
        x, zero = e.load(places[0], e.vector), _constant(e, 0.0)
        e.b.store(e.b.select(e.b.fcmp_ordered("<", x, zero), zero, x), places[0], align=e.itemsize)

    return types.void(A), _each(1, body)


def _slope_twin(D: Array, A: Array, relu: float) -> None:
    D[...] = np.where(A > 0, D, 0) if relu else D * (1 - A * A)


@intrinsic(twin=_slope_twin)
def slope_all(typingctx: Any, D: Any, A: Any, relu: Any) -> Any:
    """D = D times the slope of the activation where its value is A: 1 - A^2, or 1 and 0 for relu != 0."""

    def body(e: Emit, places: list[ir.Value], scalars: list[ir.Value]) -> None:
        d, a = (e.load(p, e.vector) for p in places)
        zero = _constant(e, 0.0)
        step = e.b.select(e.b.fcmp_ordered(">", a, zero), d, zero)
        smooth = e.fma(e.b.fneg(e.b.fmul(a, a)), d, d)
        kind = e.b.fcmp_ordered("!=", scalars[0], zero)
        e.b.store(e.b.select(kind, step, smooth), places[0], align=e.itemsize)

    return types.void(D, A, D.dtype), _each(2, body)


def _multiply_twin(C: Array, A: Array, B: Array) -> None:
    C[...] = A * B


@intrinsic(twin=_multiply_twin)
def multiply_all(typingctx: Any, C: Any, A: Any, B: Any) -> Any:
    """C = A B."""

    def body(e: Emit, places: list[ir.Value], _: list[ir.Value]) -> None:
        a, b = (e.load(p, e.vector) for p in places[1:])
        e.b.store(e.b.fmul(a, b), places[0], align=e.itemsize)

    return types.void(C, A, B), _each(3, body)


def _add_twin(C: Array, A: Array, factor: float) -> None:
    C += factor * A


@intrinsic(twin=_add_twin)
def add_all(typingctx: Any, C: Any, A: Any, factor: Any) -> Any:
    """C = C + factor A."""

    def body(e: Emit, places: list[ir.Value], scalars: list[ir.Value]) -> None:
        c, a = (e.load(p, e.vector) for p in places)
        e.b.store(e.fma(scalars[0], a, c), places[0], align=e.itemsize)

    return types.void(C, A, C.dtype), _each(2, body)


def _exp_minus_twin(A: Array) -> None:
    A[...] = np.exp(-A)


@intrinsic(twin=_exp_minus_twin)
def exp_minus_all(typingctx: Any, A: Any) -> Any:
    """A = exp(-A), for A >= 0."""

    def body(e: Emit, places: list[ir.Value], _: list[ir.Value]) -> None:
        e.b.store(_exp_minus(e, e.load(places[0], e.vector)), places[0], align=e.itemsize)

    return types.void(A), _each(1, body)


def _logistic_twin(Z: Array, Y: Array, W: Array, Q: Array) -> None:
    u = np.exp(-np.abs(Z))
    far = 1 / (u + 1)
    s = np.where(Z >= 0, far, u * far)
    Z[...], Q[...] = W * (s - Y), W * (far * (u * far))


@intrinsic(twin=_logistic_twin)
def logistic_all(typingctx: Any, Z: Any, Y: Any, W: Any, Q: Any) -> Any:
    """Logits Z, labels Y (0 or 1), weights W -> Z = W (s - Y) and Q = W s (1 - s), s the probability of class 1."""

    def body(e: Emit, places: list[ir.Value], _: list[ir.Value]) -> None:
        z, y, w = (e.load(p, e.vector) for p in places[:3])
        u = _exp_minus(e, _call(e, "fabs", z))
        far = e.b.fdiv(_constant(e, 1.0), e.b.fadd(u, _constant(e, 1.0)))
        near = e.b.fmul(u, far)
        s = e.b.select(e.b.fcmp_ordered(">=", z, _constant(e, 0.0)), far, near)
        e.b.store(e.b.fmul(w, e.b.fsub(s, y)), places[0], align=e.itemsize)
        e.b.store(e.b.fmul(w, e.b.fmul(far, near)), places[3], align=e.itemsize)

    return types.void(Z, Y, W, Q), _each(4, body)


def _log_losses_twin(L: Array, Z: Array, Y: Array) -> None:
    L[...] = np.where(Z > 0, Z, 0) - Y * Z + np.log1p(np.exp(-np.abs(Z)))


@intrinsic(twin=_log_losses_twin)
def log_losses_all(typingctx: Any, L: Any, Z: Any, Y: Any) -> Any:
    """L = log(1 + exp(Z)) - Y Z, the log-loss of logit Z for label Y (0 or 1)."""

    def body(e: Emit, places: list[ir.Value], _: list[ir.Value]) -> None:
        z, y = (e.load(p, e.vector) for p in places[1:])
        tail = _log1p(e, _exp_minus(e, _call(e, "fabs", z)))
        above = e.b.select(e.b.fcmp_ordered(">", z, _constant(e, 0.0)), z, _constant(e, 0.0))
        e.b.store(e.b.fadd(e.b.fsub(above, e.b.fmul(y, z)), tail), places[0], align=e.itemsize)

    return types.void(L, Z, Y), _each(3, body)


def _adam_twin(
    T: Array, M: Array, V: Array, G: Array, scale: float, lam: float, rate: float, b1: float, b2: float, epsilon: float
) -> None:
    slope = scale * G + lam * T
    M[...] = b1 * M + (1 - b1) * slope
    V[...] = b2 * V + (1 - b2) * slope * slope
    T -= rate * M / (np.sqrt(V) + epsilon)


@intrinsic(twin=_adam_twin)
def adam_all(
    typingctx: Any, T: Any, M: Any, V: Any, G: Any, scale: Any, lam: Any, rate: Any, b1: Any, b2: Any, epsilon: Any
) -> Any:
    """One Adam step on T with gradient scale G + lam T; `rate` and `epsilon` already hold the bias corrections.

    M and V are the running means of the gradient and of its square; T -= rate M / (sqrt(V) + epsilon).
    """

    def body(e: Emit, places: list[ir.Value], scalars: list[ir.Value]) -> None:
        theta, m, v, g = (e.load(p, e.vector) for p in places)
        scale, lam, rate, b1, b2, epsilon = scalars
        one = _constant(e, 1.0)
        g = e.fma(scale, g, e.b.fmul(lam, theta))
        m = e.fma(b1, m, e.b.fmul(e.b.fsub(one, b1), g))
        v = e.fma(b2, v, e.b.fmul(e.b.fsub(one, b2), e.b.fmul(g, g)))
        step = e.b.fdiv(e.b.fmul(rate, m), e.b.fadd(_call(e, "sqrt", v), epsilon))
        for value, place in ((e.b.fsub(theta, step), places[0]), (m, places[1]), (v, places[2])):
            e.b.store(value, place, align=e.itemsize)

    s = T.dtype
    return types.void(T, M, V, G, s, s, s, s, s, s), _each(4, body)


@kernel(fastmath=("contract", "reassoc", "nsz"))
def adam_step(x: Any, slope: Any, mean: Any, square: Any, rate: float, scale: float) -> None:
    """The same for arrays of any length: x -= rate mean / (sqrt(scale square) + 1e-8), with the usual constants.

    `scale` corrects the young second moment. Divisions that cannot raise let it run in vectors.
    """
    for k in range(np.uint64(len(x))):
        mean[k] = 0.9 * mean[k] + 0.1 * slope[k]
        square[k] = 0.999 * square[k] + 0.001 * slope[k] * slope[k]
        x[k] -= rate * mean[k] / (np.sqrt(square[k] * scale) + 1e-8)


def _dot_twin(A: Array, B: Array) -> Any:
    return A.dtype.type(A @ B)


@intrinsic(twin=_dot_twin)
def dot(typingctx: Any, A: Any, B: Any) -> Any:
    """sum_i A_i B_i, in a fixed order: lane by lane, then the lanes by halves."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e, kinds = Emit(builder, signature.args[0].dtype), signature.args
        a, b = (data_pointer(context, builder, kinds[i], args[i]) for i in range(2))
        n = _items(context, builder, kinds[0], args[0])
        total = cgutils.alloca_once_value(builder, _constant(e, 0.0))
        with cgutils.for_range(builder, builder.sdiv(n, e.const(e.lanes))) as step:
            at = builder.mul(step.index, e.const(e.lanes))
            x, y = e.load(e.at(a, at), e.vector), e.load(e.at(b, at), e.vector)
            builder.store(e.fma(x, y, builder.load(total)), total)
        value, width = builder.load(total), e.lanes
        while width > 1:
            width //= 2
            low = e.shuffle(value, value, list(range(width)))
            value = builder.fadd(low, e.shuffle(value, value, list(range(width, 2 * width))))
        return builder.extract_element(value, ir.Constant(I64, 0))

    return A.dtype(A, B), codegen


def _copy_row_twin(out: Array, b: int, x: int, itemsize: int, d: int) -> None:
    out[b, :d] = memory(x, (d,), f"f{itemsize}")


@intrinsic(twin=_copy_row_twin)
def copy_row(typingctx: Any, out: Any, b: Any, x: Any, itemsize: Any, d: Any) -> Any:
    """out[b, :d] = the d numbers at address x, float32 or float64 as their itemsize says; out is 2-d, contiguous."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        to = Emit(builder, signature.args[0].dtype)
        array = context.make_array(signature.args[0])(context, builder, args[0])
        at = builder.mul(args[1], builder.extract_value(array.shape, 1))
        line = to.at(data_pointer(context, builder, signature.args[0], args[0]), at)
        row = builder.inttoptr(args[2], PTR)
        for dtype in (types.float32, types.float64):  # chosen at run time: two copies of every kernel would cost more
            source = Emit(builder, dtype)
            is_it = builder.icmp_signed("==", args[3], to.const(source.itemsize))
            with builder.if_then(is_it), cgutils.for_range(builder, args[4]) as step:
                value = source.load(source.at(row, step.index), source.scalar)
                if to.itemsize != source.itemsize:
                    value = (builder.fpext if to.itemsize == 8 else builder.fptrunc)(value, to.scalar)
                builder.store(value, to.at(line, step.index), align=to.itemsize)
        return context.get_dummy_value()

    return types.void(out, i8, i8, i8, i8), codegen


def _transpose_twin(out: Array, x: Array) -> None:
    out[...] = x.T


@intrinsic(twin=_transpose_twin)
def transpose_all(typingctx: Any, out: Any, x: Any) -> Any:
    """out (columns, rows) = x (rows, columns) transposed; both contiguous, rows and columns multiples of `lanes`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        e = Emit(builder, signature.args[0].dtype)
        to_base, base = (data_pointer(context, builder, signature.args[i], args[i]) for i in range(2))
        shape = context.make_array(signature.args[1])(context, builder, args[1]).shape
        rows, columns = (builder.extract_value(shape, i) for i in range(2))
        with cgutils.for_range(builder, builder.sdiv(rows, e.const(e.lanes))) as tall:
            b = builder.mul(tall.index, e.const(e.lanes))
            with cgutils.for_range(builder, builder.sdiv(columns, e.const(e.lanes))) as wide:
                k = builder.mul(wide.index, e.const(e.lanes))
                at = e.at(base, builder.add(builder.mul(b, columns), k))
                block = [e.load(e.at(at, builder.mul(e.const(i), columns)), e.vector) for i in range(e.lanes)]
                to = e.at(to_base, builder.add(builder.mul(k, rows), b))
                for i, value in enumerate(transpose(e, block)):
                    builder.store(value, e.at(to, builder.mul(e.const(i), rows)), align=e.itemsize)
        return context.get_dummy_value()

    return types.void(out, x), codegen
