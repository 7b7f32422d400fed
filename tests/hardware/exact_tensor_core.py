"""One output of a tensor-core instruction in exact rational arithmetic: slow, and apart.

Written from the words of docs/cuda-on-a-cpu.md on `fractions.Fraction`; shares no line with
refkern.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

NAN = math.nan


@dataclass(frozen=True)
class Numbers:
    """A format by its fraction bits and the exponent of its smallest normal number."""

    fraction_bits: int
    smallest_exponent: int


F16, BF16, TF32 = Numbers(10, -14), Numbers(7, -126), Numbers(10, -126)
E4M3, E5M2, F32 = Numbers(3, -6), Numbers(2, -14), Numbers(23, -126)


@dataclass(frozen=True)
class Step:
    """A fused sum: its operands' numbers, its products, and where terms and result are cut."""

    operands: Numbers
    products: int
    cut: int = 25
    kept: int = 23
    rounds_to_f16: bool = False


HMMA_F16 = Step(F16, 16)
#: per instruction: the fused sum; two of them and an addition outside for FP8 mma.sync
STEPS = {
    "mma.m16n8k32.e4m3": HMMA_F16,
    "mma.m16n8k32.e5m2": HMMA_F16,
    "mma.m16n8k16.bf16": Step(BF16, 16),
    "mma.m16n8k8.bf16": Step(BF16, 8),
    "mma.m16n8k16.f16": HMMA_F16,
    "mma.m16n8k8.f16": Step(F16, 8),
    "mma.m16n8k16.f16.f16acc": Step(F16, 16, rounds_to_f16=True),
    "mma.m16n8k8.tf32": Step(TF32, 8),
    "mma.m16n8k4.tf32": Step(TF32, 4),
    "wgmma.k16.bf16": Step(BF16, 16),
    "wgmma.k16.f16": HMMA_F16,
    "wgmma.k8.tf32": Step(TF32, 8),
    "wgmma.k32.e4m3": Step(E4M3, 32, cut=13, kept=13),
    "wgmma.k32.e5m2": Step(E5M2, 32, cut=13, kept=13),
}
FP8_WARP = ("mma.m16n8k32.e4m3", "mma.m16n8k32.e5m2")


def exponent_of(x: Fraction, numbers: Numbers) -> int:
    """floor(log2 |x|), but a subnormal's is the smallest normal one's."""
    size = abs(x)
    e = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** e > size:
        e -= 1
    return max(e, numbers.smallest_exponent)


def toward_zero(x: Fraction, unit: Fraction) -> Fraction:
    return math.trunc(x / unit) * unit


def to_nearest(x: Fraction, numbers: Numbers) -> float:
    """Ties to even (which is what round() does); the largest exponent is not looked at."""
    unit = Fraction(2) ** (exponent_of(x, numbers) - numbers.fraction_bits) if x else Fraction(1)
    return float(round(x / unit) * unit)


def fused(a: list[float], b: list[float], c: float, step: Step) -> float:
    """The result as a float64, which holds it exactly; an infinity where it overflows."""
    special = [x * y for x, y in zip(a, b, strict=True)] + [c]
    if not all(math.isfinite(x) for x in [*a, *b, c]):
        infinities = {x for x in special if not math.isfinite(x)}
        if any(map(math.isnan, infinities)) or len(infinities) > 1:
            return NAN
        return infinities.pop()
    accumulator = F16 if step.rounds_to_f16 else F32
    terms = []
    for x, y in zip(map(Fraction, a), map(Fraction, b), strict=True):
        if x and y:
            terms.append((x * y, exponent_of(x, step.operands) + exponent_of(y, step.operands)))
    if c:
        terms.append((Fraction(c), exponent_of(Fraction(c), accumulator)))
    top = max([-21 if step.rounds_to_f16 else -133, *(e for _, e in terms)])
    unit = Fraction(2) ** (top - step.cut)
    total = sum((toward_zero(x, unit) for x, _ in terms), Fraction(0))
    if not total:
        return 0.0
    if step.rounds_to_f16:
        result = to_nearest(total, F16) or 0.0
        return math.copysign(math.inf, result) if abs(result) > 65504 else result
    kept = toward_zero(total, Fraction(2) ** (exponent_of(total, F32) - step.kept))
    return math.copysign(math.inf, kept) if abs(kept) >= 2**128 else float(kept)


def add(x: float, y: float) -> float:
    """IEEE float32 addition, to nearest even."""
    if not (math.isfinite(x) and math.isfinite(y)):
        return x + y
    total = Fraction(x) + Fraction(y)
    if not total:
        return x + y  # the sign of a zero sum
    result = to_nearest(total, F32)
    return math.copysign(math.inf, result) if abs(result) >= 2.0**128 else result


def chain(name: str, a: list[float], b: list[float], c: float) -> float:
    """c + a dot b over any number of instructions; tf32 operands cut to their 10 bits before."""
    step = STEPS[name]
    if name in FP8_WARP:
        for start in range(0, len(a), 32):
            part = 0.0
            for low in (True, False):
                at = [k for k in range(start, start + 32) if (k % 4 < 2) == low]
                part = fused([a[k] for k in at], [b[k] for k in at], part, step)
            c = add(c, part)
        return c
    for start in range(0, len(a), step.products):
        stop = start + step.products
        c = fused(a[start:stop], b[start:stop], c, step)
    return c
