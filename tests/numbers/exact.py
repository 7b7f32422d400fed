"""Oracles of the number tests: values as fractions, rounding in integers, gfloat beside them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import gfloat
import numpy as np
from gfloat import formats as gf

from refkern.compiled.bits import jit
from refkern.formats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT8_E8M0FNU,
    FLOAT16,
    FLOAT32,
    Format,
)

#: gfloat's own description of each format
GFLOAT = {
    FLOAT32: gf.format_info_binary32,
    BFLOAT16: gf.format_info_bfloat16,
    FLOAT16: gf.format_info_binary16,
    FLOAT8_E4M3FN: gf.format_info_ocp_e4m3,
    FLOAT8_E5M2: gf.format_info_ocp_e5m2,
    FLOAT8_E8M0FNU: gf.format_info_ocp_e8m0,
}


def value_of(code: int, fmt: Format) -> Fraction:
    """The exact value of a finite code."""
    magnitude = code & fmt.magnitude
    if fmt.scale_only:
        return Fraction(2) ** (magnitude - fmt.bias)
    field, fraction = divmod(magnitude, 1 << fmt.mantissa_bits)
    hidden = (1 << fmt.mantissa_bits) if field else 0
    value = (hidden + fraction) * Fraction(2) ** (max(field, 1) - fmt.bias - fmt.mantissa_bits)
    return -value if code & fmt.sign else value


def nearest_even(value: Fraction, fmt: Format, saturate: bool = False) -> int:
    """The code of ``value`` rounded once, to nearest, ties to even; overflow is decided after."""
    magnitude = abs(value)
    low, high = 0, fmt.max_finite + 1  # one past the largest finite code, as if it went on
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value_of(middle, fmt) <= magnitude else (low, middle)
    below, above = value_of(low, fmt), value_of(high, fmt)
    past_tie = magnitude - below - (above - below) / 2
    code = high if past_tie > 0 or (past_tie == 0 and low % 2) else low
    if code > fmt.max_finite:
        code = fmt.max_finite if saturate else fmt.overflow
    return code | (fmt.sign if value < 0 else 0)


def scale_byte(value: Fraction, rounding: str, saturate: bool) -> int:
    """The e8m0 byte of a finite ``value``, as `refkern.cast` documents it."""
    if value == 0:
        return 0 if saturate else 255
    if value < 0:
        return 255
    low = value.numerator.bit_length() - value.denominator.bit_length()
    low -= Fraction(2) ** low > value  # 2^low <= value < 2^(low + 1)
    over = value / Fraction(2) ** low
    up = {"up": over > 1, "down": False, "nearest": over >= Fraction(3, 2)}[rounding]
    byte = max(low + up + 127, 0)
    return byte if byte <= 254 else (254 if saturate else 255)


def by_gfloat(x: np.ndarray, fmt: Format, saturate: bool) -> np.ndarray:
    """gfloat's codes of float64 ``x``; for a NaN the canonical one with the sign of ``x``."""
    info = GFLOAT[fmt]
    rounded = gfloat.round_ndarray(info, x, gfloat.RoundMode.TiesToEven, saturate)
    codes = gfloat.encode_ndarray(info, rounded).astype(np.int64)
    nan = np.isnan(rounded)
    codes[nan] = np.where(np.signbit(x[nan]), fmt.nan | fmt.sign, fmt.nan)
    return codes.astype(fmt.code_dtype)


def all_codes(fmt: Format) -> np.ndarray:
    """Every value of a format of 16 bits or fewer, in the order of the codes."""
    return np.arange(1 << fmt.bits, dtype=fmt.code_dtype).view(fmt.dtype)


@cache
def _loop(function: Any, arguments: int) -> Any:
    if arguments == 1:

        @jit
        def one(a: Any, out: Any) -> None:
            for i in range(out.size):
                out[i] = function(a[i])

        return one

    @jit
    def three(a: Any, b: Any, c: Any, out: Any) -> None:
        for i in range(out.size):
            out[i] = function(a[i], b[i], c[i])

    return three


def compiled(function: Any, dtype: Any) -> Callable[..., np.ndarray]:
    """A compiled scalar function over arrays of one axis."""

    def run(*arrays: np.ndarray) -> np.ndarray:
        out = np.empty(arrays[0].shape, dtype)
        _loop(function, len(arrays))(*map(np.ascontiguousarray, arrays), out)
        return out

    return run


def without_nan_payload(x: np.ndarray) -> np.ndarray:
    """The bits of float32 ``x``, every NaN the same: two machines differ in a NaN's sign."""
    return np.where(x != x, np.uint32(0x7FC00000), x.view(np.uint32))
