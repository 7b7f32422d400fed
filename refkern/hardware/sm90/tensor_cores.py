"""Hopper's tensor cores in numpy: one fused sum of exact products, cut instead of rounded.

Measured on an NVIDIA H200; found by fitting captured outputs, then confirmed on outputs that the
fit had not seen (docs/cuda-on-a-cpu.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refkern.arguments import as_array
from refkern.casts import cast, widen
from refkern.errors import InvalidInput
from refkern.formats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    Format,
    codes,
)
from refkern.hardware.sm90.special_functions import NAN, NAN_BITS

#: the operand of a tf32 instruction: a float32 whose low 13 bits are ignored
TF32 = Format("tf32", 19, 10, 127, (255 << 10) - 1, 255 << 10, (255 << 10) + 512)
TF32_IGNORED_BITS = 13
#: the exponent to which terms are aligned is never below this
LOWEST_ALIGNMENT = -133
#: the same of a float16 accumulator: found where a tie is broken by a term below 2^-46
LOWEST_ALIGNMENT_OF_FLOAT16 = -21
#: exponent of a zero, which takes no part in the alignment
ABSENT = -1000


@dataclass(frozen=True)
class Instruction:
    """A matrix instruction of PTX, as sm_90 executes it.

    One fused sum takes ``products`` products and an accumulator in one step: every term is cut,
    towards zero, to a multiple of 2^(largest exponent - fraction_bits), the integers are added
    exactly, and the result is cut to ``kept_bits`` fraction bits.
    """

    name: str
    #: format of A and B
    operands: Format
    #: length of the dot product
    k: int
    #: products in one fused sum
    products: int
    fraction_bits: int = 25
    kept_bits: int = 23
    #: format of C and D; the float16 one is rounded to nearest even instead of cut
    accumulator: Format = FLOAT32
    #: operands are converted to this format first, exactly
    computes_in: Format | None = None
    #: k indices in the order in which the fused sums take them
    order: tuple[int, ...] = field(default=(), repr=False)
    #: the fused sums start from +0, and C is added to their result by an ordinary FADD
    adds_outside: bool = False

    @property
    def lowest_alignment(self) -> int:
        """Terms are never aligned to a smaller exponent than this."""
        half = self.accumulator is FLOAT16
        return LOWEST_ALIGNMENT_OF_FLOAT16 if half else LOWEST_ALIGNMENT

    @property
    def significands(self) -> Format:
        """The format whose significands and exponents are multiplied."""
        return self.computes_in or self.operands

    @property
    def dtype(self) -> np.dtype:
        """dtype of A and B; a tf32 operand is a float32 array."""
        return np.dtype(np.float32) if self.operands is TF32 else self.operands.dtype


def _warp_fp8(name: str, operands: Format) -> Instruction:
    """sm_90 has no FP8 mma.sync: ptxas converts to float16 and issues two HMMA.16816 and a FADD.

    UNPACK takes bytes 0 and 1 of each register for the first HMMA, 2 and 3 for the second.
    """
    order = sorted(range(32), key=lambda k: (k % 4 >= 2, k))
    return Instruction(
        name, operands, 32, 16, computes_in=FLOAT16, order=tuple(order), adds_outside=True
    )


def _wgmma_fp8(name: str, operands: Format) -> Instruction:
    return Instruction(name, operands, 32, 32, fraction_bits=13, kept_bits=13)


INSTRUCTIONS = {
    instruction.name: instruction
    for instruction in (
        _warp_fp8("mma.m16n8k32.e4m3", FLOAT8_E4M3FN),
        _warp_fp8("mma.m16n8k32.e5m2", FLOAT8_E5M2),
        Instruction("mma.m16n8k16.bf16", BFLOAT16, 16, 16),
        Instruction("mma.m16n8k8.bf16", BFLOAT16, 8, 8),
        Instruction("mma.m16n8k16.f16", FLOAT16, 16, 16),
        Instruction("mma.m16n8k8.f16", FLOAT16, 8, 8),
        Instruction("mma.m16n8k16.f16.f16acc", FLOAT16, 16, 16, accumulator=FLOAT16),
        Instruction("mma.m16n8k8.tf32", TF32, 8, 8),
        Instruction("mma.m16n8k4.tf32", TF32, 4, 4),
        Instruction("wgmma.k16.bf16", BFLOAT16, 16, 16),
        Instruction("wgmma.k16.f16", FLOAT16, 16, 16),
        Instruction("wgmma.k8.tf32", TF32, 8, 8),
        _wgmma_fp8("wgmma.k32.e4m3", FLOAT8_E4M3FN),
        _wgmma_fp8("wgmma.k32.e5m2", FLOAT8_E5M2),
    )
}


def instruction_named(name: str | Instruction) -> Instruction:
    if isinstance(name, Instruction):
        return name
    if name not in INSTRUCTIONS:
        raise InvalidInput("instruction", repr(name), f"allowed are {', '.join(INSTRUCTIONS)}")
    return INSTRUCTIONS[name]


# ------------------------------------------------------------------------------------- arguments


def operand(name: str, value: Any, instruction: Instruction, axes: str) -> np.ndarray:
    array = as_array(name, value)
    if array.dtype != instruction.dtype:
        raise InvalidInput(
            name, f"dtype {array.dtype}", f"{instruction.name} takes {instruction.dtype}"
        )
    if array.ndim < 2:
        raise InvalidInput(name, f"shape {array.shape}", f"[.., {axes}] is needed")
    return array


def checked(
    instruction: str | Instruction, a: Any, b: Any, c: Any
) -> tuple[Instruction, np.ndarray, np.ndarray, np.ndarray]:
    """The arguments of `mma`, of one leading shape."""
    chosen = instruction_named(instruction)
    a = operand("a", a, chosen, "M, K")
    b = operand("b", b, chosen, "N, K")
    c = as_array("c", c)
    for name, array in (("a", a), ("b", b)):
        if array.shape[-1] != chosen.k:
            raise InvalidInput(name, f"shape {array.shape}", f"{chosen.name} has K = {chosen.k}")
    if c.dtype != chosen.accumulator.dtype:
        raise InvalidInput(
            "c", f"dtype {c.dtype}", f"{chosen.name} accumulates in {chosen.accumulator}"
        )
    outputs = (a.shape[-2], b.shape[-2])
    if c.shape[-2:] != outputs:
        raise InvalidInput(
            "c", f"shape {c.shape}", f"[.., M, N] = [.., {outputs[0]}, {outputs[1]}]"
        )
    lead = leading(a=a, b=b, c=c)
    return (
        chosen,
        np.broadcast_to(a, lead + a.shape[-2:]),
        np.broadcast_to(b, lead + b.shape[-2:]),
        np.broadcast_to(c, lead + outputs),
    )


def leading(**arrays: np.ndarray) -> tuple[int, ...]:
    """The leading shape that the arrays broadcast to."""
    try:
        return np.broadcast_shapes(*(x.shape[:-2] for x in arrays.values()))
    except ValueError:
        given = ", ".join(str(x.shape) for x in arrays.values())
        raise InvalidInput(
            ", ".join(arrays), f"shapes {given}", "leading axes must broadcast"
        ) from None


def checked_chain(
    instruction: str | Instruction,
    a: Any,
    b: Any,
    order: Sequence[int] | np.ndarray | None,
    group: int | None,
) -> tuple[Instruction, np.ndarray, np.ndarray, np.ndarray | None, int]:
    """The arguments of `gemm_chain`; the group is K where there is only one chain."""
    chosen = instruction_named(instruction)
    a = operand("a", a, chosen, "M, K")
    b = operand("b", b, chosen, "N, K")
    k = a.shape[-1]
    if b.shape[-1] != k:
        raise InvalidInput("b", f"shape {b.shape}", f"[.., N, K] with K = {k} as in a is needed")
    if k % chosen.k:
        raise InvalidInput("a", f"K = {k}", f"{chosen.name} takes {chosen.k} of K at a time")
    size = k if group is None else group
    if group is not None and (group < 1 or group % chosen.k or k % group):
        raise InvalidInput("group", group, f"a multiple of {chosen.k} that divides {k} is needed")
    positions = None if order is None else np.asarray(order, np.int64)
    if positions is not None and not np.array_equal(np.sort(positions), np.arange(size)):
        raise InvalidInput("order", "other indices", f"a permutation of 0 .. {size - 1} is needed")
    lead = leading(a=a, b=b)
    a, b = (np.broadcast_to(x, lead + x.shape[-2:]) for x in (a, b))
    return chosen, a, b, positions, size


# ------------------------------------------------------------------------------------ arithmetic


@dataclass(frozen=True)
class Terms:
    """Numbers as a signed significand times 2^(exponent - mantissa bits).

    A subnormal keeps the smallest exponent and is not normalised.
    """

    significand: np.ndarray
    exponent: np.ndarray
    infinite: np.ndarray
    nan: np.ndarray

    def __getitem__(self, index: Any) -> Terms:
        return Terms(
            self.significand[index], self.exponent[index], self.infinite[index], self.nan[index]
        )


def decode(values: np.ndarray, fmt: Format) -> Terms:
    """Values as the terms of ``fmt``; infinities have the significand +-1."""
    bits = codes(values).astype(np.int64) >> (TF32_IGNORED_BITS if fmt is TF32 else 0)
    magnitude = bits & fmt.magnitude
    power = magnitude >> fmt.mantissa_bits
    fraction = magnitude & ((1 << fmt.mantissa_bits) - 1)
    significand = np.where(power > 0, fraction | 1 << fmt.mantissa_bits, fraction)
    infinite = np.zeros(bits.shape, bool) if fmt.infinity is None else magnitude == fmt.infinity
    nan = magnitude > (fmt.max_finite if fmt.infinity is None else fmt.infinity)
    significand = np.where(nan, 0, np.where(infinite, 1, significand))
    exponent = np.where(significand == 0, ABSENT, np.maximum(power, 1) - fmt.bias)
    sign = np.where(bits & fmt.sign != 0, -1, 1)
    return Terms(sign * significand, exponent, infinite, nan)


def operand_terms(values: np.ndarray, instruction: Instruction) -> Terms:
    if instruction.computes_in is not None:
        values = cast(widen(values), instruction.computes_in)  # exact
    return decode(values, instruction.significands)


def _cut(significand: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """significand * 2^shift, cut towards zero."""
    magnitude = np.abs(significand)
    moved = magnitude << np.clip(shift, 0, 40) >> np.clip(-shift, 0, 63)
    return np.sign(significand) * moved


def fused_sum(a: Terms, b: Terms, c: np.ndarray, instruction: Instruction) -> np.ndarray:
    """c + the sum of a * b over the last axis, as one step of the tensor core.

    a, b: [.., products], which broadcast; c: [..] in the accumulator's format.
    """
    fraction = instruction.fraction_bits
    accumulator = decode(c, instruction.accumulator)
    products = a.significand * b.significand
    exponents = a.exponent + b.exponent
    top = np.maximum(exponents.max(axis=-1), accumulator.exponent)
    top = np.maximum(top, instruction.lowest_alignment)
    point = 2 * instruction.significands.mantissa_bits
    cut = _cut(products, fraction - point + exponents - top[..., None])
    total = cut.sum(axis=-1) + _cut(
        accumulator.significand,
        fraction - instruction.accumulator.mantissa_bits + accumulator.exponent - top,
    )
    if instruction.accumulator is FLOAT16:
        # |total| < 2^37, so the float64 is exact and the cast is the only rounding.  0 is +0.
        result = codes(cast(np.ldexp(total.astype(np.float64), top - fraction), FLOAT16))
        result = np.where(result == FLOAT16.sign, 0, result).astype(np.int64)
        infinity, nan_code, sign = FLOAT16.overflow, 0x7FFF, FLOAT16.sign
    else:
        result = _cut_to_float32(total, top - fraction, instruction.kept_bits)
        infinity, nan_code, sign = FLOAT32.overflow, NAN_BITS, FLOAT32.sign

    # 0 * inf is NaN; an infinite product has the sign of its significands.
    infinite = a.infinite | b.infinite
    nan = (a.nan | b.nan | (infinite & (products == 0))).any(axis=-1) | accumulator.nan
    upper = (infinite & (products > 0)).any(axis=-1)
    upper = upper | (accumulator.infinite & (accumulator.significand > 0))
    lower = (infinite & (products < 0)).any(axis=-1)
    lower = lower | (accumulator.infinite & (accumulator.significand < 0))
    result = np.where(upper, infinity, np.where(lower, infinity | sign, result))
    result = np.where(nan | (upper & lower), nan_code, result)
    accumulated = instruction.accumulator
    return result.astype(accumulated.code_dtype).view(accumulated.dtype)


def _cut_to_float32(total: np.ndarray, unit: np.ndarray, kept_bits: int) -> np.ndarray:
    """The float32 bits of total * 2^unit, cut to ``kept_bits`` fraction bits; a zero is +0."""
    magnitude = np.abs(total)
    exponent = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64) - 1 + unit
    # Below 2^-126 the quantum stands still.
    quantum = np.maximum(exponent, FLOAT32.min_exponent) - kept_bits
    significand = _cut(magnitude, unit - quantum) << 23 - kept_bits
    # The hidden bit, where it is there, adds one to the exponent field.
    bits = (np.maximum(exponent, FLOAT32.min_exponent) + 126 << 23) + significand
    bits = np.where((exponent > 127) & (magnitude > 0), FLOAT32.overflow, bits)
    return np.where(significand == 0, 0, bits | np.where(total < 0, FLOAT32.sign, 0))


def chain(
    a: Terms, b: Terms, c: np.ndarray, instruction: Instruction, order: np.ndarray | None = None
) -> np.ndarray:
    """c + the sum of a * b over the last axis, instruction after instruction.

    order: the position in the last axis that each k index of the instructions reads.
    """
    n = np.broadcast_shapes(a.significand.shape, b.significand.shape)[-1]
    positions = np.arange(n) if order is None else order
    inside = np.array(instruction.order or range(instruction.k))
    for start in range(0, n, instruction.k):
        taken = positions[start + inside]
        part = np.zeros_like(c) if instruction.adds_outside else c
        for first in range(0, instruction.k, instruction.products):
            at = (..., taken[first : first + instruction.products])
            part = fused_sum(a[at], b[at], part, instruction)
        c = _fadd(c, part) if instruction.adds_outside else part
    return c


def _fadd(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        total = x + y
    return np.where(np.isnan(total), NAN, total)


def mma(instruction: str | Instruction, a: Any, b: Any, c: Any) -> np.ndarray:
    """The numpy version of `refkern.hardware.sm90.mma`."""
    chosen, a, b, c = checked(instruction, a, b, c)
    left = operand_terms(a, chosen)[..., :, None, :]
    right = operand_terms(b, chosen)[..., None, :, :]
    return chain(left, right, c, chosen)


def gemm_chain(
    instruction: str | Instruction,
    a: Any,
    b: Any,
    *,
    order: Sequence[int] | np.ndarray | None = None,
    group: int | None = None,
) -> np.ndarray:
    """The numpy version of `refkern.hardware.sm90.gemm_chain`."""
    chosen, a, b, positions, size = checked_chain(instruction, a, b, order, group)
    zero = np.zeros((*a.shape[:-1], b.shape[-2]), chosen.accumulator.dtype)
    left = operand_terms(a, chosen)[..., :, None, :]
    right = operand_terms(b, chosen)[..., None, :, :]
    if group is None:
        return chain(left, right, zero, chosen, positions)
    sums = []
    for start in range(0, a.shape[-1], size):
        at = (..., slice(start, start + size))
        sums.append(chain(left[at], right[at], zero, chosen, positions))
    if not sums:
        return np.zeros((*zero.shape[:-2], 0, *zero.shape[-2:]), zero.dtype)
    return np.stack(sums, axis=-3)


@dataclass(frozen=True)
class TensorCoreChain:
    """A schedule: the chain of one tensor-core instruction over a row, from +0.

    Takes float32 arrays that hold values of the instruction's operand format, as a reference's
    widened inputs do.  A row that does not fill the last instruction is filled up with zeros, as
    TMA and every kernel's tail do; zeros take no part in a fused sum.
    """

    instruction: str
    compiled: str = "refkern.hardware.sm90.compiled_tensor_cores:chain_sum"

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        chosen = INSTRUCTIONS[self.instruction]
        b = np.ones(a.shape[-1:], np.float32) if b is None else b
        left, right = (operand_terms(self._operand(x, chosen), chosen) for x in (a, b))
        lead = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
        total = widen(chain(left, right, np.zeros(lead, chosen.accumulator.dtype), chosen))
        return np.where(np.isnan(total), NAN, total)

    @staticmethod
    def _operand(x: np.ndarray, instruction: Instruction) -> np.ndarray:
        missing = -x.shape[-1] % instruction.k
        filled = np.concatenate([x, np.zeros((*x.shape[:-1], missing), np.float32)], axis=-1)
        return filled if instruction.operands is TF32 else cast(filled, instruction.operands)
