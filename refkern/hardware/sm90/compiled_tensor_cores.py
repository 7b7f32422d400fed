"""Hopper's tensor cores as compiled loops: the bits of `tensor_cores`, written apart.

One loop nest runs every instruction.  It walks 16 outputs that share one row of the other operand
at a time: their alignment, cutting and adding are then the same integer operations on 16 lanes,
which LLVM turns into vector instructions.  A step that meets an infinity or NaN, which needs
branches, is done again output by output.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numba
import numpy as np

from refkern import casts
from refkern.compiled import casts as compiled_casts
from refkern.compiled.bits import bits_float32, bits_float64, float32_bits, float64_bits, jit
from refkern.compiled.sums import CompiledSum
from refkern.formats import FLOAT16, FLOAT32, FLOAT64, codes
from refkern.hardware.sm90 import tensor_cores as reference
from refkern.hardware.sm90.special_functions import NAN, NAN_CODES
from refkern.hardware.sm90.tensor_cores import (
    ABSENT,
    INSTRUCTIONS,
    LOWEST_ALIGNMENT,
    LOWEST_ALIGNMENT_OF_FLOAT16,
    TF32,
    TF32_IGNORED_BITS,
    Instruction,
)
from refkern.threads import launch

#: outputs that are computed side by side
LANES = 16
NANOSECONDS_A_PRODUCT = 0.5
ZERO = np.float32(0)
INFINITY = np.float32(np.inf)
#: a packed operand is significand << 12 | exponent + 2048; these exponents mark what is no number
EXPONENT_BITS, EXPONENT_OFFSET = 12, 2048
INFINITE, NOT_A_NUMBER = 1500, 1501


@cache
def _packed_operands(instruction: Instruction) -> np.ndarray:
    """int32 of every code of the operands' format."""
    fmt = instruction.operands
    code = np.arange(1 << fmt.bits, dtype=np.uint32)
    if fmt is TF32:
        values = (code << TF32_IGNORED_BITS).view(np.float32)
    else:
        values = code.astype(fmt.code_dtype).view(fmt.dtype)
    terms = reference.operand_terms(values, instruction)
    exponent = np.where(terms.infinite, INFINITE, terms.exponent)
    exponent = np.where(terms.nan, NOT_A_NUMBER, exponent)
    packed = (terms.significand << EXPONENT_BITS) + exponent + EXPONENT_OFFSET
    table = packed.astype(np.int32)
    table.flags.writeable = False
    return table


@jit
def _significand(packed: Any) -> Any:
    return numba.int32(packed >> EXPONENT_BITS)


@jit
def _exponent(packed: Any) -> Any:
    return numba.int32((packed & ((1 << EXPONENT_BITS) - 1)) - EXPONENT_OFFSET)


_round_to_float16 = compiled_casts.narrow(FLOAT64, FLOAT16)
_widen_float16 = compiled_casts.widen(FLOAT16)


@jit
def _finish(total: Any, unit: Any, kept: Any, half: bool) -> Any:
    """total * 2^unit as float32, cut to ``kept`` fraction bits; ``half``: rounded to float16."""
    exact = numba.float64(total) * bits_float64((numba.int64(unit) + 1023) << 52)
    if half:
        return _widen_float16(_round_to_float16(exact)) + ZERO
    if abs(exact) < 2.0**-126:
        # In units of 2^-149, then cut to the quantum 2^(-126 - kept).
        below = 23 - kept
        bits = (numba.int64(abs(exact) * 2.0**149) >> below) << below
        small = bits_float32(numba.uint32(bits))
        return -small if exact < 0.0 and bits != 0 else small
    mask = numba.int64(-1) << (52 - kept)
    return numba.float32(bits_float64(float64_bits(exact) & mask))


@jit
def _fused_scalar(
    packed_a: Any, packed_b: Any, lane: int, products: int, c: Any, fraction: int, kept: int,
    up: int, lowest: int, half: bool,
) -> Any:  # fmt: skip
    """One fused sum of one output, with infinities and NaN; packed_b: [products, lanes]."""
    upper = c == INFINITY
    lower = c == -INFINITY
    nan = c != c
    c_significand, c_exponent = _accumulator(ZERO if nan or upper or lower else c, lowest)
    least = LOWEST_ALIGNMENT_OF_FLOAT16 if half else LOWEST_ALIGNMENT
    top = max(numba.int64(c_exponent), numba.int64(least))
    for i in range(products):
        a, b = packed_a[i], packed_b[i, lane]
        ea, eb = _exponent(a), _exponent(b)
        sign = numba.int64(_significand(a)) * numba.int64(_significand(b))
        if ea == NOT_A_NUMBER or eb == NOT_A_NUMBER:
            nan = True
        elif ea == INFINITE or eb == INFINITE:
            nan = nan or sign == 0
            upper = upper or sign > 0
            lower = lower or sign < 0
        else:
            top = max(top, numba.int64(ea + eb))
    if nan or (upper and lower):
        return NAN
    if upper:
        return INFINITY
    if lower:
        return -INFINITY
    total = numba.int64(0)
    for i in range(products):
        a, b = packed_a[i], packed_b[i, lane]
        product = numba.int64(_significand(a)) * numba.int64(_significand(b))
        down = min(top - numba.int64(_exponent(a) + _exponent(b)), 62)
        cut = (abs(product) << up) >> down
        total += cut if product > 0 else -cut
    down = min(top - numba.int64(c_exponent) + 25 - fraction, 62)
    cut = numba.int64(abs(c_significand)) << 2 >> down
    total += cut if c_significand > 0 else -cut
    return _finish(total, top - fraction, kept, half)


@jit
def _accumulator(c: Any, lowest: int) -> Any:
    """A finite float32 as signed significand, in units of 2^(exponent - 23), and exponent."""
    bits = float32_bits(c)
    field = numba.int32((bits >> 23) & 255)
    significand = numba.int32(bits & 0x7FFFFF)
    significand = significand | 0x800000 if field > 0 else significand
    exponent = max(field, 1) - 127
    # A float16 subnormal has float16's smallest exponent.
    missing = max(lowest - exponent, 0)
    significand = numba.int32(significand >> missing)
    exponent = numba.int32(exponent + missing) if significand != 0 else numba.int32(ABSENT)
    return numba.int32(-significand if bits >> 31 else significand), exponent


@jit
def _fused_lanes(
    row_significands: Any, row_exponents: Any, significands: Any, exponents: Any, products: int,
    state: Any, s: int, fraction: int, kept: int, up: int, lowest: int, half: bool,
    top: Any, total: Any, c_significands: Any, c_exponents: Any,
) -> None:  # fmt: skip
    """One fused sum of 16 finite outputs: state[s] becomes state[s] + the products."""
    least = numba.int32(LOWEST_ALIGNMENT_OF_FLOAT16 if half else LOWEST_ALIGNMENT)
    for lane in range(LANES):
        significand, exponent = _accumulator(state[s, lane], lowest)
        c_significands[lane] = significand
        c_exponents[lane] = exponent
        top[lane] = max(exponent, least)
    for i in range(products):
        row_exponent = row_exponents[i]
        for lane in range(LANES):
            exponent = numba.int32(row_exponent + exponents[i, lane])
            top[lane] = max(top[lane], exponent)
    c_down = numba.int32(25 - fraction)
    for lane in range(LANES):
        # What is shifted out is gone: cutting goes towards zero because magnitudes are shifted.
        down = min(numba.int32(top[lane] - c_exponents[lane] + c_down), numba.int32(31))
        cut = numba.int32(numba.int32(abs(c_significands[lane]) << 2) >> down)
        total[lane] = cut if c_significands[lane] > 0 else -cut
    shift_up = numba.int32(up)
    for i in range(products):
        row_exponent, row_significand = row_exponents[i], row_significands[i]
        for lane in range(LANES):
            product = numba.int32(row_significand * significands[i, lane])
            exponent = numba.int32(row_exponent + exponents[i, lane])
            down = min(numba.int32(top[lane] - exponent), numba.int32(31))
            # Below 2^27, so that it fits before it is shifted down.
            cut = numba.int32(numba.int32(abs(product) << shift_up) >> down)
            total[lane] += numba.int64(cut if product > 0 else numba.int32(-cut))
    for lane in range(LANES):
        state[s, lane] = _finish(total[lane], top[lane] - fraction, kept, half)


@jit
def _run(
    rows: Any, rows_tile: int, rows_stride: int, columns: Any, columns_tile: int,
    columns_stride: int, packed: Any, ignored_bits: int, order: Any, products: int,
    sums_per_add: int, fraction: int, kept: int, up: int, lowest: int, half: bool,
    out: Any, first: int, stop: int,
) -> None:  # fmt: skip
    """out [tiles, groups, row count, column count]: out + the chain over each group of K.

    rows, columns: flat codes, with the distances between tiles and between rows.  A unit is 16
    columns of one tile.  order: [group's length] positions within the group, as the fused sums
    take them.  sums_per_add: after how many fused sums, begun from +0, their result is added to
    ``out`` by FADD; 0: never, ``out`` is the first accumulator.
    """
    row_count, column_count = out.shape[2], out.shape[3]
    blocks = (column_count + LANES - 1) // LANES
    row_packed = np.empty(products, np.int32)
    row_significands, row_exponents = np.empty(products, np.int32), np.empty(products, np.int32)
    block = np.empty((products, LANES), np.int32)
    significands = np.empty((products, LANES), np.int32)
    exponents = np.empty((products, LANES), np.int32)
    top, total = np.empty(LANES, np.int32), np.empty(LANES, np.int64)
    c_significands, c_exponents = np.empty(LANES, np.int32), np.empty(LANES, np.int32)
    state = np.zeros((row_count, LANES), np.float32)
    sums = np.zeros((row_count, LANES), np.float32)
    absent = numba.int32(ABSENT + EXPONENT_OFFSET)
    for unit in range(first * out.shape[1], stop * out.shape[1]):
        group, tile = unit % out.shape[1], unit // out.shape[1] // blocks
        column = unit // out.shape[1] % blocks * LANES
        live = min(LANES, column_count - column)
        for r in range(row_count):
            for lane in range(LANES):
                value = out[tile, group, r, column + lane] if lane < live else ZERO
                sums[r, lane] = value
                state[r, lane] = ZERO if sums_per_add else value
        for step in range(order.size // products):
            place = group * order.size
            special_block = False
            for i in range(products):
                at = columns_tile * tile + place + order[step * products + i]
                for lane in range(LANES):
                    entry = absent
                    if lane < live:
                        code = columns[at + (column + lane) * columns_stride] >> ignored_bits
                        entry = packed[code]
                    block[i, lane] = entry
                    significands[i, lane] = _significand(entry)
                    exponents[i, lane] = _exponent(entry)
                    special_block |= _exponent(entry) >= INFINITE
            for r in range(row_count):
                special = special_block
                at = rows_tile * tile + r * rows_stride + place
                for i in range(products):
                    entry = packed[rows[at + order[step * products + i]] >> ignored_bits]
                    row_packed[i] = entry
                    row_significands[i], row_exponents[i] = _significand(entry), _exponent(entry)
                    special |= _exponent(entry) >= INFINITE
                for lane in range(LANES):
                    # NaN and infinity fail this comparison.
                    special |= not abs(state[r, lane]) < INFINITY
                if special:
                    for lane in range(LANES):
                        state[r, lane] = _fused_scalar(
                            row_packed, block, lane, products, state[r, lane],
                            fraction, kept, up, lowest, half,
                        )  # fmt: skip
                else:
                    _fused_lanes(
                        row_significands, row_exponents, significands, exponents, products,
                        state, r, fraction, kept, up, lowest, half,
                        top, total, c_significands, c_exponents,
                    )  # fmt: skip
                if sums_per_add and (step + 1) % sums_per_add == 0:
                    for lane in range(LANES):
                        added = sums[r, lane] + state[r, lane]
                        sums[r, lane] = NAN if added != added else added
                        state[r, lane] = ZERO
        for r in range(row_count):
            for lane in range(live):
                result = sums[r, lane] if sums_per_add else state[r, lane]
                out[tile, group, r, column + lane] = result


def _flat(values: np.ndarray) -> tuple[np.ndarray, int, int]:
    """[.., rows, K] -> its codes as a flat run, the distances of matrices and of rows."""
    bits = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").reshape(-1)
    bits.flags.writeable = False
    rows, k = values.shape[-2:]
    return bits, rows * k, k


def chain(
    instruction: Instruction, a: np.ndarray, b: np.ndarray, c: np.ndarray, order: np.ndarray
) -> np.ndarray:
    """[.., M, K], [.., N, K] and c [.., groups, M, N] -> c + the chain over each group of K.

    order: positions within a group, as the instructions' k indices read them.
    """
    if c.size == 0:
        return c
    m, n, groups = a.shape[-2], b.shape[-2], c.shape[-3]
    inside = np.array(instruction.order or range(instruction.k))
    order = order.reshape(-1, instruction.k)[:, inside].reshape(-1)
    # The operand with more rows goes on the lanes.
    exchanged = m > n
    rows, columns = (b, a) if exchanged else (a, b)
    start = np.swapaxes(c, -1, -2) if exchanged else c
    out = np.array(casts.widen(start), order="C").reshape(-1, groups, *start.shape[-2:])
    flat_rows, rows_tile, rows_stride = _flat(rows)
    flat_columns, columns_tile, columns_stride = _flat(columns)
    packed = _packed_operands(instruction)
    ignored_bits = TF32_IGNORED_BITS if instruction.operands is TF32 else 0
    sums_per_add = instruction.k // instruction.products if instruction.adds_outside else 0
    up = instruction.fraction_bits - 2 * instruction.significands.mantissa_bits
    half = instruction.accumulator is FLOAT16

    def block(first: int, stop: int) -> None:
        _run(
            flat_rows, rows_tile, rows_stride, flat_columns, columns_tile, columns_stride,
            packed, ignored_bits, order, instruction.products, sums_per_add,
            instruction.fraction_bits, instruction.kept_bits, up,
            instruction.accumulator.min_exponent, half, out, first, stop,
        )  # fmt: skip

    units = out.shape[0] * -(-out.shape[3] // LANES)
    launch(block, units, LANES * out.shape[2] * groups * order.size * NANOSECONDS_A_PRODUCT)
    if half:
        nan = np.uint16(NAN_CODES["float16"])
        narrow = codes(casts.cast(out, FLOAT16))
        out = np.where(np.isnan(out), nan, narrow).view(FLOAT16.dtype)
    result = out.reshape(start.shape)
    return np.swapaxes(result, -1, -2) if exchanged else result


def mma(instruction: str | Instruction, a: Any, b: Any, c: Any) -> np.ndarray:
    """The compiled version of `refkern.hardware.sm90.mma`."""
    chosen, a, b, c = reference.checked(instruction, a, b, c)
    return np.ascontiguousarray(
        chain(chosen, a, b, c[..., None, :, :], np.arange(chosen.k))[..., 0, :, :]
    )


def gemm_chain(
    instruction: str | Instruction,
    a: Any,
    b: Any,
    *,
    order: Sequence[int] | np.ndarray | None = None,
    group: int | None = None,
) -> np.ndarray:
    """The compiled version of `refkern.hardware.sm90.gemm_chain`."""
    chosen, a, b, positions, size = reference.checked_chain(instruction, a, b, order, group)
    groups = a.shape[-1] // size if size else 1 - (group is not None)
    zero = np.zeros((*a.shape[:-2], groups, a.shape[-2], b.shape[-2]), chosen.accumulator.dtype)
    positions = np.arange(size) if positions is None else positions
    sums = np.ascontiguousarray(chain(chosen, a, b, zero, positions))
    return sums[..., 0, :, :] if group is None else sums


# ------------------------------------------------------------------------- as a compiled schedule


def chain_sum(schedule: reference.TensorCoreChain) -> CompiledSum:
    """The compiled form of a `TensorCoreChain`: one output at a time."""
    instruction = INSTRUCTIONS[schedule.instruction]
    k, products = instruction.k, instruction.products
    inside = np.array(instruction.order or range(k))
    pack = _pack_value(instruction)
    fraction, kept = instruction.fraction_bits, instruction.kept_bits
    up = fraction - 2 * instruction.significands.mantissa_bits
    lowest = instruction.accumulator.min_exponent
    half = instruction.accumulator is FLOAT16
    outside = instruction.adds_outside

    @jit
    def run(a: Any, b: Any, n: int, scratch: Any) -> Any:
        packed_a, packed_b = np.empty(products, np.int32), np.empty((products, 1), np.int32)
        total, part = ZERO, ZERO
        for start in range(0, n, k):
            if outside:
                part = ZERO
            for first in range(0, k, products):
                for i in range(products):
                    at = start + inside[first + i]
                    packed_a[i], packed_b[i, 0] = pack(a[at]), pack(b[at])
                part = _fused_scalar(
                    packed_a, packed_b, 0, products, part, fraction, kept, up, lowest, half
                )
            if outside:
                total += part
        result = total if outside else part
        return NAN if result != result else result

    return CompiledSum(run, lambda n: -(-n // k) * k, lambda n: 0)


def _pack_value(instruction: Instruction) -> Any:
    """jitted: a float32 that the operands' format holds -> packed significand and exponent."""
    fmt = instruction.significands
    dropped = FLOAT32.mantissa_bits - fmt.mantissa_bits
    lowest = fmt.min_exponent
    zero = numba.int32(ABSENT + EXPONENT_OFFSET)
    nan = numba.int32(NOT_A_NUMBER + EXPONENT_OFFSET)

    @jit
    def pack(x: Any) -> Any:
        if x != x:
            return nan
        if abs(x) == INFINITY:
            sign = 1 if x > ZERO else -1
            return numba.int32((sign << EXPONENT_BITS) + INFINITE + EXPONENT_OFFSET)
        significand, exponent = _accumulator(x, lowest)
        if significand == 0:
            return zero
        short = numba.int32(abs(significand) >> dropped)
        if short == 0:  # below what tf32 keeps
            return zero
        short = short if significand > 0 else -short
        return numba.int32((short << EXPONENT_BITS) + exponent + EXPONENT_OFFSET)

    return pack
