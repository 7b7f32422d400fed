"""Every float32 into every narrow format: numba, numpy and exact midpoints give the same codes.

The third opinion: a rounding is monotone, so over the positive float32 bit patterns a code is a
step function.  Its steps are midpoints of neighbouring values, worked out in rational arithmetic.

The numba casts are run on all inputs.  So is numpy's, except that with saturation it is run on the
blocks with zero or with what overflows: elsewhere it is the same code on the same numbers.

Prints a table; exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numba import uint32

from refkern import cast
from refkern.compiled import casts
from refkern.compiled.bits import bits_float32, jit
from refkern.formats import FLOAT32, NARROW, Format, codes
from refkern.threads import available_threads

BLOCK, CHUNK = 1 << 22, 1 << 13
INFINITY = 0x7F800000


def value_of(code: int, fmt: Format) -> Fraction:
    """The exact value of a positive finite code; the one past the largest, as if it went on."""
    if fmt.scale_only:
        return Fraction(2) ** (code - fmt.bias)
    field, fraction = divmod(code, 1 << fmt.mantissa_bits)
    hidden = (1 << fmt.mantissa_bits) if field else 0
    return (hidden + fraction) * Fraction(2) ** (max(field, 1) - fmt.bias - fmt.mantissa_bits)


def float32_not_below(value: Fraction) -> tuple[int, bool]:
    """The bits of the smallest float32 >= ``value`` > 0, and whether it is equal."""
    low, high = 0, INFINITY
    while low < high:
        middle = (low + high) // 2
        if value_of(middle, FLOAT32) >= value:
            high = middle
        else:
            low = middle + 1
    return low, low < INFINITY and value_of(low, FLOAT32) == value


def first_of_each_code(fmt: Format, rounding: str) -> np.ndarray:
    """For each code 0 .. largest + 1 the first positive float32 bit pattern that rounds to it."""
    firsts = [0]
    for code in range(1, fmt.max_finite + 2):
        below, value = value_of(code - 1, fmt), value_of(code, fmt)
        if rounding == "down":
            first, _ = float32_not_below(value)
        elif rounding == "up":
            first, equal = float32_not_below(below)
            first += equal
        else:
            first, tie = float32_not_below((below + value) / 2)
            first += tie and rounding == "nearest-even" and code % 2 == 1
        firsts.append(first)
    return np.array(firsts, np.int64)


@cache
def steps(fmt: Format, rounding: str) -> np.ndarray:
    return first_of_each_code(fmt, rounding)


def expected(magnitude: np.ndarray, fmt: Format, rounding: str, saturate: bool) -> np.ndarray:
    """The codes of consecutive positive bit patterns below infinity and at it."""
    code = np.searchsorted(steps(fmt, rounding), magnitude, side="right") - 1
    overflow = fmt.max_finite if saturate else fmt.overflow
    code = np.where((code > fmt.max_finite) | (magnitude == INFINITY), overflow, code)
    if fmt.scale_only:
        code = np.where(magnitude == 0, 0 if saturate else fmt.nan, code)
    return np.where(magnitude > INFINITY, fmt.nan, code)


def kernel_of(fmt: Format, rounding: str, saturate: bool) -> Any:
    if fmt.scale_only:
        narrow = casts.narrow_scale(FLOAT32, rounding, saturate)
    else:
        narrow = casts.narrow(FLOAT32, fmt, saturate, canonical=False)

    @jit
    def run(first: int, out: Any) -> None:
        for i in range(out.size):
            out[i] = narrow(bits_float32(uint32(first + i)))

    return run


def block(first: int, fmt: Format, rounding: str, saturate: bool, run: Any) -> tuple[int, int, int]:
    """One block: (numba differs from the midpoints, numpy from numba, inputs that numpy had)."""
    wrong, different, by_numpy = 0, 0, 0
    magnitudes = first & 0x7FFFFFFF
    overflow = int(steps(fmt, rounding)[fmt.max_finite + 1])
    with_numpy = not saturate or magnitudes == 0 or magnitudes + BLOCK > overflow
    got = np.empty(CHUNK, fmt.code_dtype)
    for at in range(first, first + BLOCK, CHUNK):
        run(at, got)
        bits = np.arange(at, at + CHUNK, dtype=np.int64)
        magnitude, negative = bits & 0x7FFFFFFF, at >= 1 << 31
        # One step or two in a chunk, where a search in all of them would take the time.
        want = expected_chunk(magnitude, fmt, rounding, saturate)
        if negative and fmt.scale_only:
            zero = fmt.nan if not saturate else 0
            want = np.where(magnitude == 0, zero, fmt.nan)
        elif negative:
            want = want | fmt.sign
        wrong += int(np.count_nonzero(want != got))
        if with_numpy:
            x = bits.astype(np.uint32).view(np.float32)
            cast_codes = codes(cast(x, fmt, saturate=saturate, rounding=rounding))
            different += int(np.count_nonzero(cast_codes != got))
            by_numpy += CHUNK
    return wrong, different, by_numpy


def expected_chunk(magnitude: np.ndarray, fmt: Format, rounding: str, saturate: bool) -> np.ndarray:
    ends = expected(magnitude[[0, -1]], fmt, rounding, saturate)
    inside = magnitude[0] > 0 and (magnitude[-1] < INFINITY or magnitude[0] > INFINITY)
    if inside and ends[0] == ends[1]:  # monotone: all between are the same
        return np.full(magnitude.size, ends[0])
    return expected(magnitude, fmt, rounding, saturate)


def every_cast() -> Iterator[tuple[Format, str, bool]]:
    for fmt in NARROW:
        for rounding in ("up", "down", "nearest") if fmt.scale_only else ("nearest-even",):
            for saturate in (False, True):
                yield fmt, rounding, saturate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=available_threads())
    parser.add_argument("--stride", type=int, default=1, help="only every so-manyth block")
    parser.add_argument("--format", help="only this format")
    options = parser.parse_args()

    failed = False
    starts = range(0, 1 << 32, BLOCK * options.stride)
    for fmt, rounding, saturate in every_cast():
        if options.format not in (None, fmt.name):
            continue
        began = time.perf_counter()
        run = kernel_of(fmt, rounding, saturate)
        steps(fmt, rounding)
        with ThreadPoolExecutor(options.threads) as pool:
            arguments = (fmt, rounding, saturate, run)
            results = list(pool.map(lambda first, a=arguments: block(first, *a), starts))
        wrong, different, by_numpy = map(sum, zip(*results, strict=True))
        failed = failed or wrong + different > 0
        print(
            f"{fmt.name:15} {rounding:12} saturate={saturate!s:5} {len(starts) * BLOCK} inputs: "
            f"numba wrong {wrong}; {by_numpy} by numpy: different {different}; "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
