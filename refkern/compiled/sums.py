"""Summation orders as compiled loops: the bits of `refkern.schedules`, written apart.

`products(schedule)` compiles one schedule.  Its ``run(a, b, n, scratch)`` sums a[i] * b[i] over
i < n, float32.  The caller's buffers must hold zeros from n up to ``padded(n)``: a partly filled
strip is then added as a whole one, since +0 changes no sum that began at +0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numba
import numpy as np

from refkern import schedules
from refkern.compiled.bits import bits_float64, float64_bits, fma, jit

ZERO = np.float32(0)


@dataclass(frozen=True)
class CompiledSum:
    #: jitted (a, b, n, scratch) -> float32
    run: Any
    #: how long the zero-padded buffers of n elements must be
    padded: Callable[[int], int]
    #: how many float32 of scratch a sum of n elements needs
    scratch: Callable[[int], int]


@cache
def products(schedule: schedules.Schedule) -> CompiledSum:
    match schedule:
        case schedules.Sequential(fused=True):
            return CompiledSum(_sequential_fused, lambda n: n, lambda n: 0)
        case schedules.Sequential():
            return CompiledSum(_sequential, lambda n: n, lambda n: 0)
        case schedules.Pairwise():
            return CompiledSum(_pairwise, lambda n: n, lambda n: n)
        case schedules.Exact(rounded_products=rounded):
            run = _exact_rounded_products if rounded else _exact_products
            return CompiledSum(run, lambda n: n, lambda n: 0)
        case schedules.Lanes():
            strip = schedule.lanes * schedule.vector
            sums = schedule.lanes * schedule.components
            return CompiledSum(_lanes(schedule), lambda n: -(-n // strip) * strip, lambda n: sums)
    if (path := getattr(schedule, "compiled", None)) is not None:
        # A schedule from elsewhere names what compiles it: "module:function".
        module, function = path.split(":")
        return getattr(import_module(module), function)(schedule)
    raise TypeError(f"no compiled form of {schedule}")


@jit
def _sequential(a: Any, b: Any, n: int, scratch: Any) -> Any:
    total = ZERO
    for i in range(n):
        total += a[i] * b[i]
    return total


@jit
def _sequential_fused(a: Any, b: Any, n: int, scratch: Any) -> Any:
    total = ZERO
    for i in range(n):
        total = fma(a[i], b[i], total)
    return total


@jit
def _pairwise(a: Any, b: Any, n: int, scratch: Any) -> Any:
    for i in range(n):
        scratch[i] = a[i] * b[i]
    left = n
    while left > 1:
        half = left // 2
        for i in range(half):
            scratch[i] = scratch[2 * i] + scratch[2 * i + 1]
        if left % 2:
            scratch[half] = scratch[left - 1]
        left -= half
    return scratch[0] + ZERO if n else ZERO


def _lanes(schedule: schedules.Lanes) -> Any:
    lanes, vector, components = schedule.lanes, schedule.vector, schedule.components
    strip = lanes * vector
    strided, scalar_tail, fused = schedule.strided, schedule.scalar_tail, schedule.fused
    add = _add_vector(schedule)
    fold = _fold(components, 1, schedule.fold)
    subgroup = schedule.subgroup or lanes
    groups = lanes // subgroup
    combine = combining(schedule.combine)

    @jit
    def run(a: Any, b: Any, n: int, sums: Any) -> Any:
        for i in range(lanes * components):
            sums[i] = ZERO
        steps = n // strip if scalar_tail else (n + strip - 1) // strip
        step_stride = strip if strided else vector
        lane_stride = vector if strided else vector * steps
        for step in range(steps):
            for lane in range(lanes):
                add(a, b, step * step_stride + lane * lane_stride, sums, lane * components)
        if scalar_tail:
            for i in range(steps * strip, n):
                at = (i - steps * strip) % lanes * components
                sums[at] = fma(a[i], b[i], sums[at]) if fused else sums[at] + a[i] * b[i]
        if components > 1:
            for lane in range(lanes):
                sums[lane] = fold(sums, lane * components)
        total = combine(sums, 0, subgroup)
        if groups > 1:
            total = ZERO + total
            for group in range(1, groups):
                total += combine(sums, group * subgroup, subgroup)
        return total

    return run


def _add_vector(schedule: schedules.Lanes) -> Any:
    """jitted (a, b, start, sums, at): one lane takes one vector into its components."""
    vector, components, fused = schedule.vector, schedule.components, schedule.fused

    if components == vector:

        @jit
        def add_each(a: Any, b: Any, start: int, sums: Any, at: int) -> None:
            for i in range(vector):
                x, y = a[start + i], b[start + i]
                sums[at + i] = fma(x, y, sums[at + i]) if fused else sums[at + i] + x * y

        return add_each

    fold = _fold_products(vector, components, schedule.fold, fused)

    @jit
    def add_folded(a: Any, b: Any, start: int, sums: Any, at: int) -> None:
        for i in range(components):
            sums[at + i] += fold(a, b, start + i)

    return add_folded


def _fold_products(vector: int, components: int, order: str, fused: bool) -> Any:
    """jitted (a, b, start): every ``components``-th product of one vector, as a tree of calls."""
    if order == "sequential":

        @jit
        def in_order(a: Any, b: Any, start: int) -> Any:
            total = a[start] * b[start]
            for i in range(1, vector):
                total += a[start + i] * b[start + i]
            return total

        return in_order

    half = vector // 2

    @jit
    def first_halving(a: Any, b: Any, low: int) -> Any:
        upper = a[low + half] * b[low + half]
        return fma(a[low], b[low], upper) if fused else a[low] * b[low] + upper

    node, distance = first_halving, half
    while distance > components:
        distance //= 2
        node = _halving(node, distance)
    return node


def _halving(node: Any, distance: int) -> Any:
    @jit
    def join(a: Any, b: Any, low: int) -> Any:
        return node(a, b, low) + node(a, b, low + distance)

    return join


def _fold(count: int, to: int, order: str) -> Any:
    """jitted (sums, at): ``count`` neighbouring numbers added up in the schedule's order."""

    @jit
    def halve(sums: Any, at: int) -> Any:
        left = count
        while left > 1:
            left //= 2
            for i in range(left):
                sums[at + i] += sums[at + i + left]
        return sums[at]

    @jit
    def in_order(sums: Any, at: int) -> Any:
        total = sums[at]
        for i in range(1, count):
            total += sums[at + i]
        return total

    return halve if order == "halving" else in_order


def combining(order: str) -> Any:
    """jitted (sums, at, count): lanes' sums added up in place, in the order `Lanes` names."""
    return {
        "descending": _combine_descending,
        "ascending": _combine_ascending,
        "sequential": _combine_sequential,
    }[order]


@jit
def _combine_descending(sums: Any, at: int, count: int) -> Any:
    while count > 1:
        count //= 2
        for i in range(count):
            sums[at + i] += sums[at + i + count]
    return sums[at]


@jit
def _combine_ascending(sums: Any, at: int, count: int) -> Any:
    while count > 1:
        count //= 2
        for i in range(count):
            sums[at + i] = sums[at + 2 * i] + sums[at + 2 * i + 1]
    return sums[at]


@jit
def _combine_sequential(sums: Any, at: int, count: int) -> Any:
    total = ZERO
    for i in range(count):
        total += sums[at + i]
    return total


@jit
def _exact_products(a: Any, b: Any, n: int, scratch: Any) -> Any:
    total, size = 0.0, 0.0
    for i in range(n):
        term = numba.float64(a[i]) * numba.float64(b[i])
        total += term
        size += abs(term)
    if _is_decided(total, size, n):
        return numba.float32(total)
    limbs = np.zeros(LIMBS, np.int64)
    special = ZERO
    for i in range(n):
        special += _add_exactly(limbs, numba.float64(a[i]) * numba.float64(b[i]))
    return special if special != ZERO else _round_limbs(limbs)


@jit
def _exact_rounded_products(a: Any, b: Any, n: int, scratch: Any) -> Any:
    total, size = 0.0, 0.0
    for i in range(n):
        term = numba.float64(a[i] * b[i])
        total += term
        size += abs(term)
    if _is_decided(total, size, n):
        return numba.float32(total)
    limbs = np.zeros(LIMBS, np.int64)
    special = ZERO
    for i in range(n):
        special += _add_exactly(limbs, numba.float64(a[i] * b[i]))
    return special if special != ZERO else _round_limbs(limbs)


@jit
def _is_decided(total: float, size: float, n: int) -> bool:
    """Whether every sum within the error bound of ``total`` rounds to the same float32.

    A float64 sum of n terms is within n * 2^-53 * (1 + tiny) of the exact one, relative to the
    sum of the magnitudes; twice that also covers the rounding of ``size`` itself.
    """
    margin = numba.float64(n) * 2.0**-52 * size
    low, high = numba.float32(total - margin), numba.float32(total + margin)
    # Zeros compare as equal, but a sum that rounds to zero has the sign of the exact sum.
    return low == high and (low != ZERO or size == 0.0)


#: 32-bit limbs from 2^-1088 up, enough for every float64, with room above for carries
LIMB_BITS, LOWEST_BIT, LIMBS = 32, -1088, 68
LOW_HALF = (1 << LIMB_BITS) - 1


@jit
def _add_exactly(limbs: Any, term: float) -> Any:
    """Add a finite term to the limbs; an infinity or NaN comes back instead, else 0."""
    bits = float64_bits(term)
    field = (bits >> 52) & 2047
    if field == 2047:
        return numba.float32(term)
    significand = bits & ((1 << 52) - 1)
    if field:
        significand |= 1 << 52
    place = max(field, 1) - 1075 - LOWEST_BIT
    at, shift = place // LIMB_BITS, place % LIMB_BITS
    low = (significand & LOW_HALF) << shift
    high = (significand >> LIMB_BITS) << shift
    if bits < 0:
        low, high = -low, -high
    # Each part is split, so that 2^30 terms cannot overflow a limb.
    limbs[at] += low & LOW_HALF
    limbs[at + 1] += (low >> LIMB_BITS) + (high & LOW_HALF)
    limbs[at + 2] += high >> LIMB_BITS
    return ZERO


@jit
def _take_sign(limbs: Any) -> Any:
    """Carry through, and leave the magnitude; whether the value was negative."""
    carry = 0
    for i in range(LIMBS):
        value = limbs[i] + carry
        limbs[i] = value & LOW_HALF
        carry = value >> LIMB_BITS
    negative = carry < 0
    if negative:
        carry = 1
        for i in range(LIMBS):
            value = (limbs[i] ^ LOW_HALF) + carry
            limbs[i] = value & LOW_HALF
            carry = value >> LIMB_BITS
    return negative


@jit
def _round_limbs(limbs: Any) -> Any:
    """The limbs' exact value, rounded once to float32."""
    negative = _take_sign(limbs)
    top = LIMBS - 1
    while top > 0 and limbs[top] == 0:
        top -= 1
    if limbs[top] == 0:
        return ZERO
    # The upper 32 to 63 bits; the last of them also says whether anything is below: rounding to
    # odd.  A float64 holds 53, so of more the lowest ten go the same way.
    head = (limbs[top] << 31) | (limbs[top - 1] >> 1)
    rest = limbs[top - 1] & 1
    for i in range(top - 1):
        rest |= limbs[i]
    if rest:
        head |= 1
    if head >> 53:
        head = (head & ~1023) | (1024 if head & 1023 else 0)
    exponent = (top - 1) * LIMB_BITS + LOWEST_BIT + 1
    value = numba.float64(head) * bits_float64((exponent + 1023) << 52)
    return numba.float32(-value if negative else value)
