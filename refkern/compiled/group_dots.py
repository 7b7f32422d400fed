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

from refkern.casts import widen
from refkern.compiled import casts
from refkern.compiled.bits import bits_float64, fma, jit
from refkern.compiled.exact_dots import exact_dots
from refkern.compiled.rows import rows_of
from refkern.compiled.sums import LIMB_BITS, LIMBS, LOWEST_BIT, _add_exactly, _take_sign
from refkern.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT32, FLOAT64, codes
from refkern.group_dots import GROUP, GroupDots
from refkern.threads import launch

ZERO = np.float32(0)
NANOSECONDS_A_DOT = 2.0
#: rows that are computed together, so that the tokens' group is read from the nearest cache
ROWS = 8
#: rows whose dots are held at one time, where dots come a matrix at a time
ROWS_AT_ONCE = 2048

#: exact dots of so many weight rows with so many tokens
dots_1x1, dots_1x4, dots_2x4 = exact_dots(1, 1), exact_dots(1, 4), exact_dots(2, 4)


@dataclass(frozen=True)
class CompiledDots:
    """One way to sum the groups' dot products, a few weight rows at a time."""

    #: what the tokens' codes become before any weight row meets them: uint8 [tokens, K] -> arrays
    prepare: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    #: jitted (prepared, w, where its rows start, their distance, how many, K, scratch, dots):
    #: float32 dots [rows, groups, tokens]
    rows: Any
    #: jitted (tokens) -> what the rows are decoded into
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
    by_group = np.ascontiguousarray(x_scale.T)
    if isinstance(compiled, CompiledDots):
        _project_by_rows(compiled, order, x, by_group, w, w_scale, block_of_row, out)
        return
    kernel = _promotion(order)
    for start in range(0, len(w), ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, len(w))
        found = compiled(x, w[start:stop])

        def block(first: int, end: int, found: np.ndarray = found, start: int = start) -> None:
            kernel(found, by_group, w_scale, block_of_row, start, out, first, end)

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
    """jitted (dots [groups, tokens], w_scale, block, x_scale [groups, tokens], scratch, totals).

    The tokens side by side: each has its own chain of additions, and all have the same order.
    """
    in_slice, fused = order.groups_in_slice, order.fused

    @jit
    def sum_in_order(
        dots: Any, w_scale: Any, block: int, x_scale: Any, scratch: Any, totals: Any
    ) -> None:
        groups, tokens = x_scale.shape
        scratch[:] = ZERO
        totals[:] = ZERO
        left = in_slice
        for g in range(groups):
            weight_scale = w_scale[block, g]
            for t in range(tokens):
                scale = weight_scale * x_scale[g, t]
                dot = dots[g, t]
                scratch[t] = fma(dot, scale, scratch[t]) if fused else scratch[t] + dot * scale
            left -= 1
            if left == 0 or (g == groups - 1 and in_slice != 0):
                for t in range(tokens):
                    totals[t] += scratch[t]
                    scratch[t] = ZERO
                left = in_slice
        if in_slice == 0:
            totals[:] = scratch

    return sum_in_order


@cache
def _projection(compiled: CompiledDots, order: Order) -> Any:
    rows_dots, make_scratch = compiled.rows, compiled.scratch
    sum_in_order = _sum_in_order(order)
    narrow = casts.narrow(FLOAT32, BFLOAT16)

    @jit
    def kernel(
        prepared: Any, x_scale: Any, w: Any, stride: int, k: int, w_scale: Any,
        block_of_row: Any, out: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        groups, tokens = x_scale.shape
        found = np.empty((ROWS, groups, tokens), np.float32)
        totals, of_slice = np.empty(tokens, np.float32), np.empty(tokens, np.float32)
        scratch = make_scratch(tokens)
        for row in range(first, stop, ROWS):
            count = min(ROWS, stop - row)
            rows_dots(prepared, w, row * stride, stride, count, k, scratch, found)
            for r in range(count):
                block = block_of_row[row + r]
                sum_in_order(found[r], w_scale, block, x_scale, of_slice, totals)
                for t in range(tokens):
                    out[t, row + r] = narrow(totals[t])

    return kernel


@cache
def _promotion(order: Order) -> Any:
    """jitted: the dots [groups, tokens, rows] of rows from ``start`` on -> their sums."""
    sum_in_order = _sum_in_order(order)
    narrow = casts.narrow(FLOAT32, BFLOAT16)

    @jit
    def kernel(
        dots: Any, x_scale: Any, w_scale: Any, block_of_row: Any, start: int, out: Any,
        first: int, stop: int,
    ) -> None:  # fmt: skip
        groups, tokens = x_scale.shape
        found = np.empty((groups, tokens), np.float32)
        totals, of_slice = np.empty(tokens, np.float32), np.empty(tokens, np.float32)
        for row in range(first, stop):
            for g in range(groups):
                for t in range(tokens):
                    found[g, t] = dots[g, t, row]
            sum_in_order(found, w_scale, block_of_row[start + row], x_scale, of_slice, totals)
            for t in range(tokens):
                out[t, start + row] = narrow(totals[t])

    return kernel


# ------------------------------------------------------------------------- the exact dot of a group


#: float64 of every e4m3 code; a NaN makes every sum that it enters NaN
VALUES = widen(np.arange(256, dtype=np.uint8).view(FLOAT8_E4M3FN.dtype)).astype(np.float64)
VALUES.flags.writeable = False


@jit
def _decode_group(w: Any, start: int, size: int, table: Any, values: Any, at: int) -> None:
    """128 values from so many codes, zeros behind them."""
    # Unsigned indices: numba asks of a signed one, each time, whether it counts from the end.
    read, write = numba.uintp(start), numba.uintp(at)
    for i in range(numba.uintp(size)):
        values[write + i] = table[w[read + i]]
    for i in range(numba.uintp(size), numba.uintp(GROUP)):
        values[write + i] = 0.0


@jit
def _decode_rows(x: Any, table: Any, values: Any) -> None:
    tokens, k = x.shape
    groups = (k + GROUP - 1) // GROUP
    for unit in range(tokens * groups):
        t, start = unit // groups, unit % groups * GROUP
        _decode_group(x[t], start, min(GROUP, k - start), table, values, unit * GROUP)


def prepare_exact(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """The codes as float64 [tokens * groups * 128], and the table that decodes the weights."""
    tokens, k = x.shape
    values = np.empty(tokens * -(-k // GROUP) * GROUP)
    _decode_rows(x, VALUES, values)
    return values, VALUES


@jit
def exact_scratch(tokens: int) -> Any:
    return np.empty(ROWS * GROUP), np.empty(ROWS * tokens)


@jit
def _dots_with_tokens(
    weights: Any, rows: int, x: Any, g: int, groups: int, tokens: int, sums: Any
) -> None:
    """The exact dots of one group of ``rows`` rows with every token: sums [rows, tokens].

    A product of e4m3 values is a multiple of 2^-18 and 128 of them stay below 2^25, so float64
    holds every partial sum and no order of adding them can be seen.
    """
    stride = groups * GROUP
    for t in range(0, tokens - tokens % 4, 4):
        at = t * stride + g * GROUP
        for r in range(0, rows - rows % 2, 2):
            dots_2x4(weights, r * GROUP, x, at, stride, sums, r * tokens + t, tokens)
        if rows % 2:
            r = rows - 1
            dots_1x4(weights, r * GROUP, x, at, stride, sums, r * tokens + t, tokens)
    for t in range(tokens - tokens % 4, tokens):
        at = t * stride + g * GROUP
        for r in range(rows):
            dots_1x1(weights, r * GROUP, x, at, stride, sums, r * tokens + t, tokens)


@jit
def exact_rows(
    prepared: Any, w: Any, start: int, stride: int, count: int, k: int, scratch: Any, dots: Any
) -> None:
    x, table = prepared
    weights, sums = scratch
    groups, tokens = dots.shape[1:]
    for g in range(groups):
        size = min(GROUP, k - g * GROUP)
        # All rows first: a vector load of what scalar stores have just written has to wait.
        for r in range(count):
            at = start + r * stride + g * GROUP
            _decode_group(w, at, size, table, weights, r * GROUP)
        _dots_with_tokens(weights, count, x, g, groups, tokens, sums)
        for r in range(count):
            for t in range(tokens):
                dots[r, g, t] = numba.float32(sums[r * tokens + t])


EXACT = CompiledDots(prepare_exact, exact_rows, exact_scratch, 0.2)


# ---------------------------------------------------------------------- sums without any rounding


@cache
def exact_projection() -> Any:
    """jitted: as `_projection`, but the sum over the groups is exact and rounded once."""
    exact_sum = _exact_sum()

    @jit
    def kernel(
        prepared: Any, x_scale: Any, w: Any, stride: int, k: int, w_scale: Any,
        block_of_row: Any, out: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        x, table = prepared
        groups, tokens = x_scale.shape
        weights, sums = exact_scratch(tokens)
        dots = np.empty((ROWS, groups, tokens))
        terms = np.empty((groups, 2))
        limbs = np.empty(LIMBS, np.int64)
        for start in range(first, stop, ROWS):
            count = min(ROWS, stop - start)
            for g in range(groups):
                size = min(GROUP, k - g * GROUP)
                for r in range(count):
                    at = (start + r) * stride + g * GROUP
                    _decode_group(w, at, size, table, weights, r * GROUP)
                _dots_with_tokens(weights, count, x, g, groups, tokens, sums)
                for r in range(count):
                    dots[r, g] = sums[r * tokens : (r + 1) * tokens]
            for r in range(count):
                for t in range(tokens):
                    block = block_of_row[start + r]
                    code = exact_sum(dots[r], t, w_scale, block, x_scale, terms, limbs)
                    out[t, start + r] = code

    return kernel


def _exact_sum() -> Any:
    """jitted (dots [groups, tokens], t, w_scale, block, x_scale, terms, limbs) -> bfloat16 code."""
    narrow = casts.narrow(FLOAT64, BFLOAT16)

    @jit
    def exact_sum(
        dots: Any, t: int, w_scale: Any, block: int, x_scale: Any, terms: Any, limbs: Any
    ) -> Any:
        groups = len(dots)
        total, magnitude = 0.0, 0.0
        for g in range(groups):
            # Both factors and their product with the dot's error are exact in float64.
            scale = numba.float64(w_scale[block, g]) * numba.float64(x_scale[g, t])
            high = dots[g, t] * scale
            terms[g, 0] = high
            terms[g, 1] = fma(dots[g, t], scale, -high) if abs(high) < np.inf else 0.0
            total += high
            magnitude += abs(high)
        # Twice what rounding the products and the sums can have moved the total.
        margin = numba.float64(groups + 1) * 2.0**-51 * magnitude
        code = narrow(total - margin)
        if code == narrow(total + margin) and (code & 0x7FFF or magnitude == 0.0):
            return code
        return narrow(_odd_sum(terms, limbs))

    return exact_sum


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
    negative = _take_sign(limbs)
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
    by_group = np.ascontiguousarray(x_scale.T)
    flat, stride = rows_of(w)

    def block(first: int, stop: int) -> None:
        kernel(prepared, by_group, flat, stride, k, w_scale, block_of_row, out, first, stop)

    if tokens:
        launch(block, len(w), tokens * k * EXACT.nanoseconds)
