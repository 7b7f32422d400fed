"""Powers of two that block scales are rounded to: exact, on the bits of a float32."""

from __future__ import annotations

import numpy as np

from refkern.elementary import Function

MANTISSA = np.uint32(0x007FFFFF)

#: log2(1 + M * 2^-23) is below half an ULP of an exponent e, so that the correctly rounded
#: log2(2^e * (1 + M * 2^-23)) is the integer e itself, up to these M.  Indexed by how many bits
#: the distance between e's neighbours has: |e| in 2^j .. 2^(j+1) - 1 takes entry j, and a negative
#: power of two, whose neighbour is on the finer side, takes entry j - 1.
LOG2_HIDES = (0, 0, 1, 2, 5, 11, 22, 44)


def up(x: np.ndarray) -> np.ndarray:
    """The power of two at or above |x|, as exponent field + (mantissa != 0).

    0 stays +0, a subnormal becomes 2^-126, infinity stays, NaN stays.
    """
    bits = np.ascontiguousarray(x).view(np.uint32)
    field = (bits >> np.uint32(23)) & np.uint32(255)
    field = field + (bits & MANTISSA != 0).astype(np.uint32)
    result = (np.minimum(field, np.uint32(255)) << np.uint32(23)).view(np.float32)
    return np.where(np.isnan(x), x, result)


def up_finite(x: np.ndarray) -> np.ndarray:
    """As `up`, the exponent field clamped to 1 .. 254: infinity and NaN become 2^127, 0 2^-126."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    field = (bits >> np.uint32(23)) & np.uint32(255)
    field = field + (bits & MANTISSA != 0).astype(np.uint32)
    field = np.minimum(np.maximum(field, np.uint32(1)), np.uint32(254))
    return (field << np.uint32(23)).view(np.float32)


def up_log2(x: np.ndarray) -> np.ndarray:
    """exp2(ceil(log2 |x|)) with a correctly rounded float32 log2.

    That log2 is an integer e not only for 2^e but also for a few values above it, from |e| = 4 on
    (`LOG2_HIDES`): there the result is one power of two below `up`.  A device's own log2f may be
    off by an ULP, and then hides one value more or less.  0 stays +0, infinity and NaN stay.
    """
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(x) & (x != 0)
        significand, exponent = np.frexp(np.where(finite, np.abs(x), np.float32(1)))
    exponent = exponent.astype(np.int64) - 1
    above = np.ldexp(significand.astype(np.float64), 24).astype(np.int64) - (1 << 23)
    size = np.abs(exponent)
    bits = np.frexp(np.maximum(size, 1).astype(np.float64))[1] - 1
    finer = (exponent < 0) & (size & (size - 1) == 0) & (bits > 0)
    hidden = np.array(LOG2_HIDES)[bits - finer]
    exponent = exponent + (above > hidden)
    # float32 has 2^128 as infinity, and below 2^-126 as a subnormal.
    with np.errstate(over="ignore"):
        result = np.ldexp(np.float32(1), exponent)
    return np.where(finite, result, np.abs(x))


def down(x: np.ndarray) -> np.ndarray:
    """The power of two at or below x: the mantissa cleared."""
    return (np.ascontiguousarray(x).view(np.uint32) & ~MANTISSA).view(np.float32)


def reciprocal(x: np.ndarray) -> np.ndarray:
    """1 / 2^e as the exponent field 254 - field, with what that gives outside the normal range.

    Exact for 2^-126 .. 2^126.  +0 gives 2^127; infinity gives -infinity, since the field -1 fills
    the sign as well.
    """
    field = np.ascontiguousarray(x).view(np.uint32) >> np.uint32(23)
    return ((np.uint32(254) - field) << np.uint32(23)).view(np.float32)


def mx_floor(amax: np.ndarray) -> np.ndarray:
    """The OCP MX scale 2^(floor(log2 amax) - 8), from byte max(E - 8, 0) of amax's exponent E."""
    field = (np.ascontiguousarray(amax).view(np.uint32) >> np.uint32(23)).astype(np.int64)
    return np.ldexp(np.float32(1), np.maximum(field - 8, 0) - 127)


def mx_ceil(amax: np.ndarray) -> np.ndarray:
    """The scale of byte E - 8 + (significand of amax > 1.75), clamped to 0 .. 254.

    amax 0 and subnormals have E = 0 and so byte 0, which is 2^-127.
    """
    bits = np.ascontiguousarray(amax).view(np.uint32)
    field = (bits >> np.uint32(23)).astype(np.int64)
    byte = field - 8 + (bits & MANTISSA > np.uint32(0x600000))
    return np.ldexp(np.float32(1), np.clip(np.where(field == 0, 0, byte), 0, 254) - 127)


UP = Function("power-of-two-up", up, "refkern.compiled.powers:up", monotone=True)
UP_FINITE = Function(
    "power-of-two-up-finite", up_finite, "refkern.compiled.powers:up_finite", monotone=True
)
UP_LOG2 = Function(
    "power-of-two-up-log2", up_log2, "refkern.compiled.powers:up_log2", monotone=True
)
DOWN = Function("power-of-two-down", down, "refkern.compiled.powers:down", monotone=True)
RECIPROCAL = Function(
    "power-of-two-reciprocal", reciprocal, "refkern.compiled.powers:reciprocal", monotone=True
)
MX_FLOOR = Function("mx-floor", mx_floor, "refkern.compiled.powers:mx_floor", monotone=True)
MX_CEIL = Function("mx-ceil", mx_ceil, "refkern.compiled.powers:mx_ceil", monotone=True)
