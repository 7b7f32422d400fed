"""Wrong block_scaled_mlp kernels: what people did, each as a switch in the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from refkern import powers
from refkern.arithmetic import Bits
from refkern.casts import cast, widen
from refkern.elementary import Function
from refkern.faults import with_inputs, with_params
from refkern.formats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E8M0FNU,
    FLOAT32,
    codes,
    from_codes,
)
from refkern.group_dots import EXACT, GROUP
from refkern.hardware.sm90 import group_dots as sm90
from refkern.mutant import Mutant
from refkern.op import Call
from refkern.ops.block_scaled_mlp.recipes import MlpRecipe, Slices
from refkern.quantize import Scaling
from refkern.schedules import Schedule, Sequential

REPORTED = "reported: "
BEHIND_CODES = ("x_scales", "act_scales")


def scaling(**changed: Any) -> Callable[[MlpRecipe], MlpRecipe]:
    """The recipe with another scale rule in both scale formats."""

    def change(recipe: MlpRecipe) -> MlpRecipe:
        rule = recipe.rule

        def other(found: Scaling | None) -> Scaling | None:
            return None if found is None else replace(found, **changed)

        return replace(
            recipe, rule=replace(rule, float32=other(rule.float32), ue8m0=other(rule.ue8m0))
        )

    return change


def ue8m0(**changed: Any) -> Callable[[MlpRecipe], MlpRecipe]:
    """The recipe with another scale rule where scales are powers of two."""

    def change(recipe: MlpRecipe) -> MlpRecipe:
        rule = recipe.rule
        assert rule.ue8m0 is not None
        return replace(recipe, rule=replace(rule, ue8m0=replace(rule.ue8m0, **changed)))

    return change


def swiglu(**changed: Any) -> Callable[[MlpRecipe], MlpRecipe]:
    return lambda recipe: replace(recipe, swiglu=replace(recipe.swiglu, **changed))


def _doubled(x: np.ndarray) -> np.ndarray:
    """2^e of frexp, whose significand is below 1: twice a power of two that is one already."""
    _, exponent = np.frexp(x)
    return np.where(np.isfinite(x), np.ldexp(np.float32(1), exponent), x)


POWER_DOUBLED = Function("frexp", _doubled, "")


class ZeroScale(Bits):
    """Leaves an amax of 0 in x as it is: scale 0, its inverse infinite, 0 * inf = NaN."""

    def fmax(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        larger = super().fmax(a, b)
        return np.where(a == 0, a, larger) if self.current == "" and np.ndim(b) == 0 else larger


class InfinityLeftOut(Bits):
    """Takes the amax of what is finite, so that an infinity becomes +-448."""

    def largest_magnitude(self, x: np.ndarray, nan: Any = "ignored") -> np.ndarray:
        return super().largest_magnitude(np.where(np.isinf(x), np.float32(0), x), nan)


class OneScaleForAll(Bits):
    """Takes the first token's activation scales for every token."""

    def stage(self, name: str, value: np.ndarray) -> np.ndarray:
        if name in BEHIND_CODES and len(value):
            value = np.broadcast_to(value[:1], value.shape)
        return super().stage(name, value)


class ScalePerToken(Bits):
    """One amax for the whole token instead of one per 128."""

    def largest_magnitude(self, x: np.ndarray, nan: Any = "ignored") -> np.ndarray:
        amax = super().largest_magnitude(x, nan)
        if amax.size == 0:
            return amax
        return np.broadcast_to(amax.max(axis=-1, keepdims=True), amax.shape)


class ScalesAt(Bits):
    """Multiplies a weight row with the scale of another block: `choose` says of which row.

    choose: (rows, from w13 or w2) -> for each row, the row whose block's scale it gets.
    """

    def __init__(self, choose: Callable[[int, bool], np.ndarray]) -> None:
        super().__init__()
        self.choose = choose

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.ndim == 3 and b.ndim == 3 and len(a) == 1 and self.current in BEHIND_CODES:
            a = a[:, self.choose(a.shape[1], self.current == "x_scales")]
        return super().mul(a, b)


def guessed_blocks(rows: int, two_halves: bool) -> np.ndarray:
    """Blocks of ceil(rows / scale rows) instead of 128: wrong as soon as the last is partial."""
    size = rows // 2 if two_halves else rows
    block = -(-size // -(-size // GROUP)) if size else GROUP
    within = np.arange(size) // block * GROUP
    return np.concatenate([within, size + within]) if two_halves else within


def halves_together(rows: int, two_halves: bool) -> np.ndarray:
    """gate and up tiled as one matrix: up's first rows get the scale of gate's last block."""
    if not two_halves:
        return np.arange(rows)
    inter = rows // 2
    firsts = np.concatenate([np.arange(0, inter, GROUP), np.arange(inter, rows, GROUP)])
    return firsts[np.arange(rows) // GROUP]


class NotRounded(Bits):
    """Goes on with float32 gate and up: only the output is rounded."""

    def cast(self, x: np.ndarray, dtype: np.dtype, **how: Any) -> np.ndarray:
        if dtype == BFLOAT16.dtype and self.current in ("gate_up_sums", "gate"):
            dtype = FLOAT32.dtype
        return super().cast(x, dtype, **how)


class GateClampedBelow(Bits):
    """Clamps the gate on both sides, as up."""

    def fmin(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self._both(super().fmin(a, b), b)

    def minimum(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self._both(super().minimum(a, b), b)

    def _both(self, x: np.ndarray, limit: np.ndarray) -> np.ndarray:
        return np.fmax(x, -limit) if self.current == "up" else x


class ExpOverflows(Bits):
    """silu as g - g * e / (1 + e) with e = exp(-g): inf / inf for deep negative gates."""

    def div(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        value = super().div(a, b)
        return np.where(np.isinf(b), np.float32(np.nan), value) if self.current == "up" else value


class BoundedSum(Bits):
    """A sum that overflows stays the largest finite bfloat16."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        total = super().dot(a, b, schedule)
        largest = widen(np.array(3.3895314e38, BFLOAT16.dtype))
        overflowed = np.isinf(total) & np.isfinite(a).all(axis=-1)
        return np.where(overflowed, np.copysign(largest, total), total)


class ScalesOneByOne(Bits):
    """(dot * x scale) * w scale, as the Triton fallback has it, instead of dot * (w * x)."""

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.ndim == 3 and b.ndim == 3:
            self.factors = (a, b)
        return super().mul(a, b)

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        w_scale, x_scale = self.factors
        terms = super().mul(super().mul(a, x_scale), w_scale)
        return schedule.replay(terms)


class SubnormalsFlushed(Bits):
    """Takes e4m3 subnormals of the weights for zeros."""

    def group_dots(self, x: np.ndarray, w: np.ndarray, dots: Any) -> np.ndarray:
        return super().group_dots(x, _flushed(w), dots)

    def scaled_dots(self, x: Any, x_scale: Any, w: Any, w_scale: Any) -> np.ndarray:
        return super().scaled_dots(x, x_scale, _flushed(w), w_scale)


def _flushed(w: np.ndarray) -> np.ndarray:
    bits = codes(np.ascontiguousarray(w))
    small = (bits & 0x7F) < 8
    return from_codes(np.where(small, bits & np.uint8(0x80), bits), FLOAT8_E4M3FN)


class CodesBy(Bits):
    """Rounds codes its own way: "toward-zero", or "ties-away"."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.added = np.uint32(added)

    def cast(self, x: np.ndarray, dtype: np.dtype, **how: Any) -> np.ndarray:
        if dtype != FLOAT8_E4M3FN.dtype:
            return super().cast(x, dtype, **how)
        # Down to 3 mantissa bits in the normal range, and to multiples of 2^-9 below it.
        bits = np.ascontiguousarray(x).view(np.uint32)
        cut = ((bits + self.added) & np.uint32(0xFFF00000)).view(np.float32)
        half = np.float32(0.5) if self.added else np.float32(0)
        steps = np.floor(np.abs(x) * np.float32(512) + half) / np.float32(512)
        small = np.copysign(steps, x)
        value = np.where(np.abs(x) < np.float32(2.0**-6), small, cut)
        return super().cast(np.where(np.isfinite(x), value, x), dtype, **how)


class OutTowardZero(Bits):
    """Truncates when it stores the output."""

    def cast(self, x: np.ndarray, dtype: np.dtype, **how: Any) -> np.ndarray:
        if dtype == BFLOAT16.dtype and self.current == "down_sums" and x.dtype == np.float32:
            bits = np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFF0000)
            x = np.where(np.isfinite(x), bits.view(np.float32), x)
        return super().cast(x, dtype, **how)


class NanStays(Bits):
    """Keeps a NaN where the kernel's minimum and maximum drop it."""

    def fmin(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return super().minimum(a, b) if self.current == "up" else super().fmin(a, b)

    def fmax(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return super().maximum(a, b) if self.current == "up" else super().fmax(a, b)


def silu_of_up(call: Call) -> Call:
    def swapped(x: np.ndarray) -> np.ndarray:
        half = len(x) // 2
        return np.concatenate([x[half:], x[:half]])

    return with_inputs(call, w13=swapped(call.w13), w13_scale=swapped(call.w13_scale))


def interleaved(call: Call) -> Call:
    rows = np.concatenate([np.arange(0, len(call.w13), 2), np.arange(1, len(call.w13), 2)])
    return with_inputs(call, w13=call.w13[rows])


def tail_dropped(call: Call) -> Call:
    x = np.array(call.x)
    x[:, x.shape[1] // GROUP * GROUP :] = 0
    return with_inputs(call, x=x)


def square_transposed(call: Call) -> Call:
    scale = call.w13_scale
    rows, columns = scale.shape
    return with_inputs(call, w13_scale=scale.T.copy()) if rows == columns else call


def scale_bytes_shifted(call: Call) -> Call:
    """A weight scale's byte moved into the exponent field: 255 is infinity, 0 is 0."""

    def shifted(scale: np.ndarray) -> np.ndarray:
        if scale.dtype != FLOAT8_E8M0FNU.dtype:
            return scale
        bits = codes(np.ascontiguousarray(scale)).astype(np.uint32) << np.uint32(23)
        return bits.view(np.float32)

    return with_inputs(call, w13_scale=shifted(call.w13_scale), w2_scale=shifted(call.w2_scale))


def limit_below(call: Call) -> Call:
    """The largest bfloat16 below the limit, as `<` for `<=` in an integer clamp would have it."""
    if not call.limit:
        return call
    bits = codes(cast(np.array(call.limit, np.float32), BFLOAT16))
    return with_params(call, limit=float(widen(from_codes(np.array(bits - 1), BFLOAT16))))


def hmma_halves_swapped(recipe: MlpRecipe) -> MlpRecipe:
    if recipe.dots != sm90.DENSEMLP:
        return recipe
    # k ^ 2 exchanges what goes into the first and the second HMMA.
    order = tuple(k ^ 2 for k in sm90.DENSEMLP.order)
    return replace(recipe, dots=replace(sm90.DENSEMLP, order=order))


def other_order(order: Schedule) -> Callable[[MlpRecipe], MlpRecipe]:
    return lambda r: r if r.order is None else replace(r, order=order)


def other_fusing(recipe: MlpRecipe) -> MlpRecipe:
    order = recipe.order
    if isinstance(order, Slices | Sequential):
        return replace(recipe, order=replace(order, fused=not order.fused))
    return recipe


def wide_accumulator(recipe: MlpRecipe) -> MlpRecipe:
    return replace(recipe, dots=EXACT) if recipe.dots == sm90.WGMMA else recipe


def rounded_dots(recipe: MlpRecipe) -> MlpRecipe:
    return replace(recipe, order=Slices()) if recipe.order is None else recipe


MUTANTS = (
    Mutant("scale-rounded-afterwards",
           "made codes with the exact scale and rounded the stored one up afterwards",
           recipe=ue8m0(apply="factor"), source=REPORTED + "15"),
    Mutant("divided-by-scale", "divided by the scale instead of multiplying by its reciprocal",
           recipe=scaling(apply="quotient")),
    Mutant("scale-by-reciprocal", "multiplied the amax by 1/448 instead of dividing it by 448",
           recipe=scaling(scale="product")),
    Mutant("power-doubled", "took frexp's exponent: twice a scale that is a power of two already",
           recipe=ue8m0(power_of_two=POWER_DOUBLED)),
    Mutant("power-rounded-down", "rounded the scale down to a power of two",
           recipe=ue8m0(power_of_two=powers.DOWN)),
    Mutant("scale-format-ignored", "used the other scale format",
           call=lambda c: with_params(
               c, scale_format="float32" if c.scale_format == "ue8m0" else "ue8m0")),
    Mutant("amax-floor-large", "bounded the amax by 1e-4", recipe=scaling(amax_floor=1e-4),
           source=REPORTED + "13"),
    Mutant("scale-floor-dropped", "did not bound the scale before it became a power of two",
           recipe=scaling(scale_floor=0.0)),
    Mutant("zero-group-nan", "left an amax of 0 as it is: 0 * (1 / 0) for a group of zeros",
           arithmetic=lambda c: ZeroScale(), source=REPORTED + "13"),
    Mutant("nan-amax-kept", "let a NaN into the amax: the whole group becomes NaN",
           recipe=scaling(nan="kept"), source=REPORTED + "17"),
    Mutant("nan-code-clamped", "clamped to +-448 before the conversion: a NaN becomes -448",
           recipe=scaling(clamp="drops-nan"), source=REPORTED + "17"),
    Mutant("nan-code-kept", "did not clamp before the conversion: a NaN stays one",
           recipe=scaling(clamp="none"), source=REPORTED + "17"),
    Mutant("infinity-left-out", "took the amax of what is finite: infinity becomes +-448",
           arithmetic=lambda c: InfinityLeftOut(), source=REPORTED + "17"),
    Mutant("scale-per-token", "took one amax for the whole token",
           arithmetic=lambda c: ScalePerToken()),
    Mutant("scale-of-token-0", "used the first token's scales for all",
           arithmetic=lambda c: OneScaleForAll()),
    Mutant("scales-transposed", "read the gate_up scales column by column",
           call=square_transposed, source=REPORTED + "21"),
    Mutant("blocks-guessed", "took ceil(rows / scale rows) for the block size",
           arithmetic=lambda c: ScalesAt(guessed_blocks), source=REPORTED + "19"),
    Mutant("halves-tiled-together", "indexed the scales by the row of both halves",
           arithmetic=lambda c: ScalesAt(halves_together)),
    Mutant("tail-dropped", "left out what does not fill a group of K", call=tail_dropped),
    Mutant("scale-byte-shifted", "moved a scale's byte into the exponent field: 255 is infinity",
           call=scale_bytes_shifted, source=REPORTED + "47"),
    Mutant("subnormals-flushed", "took e4m3 subnormals for zeros",
           arithmetic=lambda c: SubnormalsFlushed(), source=REPORTED + "45"),
    Mutant("codes-toward-zero", "truncated codes", arithmetic=lambda c: CodesBy(0)),
    Mutant("codes-ties-away", "rounded ties of codes away from zero",
           arithmetic=lambda c: CodesBy(0x00080000)),
    Mutant("not-fused", "rounded the dot times its scales before adding it (or fused, where the "
           "recipe does not)", recipe=other_fusing),
    Mutant("one-chain", "added all groups in one chain, without slices",
           recipe=other_order(Sequential(fused=True))),
    Mutant("slices-of-256", "split K into slices of 256", recipe=other_order(Slices(2))),
    Mutant("scales-one-by-one", "multiplied a dot by one scale and then by the other",
           arithmetic=lambda c: ScalesOneByOne()),
    Mutant("sums-rounded", "rounded the groups' dots and their sums on the way",
           recipe=rounded_dots),
    Mutant("hmma-halves-swapped", "gave each first HMMA the second one's products",
           recipe=hmma_halves_swapped),
    Mutant("accumulator-wide", "accumulated more than the tensor core's 13 fraction bits",
           recipe=wide_accumulator),
    Mutant("sum-bounded", "kept a sum that overflows finite", arithmetic=lambda c: BoundedSum()),
    Mutant("gate-up-not-rounded", "did not round gate and up to bfloat16",
           arithmetic=lambda c: NotRounded()),
    Mutant("act-not-rounded", "quantised the float32 product instead of the bfloat16 one",
           recipe=swiglu(rounds_result=False), source=REPORTED + "23"),
    Mutant("silu-rounded", "rounded silu to bfloat16 before the product",
           recipe=swiglu(rounds_silu=True)),
    Mutant("silu-not-rounded", "did not round silu to bfloat16 before the product",
           recipe=swiglu(rounds_silu=False)),
    Mutant("silu-of-up", "took silu of up instead of the gate", call=silu_of_up,
           source=REPORTED + "30"),
    Mutant("gate-up-interleaved", "took every other row for the gate", call=interleaved),
    Mutant("gate-clamped-below", "clamped the gate on both sides",
           arithmetic=lambda c: GateClampedBelow(), source=REPORTED + "26"),
    Mutant("clamp-after-silu", "clamped silu(gate) instead of the gate",
           recipe=swiglu(clamp="after"), source=REPORTED + "26"),
    Mutant("limit-ignored", "did not clamp", call=lambda c: with_params(c, limit=None),
           source=REPORTED + "26"),
    Mutant("limit-fixed", "clamped at 7 where a larger limit was given",
           call=lambda c: with_params(c, limit=min(c.limit, 7.0) if c.limit else c.limit)),
    Mutant("limit-rounded", "rounded the limit to bfloat16",
           recipe=swiglu(rounds_gate_limit=True, rounds_up_limit=True)),
    Mutant("limit-excluded", "clamped at the next value below the limit", call=limit_below),
    Mutant("zero-limit-off", "took a limit of 0 for no limit", recipe=swiglu(zero_limit="off"),
           source=REPORTED + "28"),
    Mutant("zero-limit-clamps", "took a limit of 0 for a bound",
           recipe=swiglu(zero_limit="clamps"), source=REPORTED + "28"),
    Mutant("nan-not-dropped", "kept a NaN where the kernel's minimum drops it",
           arithmetic=lambda c: NanStays(), source=REPORTED + "26"),
    Mutant("exp-overflows", "let exp(-gate) overflow into NaN",
           arithmetic=lambda c: ExpOverflows()),
    Mutant("out-toward-zero", "truncated the output", arithmetic=lambda c: OutTowardZero()),
)  # fmt: skip

#: Where a policy allows what a mutant does, it is a correct kernel: no case rejects it there.
ALLOWED: dict[str, tuple[str, ...]] = {
    # either neighbour is a right rounding, and NaN and infinity are undetermined
    "divided-by-scale": ("wgsl",),
    "scale-by-reciprocal": ("wgsl",),
    "power-doubled": ("wgsl",),
    "nan-amax-kept": ("wgsl",),
    "nan-code-clamped": ("wgsl",),
    "nan-code-kept": ("wgsl",),
    "infinity-left-out": ("wgsl",),
    "scale-byte-shifted": ("wgsl",),
    "codes-toward-zero": ("wgsl",),
    "codes-ties-away": ("wgsl",),
    "sum-bounded": ("wgsl",),
    "silu-not-rounded": ("wgsl",),
    "limit-rounded": ("wgsl",),
    "nan-not-dropped": ("wgsl",),
    "exp-overflows": ("wgsl",),
    "out-toward-zero": ("wgsl",),
    # another order or another rounding inside a sum, or another form of silu: free everywhere
    "not-fused": ("ieee", "cuda", "metal", "wgsl"),
    "one-chain": ("ieee", "cuda", "metal", "wgsl"),
    "slices-of-256": ("ieee", "cuda", "metal", "wgsl"),
    "sums-rounded": ("ieee", "cuda", "metal", "wgsl"),
    "hmma-halves-swapped": ("ieee", "cuda", "metal", "wgsl"),
    "accumulator-wide": ("ieee", "cuda", "metal", "wgsl"),
    # at the limits of 7 and 10 that models have, silu of the limit is a neighbour of the limit
    "clamp-after-silu": ("wgsl",),
}
