"""What `raw_memory` compiles to. Only a process that compiles kernels imports this module, because it imports numba."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import raw_memcpy
from numba.core.errors import TypingError
from numba.extending import intrinsic


def _require_contiguous(array: Any, dtype: Any = None) -> None:
    """Refuse to compile for anything but a contiguous array, because addresses are computed from the start and the index."""
    if not isinstance(array, types.Array) or array.layout != "C" or dtype not in (None, array.dtype):
        raise TypingError(f"kernels need contiguous arrays{f' of {dtype}' if dtype else ''}, not {array}")


@intrinsic
def load(typingctx: Any, data: Any, at: Any) -> Any:
    """The 8 bytes of `data` (uint8) from `at` as a little-endian int64; any alignment."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(64).as_pointer())
        word = builder.load(address)
        word.align = 1
        return word

    _require_contiguous(data, types.uint8)
    return types.int64(data, types.int64), codegen


@intrinsic
def swap(typingctx: Any, word: Any) -> Any:
    """An int64 with its bytes in the other order."""
    return types.int64(types.int64), lambda context, builder, signature, args: builder.bswap(args[0])


def _make_store_intrinsic(bits: int) -> Any:
    @intrinsic
    def store_word(typingctx: Any, data: Any, at: Any, word: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            address = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(bits).as_pointer())
            value = builder.trunc(args[2], ir.IntType(bits)) if bits < 64 else args[2]
            builder.store(value, address).align = 1
            return context.get_dummy_value()

        _require_contiguous(data, types.uint8)
        return types.void(data, types.int64, types.int64), codegen

    return store_word


store8, store16, store32, store64 = (_make_store_intrinsic(bits) for bits in (8, 16, 32, 64))


@intrinsic
def get(typingctx: Any, array: Any, i: Any) -> Any:
    """array[i] as int64, for an i that is known to be good: no wrap-around of negative indices."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        item = builder.load(builder.gep(data, [args[1]]))
        return context.cast(builder, item, signature.args[0].dtype, types.int64)

    _require_contiguous(array)
    return types.int64(array, types.int64), codegen


@intrinsic
def put(typingctx: Any, array: Any, i: Any, value: Any) -> Any:
    """array[i] = value (int64), under the same condition."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        dtype = signature.args[0].dtype
        item = context.get_value_as_data(builder, dtype, context.cast(builder, args[2], types.int64, dtype))
        builder.store(item, builder.gep(data, [args[1]]))
        return context.get_dummy_value()

    _require_contiguous(array)
    return types.void(array, types.int64, types.int64), codegen


@intrinsic
def copy(typingctx: Any, out: Any, to: Any, data: Any, at: Any, size: Any) -> Any:
    """Copy `size` bytes from data[at] to out[to] (uint8); they are different buffers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, args[0])
        source = context.make_array(signature.args[2])(context, builder, args[2])
        to, at = builder.gep(target.data, [args[1]]), builder.gep(source.data, [args[3]])
        raw_memcpy(builder, to, at, args[4], 1)
        return context.get_dummy_value()

    _require_contiguous(out, types.uint8)
    _require_contiguous(data, types.uint8)
    return types.void(out, types.int64, data, types.int64, types.int64), codegen


@intrinsic
def are_zero(typingctx: Any, data: Any, at: Any, size: Any) -> Any:
    """Whether the first `size` of the 8 bytes from data[at] (uint8) are zero; at most 8. True if `size` is not positive.

    It stays a function of its own: where it is needed is rare, and more instructions in the walk make all of the walk slower.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(64).as_pointer())
        word, boolean, name = ir.IntType(64), ir.IntType(1), "pcaplake_are_zero"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(boolean, [word.as_pointer(), word]), name)
            function.linkage = "internal"
            for attribute in ("noinline", "cold", "nounwind"):
                function.attributes.add(attribute)
            body = ir.IRBuilder(function.append_basic_block())
            found = body.load(function.args[0])
            found.align = 1
            size = body.select(body.icmp_signed(">", function.args[1], word(8)), word(8), function.args[1])
            kept = body.shl(found, body.mul(body.sub(word(8), size), word(8)))
            none = body.icmp_signed("<=", function.args[1], word(0))
            body.ret(body.select(none, boolean(1), body.icmp_signed("==", kept, word(0))))
        return builder.call(function, [address, args[2]])

    _require_contiguous(data, types.uint8)
    return types.boolean(data, types.int64, types.int64), codegen
