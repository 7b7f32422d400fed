"""Hopper's special functions in numpy: the units (MUFU), then what PTX and CUDA build on them.

float32 arrays in and out.  Every NaN result is 0x7fffffff, whatever the NaN that went in.  A unit
takes subnormals for zeros of their sign and never returns one (MUFU.RSQ and MUFU.SQRT have no
subnormal results anyway); the PTX forms without ``.ftz`` scale subnormal arguments and results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps

import numpy as np

from refkern.casts import cast
from refkern.elementary import Function, fma
from refkern.elementary import fmax as ieee_fmax
from refkern.elementary import fmin as ieee_fmin
from refkern.formats import format_of
from refkern.hardware.sm90.tables import EX2, LG2, RCP, RSQ, SQRT, Quadratic

NAN_BITS = 0x7FFFFFFF
NAN = np.uint32(NAN_BITS).view(np.float32)
INFINITY_BITS = 0x7F800000
FRACTION = 0x7FFFFF
SMALLEST_NORMAL = np.float32(2.0**-126)


def _constant(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


#: log2(e) in one float32; CUDA's expf: log2(e) / 252, log2(e) and what is left of it; ln(2)
LOG2_E = _constant(0x3FB8AA3B)
LOG2_E_OVER_252 = _constant(0x3BBB989D)
LOG2_E_LOW = _constant(0x32A57060)
LN_2 = _constant(0x3F317218)


def _device(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Quiet on NaN and overflow, and every NaN as the device returns it."""

    @wraps(function)
    def call(*arguments: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            result = np.asarray(function(*arguments))
        return np.where(np.isnan(result), NAN, result)

    return call


# ------------------------------------------------------------------------------------- the units


@cache
def _squares(bits: int, column: int) -> np.ndarray:
    """square(x) of every x: see `Quadratic`."""
    x = np.arange(1 << bits, dtype=np.int64)
    total = np.zeros_like(x)
    for i in range(bits):
        if 2 * i >= column:
            total += (x >> i & 1) << 2 * i
        for j in range(max(i + 1, column - 1 - i), bits):
            total += (x >> i & x >> j & 1) << i + j + 1
    return total


@cache
def _coefficients(table: Quadratic) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    c0, c1, c2 = (np.array(c, np.int64) for c in (table.c0, table.c1, table.c2))
    return c0 << table.constant_shift, c1 << table.linear_shift, c2


def _evaluate(table: Quadratic, mantissa: np.ndarray, first: np.ndarray | int = 0) -> np.ndarray:
    """y of 23-bit mantissas; ``first``: where the mantissa's segments begin."""
    segment = first + (mantissa >> table.bits)
    x = mantissa & ((1 << table.bits) - 1)
    c0, c1, c2 = _coefficients(table)
    square = _squares(table.bits, table.column)[x]
    return (c0[segment] + c1[segment] * x + c2[segment] * square + table.bias) >> table.dropped


def _fields(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sign, exponent field and mantissa."""
    bits = x.view(np.uint32).astype(np.int64)
    return bits >> 31, bits >> 23 & 255, bits & FRACTION


def _from_bits(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.float32)


@_device
def ex2_approx_ftz(x: np.ndarray) -> np.ndarray:
    """MUFU.EX2.  |x| is cut to 23 fraction bits; a result below 2^-126 is 0, 2^subnormal is 1."""
    sign, field, mantissa = _fields(x)
    up = np.clip(field - 127, 0, 9)
    down = np.clip(127 - field, 0, 63)
    fixed = (mantissa | 1 << 23) << up >> down
    # Negative arguments: the one's complement, except that integers stay what they are.
    negative = np.where(fixed & FRACTION == 0, -fixed, ~fixed)
    fixed = np.where(sign == 1, negative, fixed)
    exponent = fixed >> 23
    bits = (exponent + 127 << 23) | _evaluate(EX2, fixed & FRACTION) & FRACTION
    too_large = field >= 127 + 9
    bits = np.where((exponent < -126) | (too_large & (sign == 1)), 0, bits)
    bits = np.where((exponent > 127) | (too_large & (sign == 0)), INFINITY_BITS, bits)
    return np.where(np.isnan(x), NAN, np.where(field == 0, np.float32(1), _from_bits(bits)))


@_device
def rcp_approx_ftz(x: np.ndarray) -> np.ndarray:
    """MUFU.RCP."""
    sign, field, mantissa = _fields(x)
    y = _evaluate(RCP, mantissa)
    # Only 1 / 1.0 reaches 2^24, and there the mantissa is 0.
    result_field = np.where(y >= 1 << 24, 254, 253) - field
    bits = np.where(result_field <= 0, 0, (result_field << 23) | y & FRACTION)
    bits = np.where(field == 0, INFINITY_BITS, bits)
    bits = np.where(field == 255, 0, bits)
    return np.where(np.isnan(x), NAN, _from_bits(bits | sign << 31))


def _halved_exponent(field: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The exponent as 2 * half + odd."""
    odd = field - 127 & 1
    return (field - 127 - odd) >> 1, odd


@_device
def rsqrt_approx_ftz(x: np.ndarray) -> np.ndarray:
    """MUFU.RSQ.  Powers of four are exact; -0 and negative subnormals give -inf."""
    sign, field, mantissa = _fields(x)
    half, odd = _halved_exponent(field)
    bits = (126 - half << 23) | _evaluate(RSQ, mantissa, odd * 64) & FRACTION
    bits = np.where((mantissa == 0) & (odd == 0), 127 - half << 23, bits)
    bits = np.where(field == 255, 0, bits)
    bits = np.where(sign == 1, NAN_BITS, bits)
    bits = np.where(field == 0, INFINITY_BITS | sign << 31, bits)
    return np.where(np.isnan(x), NAN, _from_bits(bits))


@_device
def sqrt_approx_ftz(x: np.ndarray) -> np.ndarray:
    """MUFU.SQRT.  A zero keeps its sign, and a subnormal becomes one."""
    sign, field, mantissa = _fields(x)
    half, odd = _halved_exponent(field)
    bits = (127 + half << 23) | _evaluate(SQRT, mantissa, odd * 64) & FRACTION
    bits = np.where(field == 255, INFINITY_BITS, bits)
    bits = np.where(sign == 1, NAN_BITS, bits)
    bits = np.where(field == 0, sign << 31, bits)
    return np.where(np.isnan(x), NAN, _from_bits(bits))


@_device
def lg2_approx_ftz(x: np.ndarray) -> np.ndarray:
    """MUFU.LG2: exponent + log2(1.m) with 36 fraction bits, cut to 24 significant ones."""
    sign, field, mantissa = _fields(x)
    fixed = (field - 127 << 36) + _evaluate(LG2, mantissa)
    magnitude = np.where(fixed < 0, ~fixed, fixed)
    # |fixed| < 2^44, so the float64 is exact and its exponent is that of the leading bit.
    leading = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64) - 1
    cut = magnitude << np.clip(23 - leading, 0, 23) >> np.clip(leading - 23, 0, 63)
    bits = np.where(magnitude == 0, 0, (leading - 36 + 127 << 23) | cut & FRACTION)
    bits = bits | np.where(fixed < 0, 1 << 31, 0)
    bits = np.where((mantissa == 0) & (field == 127), 0, bits)
    bits = np.where(field == 255, INFINITY_BITS, bits)
    bits = np.where(sign == 1, NAN_BITS, bits)
    bits = np.where(field == 0, INFINITY_BITS | 1 << 31, bits)
    return np.where(np.isnan(x), NAN, _from_bits(bits))


# --------------------------------------------------------------------------- PTX without flushing


@_device
def ex2_approx(x: np.ndarray) -> np.ndarray:
    """ex2.approx.f32: below -126 the square of 2^(x/2), so that subnormal results exist."""
    small = x < np.float32(-126)
    y = ex2_approx_ftz(np.where(small, x * np.float32(0.5), x))
    return np.where(small, y * y, y)


@_device
def rcp_approx(x: np.ndarray) -> np.ndarray:
    """rcp.approx.f32."""
    scale = _divisor_scale(x, huge=np.float32(0.25))
    return scale * rcp_approx_ftz(x * scale)


def _subnormal(x: np.ndarray) -> np.ndarray:
    return np.abs(x) < SMALLEST_NORMAL


def _scaled_up(x: np.ndarray) -> np.ndarray:
    return np.where(_subnormal(x), x * np.float32(2.0**24), x)


@_device
def rsqrt_approx(x: np.ndarray) -> np.ndarray:
    """rsqrt.approx.f32 and CUDA's rsqrtf."""
    y = rsqrt_approx_ftz(_scaled_up(x))
    return np.where(_subnormal(x), y * np.float32(2.0**12), y)


@_device
def sqrt_approx(x: np.ndarray) -> np.ndarray:
    """sqrt.approx.f32."""
    y = sqrt_approx_ftz(_scaled_up(x))
    return np.where(_subnormal(x), y * np.float32(2.0**-12), y)


@_device
def lg2_approx(x: np.ndarray) -> np.ndarray:
    """lg2.approx.f32."""
    y = lg2_approx_ftz(_scaled_up(x))
    return np.where(_subnormal(x), y - np.float32(24), y)


# ------------------------------------------------------------------------------------------ CUDA


@_device
def expf(x: np.ndarray) -> np.ndarray:
    """CUDA's expf (without fast math): 2^n in steps of log2(e) x / 252, MUFU.EX2 for the rest."""
    clamped = fma(x, LOG2_E_OVER_252, np.float32(0.5))
    # fma.sat: a NaN becomes +0, but comes back with r below.
    clamped = np.where(np.isnan(clamped), 0, np.minimum(np.maximum(clamped, 0), 1))
    # fma.rm onto 12582913, where float32 has integers only; in float64 the product is exact
    steps = np.floor(clamped.astype(np.float64) * 252.0)
    shifted = (steps + 12582913.0).astype(np.float32)
    n = shifted - np.float32(12582913 + 126)
    r = fma(x, LOG2_E_LOW, fma(x, LOG2_E, -n))
    return ex2_approx_ftz(r) * (shifted.view(np.uint32) << np.uint32(23)).view(np.float32)


@_device
def fast_expf(x: np.ndarray) -> np.ndarray:
    """CUDA's __expf and Triton's tl.exp: ex2.approx of the rounded x * log2(e)."""
    return ex2_approx(x * LOG2_E)


@_device
def fast_expf_ftz(x: np.ndarray) -> np.ndarray:
    """Modular's exp on NVIDIA: ex2.approx.ftz of the rounded x * log2(e)."""
    return ex2_approx_ftz(x * LOG2_E)


@_device
def fast_logf(x: np.ndarray) -> np.ndarray:
    """CUDA's __logf: lg2.approx, then a product with ln(2)."""
    return lg2_approx(x) * LN_2


def rsqrtf(x: np.ndarray) -> np.ndarray:
    """CUDA's rsqrtf, which is rsqrt.approx.f32."""
    return rsqrt_approx(x)


def _divisor_scale(divisor: np.ndarray, huge: np.float32) -> np.ndarray:
    """2^24 for a subnormal (or NaN) divisor, ``huge`` above 2^126, else 1."""
    magnitude = np.abs(divisor)
    scale = np.where(magnitude > np.float32(2.0**126), huge, np.float32(1))
    return np.where(magnitude >= SMALLEST_NORMAL, scale, np.float32(2.0**24))


@_device
def div_full(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """div.full.f32, Triton's ``/``: a times MUFU.RCP(b), both scaled."""
    scale = _divisor_scale(b, huge=np.float32(0.25))
    return (a * scale) * rcp_approx_ftz(b * scale)


@_device
def div_approx(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """div.approx.f32, CUDA's __fdividef: 0 for a divisor above 2^126 (MUFU.RCP flushes)."""
    scale = _divisor_scale(b, huge=np.float32(1))
    return (a * scale) * rcp_approx_ftz(b * scale)


@_device
def fmin(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """FMNMX, min.f32: drops a NaN, and -0 is below +0."""
    return ieee_fmin(a, b)


@_device
def fmax(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """FMNMX, max.f32: drops a NaN, and +0 is above -0."""
    return ieee_fmax(a, b)


# ----------------------------------------------------------------------------------- conversions

#: code of every NaN that a conversion returns
NAN_CODES = {"bfloat16": 0x7FFF, "float16": 0x7FFF, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7F}


def convert(x: np.ndarray, dtype: str) -> np.ndarray:
    """cvt.rn: one rounding; to fp8 ``satfinite``.  A NaN becomes the device's positive one."""
    fmt = format_of(dtype)
    narrow = cast(x, fmt, saturate=fmt.bits == 8)
    bits = np.where(np.isnan(x), fmt.code_dtype.type(NAN_CODES[dtype]), narrow.view(fmt.code_dtype))
    return bits.view(fmt.dtype)


def cvt_bf16(x: np.ndarray) -> np.ndarray:
    """cvt.rn.bf16.f32."""
    return convert(x, "bfloat16")


def cvt_f16(x: np.ndarray) -> np.ndarray:
    """cvt.rn.f16.f32."""
    return convert(x, "float16")


def cvt_e4m3(x: np.ndarray) -> np.ndarray:
    """cvt.rn.satfinite.e4m3x2.f32."""
    return convert(x, "float8_e4m3fn")


def cvt_e5m2(x: np.ndarray) -> np.ndarray:
    """cvt.rn.satfinite.e5m2x2.f32."""
    return convert(x, "float8_e5m2")


# ------------------------------------------------------------------------ for recipes and kernels


def _function(name: str, numpy: Callable[..., np.ndarray]) -> Function:
    attribute = numpy.__name__
    return Function(name, numpy, f"refkern.hardware.sm90.compiled_functions:{attribute}")


EX2_APPROX = _function("ex2.approx", ex2_approx)
EX2_APPROX_FTZ = _function("ex2.approx.ftz", ex2_approx_ftz)
RCP_APPROX = _function("rcp.approx", rcp_approx)
RCP_APPROX_FTZ = _function("rcp.approx.ftz", rcp_approx_ftz)
RSQRT_APPROX = _function("rsqrt.approx", rsqrt_approx)
RSQRT_APPROX_FTZ = _function("rsqrt.approx.ftz", rsqrt_approx_ftz)
SQRT_APPROX = _function("sqrt.approx", sqrt_approx)
SQRT_APPROX_FTZ = _function("sqrt.approx.ftz", sqrt_approx_ftz)
LG2_APPROX = _function("lg2.approx", lg2_approx)
LG2_APPROX_FTZ = _function("lg2.approx.ftz", lg2_approx_ftz)
EXPF = _function("expf", expf)
FAST_EXPF = _function("__expf", fast_expf)
FAST_EXPF_FTZ = _function("__expf with ftz", fast_expf_ftz)
FAST_LOGF = _function("__logf", fast_logf)
RSQRTF = _function("rsqrtf", rsqrtf)
DIV_FULL = _function("div.full", div_full)
DIV_APPROX = _function("div.approx", div_approx)
FMIN = _function("min.f32", fmin)
FMAX = _function("max.f32", fmax)
CVT_BF16 = _function("cvt.rn.bf16", cvt_bf16)
CVT_F16 = _function("cvt.rn.f16", cvt_f16)
CVT_E4M3 = _function("cvt.rn.satfinite.e4m3", cvt_e4m3)
CVT_E5M2 = _function("cvt.rn.satfinite.e5m2", cvt_e5m2)
