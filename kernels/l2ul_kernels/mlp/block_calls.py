"""The block functions of mlp_block by their addresses.

numba compiles a kernel together with all it calls: eight kernels would compile the same blocks eight times, some 5 s
each. Called through an address, a block function is compiled once (and cached) for float32 and once for float64.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from l2ul_kernels.codegen.jit import ensure_compiled
from l2ul_kernels.mlp.block import Shape, errors_block, forward_block, gradient_block, load_block

i8 = types.int64


def _codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
    """Call the function of numba's own calling convention at address args[0]."""
    result, parameters = signature.return_type, signature.args[1:]
    function = context.call_conv.get_function_type(result, parameters)
    pointer = builder.inttoptr(args[0], function.as_pointer())
    _, value = context.call_conv.call_function(builder, pointer, result, parameters, args[1:])
    return context.get_dummy_value() if result == types.none else value


@intrinsic
def far_load(typingctx: Any, address: Any, S: Any, s: Any, shape: Any, rows: Any, lo: Any, hi: Any) -> Any:
    """mlp_block.load_block"""
    return types.none(i8, S, i8, shape, rows, i8, i8), _codegen


@intrinsic
def far_forward(typingctx: Any, address: Any, S: Any, s: Any, shape: Any, P: Any, p: Any) -> Any:
    """mlp_block.forward_block"""
    return types.none(i8, S, i8, shape, P, i8), _codegen


@intrinsic
def far_errors(typingctx: Any, address: Any, S: Any, s: Any, shape: Any, want_loss: Any) -> Any:
    """mlp_block.errors_block"""
    return S.dtype(i8, S, i8, shape, i8), _codegen


@intrinsic
def far_gradient(
    typingctx: Any, address: Any, S: Any, s: Any, shape: Any, P: Any, p: Any, G: Any, g: Any, loss: Any
) -> Any:
    """mlp_block.gradient_block"""
    return S.dtype(i8, S, i8, shape, P, i8, G, i8, i8), _codegen


_addresses: dict[str, tuple[int, int, int, int]] = {}


def far_blocks(dtype: Any) -> tuple[int, int, int, int]:
    """Addresses of (load_block, forward_block, errors_block, gradient_block) for scratch of float32 or float64."""
    key = np.dtype(dtype).name
    if key not in _addresses:
        flat = numba.typeof(np.empty(0, dtype))
        shape = types.NamedUniTuple(i8, len(Shape._fields), Shape)
        labels, weights, ids = (numba.typeof(np.empty(0, t)) for t in (np.uint8, np.float64, np.int64))
        rows = types.Tuple((i8, i8, labels, weights, ids))
        wanted = [
            (load_block, (flat, i8, shape, rows, i8, i8)),
            (forward_block, (flat, i8, shape, flat, i8)),
            (errors_block, (flat, i8, shape, i8)),
            (gradient_block, (flat, i8, shape, flat, i8, flat, i8, i8)),
        ]
        ensure_compiled(("mlp blocks", key), lambda: [f.compile(sig) for f, sig in wanted])
        found = []
        for function, sig in wanted:
            compiled = function.overloads[sig]
            found.append(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))
        _addresses[key] = (found[0], found[1], found[2], found[3])
    return _addresses[key]
