"""Proof that exp is correctly rounded on all 2^32 float32 inputs (docs/numerics.md).

The float64 evaluation is within `error_bound()` of exp.  Where everything within that bound rounds
to one float32, the result is right; the inputs where it does not are settled by MPFR.  The numba
kernel is run on every input, and the numpy version must give the same float64 bits on each.

Prints a table; exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
from numba import float32, uint32

from refkern.compiled import elementary
from refkern.compiled.bits import bits_float32, jit
from refkern.elementary import EXP_COEFFICIENTS, LN2_HIGH, LN2_LOW, exp_float64
from refkern.threads import available_threads

BLOCK, CHUNK = 1 << 22, 1 << 13
#: twice the proven bound, so that the rounding of y * (1 + MARGIN) does not matter
MARGIN = 2.0**-51
#: inputs closer than this to a rounding boundary are candidates for the list of hardest cases
CLOSE = 2.0**-44
HARDEST = 256
#: binary32 with subnormals, rounded once
BINARY32 = gmpy2.context(precision=24, emax=128, emin=-148, subnormalize=True)
WIDE = gmpy2.context(precision=200)


def error_bound() -> dict[str, float]:
    """Each step's share of the error of `exp_float64`, relative to exp(x), in units of 2^-53.

    r is the reduced argument, |r| <= R.  An operation whose result is below 2^e in magnitude
    rounds by at most 2^(e - 54), half a unit in the last place of the binade below 2^e.
    """
    with WIDE:
        ln2 = gmpy2.log(gmpy2.mpfr(2))
        largest = (gmpy2.mpfr("0.5") + gmpy2.mpfr(2) ** -40) * ln2  # R; k is off by far less
        reduction_constant = 150 * abs(ln2 - LN2_HIGH - LN2_LOW)
        e_to_r = gmpy2.exp(largest)
        truncation = sum(largest**j / gmpy2.factorial(j) for j in range(14, 40))
        coefficients = sum(
            abs(gmpy2.mpfr(c) - 1 / gmpy2.factorial(j)) * largest**j
            for j, c in enumerate(EXP_COEFFICIENTS, 2)
        )
        # Horner's scheme: the error so far times r, then the product's and the sum's rounding.
        value = gmpy2.mpfr(EXP_COEFFICIENTS[-1])
        error = gmpy2.mpfr(0)
        for c in EXP_COEFFICIENTS[-2::-1]:
            product = value * largest
            error = error * largest + half_ulp(product * (1 + gmpy2.mpfr(2) ** -40))
            value = product + c
            error += half_ulp(value * (1 + gmpy2.mpfr(2) ** -40))
        square = largest**2
        shares: dict[str, Any] = {
            # t = x - k * LN2_HIGH is exact: a multiple of 2^-33 below 2^32 * 2^-33
            "reduction": half_ulp(largest) + half_ulp(150 * LN2_LOW) + reduction_constant,
            "truncation": truncation,
            "coefficients": coefficients,
            "q": square * error,
            "r * r": half_ulp(square) * value,
            "(r * r) * q": half_ulp(square * value),
            "r + ...": half_ulp(e_to_r - 1),
        }
        # 1 + ...: the result is in [1, 2) for r >= 0 and in [0.5, 1) for r < 0.
        up = {**shares, "1 + ...": gmpy2.mpfr(2) ** -53}
        up["reduction"] = shares["reduction"] * e_to_r
        down = {**shares, "1 + ...": gmpy2.mpfr(2) ** -54}
        down = {name: share * e_to_r for name, share in down.items()}  # relative to exp(-R)
        down["reduction"] = shares["reduction"]  # an error of r is a relative one of exp(r)
        worst = max(up, down, key=lambda s: sum(s.values()))
        return {name: float(share * gmpy2.mpfr(2) ** 53) for name, share in worst.items()}


def half_ulp(size: Any) -> Any:
    """The largest rounding error of a float64 operation whose exact result is up to ``size``."""
    exponent = gmpy2.frexp(gmpy2.mpfr(size))[0]  # size < 2^exponent
    return gmpy2.mpfr(2) ** (exponent - 54)


@jit
def evaluate(first: int, wide: Any, rounded: Any) -> None:
    """The kernel and its float64 evaluation on the bit patterns from ``first`` on."""
    for i in range(wide.size):
        x = bits_float32(uint32(first + i))
        wide[i] = elementary.exp_float64(x)
        rounded[i] = elementary.exp(x)


@jit
def check(first: int, wide: Any, rounded: Any, close: Any) -> Any:
    """(results that are wrong, inputs that the bound leaves open, ``close`` inputs found)."""
    wrong, undecided, found = 0, 0, 0
    for i in range(wide.size):
        y = wide[i]
        if y != y:
            magnitude = uint32(first + i) & uint32(0x7FFFFFFF)
            wrong += magnitude <= uint32(0x7F800000) or rounded[i] == rounded[i]
            continue
        wrong += rounded[i] != float32(y)
        if float32(y * (1.0 - CLOSE)) != float32(y * (1.0 + CLOSE)):
            close[found] = uint32(first + i)
            found += 1
            undecided += float32(y * (1.0 - MARGIN)) != float32(y * (1.0 + MARGIN))
    return wrong, undecided, found


def run_block(first: int, with_numpy: bool) -> tuple[int, int, np.ndarray, int]:
    wide, rounded = np.empty(CHUNK, np.float64), np.empty(CHUNK, np.float32)
    close = np.empty(CHUNK, np.uint32)
    wrong, undecided, different = 0, 0, 0
    all_close = []
    for at in range(first, first + BLOCK, CHUNK):
        evaluate(at, wide, rounded)
        counts = check(at, wide, rounded, close)
        wrong, undecided = wrong + counts[0], undecided + counts[1]
        all_close.append(close[: counts[2]].copy())
        if with_numpy:
            x = np.arange(at, at + CHUNK, dtype=np.int64).astype(np.uint32).view(np.float32)
            with np.errstate(all="ignore"):
                y = exp_float64(x)
            same = (y.view(np.int64) == wide.view(np.int64)) | ((y != y) & (wide != wide))
            different += int(np.count_nonzero(~same))
    return wrong, undecided, np.concatenate(all_close), different


def truth(x: float) -> np.float32:
    return np.float32(float(BINARY32.exp(gmpy2.mpfr(x))))


def boundary_distance(x: float) -> float:
    """How far exp(x) is from the nearest point where the float32 rounding changes, in ULP."""
    with WIDE:
        exact = gmpy2.exp(gmpy2.mpfr(x))
        ulp = gmpy2.mpfr(2) ** (max(gmpy2.frexp(exact)[0] - 1, -126) - 23)
        place = exact / ulp
        distance = abs(place - gmpy2.floor(place) - gmpy2.mpfr("0.5"))
        return float(distance)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=available_threads())
    parser.add_argument("--no-numpy", action="store_true", help="leave the numpy version out")
    parser.add_argument("--hardest", type=Path, help="write the hardest inputs to this .npy file")
    options = parser.parse_args()

    shares = error_bound()
    bound = sum(shares.values())
    for name, share in shares.items():
        print(f"error of {name:14} {share:8.4f} * 2^-53")
    print(f"error bound          {bound:8.4f} * 2^-53, 2 is needed")

    began = time.perf_counter()
    starts = range(0, 1 << 32, BLOCK)
    with ThreadPoolExecutor(options.threads) as pool:
        results = list(pool.map(lambda first: run_block(first, not options.no_numpy), starts))
    seconds = time.perf_counter() - began
    wrong = sum(r[0] for r in results)
    undecided = sum(r[1] for r in results)
    close = np.concatenate([r[2] for r in results])
    different = sum(r[3] for r in results)

    x = close.view(np.float32)
    kernel = np.array([elementary.exp(v) for v in x], np.float32)
    expected = np.array([truth(float(v)) for v in x], np.float32)
    settled_wrong = int(np.count_nonzero(kernel.view(np.uint32) != expected.view(np.uint32)))
    distances = np.array([boundary_distance(float(v)) for v in x])
    order = np.argsort(distances, kind="stable")[:HARDEST]
    if options.hardest:
        np.save(options.hardest, close[order])

    print(f"inputs               {1 << 32}")
    print(f"kernel not the rounded float64 evaluation: {wrong}")
    print(f"numpy's float64 bits differ: {'not run' if options.no_numpy else different}")
    print(f"undecided by the bound: {undecided}")
    print(f"within 2^-44 of a boundary, all settled by MPFR: {close.size}, wrong: {settled_wrong}")
    for i in order[:8]:
        print(f"  hardest: 0x{close[i]:08x} {x[i]!r:>24}: {distances[i]:.3e} ULP from a boundary")
    print(f"seconds: {seconds:.0f} on {options.threads} threads")
    return int(bool(wrong or different or settled_wrong or Fraction(bound) > 2))


if __name__ == "__main__":
    sys.exit(main())
