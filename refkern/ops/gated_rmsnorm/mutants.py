"""Wrong gated_rmsnorm kernels: what people did, each as a switch in the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from refkern.arithmetic import ONE, Bits, Sigmoid, Silu
from refkern.elementary import RSQRT, RSQRT_TWO_ROUNDINGS, Function
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
from refkern.ops.gated_rmsnorm.recipes import (
    MLAS_DENOMINATOR,
    MLAS_LIMIT,
    MLAS_LOGISTIC,
    MLAS_NUMERATOR,
    NormRecipe,
    Route,
    RouteRecipe,
)
from refkern.schedules import Exact, Lanes, Schedule, Sequential


class GateThenNorm(Bits):
    """Mamba-2's order: x times the gate's activation is what is normalised."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def widen(self, x: np.ndarray) -> np.ndarray:
        wide = super().widen(x)
        if x is not self.call.x:
            return wide
        gate = super().widen(self.call.gate)
        sigmoid = super().sigmoid(gate, Sigmoid("stable"))
        value = sigmoid if self.call.activation == "sigmoid" else self.mul(gate, sigmoid)
        return self.mul(wide, value)

    def silu(self, x: np.ndarray, silu: Silu) -> np.ndarray:
        return np.ones_like(x)

    def sigmoid(self, x: np.ndarray, sigmoid: Sigmoid) -> np.ndarray:
        return np.ones_like(x)


class Rounding(Bits):
    """Rounds a stage to x's dtype on the way."""

    def __init__(self, call: Call, rounded: str) -> None:
        super().__init__()
        self.dtype, self.rounded = call.x.dtype, rounded

    def stage(self, name: str, value: np.ndarray) -> np.ndarray:
        return super().stage(name, rounded_to(self.dtype, value) if name == self.rounded else value)


class GateRaw(Bits):
    """Multiplies by the gate itself."""

    def silu(self, x: np.ndarray, silu: Silu) -> np.ndarray:
        return x

    def sigmoid(self, x: np.ndarray, sigmoid: Sigmoid) -> np.ndarray:
        return x


class GateIgnored(Bits):
    def silu(self, x: np.ndarray, silu: Silu) -> np.ndarray:
        return np.ones_like(x)

    def sigmoid(self, x: np.ndarray, sigmoid: Sigmoid) -> np.ndarray:
        return np.ones_like(x)


class ScalePlusOne(Bits):
    """Multiplies by 1 + scale, as the ungated norm of the same models does."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.given_scale = call.scale

    def widen(self, x: np.ndarray) -> np.ndarray:
        wide = super().widen(x)
        return self.add(wide, ONE) if x is self.given_scale else wide


class ScaleTimesInv(Bits):
    """x * (inv * scale) instead of (x * inv) * scale."""

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if self.current != "inv":
            return super().mul(a, b)
        if b.shape[-1:] == (1,) and a.ndim == 2:  # x * inv: not yet
            self.held = (a, b)
            return a
        x, inv = self.held
        return super().mul(x, super().mul(inv, b))


class MeanByReciprocal(Bits):
    """sum * (1 / C) instead of sum / C."""

    def div(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if self.current != "sum_of_squares":
            return super().div(a, b)
        return self.mul(a, super().div(ONE, b))


class FirstRowStatistics(Bits):
    """Uses the first row's statistics for all rows."""

    def stage(self, name: str, value: np.ndarray) -> np.ndarray:
        if name == "inv" and value.size:
            value = np.broadcast_to(value[:1], value.shape)
        return super().stage(name, value)


class NeighbourRows(Bits):
    """Adds up the lanes of a whole subgroup although two or more rows share it."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        sums = super().dot(a, b, schedule)
        if not isinstance(schedule, Lanes) or schedule.lanes >= 32 or len(sums) < 2:
            return sums
        pairs = sums[: len(sums) // 2 * 2].reshape(-1, 2)
        together = np.repeat(self.add(pairs[:, 0], pairs[:, 1]), 2)
        return np.concatenate([together, sums[len(together) :]])


class FourSubgroupsOnly(Bits):
    """Adds the sums of a row's first four subgroups, whatever the number of subgroups."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        if isinstance(schedule, Lanes) and schedule.subgroup:
            vectors = np.arange(a.shape[-1]) // schedule.vector
            lane = vectors % schedule.lanes
            a = np.where(lane < 4 * schedule.subgroup, a, np.float32(0))
            return super().dot(a, a, schedule)
        return super().dot(a, b, schedule)


class FourVectorsOnly(Bits):
    """Adds only the vectors that fit into four registers of each of a subgroup's lanes."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        if isinstance(schedule, Lanes) and schedule.lanes <= 32:
            n = min(a.shape[-1], 4 * schedule.lanes * schedule.vector)
            a, b = a[..., :n], b[..., :n]
        return super().dot(a, b, schedule)


class GateOfFirstToken(Bits):
    """Gates every token of [batch, token, head, C] with the first one's gate."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.gate = call.gate

    def widen(self, x: np.ndarray) -> np.ndarray:
        if x is self.gate and x.ndim == 4:
            x = np.broadcast_to(x[:, :1], x.shape)
        return super().widen(np.ascontiguousarray(x))


class ZeroRowNan(Bits):
    """Divides a row by its largest magnitude first: 0/0 where that is zero."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        zero = (a == 0).all(axis=-1)
        return np.where(zero, np.float32(np.nan), super().dot(a, b, schedule))


class NanSpreads(Bits):
    """A NaN in one row reaches the statistics of all."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        sums = super().dot(a, b, schedule)
        return sums + np.where(np.isnan(sums).any(), np.float32(np.nan), np.float32(0))


class SiluFlushed(Bits):
    """Takes silu below -18 for -0, as a rational approximation that is clamped there does."""

    def silu(self, x: np.ndarray, silu: Silu) -> np.ndarray:
        flushed = (x <= -MLAS_LIMIT) & np.isfinite(x)
        return np.where(flushed, np.float32(-0.0), super().silu(x, silu))


class StoredThroughFloat16(Bits):
    """Stores bfloat16 by way of float16."""

    def cast(self, x: np.ndarray, dtype: np.dtype, **how: Any) -> np.ndarray:
        x = rounded_to("float16", x) if dtype == "bfloat16" else x
        return super().cast(x, dtype, **how)


def unfused_mlas_logistic(z: np.ndarray) -> np.ndarray:
    """MLAS's logistic where the processor has no fma."""
    v = np.minimum(np.maximum(z, -MLAS_LIMIT), MLAS_LIMIT)
    s = v * v

    def horner(coefficients: tuple[np.float32, ...]) -> np.ndarray:
        p = np.full_like(s, coefficients[0])
        for coefficient in coefficients[1:]:
            p = p * s + coefficient
        return p

    y = horner(MLAS_NUMERATOR) * v / horner(MLAS_DENOMINATOR) + np.float32(0.5)
    return np.maximum(y, np.float32(0))


def with_logistic(function: Function | None) -> Callable[[NormRecipe], NormRecipe]:
    """Another function in the place of MLAS's logistic; None: the exact sigmoid."""
    sigmoid = Sigmoid("stable") if function is None else Sigmoid("function", function)

    def change(recipe: NormRecipe) -> NormRecipe:
        if recipe.silu.sigmoid.function != MLAS_LOGISTIC:
            return recipe
        return replace(recipe, silu=Silu("product", sigmoid))

    return change


def with_sigmoid(sigmoid: Sigmoid) -> Callable[[NormRecipe], NormRecipe]:
    """The sigmoid in another form, where the recipe takes an exp."""

    def change(recipe: NormRecipe) -> NormRecipe:
        if recipe.silu.sigmoid.form == "function":
            return recipe
        return replace(recipe, silu=Silu(recipe.silu.form, sigmoid))

    return change


def with_lanes(**changed: Any) -> Callable[[NormRecipe], NormRecipe]:
    """The sum in another order, where lanes share the row."""

    def change(recipe: NormRecipe) -> NormRecipe:
        if not isinstance(recipe.squares, Lanes):
            return recipe
        return replace(recipe, squares=replace(recipe.squares, **changed))

    return change


def dot_as_pairs(recipe: NormRecipe) -> NormRecipe:
    return with_lanes(fold="halving")(recipe) if _vector(recipe) > 1 else recipe


def component_sums(recipe: NormRecipe) -> NormRecipe:
    vector = _vector(recipe)
    return with_lanes(components=vector)(recipe) if vector > 1 else recipe


def _vector(recipe: NormRecipe) -> int:
    return recipe.squares.vector if isinstance(recipe.squares, Lanes) else 1


def workgroup_of_128(recipe: NormRecipe) -> NormRecipe:
    """No more than 128 lanes, where a workgroup without subgroups shares the row."""
    if isinstance(recipe, RouteRecipe) and recipe.route.across == "workgroup":
        lanes = min(128, getattr(recipe.squares, "lanes", 128))
        return with_lanes(lanes=lanes)(recipe)
    return recipe


def with_subgroup(size: int) -> Callable[[NormRecipe], NormRecipe]:
    """The route on a device whose subgroups have another size."""

    def change(recipe: NormRecipe) -> NormRecipe:
        if not isinstance(recipe, RouteRecipe) or not isinstance(recipe.squares, Lanes):
            return recipe
        route: Route = replace(recipe.route, subgroup=size)
        if route.across == "workgroup":
            return recipe
        # The lanes of the row's own width, had the device had such subgroups.
        lanes = recipe.squares.lanes
        most = size if route.across == "subgroup" else lanes
        subgroup = size if route.across == "subgroups" else None
        squares = replace(recipe.squares, lanes=min(lanes, most), subgroup=subgroup)
        return replace(recipe, route=route, squares=squares)

    return change


def one_tree(recipe: NormRecipe) -> NormRecipe:
    """All lanes in one tree instead of a sum for each subgroup, added in order."""
    return with_lanes(subgroup=None)(recipe)


def sum_instead(squares: Schedule) -> Callable[[NormRecipe], NormRecipe]:
    return lambda recipe: replace(recipe, squares=squares)


def contracted(recipe: NormRecipe) -> NormRecipe:
    """Each square straight into the one sum by fma, as compilers for arm64 make it."""
    if recipe.squares == Sequential():
        return replace(recipe, squares=Sequential(fused=True))
    return recipe


def other_rsqrt(recipe: NormRecipe) -> NormRecipe:
    return replace(
        recipe, rsqrt=RSQRT if recipe.rsqrt == RSQRT_TWO_ROUNDINGS else RSQRT_TWO_ROUNDINGS
    )


def finished_as(finish: Any, instead_of: str) -> Callable[[NormRecipe], NormRecipe]:
    return lambda r: replace(r, finish=finish) if r.finish == instead_of else r


def swapped(call: Call) -> Call:
    return with_inputs(call, x=call.gate, gate=call.x)


def whole_last_axis(call: Call) -> Call:
    """Rows as long as x's last axis, the scale repeated."""
    repeats = call.x.shape[-1] // call.scale.size
    return with_inputs(call, scale=np.tile(call.scale.reshape(-1), repeats))


def scale_in_fortran_order(call: Call) -> Call:
    return with_inputs(call, scale=call.scale.reshape(-1, order="F"))


def through_bfloat16(call: Call) -> Call:
    if call.x.dtype != np.float32:
        return call
    return with_inputs(
        call, **{name: rounded_to("bfloat16", getattr(call, name)) for name in call.inputs}
    )


def other_activation(call: Call) -> Call:
    return with_params(call, activation="silu" if call.activation == "sigmoid" else "sigmoid")


MUTANTS = (
    Mutant("epsilon-dropped", "left epsilon out", source=REPORTED + "9",
           call=lambda c: with_params(c, epsilon=0.0)),
    Mutant("epsilon-fixed", "used 1e-6 instead of the configured epsilon", source=REPORTED + "9",
           call=lambda c: with_params(c, epsilon=1e-6 if c.epsilon else 0.0)),
    Mutant("epsilon-zero-is-default", "took epsilon 0 for a missing one", source=REPORTED + "28",
           call=lambda c: with_params(c, epsilon=c.epsilon or 1e-5)),
    Mutant("epsilon-outside-root", "added epsilon to the root instead of the mean of squares",
           call=lambda c: with_params(c, epsilon=0.0), arithmetic=lambda c: EpsOutsideRoot(1e-5)),
    Mutant("gate-before-norm", "gated first and normalised then",
           arithmetic=GateThenNorm, source=REPORTED + "1"),
    Mutant("activation-exchanged", "took sigmoid for silu, or silu for sigmoid",
           call=other_activation),
    Mutant("activation-ignored", "always took silu",
           call=lambda c: with_params(c, activation="silu")),
    Mutant("gate-raw", "multiplied by the gate itself", arithmetic=lambda c: GateRaw()),
    Mutant("gate-ignored", "did not gate", arithmetic=lambda c: GateIgnored()),
    Mutant("gate-swapped", "exchanged x and the gate", call=swapped, source=REPORTED + "30"),
    Mutant("gate-walked", "walked the gate's buffer instead of the view", call=walked,
           source=REPORTED + "11"),
    Mutant("gate-of-first-token", "gated every token with the first one's gate",
           arithmetic=GateOfFirstToken),
    Mutant("gate-value-rounded", "rounded the gate's activation to x's dtype",
           arithmetic=lambda c: Rounding(c, "gate_value")),
    Mutant("normalized-rounded", "rounded the normalised row to x's dtype before gating",
           arithmetic=lambda c: Rounding(c, "normalized")),
    Mutant("scale-ignored", "left the scale out",
           call=lambda c: with_inputs(c, scale=np.ones_like(c.scale))),
    Mutant("scale-plus-one", "multiplied by 1 + scale", arithmetic=ScalePlusOne),
    Mutant("scale-in-fortran-order", "read a scale of two axes by columns",
           call=scale_in_fortran_order),
    Mutant("inputs-bfloat16", "read float32 inputs as bfloat16", call=through_bfloat16),
    Mutant("whole-last-axis", "normalised over the whole last axis instead of rows of C",
           call=whole_last_axis, source=REPORTED + "5"),
    Mutant("first-row", "used the first row's statistics for all rows",
           arithmetic=lambda c: FirstRowStatistics()),
    Mutant("neighbour-rows", "added the lanes of a whole subgroup, two rows' in one",
           arithmetic=lambda c: NeighbourRows()),
    Mutant("columns-minus-one", "divided by C - 1", arithmetic=lambda c: OffByOneSize()),
    Mutant("tail-dropped", "left out what does not fill a vector of four",
           arithmetic=lambda c: PartialSum(multiple=4)),
    Mutant("row-bounded-4096", "added only the first 4096 squares of a row",
           arithmetic=lambda c: PartialSum(at_most=4096)),
    Mutant("mean-by-reciprocal", "multiplied by 1/C instead of dividing by C",
           arithmetic=lambda c: MeanByReciprocal()),
    Mutant("rsqrt-one-ulp", "computed 1/sqrt one ULP too large",
           arithmetic=lambda c: RsqrtOffBy(1)),
    Mutant("rsqrt-exchanged", "rounded 1/sqrt once instead of twice, or twice instead of once",
           recipe=other_rsqrt),
    Mutant("inv-times-scale", "multiplied inv by the scale first",
           arithmetic=lambda c: ScaleTimesInv()),
    Mutant("gate-then-sigmoid", "multiplied by the gate and then by its sigmoid",
           recipe=finished_as("gate-then-sigmoid", "one-store")),
    Mutant("silu-first", "multiplied the gate by its sigmoid first",
           recipe=finished_as("one-store", "gate-then-sigmoid")),
    Mutant("casts-dropped", "did not round to x's dtype before and after the weight",
           recipe=finished_as("one-store", "cast-each")),
    Mutant("casts-added", "rounded to x's dtype before and after the scale",
           recipe=finished_as("cast-each", "one-store")),
    Mutant("sigmoid-plain", "computed 1/(1 + exp(-z)) for negative z too",
           recipe=with_sigmoid(Sigmoid("plain"))),
    Mutant("exp-fast", "computed exp as 2^(x log2 e) with a rounded argument",
           recipe=with_sigmoid(Sigmoid("stable", FAST_EXP))),
    Mutant("silu-flushed", "took silu below -18 for -0", arithmetic=lambda c: SiluFlushed()),
    Mutant("logistic-exact", "used an exact sigmoid instead of MLAS's approximation",
           recipe=with_logistic(None)),
    Mutant("logistic-not-fused", "evaluated MLAS's logistic without fma",
           recipe=with_logistic(Function("mlas-logistic-unfused", unfused_mlas_logistic, ""))),
    Mutant("sum-sequential", "added the squares one after the other",
           recipe=sum_instead(Sequential())),
    Mutant("sum-exact", "added the squares in float64", recipe=sum_instead(Exact())),
    Mutant("sum-contracted", "added each square to the one sum by fma", recipe=contracted),
    Mutant("sum-of-workgroup", "added as ONNX Runtime's WebGPU kernel of 64 lanes",
           recipe=sum_instead(Lanes(lanes=64))),
    Mutant("butterfly-ascending", "combined lanes 1, 2, 4, ... apart instead of the halves first",
           recipe=with_lanes(combine="ascending")),
    Mutant("lanes-blocked", "gave each lane a block of consecutive vectors",
           recipe=with_lanes(strided=False)),
    Mutant("workgroup-of-128", "shared a row among 128 lanes only", recipe=workgroup_of_128),
    Mutant("subgroup-16", "ran on subgroups of 16 lanes", recipe=with_subgroup(16)),
    Mutant("four-vectors-only", "added only the first four vectors of each lane of a subgroup",
           arithmetic=lambda c: FourVectorsOnly()),
    Mutant("four-subgroups-only", "added the sums of the first four subgroups only",
           arithmetic=lambda c: FourSubgroupsOnly()),
    Mutant("subgroups-in-one-tree", "combined all subgroups' lanes in one tree", recipe=one_tree),
    Mutant("dot-as-pairs", "added a vector's squares as (x + z) + (y + w)", recipe=dot_as_pairs),
    Mutant("component-sums", "kept a sum for each of a vector's four components",
           recipe=component_sums),
    Mutant("sum-float16", "accumulated the squares in float16", arithmetic=lambda c: HalfSum()),
    Mutant("sum-bounded", "kept a sum that overflows finite", arithmetic=lambda c: BoundedSum()),
    Mutant("zero-row-nan", "divided by a row's largest magnitude, 0/0 for zeros",
           arithmetic=lambda c: ZeroRowNan(), source=REPORTED + "9"),
    Mutant("flush-to-zero", "took subnormals for zeros", arithmetic=lambda c: FlushToZero()),
    Mutant("nan-ignored", "left NaN out of the sum", arithmetic=lambda c: NanIgnored(),
           source=REPORTED + "59"),
    Mutant("nan-spreads", "let a NaN of one row reach the others",
           arithmetic=lambda c: NanSpreads(), source=REPORTED + "37"),
    Mutant("cast-toward-zero", "truncated when narrowing", arithmetic=lambda c: CastBy(0),
           source=REPORTED + "43"),
    Mutant("cast-ties-away", "rounded ties away from zero when narrowing",
           arithmetic=lambda c: CastBy(1), source=REPORTED + "43"),
    Mutant("stored-through-bfloat16", "stored float16 by way of bfloat16",
           arithmetic=lambda c: DoubleRounding()),
    Mutant("stored-through-float16", "stored bfloat16 by way of float16",
           arithmetic=lambda c: StoredThroughFloat16()),
    Mutant("cast-saturates", "stored the largest finite value instead of infinity",
           arithmetic=lambda c: SaturatingCast()),
)  # fmt: skip

#: Where a policy allows what a mutant does, it is a correct kernel: no case rejects it there.
ALLOWED: dict[str, tuple[str, ...]] = {
    # inside the budget of rsqrt, 2 ULP there
    "mean-by-reciprocal": ("cuda", "wgsl"),
    "rsqrt-one-ulp": ("cuda", "wgsl"),
    "rsqrt-exchanged": ("cuda", "wgsl"),
    # either neighbour is a right rounding, and NaN and infinity are undetermined
    "casts-dropped": ("wgsl",),
    "exp-fast": ("wgsl",),
    "sum-bounded": ("wgsl",),
    "nan-ignored": ("wgsl",),
    "cast-toward-zero": ("wgsl",),
    "cast-ties-away": ("wgsl",),
    "stored-through-float16": ("wgsl",),
    "cast-saturates": ("wgsl",),
    # flushing, or inside the budget of exp there
    "sigmoid-plain": ("metal", "wgsl"),
    "logistic-exact": ("metal", "wgsl"),
    "flush-to-zero": ("metal", "wgsl"),
    # inside a chain of n - 1 additions, or either neighbour is right
    "sum-sequential": ("ieee", "wgsl"),
    # another order or another rounding inside a sum, or another form of silu: free everywhere
    "sum-exact": ("ieee", "cuda", "metal", "wgsl"),
    "sum-contracted": ("ieee", "cuda", "metal", "wgsl"),
    "sum-of-workgroup": ("ieee", "cuda", "metal", "wgsl"),
    "butterfly-ascending": ("ieee", "cuda", "metal", "wgsl"),
    "lanes-blocked": ("ieee", "cuda", "metal", "wgsl"),
    "workgroup-of-128": ("ieee", "cuda", "metal", "wgsl"),
    "subgroup-16": ("ieee", "cuda", "metal", "wgsl"),
    "subgroups-in-one-tree": ("ieee", "cuda", "metal", "wgsl"),
    "dot-as-pairs": ("ieee", "cuda", "metal", "wgsl"),
    "component-sums": ("ieee", "cuda", "metal", "wgsl"),
}
