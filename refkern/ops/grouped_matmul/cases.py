"""The golden cases of grouped_matmul.

A 16-bit output hides the order of a sum, so the order is judged in float32 outputs.  Integers give
the same bits in any order and show every index that is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from refkern.case import (
    Case,
    Codes,
    Fill,
    Integers,
    Put,
    Scale,
    Spread,
    Tensor,
    Tier,
    Uniform,
    Values,
    region,
)

#: |a| < 4 and |b| < 1/4, as activations and weights are
ACTIVATIONS, WEIGHTS = Uniform(2), Uniform(-2)
SMALL_INTEGERS = Integers(-8, 8)
NAN, INF = math.nan, math.inf
BF16, F16, F32 = "bfloat16", "float16", "float32"


def case(
    name: str,
    purpose: str,
    sizes: Sequence[int],
    n_k: tuple[int, int],
    *,
    ids: Sequence[int] | None = None,
    experts: int | None = None,
    first: int = 0,
    behind: int = 0,
    dtype: str = BF16,
    a: Fill = ACTIVATIONS,
    b: Fill = WEIGHTS,
    a_edits: tuple[Put | Scale, ...] = (),
    b_edits: tuple[Put | Scale, ...] = (),
    out: str | None = F32,
    most: int | None = None,
    recipe: str = "modular",
    tier: Tier = "quick",
    sampled_rows: tuple[int, ...] = (),
    seed: int = 4,
    only_here: tuple[str, ...] = (),
) -> Case:
    """sizes: rows of each group; ids: their experts, the first ones by default.

    first, behind: rows of no group in front and behind.
    """
    chosen = tuple(range(len(sizes)) if ids is None else ids)
    offsets = [first]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    count = max(chosen) + 1 if experts is None else experts
    return Case(
        name=name,
        purpose=purpose,
        inputs={
            "a": Tensor(dtype, (offsets[-1] + behind, n_k[1]), a, a_edits),
            "b": Tensor(dtype, (count, *n_k), b, b_edits),
            "a_offsets": Tensor("uint32", (len(offsets),), Values(tuple(offsets))),
            "expert_ids": Tensor("int32", (len(chosen),), Values(chosen)),
        },
        params={"max_num_tokens_per_expert": most, "out_dtype": out},
        recipe=recipe,
        tier=tier,
        seed=seed,
        sampled_rows=sampled_rows,
        only_here=only_here,
    )


def constants(rows: int) -> tuple[Put, ...]:
    """Row i is i + 1 everywhere."""
    return tuple(Put(region(i), (i + 1.0,)) for i in range(rows))


#: their products end below 2^-149, and rounded there they lie midway in the sum of 320 of them
TINY = (193 * 2.0**-73, 165 * 2.0**-77, 129 * 2.0**-81)
#: eleven tokens of 128 experts: most experts get none
FEW_OF_128 = tuple({3: 2, 17: 1, 40: 4, 77: 1, 126: 3}.get(expert, 0) for expert in range(128))

CASES = (
    case("unordered_experts", "integers, experts in no order: the same bits in any order of sums",
         (3, 1, 4, 2), (64, 96), ids=(3, 0, 2, 1), a=SMALL_INTEGERS, b=SMALL_INTEGERS,
         only_here=("ids-sorted",)),
    case("constants_per_expert_and_token",
         "every expert and every token a constant of its own, an expert twice: every mix-up shows",
         (2, 3, 2), (48, 64), ids=(1, 2, 2), experts=4, a_edits=constants(7),
         b_edits=tuple(Put(region(e), (2.0**e + 1,)) for e in range(4)),
         only_here=("repeated-expert-once",)),
    case("first_offset_and_rows_behind",
         "rows that no group covers, in front and behind, NaN among them: zeros in a fresh result",
         (2, 4), (64, 64), first=3, behind=2, a=SMALL_INTEGERS, b=SMALL_INTEGERS,
         a_edits=(Put(region(0), (NAN,)), Put(region(-1), (INF, NAN))),
         only_here=("starts-at-row-0", "rows-behind-computed", "rows-in-front-computed",
                    "rows-outside-multiplied")),
    case("lora_without_expert", "LoRA of rank 16; a group without an adapter gets exact zeros",
         (4, 3, 2), (64, 16), ids=(-1, 0, 2),
         only_here=("no-expert-is-the-first", "no-expert-is-the-last", "short-k-read-on")),
    case("most_of_128_empty", "128 groups, most of them empty: the others keep their experts",
         FEW_OF_128, (16, 64), only_here=("empty-groups-skipped",)),
    case("experts_beyond_127", "256 experts, of which a few are named: ids above 127",
         (2, 1, 3, 1), (16, 32), ids=(5, 127, 200, 255), only_here=("ids-8-bits",)),
    case("decode_1_token", "gpt-oss: one token an expert, K = 2880 leaves 64 behind whole steps",
         (1, 1), (16, 2880), only_here=("activations-2816",)),
    case("decode_4_tokens", "Nemotron-3: up to four tokens an expert, K = 2688",
         (4, 2, 1), (16, 2688), only_here=("switch-at-2",)),
    case("decode_16_tokens", "Nemotron-3: up to 16 tokens an expert, one accumulator a lane",
         (16, 8, 5), (16, 1856), only_here=("switch-below-16", "one-accumulator-is-eight")),
    case("switch_at_17", "DeepSeek-V2-Lite: 17 tokens are the first that the MMA kernel takes",
         (17, 3), (32, 1408), only_here=("switch-at-32",)),
    case("count_overstated", "a count above the groups' own sends them to the MMA kernel",
         (4, 7), (64, 256), most=40, only_here=("dispatch-by-groups",)),
    case("prefill_ragged", "ragged groups, tiles half empty", (70, 33, 1), (64, 320), dtype=F16,
         only_here=("rows-above-64-dropped",)),
    case("mma_k_tail", "K = 203: six strips and a tail of eleven", (40, 2), (48, 203),
         only_here=("strip-tail-dropped",)),
    case("n_overhang", "N = 70: six columns in a tile's last quarter", (34, 5), (70, 64),
         only_here=("n-overhang",)),
    case("n_of_5", "N and K below every tile", (2, 1), (5, 3), dtype=F16, out=None,
         a=SMALL_INTEGERS, b=Integers(1, 50), tier="standard"),
    case("k_of_1", "one product an output", (3, 20), (33, 1), tier="standard"),
    case("nan_and_infinity_stay", "NaN and infinity in a token or an expert: their rows, no other",
         (3, 2, 2), (48, 96), experts=4,
         a_edits=(Put(region(1, 70), (NAN,)), Put(region(3, 3), (INF,))),
         b_edits=(Put(region(1, 5, 8), (-INF,)), Put(region(2, 0, 71), (NAN,)),
                  Put(region(3), (NAN,))),
         only_here=("nan-spreads", "nan-ignored")),
    case("subnormals", "bfloat16 subnormals, and products below the smallest float32",
         (2, 2), (32, 288), a_edits=(Scale(region(0), -120), Scale(region(1), -70),
                                     Scale(region(3), -75)),
         b_edits=(Scale(region(0), -60), Scale(region(1), -64)),
         only_here=("flush-to-zero", "gemv-fused")),
    case("float16_of_bfloat16", "bfloat16 operands, a float16 output: one rounding",
         (3, 20), (48, 128), out=F16, only_here=("stored-through-bfloat16",)),
    case("bfloat16_of_float16", "float16 operands, a bfloat16 output: one rounding",
         (5, 3), (48, 160), dtype=F16, out=BF16,
         a_edits=(Scale(region(0), 8),), b_edits=(Scale(region(0, 3), 8),),
         only_here=("stored-through-float16",)),
    case("float16_overflow", "float16 outputs beyond 65504 are infinities; 2049 is a tie",
         (2, 2), (32, 64), dtype=F16, out=None, a=Values((32.0,)), b=Values((16.0,)),
         b_edits=(Put(region(None, (8, 16)), (64.0,)), Put(region(None, (16, 24)), (-64.0,)),
                  Put(region(None, (24, 32)), (0.0,)),
                  Put(region(None, (24, 32), (0, 2)), (64.0, 2.0**-5))),
         only_here=("cast-saturates", "cast-ties-away")),
    case("mma_wide_exponents", "operands of every size: an MMA's sum is exact before it is rounded",
         (20, 2), (16, 64), a=Spread(-30, 20), b=Spread(-30, 20), most=40,
         a_edits=(Put(region(0), (0.0,)), Put(region(0, (0, 3)), (1.0, 2.0**-24, 2.0**-60)),
                  Put(region(21, (32, 35)), (2.0**20, -(2.0**-80), 2.0**-4))),
         b_edits=(Put(region(0, 0), (1.0,)),),
         only_here=("mma-in-float64",)),
    case("mma_fma", "the MMA kernel with a chain of fma inside", (20, 2), (32, 160),
         recipe="modular-mma-fma", most=40, only_here=("mma-fma-ascending",)),
    case("mma_tree", "the MMA kernel with a tree inside", (20, 2), (32, 160), most=40,
         recipe="modular-mma-tree", only_here=("mma-tree-halving",)),
    case("gemv_4_2_2", "the GEMV with two accumulators, which only Modular's tests run",
         (5, 2), (32, 608), recipe="modular-gemv-4-2-2", only_here=("two-accumulators-are-one",)),
    case("sequential", "one fma after the other; some products have bits below float32's last",
         (5, 2), (32, 320), recipe="sequential",
         a_edits=(Put(region(0), TINY),), b_edits=(Put(region(0, 0), TINY),),
         only_here=("sequential-descending", "sequential-not-fused")),
    case("exact", "the correctly rounded sum", (5, 2), (32, 320), recipe="exact",
         a_edits=(Put(region(0), (0.0,)), Put(region(0, (0, 3)), (1.0, 2.0**-24, 2.0**-60))),
         b_edits=(Put(region(0, 0), (1.0,)),),
         only_here=("exact-by-float64",)),
    case("torch_sm90", "torch on Hopper: bits below the alignment of an instruction are cut off",
         (5, 2), (32, 320), recipe="torch-sm90",
         a_edits=(Put(region(0), (0.0,)), Put(region(0, (0, 18)), (1.0,) + (2.0**-25,) * 17)),
         b_edits=(Put(region(0, 0), (1.0,)),), only_here=("wgmma-rounds-to-nearest",)),
    case("torch_sm90_float16", "the same for float16", (20, 3), (40, 128), dtype=F16,
         recipe="torch-sm90", tier="standard"),
    case("all_codes", "every bit pattern of bfloat16", (3, 20, 1), (40, 64), a=Codes(), b=Codes(),
         tier="standard"),
    case("all_codes_float16", "every bit pattern of float16", (3, 40, 1), (40, 24), dtype=F16,
         a=Codes(), b=Codes(), tier="standard"),
    case("prefill_300_rows", "groups of 300, 64, 17, 16, 1 and no rows",
         (300, 64, 17, 0, 16, 1), (72, 320), tier="standard"),
    case("qwen3_30b_decode", "Qwen3-30B-A3B gate_up: one token an expert; some rows are kept",
         (1,) * 4, (1536, 2048), tier="full", sampled_rows=(0, 2, 3)),
    case("gpt_oss_decode", "gpt-oss gate_up, 16 tokens an expert; some rows are kept",
         (16, 3), (5760, 2880), tier="full", sampled_rows=(0, 15, 16)),
    case("deepseek_v3_down", "DeepSeek-V3 down, 64 and 17 tokens; some rows are kept",
         (64, 17), (7168, 2048), ids=(1, 0), tier="full", sampled_rows=(0, 63, 64, 80)),
    case("modular_test_prefill", "Modular's own prefill: 300, 0, 517, 64, 33 tokens at 3072 x 3584",
         (300, 0, 517, 64, 33), (3072, 3584), ids=(0, 1, 1, 0, 1), tier="full",
         sampled_rows=(0, 299, 300, 816, 817, 913)),
)  # fmt: skip
