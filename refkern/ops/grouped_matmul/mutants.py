"""Wrong grouped_matmul kernels: what people did, each as a switch in the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refkern.arithmetic import Bits
from refkern.casts import cast, widen
from refkern.faults import (
    CastBy,
    PartialSum,
    SaturatingCast,
    flushed,
    rounded_to,
    with_inputs,
)
from refkern.hardware.sm90.tensor_cores import TensorCoreChain
from refkern.mutant import Mutant
from refkern.op import Call
from refkern.ops.grouped_matmul.recipes import (
    GEMV_UP_TO,
    MODULAR_MMA,
    STRIP,
    GroupedRecipe,
    MmaStrips,
    exact_then_round,
    fma_chain,
)
from refkern.ops.grouped_matmul.spec import NO_EXPERT, groups, largest_group, tokens_per_expert
from refkern.schedules import Exact, Lanes, Schedule, Sequential

REPORTED = "reported: "


# ---------------------------------------------------------------- groups, rows and experts


def with_ids(change: Callable[[np.ndarray, int], np.ndarray]) -> Callable[[Call], Call]:
    """Other experts for the groups that have one.  change: (ids, experts) -> ids."""

    def changed(call: Call) -> Call:
        ids = call.expert_ids.astype(np.int64)
        experts = max(call.b.shape[0], 1)
        return with_inputs(call, expert_ids=np.where(ids >= 0, change(ids, experts), ids))

    return changed


def in_8_bits(call: Call) -> Call:
    ids = call.expert_ids.astype(np.int8).astype(np.int64)
    return with_inputs(call, expert_ids=np.maximum(ids, NO_EXPERT))


def no_expert_is(expert: int) -> Callable[[Call], Call]:
    def changed(call: Call) -> Call:
        chosen = expert % max(call.b.shape[0], 1)
        ids = call.expert_ids.astype(np.int64)
        return with_inputs(call, expert_ids=np.where(ids == NO_EXPERT, chosen, ids))

    return changed


def repeated_expert_once(call: Call) -> Call:
    ids = call.expert_ids.astype(np.int64)
    later = [expert in ids[:z] for z, expert in enumerate(ids)]
    return with_inputs(call, expert_ids=np.where(later, NO_EXPERT, ids))


def with_offsets(change: Callable[[np.ndarray, int], Any]) -> Callable[[Call], Call]:
    """Other bounds of the groups.  change: (offsets, rows) -> offsets."""

    def changed(call: Call) -> Call:
        rows = call.a.shape[0]
        offsets = np.asarray(change(call.a_offsets.astype(np.int64), rows))
        return with_inputs(call, a_offsets=np.clip(offsets, 0, rows))

    return changed


def rows_in_front(offsets: np.ndarray, rows: int) -> np.ndarray:
    return np.append(0, offsets[1:])


def rows_behind(offsets: np.ndarray, rows: int) -> np.ndarray:
    return np.append(offsets[:-1], rows)


def empty_groups_skipped(call: Call) -> Call:
    """Numbers the groups that have rows 0, 1, ... and reads their ids there."""
    sizes = np.diff(call.a_offsets.astype(np.int64))
    number = np.maximum(np.cumsum(sizes > 0) - 1, 0)
    return with_inputs(call, expert_ids=call.expert_ids[number])


def transposed(call: Call) -> Call:
    experts, columns, k = call.b.shape
    other = np.ascontiguousarray(call.b).reshape(experts, k, columns)
    return with_inputs(call, b=other.swapaxes(1, 2))


def first_rows_only(call: Call) -> Call:
    """Computes one tile of 64 rows a group: the rest goes to no expert."""
    offsets, ids = [], []
    for start, stop, expert in groups(call):
        offsets += [start, min(stop, start + 64)]
        ids += [expert, NO_EXPERT]
    ends = np.append(offsets, call.a_offsets.astype(np.int64)[-1])
    return with_inputs(call, a_offsets=ends, expert_ids=np.array(ids))


class Overhang(Bits):
    """Stores whole fragments of 16 columns: zeros from behind N reach the next row."""

    def stage(self, name: str, value: np.ndarray) -> np.ndarray:
        if name == "accumulator" and value.size:
            over = min(-value.shape[1] % 16, value.shape[1])
            value = value.copy()
            value[1:, :over] = 0
        return super().stage(name, value)


class RowsOutsideMultiplied(Bits):
    """Computes rows of no group too, and multiplies them by zero."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        covered = np.zeros(call.a.shape[0], bool)
        for start, stop, expert in groups(call):
            covered[start:stop] = expert != NO_EXPERT
        finite = np.isfinite(widen(call.a)).all(axis=1)
        self.poisoned = ~covered & ~finite

    def stage(self, name: str, value: np.ndarray) -> np.ndarray:
        if name == "accumulator":
            value = np.where(self.poisoned[:, None], np.float32(np.nan), value)
        return super().stage(name, value)


# -------------------------------------------------------------------------- order of the sum


class OtherDispatch(Bits):
    """Takes another kernel than the original for some counts of tokens."""

    def __init__(self, order: Schedule | None) -> None:
        super().__init__()
        self.order = order

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        dispatched = schedule == MODULAR_MMA.order or schedule in GEMV_ORDERS
        return super().dot(a, b, self.order if dispatched and self.order else schedule)


GEMV_ORDERS = tuple(gemv.order for gemv in GEMV_UP_TO.values())


def switch_at(most: int) -> Callable[[Call], Bits]:
    """Uses the GEMV up to ``most`` tokens."""

    def arithmetic(call: Call) -> Bits:
        tokens = tokens_per_expert(call)
        other: Schedule | None = None
        if most < tokens <= 16:
            other = MODULAR_MMA.order
        elif 16 < tokens <= most:
            other = GEMV_UP_TO[16].order
        return OtherDispatch(other)

    return arithmetic


def switch_of_gemv_at_2(call: Call) -> Bits:
    few = 2 < tokens_per_expert(call) <= 4
    return OtherDispatch(GEMV_UP_TO[16].order if few else None)


def dispatch_by_groups(call: Call) -> Bits:
    most = largest_group(call)
    overstated = tokens_per_expert(call) > 16 >= most and most > 1
    limit = next((limit for limit in GEMV_UP_TO if most <= limit), None)
    return OtherDispatch(GEMV_UP_TO[limit].order if overstated and limit else None)


def where(kind: Callable[[Schedule], bool], change: Callable[[Any], Schedule]) -> Any:
    """Another order for the recipes whose order is of this kind."""

    def changed(recipe: GroupedRecipe) -> GroupedRecipe:
        return replace(recipe, order=change(recipe.order)) if kind(recipe.order) else recipe

    return changed


def is_mma(inside: str) -> Callable[[Schedule], bool]:
    return lambda order: isinstance(order, MmaStrips) and order.inside == inside


def is_gemv(*accumulators: int) -> Callable[[Schedule], bool]:
    return lambda order: isinstance(order, Lanes) and order.components in accumulators


def is_any_gemv(order: Schedule) -> bool:
    return isinstance(order, Lanes)


@dataclass(frozen=True)
class Descending:
    """k from the last to the first."""

    right: Schedule

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        return self.right.replay(a[..., ::-1], None if b is None else b[..., ::-1])


@dataclass(frozen=True)
class InMma:
    """Something else inside each MMA of 16 products: (a, b, total) -> total."""

    right: MmaStrips
    multiply_accumulate: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        assert b is not None
        total = np.zeros(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]), np.float32)
        x, y = self.right._fragments(a), self.right._fragments(b)
        for i in range(x.shape[-2]):
            total = self.multiply_accumulate(x[..., i, :], y[..., i, :], total)
        return total


def rounded_before_adding(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    return total + exact_then_round(a, b, np.zeros_like(total))


def in_float64(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    wide = total.astype(np.float64)
    for i in range(a.shape[-1]):
        wide = wide + a[..., i].astype(np.float64) * b[..., i].astype(np.float64)
    return wide.astype(np.float32)


def cut_to_25_bits(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Aligns everything to the largest term and keeps 25 bits, as NVIDIA's tensor cores do."""
    terms = np.concatenate(
        [a.astype(np.float64) * b.astype(np.float64), total[..., None].astype(np.float64)], axis=-1
    )
    largest = np.max(np.abs(terms), axis=-1, keepdims=True)
    _, exponent = np.frexp(np.where(np.isfinite(largest), largest, 1))
    shift = 25 - exponent
    cut = np.ldexp(np.trunc(np.ldexp(terms, shift)), -shift)
    wide = cut[..., 0]
    for i in range(1, cut.shape[-1]):
        wide = wide + cut[..., i]
    return wide.astype(np.float32)


def tree_by_halving(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    terms = a * b
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        terms = terms[..., :half] + terms[..., half:]
    return total + terms[..., 0]


@dataclass(frozen=True)
class ByFloat64:
    """One float64 accumulator, rounded to float32 at the end."""

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        assert b is not None
        zero = np.zeros(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]), np.float32)
        return in_float64(a, b, zero)


class ShortRowsReadOn(Bits):
    """Loads a whole strip although K is below it: the next rows' elements are added too."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        k = a.shape[-1]
        if not 8 <= k < STRIP:
            return super().dot(a, b, schedule)
        a = np.concatenate([a, np.roll(a, -1, axis=0)], axis=-1)[..., :STRIP]
        b = np.concatenate([b, np.roll(b, -1, axis=1)], axis=-1)[..., :STRIP]
        return super().dot(a, b, schedule)


class NarrowAccumulator(Bits):
    """Rounds the accumulator to a 16-bit format after every 16 products."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        total = np.zeros(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]), np.float32)
        for k in range(0, a.shape[-1], 16):
            part = fma_chain(a[..., k : k + 16], b[..., k : k + 16], np.zeros_like(total))
            total = rounded_to(self.dtype, total + part)
        return total


# --------------------------------------------------------------------- values and roundings


class NanIgnored(Bits):
    """A maximum or a mask somewhere turns NaN into zero."""

    def widen(self, x: np.ndarray) -> np.ndarray:
        wide = super().widen(x)
        return np.where(np.isnan(wide), np.float32(0), wide)


class NanSpreads(Bits):
    """0 * NaN in masked lanes: a NaN of one row reaches its whole group."""

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        total = super().dot(a, b, schedule)
        return np.where(np.isnan(a).any(), np.float32(np.nan), total)


class FlushToZero(Bits):
    """Takes subnormal operands and results for zeros."""

    def widen(self, x: np.ndarray) -> np.ndarray:
        return flushed(super().widen(x))

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        return flushed(super().dot(a, b, schedule))


class StoredThrough(Bits):
    """Stores one 16-bit format by way of another."""

    def __init__(self, way: str, target: str) -> None:
        super().__init__()
        self.way, self.target = way, target

    def cast(self, x: np.ndarray, dtype: np.dtype, **how: Any) -> np.ndarray:
        x = rounded_to(self.way, x) if dtype.name == self.target else x
        return super().cast(x, dtype, **how)


def inputs_through(way: str, source: str) -> Callable[[Call], Call]:
    def changed(call: Call) -> Call:
        if call.a.dtype.name != source:
            return call
        given = {"a": call.a, "b": call.b}
        read = {n: cast(rounded_to(way, widen(x)), source) for n, x in given.items()}
        return with_inputs(call, **read)

    return changed


MUTANTS = (
    Mutant("expert-ignored", "used the first expert for every group",
           call=with_ids(lambda ids, n: 0 * ids)),
    Mutant("ids-off-by-one", "used the expert behind the named one",
           call=with_ids(lambda ids, n: (ids + 1) % n)),
    Mutant("ids-ignored", "used group z's number as its expert",
           call=with_ids(lambda ids, n: np.arange(ids.size) % n)),
    Mutant("first-id-for-all", "used the first group's expert for every group",
           call=with_ids(lambda ids, n: np.maximum(ids[:1], 0) + 0 * ids)),
    Mutant("ids-sorted", "took the groups for sorted by expert",
           call=with_ids(lambda ids, n: np.sort(ids))),
    Mutant("ids-8-bits", "held expert ids in signed bytes", call=in_8_bits),
    Mutant("repeated-expert-once", "computed each expert once, its later groups not",
           call=repeated_expert_once, source=REPORTED + "llama.cpp 27015"),
    Mutant("no-expert-is-the-first", "computed groups of id -1 with expert 0",
           call=no_expert_is(0), source=REPORTED + "vllm 19590"),
    Mutant("no-expert-is-the-last", "computed groups of id -1 with the last expert",
           call=no_expert_is(-1)),
    Mutant("offsets-as-ends", "took the starts for ends: group z got the rows before it",
           call=with_offsets(lambda offsets, rows: np.append(0, offsets[:-1])),
           source=REPORTED + "35"),
    Mutant("ends-one-early", "left out the last row of every group's range",
           call=with_offsets(lambda offsets, rows: np.append(offsets[0], offsets[1:] - 1)
                             if (np.diff(offsets) > 1).all() else offsets)),
    Mutant("starts-at-row-0", "moved the groups so that the first starts at row 0",
           call=with_offsets(lambda offsets, rows: offsets - offsets[0])),
    Mutant("rows-in-front-computed", "gave the rows in front of the first group to it",
           call=with_offsets(rows_in_front)),
    Mutant("rows-behind-computed", "gave the rows behind the last group to it",
           call=with_offsets(rows_behind), source=REPORTED + "33"),
    Mutant("empty-groups-skipped", "numbered only the groups that have rows",
           call=empty_groups_skipped, source=REPORTED + "31"),
    Mutant("rows-above-64-dropped", "computed one tile of rows a group", call=first_rows_only),
    Mutant("weights-transposed", "read the weights as [experts, K, N]", call=transposed),
    Mutant("n-overhang", "stored whole fragments into the next row",
           arithmetic=lambda c: Overhang(), source=REPORTED + "37"),
    Mutant("rows-outside-multiplied", "multiplied rows of no group by zero", source=REPORTED + "39",
           arithmetic=RowsOutsideMultiplied),
    Mutant("tail-dropped", "left out what does not fill a step of 256",
           arithmetic=lambda c: PartialSum(multiple=256), source=REPORTED + "37"),
    Mutant("strip-tail-dropped", "left out what does not fill a strip of 32",
           arithmetic=lambda c: PartialSum(multiple=STRIP), source=REPORTED + "37"),
    Mutant("short-k-read-on", "read a whole strip of rows shorter than one",
           arithmetic=lambda c: ShortRowsReadOn(), source=REPORTED + "37"),
    Mutant("activations-2816", "held only the first 2816 elements of a token",
           arithmetic=lambda c: PartialSum(at_most=2816)),
    Mutant("switch-at-32", "used the GEMV for up to 32 tokens", arithmetic=switch_at(32)),
    Mutant("switch-below-16", "used the GEMV for up to 15 tokens", arithmetic=switch_at(15)),
    Mutant("switch-at-2", "used the GEMV of more tokens for 3 and 4 of them",
           arithmetic=switch_of_gemv_at_2),
    Mutant("dispatch-by-groups", "counted the tokens itself to choose the kernel",
           arithmetic=dispatch_by_groups),
    Mutant("lanes-contiguous", "gave each lane a block of neighbours instead of strided vectors",
           recipe=where(is_any_gemv, lambda o: replace(o, strided=False, scalar_tail=False))),
    Mutant("butterfly-ascending", "combined lanes 1, 2, 4, 8, 16 apart instead of 16, 8, 4, 2, 1",
           recipe=where(is_any_gemv, lambda o: replace(o, combine="ascending"))),
    Mutant("tail-in-vectors", "took the GEMV's tail in vectors of eight",
           recipe=where(is_any_gemv, lambda o: replace(o, scalar_tail=False))),
    Mutant("one-accumulator-is-eight", "kept eight accumulators a lane instead of one",
           recipe=where(is_gemv(1), lambda o: replace(o, components=8))),
    Mutant("eight-accumulators-are-one", "kept one accumulator a lane instead of eight",
           recipe=where(is_gemv(8), lambda o: replace(o, components=1))),
    Mutant("two-accumulators-are-one", "kept one accumulator a lane instead of two",
           recipe=where(is_gemv(2), lambda o: replace(o, components=1))),
    Mutant("gemv-fused", "added products to the accumulators by fma",
           recipe=where(is_any_gemv, lambda o: replace(o, fused=True))),
    Mutant("k-sets-swapped", "took the second half of each strip's fours first",
           recipe=where(is_mma("exact"),
                        lambda o: replace(o, order=o.order[16:] + o.order[:16]))),
    Mutant("k-sets-halves", "took the first 16 of a strip, then the other 16",
           recipe=where(is_mma("exact"), lambda o: replace(o, order=tuple(range(STRIP))))),
    Mutant("mma-rounds-twice", "rounded each MMA's 16 products before adding the accumulator",
           recipe=where(is_mma("exact"), lambda o: InMma(o, rounded_before_adding))),
    Mutant("mma-in-float64", "added an MMA's products in float64, where some are lost",
           recipe=where(is_mma("exact"), lambda o: InMma(o, in_float64))),
    Mutant("mma-cut-to-25-bits", "cut an MMA's terms to 25 bits, as NVIDIA's tensor cores do",
           recipe=where(is_mma("exact"), lambda o: InMma(o, cut_to_25_bits))),
    Mutant("mma-fma-ascending", "chained a strip's products with k ascending",
           recipe=where(is_mma("fma"), lambda o: replace(o, order=tuple(range(STRIP))))),
    Mutant("mma-tree-halving", "added the upper eight products onto the lower, and so on",
           recipe=where(is_mma("tree"), lambda o: InMma(o, tree_by_halving))),
    Mutant("sequential-descending", "started with the last product",
           recipe=where(lambda o: isinstance(o, Sequential), Descending)),
    Mutant("sequential-not-fused", "rounded every product before adding it",
           recipe=where(lambda o: isinstance(o, Sequential), lambda o: Sequential(fused=False))),
    Mutant("exact-by-float64", "added in float64 and rounded that",
           recipe=where(lambda o: isinstance(o, Exact), lambda o: ByFloat64())),
    Mutant("wgmma-rounds-to-nearest", "added an instruction's products exactly and rounded the sum",
           recipe=where(lambda o: isinstance(o, TensorCoreChain),
                        lambda o: MmaStrips("exact", tuple(range(STRIP))))),
    Mutant("sum-sequential", "added one product after the other",
           recipe=where(lambda o: not isinstance(o, Sequential), lambda o: Sequential(fused=True))),
    Mutant("accumulator-bfloat16", "kept the accumulator in bfloat16",
           arithmetic=lambda c: NarrowAccumulator("bfloat16")),
    Mutant("accumulator-float16", "kept the accumulator in float16",
           arithmetic=lambda c: NarrowAccumulator("float16")),
    Mutant("float16-read-as-bfloat16", "read float16 operands as bfloat16",
           call=inputs_through("bfloat16", "float16")),
    Mutant("nan-ignored", "took NaN for zero", arithmetic=lambda c: NanIgnored(),
           source=REPORTED + "59"),
    Mutant("nan-spreads", "let a NaN of one row reach its group", arithmetic=lambda c: NanSpreads(),
           source=REPORTED + "37"),
    Mutant("flush-to-zero", "took subnormals for zeros", arithmetic=lambda c: FlushToZero()),
    Mutant("stored-through-bfloat16", "stored float16 by way of bfloat16",
           arithmetic=lambda c: StoredThrough("bfloat16", "float16")),
    Mutant("stored-through-float16", "stored bfloat16 by way of float16",
           arithmetic=lambda c: StoredThrough("float16", "bfloat16")),
    Mutant("cast-saturates", "stored the largest finite value instead of infinity",
           arithmetic=lambda c: SaturatingCast()),
    Mutant("cast-toward-zero", "truncated when narrowing",
           arithmetic=lambda c: CastBy(0), source=REPORTED + "43"),
    Mutant("cast-ties-away", "rounded ties away from zero when narrowing",
           arithmetic=lambda c: CastBy(1), source=REPORTED + "43"),
)  # fmt: skip

#: Where a policy allows what a mutant does, it is a correct kernel: no case rejects it there.
ALLOWED: dict[str, tuple[str, ...]] = {
    # another order or another rounding inside a sum, or another form of silu: free everywhere
    "switch-at-32": ("ieee", "cuda", "metal", "wgsl"),
    "switch-below-16": ("ieee", "cuda", "metal", "wgsl"),
    "switch-at-2": ("ieee", "cuda", "metal", "wgsl"),
    "dispatch-by-groups": ("ieee", "cuda", "metal", "wgsl"),
    "lanes-contiguous": ("ieee", "cuda", "metal", "wgsl"),
    "butterfly-ascending": ("ieee", "cuda", "metal", "wgsl"),
    "tail-in-vectors": ("ieee", "cuda", "metal", "wgsl"),
    "one-accumulator-is-eight": ("ieee", "cuda", "metal", "wgsl"),
    "eight-accumulators-are-one": ("ieee", "cuda", "metal", "wgsl"),
    "two-accumulators-are-one": ("ieee", "cuda", "metal", "wgsl"),
    "gemv-fused": ("ieee", "cuda", "metal", "wgsl"),
    "k-sets-swapped": ("ieee", "cuda", "metal", "wgsl"),
    "k-sets-halves": ("ieee", "cuda", "metal", "wgsl"),
    "mma-rounds-twice": ("ieee", "cuda", "metal", "wgsl"),
    "mma-in-float64": ("ieee", "cuda", "metal", "wgsl"),
    "mma-cut-to-25-bits": ("ieee", "cuda", "metal", "wgsl"),
    "mma-fma-ascending": ("ieee", "cuda", "metal", "wgsl"),
    "mma-tree-halving": ("ieee", "cuda", "metal", "wgsl"),
    "sequential-descending": ("ieee", "cuda", "metal", "wgsl"),
    "sequential-not-fused": ("ieee", "cuda", "metal", "wgsl"),
    "exact-by-float64": ("ieee", "cuda", "metal", "wgsl"),
    "wgmma-rounds-to-nearest": ("ieee", "cuda", "metal", "wgsl"),
    "sum-sequential": ("ieee", "cuda", "metal", "wgsl"),
    # either neighbour is a right rounding, and NaN and infinity are undetermined
    "nan-ignored": ("wgsl",),
    "cast-saturates": ("wgsl",),
    "cast-toward-zero": ("wgsl",),
    "cast-ties-away": ("wgsl",),
    # flushing, or inside the budget of exp there
    "flush-to-zero": ("metal", "wgsl"),
}
