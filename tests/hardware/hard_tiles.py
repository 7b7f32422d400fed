"""Random inputs for tensor-core instructions that are hard in one way each."""

from __future__ import annotations

import numpy as np

import refkern
from refkern import formats
from refkern.hardware.sm90.tensor_cores import TF32

#: every code; exponents close together; far apart; sums that cancel; an accumulator that decides
#: the alignment or is lost in it; products around the smallest numbers; sums a hair from halfway
CATEGORIES = ("codes", "near", "wide", "cancel", "accumulator", "subnormal", "halfway")


def random_operand(random, dtype, shape, spread, zeros=0.1):
    """Every significand, exponents within +-spread of a middle of the tile's own."""
    fmt = TF32 if dtype == np.float32 else formats.format_of(dtype)
    lowest = fmt.min_exponent - fmt.mantissa_bits
    highest = (fmt.max_finite >> fmt.mantissa_bits) - fmt.bias
    middle = random.integers(max(lowest, -70), min(highest, 60) + 1, (shape[0], 1, 1))
    exponent = np.clip(middle + random.integers(-spread, spread + 1, shape), lowest, highest)
    significand = 1 + random.integers(0, 1 << fmt.mantissa_bits, shape) / (1 << fmt.mantissa_bits)
    power_of_two = random.random(shape) < 0.2
    significand = np.where(power_of_two, 1, significand)
    value = np.ldexp(significand, exponent) * random.choice([-1.0, 1.0], shape)
    value = np.where(random.random(shape) < zeros, 0, value)
    return refkern.cast(value, dtype, saturate=dtype.itemsize == 1)


def random_tiles(random, instruction, k, category, tiles=2, m=5, n=3):
    """A, B [tiles, .., k] and C, hard in one way each."""
    dtype = instruction.dtype
    accumulator = instruction.accumulator.dtype
    shape = (tiles, m, n)
    if category == "codes":
        carrier = np.dtype(f"u{dtype.itemsize}")
        top = 1 << 8 * dtype.itemsize
        a = random.integers(0, top, (tiles, m, k), carrier).view(dtype)
        b = random.integers(0, top, (tiles, n, k), carrier).view(dtype)
        c = random.integers(0, 1 << 8 * accumulator.itemsize, shape, f"u{accumulator.itemsize}")
        usual = refkern.cast(random.normal(size=shape), accumulator)
        return a, b, np.where(random.random(shape) < 0.2, c.view(accumulator), usual)
    if category == "halfway":
        return halfway(random, instruction, k, tiles, m, n)
    spread = {"near": 2, "wide": 24, "cancel": 3, "accumulator": 4, "subnormal": 1}[category]
    a = random_operand(random, dtype, (tiles, m, k), spread)
    b = random_operand(random, dtype, (tiles, n, k), spread)
    if category == "subnormal":  # products and sums around the bottom of the format
        bottom = TF32.min_exponent if dtype == np.float32 else formats.format_of(dtype).min_exponent
        down = np.ldexp(
            1 + random.random((tiles, m, k)), bottom // 2 - random.integers(-3, 16, (tiles, 1, 1))
        )
        a = refkern.cast(down * random.choice([-1.0, 1.0], down.shape), dtype)
        b = refkern.cast(np.ldexp(1 + random.random((tiles, n, k)), bottom // 2 - 2), dtype)
    if category == "cancel":  # the second half undoes most of the first
        half = k // 2
        sign = np.where(random.random((tiles, 1, half)) < 0.8, -1, 1).astype(np.float32)
        a[..., half:] = refkern.cast(refkern.widen(a[..., :half]) * sign, dtype)
        b[..., half:] = b[..., :half]
    with np.errstate(all="ignore"):
        size = np.abs(refkern.widen(a)[:, :1, :1] * refkern.widen(b)[:, :1, :1]).astype(np.float64)
    size = np.where((size == 0) | ~np.isfinite(size), 1, size)
    places = {"accumulator": 28, "near": 3}.get(category, 12)
    c = np.ldexp(size * (1 + random.random(shape)), random.integers(-places, places + 1, shape))
    c = np.where(random.random(shape) < 0.25, 0, c * random.choice([-1.0, 1.0], shape))
    c = refkern.cast(c, accumulator)
    return a, b, np.where(np.isfinite(c.astype(np.float64)), c, accumulator.type(0))


def halfway(random, instruction, k, tiles, m, n):
    """c is a small multiple of 2^-24, one product half of that, another far below, both signs."""
    a, b = np.zeros((tiles, m, k)), np.zeros((tiles, n, k))
    places = random.permutation(k)
    sign = random.choice([-1.0, 1.0], (tiles, m))
    a[..., places[0]], b[..., places[0]] = 2.0**-12, 2.0**-13
    a[..., places[1]] = sign * np.ldexp(1.0, random.integers(-24, -12, (tiles, m)))
    b[..., places[1]] = np.ldexp(1.0, random.integers(-24, -8, (tiles, n)))
    c = np.ldexp(random.integers(-40, 40, (tiles, m, n)), -24)
    return (
        refkern.cast(a, instruction.dtype),
        refkern.cast(b, instruction.dtype),
        refkern.cast(c, instruction.accumulator.dtype),
    )
