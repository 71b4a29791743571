"""Parts of flat scratch memory as arrays that do not count references: making one costs nothing, also in inner loops.

Threads that cut up one array would otherwise all write to its one reference count. The caller keeps the memory alive.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.np.arrayobj import populate_array
from numpy.typing import NDArray

from l2ul_kernels.codegen.llvm import I64, Emit, data_pointer
from l2ul_kernels.codegen.twins import intrinsic


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


def _matrix(S: NDArray[Any], at: int, rows: int, columns: int) -> NDArray[Any]:
    return S.reshape(-1)[at : at + rows * columns].reshape(rows, columns)


@intrinsic(twin=_matrix)
def matrix(typingctx: Any, S: Any, at: Any, rows: Any, columns: Any) -> Any:
    """(rows, columns) from element `at` of the contiguous array S on."""
    kind, i8 = types.Array(S.dtype, 2, "C"), types.int64
    return kind(S, i8, i8, i8), lambda *what: _view(kind, *what)


def _vector(S: NDArray[Any], at: int, n: int) -> NDArray[Any]:
    return S.reshape(-1)[at : at + n]


@intrinsic(twin=_vector)
def vector(typingctx: Any, S: Any, at: Any, n: Any) -> Any:
    """(n,) from element `at` of the contiguous array S on."""
    kind, i8 = types.Array(S.dtype, 1, "C"), types.int64
    return kind(S, i8, i8), lambda *what: _view(kind, *what)
