"""Arrays that do not count references: naming one, or cutting it up, costs nothing, also in inner loops.

Otherwise each use of a named tuple's array writes to its reference count, at times from several threads. Whoever calls
the kernel keeps the memory alive.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.np.arrayobj import populate_array

from l2ul_kernels.arrays import Array
from l2ul_kernels.codegen.llvm import I64, Emit, data_pointer
from l2ul_kernels.codegen.twins import intrinsic


def _forget_owners(context: Any, builder: ir.IRBuilder, kind: Any, value: ir.Value) -> ir.Value:
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = ir.Constant(array.meminfo.type, None)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for i, part in enumerate(kind.types):
            inner = _forget_owners(context, builder, part, builder.extract_value(value, i))
            value = builder.insert_value(value, inner, i)
    return value


@intrinsic(twin=lambda what: what)
def borrow(typingctx: Any, what: Any) -> Any:
    """The same array or (named) tuple, with its arrays borrowed from the caller: they count no references."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return _forget_owners(context, builder, signature.args[0], args[0])

    return what(what), codegen


def _view(kind: types.Array, context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
    """The array of this type and shape args[2:] from element args[1] of args[0] on."""
    e, shape = Emit(builder, kind.dtype), args[2:]
    itemsize = ir.Constant(I64, e.itemsize)
    array = context.make_array(kind)(context, builder)
    place = e.at(data_pointer(context, builder, signature.args[0], args[0]), args[1])
    strides = [builder.mul(shape[1], itemsize), itemsize] if len(shape) == 2 else [itemsize]
    populate_array(
        array,
        data=builder.bitcast(place, array.data.type),
        shape=shape,
        strides=strides,
        itemsize=itemsize,
        meminfo=None,
    )
    return array._getvalue()


def _matrix(S: Array, at: int, rows: int, columns: int) -> Array:
    return S.reshape(-1)[at : at + rows * columns].reshape(rows, columns)


@intrinsic(twin=_matrix)
def matrix(typingctx: Any, S: Any, at: Any, rows: Any, columns: Any) -> Any:
    """(rows, columns) from element `at` of the contiguous array S on."""
    kind, i8 = types.Array(S.dtype, 2, "C"), types.int64
    return kind(S, i8, i8, i8), lambda *what: _view(kind, *what)


def _vector(S: Array, at: int, n: int) -> Array:
    return S.reshape(-1)[at : at + n]


@intrinsic(twin=_vector)
def vector(typingctx: Any, S: Any, at: Any, n: Any) -> Any:
    """(n,) from element `at` of the contiguous array S on."""
    kind, i8 = types.Array(S.dtype, 1, "C"), types.int64
    return kind(S, i8, i8), lambda *what: _view(kind, *what)
