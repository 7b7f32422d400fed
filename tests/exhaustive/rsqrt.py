"""Proof that rsqrt is correctly rounded on all float32 inputs, and that both versions agree.

1/sqrt(x) is taken in float64 and rounded to float32.  Multiplying x by 4 halves the result and
changes nothing else, neither in float64 nor in float32 (the results lie between 2^-64 and 2^75), so
two neighbouring binades of x stand for all positive inputs; a subnormal is a significand with
zeros at its end.  For each x = X * 2^-23 of them the result Z * 2^-24 is held against the exact
1/sqrt(x): it is the nearest float32 if 1/sqrt(x) lies between the midpoints (2Z - 1) * 2^-25 and
(2Z + 1) * 2^-25, that is if X * (2Z - 1)^2 < 2^73 < X * (2Z + 1)^2, in integers.

Then all 2^32 inputs: numba and numpy give the same bits, for rsqrt and for 1 / sqrt in float32.

Prints a table; exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import uint32

from refkern import elementary
from refkern.compiled import elementary as compiled
from refkern.compiled.bits import bits_float32, float32_bits, jit
from refkern.threads import available_threads

BLOCK, CHUNK = 1 << 22, 1 << 13
NAN = 0x7FC00000


def at_least_2_to_73(significand: np.ndarray, midpoint: np.ndarray) -> np.ndarray:
    """significand * midpoint^2 >= 2^73, exactly, in 64-bit integers."""
    square = midpoint * midpoint  # below 2^51
    high, low = square >> 25, square & ((1 << 25) - 1)
    return significand * high + (significand * low >> 25) >= 1 << 48


def wrong_significands(lowest: float) -> tuple[int, int]:
    """(inputs, wrong results) of the binade [lowest, 2 * lowest), lowest 1 or 2."""
    first = int(np.float32(lowest).view(np.uint32))
    x = np.arange(first, first + (1 << 23), dtype=np.uint32).view(np.float32)
    significand = (x.astype(np.float64) * 2.0**23).astype(np.int64)
    result = elementary.rsqrt_correctly_rounded(x).astype(np.float64) * 2.0**24
    assert (result == np.rint(result)).all()
    assert ((result >= 2.0**23) & (result <= 2.0**24)).all()
    twice = 2 * result.astype(np.int64)
    right = ~at_least_2_to_73(significand, twice - 1) & at_least_2_to_73(significand, twice + 1)
    return x.size, int(np.count_nonzero(~right))


@jit
def evaluate(first: int, one: Any, two: Any) -> None:
    for i in range(one.size):
        x = bits_float32(uint32(first + i))
        y, z = compiled.rsqrt(x), compiled.rsqrt_two_roundings(x)
        one[i] = uint32(NAN) if y != y else float32_bits(y)
        two[i] = uint32(NAN) if z != z else float32_bits(z)


def differences(first: int) -> tuple[int, int]:
    """Inputs of one block where numba and numpy differ, a NaN being a NaN."""
    kernels = [np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint32)]
    functions = [elementary.rsqrt_correctly_rounded, elementary.rsqrt_two_roundings]
    different = [0, 0]
    for at in range(first, first + BLOCK, CHUNK):
        evaluate(at, *kernels)
        x = np.arange(at, at + CHUNK, dtype=np.int64).astype(np.uint32).view(np.float32)
        for which, (function, kernel) in enumerate(zip(functions, kernels, strict=True)):
            with np.errstate(all="ignore"):
                y = function(x)
            bits = np.where(y != y, np.uint32(NAN), y.view(np.uint32))
            different[which] += int(np.count_nonzero(bits != kernel))
    return different[0], different[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=available_threads())
    options = parser.parse_args()

    began = time.perf_counter()
    wrong = 0
    for lowest in (1.0, 2.0):
        inputs, bad = wrong_significands(lowest)
        print(f"binade [{lowest:g}, {2 * lowest:g}): {inputs} significands, wrong: {bad}")
        wrong += bad
    print(f"seconds: {time.perf_counter() - began:.1f}")

    began = time.perf_counter()
    with ThreadPoolExecutor(options.threads) as pool:
        results = list(pool.map(differences, range(0, 1 << 32, BLOCK)))
    for name, different in zip(
        ("rsqrt", "1/sqrt"), map(sum, zip(*results, strict=True)), strict=True
    ):
        print(f"{name:7} {1 << 32} inputs, numba differs from numpy: {different}")
        wrong += different
    print(f"seconds: {time.perf_counter() - began:.0f} on {options.threads} threads")
    return int(wrong != 0)


if __name__ == "__main__":
    sys.exit(main())
