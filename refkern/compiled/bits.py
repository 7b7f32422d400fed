"""What numba lacks: one-rounding fma, and reading a float's bits."""

from __future__ import annotations

from typing import Any

import numba
from numba.core import types
from numba.extending import intrinsic as numba_intrinsic

#: without numba's own types: they describe the typing function, not the call from a kernel
intrinsic: Any = numba_intrinsic
#: how every kernel is compiled: IEEE arithmetic as written (never fastmath), without the GIL
jit = numba.njit(nogil=True, error_model="numpy", boundscheck=False)


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding, in float32 or float64."""
    if not (a == b == c and a in (types.float32, types.float64)):
        raise numba.TypingError(f"fma takes three floats of one width, not {a}, {b}, {c}")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, a, a), generate


def _bits_of(source: Any, target: Any) -> Any:
    @intrinsic
    def read(typing_context: Any, x: Any) -> Any:
        if x != source:
            raise numba.TypingError(f"{source} is needed, not {x}")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return read


def _float_of(carrier: Any, target: Any) -> Any:
    @intrinsic
    def make(typing_context: Any, bits: Any) -> Any:
        if not isinstance(bits, types.Integer):
            raise numba.TypingError(f"an integer is needed, not {bits}")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            # numba computes with 64-bit integers; only the low bits are meant.
            word = context.get_value_type(carrier)
            low = arguments[0]
            if low.type.width > word.width:
                low = builder.trunc(low, word)
            elif low.type.width < word.width:
                low = builder.zext(low, word)
            return builder.bitcast(low, context.get_value_type(target))

        return target(bits), generate

    return make


float32_bits = _bits_of(types.float32, types.uint32)
float64_bits = _bits_of(types.float64, types.int64)
bits_float32 = _float_of(types.uint32, types.float32)
bits_float64 = _float_of(types.int64, types.float64)
