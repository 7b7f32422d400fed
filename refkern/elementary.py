"""Elementary functions of float32 whose bits are the same on every machine.

Built from operations that IEEE 754 makes exact or correctly rounded (+ - * / sqrt, comparisons,
rint, ldexp, integer operations): numpy's own exp and log depend on the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Function:
    """A named elementary function: the numpy version here, the numba version by import path."""

    name: str
    numpy: Callable[..., np.ndarray] = field(repr=False, compare=False)
    #: "module:attribute" of the numba version, which only a kernel imports
    compiled: str = field(repr=False)

    def __call__(self, *arguments: np.ndarray) -> np.ndarray:
        return self.numpy(*arguments)

    def load_compiled(self) -> Any:
        module, attribute = self.compiled.split(":")
        return getattr(import_module(module), attribute)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32 a * b + c with one rounding.

    The product of two float32 is exact in float64.  The float64 sum is moved to its odd neighbour
    where it was inexact (TwoSum gives the error exactly), so that rounding it to float32 cannot
    meet a false midpoint: 53 bits are more than 2 * 24 + 2.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = np.asarray(product + addend)
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(np.int64)
    # NaN and infinity have a NaN error, which compares as neither.
    move = (np.abs(error) > 0) & (bits & 1 == 0)
    outward = (error > 0) == (total > 0)
    odd = bits + np.where(move, np.where(outward, 1, -1), 0)
    return odd.view(np.float64).astype(np.float32)


def fmin(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The smaller operand; the other one where one is NaN; -0 is below +0 (FMNMX, PTX min.f32)."""
    either_negative = np.signbit(a) | np.signbit(b)
    zero = np.where(either_negative, np.float32(-0.0), np.float32(0))
    return np.where((a == 0) & (b == 0), zero, np.fmin(a, b))


def fmax(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The larger operand; the other one where one is NaN; +0 is above -0 (FMNMX, PTX max.f32)."""
    both_negative = np.signbit(a) & np.signbit(b)
    zero = np.where(both_negative, np.float32(-0.0), np.float32(0))
    return np.where((a == 0) & (b == 0), zero, np.fmax(a, b))


LOG2_E = float.fromhex("0x1.71547652b82fep+0")
#: ln 2 in two parts; the first ends in 20 zero bits, so its product with |k| < 2^20 is exact
LN2_HIGH = float.fromhex("0x1.62e42fef00000p-1")
LN2_LOW = float.fromhex("0x1.473de6af278edp-34")
#: 1/k! for k = 2 .. 13: on |r| <= ln 2 / 2 what is left out is below 2^-57 of exp(r)
EXP_COEFFICIENTS = tuple(
    float.fromhex(c)
    for c in (
        "0x1.0000000000000p-1",
        "0x1.5555555555555p-3",
        "0x1.5555555555555p-5",
        "0x1.1111111111111p-7",
        "0x1.6c16c16c16c17p-10",
        "0x1.a01a01a01a01ap-13",
        "0x1.a01a01a01a01ap-16",
        "0x1.71de3a556c734p-19",
        "0x1.27e4fb7789f5cp-22",
        "0x1.ae64567f544e4p-26",
        "0x1.1eed8eff8d898p-29",
        "0x1.6124613a86d09p-33",
    )
)
#: beyond these float32 exp is 0 (below half of 2^-149) and infinity
EXP_LOWEST, EXP_HIGHEST = -104.0, 89.0


def exp_float64(x: np.ndarray) -> np.ndarray:
    """exp of ``x`` as float64, within 2^-52 of it for float32 ``x`` (docs/numerics.md).

    exp(x) = 2^k * exp(r), |r| <= ln 2 / 2; exp(r) = 1 + (r + r^2 * q(r)), smallest terms first.
    """
    wide = np.minimum(np.maximum(x.astype(np.float64), EXP_LOWEST), EXP_HIGHEST)
    k = np.rint(wide * LOG2_E)
    r = (wide - k * LN2_HIGH) - k * LN2_LOW
    q = np.full_like(r, EXP_COEFFICIENTS[-1])
    for coefficient in EXP_COEFFICIENTS[-2::-1]:
        q = q * r + coefficient
    fraction = 1.0 + (r + (r * r) * q)
    return np.ldexp(fraction, np.where(np.isnan(k), 0, k).astype(np.int32))


def exp_correctly_rounded(x: np.ndarray) -> np.ndarray:
    """float32 exp, the nearest float32 on all 2^32 inputs (proven: tests/exhaustive/exp.py)."""
    return exp_float64(x).astype(np.float32)


#: Modular's CPU exp clamps to these, then evaluates a Taylor polynomial in float32
MODULAR_CPU_LOWEST = np.float32(-88.3762626647949)
MODULAR_CPU_HIGHEST = np.uint32(0x42B0C0A6).view(np.float32)
MODULAR_CPU_LOG2_E = np.float32(1.44269504088896340736)
MODULAR_CPU_MINUS_LN2 = np.float32(-0.69314718055994530942)
#: 1/k! for k = 0 .. 7, rounded to float32
MODULAR_CPU_COEFFICIENTS = tuple(np.float32(1 / f) for f in (1, 1, 2, 6, 24, 120, 720, 5040))


def exp_modular_cpu(x: np.ndarray) -> np.ndarray:
    """exp as Modular's CPU code has it (MAX 26.7): up to 4.5 ULP off, infinite from 88.376266 on.

    2^k is assembled in the exponent field, so k = 128 makes an infinity and k = -127 a zero.
    """
    one = np.float32(1)
    clamped = np.minimum(np.maximum(x, MODULAR_CPU_LOWEST), MODULAR_CPU_HIGHEST)
    k = np.floor(fma(clamped, MODULAR_CPU_LOG2_E, np.float32(0.5)))
    r = fma(k, MODULAR_CPU_MINUS_LN2, clamped)
    p = np.broadcast_to(MODULAR_CPU_COEFFICIENTS[-1] * one, r.shape)
    for coefficient in MODULAR_CPU_COEFFICIENTS[-2::-1]:
        p = fma(r, p, coefficient)
    field = np.where(np.isnan(k), 0, k).astype(np.int32) + np.int32(127)
    scaled = p * (field << np.int32(23)).view(np.float32)
    # The original takes max(result, clamped argument), which brings a NaN through.
    return np.maximum(scaled, clamped)


def rsqrt_correctly_rounded(x: np.ndarray) -> np.ndarray:
    """float32 1/sqrt(x), the nearest float32.

    Two float64 roundings and one to float32; that the double rounding never matters is proven on
    all significands of two binades (tests/exhaustive/rsqrt.py).  -0 gives -inf, as IEEE 754 says.
    """
    return (1.0 / np.sqrt(x.astype(np.float64))).astype(np.float32)


def rsqrt_two_roundings(x: np.ndarray) -> np.ndarray:
    """float32 1 / sqrt(x) as two rounded operations."""
    return np.float32(1) / np.sqrt(x)


EXP = Function("exp", exp_correctly_rounded, "refkern.compiled.elementary:exp")
EXP_MODULAR_CPU = Function(
    "exp-modular-cpu", exp_modular_cpu, "refkern.compiled.elementary:exp_modular_cpu"
)
RSQRT = Function("rsqrt", rsqrt_correctly_rounded, "refkern.compiled.elementary:rsqrt")
RSQRT_TWO_ROUNDINGS = Function(
    "1/sqrt", rsqrt_two_roundings, "refkern.compiled.elementary:rsqrt_two_roundings"
)
