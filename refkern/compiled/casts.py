"""Casts as compiled scalar functions, one per pair of formats.  Codes are unsigned integers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np

from refkern.compiled.bits import bits_float32, float32_bits, float64_bits, jit
from refkern.formats import BFLOAT16, FLOAT8_E8M0FNU, FLOAT32, Format


@cache
def widen(source: Format) -> Any:
    """code -> float32, exact; a NaN keeps its sign."""
    if source is FLOAT32:
        return jit(lambda code: bits_float32(numba.uint32(code)))
    if source is BFLOAT16:
        return jit(lambda code: bits_float32(numba.uint32(code) << numba.uint32(16)))
    if source is FLOAT8_E8M0FNU:
        return _widen_scale
    return _widen_small(source)


def _widen_small(source: Format) -> Any:
    """float16 and fp8: move the fields into place, then correct the exponent by one product.

    The fields moved up are the value times 2^(bias - 127), as a float32 subnormal where they are
    a subnormal; the product with a power of two is exact.
    """
    up = numba.uint32(FLOAT32.mantissa_bits - source.mantissa_bits)
    rebias = np.float32(2.0 ** (FLOAT32.bias - source.bias))
    magnitude = numba.uint32(source.magnitude)
    limit = numba.uint32(source.max_finite)
    #: no magnitude is all ones and one more, so a format without infinity never matches it
    infinity = numba.uint32(source.infinity or source.magnitude + 1)
    to_sign = numba.uint32(32 - source.bits)
    sign = numba.uint32(0x80000000)

    @jit
    def widen(code: Any) -> Any:
        bits = numba.uint32(code)
        low = bits & magnitude
        value = float32_bits(bits_float32(low << up) * rebias)
        if low > limit:
            value = numba.uint32(0x7F800000 if low == infinity else 0x7FC00000)
        return bits_float32(value | ((bits << to_sign) & sign))

    return widen


@jit
def _widen_scale(code: Any) -> Any:
    byte = numba.uint32(code)
    if byte == numba.uint32(255):
        return np.float32(np.nan)
    if byte == numba.uint32(0):
        return bits_float32(numba.uint32(0x00400000))  # 2^-127 is a float32 subnormal
    return bits_float32(byte << numba.uint32(23))


def _word_and_bits(source: Format) -> tuple[Any, Any]:
    """The integer type of float32 or float64 in kernels, and what reads a value's bits."""
    return (numba.uint32, float32_bits) if source is FLOAT32 else (numba.uint64, float64_bits)


@cache
def narrow(source: Format, target: Format, saturate: bool = False, canonical: bool = True) -> Any:
    """float32 or float64 -> code, rounded once, ties to even.

    canonical: a NaN becomes the positive canonical one, as in every stage and output; otherwise it
    keeps its sign, as in `refkern.cast`.
    """
    if target.scale_only or target.bits > source.bits:
        raise TypeError(f"no narrow from {source} to {target}; for scales there is narrow_scale")
    if target is FLOAT32 and source is FLOAT32:
        return _same(saturate, canonical)
    if target.bias == source.bias:
        return _narrow_same_exponents(source, target, saturate, canonical)
    if source is FLOAT32:
        return _narrow_by_addition(target, saturate, canonical)
    word, read = _word_and_bits(source)
    source_sign, source_magnitude = word(source.sign), word(source.magnitude)
    mantissa = word(source.mantissa_bits)
    fraction_mask, hidden = word((1 << source.mantissa_bits) - 1), word(1 << source.mantissa_bits)
    special = word(((1 << source.bits) - 1 >> 1) & ~((1 << source.mantissa_bits) - 1))
    base_drop = numba.int32(source.mantissa_bits - target.mantissa_bits)
    most = numba.int32(source.mantissa_bits + 2)
    lowest = numba.int32(target.min_exponent + source.bias)
    rebias = numba.int32(target.bias - 1 - source.bias)
    code_shift = numba.int64(target.mantissa_bits)
    max_finite = numba.int64(target.max_finite)
    overflow = numba.int64(target.max_finite if saturate else target.overflow)
    nan, sign = numba.int64(target.nan), numba.int64(target.sign)
    keep_sign = not canonical
    one = word(1)
    zero = word(0)
    result: Any = {8: numba.uint8, 16: numba.uint16, 32: numba.uint32}[target.bits]

    @jit
    def narrow(value: Any) -> Any:
        bits = word(read(value))
        magnitude = bits & source_magnitude
        negative = (bits & source_sign) != zero
        if magnitude > special:
            return result(nan | sign) if keep_sign and negative else result(nan)
        field = numba.int32(magnitude >> mantissa)
        significand = magnitude & fraction_mask
        if field > 0:
            significand |= hidden
        else:
            field = numba.int32(1)
        drop = base_drop + max(lowest - field, numba.int32(0))
        dropped = word(min(drop, most))
        rounding = ((one << dropped) >> one) - one + ((significand >> dropped) & one)
        rounded = significand + rounding >> dropped
        code = (numba.int64(max(field + rebias, numba.int32(0))) << code_shift) + numba.int64(
            rounded
        )
        if code > max_finite or magnitude == special:
            code = overflow
        return result(code | sign) if negative else result(code)

    return narrow


def _narrow_same_exponents(source: Format, target: Format, saturate: bool, canonical: bool) -> Any:
    """float32 -> bfloat16: the fields line up, so rounding the magnitude rounds everything."""
    dropped = numba.uint32(source.mantissa_bits - target.mantissa_bits)
    below_half = numba.uint32((1 << dropped - 1) - 1)
    one = numba.uint32(1)
    special, sign = numba.uint32(source.infinity or 0), numba.uint32(source.sign)
    largest = numba.uint32(target.max_finite if saturate else target.overflow)
    nan = numba.uint32(target.nan)
    keep_sign = numba.uint32(0 if canonical else target.sign)

    @jit
    def narrow(value: Any) -> Any:
        bits = float32_bits(value)
        magnitude = numba.uint32(bits & ~sign)
        rounded = numba.uint32(magnitude + below_half + ((bits >> dropped) & one)) >> dropped
        code = min(rounded, largest) | ((bits & sign) >> dropped)
        nan_code = nan | ((bits >> dropped) & keep_sign)
        return numba.uint16(nan_code if magnitude > special else code)

    return narrow


def _narrow_by_addition(target: Format, saturate: bool, canonical: bool) -> Any:
    """float32 -> float16 or fp8 without a branch, so that loops over it vectorise.

    Below the normal range a float32 addition rounds: the sum of the magnitude and of the power of
    two whose ULP is the target's quantum.  Above, the fields are rounded as one integer.
    """
    dropped = FLOAT32.mantissa_bits - target.mantissa_bits
    magic_exponent = target.min_exponent - target.mantissa_bits + FLOAT32.mantissa_bits
    magic = np.float32(2.0**magic_exponent)
    magic_bits = numba.uint32(int(magic.view(np.uint32)))
    smallest_normal = numba.uint32((target.min_exponent + FLOAT32.bias) << FLOAT32.mantissa_bits)
    rebias = numba.uint32((FLOAT32.bias - target.bias) << FLOAT32.mantissa_bits)
    below_half = numba.uint32((1 << dropped - 1) - 1)
    shift, one = numba.uint32(dropped), numba.uint32(1)
    magnitude_mask, infinity = numba.uint32(FLOAT32.magnitude), numba.uint32(FLOAT32.infinity or 0)
    max_finite = numba.uint32(target.max_finite)
    overflow = numba.uint32(target.max_finite if saturate else target.overflow)
    nan, sign = numba.uint32(target.nan), numba.uint32(target.sign)
    nan_sign = numba.uint32(0 if canonical else target.sign)
    to_sign = numba.uint32(FLOAT32.bits - target.bits)
    result = {8: numba.uint8, 16: numba.uint16}[target.bits]

    @jit
    def narrow(value: Any) -> Any:
        bits = float32_bits(value)
        magnitude = bits & magnitude_mask
        subnormal = numba.uint32(float32_bits(bits_float32(magnitude) + magic) - magic_bits)
        even = numba.uint32(numba.uint32(magnitude >> shift) & one)
        normal = numba.uint32(magnitude + below_half + even - rebias)
        normal = numba.uint32(normal >> shift)
        code = subnormal if magnitude < smallest_normal else normal
        code = overflow if code > max_finite else code
        code = nan if magnitude > infinity else code
        signs = numba.uint32(numba.uint32(bits >> to_sign) & sign)
        signs = signs & nan_sign if magnitude > infinity else signs
        return result(code | signs)

    return narrow


def _same(saturate: bool, canonical: bool) -> Any:
    nan = numba.uint32(FLOAT32.nan)
    sign = numba.uint32(FLOAT32.sign if not canonical else 0)
    most = np.finfo(np.float32).max if saturate else np.float32(np.inf)

    @jit
    def same(value: Any) -> Any:
        if value != value:
            return (float32_bits(value) & sign) | nan
        return float32_bits(max(min(value, most), -most))

    return same


@cache
def narrow_scale(source: Format, rounding: str, saturate: bool = False) -> Any:
    """float32 or float64 -> byte of float8_e8m0fnu, as `refkern.cast` defines it."""
    word, read = _word_and_bits(source)
    sign, special = word(source.sign), word(source.infinity or 0)
    mantissa, hidden = word(source.mantissa_bits), word(1 << source.mantissa_bits)
    half = word(1 << source.mantissa_bits - 1)
    rebias = numba.int64(FLOAT8_E8M0FNU.bias - source.bias)
    #: the least fraction that rounds up; none does where it is the hidden bit
    threshold = {"up": word(1), "nearest": half, "down": hidden}[rounding]
    zero_byte = numba.uint8(0 if saturate else 255)
    largest_byte = numba.uint8(254 if saturate else 255)
    shared_exponents = source.bias == FLOAT8_E8M0FNU.bias

    @jit
    def narrow(value: Any) -> Any:
        bits = word(read(value))
        if bits & ~sign == 0:
            return zero_byte
        if bits > special:  # negative or NaN
            return numba.uint8(255)
        field, fraction = bits >> mantissa, bits & (hidden - word(1))
        if shared_exponents and field == 0:
            # Byte 0 is 2^-127, half of the smallest normal float32: a fraction of one half.
            fraction = word((fraction - half) << word(1)) if fraction > half else word(0)
        byte = numba.int64(field) + rebias
        if fraction >= threshold:
            byte += 1
        return largest_byte if byte > 254 else numba.uint8(max(byte, 0))

    return narrow
