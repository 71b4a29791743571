"""Intrinsics on arrays and raw addresses: what numba's own indexing cannot say, each with its Python twin."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from l2ul_kernels.arrays import Array, Bytes
from l2ul_kernels.codegen.llvm import I8, I32, I64, PTR, data_pointer
from l2ul_kernels.codegen.twins import COMPILED, intrinsic, memory


def address(array: Array) -> int:
    """Where the array's first element lies; the caller keeps the array alive."""
    return int(array.ctypes.data)


def _count_bits(mask: Any) -> int:
    return int(mask).bit_count()


@intrinsic(twin=_count_bits)
def count_bits(typingctx: Any, mask: Any) -> Any:
    """Number of set bits of a uint64."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


def _prefetch(address: int) -> None:
    pass


@intrinsic(twin=_prefetch)
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at `address`; never faults."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        function_type = ir.FunctionType(ir.VoidType(), [PTR, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(args[0], PTR), *(ir.Constant(I32, v) for v in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _pointer(address: int) -> Any:
    return ctypes.c_void_p(int(address))


@intrinsic(twin=_pointer)
def pointer(typingctx: Any, address: Any) -> Any:
    """An address as the pointer that numba.carray takes."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


def _fetch_add(counter: Any, amount: int) -> int:
    counter = counter if isinstance(counter, np.ndarray) else memory(counter, (1,), np.int64)
    before = int(counter[0])
    counter[0] += amount
    return before


@intrinsic(twin=_fetch_add)
def fetch_add(typingctx: Any, counter: Any, amount: Any) -> Any:
    """Atomically add to the first element of an int64 array, or to the int64 at an address; returns it as before."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        kind = signature.args[0]
        is_array = isinstance(kind, types.Array)
        place = data_pointer(context, builder, kind, args[0]) if is_array else builder.inttoptr(args[0], PTR)
        return builder.atomic_rmw("add", place, args[1], "monotonic")

    return types.int64(counter if isinstance(counter, types.Array) else types.int64, types.int64), codegen


def _load_word(rows: Bytes, i: int, byte: int) -> np.uint64:
    return np.uint64(int.from_bytes(rows[i, byte : byte + 8].tobytes(), "little"))


@intrinsic(twin=_load_word)
def load_word(typingctx: Any, rows: Any, i: Any, byte: Any) -> Any:
    """Bytes byte .. byte + 7 of row i of a C-contiguous (n, width) uint8 array, as a uint64, lowest first."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        width = builder.extract_value(array.shape, 1)
        place = builder.add(builder.mul(args[1], width), args[2])
        data = data_pointer(context, builder, signature.args[0], args[0])
        return builder.load(builder.gep(data, [place], source_etype=I8), align=1, typ=I64)

    return types.uint64(rows, types.int64, types.int64), codegen


_called: dict[int, Any] = {}  # without compilation: what `entry_point` gave a number to


def entry_point(kernel: Any, signature: tuple[Any, ...]) -> int:
    """The address of a kernel, compiled for arguments of these numba types, for `call_at`."""
    if not COMPILED:
        _called[id(kernel)] = kernel
        return id(kernel)
    kernel.compile(signature)
    compiled = kernel.overloads[signature]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def _call_at(entry: int, like: Any, args: tuple[Any, ...]) -> Any:
    return _called[entry](*args)


@intrinsic(twin=_call_at)
def call_at(typingctx: Any, entry: Any, like: Any, args: Any) -> Any:
    """Call the kernel at an `entry_point` with the tuple `args`; the result is of `like`'s type (None: no result).

    numba compiles a kernel together with all it calls. What is called by address is compiled once, not once for every
    caller. Nothing checks the types: `args` must have those that the entry point was compiled for.
    """
    kinds = [types.unliteral(kind) for kind in args]
    result = types.unliteral(like)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        parts = [builder.extract_value(values[2], i) for i in range(len(kinds))]
        place = builder.inttoptr(values[0], context.call_conv.get_function_type(result, kinds).as_pointer())
        _, value = context.call_conv.call_function(builder, place, result, kinds, parts)
        return context.get_dummy_value() if result == types.none else value

    return result(types.int64, like, args), codegen
