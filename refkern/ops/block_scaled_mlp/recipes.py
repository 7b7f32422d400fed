"""The recipes of block_scaled_mlp: whose dots, whose scales, whose SwiGLU, in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from refkern.errors import InvalidInput
from refkern.group_dots import EXACT, GroupDots
from refkern.hardware.sm90 import group_dots as sm90
from refkern.hardware.sm90.special_functions import EXPF
from refkern.op import Call
from refkern.quantize import RULES, ScaleRule
from refkern.recipe import Recipe
from refkern.schedules import Schedule, Sequential
from refkern.swiglu_variants import VARIANTS, Variant


@dataclass(frozen=True)
class Slices:
    """Groups in slices of so many, as a kernel's warps split K: each slice's sum starts at +0, and
    the slices' sums are added in order, from +0.  The last slice may be shorter.

    fused: a group's dot times its scales is added by fma, with one rounding; else with two.
    """

    groups: int = 4
    fused: bool = True

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        in_order = Sequential(self.fused)
        sums = [
            in_order.replay(
                a[..., start : start + self.groups],
                None if b is None else b[..., start : start + self.groups],
            )
            for start in range(0, a.shape[-1], self.groups)
        ]
        lead = a.shape[:-1] if b is None else np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
        return Sequential().replay(np.stack(sums, axis=-1) if sums else np.zeros((*lead, 0), "f4"))


@dataclass(frozen=True, kw_only=True)
class MlpRecipe(Recipe):
    #: how x and act are quantised
    rule: ScaleRule = RULES["densemlp"]
    #: a group's dot product
    dots: GroupDots = EXACT
    #: in which order the groups' dots, times their scales, are added; None: without any rounding
    order: Schedule | None = Slices()
    swiglu: Variant = VARIANTS["densemlp"]


VLLM_DENSEMLP = MlpRecipe(
    name="vllm-densemlp",
    source="vLLM glm5next DenseMlp with exact group dots and a correctly rounded exp",
)
VLLM_STOCK_CUDA = replace(
    VLLM_DENSEMLP,
    name="vllm-stock-cuda",
    source="the CUDA ops that DenseMlp replaces: silu in bfloat16, codes clamped",
    rule=RULES["vllm-cuda-033"],
    swiglu=VARIANTS["vllm-cuda-clamp"],
)
DEEPSEEK_V4_REF = MlpRecipe(
    name="deepseek-v4-ref",
    source="DeepSeek-V4 inference: tilelang quantiser and GEMM, float32 SwiGLU",
    rule=RULES["deepseek-v32-ref"],
    order=Sequential(fused=True),
    swiglu=VARIANTS["deepseek-v4-ref"],
)
EXACT_SUMS = MlpRecipe(
    name="exact",
    source="exact sums: one rounding to gate, up and out",
    order=None,
)


def whole(size: int) -> Callable[[Call], None]:
    """The domain of a recipe that takes only whole runs of ``size`` in K and inter."""

    def check(call: Call) -> None:
        for name, n in (("x", call.x.shape[1]), ("w2", call.w2.shape[1])):
            if n % size:
                raise InvalidInput(
                    name, f"{n} columns", f"this recipe takes K and inter in whole {size}s"
                )

    return check


VLLM_DENSEMLP_SM90 = MlpRecipe(
    name="vllm-densemlp-sm90",
    source="vLLM glm5next DenseMlp on an NVIDIA H200, as CuTe DSL compiles it",
    domain=whole(512),
    dots=sm90.DENSEMLP,
    swiglu=replace(VARIANTS["densemlp"], exp=EXPF),
)
VLLM_DENSEMLP_SM90_NOFMA = replace(
    VLLM_DENSEMLP_SM90,
    name="vllm-densemlp-sm90-nofma",
    source="the same without contraction of the dot times its scales into fma",
    order=Slices(fused=False),
)
DEEPGEMM_SM90 = MlpRecipe(
    name="deepgemm-sm90",
    source="DeepGEMM's FP8 GEMM on Hopper: wgmma keeps 13 fraction bits, promotion per 128",
    domain=whole(128),
    dots=sm90.WGMMA,
    order=Sequential(fused=True),
    swiglu=replace(VARIANTS["densemlp"], exp=EXPF),
)
RECIPES = (
    VLLM_DENSEMLP,
    VLLM_STOCK_CUDA,
    DEEPSEEK_V4_REF,
    EXACT_SUMS,
    VLLM_DENSEMLP_SM90,
    VLLM_DENSEMLP_SM90_NOFMA,
    DEEPGEMM_SM90,
)
