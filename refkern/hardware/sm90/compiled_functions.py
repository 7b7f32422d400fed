"""Hopper's special functions as compiled scalars: the bits of `special_functions`, written apart.

float32 -> float32; the conversions return codes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from refkern.compiled import casts
from refkern.compiled.bits import bits_float32, float32_bits, float64_bits, fma, jit
from refkern.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16, FLOAT32
from refkern.hardware.sm90 import special_functions as reference
from refkern.hardware.sm90.tables import EX2, LG2, RCP, RSQ, SQRT, Quadratic

NAN, INFINITY = reference.NAN, np.float32(np.inf)
ZERO, ONE = np.float32(0), np.float32(1)
SMALLEST_NORMAL = reference.SMALLEST_NORMAL
LOG2_E, LN_2 = reference.LOG2_E, reference.LN_2
LOG2_E_OVER_252, LOG2_E_LOW = reference.LOG2_E_OVER_252, reference.LOG2_E_LOW
MANTISSA, HIDDEN, SIGN = 0x7FFFFF, 0x800000, 0x80000000


def _quadratic(table: Quadratic) -> Any:
    """jitted (segment, x) -> y."""
    bits, column = numba.int32(table.bits), numba.int32(table.column)
    c0 = np.array(table.c0, np.int64) << table.constant_shift
    c0 += table.bias
    c1 = np.array(table.c1, np.int64) << table.linear_shift
    c2 = np.array(table.c2, np.int64) << table.column
    dropped = table.dropped
    lowest = table.column - table.bits

    @jit
    def evaluate(segment: Any, x: Any) -> Any:
        # Row i of the squarer: x_i times x_i 2^2i and all x_j 2^(i+j+1), j > i, from `column` up.
        # The sum is kept in units of 2^column.
        low = numba.int32(x)
        square = numba.int32(0)
        for i in range(lowest, bits):
            from_bit = max(numba.int32(i + 1), numba.int32(column - 1 - i))
            row = numba.int32(
                numba.int32(low >> from_bit) << numba.int32(from_bit + i + 1 - column)
            )
            if 2 * i >= column:
                row = numba.int32(row + numba.int32(1 << (2 * i - column)))
            square = numba.int32(square + (row & -((low >> i) & 1)))
        return (c0[segment] + c1[segment] * x + c2[segment] * numba.int64(square)) >> dropped

    return evaluate


_ex2, _rcp, _rsq, _sqrt, _lg2 = map(_quadratic, (EX2, RCP, RSQ, SQRT, LG2))


@jit
def _positive(field: Any, mantissa: Any) -> Any:
    return bits_float32(numba.uint32((field << 23) | (mantissa & MANTISSA)))


@jit
def ex2_approx_ftz(x: Any) -> Any:
    if x != x:
        return NAN
    if abs(x) < SMALLEST_NORMAL:
        return ONE
    if abs(x) >= np.float32(512):
        return INFINITY if x > ZERO else ZERO
    # Cutting a float64 to an integer goes towards zero, which is what the unit does.
    fixed = numba.int64(numba.float64(abs(x)) * 8388608.0)
    if x < ZERO:
        fixed = -fixed if fixed & MANTISSA == 0 else ~fixed
    exponent = fixed >> 23
    if exponent > 127:
        return INFINITY
    if exponent < -126:
        return ZERO
    fraction = fixed & MANTISSA
    return _positive(exponent + 127, _ex2(fraction >> 17, fraction & 0x1FFFF))


@jit
def rcp_approx_ftz(x: Any) -> Any:
    if x != x:
        return NAN
    magnitude = abs(x)
    bits = numba.int64(float32_bits(magnitude))
    if magnitude < SMALLEST_NORMAL:
        result = INFINITY
    elif magnitude == INFINITY:
        result = ZERO
    else:
        mantissa = bits & MANTISSA
        field = (254 if mantissa == 0 else 253) - (bits >> 23)
        result = ZERO if field <= 0 else _positive(field, _rcp(mantissa >> 16, mantissa & 0xFFFF))
    return bits_float32(float32_bits(result) | (float32_bits(x) & numba.uint32(SIGN)))


@jit
def rsqrt_approx_ftz(x: Any) -> Any:
    if abs(x) < SMALLEST_NORMAL:
        return bits_float32(numba.uint32(0x7F800000) | (float32_bits(x) & numba.uint32(SIGN)))
    if not x > ZERO:
        return NAN
    if x == INFINITY:
        return ZERO
    bits = numba.int64(float32_bits(x))
    exponent, mantissa = (bits >> 23) - 127, bits & MANTISSA
    if mantissa == 0 and exponent & 1 == 0:
        return _positive(127 - (exponent >> 1), mantissa)
    segment = ((exponent & 1) << 6) | (mantissa >> 17)
    return _positive(126 - (exponent >> 1), _rsq(segment, mantissa & 0x1FFFF))


@jit
def sqrt_approx_ftz(x: Any) -> Any:
    if abs(x) < SMALLEST_NORMAL:
        return bits_float32(float32_bits(x) & numba.uint32(SIGN))
    if not x > ZERO:
        return NAN
    if x == INFINITY:
        return x
    bits = numba.int64(float32_bits(x))
    exponent, mantissa = (bits >> 23) - 127, bits & MANTISSA
    segment = ((exponent & 1) << 6) | (mantissa >> 17)
    return _positive(127 + (exponent >> 1), _sqrt(segment, mantissa & 0x1FFFF))


@jit
def lg2_approx_ftz(x: Any) -> Any:
    if abs(x) < SMALLEST_NORMAL:
        return -INFINITY
    if not x > ZERO:
        return NAN
    if x == INFINITY:
        return x
    if x == ONE:
        return ZERO
    bits = numba.int64(float32_bits(x))
    mantissa = bits & MANTISSA
    fixed = (((bits >> 23) - 127) << 36) + _lg2(mantissa >> 17, mantissa & 0x1FFFF)
    magnitude = ~fixed if fixed < 0 else fixed
    # Exact as a float64; cutting its low 29 mantissa bits leaves 24 significant ones.
    wide = float64_bits(numba.float64(magnitude))
    if magnitude == 0:
        return bits_float32(numba.uint32(SIGN if fixed < 0 else 0))
    result = _positive((wide >> 52) - 1023 - 36 + 127, wide >> 29)
    return -result if fixed < 0 else result


@jit
def _canonical(x: Any) -> Any:
    return NAN if x != x else x


@jit
def ex2_approx(x: Any) -> Any:
    if x < np.float32(-126):
        root = ex2_approx_ftz(x * np.float32(0.5))
        return root * root
    return ex2_approx_ftz(x)


@jit
def rcp_approx(x: Any) -> Any:
    scale = _divisor_scale(x, np.float32(0.25))
    return _canonical(scale * rcp_approx_ftz(x * scale))


@jit
def rsqrt_approx(x: Any) -> Any:
    if abs(x) < SMALLEST_NORMAL:
        return _canonical(rsqrt_approx_ftz(x * np.float32(16777216)) * np.float32(4096))
    return rsqrt_approx_ftz(x)


@jit
def sqrt_approx(x: Any) -> Any:
    if abs(x) < SMALLEST_NORMAL:
        return _canonical(sqrt_approx_ftz(x * np.float32(16777216)) * np.float32(1 / 4096))
    return sqrt_approx_ftz(x)


@jit
def lg2_approx(x: Any) -> Any:
    if abs(x) < SMALLEST_NORMAL:
        return _canonical(lg2_approx_ftz(x * np.float32(16777216)) - np.float32(24))
    return lg2_approx_ftz(x)


@jit
def expf(x: Any) -> Any:
    clamped = fma(x, LOG2_E_OVER_252, np.float32(0.5))
    # A NaN fails the first comparison and becomes 0, as fma.sat has it.
    clamped = clamped if clamped > ZERO else ZERO
    clamped = clamped if clamped < ONE else ONE
    floor = np.floor(numba.float64(clamped) * 252.0)
    n = numba.float32(floor - 126.0)
    r = fma(x, LOG2_E_LOW, fma(x, LOG2_E, -n))
    # floor(..) + 12582913 moved up by 23: what stays is an exponent field.
    scale = bits_float32(numba.uint32((numba.int64(floor) + 1) << 23))
    return _canonical(ex2_approx_ftz(r) * scale)


@jit
def fast_expf(x: Any) -> Any:
    return ex2_approx(x * LOG2_E)


@jit
def fast_expf_ftz(x: Any) -> Any:
    return ex2_approx_ftz(x * LOG2_E)


@jit
def fast_logf(x: Any) -> Any:
    return _canonical(lg2_approx(x) * LN_2)


rsqrtf = rsqrt_approx


@jit
def _divisor_scale(divisor: Any, huge: Any) -> Any:
    if not abs(divisor) >= SMALLEST_NORMAL:
        return np.float32(16777216)
    return huge if abs(divisor) > np.float32(2.0**126) else ONE


@jit
def div_full(a: Any, b: Any) -> Any:
    scale = _divisor_scale(b, np.float32(0.25))
    return _canonical((a * scale) * rcp_approx_ftz(b * scale))


@jit
def div_approx(a: Any, b: Any) -> Any:
    scale = _divisor_scale(b, ONE)
    return _canonical((a * scale) * rcp_approx_ftz(b * scale))


@jit
def fmin(a: Any, b: Any) -> Any:
    if a != a:
        return _canonical(b)
    if b != b:
        return a
    if a == b:  # zeros of two signs: the bits of either
        return bits_float32(float32_bits(a) | float32_bits(b))
    return a if a < b else b


@jit
def fmax(a: Any, b: Any) -> Any:
    if a != a:
        return _canonical(b)
    if b != b:
        return a
    if a == b:
        return bits_float32(float32_bits(a) & float32_bits(b))
    return a if a > b else b


_narrow_bf16 = casts.narrow(FLOAT32, BFLOAT16)
_narrow_f16 = casts.narrow(FLOAT32, FLOAT16)
_narrow_e4m3 = casts.narrow(FLOAT32, FLOAT8_E4M3FN, saturate=True)
_narrow_e5m2 = casts.narrow(FLOAT32, FLOAT8_E5M2, saturate=True)


@jit
def cvt_bf16(x: Any) -> Any:
    return numba.uint16(0x7FFF) if x != x else _narrow_bf16(x)


@jit
def cvt_f16(x: Any) -> Any:
    return numba.uint16(0x7FFF) if x != x else _narrow_f16(x)


@jit
def cvt_e4m3(x: Any) -> Any:
    return numba.uint8(0x7F) if x != x else _narrow_e4m3(x)


@jit
def cvt_e5m2(x: Any) -> Any:
    return numba.uint8(0x7F) if x != x else _narrow_e5m2(x)
