"""The golden cases of block_scaled_mlp.

A bfloat16 output hides the order of a float32 sum: contraction to fma changes half of the sums and
no activation.  So a family of cases has groups that cancel: what is left is rounding alone, and
every choice of order, fusing and accumulator is in sight.
"""

from __future__ import annotations

import math
from typing import Any

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

ACTIVATIONS = Uniform(2)
WEIGHTS = Uniform(7)
#: scales that make gate and up of a few hundred products about 2 in size
WEIGHT_SCALES = Spread(-11, -10, signed=False)
NAN, INF = math.nan, math.inf


def tiles(n: int) -> int:
    return -(-n // 128)


def case(
    name: str,
    purpose: str,
    shape: tuple[int, int, int, int],
    *,
    limit: float | None = None,
    scale_format: str = "ue8m0",
    x: Fill = ACTIVATIONS,
    x_edits: tuple[Put | Scale, ...] = (),
    w: Fill = WEIGHTS,
    w13_edits: tuple[Put | Scale, ...] = (),
    w2_edits: tuple[Put | Scale, ...] = (),
    scales: Fill = WEIGHT_SCALES,
    scale_dtype: str = "float32",
    w13_scale_edits: tuple[Put | Scale, ...] = (),
    recipe: str = "vllm-densemlp",
    tier: Tier = "quick",
    sampled_rows: tuple[int, ...] = (),
    seed: int = 1,
    only_here: tuple[str, ...] = (),
) -> Case:
    """shape: tokens, K, inter, hidden."""
    tokens, k, inter, hidden = shape
    return Case(
        name=name,
        purpose=purpose,
        inputs={
            "x": Tensor("bfloat16", (tokens, k), x, x_edits),
            "w13": Tensor("float8_e4m3fn", (2 * inter, k), w, w13_edits),
            "w13_scale": Tensor(scale_dtype, (2 * tiles(inter), tiles(k)), scales, w13_scale_edits),
            "w2": Tensor("float8_e4m3fn", (hidden, inter), w, w2_edits),
            "w2_scale": Tensor(scale_dtype, (tiles(hidden), tiles(inter)), scales),
        },
        params={"limit": limit, "scale_format": scale_format},
        recipe=recipe,
        tier=tier,
        seed=seed,
        only_here=only_here,
        sampled_rows=sampled_rows,
    )


#: 128 numbers of both signs over many exponents, that bfloat16 and e4m3 hold
WIDE = tuple(
    (1 if i * 5 % 7 < 4 else -1) * (8 + i * 11 % 8) * 2.0 ** (i * 37 % 11 - 3) for i in range(128)
)
#: the same numbers in another order
MIXED = tuple(WIDE[(i * 45 + 17) % 128] for i in range(128))


def cancelling(first: int, second: int) -> dict[str, Any]:
    """Two groups of K whose exact dots are opposite and large, in every row of gate and up.

    The second group has the first one's products in another order and with the other sign, so a
    sum that is not exact leaves another rest.  The other groups of x are small.
    """
    at = (slice_of(first), slice_of(second))
    other = tuple(-v for v in MIXED)
    return {
        "x_edits": (
            Scale(region(None, None), -3),
            Put(region(None, at[0]), tuple(v * 2.0**9 for v in WIDE)),
            Put(region(None, at[1]), tuple(v * 2.0**9 for v in other)),
        ),
        "w13_edits": (
            Put(region(None, at[0]), tuple(abs(v) / 8 for v in WIDE)),
            Put(region(None, at[1]), tuple(abs(v) / 8 for v in MIXED)),
        ),
        "w13_scale_edits": (
            Put(region(None, first), (0.0023,)),
            Put(region(None, second), (0.0023,)),
        ),
    }


def slice_of(group: int) -> tuple[int, int]:
    return group * 128, (group + 1) * 128


#: amax 448 * 2^k is the largest that a power of two still takes; the next bfloat16 needs the next
EDGES = (448.0, 450.0, 446.0, 896.0, 900.0, 892.0, 224.0, 225.0)


def midpoints(amax: float, *tops: float) -> tuple[float, ...]:
    """A group's amax, then values that lie on the midpoint of two codes in x / scale; whether
    x * RN(1 / scale) does as well depends on the reciprocal's rounding."""
    values = [top * 2.0**-e * sign for e in range(12) for top in tops for sign in (1, -1)]
    return (amax, *(values[i % len(values)] for i in range(127)))


#: gates and ups one bfloat16 below the limit, between which it lies, and one above
BESIDE_LIMIT = (0.25, 0.28125, 0.3125, 0.34375)

CASES = (
    case("glm_flash_shard", "two tokens of a GLM-5.3-Flash shard: gates and ups beyond the limit",
         (2, 768, 128, 64), limit=10.0, scales=Spread(-9, -8, signed=False),
         only_here=("limit-fixed",)),
    case("midpoints_float32",
         "values on the midpoint of two codes, where x * (1 / scale) and x / scale part",
         (4, 384, 128, 64), scale_format="float32", scales=Spread(-16, -15, signed=False),
         x_edits=(
             Put(region(0, None), midpoints(392.0, 350.0, 203.0)),
             Put(region(1, None), midpoints(204.0, 153.0)),
             Put(region(2, None), midpoints(248.0, 186.0)),
             Put(region(3, None), midpoints(784.0, 406.0, 350.0)),
         ),
         only_here=("divided-by-scale",)),
    case("power_of_two_boundary",
         "amax on 448 * 2^k, where the scale is a power of two already, and next to it",
         (8, 384, 128, 64), x=Uniform(-4), scales=Spread(-4, -3, signed=False),
         x_edits=tuple(Put(region(i, (5, None, 128)), (e,)) for i, e in enumerate(EDGES)),
         w13_edits=(Put(region(None, (5, None, 128)), (0.0,)),),
         only_here=("power-doubled",)),
    case("zero_groups", "groups of zeros of both signs, and a token of nothing else",
         (4, 384, 128, 64), x_edits=(
             Put(region(0, (0, 128)), (0.0,)), Put(region(1, (128, 256)), (-0.0, 0.0)),
             Put(region(2, None), (0.0, -0.0))),
         only_here=("zero-group-nan",)),
    case("tiny_activations", "groups around the floors of amax and scale",
         (4, 384, 128, 64), scales=Spread(0, 1, signed=False),
         x_edits=(Scale(region(0, None), -28), Scale(region(1, None), -36),
                  Scale(region(2, None), -34), Scale(region(3, None), -110)),
         only_here=("amax-floor-large", "scale-floor-dropped")),
    case("overflow", "sums that overflow: +inf becomes the limit, -inf makes a NaN of the token",
         (3, 384, 128, 64), limit=16.0, scales=Spread(-6, -5, signed=False), x=Uniform(-4),
         x_edits=(Scale(region(0, None), 127), Put(region(1, 130), (3.0e38,))),
         only_here=("sum-bounded",)),
    case("nan_and_infinity",
         "one NaN or infinity in a token: what the kernel's minimum and maximum drop",
         (6, 384, 128, 64), limit=7.0, scales=Spread(-13, -12, signed=False), x_edits=(
             Put(region(0, 5), (NAN,)), Put(region(1, 130), (INF,)), Put(region(2, 383), (-INF,)),
             Put(region(3, (0, 128)), (NAN,)), Put(region(4, 9), (-NAN,)),
             Put(region(4, 10), (INF,))),
         only_here=("infinity-left-out",)),
    case("limit_between_bfloat16",
         "a limit that bfloat16 does not hold, with gates and ups one ULP below and above it",
         (4, 384, 128, 64), limit=6.77, scales=Values((1.0,)),
         x_edits=tuple(Put(region(i, (0, 2)), (6.5, d)) for i, d in enumerate(BESIDE_LIMIT)),
         w13_edits=(Put(region(None, None), (0.0,)),
                    Put(region(None, (0, 2)), (1.0, 1.0, 1.0, 1.0, -1.0, -1.0))),
         only_here=("limit-rounded",)),
    case("limit_zero", "a limit of 0 clamps: every activation is a zero of some sign",
         (2, 384, 128, 64), limit=0.0, only_here=("zero-limit-off",)),
    case("gate_deep_negative", "gates from -60 to -200: exp overflows, silu is -0",
         (2, 384, 128, 64), x=Values((1.0,)), w=Integers(-3, 3), scales=Values((0.125,)),
         w13_edits=(Put(region((0, 128), None), (-7.0, -6.5, -2.0, -1.875, -3.0, 1.0)),
                    Put(region((0, 128, 4), None), (1.0, -1.0, 0.5))),
         only_here=("exp-overflows",)),
    case("ragged", "K, inter and hidden that leave part of a block, as GLM-4.5-Air's 10944 does",
         (3, 200, 130, 150),
         w13_scale_edits=(Put(region(1, None), (2.0**-8,)), Put(region(3, None), (2.0**-7,))),
         only_here=("blocks-guessed", "halves-tiled-together", "tail-dropped")),
    case("square_scales", "as many scale rows as columns: a transposed reading has the right shape",
         (2, 256, 128, 64), only_here=("scales-transposed",)),
    case("subnormal_weights", "e4m3 subnormals in the weights",
         (2, 384, 128, 64), w=Integers(-7, 7, -9), scales=Spread(0, 1, signed=False),
         only_here=("subnormals-flushed",)),
    case("cancelling_slices", "groups that cancel across slices: what is left is rounding alone",
         (2, 768, 128, 64), scale_format="float32", seed=2, **cancelling(1, 4),
         only_here=("one-chain",)),
    case("weight_scales_ue8m0", "float8_e8m0fnu weight scales, byte 255 among them",
         (2, 384, 128, 64), scales=Values((2.0**-12, 2.0**-13, 2.0**-11)),
         scale_dtype="float8_e8m0fnu", limit=7.0,
         w13_scale_edits=(Put(region(1, 1), (NAN,)),), only_here=("scale-byte-shifted",)),
    case("stock_cuda", "vLLM's CUDA ops: silu rounded first, a NaN clamped to -448",
         (4, 384, 128, 64), limit=7.0, scales=Spread(-13, -12, signed=False),
         recipe="vllm-stock-cuda",
         x_edits=(Put(region(2, 5), (NAN,)),),
         only_here=("nan-amax-kept", "nan-code-kept", "silu-not-rounded")),
    case("deepseek_v4_limit_zero", "DeepSeek-V4's reference, where a limit of 0 is none",
         (3, 384, 128, 64), limit=0.0, recipe="deepseek-v4-ref", only_here=("zero-limit-clamps",)),
    case("exact_sums", "one rounding to gate, up and out, where groups cancel",
         (2, 768, 130, 70), scale_format="float32", recipe="exact", **cancelling(0, 4),
         only_here=("sums-rounded",)),
    case("densemlp_sm90", "the H200's tensor cores: two HMMA and an FADD per mma.sync, cut",
         (1, 512, 512, 64), scale_format="float32", recipe="vllm-densemlp-sm90",
         **cancelling(0, 2), only_here=("hmma-halves-swapped",)),
    case("deepgemm_sm90", "DeepGEMM's wgmma with 13 fraction bits",
         (2, 384, 128, 64), recipe="deepgemm-sm90", only_here=("accumulator-wide",)),
    case("stock_cuda_infinity", "vLLM's CUDA ops with an infinity, which is clamped to -448",
         (2, 384, 128, 64), limit=7.0, recipe="vllm-stock-cuda", tier="standard",
         x_edits=(Put(region(1, 5), (INF,)),)),
    case("float32_scales", "activation scales that are no powers of two, and no limit",
         (3, 512, 128, 64), scale_format="float32", tier="standard"),
    case("cancelling_groups", "groups that cancel within a slice: fma, or two roundings",
         (2, 768, 128, 64), scale_format="float32", tier="standard", **cancelling(0, 1)),
    case("densemlp_sm90_nofma", "the H200's tensor cores without contraction",
         (4, 1024, 512, 64), scale_format="float32", recipe="vllm-densemlp-sm90-nofma",
         tier="standard", **cancelling(1, 2)),
    case("all_codes", "every bit pattern as a weight, NaN included, and of x",
         (8, 512, 256, 128), x=Codes(), w=Codes(), limit=10.0, tier="standard"),
    case("eight_tokens", "eight tokens at a quarter of GLM-5.3-Flash's TP8 shard",
         (8, 1024, 384, 256), limit=10.0, tier="standard"),
    case("glm_flash_tp8", "GLM-5.3-Flash, one of eight shards",
         (8, 4096, 1536, 4096), limit=10.0, tier="full", sampled_rows=(0, 7)),
    case("glm_flash_tp8_sm90", "the same on an H200",
         (6, 4096, 1536, 4096), limit=10.0, recipe="vllm-densemlp-sm90", tier="full",
         sampled_rows=(0, 5)),
    case("glm_flash_tp4", "GLM-5.3-Flash, one of four shards",
         (4, 4096, 3072, 4096), limit=10.0, tier="full", sampled_rows=(0, 3)),
    case("glm_flash_tp2", "GLM-5.3-Flash, one of two shards",
         (2, 4096, 6144, 4096), limit=10.0, tier="full", sampled_rows=(1,)),
    case("glm_flash_tp1", "GLM-5.3-Flash, the whole layer",
         (2, 4096, 12288, 4096), limit=10.0, tier="full", sampled_rows=(1,)),
    case("glm_5_tp8", "GLM-5, one of eight shards, without a limit",
         (8, 6144, 1536, 6144), tier="full", sampled_rows=(0, 7)),
    case("glm_45_tp8_float32", "GLM-4.5, one of eight shards, float32 scales",
         (8, 5120, 1536, 5120), scale_format="float32", tier="full", sampled_rows=(0, 7)),
    case("glm_45_air", "GLM-4.5-Air, whose inter of 10944 is no multiple of 128",
         (2, 4096, 10944, 4096), tier="full", sampled_rows=(1,)),
    case("deepseek_v3_tp8", "DeepSeek-V3, one of eight shards: 18 groups, 4.5 slices",
         (8, 7168, 2304, 7168), tier="full", sampled_rows=(0, 7)),
    case("prefill_64", "64 tokens through the CPU fallback",
         (64, 4096, 1536, 4096), limit=10.0, tier="full", sampled_rows=(0, 31, 63)),
)  # fmt: skip
