"""Elementary functions as compiled scalars: the bits of `refkern.elementary`, written apart."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from refkern import elementary as reference
from refkern.compiled.bits import bits_float32, bits_float64, float64_bits, fma, jit

LOWEST, HIGHEST = reference.EXP_LOWEST, reference.EXP_HIGHEST
LOG2_E, LN2_HIGH, LN2_LOW = reference.LOG2_E, reference.LN2_HIGH, reference.LN2_LOW
C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13 = reference.EXP_COEFFICIENTS
#: adding this to a float64 of moderate size leaves the nearest integer in its low bits
ROUND_TO_INTEGER = 1.5 * 2.0**52


@jit
def exp_float64(x: Any) -> Any:
    """exp of a float32 as float64, within 2^-52; no branch, so that loops over it vectorise."""
    wide = numba.float64(x)
    # A NaN fails both comparisons and goes through.
    wide = LOWEST if wide < LOWEST else wide
    wide = HIGHEST if wide > HIGHEST else wide
    shifted = wide * LOG2_E + ROUND_TO_INTEGER
    k = shifted - ROUND_TO_INTEGER
    r = (wide - k * LN2_HIGH) - k * LN2_LOW
    q = ((((((((((C13 * r + C12) * r + C11) * r + C10) * r + C9) * r + C8) * r + C7) * r + C6) * r
            + C5) * r + C4) * r + C3) * r + C2  # fmt: skip
    fraction = 1.0 + (r + (r * r) * q)
    # 2^k in the exponent field; for a NaN it is garbage, and NaN times garbage is NaN.
    scale = bits_float64((float64_bits(shifted) + 1023) << 52)
    return fraction * scale


@jit
def exp(x: Any) -> Any:
    """Correctly rounded float32 exp."""
    return numba.float32(exp_float64(x))


CPU_LOWEST, CPU_HIGHEST = reference.MODULAR_CPU_LOWEST, reference.MODULAR_CPU_HIGHEST
CPU_LOG2_E, CPU_MINUS_LN2 = reference.MODULAR_CPU_LOG2_E, reference.MODULAR_CPU_MINUS_LN2
K0, K1, K2, K3, K4, K5, K6, K7 = reference.MODULAR_CPU_COEFFICIENTS


@jit
def exp_modular_cpu(x: Any) -> Any:
    clamped = CPU_LOWEST if x < CPU_LOWEST else x
    clamped = CPU_HIGHEST if clamped > CPU_HIGHEST else clamped
    k = np.floor(fma(clamped, CPU_LOG2_E, np.float32(0.5)))
    r = fma(k, CPU_MINUS_LN2, clamped)
    p = fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, K7, K6), K5), K4), K3), K2), K1), K0)
    # k + 127 by way of a float64 sum: no conversion of a NaN to an integer
    field = numba.uint32(float64_bits(numba.float64(k) + ROUND_TO_INTEGER) + 127)
    scaled = p * bits_float32(field << numba.uint32(23))
    return clamped if not (scaled > clamped) else scaled


@jit
def rsqrt(x: Any) -> Any:
    return numba.float32(1.0 / math.sqrt(numba.float64(x)))


@jit
def rsqrt_two_roundings(x: Any) -> Any:
    return np.float32(1) / np.sqrt(x)
