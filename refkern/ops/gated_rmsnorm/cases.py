"""The golden cases of gated_rmsnorm.

16-bit outputs see neither the order of a sum nor fma nor exp; float32 outputs see them all.  So
every route has a case in float32, beside the dtypes that models run in.
"""

from __future__ import annotations

import math

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

#: scales that every dtype holds, and that differ from channel to channel
GRID = Integers(33, 127, -6)
#: |x| < 4 and |gate| < 8, as activations are
ACTIVATIONS, GATES = Uniform(2), Uniform(3)
#: -25 .. 25 in steps of 1/64
SWEEP = Integers(-1600, 1600, -6)
NAN, INF = math.nan, math.inf


def case(
    name: str,
    purpose: str,
    shape: tuple[int, ...],
    *,
    dtype: str = "float32",
    coarse: str | None = "bfloat16",
    scale_shape: tuple[int, ...] | None = None,
    x: Fill = ACTIVATIONS,
    gate: Fill = GATES,
    x_edits: tuple[Put | Scale, ...] = (),
    gate_edits: tuple[Put | Scale, ...] = (),
    scale: Fill = GRID,
    scale_edits: tuple[Put | Scale, ...] = (),
    epsilon: float = 1e-6,
    activation: str = "silu",
    recipe: str = "webgpu-subgroup-rows-vec4",
    gate_stride: int | None = None,
    tier: Tier = "quick",
    sampled_rows: tuple[int, ...] = (),
    seed: int = 1,
    only_here: tuple[str, ...] = (),
) -> Case:
    coarse = coarse if dtype == "float32" else None
    return Case(
        name=name,
        purpose=purpose,
        inputs={
            "x": Tensor(dtype, shape, x, x_edits, coarse=coarse),
            "scale": Tensor(dtype, scale_shape or shape[-1:], scale, scale_edits, coarse=coarse),
            "gate": Tensor(dtype, shape, gate, gate_edits, coarse=coarse, row_stride=gate_stride),
        },
        params={"epsilon": epsilon, "activation": activation},
        recipe=recipe,
        tier=tier,
        seed=seed,
        only_here=only_here,
        sampled_rows=sampled_rows,
    )


CASES = (
    case("decode_64_heads", "one token of a layer with 64 heads of 128, in float16",
         (64, 128), dtype="float16", only_here=("stored-through-bfloat16",)),
    case("decode_32_heads", "32 heads of 128 packed in one axis: rows of the scale's length",
         (1, 4096), scale_shape=(128,), coarse=None, only_here=("whole-last-axis",)),
    case("decode_48_heads", "two tokens of 48 heads of 128 in bfloat16, in four axes",
         (1, 2, 48, 128), dtype="bfloat16", only_here=("gate-of-first-token",)),
    case("long_rows", "rows of 1024 on one subgroup: every lane takes eight vectors",
         (12, 1024), coarse=None, seed=14, only_here=("four-vectors-only", "component-sums")),
    case("scale_of_two_axes", "a scale of [16, 8]: only its elements count, in C order",
         (16, 128), scale_shape=(16, 8), coarse=None, recipe="webgpu-packed-rows-vec4",
         only_here=("scale-in-fortran-order",)),
    case("gate_of_fused_projection", "the gate as a view of a wider buffer, 1000 apart",
         (6, 96), gate_stride=1000, coarse=None, recipe="webgpu-subgroup-rows-scalar",
         only_here=("gate-walked",)),
    case("gate_sweep", "gates from -25 to 25: silu shrinks, and is not zero yet",
         (8, 512), gate=SWEEP, only_here=("silu-flushed",)),
    case("sigmoid_sweep", "the same gates under sigmoid",
         (4, 512), gate=SWEEP, activation="sigmoid", recipe="webgpu-subgroup-wide-rows-vec4",
         only_here=("activation-ignored",)),
    case("onnxruntime_cpu_gates", "ONNX Runtime's CPU kernel over gates from -25 to 25: its own "
         "logistic, zero from -18 down",
         (8, 512), x=Integers(-8, 8), gate=SWEEP, recipe="onnxruntime-cpu",
         only_here=("logistic-exact", "logistic-not-fused")),
    case("onnxruntime_cpu_sum", "its sum, one square after the other",
         (32, 300), coarse=None, gate=Values((20.0, 24.0)), recipe="onnxruntime-cpu",
         only_here=("sum-contracted",)),
    case("onnxruntime_webgpu", "its WebGPU kernel: a workgroup of 256 lanes a row",
         (4, 1536), coarse=None, recipe="onnxruntime-webgpu", only_here=("workgroup-of-128",)),
    case("wide_rows", "rows on eight subgroups, whose sums are added in order",
         (2, 4096), recipe="webgpu-subgroup-wide-rows-vec4", only_here=("four-subgroups-only",)),
    case("odd_width", "rows of 33: the second subgroup has one lane's element",
         (16, 33), coarse=None, recipe="webgpu-subgroup-wide-rows-scalar",
         only_here=("tail-dropped",)),
    case("short_rows", "rows of 64: two share the subgroup, and must not share their sums",
         (6, 64), only_here=("neighbour-rows",)),
    case("exact_integers", "x = +-1: the same bits in any order of the sum, every index in sight",
         (3, 5120), dtype="bfloat16", x=Values((1, -1, -1, 1, -1)), gate=Values((64,)),
         epsilon=0.0, x_edits=(Scale(region(2, None), -12),), recipe="webgpu-packed-rows-vec4",
         only_here=("row-bounded-4096",)),
    case("small_activations", "x near 1e-3, where epsilon decides",
         (8, 200), x=Uniform(-9), coarse=None, epsilon=1e-5, recipe="webgpu-packed-rows-scalar",
         only_here=("epsilon-fixed",)),
    case("zero_rows", "rows of zeros of both signs: zeros with the sign of the product, not 0/0",
         (4, 128), x_edits=(Put(region(0, None), (0.0,)), Put(region(1, None), (-0.0, 0.0)),
                            Put(region(2, (0, 64)), (-0.0,))),
         only_here=("zero-row-nan",)),
    case("overflowing_squares", "|x| from 1.8e19 on: the sum is infinite and the row zeros",
         (5, 128), x_edits=(
             Put(region(0, None), (1e20,)), Put(region(1, (0, 2)), (1.8e19,)),
             Put(region(2, 77), (1e30,)), Scale(region(3, None), 60)),
         only_here=("sum-bounded",)),
    case("vanishing_squares", "squares that underflow with epsilon 0: infinities and bits lost",
         (5, 128), epsilon=0.0, x_edits=(
             Put(region(0, None), (2.0**-133,)), Put(region(1, None), (2e-23,)),
             Put(region(2, None), (3e-23,)), Put(region(3, None), (1e-22, -1e-22))),
         only_here=("flush-to-zero",)),
    case("nan_and_infinity", "NaN in x: its row; in gate or scale: its element; infinity in x: "
         "NaN there, zeros elsewhere",
         (8, 128), x=Integers(-8, 8),
         x_edits=(Put(region(0, 30), (NAN,)), Put(region(1, 5), (INF,)),
                  Put(region(2, 127), (-INF,)), Put(region(3, 7), (0.0,))),
         gate_edits=(Put(region(4, 100), (NAN,)), Put(region(5, 30), (INF,)),
                     Put(region(6, 0), (-INF,))),
         scale_edits=(Put(region(7), (INF,)), Put(region(9), (NAN,))),
         recipe="webgpu-subgroup-wide-rows-scalar", only_here=("nan-ignored", "nan-spreads")),
    case("float16_overflow", "a scale that lifts float16 outputs beyond 65504: infinities",
         (2, 128), dtype="float16", x=Values((1, -1, 1)), gate=Values((64,)), epsilon=0.0,
         scale=Values((30208.0, 512.0, 1.0, 1024.0)), only_here=("cast-saturates",)),
    case("fla", "flash-linear-attention: times the gate, then times its sigmoid",
         (4, 512), recipe="fla", only_here=("silu-first",)),
    case("hf_qwen3_next", "Hugging Face: bfloat16 before the weight, after it and at the store",
         (16, 128), dtype="bfloat16", recipe="hf-qwen3-next", only_here=("casts-dropped",)),
    case("hf_qwen3_next_cuda", "the same layer on an H200: expf, rsqrtf, torch's order of rows",
         (32, 128), coarse=None, recipe="hf-qwen3-next-sm90", tier="standard"),
    case("hf_qwen3_next_float32", "the same formula in float32: silu by a division",
         (8, 128), recipe="hf-qwen3-next", tier="standard"),
    case("operator_tests", "the shapes of ONNX Runtime's own tests: 32 heads of 128, four tokens",
         (1, 4, 32, 128), recipe="onnxruntime-cpu", tier="standard"),
    case("operator_tests_float16", "two sequences of three tokens, one head of 512",
         (2, 3, 1, 512), dtype="float16", epsilon=1e-5, recipe="onnxruntime-cpu",
         tier="standard"),
    case("prefill_64_heads", "64 tokens of 64 heads of 128 in float16",
         (4096, 128), dtype="float16", tier="standard"),
    case("one_wide_row", "one row of 7680 in float32, as a fused projection gives it",
         (1, 7680), coarse=None, recipe="webgpu-subgroup-wide-rows-vec4", tier="standard"),
    case("one_wide_row_scalar", "the same row, one element a lane",
         (1, 7681), coarse=None, recipe="webgpu-subgroup-rows-scalar", tier="standard"),
    case("all_scales", "every exponent of scale and gate in bfloat16",
         (64, 1024), dtype="bfloat16", gate=Spread(-20, 6), scale=Spread(-120, 120),
         tier="standard"),
    case("all_codes", "every bit pattern of float16 as x and as gate, at random",
         (1024, 16), dtype="float16", x=Codes(), gate=Codes(), tier="standard"),
    case("prefill", "2048 rows of 8192 in float16; some are kept",
         (2048, 8192), dtype="float16", tier="full", sampled_rows=(0, 1, 777, 1024, 2047)),
)  # fmt: skip
