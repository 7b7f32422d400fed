"""Wrong gated_group_rmsnorm kernels: what people did, each as a switch in the right one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refkern.arithmetic import ONE, Bits, Sigmoid, Silu
from refkern.casts import cast, widen
from refkern.elementary import EXP, Function
from refkern.faults import (
    FAST_EXP,
    REPORTED,
    BoundedSum,
    CastBy,
    DoubleRounding,
    EpsOutsideRoot,
    FlushToZero,
    HalfSum,
    NanIgnored,
    OffByOneSize,
    PartialSum,
    RsqrtOffBy,
    SaturatingCast,
    rounded_to,
    walked,
    with_inputs,
    with_params,
)
from refkern.mutant import Mutant
from refkern.op import Call
from refkern.ops.gated_group_rmsnorm.recipes import NormRecipe
from refkern.schedules import Lanes, Schedule, Sequential


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


class NanSpreads(Bits):
    """0 * NaN in a masked lane: a NaN in one group reaches every group of the row."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        poisoned = np.isnan(a).any(axis=(-1, -2), keepdims=True)
        return super().dot(np.where(poisoned, np.float32(np.nan), a), b, schedule)


class LeakingLanes(Bits):
    """Masks the last lanes by the row's end instead of the group's: the next group leaks in."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        size = a.shape[-1]
        following = np.zeros((*a.shape[:-1], -size % 4), np.float32)
        extra = min(following.shape[-1], size)
        following[:, :-1, :extra] = a[:, 1:, :extra]
        a = np.concatenate([a, following], axis=-1)
        return super().dot(a, a, schedule)


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
    Mutant("rsqrt-one-ulp", "computed rsqrt one ULP too large", arithmetic=lambda c: RsqrtOffBy(1)),
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

#: Where a policy allows what a mutant does, it is a correct kernel: no case rejects it there.
ALLOWED: dict[str, tuple[str, ...]] = {
    # inside the budget of rsqrt, 2 ULP there
    "rsqrt-one-ulp": ("cuda", "wgsl"),
    # another order or another rounding inside a sum, or another form of silu: free everywhere
    "exp-accurate": ("ieee", "cuda", "metal", "wgsl"),
    "silu-product": ("ieee", "cuda", "metal", "wgsl"),
    "silu-quotient": ("ieee", "cuda", "metal", "wgsl"),
    "sum-sequential": ("ieee", "cuda", "metal", "wgsl"),
    "sum-not-fused": ("ieee", "cuda", "metal", "wgsl"),
    "butterfly-ascending": ("ieee", "cuda", "metal", "wgsl"),
    "fma-on-the-other-half": ("ieee", "cuda", "metal", "wgsl"),
    # either neighbour is a right rounding, and NaN and infinity are undetermined
    "exp-fast": ("wgsl",),
    "sum-bounded": ("wgsl",),
    "silu-stable": ("wgsl",),
    "nan-ignored": ("wgsl",),
    "cast-toward-zero": ("wgsl",),
    "cast-ties-away": ("wgsl",),
    "cast-saturates": ("wgsl",),
    # flushing, or inside the budget of exp there
    "flush-to-zero": ("metal", "wgsl"),
}
