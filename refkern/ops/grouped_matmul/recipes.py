"""The recipes of grouped_matmul: in which order the K products of an output are added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from refkern.elementary import fma
from refkern.errors import InvalidInput
from refkern.hardware.sm90.tensor_cores import TensorCoreChain
from refkern.op import Call
from refkern.ops.grouped_matmul.spec import tokens_per_expert
from refkern.recipe import Recipe
from refkern.schedules import Exact, Lanes, Pairwise, Schedule, Sequential


@dataclass(frozen=True)
class Gemv:
    """A configuration of Modular's grouped GEMV.

    A simdgroup of 32 lanes takes whole vectors of 8 neighbours a lane, 256 elements a step; what
    is left of K goes one element a lane into accumulator 0.  Only ``accumulators`` reaches the
    bits; the other fields say who shares a load.
    """

    #: outputs of neighbouring columns that a simdgroup computes
    rows_per_simdgroup: int
    #: tokens that share one load of the weights
    tokens_per_pass: int
    #: accumulators of a lane; a vector's products are halved down to as many
    accumulators: int
    simdgroups: int = 8

    @property
    def order(self) -> Lanes:
        return Lanes(lanes=32, vector=8, components=self.accumulators, scalar_tail=True)


#: Modular's choice: the first whose limit is not below max_num_tokens_per_expert
GEMV_UP_TO = {
    1: Gemv(rows_per_simdgroup=2, tokens_per_pass=1, accumulators=8),
    4: Gemv(rows_per_simdgroup=1, tokens_per_pass=4, accumulators=8),
    16: Gemv(rows_per_simdgroup=2, tokens_per_pass=8, accumulators=1),
}
#: no dispatch leads there, but Modular's tests run it
GEMV_OF_TESTS = Gemv(rows_per_simdgroup=4, tokens_per_pass=2, accumulators=2, simdgroups=4)

#: elements of K between two loads of the MMA kernel
STRIP = 32
#: the k of a strip in the order in which the two 16-product MMAs take them: a lane holds four
#: neighbours for the first and the next four for the second
STRIP_ORDER = tuple(
    8 * block + 4 * half + i for half in range(2) for block in range(4) for i in range(4)
)


@dataclass(frozen=True)
class MmaStrips:
    """Strips of 32 products, each as two matrix multiply-accumulates of 16; the tail is zeros.

    inside: what one of them does with its 16 products and the accumulator.  Apple documents
        nothing; "exact" adds all 17 exactly and rounds once (an exact zero is +0), "fma" chains
        16 of them, "tree" rounds the products, adds neighbours up and that to the accumulator.
    """

    inside: Literal["exact", "fma", "tree"] = "exact"
    order: tuple[int, ...] = STRIP_ORDER

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        b = np.ones(a.shape[-1:], np.float32) if b is None else b
        total = np.zeros(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]), np.float32)
        a, b = self._fragments(a), self._fragments(b)
        multiply_accumulate = INSIDE[self.inside]
        for i in range(a.shape[-2]):
            total = multiply_accumulate(a[..., i, :], b[..., i, :], total)
        return total

    def _fragments(self, x: np.ndarray) -> np.ndarray:
        """[.., K] -> [.., MMAs, 16], in the order in which they are taken."""
        strips = -(-x.shape[-1] // STRIP)
        padded = np.zeros((*x.shape[:-1], strips * STRIP), np.float32)
        padded[..., : x.shape[-1]] = x
        ordered = padded.reshape(*x.shape[:-1], strips, STRIP)[..., list(self.order)]
        return ordered.reshape(*x.shape[:-1], 2 * strips, STRIP // 2)


def exact_then_round(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    """[.., n] twice and [..] -> [..]: all products and the total added exactly, one rounding.

    Products of 16-bit floats are exact in float64.  Where no addition of the float64 sum lost
    anything (TwoSum says so exactly) it is the exact sum; elsewhere the exact sum is taken apart.
    """
    terms = a.astype(np.float64) * b.astype(np.float64)
    wide = total.astype(np.float64) + 0.0
    inexact = np.zeros(wide.shape, bool)
    for i in range(terms.shape[-1]):
        term = terms[..., i]
        following = wide + term
        virtual = following - wide
        error = (wide - (following - virtual)) + (term - virtual)
        inexact |= np.abs(error) > 0  # NaN and infinity have a NaN error
        wide = following
    result = wide.astype(np.float32)
    if inexact.any():
        ones = np.ones((*total.shape, 1), np.float32)
        shape = terms.shape
        factors = np.concatenate([total[..., None], np.broadcast_to(a, shape)], axis=-1)
        others = np.concatenate([ones, np.broadcast_to(b, shape)], axis=-1)
        exact = Exact(rounded_products=False).replay(factors[inexact], others[inexact])
        result[inexact] = exact
    return result


def fma_chain(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    for i in range(a.shape[-1]):
        total = fma(a[..., i], b[..., i], total)
    return total


def tree(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    return total + Pairwise().replay(a, b)


INSIDE: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "exact": exact_then_round,
    "fma": fma_chain,
    "tree": tree,
}


@dataclass(frozen=True, kw_only=True)
class GroupedRecipe(Recipe):
    #: the order in which an output's K products are added
    order: Schedule
    #: how a GEMV shares its loads; None: the output is computed in tiles of 64 x 64
    gemv: Gemv | None = None


def few_tokens(call: Call) -> None:
    tokens = tokens_per_expert(call)
    if tokens > max(GEMV_UP_TO):
        raise InvalidInput(
            "max_num_tokens_per_expert",
            tokens,
            f"recipe modular-gemv is configured for up to {max(GEMV_UP_TO)} tokens an expert",
        )


def gemv_recipe(name: str, source: str, gemv: Gemv) -> GroupedRecipe:
    return GroupedRecipe(name=name, source=source, order=gemv.order, gemv=gemv)


def configured_gemv(call: Call) -> GroupedRecipe:
    tokens = tokens_per_expert(call)
    gemv = next(gemv for limit, gemv in GEMV_UP_TO.items() if tokens <= limit)
    return gemv_recipe("modular-gemv", MODULAR_GEMV.source, gemv)


def dispatched(call: Call) -> GroupedRecipe:
    return MODULAR_GEMV if tokens_per_expert(call) <= max(GEMV_UP_TO) else MODULAR_MMA


#: products of one wgmma instruction on 16-bit operands
WGMMA_K = 16


def whole_instructions(call: Call) -> None:
    k = call.b.shape[2]
    if k % WGMMA_K != 0:
        raise InvalidInput("b", f"K = {k}", f"recipe torch-sm90 takes K % {WGMMA_K} == 0")


def of_operands(call: Call) -> GroupedRecipe:
    short = {"bfloat16": "bf16", "float16": "f16"}[call.a.dtype.name]
    return replace(TORCH_SM90, order=TensorCoreChain(f"wgmma.k{WGMMA_K}.{short}"), choose=None)


MODULAR_GEMV = GroupedRecipe(
    name="modular-gemv",
    source="Modular's grouped GEMV for Apple GPUs: a simdgroup an output, lanes of 8 neighbours",
    order=GEMV_UP_TO[1].order,
    gemv=GEMV_UP_TO[1],
    batch_invariant=False,
    domain=few_tokens,
    choose=configured_gemv,
)
MODULAR_GEMV_OF_TESTS = gemv_recipe(
    "modular-gemv-4-2-2",
    "the GEMV configuration that only Modular's tests run: 4 rows, 2 tokens, 2 accumulators",
    GEMV_OF_TESTS,
)
MODULAR_MMA = GroupedRecipe(
    name="modular-mma",
    source="Modular's grouped MMA kernel for Apple M5; each 16-product MMA rounds once",
    order=MmaStrips("exact"),
)
MODULAR_MMA_FMA = GroupedRecipe(
    name="modular-mma-fma",
    source="Modular's grouped MMA kernel, were an MMA a chain of 16 fma",
    order=MmaStrips("fma"),
)
MODULAR_MMA_TREE = GroupedRecipe(
    name="modular-mma-tree",
    source="Modular's grouped MMA kernel, were an MMA a tree of rounded sums",
    order=MmaStrips("tree"),
)
MODULAR = GroupedRecipe(
    name="modular",
    source="Modular's dispatch: the GEMV for up to 16 tokens an expert, else the MMA kernel",
    order=MODULAR_MMA.order,
    batch_invariant=False,
    choose=dispatched,
)
SEQUENTIAL = GroupedRecipe(
    name="sequential",
    source="k ascending, one fma a product",
    order=Sequential(fused=True),
)
EXACT = GroupedRecipe(
    name="exact",
    source="the correctly rounded sum of the exact products",
    order=Exact(rounded_products=False),
)
TORCH_SM90 = GroupedRecipe(
    name="torch-sm90",
    source="torch's grouped and plain matmul on Hopper: one wgmma chain over K from +0, one cast",
    order=TensorCoreChain(f"wgmma.k{WGMMA_K}.bf16"),
    domain=whole_instructions,
    choose=of_operands,
)
RECIPES = (
    MODULAR,
    MODULAR_GEMV,
    MODULAR_GEMV_OF_TESTS,
    MODULAR_MMA,
    MODULAR_MMA_FMA,
    MODULAR_MMA_TREE,
    SEQUENTIAL,
    EXACT,
    TORCH_SM90,
)
