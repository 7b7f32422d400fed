"""Wrong gated_group_rmsnorm kernels: what people did, each as a switch in the right one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refkern.arithmetic import ONE, Bits, Sigmoid, Silu
from refkern.casts import cast, widen
from refkern.elementary import EXP, LN2_HIGH, LN2_LOW, LOG2_E, Function, exp_float64
from refkern.mutant import Mutant
from refkern.op import Call
from refkern.ops.gated_group_rmsnorm.recipes import NormRecipe
from refkern.schedules import Lanes, Schedule, Sequential

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


class OffByOneSize(Bits):
    def constant(self, value: float) -> np.float32:
        return super().constant(value - 1 if self.current == "sum_of_squares" else value)


class Rounding(Bits):
    """Rounds silu, or the gated value, to y's dtype on the way."""

    def __init__(self, call: Call, *, silu: bool = False, gated: bool = False) -> None:
        super().__init__()
        self.dtype, self.rounds_silu, self.rounds_gated = call.y.dtype, silu, gated

    def silu(self, x: np.ndarray, silu: Silu) -> np.ndarray:
        value = super().silu(x, silu)
        return rounded_to(self.dtype, value) if self.rounds_silu else value

    def stage(self, name: str, value: np.ndarray) -> np.ndarray:
        if name == "gated" and self.rounds_gated:
            value = rounded_to(self.dtype, value)
        return super().stage(name, value)


class NormThenGate(Bits):
    """Gates what comes out of the normalisation instead of what goes in."""

    def silu(self, x: np.ndarray, silu: Silu) -> np.ndarray:
        self.gate = super().silu(x, silu)
        return np.ones_like(x)

    def stage(self, name: str, value: np.ndarray) -> np.ndarray:
        if name == "normalized" and hasattr(self, "gate"):
            value = self.mul(widen(value), self.gate)
        return super().stage(name, value)


class GateBySigmoid(Bits):
    """Multiplies by sigmoid(gate): the gate itself is left out of its silu."""

    def silu(self, x: np.ndarray, silu: Silu) -> np.ndarray:
        return self.sigmoid(x, silu.sigmoid)


class StableSilu(Bits):
    """g * e / (1 + e) with e = exp(g) for negative gates: never exactly zero, where 1/inf is."""

    def silu(self, x: np.ndarray, silu: Silu) -> np.ndarray:
        e = self.exp(x, silu.sigmoid.function)
        negative = self.mul(x, self.div(e, self.add(ONE, e)))
        return np.where(x < -80, negative, super().silu(x, silu))


class SharedStatistics(Bits):
    """Uses one group's, or one row's, statistics for all."""

    def __init__(self, *, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def stage(self, name: str, value: np.ndarray) -> np.ndarray:
        if name == "rstd" and value.size:
            value = np.broadcast_to(value.take([0], axis=self.axis), value.shape)
        return super().stage(name, value)


class RstdOffBy(Bits):
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
    """Stores the largest finite value instead of infinity."""

    def cast(self, x: np.ndarray, dtype: np.dtype, **how: Any) -> np.ndarray:
        return super().cast(x, dtype, **{**how, "saturate": True})


class BoundedSum(Bits):
    """A sum of squares that overflows stays the largest finite float32."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        total = super().dot(a, b, schedule)
        overflowed = np.isinf(total) & np.isfinite(a).all(axis=-1)
        return np.where(overflowed, np.finfo(np.float32).max, total)


class HalfSum(Bits):
    """Accumulates the squares in float16: infinite above 65504."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        return rounded_to("float16", super().dot(a, b, schedule))


class ZeroGroupNan(Bits):
    """Divides a group by its largest magnitude first: 0/0 where that is zero."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        zero = (a == 0).all(axis=-1)
        return np.where(zero, np.float32(np.nan), super().dot(a, b, schedule))


@dataclass(frozen=True)
class OtherHalfFused:
    """The vector sum with the lower half's product rounded and the upper half fused."""

    right: Lanes

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        width, half = self.right.vector, self.right.vector // 2
        vectors = a.reshape(*a.shape[:-1], -1, width)
        exchanged = np.concatenate([vectors[..., half:], vectors[..., :half]], axis=-1)
        exchanged = exchanged.reshape(a.shape)
        return self.right.replay(exchanged, exchanged)


class NanIgnored(Bits):
    """A maximum or a guard somewhere swallows NaN before the sum."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        a = np.where(np.isnan(a), np.float32(0), a)
        return super().dot(a, a, schedule)


class NanSpreads(Bits):
    """0 * NaN in a masked lane: a NaN in one group reaches every group of the row."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        poisoned = np.isnan(a).any(axis=(-1, -2), keepdims=True)
        return super().dot(np.where(poisoned, np.float32(np.nan), a), b, schedule)


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


class LeakingLanes(Bits):
    """Masks the last lanes by the row's end instead of the group's: the next group leaks in."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        size = a.shape[-1]
        following = np.zeros((*a.shape[:-1], -size % 4), np.float32)
        extra = min(following.shape[-1], size)
        following[:, :-1, :extra] = a[:, 1:, :extra]
        a = np.concatenate([a, following], axis=-1)
        return super().dot(a, a, schedule)


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


def swapped(call: Call) -> Call:
    if call.gate is None or call.gate.dtype != call.y.dtype:
        return call
    return with_inputs(call, y=call.gate, gate=call.y)


def weight_by_channel_of_group(call: Call) -> Call:
    first = call.weight[: call.group_size]
    return with_inputs(call, weight=np.resize(first, call.weight.shape))


def through(dtype: Any, *names: str) -> Any:
    """The named inputs rounded to ``dtype`` when they are read."""

    def change(call: Call) -> Call:
        narrowed = {}
        for name in names:
            array = call.inputs[name]
            if array is not None:
                narrowed[name] = cast(rounded_to(dtype or call.y.dtype, widen(array)), array.dtype)
        return with_inputs(call, **narrowed)

    return change


def fast_exp(x: np.ndarray) -> np.ndarray:
    """2^(x * log2 e) with the argument rounded to float32: off by up to |x| / 2 ULP."""
    exponent = (x * np.float32(LOG2_E)).astype(np.float64)
    return exp_float64(exponent * (LN2_HIGH + LN2_LOW)).astype(np.float32)


FAST_EXP = Function("fast-exp", fast_exp, "")


def other_half_fused(recipe: NormRecipe) -> NormRecipe:
    squares = recipe.squares
    if isinstance(squares, Lanes) and squares.vector > 1 and squares.fused:
        return replace(recipe, squares=OtherHalfFused(squares))
    return recipe


def with_exp(function: Function) -> Any:
    return lambda r: replace(r, silu=Silu(r.silu.form, Sigmoid("plain", function)))


def with_silu(form: Any) -> Any:
    return lambda r: replace(r, silu=Silu(form, r.silu.sigmoid))


MUTANTS = (
    Mutant("eps-dropped", "left eps out", call=lambda c: with_params(c, eps=0.0),
           source=REPORTED + "9"),
    Mutant("eps-fixed", "used the default eps 1e-6 instead of the configured one",
           call=lambda c: with_params(c, eps=1e-6 if c.eps else 0.0), source=REPORTED + "9"),
    Mutant("eps-zero-is-default", "took eps 0 for a missing eps",
           call=lambda c: with_params(c, eps=c.eps or 1e-5), source=REPORTED + "28"),
    Mutant("eps-outside-root", "added eps to the root instead of the mean of squares",
           call=lambda c: with_params(c, eps=0.0), arithmetic=lambda c: EpsOutsideRoot(1e-5)),
    Mutant("size-minus-one", "divided by the group size minus one",
           arithmetic=lambda c: OffByOneSize()),
    Mutant("cast-dropped", "did not round to y's dtype before the weight",
           recipe=lambda r: replace(r, cast_before_weight=False)),
    Mutant("cast-added", "rounded to y's dtype before the weight",
           recipe=lambda r: replace(r, cast_before_weight=True)),
    Mutant("weight-rounded", "rounded the weight to y's dtype",
           call=through(None, "weight"), source=REPORTED + "7"),
    Mutant("gate-rounded", "rounded the gate to y's dtype", call=through(None, "gate")),
    Mutant("silu-rounded", "rounded silu(gate) to y's dtype",
           arithmetic=lambda c: Rounding(c, silu=True)),
    Mutant("gated-rounded", "rounded the gated value to y's dtype before the statistics",
           arithmetic=lambda c: Rounding(c, gated=True)),
    Mutant("inputs-bfloat16", "read float32 y and gate as bfloat16",
           call=lambda c: through("bfloat16", "y", "gate")(c) if c.y.dtype == np.float32 else c),
    Mutant("norm-before-gate", "normalised first and gated then",
           arithmetic=lambda c: NormThenGate(), source=REPORTED + "1"),
    Mutant("sigmoid", "multiplied by sigmoid(gate) instead of silu(gate)",
           arithmetic=lambda c: GateBySigmoid()),
    Mutant("gate-ignored", "did not gate", call=lambda c: with_inputs(c, gate=None)),
    Mutant("gate-required", "took a missing gate for zeros",
           call=lambda c: with_inputs(c, gate=np.zeros_like(c.y) if c.gate is None else c.gate)),
    Mutant("gate-swapped", "took silu of y instead of the gate", call=swapped),
    Mutant("gate-walked", "walked the gate's buffer instead of the view", call=walked,
           source=REPORTED + "11"),
    Mutant("whole-row", "normalised over the whole row instead of each group",
           call=lambda c: with_params(c, group_size=max(c.y.shape[1], 1)), source=REPORTED + "3"),
    Mutant("first-group", "used the first group's statistics for all groups",
           arithmetic=lambda c: SharedStatistics(axis=1)),
    Mutant("first-row", "used the first row's statistics for all rows",
           arithmetic=lambda c: SharedStatistics(axis=0)),
    Mutant("weight-by-group", "indexed the weight by the channel within the group",
           call=weight_by_channel_of_group),
    Mutant("tail-dropped", "left out what does not fill 32 lanes",
           arithmetic=lambda c: PartialSum(multiple=32)),
    Mutant("lanes-leak", "let masked lanes read the next group", source=REPORTED + "5",
           arithmetic=lambda c: LeakingLanes()),
    Mutant("buffer-4096", "added only the first 4096 squares of a group",
           arithmetic=lambda c: PartialSum(at_most=4096)),
    Mutant("rsqrt-one-ulp", "computed rsqrt one ULP too large", arithmetic=lambda c: RstdOffBy(1)),
    Mutant("exp-accurate", "used an exact exp instead of the recipe's own", recipe=with_exp(EXP)),
    Mutant("silu-product", "multiplied by 1/(1 + exp) instead of dividing by 1 + exp",
           recipe=with_silu("product")),
    Mutant("silu-quotient", "divided by 1 + exp instead of multiplying by its reciprocal",
           recipe=with_silu("quotient")),
    Mutant("exp-fast", "computed exp as 2^(x log2 e) with a rounded argument",
           recipe=with_exp(FAST_EXP)),
    Mutant("sum-sequential", "added the squares one after the other",
           recipe=lambda r: replace(r, squares=Sequential(fused=True))),
    Mutant("sum-not-fused", "rounded every square before adding it",
           recipe=lambda r: replace(r, squares=Lanes(lanes=32))),
    Mutant("butterfly-ascending", "combined lanes 1, 2, 4, 8, 16 apart instead of 16, 8, 4, 2, 1",
           recipe=lambda r: replace(r, squares=Lanes(fused=True, combine="ascending"))),
    Mutant("fma-on-the-other-half", "fused the upper half of a vector onto the lower",
           recipe=other_half_fused),
    Mutant("zero-group-nan", "divided by a group's largest magnitude, 0/0 for zeros",
           arithmetic=lambda c: ZeroGroupNan(), source=REPORTED + "9"),
    Mutant("sum-float16", "accumulated the squares in float16", arithmetic=lambda c: HalfSum()),
    Mutant("sum-bounded", "kept a sum that overflows finite", arithmetic=lambda c: BoundedSum()),
    Mutant("flush-to-zero", "took subnormals for zeros", arithmetic=lambda c: FlushToZero()),
    Mutant("silu-stable", "used exp(gate) for deep negative gates",
           arithmetic=lambda c: StableSilu()),
    Mutant("nan-ignored", "left NaN out of the sum", arithmetic=lambda c: NanIgnored(),
           source=REPORTED + "59"),
    Mutant("nan-spreads", "let a NaN of one group reach the others", source=REPORTED + "37",
           arithmetic=lambda c: NanSpreads()),
    Mutant("cast-toward-zero", "truncated when narrowing", arithmetic=lambda c: CastBy(0),
           source=REPORTED + "43"),
    Mutant("cast-ties-away", "rounded ties away from zero when narrowing",
           arithmetic=lambda c: CastBy(1), source=REPORTED + "43"),
    Mutant("stored-through-bfloat16", "stored by way of bfloat16",
           arithmetic=lambda c: DoubleRounding()),
    Mutant("cast-saturates", "stored the largest finite value instead of infinity",
           arithmetic=lambda c: SaturatingCast()),
)  # fmt: skip
