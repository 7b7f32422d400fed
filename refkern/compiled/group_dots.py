"""Projections with block-scaled fp8 codes as kernels: the bits of `refkern.group_dots`.

A weight row is decoded once and then meets every token.  How a group's dot product is summed is a
`CompiledDots`; how the groups' dots become one sum is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np

from refkern.compiled import casts
from refkern.compiled.bits import bits_float64, fma, jit
from refkern.compiled.rows import rows_of
from refkern.compiled.sums import LIMB_BITS, LIMBS, LOW_HALF, LOWEST_BIT, _add_exactly
from refkern.formats import BFLOAT16, FLOAT32, FLOAT64, codes
from refkern.group_dots import GROUP, UNIT, GroupDots
from refkern.threads import launch

ZERO = np.float32(0)
NAN = np.float32(np.nan)
NANOSECONDS_A_DOT = 2.0
#: rows whose dots are held at one time, where dots come a matrix at a time
ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class CompiledDots:
    """One way to sum the groups' dot products."""

    #: what the tokens' codes become before any weight row meets them: uint8 [tokens, K] -> arrays
    prepare: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    #: jitted (prepared, w, row's start in w, K, scratch, dots): float32 dots [tokens, groups] of
    #: one weight row
    row: Any
    #: what a row needs to be decoded into: K -> an array
    scratch: Any
    #: rough cost of one product
    nanoseconds: float


@dataclass(frozen=True)
class Order:
    """In which order the groups' dots, times their scales, become one sum."""

    #: groups whose sums are chained from +0; then the slices' sums are added from +0.  0: one chain
    groups_in_slice: int
    #: a dot times its scales is added by fma, with one rounding; else with two
    fused: bool


def project(
    dots: GroupDots,
    order: Order,
    x: np.ndarray,
    x_scale: np.ndarray,
    w: np.ndarray,
    w_scale: np.ndarray,
    block_of_row: np.ndarray,
    out: np.ndarray,
) -> None:
    """bfloat16 codes of every sum into out [tokens, rows].

    x: e4m3 [tokens, K]; x_scale: float32 [tokens, groups]; w: e4m3 [rows, K]; w_scale: float32
    [blocks, groups]; block_of_row: int64 [rows].
    """
    compiled = dots.load_compiled()
    if len(x) == 0:
        return
    if isinstance(compiled, CompiledDots):
        _project_by_rows(compiled, order, x, x_scale, w, w_scale, block_of_row, out)
        return
    kernel = _promotion(order)
    for start in range(0, len(w), ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, len(w))
        found = compiled(x, w[start:stop])

        def block(first: int, end: int, found: np.ndarray = found, start: int = start) -> None:
            kernel(found, x_scale, w_scale, block_of_row, start, out, first, end)

        launch(block, stop - start, x_scale.size * NANOSECONDS_A_DOT)


def _project_by_rows(
    compiled: CompiledDots, order: Order, x: np.ndarray, x_scale: np.ndarray, w: np.ndarray,
    w_scale: np.ndarray, block_of_row: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    tokens, k = x.shape
    kernel = _projection(compiled, order)
    prepared = compiled.prepare(codes(x))
    flat, stride = rows_of(w)

    def block(first: int, stop: int) -> None:
        kernel(prepared, x_scale, flat, stride, k, w_scale, block_of_row, out, first, stop)

    launch(block, len(w), tokens * k * compiled.nanoseconds)


def _sum_in_order(order: Order) -> Any:
    """jitted (dots [.., groups], t, w_scale, block, x_scale) -> float32."""
    in_slice, fused = order.groups_in_slice, order.fused

    @jit
    def total_of(dots: Any, t: int, w_scale: Any, block: int, x_scale: Any) -> Any:
        value, total, left = ZERO, ZERO, in_slice
        for g in range(x_scale.shape[1]):
            scale = w_scale[block, g] * x_scale[t, g]
            dot = dots[t, g]
            total = fma(dot, scale, total) if fused else total + dot * scale
            left -= 1
            if left == 0:
                value += total
                total, left = ZERO, in_slice
        if in_slice == 0:
            return total
        return value if left == in_slice else value + total

    return total_of


@cache
def _projection(compiled: CompiledDots, order: Order) -> Any:
    row_dots, make_scratch = compiled.row, compiled.scratch
    total_of = _sum_in_order(order)
    narrow = casts.narrow(FLOAT32, BFLOAT16)

    @jit
    def kernel(
        prepared: Any, x_scale: Any, w: Any, stride: int, k: int, w_scale: Any,
        block_of_row: Any, out: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        found = np.empty(x_scale.shape, np.float32)
        scratch = make_scratch(k)
        for row in range(first, stop):
            row_dots(prepared, w, row * stride, k, scratch, found)
            for t in range(x_scale.shape[0]):
                out[t, row] = narrow(total_of(found, t, w_scale, block_of_row[row], x_scale))

    return kernel


@cache
def _promotion(order: Order) -> Any:
    """jitted: the dots [groups, tokens, rows] of rows from ``start`` on -> their sums."""
    total_of = _sum_in_order(order)
    narrow = casts.narrow(FLOAT32, BFLOAT16)

    @jit
    def kernel(
        dots: Any, x_scale: Any, w_scale: Any, block_of_row: Any, start: int, out: Any,
        first: int, stop: int,
    ) -> None:  # fmt: skip
        for row in range(first, stop):
            found = dots[:, :, row].T
            block = block_of_row[start + row]
            for t in range(x_scale.shape[0]):
                out[t, start + row] = narrow(total_of(found, t, w_scale, block, x_scale))

    return kernel


# ------------------------------------------------------------------------- the exact dot of a group


@jit
def _decode(code: Any) -> Any:
    """An e4m3 code as an integer multiple of 2^-9; a NaN as 480 would be."""
    bits = numba.int32(code)
    field = (bits >> numba.int32(3)) & numba.int32(15)
    significand = bits & numba.int32(7)
    if field > numba.int32(0):
        significand |= numba.int32(8)
    magnitude = significand << max(field - numba.int32(1), numba.int32(0))
    return -magnitude if bits >= numba.int32(128) else magnitude


@jit
def _is_nan(code: Any) -> Any:
    return (code & 0x7F) == 0x7F


@jit
def _prepare_exact(x: Any, units: Any, nan: Any) -> None:
    tokens, k = x.shape
    for t in range(tokens):
        for i in range(k):
            units[t, i] = _decode(x[t, i])
            if _is_nan(x[t, i]):
                nan[t, i // GROUP] = True


def prepare_exact(x: np.ndarray) -> tuple[np.ndarray, ...]:
    tokens, k = x.shape
    groups = -(-k // GROUP)
    units = np.zeros((tokens, groups * GROUP), np.int32)
    nan = np.zeros((tokens, groups), np.bool_)
    _prepare_exact(x, units, nan)
    return units, nan


@jit
def exact_scratch(k: int) -> Any:
    groups = (k + GROUP - 1) // GROUP
    return np.zeros(groups * GROUP, np.int32), np.zeros(groups, np.bool_)


@jit
def _decode_row(w: Any, start: int, k: int, units: Any, nan: Any) -> None:
    for g in range(nan.size):
        at, size = g * GROUP, min(GROUP, k - g * GROUP)
        bad = numba.int32(0)
        for i in range(size):
            code = w[start + at + i]
            units[at + i] = _decode(code)
            bad |= numba.int32(_is_nan(code))
        nan[g] = bad != 0


@jit
def _group_integer(a: Any, b: Any, t: int, at: int) -> Any:
    """The exact dot of one group, in units of 2^-18: below 2^43, so no order can be seen."""
    total = numba.int64(0)
    for i in range(GROUP):
        total += numba.int64(a[at + i]) * numba.int64(b[t, at + i])
    return total


@jit
def exact_row(prepared: Any, w: Any, start: int, k: int, scratch: Any, dots: Any) -> None:
    x_units, x_nan = prepared
    units, nan = scratch
    _decode_row(w, start, k, units, nan)
    for t in range(dots.shape[0]):
        for g in range(dots.shape[1]):
            if nan[g] or x_nan[t, g]:
                dots[t, g] = NAN
            else:
                total = _group_integer(units, x_units, t, g * GROUP)
                # int64 -> float64 is exact here, and so is the product; then one rounding.
                dots[t, g] = numba.float32(numba.float64(total) * UNIT)


EXACT = CompiledDots(prepare_exact, exact_row, exact_scratch, 0.2)


# ---------------------------------------------------------------------- sums without any rounding


@cache
def exact_projection() -> Any:
    """jitted: as `_projection`, but the sum over the groups is exact and rounded once."""
    narrow = casts.narrow(FLOAT64, BFLOAT16)

    @jit
    def kernel(
        prepared: Any, x_scale: Any, w: Any, stride: int, k: int, w_scale: Any,
        block_of_row: Any, out: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        x_units, x_nan = prepared
        tokens, groups = x_scale.shape
        units, nan = exact_scratch(k)
        terms = np.empty((groups, 2))
        limbs = np.empty(LIMBS, np.int64)
        for row in range(first, stop):
            _decode_row(w, row * stride, k, units, nan)
            block = block_of_row[row]
            for t in range(tokens):
                total, size = 0.0, 0.0
                for g in range(groups):
                    dot = numba.float64(_group_integer(units, x_units, t, g * GROUP)) * UNIT
                    if nan[g] or x_nan[t, g]:
                        dot = np.nan
                    # Both factors and their product with the dot's error are exact in float64.
                    scale = numba.float64(w_scale[block, g]) * numba.float64(x_scale[t, g])
                    high = dot * scale
                    terms[g, 0] = high
                    terms[g, 1] = fma(dot, scale, -high) if abs(high) < np.inf else 0.0
                    total += high
                    size += abs(high)
                # Twice what rounding the products and the sums can have moved the total.
                margin = numba.float64(groups + 1) * 2.0**-51 * size
                code = narrow(total - margin)
                if not (code == narrow(total + margin) and (code & 0x7FFF or size == 0.0)):
                    code = narrow(_odd_sum(terms, limbs))
                out[t, row] = code

    return kernel


@jit
def _odd_sum(terms: Any, limbs: Any) -> Any:
    """The exact sum of float64 terms rounded to odd; IEEE's result where one is not finite."""
    limbs[:] = 0
    special = ZERO
    for g in range(terms.shape[0]):
        special += _add_exactly(limbs, terms[g, 0])
        special += _add_exactly(limbs, terms[g, 1])
    if special != ZERO:
        return numba.float64(special)
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
    top = LIMBS - 1
    while top > 1 and limbs[top] == 0:
        top -= 1
    # The upper 21 to 52 bits and the limb's below, and in the last bit whether more follows.
    head = (limbs[top] << 20) | (limbs[top - 1] >> 12)
    rest = limbs[top - 1] & 4095
    for i in range(top - 1):
        rest |= limbs[i]
    if rest:
        head |= 1
    # bfloat16 needs 8 of these bits and two to round by.
    value = numba.float64(head) * bits_float64(((top * LIMB_BITS + LOWEST_BIT - 20) + 1023) << 52)
    return -value if negative else value


def project_exactly(
    x: np.ndarray,
    x_scale: np.ndarray,
    w: np.ndarray,
    w_scale: np.ndarray,
    block_of_row: np.ndarray,
    out: np.ndarray,
) -> None:
    """As `project`, without any rounding before the one to bfloat16."""
    tokens, k = x.shape
    kernel, prepared = exact_projection(), prepare_exact(codes(x))
    flat, stride = rows_of(w)

    def block(first: int, stop: int) -> None:
        kernel(prepared, x_scale, flat, stride, k, w_scale, block_of_row, out, first, stop)

    if tokens:
        launch(block, len(w), tokens * k * EXACT.nanoseconds)
