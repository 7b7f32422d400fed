"""The golden cases of gated_group_rmsnorm.

bfloat16 outputs see neither the order of a sum nor fma nor exp; float32 outputs see them all.  So
every shape that matters is there in float32 beside the dtype that models run in.
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

#: weights that bfloat16 and float16 hold, and that differ from channel to channel
GRID = Integers(33, 127, -6)
#: |y| < 4 and |gate| < 8, as activations are
ACTIVATIONS, GATES = Uniform(2), Uniform(3)
NAN, INF = math.nan, math.inf


def case(
    name: str,
    purpose: str,
    shape: tuple[int, int],
    group_size: int,
    *,
    y: str = "bfloat16",
    gate: str | None = "bfloat16",
    y_fill: Fill = ACTIVATIONS,
    gate_fill: Fill = GATES,
    y_edits: tuple[Put | Scale, ...] = (),
    gate_edits: tuple[Put | Scale, ...] = (),
    weight: Fill = GRID,
    eps: float = 1e-5,
    recipe: str = "modular-apple",
    coarse: str | None = None,
    gate_stride: int | None = None,
    tier: Tier = "quick",
    sampled_rows: tuple[int, ...] = (),
    seed: int = 1,
    only_here: tuple[str, ...] = (),
) -> Case:
    return Case(
        name=name,
        purpose=purpose,
        inputs={
            "y": Tensor(y, shape, y_fill, y_edits, coarse=coarse),
            "gate": gate
            and Tensor(gate, shape, gate_fill, gate_edits, coarse=coarse, row_stride=gate_stride),
            "weight": Tensor("float32", shape[1:], weight),
        },
        params={"group_size": group_size, "eps": eps},
        recipe=recipe,
        tier=tier,
        seed=seed,
        only_here=only_here,
        sampled_rows=sampled_rows,
    )


def scaled_groups(group_size: int, exponents: tuple[int, ...]) -> tuple[Scale, ...]:
    """Group i of every row times 2^exponents[i]."""
    return tuple(
        Scale(region(None, (i * group_size, (i + 1) * group_size)), e)
        for i, e in enumerate(exponents)
    )


CASES = (
    case("nemotron_decode",
         "one token of a Nemotron-H layer with a float32 weight, as the checkpoint holds it",
         (1, 7680), 960, weight=Spread(-1, 0, signed=False), only_here=("weight-rounded",)),
    case("nemotron_float32",
         "the same layer in float32, where exp, fma and every order of the sum leave their bits",
         (4, 3840), 960, y="float32", gate="float32", eps=1e-6, only_here=("inputs-bfloat16",)),
    case("nemotron_wide_gate", "a float32 gate beside a bfloat16 y, from a fused projection",
         (3, 1920), 960, gate="float32", only_here=("gate-rounded",)),
    case("nano_float16", "eight tokens of Nemotron-3-Nano in float16",
         (8, 4096), 512, y="float16", gate="float16", eps=1e-6,
         only_here=("stored-through-bfloat16",)),
    case("zamba2_one_long_group", "a group longer than any fixed buffer",
         (2, 5120), 5120, y="float32", gate="float32", coarse="bfloat16", eps=1e-6,
         only_here=("buffer-4096",)),
    case("groups_of_100", "a group that fills three warps and leaves four lanes",
         (3, 300), 100, y="float32", gate="float32", coarse="bfloat16", eps=1e-6,
         only_here=("tail-dropped",)),
    case("groups_of_7", "a group shorter than a warp, and not a multiple of a vector",
         (5, 77), 7, y="float32", gate="float32", coarse="bfloat16", eps=1e-6,
         only_here=("lanes-leak",)),
    case("exact_integers",
         "silu(64) = 64 and y = +-1: the same bits in any order of the sum, every index in sight",
         (4, 3840), 960, y_fill=Values((1, -1, -1, 1, -1)), gate_fill=Values((64,)), eps=0.0,
         y_edits=(Scale(region(2, None), -12), Scale(region(3, (960, 1920)), -10)),
         only_here=("eps-zero-is-default",)),
    case("group_scales", "groups from 2^-10 to 2^10, so that eps decides some and not others",
         (2, 5280), 480, y_edits=scaled_groups(480, tuple(range(-10, 12, 2))),
         only_here=("eps-fixed",)),
    case("zero_groups", "groups of zeros of both signs: zeros out, not 0/0",
         (4, 512), 128, y_edits=(
             Put(region(0, None), (0.0,)), Put(region(1, (0, 128)), (-0.0, 0.0)),
             Put(region(2, (128, 256)), (-0.0,))),
         only_here=("zero-group-nan",)),
    case("huge_values", "squares that overflow: the group becomes zeros, its neighbours do not",
         (4, 512), 128, y_edits=(
             Scale(region(0, (0, 128)), 66), Scale(region(1, (128, 256)), 120),
             Put(region(2, 300), (1e30,)), Scale(region(3, None), 60)),
         only_here=("sum-bounded",)),
    case("tiny_values", "subnormal inputs, products and outputs survive",
         (4, 512), 128, y="float32", gate="float32", coarse="bfloat16", eps=1e-6,
         y_edits=(Put(region(0, (0, 128)), (2.0**-133, -(2.0**-130), 2.0**-127)),
                  Scale(region(1, None), -80), Scale(region(2, (0, 256)), -120)),
         gate_edits=(Put(region(3, (0, 128)), (-87.5, -88.0, -88.5, -87.0)),),
         only_here=("flush-to-zero",)),
    case("deep_negative_gates", "gates from -60 to -120: silu shrinks, then is exactly -0",
         (3, 512), 128, y="float32", gate="float32", coarse="bfloat16", eps=1e-6,
         gate_edits=(Put(region(0, None), (-60.0, -90.0, -104.0, -120.0, -75.0, -1000.0)),
                     Put(region(1, (0, 128)), (-16.0, -18.0, -20.0, -70.0))),
         only_here=("silu-stable",)),
    case("nan_stays_in_its_group", "NaN and infinity in y and gate: their own groups, no other",
         (4, 1024), 128, y_edits=(
             Put(region(0, 130), (NAN,)), Put(region(1, 5), (INF,)), Put(region(2, 1023), (-INF,))),
         gate_edits=(Put(region(1, 700), (NAN,)), Put(region(2, 300), (INF,)),
                     Put(region(3, 0), (-INF,))),
         only_here=("nan-ignored", "nan-spreads")),
    case("gate_of_fused_projection", "the gate as a view of a wider buffer, 8192 apart",
         (5, 3840), 960, gate_stride=8192, eps=1e-6, only_here=("gate-walked",)),
    case("no_gate", "without a gate y itself is normalised", (3, 768), 256, gate=None,
         only_here=("gate-required",)),
    case("float16_overflow", "a weight that lifts float16 outputs beyond 65504: infinities",
         (2, 256), 64, y="float16", gate="float16", y_fill=Values((1, -1, 1)),
         gate_fill=Values((64,)), weight=Values((30208.0, 65536.0, 1.0, 98304.0)),
         only_here=("cast-saturates",)),
    case("vector_kernel", "Modular's 16-byte vectors, whose first halving is an fma",
         (4, 3840), 320, y="float32", gate="float32", coarse="bfloat16", eps=1e-6,
         recipe="modular-vector", only_here=("fma-on-the-other-half",)),
    case("modular_cpu", "Modular's CPU kernel with its own exp",
         (3, 1024), 64, y="float32", gate="float32", coarse="bfloat16", eps=1e-6,
         recipe="modular-cpu", only_here=("exp-accurate",)),
    case("hf_zamba2", "Hugging Face's formula: silu by a division, sums as torch adds them",
         (3, 1792), 896, y="float32", gate="float32", coarse="bfloat16", eps=1e-6,
         recipe="hf-zamba2", only_here=("silu-product",)),
    case("mamba_ssm", "mamba_ssm's Triton kernel: float32 until the one store",
         (4, 2048), 1024, recipe="mamba-ssm", only_here=("cast-added",)),
    case("vllm_mixer2_groups", "vLLM's mixer with several groups: Hugging Face's roundings",
         (4, 7168), 3584, recipe="vllm-mixer2", tier="standard"),
    case("vllm_mixer2_one_group", "vLLM's mixer with one group: the Triton kernel's roundings",
         (4, 4096), 4096, recipe="vllm-mixer2", tier="standard"),
    case("modular_nvidia_vectors", "Modular's GPU kernel on sm_90a, 16-byte vectors",
         (4, 3840), 320, y="float32", gate="float32", eps=1e-6,
         recipe="modular-nvidia-sm90", tier="standard"),
    case("modular_nvidia_scalars", "its scalar kernel on the same shape",
         (4, 3840), 320, y="float32", gate="float32", eps=1e-6,
         recipe="modular-nvidia-sm90-scalar", tier="standard"),
    case("hf_zamba2_cuda", "Hugging Face's layer on an H200: expf, rsqrtf, torch's order of rows",
         (4, 7680), 960, y="float32", gate="float32", eps=1e-5,
         recipe="hf-zamba2-sm90", tier="standard"),
    case("nemotron_h_8b", "64 tokens of Nemotron-H-8B", (64, 8192), 1024, tier="standard"),
    case("nano_9b_v2", "16 tokens of Nemotron-Nano-9B-v2", (16, 10240), 1280, tier="standard"),
    case("nemotron_h_56b", "16 tokens of Nemotron-H-56B in float32",
         (16, 16384), 2048, y="float32", gate="float32", tier="standard"),
    case("all_codes", "every bit pattern of bfloat16 as y and as gate, at random",
         (128, 1024), 16, y_fill=Codes(), gate_fill=Codes(), tier="standard"),
    case("nemotron_prefill", "2048 tokens of a Nemotron-H layer; some rows are kept",
         (2048, 7680), 960, tier="full", sampled_rows=(0, 1, 777, 1024, 2047)),
)  # fmt: skip
