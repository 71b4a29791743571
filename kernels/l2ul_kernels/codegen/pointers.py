"""Scalar intrinsics on raw addresses, for drivers that must not pay for array headers and reference counts."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from l2ul_kernels.codegen.llvm import I32, I64, PTR


@intrinsic
def count_bits(typingctx: Any, mask: Any) -> Any:
    """Number of set bits of a uint64."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at `address`; never faults."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        function_type = ir.FunctionType(ir.VoidType(), [PTR, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(args[0], PTR), *(ir.Constant(I32, v) for v in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """An address as the pointer that numba.carray takes."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@intrinsic
def add(typingctx: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 at `address`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        place = builder.inttoptr(args[0], PTR)
        builder.store(builder.add(builder.load(place, typ=I64), args[1]), place)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def fetch_add(typingctx: Any, address: Any, amount: Any) -> Any:
    """Atomically add to the int64 at `address`; returns the value before."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], PTR), args[1], "monotonic")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def size_of(typingctx: Any, like: Any) -> Any:
    """Bytes of one item of `like`'s type, known when compiling."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return ir.Constant(I64, signature.args[0].bitwidth // 8)

    return types.int64(like), codegen


@intrinsic
def read(typingctx: Any, address: Any, like: Any) -> Any:
    """The integer of `like`'s type at `address`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.load(builder.inttoptr(args[0], PTR), align=1, typ=ir.IntType(like.bitwidth))

    return like(types.int64, like), codegen


@intrinsic
def write(typingctx: Any, address: Any, value: Any) -> Any:
    """Store an integer at `address`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        builder.store(args[1], builder.inttoptr(args[0], PTR), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, value), codegen
