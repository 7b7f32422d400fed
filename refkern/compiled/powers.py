"""Powers of two as compiled scalars: the bits of `refkern.powers`, written apart."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from refkern.compiled.bits import bits_float32, float32_bits, jit

ZERO, TWO_TO_MINUS_127 = np.float32(0), np.float32(2.0**-127)


@jit
def _field_up(x: Any) -> Any:
    """The exponent field of the power of two at or above |x|, as a 32-bit integer."""
    magnitude = numba.int32(float32_bits(x) & numba.uint32(0x7FFFFFFF))
    return numba.int32(numba.int32(magnitude + numba.int32(0x7FFFFF)) >> numba.int32(23))


@jit
def _power(field: Any) -> Any:
    return bits_float32(numba.uint32(field) << numba.uint32(23))


@jit
def up(x: Any) -> Any:
    # The largest finite magnitude carries into infinity; a NaN would go beyond.
    return x if x != x else _power(_field_up(x))


@jit
def up_finite(x: Any) -> Any:
    field = numba.int32(254) if x != x else _field_up(x)
    return _power(min(max(field, numba.int32(1)), numba.int32(254)))


@jit
def up_log2(x: Any) -> Any:
    magnitude = abs(x)
    if not magnitude < np.float32(np.inf) or magnitude == ZERO:
        return magnitude
    scaled, shift = magnitude, numba.int32(0)
    if magnitude < np.float32(2.0**-126):
        scaled, shift = magnitude * np.float32(2.0**24), numba.int32(24)
    bits = numba.int32(float32_bits(scaled))
    exponent = (bits >> numba.int32(23)) - numba.int32(127) - shift
    mantissa = bits & numba.int32(0x7FFFFF)
    size = abs(exponent)
    # The spacing of float32 around the exponent, in units of 2^-23 of an integer.
    spacing = numba.int32(1)
    while spacing * 2 <= size:
        spacing *= numba.int32(2)
    if exponent < 0 and spacing == size:
        spacing //= numba.int32(2)
    # log2(1 + M 2^-23) < spacing 2^-24 with M <= 44: the series' second term is far below what
    # separates M from the bound, so that its first decides: M log2(e) < spacing / 2.
    hides = numba.float64(mantissa) * 1.4426950408889634 < 0.5 * numba.float64(spacing)
    if mantissa and not hides:
        exponent += numba.int32(1)
    if exponent < -126:
        return bits_float32(numba.uint32(1) << numba.uint32(exponent + 149))
    return _power(exponent + numba.int32(127))


@jit
def down(x: Any) -> Any:
    return bits_float32(float32_bits(x) & numba.uint32(0xFF800000))


@jit
def reciprocal(x: Any) -> Any:
    field = float32_bits(x) >> numba.uint32(23)
    return bits_float32(numba.uint32(numba.uint32(254) - field) << numba.uint32(23))


@jit
def _scale_of_byte(byte: Any) -> Any:
    return TWO_TO_MINUS_127 if byte <= 0 else _power(min(byte, numba.int32(254)))


@jit
def mx_floor(amax: Any) -> Any:
    return _scale_of_byte(numba.int32(float32_bits(amax) >> numba.uint32(23)) - numba.int32(8))


@jit
def mx_ceil(amax: Any) -> Any:
    # Adding what 1.75 lacks to 2 carries into the exponent only above 1.75.
    rounded = numba.uint32(float32_bits(amax) + numba.uint32(0x1FFFFF))
    return _scale_of_byte(numba.int32(rounded >> numba.uint32(23)) - numba.int32(8))
