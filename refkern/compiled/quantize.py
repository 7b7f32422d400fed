"""The fp8 quantiser as a kernel: the bits of `refkern.quantize`, written apart.

One compiled loop serves every rule: what a rule chooses once a group is a branch, and only how an
element becomes a code is a loop of its own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from refkern.compiled import casts, powers
from refkern.compiled.bits import jit
from refkern.compiled.rows import rows_of
from refkern.formats import FLOAT8_E4M3FN, FLOAT32, Format, format_of, from_codes
from refkern.powers import MX_CEIL, MX_FLOOR, UP, UP_FINITE, UP_LOG2
from refkern.quantize import (
    FACTOR_GUARDED,
    FACTOR_GUARDED_POWER,
    FACTOR_OR_ONE,
    Scaling,
)
from refkern.threads import launch

NANOSECONDS_AN_ELEMENT = 1.5
ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
INFINITY = np.float32(np.inf)

#: the choices of a `Scaling` as the numbers that the kernel branches on
SCALES = {"quotient": 0, "product": 1, "from-factor": 2, MX_FLOOR: 3, MX_CEIL: 4}
FACTORS = {None: 0, FACTOR_OR_ONE: 1, FACTOR_GUARDED: 2, FACTOR_GUARDED_POWER: 3}
POWERS = {None: 0, UP: 1, UP_FINITE: 2, UP_LOG2: 3}
APPLIES = {"inverse": 0, "exponent": 1, "factor": 2, "quotient": 3}
CLAMPS = {"none": 0, "drops-nan": 1, "keeps-nan": 2}


def encode(scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
    """A `Scaling` as the kernel takes it: its choices, and its float32 constants."""
    choices = (
        scaling.nan == "kept",
        SCALES[scaling.scale],
        FACTORS[scaling.factor],
        POWERS[scaling.power_of_two],
        APPLIES[scaling.apply],
        CLAMPS[scaling.clamp],
        scaling.saturate,
        scaling.fnuz,
    )
    constants = (scaling.amax_floor, scaling.largest, 1 / scaling.largest, scaling.scale_floor)
    return np.array(choices, np.int64), np.array(constants, np.float32)


def quantize_rows(x: np.ndarray, group: int, scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
    """[rows, K] -> e4m3fn code bytes [rows, K], float32 scales [rows, ceil(K / group)]."""
    rows, k = x.shape
    groups = -(-k // group)
    made = np.empty((rows, k), np.uint8)
    scales = np.empty((rows, groups), np.float32)
    source = format_of(x.dtype)
    flat, stride = rows_of(x)
    choices, constants = encode(scaling)
    largest = np.array(source.max_finite, source.code_dtype)
    limit = np.float32(from_codes(largest, source))
    kernel = quantizer(source)

    def block(first: int, stop: int) -> None:
        kernel(flat, stride, k, group, choices, constants, limit, made, scales, first, stop)

    if groups:
        launch(block, rows * groups, min(group, k) * NANOSECONDS_AN_ELEMENT)
    return made, scales


@jit
def factor_or_one(amax: Any, largest: Any, limit: Any) -> Any:
    return ONE if amax == ZERO else largest / amax


@jit
def factor_guarded(amax: Any, largest: Any, limit: Any) -> Any:
    if not ZERO < amax < INFINITY:
        return ONE
    factor = largest / amax
    return limit if factor == INFINITY else factor


@jit
def factor_guarded_power(amax: Any, largest: Any, limit: Any) -> Any:
    return powers.down(factor_guarded(amax, largest, limit))


@jit
def _scale(amax: Any, choices: Any, constants: Any, limit: Any) -> Any:
    """The scale of a group, and what its elements are multiplied with or divided by."""
    by_scale, by_factor, by_power, apply = choices[1:5]
    floor, largest, reciprocal, scale_floor = constants
    if amax < floor:
        amax = floor
    factor = ONE
    if by_factor == 1:
        factor = factor_or_one(amax, largest, limit)
    elif by_factor == 2:
        factor = factor_guarded(amax, largest, limit)
    elif by_factor == 3:
        factor = factor_guarded_power(amax, largest, limit)
    elif apply == 2:
        factor = largest / amax
    if by_scale == 0:
        scale = amax / largest
    elif by_scale == 1:
        scale = amax * reciprocal
    elif by_scale == 2:
        scale = ONE / factor
    elif by_scale == 3:
        scale = powers.mx_floor(amax)
    else:
        scale = powers.mx_ceil(amax)
    if scale < scale_floor:
        scale = scale_floor
    if by_power == 1:
        scale = powers.up(scale)
    elif by_power == 2:
        scale = powers.up_finite(scale)
    elif by_power == 3:
        scale = powers.up_log2(scale)
    if apply == 0:
        factor = ONE / scale
    elif apply == 1:
        factor = powers.reciprocal(scale)
    elif apply == 3:
        factor = scale
    return scale, factor


@cache
def quantizer(source: Format) -> Any:
    """jitted: groups first .. stop of [rows, K] codes of ``source``, one after the other."""
    widen = casts.widen(source)
    saturating = casts.narrow(FLOAT32, FLOAT8_E4M3FN, saturate=True)
    overflowing = casts.narrow(FLOAT32, FLOAT8_E4M3FN)
    store = casts.narrow(FLOAT32, FLOAT32)

    @jit
    def quantize(
        x: Any, stride: int, k: int, group: int, choices: Any, constants: Any, limit: Any,
        made: Any, scales: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        groups = (k + group - 1) // group
        keeps_nan, divides, clamp = choices[0] != 0, choices[4] == 3, choices[5]
        saturates, fnuz = choices[6] != 0, choices[7] != 0
        largest = constants[1]
        for unit in range(first, stop):
            row, start = unit // groups, unit % groups * group
            size = min(group, k - start)
            at = row * stride + start
            amax, nan = ZERO, False
            for i in range(size):
                magnitude = abs(widen(x[at + i]))
                amax = magnitude if magnitude > amax else amax
                nan |= magnitude != magnitude
            if nan and keeps_nan:
                amax = np.float32(np.nan)
            scale, factor = _scale(amax, choices, constants, limit)
            scales.view(np.uint32)[row, unit % groups] = store(scale)
            for i in range(size):
                value = widen(x[at + i])
                value = value / factor if divides else value * factor
                if clamp:
                    if not value > -largest and (value == value or clamp == 1):
                        value = -largest
                    if value > largest:
                        value = largest
                if fnuz:
                    value *= TWO
                code = saturating(value) if saturates else overflowing(value)
                # What overflows into NaN has a sign, the canonical NaN has none.
                made[row, start + i] = 0x7F if code == 0xFF else code

    return quantize
