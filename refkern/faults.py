"""Wrong arithmetic that kernels of more than one op have had: what their mutants are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from refkern.arithmetic import Bits
from refkern.casts import cast, widen
from refkern.elementary import LN2_HIGH, LN2_LOW, LOG2_E, Function, exp_float64
from refkern.op import Call
from refkern.schedules import Schedule

#: a mutant whose fault users met and reported
REPORTED = "reported: "


def with_params(call: Call, **changed: Any) -> Call:
    return Call(call.inputs, {**call.params, **changed})


def with_inputs(call: Call, **changed: Any) -> Call:
    return Call({**call.inputs, **changed}, call.params)


def rounded_to(dtype: Any, array: np.ndarray) -> np.ndarray:
    return widen(cast(array, dtype))


def flushed(array: np.ndarray) -> np.ndarray:
    """Every float32 subnormal as a zero of its sign."""
    return np.where(np.abs(array) < np.float32(2.0**-126), np.copysign(np.float32(0), array), array)


def fast_exp(x: np.ndarray) -> np.ndarray:
    """2^(x * log2 e) with the argument rounded to float32: off by up to |x| / 2 ULP."""
    exponent = (x * np.float32(LOG2_E)).astype(np.float64)
    return exp_float64(exponent * (LN2_HIGH + LN2_LOW)).astype(np.float32)


FAST_EXP = Function("fast-exp", fast_exp, "")


def walked(call: Call) -> Call:
    """The gate as a kernel reads it that takes a strided view for a contiguous tensor."""
    gate = call.gate
    if gate is None or gate.flags.c_contiguous or gate.base is None:
        return call
    rows, width = gate.shape
    buffer = np.lib.stride_tricks.as_strided(
        gate, ((rows - 1) * gate.strides[0] // gate.itemsize + width,), (gate.itemsize,)
    )
    return with_inputs(call, gate=buffer[: rows * width].reshape(rows, width).copy())


class OffByOneSize(Bits):
    """Divides the sum of squares by the count minus one."""

    def constant(self, value: float) -> np.float32:
        return super().constant(value - 1 if self.current == "sum_of_squares" else value)


class RsqrtOffBy(Bits):
    """rsqrt this many ULP too large."""

    def __init__(self, ulps: int) -> None:
        super().__init__()
        self.ulps = np.int32(ulps)

    def rsqrt(self, x: np.ndarray, function: Function) -> np.ndarray:
        exact = super().rsqrt(x, function)
        moved = (np.ascontiguousarray(exact).view(np.int32) + self.ulps).view(np.float32)
        return np.where(np.isfinite(exact) & (exact != 0), moved, exact)


class EpsOutsideRoot(Bits):
    """1 / (sqrt(mean) + eps)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = np.float32(eps)

    def rsqrt(self, x: np.ndarray, function: Function) -> np.ndarray:
        return np.float32(1) / (np.sqrt(x) + self.eps)


class FlushToZero(Bits):
    """Treats subnormal operands and results as zeros, as a GPU with -ftz does."""

    def widen(self, x: np.ndarray) -> np.ndarray:
        return flushed(super().widen(x))

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return flushed(super().mul(a, b))

    def div(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return flushed(super().div(a, b))

    def exp(self, x: np.ndarray, function: Function) -> np.ndarray:
        return flushed(super().exp(x, function))


class CastBy(Bits):
    """Narrows with a rounding of its own: `toward_zero`, or `ties_away`."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.added = np.uint32(added)

    def cast(self, x: np.ndarray, dtype: np.dtype, **how: Any) -> np.ndarray:
        if dtype.itemsize == 4:
            return super().cast(x, dtype, **how)
        dropped = 13 if dtype == np.float16 else 16
        half = np.uint32(1 << (dropped - 1)) if self.added else np.uint32(0)
        mask = np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
        cut = ((np.ascontiguousarray(x).view(np.uint32) + half) & mask).view(np.float32)
        return super().cast(np.where(np.isfinite(x) & np.isfinite(cut), cut, x), dtype, **how)


class DoubleRounding(Bits):
    """Stores float16 by way of bfloat16."""

    def cast(self, x: np.ndarray, dtype: np.dtype, **how: Any) -> np.ndarray:
        x = rounded_to("bfloat16", x) if dtype == np.float16 else x
        return super().cast(x, dtype, **how)


class SaturatingCast(Bits):
    """Narrows to the largest finite value instead of infinity."""

    def cast(self, x: np.ndarray, dtype: np.dtype, **how: Any) -> np.ndarray:
        saturate = dtype.itemsize < 4
        return super().cast(x, dtype, **{**how, "saturate": saturate})


class PartialSum(Bits):
    """Adds the squares of only some elements of a group."""

    def __init__(self, *, multiple: int = 1, at_most: int | None = None) -> None:
        super().__init__()
        self.multiple, self.at_most = multiple, at_most

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        n = a.shape[-1]
        if n > self.multiple:
            n -= n % self.multiple
        if self.at_most is not None:
            n = min(n, self.at_most)
        return super().dot(a[..., :n], b[..., :n], schedule)


class HalfSum(Bits):
    """Accumulates the squares in float16: infinite above 65504."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        return rounded_to("float16", super().dot(a, b, schedule))


class BoundedSum(Bits):
    """A sum of squares that overflows stays the largest finite float32."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        total = super().dot(a, b, schedule)
        overflowed = np.isinf(total) & np.isfinite(a).all(axis=-1)
        return np.where(overflowed, np.finfo(np.float32).max, total)


class NanIgnored(Bits):
    """A maximum or a guard somewhere swallows NaN before the sum."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        a = np.where(np.isnan(a), np.float32(0), a)
        return super().dot(a, a, schedule)
