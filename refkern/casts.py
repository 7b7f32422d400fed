"""Casts that round once, from any real dtype into any of the formats.

ml_dtypes goes through float32 and so rounds float64 twice; numpy's own float16 cast is right but
neither saturates nor knows fp8.  Here every cast is one integer rounding of the source's bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from refkern.arguments import as_array, is_torch, numpy_to_torch
from refkern.errors import InvalidInput
from refkern.formats import FLOAT32, FLOAT64, Format, codes, find_format, format_of, from_codes

ROUNDINGS = ("nearest-even", "up", "down", "nearest")


def cast(
    x: Any, dtype: Any, *, saturate: bool = False, rounding: str = "nearest-even"
) -> np.ndarray:
    """``x`` rounded once to ``dtype``.

    x: any shape; float64, float32, a narrow float, an integer, a bool or a longdouble; a torch
        tensor gives a torch tensor.
    dtype: a format's dtype or name (`refkern.formats.FORMATS`).

    Rounding is to nearest, ties to even, then overflow is decided: infinity, or NaN where the
    format has no infinity (float8_e4m3fn, from above 464 on).  With ``saturate`` an infinity and
    every overflow become the largest finite value.  A NaN stays NaN and keeps its sign; the
    payload becomes the canonical one.  -0 stays -0; subnormals are kept.

    float8_e8m0fnu holds powers of two only and needs ``rounding``: "up", "down" or "nearest"
    (ties up).  0, negative values and NaN become 0xff, and so does what is too large; with
    ``saturate`` 0 becomes byte 0 and what is too large (infinity too) byte 254.  A positive value
    below 2^-127 becomes byte 0 in every rounding, since a scale of zero does not exist.

    Raises `InvalidInput` for other dtypes or another rounding.
    """
    target = format_of(dtype)
    allowed = ROUNDINGS[1:] if target.scale_only else ROUNDINGS[:1]
    if rounding not in allowed:
        raise InvalidInput(
            "rounding", repr(rounding), f"{target} allows {', '.join(map(repr, allowed))}"
        )
    result = _cast(as_array("x", x), target, saturate, rounding)
    return numpy_to_torch(result) if is_torch(x) else result


def _cast(values: np.ndarray, target: Format, saturate: bool, rounding: str) -> np.ndarray:
    source = _float_source(values)
    if target.scale_only:
        return from_codes(_scale_codes(source, rounding, saturate), target)
    if target is FLOAT64:
        source = _to_float64(values)
    if source.dtype == target.dtype:
        most = np.finfo(target.dtype).max
        return _canonical_payload(np.clip(source, -most, most) if saturate else source, target)
    return from_codes(_round(source, target, saturate), target)


def widen(x: np.ndarray) -> np.ndarray:
    """A narrow float array as float32: exact.  float32 comes back as it is."""
    source = format_of(x.dtype)
    if source is FLOAT32:
        return x
    if not source.exact_in_float32:
        raise TypeError(f"{source} does not widen to float32")
    if source.mantissa_bits == 7 and source.bias == FLOAT32.bias:  # bfloat16: half a float32
        return (codes(x).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return _widening_table(source)[codes(x)]


def canonical(x: np.ndarray) -> np.ndarray:
    """``x`` with every NaN replaced by its format's canonical (positive) NaN."""
    fmt = format_of(x.dtype)
    bits = codes(x)
    limit = fmt.max_finite if fmt.infinity is None else fmt.infinity
    nan = (bits & bits.dtype.type(fmt.magnitude)) > bits.dtype.type(limit)
    return from_codes(np.where(nan, bits.dtype.type(fmt.nan), bits), fmt)


@lru_cache
def _widening_table(source: Format) -> np.ndarray:
    """float32 of every code, decoded from its fields; a NaN keeps its sign."""
    code = np.arange(1 << source.bits, dtype=np.int64)
    magnitude = code & source.magnitude
    if source.scale_only:
        value = np.ldexp(1.0, code - source.bias)
    else:
        field = magnitude >> source.mantissa_bits
        fraction = magnitude & ((1 << source.mantissa_bits) - 1)
        significand = np.where(field == 0, fraction, fraction + (1 << source.mantissa_bits))
        exponent = np.maximum(field, 1) - source.bias - source.mantissa_bits
        value = np.ldexp(significand.astype(np.float64), exponent)
    if source.infinity is not None:
        value = np.where(magnitude == source.infinity, np.inf, value)
    limit = source.max_finite if source.infinity is None else source.infinity
    value = np.where(magnitude > limit, np.nan, value)
    value = np.where(code & source.sign != 0, -value, value)
    table = value.astype(np.float32)  # exact: every format here is narrower
    table.setflags(write=False)
    return table


def _float_source(x: np.ndarray) -> np.ndarray:
    """``x`` as float32 or float64 such that one rounding of it is one rounding of ``x``."""
    fmt = find_format(x.dtype)
    if fmt is FLOAT32 or fmt is FLOAT64:
        return x.astype(fmt.dtype, copy=False)  # the same type in the machine's byte order
    if fmt is not None:
        return widen(x.astype(fmt.dtype, copy=False))
    if x.dtype.kind in "biu":
        return _integer_to_odd_float64(x)
    if x.dtype == np.longdouble:
        with np.errstate(all="ignore"):
            nearest = x.astype(np.float64)
        return _to_odd(nearest, x)
    raise InvalidInput("x", x.dtype, "allowed are real numbers: floats, integers and bool")


def _to_float64(x: np.ndarray) -> np.ndarray:
    """``x``, of a type that `_float_source` allows, rounded once to float64."""
    narrow = find_format(x.dtype)
    if narrow is not None and narrow.exact_in_float32:
        x = widen(x.astype(narrow.dtype, copy=False))
    with np.errstate(all="ignore"):  # an overflowing longdouble
        return x.astype(np.float64)  # exact, or the machine's one rounding to nearest


def _integer_to_odd_float64(x: np.ndarray) -> np.ndarray:
    """Integers as float64, rounded to odd where 53 bits do not hold them.

    Rounding to odd keeps, in the last bit, whether anything was cut off, so that the rounding to
    24 bits or fewer that follows sees which side of a midpoint the integer was on.
    """
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    negative = x < 0
    magnitude = np.where(negative, -x.astype(np.uint64), x.astype(np.uint64))
    low = np.uint64((1 << 11) - 1)
    sticky = (magnitude & ~low) | np.where(magnitude & low != 0, np.uint64(1 << 11), np.uint64(0))
    value = np.where(magnitude >> np.uint64(53) != 0, sticky, magnitude).astype(np.float64)
    return np.where(negative, -value, value)


def _to_odd(nearest: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """``nearest`` (float64) moved to its odd neighbour on the side of ``exact``, if inexact."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = exact - nearest.astype(exact.dtype)
        bits = np.ascontiguousarray(nearest).view(np.int64)
        move = np.isfinite(nearest) & (error != 0) & (bits & 1 == 0)
        outward = (error > 0) == ~np.signbit(nearest)
        return (bits + np.where(move, np.where(outward, 1, -1), 0)).view(np.float64)


def _canonical_payload(x: np.ndarray, fmt: Format) -> np.ndarray:
    """Every NaN with the canonical payload and its own sign."""
    bits = codes(x)
    nan = (bits & bits.dtype.type(fmt.sign)) | bits.dtype.type(fmt.nan)
    return from_codes(np.where(x != x, nan, bits), fmt)


def _round(x: np.ndarray, target: Format, saturate: bool) -> np.ndarray:
    """The codes in ``target`` of float32 or float64 ``x``: one rounding on the integer bits.

    The target has fewer bits than ``x``, so at least one is dropped.
    """
    source = format_of(x.dtype)
    bits = codes(x)
    word = bits.dtype.type
    one = word(1)
    magnitude = bits & word(source.magnitude)
    field = (magnitude >> word(source.mantissa_bits)).astype(f"i{bits.dtype.itemsize}")
    fraction = magnitude & word((1 << source.mantissa_bits) - 1)
    hidden = word(1 << source.mantissa_bits)
    significand = np.where(field == 0, fraction, fraction | hidden)
    exponent = np.maximum(field, 1) - source.bias

    # Below the target's normal range its quantum stands still, so more bits are dropped.  From
    # two bits more than the significand has, everything is below half a quantum.
    dropped = np.maximum(target.min_exponent - exponent, 0)
    dropped += source.mantissa_bits - target.mantissa_bits
    dropped = np.minimum(dropped, source.mantissa_bits + 2).astype(bits.dtype)
    last_kept = (significand >> dropped) & one
    below_half = ((one << dropped) >> one) - one
    rounded = (significand + below_half + last_kept) >> dropped

    # The hidden bit, kept in `rounded`, adds one to the exponent field; so does a carry.
    normal = np.maximum(exponent + (target.bias - 1), 0)
    code = (normal << target.mantissa_bits) + rounded.astype(normal.dtype)
    overflow = target.max_finite if saturate else target.overflow
    code = np.where((code > target.max_finite) | (field > source.bias * 2), overflow, code)
    code = np.where(x != x, target.nan, code).astype(target.code_dtype)
    negative = bits & word(source.sign) != 0
    return np.where(negative, code | target.code_dtype.type(target.sign), code)


def _scale_codes(x: np.ndarray, rounding: str, saturate: bool) -> np.ndarray:
    """The e8m0 bytes of float32 or float64 ``x``."""
    positive = x > 0
    with np.errstate(invalid="ignore"):
        significand, exponent = np.frexp(np.where(positive & np.isfinite(x), x, 1))
    # x = significand * 2^exponent with significand in [0.5, 1): a power of two has exactly 0.5
    byte = exponent.astype(np.int64) - 1 + 127
    if rounding == "up":
        byte = byte + (significand > 0.5)
    elif rounding == "nearest":
        byte = byte + (significand >= 0.75)
    byte = np.maximum(byte, 0)
    byte = np.where(np.isinf(x), 255, byte)
    byte = np.where(byte > 254, 254 if saturate else 255, byte)
    byte = np.where(positive, byte, 255)
    if saturate:
        byte = np.where(x == 0, 0, byte)
    return byte.astype(np.uint8)
